"""The inner loops of ``kernels.integer_pairs`` in assembly, for Arm's 32-bit cores with DSP instructions.

A tile of 4 positions x 2 channels needs every register there is, 8 sums, 2 pointers and 4 operands, so that compilers
spill some of what they are given as single instructions; a step is 13 instructions for 16 multiply-adds.  A product of
one vector with 4 rows of weights takes 21 for 16, because weights are read two words at a time.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from tenon.machine.codegen.c.assembly_tile import Frame, Tile, nest
from tenon.machine.kernel_ir.loops import Expr, Let, Load, Loop, Op, Ref, Stmt, Store
from tenon.network.graph.types import I32

POSITIONS, CHANNELS = 4, 2


class SmladTile(Tile):
    """A step reads the next ``words`` of the weights and the next ``elements`` of the inputs."""

    words: ClassVar[int]
    elements: ClassVar[int]
    operands: ClassVar[str]
    """Registers of a step besides the pointers, ``e`` and the sums."""
    input_type: ClassVar[str] = "const int32_t"
    condition = (
        "defined(__GNUC__) && defined(__ARM_FEATURE_DSP) && defined(__thumb2__) && !defined(__ARM_FEATURE_MVE) && "
        "defined(__OPTIMIZE__)"
    )
    """Without optimisation, compilers keep a register for frames; for Armv8.1-M with Helium, Clang keeps one always."""

    @abstractmethod
    def step(self) -> list[str]:
        """Instructions; w and p point to weights and inputs."""

    def text(self, weights: str, inputs: str, sums: Sequence[str]) -> list[str]:
        # No register is left for the end of the inputs.
        lines = self.step() * self.nest.inner
        if self.nest.outer > 1:
            lines = ["push {%[e]}", "1:", *lines, "ldr %[e], [sp]", "cmp %[p], %[e]", "bne 1b", "add sp, #4"]
        end = self.nest.outer * self.nest.inner * self.elements
        return Frame(weights, inputs, end, sums, self.operands, input_type=self.input_type).text(lines)


class PanelTile(SmladTile):
    """Sums of 4 positions, from a panel, by 2 channels; ``sums`` by position, then channel."""

    words, elements, operands = 1, POSITIONS, "oxz"

    def step(self) -> list[str]:
        return ["ldr %[e], [%[w]], #4", "sxtb16 %[o], %[e], ror #8", "sxtb16 %[e], %[e]", *_by_positions()]


class WideTile(SmladTile):
    """A ``PanelTile`` whose weights are pairs, too, as of ``kernels.integer_winograd``: 11 instructions for 16
    multiply-adds."""

    words, elements, operands = CHANNELS, POSITIONS, "oxz"

    def step(self) -> list[str]:
        return ["ldrd %[e], %[o], [%[w]], #8", *_by_positions()]


class VectorTile(SmladTile):
    """Sums of one vector of bytes by 4 channels."""

    words, elements, operands = 4, 4, "xzvuo"
    input_type = "const int8_t"

    def step(self) -> list[str]:
        found = ["ldr %[x], [%[p]], #4", "sxtb16 %[z], %[x], ror #8", "sxtb16 %[x], %[x]"]
        for x in "xz":
            found.append("ldrd %[v], %[u], [%[w]], #8")
            for i, word in enumerate("vu"):
                found += [f"sxtb16 %[o], %[{word}], ror #8", f"sxtb16 %[{word}], %[{word}]"]
                found += [_product(2 * i, x, word), _product(2 * i + 1, x, "o")]
        return found


def _by_positions() -> list[str]:
    """Products of the pairs of four positions with those in e and o."""
    found = []
    for i in range(0, POSITIONS, 2):
        found.append("ldrd %[x], %[z], [%[p]], #8")
        for j, x in enumerate("xz"):
            found += [_product(CHANNELS * (i + j) + v, x, w) for v, w in enumerate("eo")]
    return found


def _product(i: int, x: str, w: str) -> str:
    return f"smlad %[a{i}], %[{x}], %[{w}], %[a{i}]"


def matched(loop: Loop) -> SmladTile | None:
    """The tile that a loop computes, if it is one."""
    steps = nest(loop)
    found = None if steps is None else _panel(steps.body) or _vector(steps.body)
    if steps is None or found is None:
        return None
    kind, weights, inputs, sums = found
    walks = [steps.walks_on(load, inputs[0], kind.elements, i) for i, load in enumerate(inputs)]
    walks += [steps.walks_on(load, weights[0], kind.words, i) for i, load in enumerate(weights)]
    return kind(steps, weights[0], inputs[0], tuple(sums)) if all(walks) else None


_Found = tuple[type[SmladTile], list[Load], list[Load], list[Load]]


def _panel(body: tuple[Stmt, ...]) -> _Found | None:
    """Weights, inputs and sums of a step of a ``PanelTile`` or a ``WideTile``."""
    at = len(body) - POSITIONS * (1 + CHANNELS)
    if at not in (2, 3):
        return None
    even, odd, rest = body[at - 2], body[at - 1], body[at:]
    loads = [_load(body[0])] if at == 3 else [_load(even), _load(odd)]
    weights, inputs, sums = [load for load in loads if load is not None], list[Load](), list[Load]()
    widened = at == 2 or (_widens(even, "even_bytes", body[0]) and _widens(odd, "odd_bytes", body[0]))
    if len(weights) < len(loads) or not widened:
        return None
    for i in range(0, len(rest), 1 + CHANNELS):
        x, *stores = rest[i : i + 1 + CHANNELS]
        found, totals = _load(x), [_adds(store, x, weight) for store, weight in zip(stores, (even, odd), strict=True)]
        if found is None or None in totals:
            return None
        inputs.append(found)
        sums += [total for total in totals if total is not None]
    return PanelTile if at == 3 else WideTile, weights, inputs, sums


def _vector(body: tuple[Stmt, ...]) -> _Found | None:
    """Weights, inputs and sums of a step of a ``VectorTile``."""
    if len(body) != 1 + 2 * 11 or not isinstance(body[0], Let):
        return None
    value, weights, sums = body[0].value, list[Load](), list[Load]()
    inputs = value.args[0] if isinstance(value, Op) and value.name == "bitcast" else None
    if not isinstance(inputs, Load) or inputs.type.lanes != 4 or value.type.dtype is not I32:
        return None
    for half, name in enumerate(("even_bytes", "odd_bytes")):
        *words, x, a, b, c, d = body[1 + 11 * half : 12 + 11 * half]
        if not _widens(x, name, body[0]):
            return None
        rows = list[Stmt]()
        for word, even, odd in (words[:3], words[3:]):
            load = _load(word)
            if load is None or not (_widens(even, "even_bytes", word) and _widens(odd, "odd_bytes", word)):
                return None
            weights.append(load)
            rows += [even, odd]
        totals = [_adds(store, x, weight) for store, weight in zip((a, b, c, d), rows, strict=True)]
        sums += [total for total in totals if total is not None]
    first, second = sums[:4], sums[4:]
    alike = [a.buffer is b.buffer and a.index == b.index for a, b in zip(first, second, strict=False)]
    return (VectorTile, weights, [inputs], first) if len(sums) == 8 and all(alike) else None


def _load(stmt: Stmt) -> Load | None:
    """The word of memory that a statement names."""
    if isinstance(stmt, Let) and isinstance(stmt.value, Load) and stmt.value.buffer.space != "register":
        load = stmt.value
        return load if load.type.lanes == 1 and load.type.dtype is I32 else None
    return None


def _widens(stmt: Stmt, name: str, word: Stmt) -> bool:
    if not isinstance(stmt, Let) or not isinstance(word, Let):
        return False
    return _is(stmt.value, name) and _same(stmt.value, 0, word.ref)


def _adds(stmt: Stmt, x: Stmt, weight: Stmt) -> Load | None:
    """The register that a statement adds the product of ``x`` and ``weight`` to."""
    if not isinstance(x, Let) or not isinstance(weight, Let) or not isinstance(stmt, Store):
        return None
    if stmt.buffer.space != "register" or not _is(stmt.value, "dot2_i16"):
        return None
    assert isinstance(stmt.value, Op)
    total = stmt.value.args[0]
    alike = isinstance(total, Load) and total.buffer is stmt.buffer and total.index == stmt.index
    found = alike and _same(stmt.value, 1, x.ref) and _same(stmt.value, 2, weight.ref)
    return total if found and isinstance(total, Load) else None


def _is(value: Expr, name: str) -> bool:
    return isinstance(value, Op) and value.name == name and value.type.lanes == 1


def _same(value: Expr, i: int, ref: Ref) -> bool:
    return isinstance(value, Op) and value.args[i] is ref
