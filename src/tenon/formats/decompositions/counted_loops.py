"""Loops of frameworks that count for themselves: how often they run, and results that they write row by row.

Frameworks without stacked results write them into a tensor that is a state.  Where a state begins at 0 and grows by 1,
it is the number of the iteration; a condition that compares it with a constant says how often the loop runs, and a row
that is written at its position is a slice of a stacked result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Node, Value
from tenon.network.ops.comparison import And, Less
from tenon.network.ops.convert import Cast
from tenon.network.ops.indexing import ScatterND
from tenon.network.ops.pointwise import Add
from tenon.network.ops.shape import View


@dataclass(frozen=True)
class LoopState:
    """A state: its first value, what stands for it in the body, and the next value there."""

    first: Value
    held: Value
    following: Value


def known_count(states: Sequence[LoopState], condition: Value) -> int | None:
    """How often a body runs at least once and then as long as ``condition``, which it computes, holds; None where that
    is not known.  Raises RefusedError for a loop without end."""
    node = condition.producer
    while node is not None and isinstance(node.op, View):
        node = node.input(0).producer
    if node is not None and isinstance(node.op, And):
        known = [count for i in (0, 1) if (count := known_count(states, node.input(i))) is not None]
        return min(known) if len(known) == 2 else None
    if node is None or not isinstance(node.op, Less):
        return None
    state, limit = _state_of(states, node.input(0)), _limit(states, node.input(1))
    first = None if state is None else first_number(state)
    if state is None or limit is None or first is None:
        return None
    if _grows_by(state, 0) and first < limit:
        raise RefusedError("its loop never ends")
    return max(1, limit - first) if counts(state) else None


def _limit(states: Sequence[LoopState], value: Value) -> int | None:
    """A number that is the same in all iterations: a constant, or a state that does not change."""
    state = _state_of(states, value)
    return first_number(state) if state is not None and state.held is value else _number(value)


def _state_of(states: Sequence[LoopState], value: Value) -> LoopState | None:
    """The state whose next value this is."""
    return next((state for state in states if state.following is value), None)


def first_number(state: LoopState) -> int | None:
    """The first value of a state, if that is an integer that is known."""
    return _number(state.first)


def counts(state: LoopState) -> bool:
    """Whether a state grows by 1."""
    return _grows_by(state, 1)


def _grows_by(state: LoopState, step: int) -> bool:
    node = state.following.producer
    if node is None or not isinstance(node.op, Add):
        return False
    pairs = ((node.input(0), node.input(1)), (node.input(1), node.input(0)))
    return any(a is state.held and _number(b) == step for a, b in pairs)


def _number(value: Value) -> int | None:
    data = value.data
    return int(data.item()) if data is not None and data.size == 1 and data.dtype.kind in "iu" else None


def written_row(states: Sequence[LoopState], state: LoopState) -> Value | None:
    """The row that a body writes into a state of zeros, at the position of its iteration, and reads nowhere else; None
    where it does anything else."""
    node = state.following.producer
    if node is None or not isinstance(node.op, ScatterND) or node.input(0) is not state.held:
        return None
    zeros = state.first.data is not None and not state.first.data.any()
    if not zeros or len(state.held.uses) != 1 or len(state.following.uses) or not _at_iteration(states, node):
        return None
    row = node.input(2)
    return row if row.type.dims == (1, *state.first.type.dims[1:]) else None


def _at_iteration(states: Sequence[LoopState], node: Node) -> bool:
    """Whether a node writes at the position of the iteration: a state that is 0 first and grows by 1."""
    value = node.input(1)
    while value.producer is not None and isinstance(value.producer.op, Cast | View):
        value = value.producer.input(0)
    return any(state.held is value and _number(state.first) == 0 and counts(state) for state in states)
