"""The products of ``kernels.integer_winograd`` in assembly, for Arm's 32-bit cores with DSP instructions.

One piece of assembly computes all elements of a tile: the sums of an element begin with a product, not at zero, and
are stored behind its part of the panel, so that no register is saved between elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tenon.machine.codegen.c import pair_tile
from tenon.machine.codegen.c.assembly_tile import Frame, Nest, Tile, iterations
from tenon.machine.codegen.c.pair_tile import CHANNELS, POSITIONS, WideTile
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Alloc, Const, Load, Loop, Stmt, Store

_SUMS = POSITIONS * CHANNELS
_MOST_STEPS = 255
"""The bytes of the inputs of an element are an immediate operand."""


@dataclass(frozen=True)
class ElementTile(Tile):
    """``elements`` times the ``nest``; weights and inputs of an element follow those of the one before."""

    elements: int
    condition = WideTile.condition

    def text(self, weights: str, inputs: str, sums: Sequence[str]) -> list[str]:
        depth = self.nest.outer * self.nest.inner
        again = WideTile(self.nest, self.weights, self.inputs, ()).step()
        first = [line.replace("smlad", "smuad").rpartition(",")[0] if "smlad" in line else line for line in again]
        found, end, words = ["push {%[e]}"], "[sp]", 1
        if self.nest.outer > 1:  # no register is left for the ends of the inputs
            found, end, words = [*found, f"add %[e], %[p], #{depth * POSITIONS * 4}", "push {%[e]}"], "[sp, #4]", 2
        found += ["1:", *first, *again * (self.nest.inner - 1)]
        if self.nest.outer > 1:
            found += ["2:", *again * self.nest.inner, "ldr %[e], [sp]", "cmp %[p], %[e]", "bne 2b"]
        for v in range(CHANNELS):
            found += [f"strd %[a{CHANNELS * i + v}], %[a{CHANNELS * (i + 1) + v}], [%[p]], #8" for i in (0, 2)]
        if self.nest.outer > 1:
            found += [f"add %[e], %[p], #{depth * POSITIONS * 4}", "str %[e], [sp]"]
        found += [f"ldr %[o], {end}", "cmp %[p], %[o]", "bne 1b", f"add sp, #{4 * words}"]
        names = [*(f"a{i}" for i in range(_SUMS)), *WideTile.operands]
        size = self.elements * (depth * POSITIONS + _SUMS)
        return Frame(weights, inputs, size, written=names, input_type="int32_t").text(found)


def matched(loop: Loop) -> ElementTile | None:
    """The tile that a loop over elements computes, if it is one."""
    body = [s for s in loop.body if not isinstance(s, Alloc)]
    if loop.kind != "serial" or len(body) != 2 * _SUMS + 1:
        return None
    cleared, products, stored = body[:_SUMS], body[_SUMS], body[_SUMS + 1 :]
    inner = pair_tile.matched(products) if isinstance(products, Loop) else None
    if not isinstance(inner, WideTile) or not all(map(_clears, cleared)):
        return None
    depth = inner.nest.outer * inner.nest.inner
    start, weights = _start(inner.inputs, inner.nest), _start(inner.weights, inner.nest)
    step = Index(((loop.var, 1),))
    walks = start == start.subst({loop.var: 0}) + step * (depth * POSITIONS + _SUMS) and weights == weights.subst(
        {loop.var: 0}
    ) + step * (depth * CHANNELS)
    behind = (_stores(s, inner, start + depth * POSITIONS, i) for i, s in enumerate(stored))
    if not walks or not all(behind) or depth > _MOST_STEPS or not iterations(loop):
        return None
    nest = replace(inner.nest, vars=(loop.var, *inner.nest.vars))
    return ElementTile(nest, inner.weights, inner.inputs, (), iterations(loop))


def _start(load: Load, nest: Nest) -> Index:
    """Where the first step of an element reads."""
    return load.buffer.flat(tuple(i.subst(dict.fromkeys(nest.vars, 0)) for i in load.index))


def _clears(stmt: Stmt) -> bool:
    """Whether a register begins at zero."""
    known = isinstance(stmt, Store) and stmt.buffer.space == "register" and isinstance(stmt.value, Const)
    return known and isinstance(stmt, Store) and isinstance(stmt.value, Const) and stmt.value.value == 0


def _stores(stmt: Stmt, tile: WideTile, first: Index, i: int) -> bool:
    """Whether the sum of the ``i``-th register, by channel, then position, is stored ``i`` elements after ``first``."""
    if not isinstance(stmt, Store) or not isinstance(stmt.value, Load) or stmt.buffer is not tile.inputs.buffer:
        return False
    total = tile.sums[CHANNELS * (i % POSITIONS) + i // POSITIONS]
    alike = stmt.value.buffer is total.buffer and stmt.value.index == total.index
    return alike and stmt.buffer.flat(stmt.index) == first + i
