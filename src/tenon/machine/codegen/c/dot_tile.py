"""The inner loops of ``kernels.integer_dots`` in assembly, for Arm's Helium.

VMLADAVA sums into an even register only, so that a tile of 2 positions x 4 channels takes all of these, and pointers
the odd ones; compilers spill what they are given as single instructions.  A step is 14 instructions for 128
multiply-adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenon.machine.codegen.c.assembly_tile import LOCAL, Tile, nest
from tenon.machine.kernel_ir.loops import Let, Load, Loop, Op, Stmt, Store

CHANNELS = 4


@dataclass(frozen=True)
class DotTile(Tile):
    """``sums`` by channel, then position.  The inputs of the second position lie ``apart`` elements further on."""

    positions: int
    apart: int
    condition = "defined(__GNUC__) && defined(__ARM_FEATURE_MVE) && defined(__OPTIMIZE__)"

    def step(self) -> list[str]:
        found = [f"vldrw.u32 q{i}, [%[{'pz'[i]}]], #16" for i in range(self.positions)]
        for v in range(CHANNELS):
            weights = f"q{2 + v % 2}"
            found.append(f"vldrw.u32 {weights}, [%[w]], #16")
            found += [
                f"vmladava.s8 %[a{v * self.positions + i}], q{i}, {weights}" for i in range(self.positions)
            ]  # fmt: skip
        return found

    def text(self, weights: str, inputs: str, sums: Sequence[str]) -> list[str]:
        lines = self.step() * self.nest.inner
        pointers = {"w": weights, "p": inputs}
        if self.positions > 1:
            pointers["z"] = f"{LOCAL}p + {self.apart}"
        if self.nest.outer > 1:
            lines = ["1:", *lines, "cmp %[p], %[e]", "bne 1b"]
            pointers["e"] = f"{LOCAL}p + {self.nest.outer * self.nest.inner * 4}"
        changed = ", ".join(f'[a{i}] "+Te"({name})' for i, name in enumerate(sums))
        moved = ", ".join(f'[{name}] "+r"({LOCAL}{name})' for name in pointers)
        return [
            "{",
            *(f"  const int32_t *{LOCAL}{name} = {value};" for name, value in pointers.items()),
            "  __asm__ volatile(",
            *(f'    "{line}\\n"' for line in lines),
            f"    : {changed},",
            f"      {moved}",
            '    : : "cc", "memory", "q0", "q1", "q2", "q3");',
            "}",
        ]


def matched(loop: Loop) -> DotTile | None:
    """The tile that a loop computes, if it is one."""
    steps, found = nest(loop), None
    if steps is None:
        return None
    for positions in (1, 2):
        if len(steps.body) == positions + CHANNELS * (1 + positions):
            found = _operands(steps.body, positions)
    if found is None:
        return None
    inputs, weights, sums = found
    between = inputs[-1].buffer.flat(inputs[-1].index) + inputs[0].buffer.flat(inputs[0].index) * -1
    alike = all(load.buffer is inputs[0].buffer for load in inputs) and not between.terms
    walks = [steps.walks_on(load, load, 4, 0) for load in inputs]
    walks += [steps.walks_on(load, weights[0], 16, 4 * i) for i, load in enumerate(weights)]
    if not alike or not all(walks):
        return None
    return DotTile(steps, weights[0], inputs[0], tuple(sums), len(inputs), between.const)


def _operands(body: tuple[Stmt, ...], positions: int) -> tuple[list[Load], list[Load], list[Load]] | None:
    """Inputs, weights and sums of a step."""
    given, rest = body[:positions], body[positions:]
    inputs, weights, sums = [_vector(x) for x in given], list[Load | None](), list[Load | None]()
    for i in range(0, len(rest), 1 + positions):
        word, *stores = rest[i : i + 1 + positions]
        weights.append(_vector(word))
        sums += [_adds(store, x, word) for store, x in zip(stores, given, strict=True)]
    whole = [[load for load in loads if load is not None] for loads in (inputs, weights, sums)]
    a, b, c = whole
    return (a, b, c) if (len(a), len(b), len(c)) == (positions, CHANNELS, CHANNELS * positions) else None


def _vector(stmt: Stmt) -> Load | None:
    """The four words of memory that a statement names."""
    if isinstance(stmt, Let) and isinstance(stmt.value, Load) and stmt.value.buffer.space != "register":
        return stmt.value if stmt.value.type.lanes == 4 else None
    return None


def _adds(store: Stmt, x: Stmt, weights: Stmt) -> Load | None:
    """The register that a statement adds the products of ``x`` and ``weights`` to."""
    if not (isinstance(store, Store) and isinstance(x, Let) and isinstance(weights, Let)):
        return None
    value = store.value
    if store.buffer.space != "register" or not isinstance(value, Op) or value.name != "dot16":
        return None
    total, a, b = value.args
    alike = isinstance(total, Load) and total.buffer is store.buffer and total.index == store.index
    return total if alike and isinstance(total, Load) and a is x.ref and b is weights.ref else None
