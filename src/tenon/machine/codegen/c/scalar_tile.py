"""The inner loops of ``kernels.integer_scalar`` in assembly, for Arm's 32-bit cores without DSP instructions.

A tile of 4 positions x 2 channels needs every register that Thumb-2 has, 8 sums, 2 pointers and 4 operands: 12
instructions for 8 multiply-adds.  In Thumb, products overwrite an operand and take r0 to r7 only: 4 inputs are loaded
at once and overwritten, sums lie in the other registers; 43 instructions for 16 multiply-adds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tenon.machine.codegen.c.assembly_tile import Frame, Tile, nest
from tenon.machine.kernel_ir.loops import Let, Load, Loop, Op, Stmt, Store
from tenon.network.graph.types import I32, DType

_THUMB2 = "defined(__GNUC__) && defined(__thumb2__) && defined(__OPTIMIZE__)"
_SMALL = "defined(__OPTIMIZE_SIZE__) && !defined(__clang__)"
"""GCC for size leaves registers after r7 alone."""
_THUMB1 = f"defined(__GNUC__) && defined(__thumb__) && !defined(__thumb2__) && defined(__OPTIMIZE__) && !({_SMALL})"
_FOUR = 4
"""Steps that read one word of weights, or of a vector, in Thumb."""


class ScalarTile(Tile):
    """A step multiplies ``elements`` inputs by the weights of ``channels``; ``sums`` by input, then channel."""

    operands: ClassVar[str]
    """Registers besides pointers and sums; the first one holds the end of the inputs before the first step."""
    sum_register: ClassVar[str] = "r"
    register: ClassVar[str] = "r"
    clobbered: ClassVar[tuple[str, ...]] = ()
    input_type: ClassVar[str] = "const int32_t"

    @property
    def channels(self) -> int:
        return len(self.sums) // self.elements

    @property
    def elements(self) -> int:
        """Inputs of a step."""
        return 1 if self.inputs.type.dtype is DType.I8 else self.inputs.buffer.shape[-1].const

    @abstractmethod
    def steps(self, count: int) -> list[str]:
        """Instructions; w and p point to weights and inputs."""

    def text(self, weights: str, inputs: str, sums: Sequence[str]) -> list[str]:
        lines, end, last = self.steps(self.nest.inner), self.operands[0], self.operands[1]
        if self.nest.outer > 1:  # no register is left for the end of the inputs
            lines = [f"push {{%[{end}]}}", "1:", *lines, f"ldr %[{last}], [sp]", f"cmp %[p], %[{last}]", "bne 1b",
                     "add sp, #4"]  # fmt: skip
        size = self.nest.outer * self.nest.inner * self.elements
        frame = Frame(
            weights, inputs, size, sums, self.operands[1:], end, "const int8_t", self.input_type,
            self.sum_register, self.register, self.clobbered,
        )  # fmt: skip
        return frame.text([".syntax unified", *lines])


class Panel2Tile(ScalarTile):
    """Sums of up to 4 positions, from a panel, by 2 channels."""

    operands = "oexz"
    condition = _THUMB2

    def steps(self, count: int) -> list[str]:
        found = []
        for _ in range(count):
            found += [f"ldrsb %[{w}], [%[w]], #1" for w in "oe"]
            for i in range(0, self.elements, 2):
                both = i + 1 < self.elements
                found.append("ldrd %[x], %[z], [%[p]], #8" if both else "ldr %[x], [%[p]], #4")
                for j, x in enumerate("xz" if both else "x"):
                    found += [_product(2 * (i + j) + v, x, w) for v, w in enumerate("oe")]
        return found


class Vector4Tile(ScalarTile):
    """Sums of one vector of bytes by 4 channels."""

    operands = "ox"
    condition = _THUMB2
    input_type = "const int8_t"

    def steps(self, count: int) -> list[str]:
        step = ["ldrsb %[x], [%[p]], #1"]
        for v in range(4):
            step += ["ldrsb %[o], [%[w]], #1", _product(v, "x", "o")]
        return step * count


class Panel1Tile(ScalarTile):
    """Sums of up to 4 positions, from a panel, by one channel, in Thumb."""

    operands, sum_register, register = "oz", "h", "l"
    clobbered = ("r0", "r1", "r2", "r3")
    condition = _THUMB1

    def steps(self, count: int) -> list[str]:
        found = []
        names = [f"r{i}" for i in range(self.elements)]
        for step in range(count):
            if step % _FOUR == 0:
                found.append("ldmia %[w]!, {%[z]}")
            found += [f"ldmia %[p]!, {{{', '.join(names)}}}", *_next_byte("o", "z", step)]
            found += [f"muls {name}, %[o], {name}" for name in names]
            found += [f"add %[a{i}], {name}" for i, name in enumerate(names)]
        return found


class Vector4ThumbTile(ScalarTile):
    """Sums of one vector of bytes by 4 channels, in Thumb."""

    operands, sum_register, register = "oxyz", "h", "l"
    condition = _THUMB1
    input_type = "const int8_t"

    def steps(self, count: int) -> list[str]:
        found = []
        for step in range(count):
            if step % _FOUR == 0:
                found.append("ldmia %[p]!, {%[y]}")
            found += [*_next_byte("x", "y", step), "ldmia %[w]!, {%[z]}"]
            for v in range(4):
                found += [*_next_byte("o", "z", v), "muls %[o], %[x], %[o]", f"add %[a{v}], %[o]"]
        return found


class VectorTile(Tile):
    """Sums of one vector of bytes by 4 channels, in Thumb-2 or in Thumb."""

    condition = f"({_THUMB2}) || ({_THUMB1})"

    def text(self, weights: str, inputs: str, sums: Sequence[str]) -> list[str]:
        large, small = (
            kind(self.nest, self.weights, self.inputs, self.sums).text(weights, inputs, sums)
            for kind in (Vector4Tile, Vector4ThumbTile)
        )
        return [f"#if {_THUMB2}", *large, "#else", *small, "#endif"]


def _next_byte(to: str, word: str, i: int) -> list[str]:
    """The next byte of a word with its sign."""
    if i % _FOUR == _FOUR - 1:
        return [f"asrs %[{to}], %[{word}], #8"]
    shift = [f"asrs %[{word}], %[{word}], #8"] if i % _FOUR else []
    return [*shift, f"sxtb %[{to}], %[{word}]"]


def _product(i: int, x: str, w: str) -> str:
    return f"mla %[a{i}], %[{x}], %[{w}], %[a{i}]"


def matched(loop: Loop) -> Tile | None:
    """The tile that a loop computes, if it is one."""
    steps = nest(loop)
    if steps is None or steps.inner % _FOUR:
        return None
    for channels in (1, 2, _FOUR):
        kind: type[Tile] | None = {1: Panel1Tile, 2: Panel2Tile}.get(channels)
        elements, rest = divmod(len(steps.body) - channels, 1 + channels)
        if rest or elements < 1 or (found := _operands(steps.body, channels, elements)) is None:
            continue
        weights, inputs, sums = found
        if inputs[0].type.dtype is DType.I8 and channels == _FOUR and elements == 1:
            kind = VectorTile
        elif inputs[0].type.dtype is not I32 or elements > _FOUR:
            continue
        walks = [steps.walks_on(load, inputs[0], elements, i) for i, load in enumerate(inputs)]
        walks += [steps.walks_on(load, weights[0], channels, i) for i, load in enumerate(weights)]
        return kind(steps, weights[0], inputs[0], sums) if kind is not None and all(walks) else None
    return None


def _operands(
    body: tuple[Stmt, ...], channels: int, elements: int
) -> tuple[list[Load], list[Load], tuple[Load, ...]] | None:
    """Weights, inputs and sums, by input and channel, of a step."""
    given, rest = body[:channels], body[channels:]
    weights = [_element(stmt, DType.I8) for stmt in given]
    inputs, sums = list[Load | None](), list[Load | None]()
    for i in range(0, len(rest), 1 + channels):
        x, *stores = rest[i : i + 1 + channels]
        inputs.append(_element(x, I32) or _element(x, DType.I8))
        sums += [_adds(store, x, weight) for store, weight in zip(stores, given, strict=True)]
    a, b, c = ([load for load in loads if load is not None] for loads in (weights, inputs, sums))
    whole = (len(a), len(b), len(c)) == (channels, elements, channels * elements)
    return (a, b, tuple(c)) if whole else None


def _element(stmt: Stmt, dtype: DType) -> Load | None:
    """The element of memory that a statement names, as i32."""
    if not isinstance(stmt, Let):
        return None
    value = stmt.value
    if isinstance(value, Op) and value.name == "cast" and dtype is not I32:
        value = value.args[0]
    fits = isinstance(value, Load) and value.buffer.space != "register" and value.type.lanes == 1
    return value if fits and isinstance(value, Load) and value.type.dtype is dtype else None


def _adds(stmt: Stmt, x: Stmt, weight: Stmt) -> Load | None:
    """The register that a statement adds the product of ``x`` and ``weight`` to."""
    if not (isinstance(stmt, Store) and isinstance(x, Let) and isinstance(weight, Let)):
        return None
    value = stmt.value
    if stmt.buffer.space != "register" or not isinstance(value, Op) or value.name != "add":
        return None
    total, product = value.args
    if not isinstance(product, Op) or product.name != "mul" or not isinstance(total, Load):
        return None
    alike = total.buffer is stmt.buffer and total.index == stmt.index
    return total if alike and product.args == (x.ref, weight.ref) else None
