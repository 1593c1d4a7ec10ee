"""Effects of T32 instructions of Arm (Thumb) on registers that control loops, with symbols for unknown values.

A value is a symbol plus a constant: pointers and counters that move by constants stay comparable, whatever they began
with.  Everything else that an instruction gives is a new symbol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from tenon.machine.toolchain.control_flow import AssemblyInstruction

Value = tuple[int, int]
"""A symbol (0: none) and a constant.  Without symbol: 32 bits with a sign."""

_SIGN = 1 << 31
_ALIAS = {"r13": "sp", "r14": "lr", "r15": "pc", "ip": "r12", "fp": "r11", "sl": "r10", "sb": "r9"}
_REGISTER = re.compile(r"^(?:r\d+|sp|lr|pc|[sdq]\d+)$")
_NO_RESULT = re.compile(
    r"^(?:str.*|stm.*|push|v?cmp.*|cmn|tst|teq|vst.*|vpush|nop|b|bx|cbn?z|it[te]*|pldw?|dmb|dsb|isb|tbb|tbh|le|letp|"
    r"lctp|vpt.*|vpst|vpnot|vctp|yield|wfi|svc|bkpt|udf)$"
)
_TWO_RESULTS = re.compile(
    r"^(?:ldrd|[us]mull|[us]mlal\w*|umaal|smlsld\w*|lsrl|lsll|asrl|[us]qr?sh[rl]l|vml\w*lv\w*|vaddlv\w*)$"
)
_CLOBBERED = ("r0", "r1", "r2", "r3", "r12", "lr", "flags", *(f"s{i}" for i in range(16)))
_KEPT = (*(f"r{i}" for i in range(13)), "sp", "lr", *(f"s{i}" for i in range(32)))
_SETS_FLAGS = (
    "cmp",
    "cmn",
    "tst",
    "teq",
    "vmrs",
    "vctp",
    "adcs",
    "sbcs",
    "rors",
    "rrxs",
    "asrs",
    "lsls",
    "lsrs",
    "adds",
    "subs",
    "rsbs",
    "ands",
    "orrs",
    "eors",
    "bics",
    "orns",
    "muls",
    "mvns",
    "movs",
)
_TAIL_ELEMENTS = {"8": 16, "16": 8, "32": 4, "64": 2}


class Symbols:
    """Makes symbols, and keeps what each was computed from."""

    def __init__(self) -> None:
        self._count = count(1)
        self._roots: dict[int, frozenset[int] | None] = {}

    def root(self) -> Value:
        """A symbol that code around may know: a parameter, or a register at the beginning of an iteration."""
        return next(self._count), 0

    def data(self) -> Value:
        """A symbol for what depends on data."""
        value = self.root()
        self._roots[value[0]] = None
        return value

    def of(self, *values: Value) -> Value:
        """A symbol for what was computed from ``values``."""
        value = self.root()
        self._roots[value[0]] = self.roots(*values)
        return value

    def roots(self, *values: Value) -> frozenset[int] | None:
        """The symbols that values were computed from; None: from data as well."""
        origins = [self._roots.get(symbol, frozenset({symbol})) for symbol, _ in values if symbol]
        known = [roots for roots in origins if roots is not None]
        return frozenset().union(*known) if len(known) == len(origins) else None


def number(n: int) -> Value:
    """A constant of 32 bits."""
    return 0, (n + _SIGN) % (2 * _SIGN) - _SIGN


@dataclass(frozen=True)
class Flags:
    """The flags of comparing ``a`` with ``b``, as of ``a - b``.  ``equality``: only eq, ne, mi and pl are known."""

    a: Value
    b: Value
    equality: bool = False


class Registers:
    """Core registers, single floats that hold values of core registers, and words of the stack, by name or address."""

    def __init__(self, words: Mapping[str, int], symbols: Symbols) -> None:
        self.words, self.symbols = words, symbols
        self.values: dict[str | Value, Value] = {name: symbols.root() for name in _KEPT}
        self.flags: Flags | None = None
        self.elements = "8"  # the size in bits of those that the loop with tail predication has

    def copy(self) -> Registers:
        """An independent copy."""
        made = object.__new__(Registers)
        made.words, made.symbols = self.words, self.symbols
        made.values, made.flags, made.elements = dict(self.values), self.flags, self.elements
        return made

    def merge(self, other: Registers) -> None:
        """Keep what is the same in both."""
        for name in self.values.keys() | other.values.keys():
            if self.values.get(name) != other.values.get(name):
                self.forget(name)
        if self.flags != other.flags:
            self.flags = None

    def forget(self, name: str | Value) -> None:
        """A register or word changes to something unknown."""
        if isinstance(name, str):
            self.values[name] = self.symbols.data()
        else:
            self.values.pop(name, None)

    def read(self, name: str) -> Value:
        """The value of an operand: a register or ``#number``."""
        if name.startswith("#"):
            return number(int(name[1:], 0))
        name = _ALIAS.get(name, name)
        if name not in self.values:
            self.values[name] = self.symbols.data()
        return self.values[name]

    def called(self) -> None:
        """A function ran, which keeps the registers that the procedure call standard (AAPCS32) says."""
        for name in _CLOBBERED:
            self.forget(name)
        self.flags = None

    def execute(self, one: AssemblyInstruction) -> None:
        """The effect of an instruction that is no branch or call; where it has a condition, of what may be."""
        if one.condition:
            taken = self.copy()
            taken._execute(one)
            self.merge(taken)
        else:
            self._execute(one)

    def _execute(self, one: AssemblyInstruction) -> None:
        effect = getattr(self, f"_{_FAMILY.get(one.name, '')}", None)
        if effect is None or not effect(one):
            self._others(one)

    def _others(self, one: AssemblyInstruction) -> None:
        """An instruction of which only the results' places are known."""
        name, operands = one.name, one.operands
        if name.startswith(("ldm", "stm", "vldm", "vstm")):
            self._move_many(one)
        elif not _NO_RESULT.match(name):
            results = operands[: 2 if _TWO_RESULTS.match(name) else 1]
            value = None if name.startswith(("ld", "v")) else self._computed(operands[len(operands) > 2 :])
            for operand in results:
                self._forget_register(operand)
            if value and len(results) == 1 and _REGISTER.match(_ALIAS.get(results[0], results[0])):
                self._set(results[0], value)
            if name == "vmov" and len(operands) > 2:
                for operand in operands:
                    self._forget_register(operand)
        if name in ("vpush", "vpop"):
            size = sum(8 if o.startswith("d") else 4 for o in _listed(operands[-1]))
            self._add_to("sp", -size if name == "vpush" else size)
            for operand in _listed(operands[-1]) if name == "vpop" else ():
                self._forget_register(operand)
        if name in ("strd", "str", "strb", "strh") or name.startswith("vst"):
            self._store(one)
        self._write_back(one)
        if name in _SETS_FLAGS:
            self.flags = None

    def _computed(self, operands: tuple[str, ...]) -> Value:
        """A symbol for what is computed from registers."""
        names = (_ALIAS.get(operand, operand) for operand in operands)
        return self.symbols.of(*(self.read(name) for name in names if _REGISTER.match(name)))

    def _forget_register(self, operand: str) -> None:
        operand = _ALIAS.get(operand, operand).partition("[")[0]
        kind, index = operand[:1], operand[1:]
        width = {"d": 2, "q": 4}.get(kind, 1)
        if width > 1 and index.isdigit():
            for i in range(width):
                self.forget(f"s{int(index) * width + i}")
        elif _REGISTER.match(operand):
            self.forget(operand)

    # ------------------------------------------------------------------------------------- memory
    def _address(self, operand: str) -> Value | None:
        """The address of ``[register]`` or ``[register, #constant]``; None: it is not known."""
        parts = [part.strip() for part in operand.strip("[]!").split(",")]
        if len(parts) > 2 or (len(parts) == 2 and not parts[1].startswith("#")):
            return None
        return plus(self.read(parts[0]), self.read(parts[1])[1] if len(parts) == 2 else 0)

    def _in_frame(self, one: AssemblyInstruction, position: int) -> Value | None:
        """The address of an access relative to the stack pointer."""
        address = self._address(one.operands[position])
        return address if address and address[0] and address[0] == self.read("sp")[0] else None

    def _store(self, one: AssemblyInstruction) -> None:
        """Stores elsewhere than relative to the stack pointer change no word that a compiler spilled."""
        place = next((i for i, o in enumerate(one.operands) if o.startswith("[")), None)
        if place is None or (address := self._in_frame(one, place)) is None:
            return
        if one.name in ("str", "strd") and not one.data:
            for i, register in enumerate(one.operands[:place]):
                self.values[plus(address, 4 * i)] = self.read(register)
        else:
            for i in range(-3, 16):
                self.values.pop(plus(address, i), None)

    def _load(self, one: AssemblyInstruction) -> bool:
        place = one.operands[-1] if one.operands[-1].startswith("[") else ""
        if one.name == "ldr" and one.operands[1].startswith(".LCPI"):
            self._set(
                one.operands[0],
                number(self.words[one.operands[1]]) if one.operands[1] in self.words else self.symbols.data(),
            )
            return True
        if not place or place.endswith("!"):
            return False
        place_in_frame = self._in_frame(one, len(one.operands) - 1)
        loaded = [
            self.values.get(plus(place_in_frame, 4 * i)) if place_in_frame else None
            for i in range(len(one.operands) - 1)
        ]
        for register, value in zip(one.operands, loaded, strict=False):
            self._set(register, value or self.symbols.data())
        return True

    def _write_back(self, one: AssemblyInstruction) -> None:
        """Add what an access adds to its pointer."""
        for i, operand in enumerate(one.operands):
            if operand.endswith("]!"):
                parts = [part.strip() for part in operand.strip("[]!").split(",")]
                known = len(parts) == 2 and parts[1].startswith("#")
                self._set(parts[0], plus(self.read(parts[0]), self.read(parts[1])[1]) if known else self.symbols.data())
            elif operand.startswith("[") and i + 1 < len(one.operands):
                pointer = operand.strip("[]").split(",")[0].strip()
                self._set(pointer, self._sum("add", self.read(pointer), self.read(one.operands[i + 1])))

    def _move_many(self, one: AssemblyInstruction) -> None:
        """ldm, stm, vldm, vstm."""
        pointer, names = one.operands[0], _listed(one.operands[-1])
        size = sum(8 if o.startswith("d") else 4 for o in names)
        base = pointer.rstrip("!")
        moved = plus(self.read(base), -size if "db" in one.name else size)
        if one.name.startswith("stm") and self.read(base)[0] == self.read("sp")[0]:
            first = self.read(base) if "db" not in one.name else moved
            for i, name in enumerate(names):
                self.values[plus(first, 4 * i)] = self.read(name)
        if "ldm" in one.name:
            for name in names:
                self._forget_register(name)
        if pointer.endswith("!"):
            self._set(base, moved)

    def _push(self, one: AssemblyInstruction) -> bool:
        names = _listed(one.operands[0])
        self._add_to("sp", -4 * len(names))
        for i, name in enumerate(names):
            self.values[plus(self.read("sp"), 4 * i)] = self.read(name)
        return True

    def _pop(self, one: AssemblyInstruction) -> bool:
        for name in _listed(one.operands[0]):
            self._set(name, self.values.get(self.read("sp")) or self.symbols.data())
            self._add_to("sp", 4)
        return True

    def _add_to(self, register: str, n: int) -> None:
        self.values[register] = plus(self.read(register), n)

    # --------------------------------------------------------------------------------- arithmetic
    def _set(self, register: str, value: Value) -> None:
        self.values[_ALIAS.get(register, register)] = value

    def _operand(self, operands: tuple[str, ...]) -> Value:
        """The last operand of an instruction, shifted where it says so."""
        value = self.read(operands[0])
        if len(operands) < 2:
            return value
        shift, amount = operands[1].split() if " " in operands[1] else ("", "")
        known = not value[0] and amount.startswith("#")
        return (_shifted(shift, value, int(amount[1:], 0)) if known else None) or self.symbols.of(value)

    def _sum(self, name: str, a: Value, b: Value) -> Value:
        """The result of an operation of two values."""
        return _result(name, a, b) or self.symbols.of(a, b)

    def _arithmetic(self, one: AssemblyInstruction) -> bool:
        to, *rest = one.operands
        if not rest or to == "pc":
            return False
        first, second = (to, rest) if len(rest) == 1 else (rest[0], rest[1:])
        if len(rest) > 1 and not _REGISTER.match(_ALIAS.get(first, first)):
            return False
        if len(rest) == 2 and " " in rest[1]:  # add r0, r1, lsl #2
            first, second = to, rest
        a, b = self.read(first), self._operand(tuple(second))
        name = one.name.removesuffix("s") if one.name != "subs" else "sub"
        result = self._sum(name.removesuffix("w"), a, b)
        if one.name.endswith("s"):
            self.flags = Flags(result, (0, 0), equality=True)
            if name in ("sub", "add") and (name == "sub" or (not b[0] and b[1])):
                self.flags = Flags(a, b if name == "sub" else number(-b[1]))  # a carry of a + b is one of a - (-b)
        self._set(to, result)
        return True

    def _copy(self, one: AssemblyInstruction) -> bool:
        to, *rest = one.operands
        if to == "pc":
            return False
        value = self._operand(tuple(rest)) if one.name[:3] != "vmo" else self._float_copy(one)
        if value is None:
            return False
        if one.name.startswith("mvn"):
            value = self.symbols.of(value) if value[0] else number(~value[1])
        elif one.name == "movt":
            low = self.read(to)
            value = self.symbols.of(low) if low[0] else number((low[1] & 0xFFFF) | value[1] << 16)
        if one.name in ("movs", "mvns"):
            self.flags = Flags(value, (0, 0), equality=True)
        self._set(to, value)
        return True

    def _float_copy(self, one: AssemblyInstruction) -> Value | None:
        """A core register kept in a single float, or read from there."""
        plain = (
            len(one.operands) == 2 and not one.data and all(re.match(r"^(?:r\d+|lr|s\d+)$", o) for o in one.operands)
        )
        return self.read(one.operands[1]) if plain else None

    def _compare(self, one: AssemblyInstruction) -> bool:
        a, b = self.read(one.operands[0]), self._operand(one.operands[1:])
        if one.name == "cmn":
            b = self.symbols.of(b) if b[0] else number(-b[1])
        if one.name == "tst":
            a, b = self._sum("and", a, b), (0, 0)
        self.flags = Flags(a, b, equality=one.name == "tst")
        return True

    def _loop_start(self, one: AssemblyInstruction) -> bool:
        """dls, dlstp: the counter of a loop with low overhead; wls, wlstp also branch."""
        self._set("lr", self.read(one.operands[1]))
        return True

    def branch_flags(self, one: AssemblyInstruction) -> Flags | None:
        """Operands that the condition of a branch compares; counters of loops with low overhead are counted down."""
        if one.name in ("cbz", "cbnz", "wls", "wlstp"):
            compared = self.read(one.operands[0 if one.name[0] == "c" else 1])
            if one.name[0] == "w":
                self._set("lr", compared)
            return Flags(compared, (0, 0))
        if one.name in ("le", "letp"):
            step = _TAIL_ELEMENTS.get(self.elements, 1) if one.name == "letp" else 1
            compared = self.read("lr")
            self._set("lr", plus(compared, -step))
            return Flags(compared, (0, step))
        return self.flags


