"""The loop of a tile of 4 positions x 2 channels as one piece of assembly for Arm's 32-bit cores with DSP instructions.

It needs every register there is, 8 sums, 2 pointers and 4 operands, so that compilers spill some of what they are given
as single instructions (``kernels.integer_pairs``).  A step is 13 instructions for 16 multiply-adds.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenon.ir.index import Index, Var
from tenon.ir.loops import Expr, Let, Load, Loop, Op, Ref, Stmt, Store
from tenon.ir.types import I32

POSITIONS, CHANNELS = 4, 2
CONDITION = "defined(__GNUC__) && defined(__ARM_FEATURE_DSP) && defined(__thumb2__) && defined(__OPTIMIZE__)"
"""Without optimisation, compilers keep a register for frames."""


@dataclass(frozen=True)
class PairTile:
    """``loop`` runs ``outer`` times over ``inner`` steps; a step reads the next word of ``weights`` and the next
    four of ``inputs``, both at the index of the first step.  ``sums`` are indices of ``register``, by channel."""

    outer: int
    inner: int
    vars: tuple[Var, ...]
    weights: Load
    inputs: Load
    sums: tuple[Load, ...]


def matched(loop: Loop) -> PairTile | None:
    """The tile that a loop computes, if it is one."""
    outer, step = _iterations(loop), loop
    if loop.kind == "serial" and len(loop.body) == 1 and isinstance(loop.body[0], Loop):
        step = loop.body[0]
    inner = _iterations(step)
    if not outer:
        return None
    if step.kind != "unroll" or not inner or len(step.body) != 3 + POSITIONS * (1 + CHANNELS):
        return None
    word, even, odd, *rest = step.body
    weights = _load(word)
    if weights is None or not (_widens(even, "even_bytes", word) and _widens(odd, "odd_bytes", word)):
        return None
    inputs, sums = list[Load](), list[Load]()
    for i in range(0, len(rest), 1 + CHANNELS):
        x, *stores = rest[i : i + 1 + CHANNELS]
        found = _load(x)
        if found is None:
            return None
        inputs.append(found)
        for store, weight in zip(stores, (even, odd), strict=True):
            total = _adds(store, x, weight)
            if total is None:
                return None
            sums.append(total)
    nested = step is not loop
    vars = (loop.var, step.var) if nested else (step.var,)
    steps = Index(((step.var, 1),)) + (Index(((loop.var, inner),)) if nested else 0)
    walks = [_walks(load, inputs[0], vars, steps * POSITIONS, i) for i, load in enumerate(inputs)]
    if not _walks(weights, weights, vars, steps, 0) or not all(walks):
        return None
    return PairTile(outer if nested else 1, inner, vars, weights, inputs[0], tuple(sums))


def text(tile: PairTile, weights: str, inputs: str, sums: list[str]) -> list[str]:
    """Lines of C.  ``weights`` and ``inputs`` are pointers to the first words, ``sums`` names of variables."""
    step = ["ldr %[e], [%[w]], #4", "sxtb16 %[o], %[e], ror #8", "sxtb16 %[e], %[e]"]
    for i in range(0, POSITIONS, 2):
        step.append("ldrd %[x], %[z], [%[p]], #8")
        for j, x in enumerate("xz"):
            step += [f"smlad %[a{2 * (i + j) + v}], %[{x}], %[{w}], %[a{2 * (i + j) + v}]" for v, w in enumerate("eo")]
    # No register is left for the end of the inputs.
    lines = step * tile.inner
    if tile.outer > 1:
        lines = ["push {%[e]}", "1:", *lines, "ldr %[e], [sp]", "cmp %[p], %[e]", "bne 1b", "add sp, #4"]
    changed = ", ".join(f'[a{i}] "+r"({name})' for i, name in enumerate(sums))
    words = tile.outer * tile.inner * POSITIONS
    return [
        "{",
        f"  const int32_t *tile_w = {weights}, *tile_p = {inputs}, *tile_e = tile_p + {words};",
        "  int32_t tile_o, tile_x, tile_z;",
        "  __asm__ volatile(",
        *(f'    "{line}\\n"' for line in lines),
        f"    : {changed},",
        '      [w] "+r"(tile_w), [p] "+r"(tile_p), [e] "+r"(tile_e), [o] "=&r"(tile_o), [x] "=&r"(tile_x),',
        '      [z] "=&r"(tile_z)',
        '    : : "cc", "memory");',
        "}",
    ]


def _iterations(loop: Loop) -> int:
    """The constant number of iterations, or 0."""
    (below, *more) = loop.var.below
    return 0 if more or below.terms else below.const


def _load(stmt: Stmt) -> Load | None:
    """The word of memory that a statement names."""
    if isinstance(stmt, Let) and isinstance(stmt.value, Load) and stmt.value.buffer.space != "register":
        load = stmt.value
        return load if load.type.lanes == 1 and load.type.dtype is I32 else None
    return None


def _widens(stmt: Stmt, name: str, word: Stmt) -> bool:
    assert isinstance(word, Let)
    return isinstance(stmt, Let) and _is(stmt.value, name) and _same(stmt.value, 0, word.ref)


def _adds(stmt: Stmt, x: Stmt, weight: Stmt) -> Load | None:
    """The register that a statement adds the product of ``x`` and ``weight`` to."""
    assert isinstance(x, Let)
    assert isinstance(weight, Let)
    if not isinstance(stmt, Store) or stmt.buffer.space != "register" or not _is(stmt.value, "dot2_i16"):
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


def _walks(load: Load, first: Load, vars: tuple[Var, ...], steps: Index, behind: int) -> bool:
    """Whether ``load`` is ``behind`` words after ``first`` was in the first step, and moves on by ``steps``."""
    if load.buffer is not first.buffer:
        return False
    base = load.buffer.flat(tuple(i.subst(dict.fromkeys(vars, 0)) for i in first.index))
    return load.buffer.flat(load.index) == base + steps + behind
