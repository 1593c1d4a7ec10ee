"""Matrices whose rows are skewed by padding, a Reshape to rows of another length, and a Slice.

Such a chain moves row i of a matrix by i places: the elements of relative positions become those of absolute ones, or
the reverse.  Reshaping at run time reads elements at positions that depend on all extents, so that everything before it
is computed whole; the Skew that the chain is reads a row for a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenon.network.graph.graph import Value
from tenon.network.graph.run_time_sizes import RowsInARow
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.sizes import Expression, UndecidedError, expression, same


def note_padding(node: SizedNode, result: Value, pads: Sequence[Expression], *, zeros: bool) -> None:
    """Remember what ``result`` is, the first operand with these ``pads`` (before all axes, and after them)."""
    rank, extents = node.type(0).rank, node.extents(0)
    others = (p for i, p in enumerate(pads) if i % rank != rank - 1)
    if not zeros or rank < 2 or result is node.input(0) or any(not p.known or p.constant for p in others):
        return
    before, after = pads[rank - 1], pads[2 * rank - 1]
    if before.least < 0 or after.least < 0:
        return
    known = node.sizes.rows.get(node.input(0))
    if known is not None and known.flat:
        node.sizes.rows[result] = RowsInARow(known.source, known.extents, known.pitch, known.before + before, flat=True)
    elif known is None and before.known and not before.constant:
        node.sizes.rows[result] = RowsInARow(node.input(0), tuple(extents), extents[-1] + after, expression(0))


def note_shape(node: SizedNode, result: Value, after: Sequence[Expression]) -> None:
    """Remember what ``result`` is, the first operand with the extents ``after``."""
    known, before = node.sizes.rows.get(node.input(0)), node.extents(0)
    if known is None:
        known = RowsInARow(node.input(0), tuple(before), before[-1], expression(0)) if len(before) > 1 else None
    if known is None or known.width is not None:
        return
    if known.flat and len(after) == len(before) + 1 and _alike(before[:-1], after[:-2]):
        node.sizes.rows[result] = RowsInARow(known.source, known.extents, known.pitch, known.before, after[-1])
    elif not known.flat and len(after) == len(before) - 1 and _alike(before[:-2], after[:-1]):
        node.sizes.rows[result] = RowsInARow(known.source, known.extents, known.pitch, known.before, flat=True)


def _alike(a: Sequence[Expression], b: Sequence[Expression]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def skewed(node: SizedNode, first: Sequence[Expression], counts: Sequence[Expression]) -> Value | None:
    """The part of the first operand, which is rows in a row, that begins at ``first`` and has ``counts`` places along
    each axis, as a Skew; None where the part has elements of other rows."""
    rows = node.sizes.rows[node.input(0)]
    if rows.width is None or any(not f.known or f.constant for f in first[:-2]):
        return None
    if not _alike(counts[:-2], rows.extents[:-2]):
        return None
    step = rows.width - rows.pitch
    if not step.known or step.constant.denominator != 1:
        return None
    count, columns, source = counts[-2], counts[-1], rows.extents[-1]
    offset = first[-1] + first[-2] * rows.width - rows.before
    turns = (count - 1) * step
    low, high = (turns, expression(0)) if step.constant < 0 else (expression(0), turns)
    inside = (
        offset + low - source + rows.pitch,  # what lies before a row are the zeros behind the row before it
        rows.pitch - 1 - (offset + columns - 1 + high),
        rows.extents[-2] - count,
    )
    if any(fact.least < 0 for fact in inside):
        return None
    try:
        numbers = node.number(offset), node.number(source)
        made = node.whole("Skew", rows.source, *numbers, step=step.number, columns=node.largest(columns))
        return node.state(made, counts)
    except UndecidedError:
        return None