def plus(value: Value, n: int) -> Value:
    """The sum of a value and a constant."""
    return (value[0], value[1] + n) if value[0] else number(value[1] + n)


def _result(name: str, a: Value, b: Value) -> Value | None:
    """The result of an operation of two values, if that is a constant or one of their symbols plus a constant."""
    if name == "rsb":
        name, a, b = "sub", b, a
    if name == "add" and not (a[0] and b[0]):
        return plus(a, b[1]) if a[0] else plus(b, a[1])
    if name == "sub" and not b[0]:
        return plus(a, -b[1])
    if name == "sub" and a[0] == b[0]:
        return number(a[1] - b[1])
    if a[0] or b[0]:
        return None
    x, y = a[1], b[1]
    if name in ("lsl", "lsr", "asr"):
        return _shifted(name, a, y)
    known = {"and": x & y, "orr": x | y, "eor": x ^ y, "bic": x & ~y, "mul": x * y}
    return number(known[name]) if name in known else None


def _shifted(shift: str, value: Value, amount: int) -> Value | None:
    if not 0 <= amount < 32:
        return None
    n = value[1]
    known = {"lsl": n << amount, "asr": n >> amount, "lsr": (n & 0xFFFFFFFF) >> amount}
    return number(known[shift]) if shift in known else None


def _listed(operand: str) -> list[str]:
    """The registers of ``{r0, r4-r6}``."""
    registers: list[str] = []
    for part in operand.strip("{}").split(","):
        first, _, last = part.strip().partition("-")
        end = int(last.strip()[1:]) if last else 0
        registers += [f"{first[0]}{i}" for i in range(int(first[1:]), end + 1)] if last else [first]
    return registers


_FAMILY = {
    **dict.fromkeys(
        (
            f"{name}{s}"
            for name in ("add", "sub", "rsb", "lsl", "lsr", "asr", "and", "orr", "eor", "bic", "mul")
            for s in ("", "s")
        ),
        "arithmetic",
    ),
    **dict.fromkeys(("addw", "subw"), "arithmetic"),
    **dict.fromkeys(("mov", "movs", "movw", "movt", "mvn", "mvns", "vmov"), "copy"),
    **dict.fromkeys(("cmp", "cmn", "tst"), "compare"),
    **dict.fromkeys(("ldr", "ldrd"), "load"),
    **dict.fromkeys(("dls", "dlstp"), "loop_start"),
    "push": "push",
    "pop": "pop",
}
