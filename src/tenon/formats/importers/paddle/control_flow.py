"""Control flow of Paddle programs: operators that run other blocks, whose operators assign variables of this one.

A conditional_block assigns its outputs where its condition holds; select_input takes those of the block that ran.  A
while runs its block as long as a variable holds that the block assigns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from tenon.formats.decompositions.branches import choose
from tenon.formats.decompositions.loop_forms import LoopForms
from tenon.formats.decompositions.loops import LongLoopError, RepeatedBody, Repetition, repeat
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.paddle.program import PaddleOperation
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType

MAX_STEPS = 1024
"""Steps that a loop may be unrolled to."""


class BlockImporter(Protocol):
    """The part of an importer of programs that control flow uses."""

    builder: GraphBuilder

    def block(self, number: int) -> Sequence[PaddleOperation]:
        """The operators of a block.  Raises RefusedError if there is no such block."""

    def import_block(self, number: int) -> None:
        """Import the operators of a block, which read and assign variables by their names."""


def _only(op: PaddleOperation, slot: str) -> str:
    names = op.inputs.get(slot, ())
    if len(names) != 1:
        raise RefusedError(f"its input {slot} is not one tensor")
    return names[0]


def _number(op: PaddleOperation) -> int:
    number = op.attributes.get("sub_block")
    if not isinstance(number, int):
        raise RefusedError("it names no block")
    return number


def _condition(importer: BlockImporter, value: Value) -> Value:
    """A condition as a bool of rank 0.  Raises RefusedError."""
    type = importer.builder.type(value)
    if type.size != 1:
        raise RefusedError(f"its condition has {type.size} elements, not one")
    if type.rank:
        shape = importer.builder.constant(np.zeros(0, np.int64), "shape")
        value = importer.builder.add("Reshape", value, shape)
    return value if type.dtype is DType.BOOL else importer.builder.add("Cast", value, to="bool")


def _assigned(importer: BlockImporter, number: int) -> list[str]:
    """The variables outside of a block that its operators assign."""
    names = (name for op in importer.block(number) for name in op.made)
    return [name for name in dict.fromkeys(names) if name in importer.builder]


def _claim(builder: GraphBuilder, op: PaddleOperation) -> None:
    """Make what a block assigned the results of the operator that ran it."""
    for name in op.made:
        if name in builder:
            builder[name] = builder[name]


def conditional_block(importer: BlockImporter, op: PaddleOperation) -> None:
    """Where the condition does not hold, outputs keep what they hold, or are zeros that nothing looks at."""
    builder, number = importer.builder, _number(op)
    condition = _condition(importer, builder[_only(op, "Cond")])
    before = dict(builder.scope)
    if condition.data is not None:
        if condition.data.item():
            importer.import_block(number)
            _claim(builder, op)
        return
    names = [name for name in dict.fromkeys(op.outputs.get("Out", ())) if name]
    results: list[Value] = []

    def run() -> list[Value]:
        importer.import_block(number)
        missing = [name for name in names if name not in builder.scope]
        if missing:
            raise RefusedError(f"its block does not make {', '.join(map(repr, missing))}")
        results.extend(builder.scope[name] for name in names)
        builder.scope = dict(before)
        return results

    def keep() -> list[Value]:
        return [before[n] if n in before else _zeros(builder, v) for n, v in zip(names, results, strict=True)]

    chosen = choose(builder.writer, condition, [run, keep], builder.origin)
    for name, value in zip(names, chosen, strict=True):
        builder[name] = value


def _zeros(builder: GraphBuilder, like: Value) -> Value:
    type = builder.type(like)
    return builder.constant(np.zeros(type.dims, type.dtype.numpy), "nothing")


def while_loop(importer: BlockImporter, op: PaddleOperation) -> None:
    """Few steps become nodes of their own; more, or a number that is computed at run time, a node with a body."""
    builder, number, name = importer.builder, _number(op), _only(op, "Condition")
    names = [each for each in _assigned(importer, number) if each != name]
    before, start, scope = [builder[each] for each in names], builder[name], dict(builder.scope)

    def unrolled(most: int) -> list[Value]:
        builder.scope = dict(scope)
        _unrolled(importer, number, name, most)
        return [builder.scope[each] for each in (*names, name)]

    def body(step: Value, kept: Sequence[Value]) -> RepeatedBody:
        builder.scope.update(zip(names, kept, strict=True))
        importer.import_block(number)
        after, holds = [builder.scope[each] for each in names], builder.scope[name]
        builder.scope = dict(scope)
        return RepeatedBody(_condition(importer, holds), after, [])

    def repeated() -> list[Value]:
        builder.scope = dict(scope)
        first = Repetition(None, _condition(importer, start))
        return list(repeat(builder, builder.origin, first, before, body, None).states)

    results = LoopForms(builder, unrolled, repeated, MAX_STEPS).run()
    builder.scope = dict(scope)
    for each, value in zip((*names, name), results, strict=False):
        builder[each] = value
    _claim(builder, op)


def _unrolled(importer: BlockImporter, number: int, name: str, most: int) -> None:
    """Raises LongLoopError for more steps, and where their number is computed at run time."""
    for _ in range(most + 1):
        holds = importer.builder.scope[name]
        if holds.data is None or holds.data.size != 1:
            raise LongLoopError("its condition is computed at run time")
        if not holds.data.item():
            return
        problems = len(importer.builder.writer.problems)
        importer.import_block(number)
        if len(importer.builder.writer.problems) > problems:
            return
    raise LongLoopError(f"its loop runs more than {most} steps")


def select_input(importer: BlockImporter, op: PaddleOperation) -> None:
    """The tensor whose number the mask is."""
    builder, names, results = importer.builder, op.inputs.get("X", ()), op.outputs.get("Out", ())
    mask = builder[_only(op, "Mask")]
    if mask.data is not None and mask.data.size == 1 and 0 <= int(mask.data.item()) < len(names):
        builder[results[0]] = builder[names[int(mask.data.item())]]
        return
    if len(names) != 2 or len(results) != 1:
        raise RefusedError(f"it selects one of {len(names)} tensors, not of two")
    first, second = ([builder[name]] for name in names)
    condition = _condition(importer, mask)
    (builder[results[0]],) = choose(builder.writer, condition, [lambda: second, lambda: first], builder.origin)


def _names(op: PaddleOperation, attribute: str) -> list[str]:
    names = op.attributes.get(attribute)
    if not isinstance(names, list):
        raise RefusedError("it has no block")
    return names


def _inside(importer: BlockImporter, op: PaddleOperation, i: int, arguments: Sequence[Value]) -> list[Value]:
    """The results of block ``i`` of an operator of Paddle 3 for these arguments."""
    builder, number = importer.builder, op.attributes.get(f"block{i}")
    outside, names = dict(builder.scope), _names(op, f"arguments{i}")
    if not isinstance(number, int) or len(names) != len(arguments):
        raise RefusedError(f"its block does not take {len(arguments)} tensors")
    builder.scope.update(zip(names, arguments, strict=True))
    importer.import_block(number)
    results = [builder[name] for name in _names(op, f"given{i}")]
    builder.scope = outside
    return results


def _assign(importer: BlockImporter, op: PaddleOperation, values: Sequence[Value]) -> None:
    if len(values) != len(op.made):
        raise RefusedError(f"its blocks give {len(values)} tensors, where it has {len(op.made)}")
    for name, value in zip(op.made, values, strict=True):
        importer.builder[name] = value


def pir_if(importer: BlockImporter, op: PaddleOperation) -> None:
    """The results of the first block where the condition holds, else of the second."""
    builder = importer.builder
    condition = _condition(importer, builder[_only(op, "X")])
    if condition.data is not None:
        _assign(importer, op, _inside(importer, op, 0 if condition.data.item() else 1, ()))
        return
    branches = [partial(_inside, importer, op, i, ()) for i in (0, 1)]
    _assign(importer, op, choose(builder.writer, condition, branches, builder.origin))


def pir_while(importer: BlockImporter, op: PaddleOperation) -> None:
    """Inputs: a condition, and states.  The block takes the states, and gives the next condition and states."""
    builder, scope = importer.builder, dict(importer.builder.scope)
    start, *states = (builder[name] for name in op.inputs.get("X", ()))

    def unrolled(most: int) -> list[Value]:
        builder.scope, holds, values = dict(scope), start, states
        for _ in range(most + 1):
            if holds.data is None or holds.data.size != 1:
                raise LongLoopError("its condition is computed at run time")
            if not holds.data.item():
                return values
            holds, *values = _inside(importer, op, 0, values)
        raise LongLoopError(f"its loop runs more than {most} steps")

    def body(step: Value, kept: Sequence[Value]) -> RepeatedBody:
        holds, *after = _inside(importer, op, 0, kept)
        return RepeatedBody(_condition(importer, holds), after, [])

    def repeated() -> list[Value]:
        builder.scope = dict(scope)
        first = Repetition(None, _condition(importer, start))
        return list(repeat(builder, builder.origin, first, states, body, None).states)

    results = LoopForms(builder, unrolled, repeated, MAX_STEPS).run()
    builder.scope = dict(scope)
    _assign(importer, op, results)


CONTROL: dict[str, Callable[[BlockImporter, PaddleOperation], None]] = {
    "conditional_block": conditional_block,
    "pd_op.if": pir_if,
    "pd_op.while": pir_while,
    "select_input": select_input,
    "while": while_loop,
}
"""Operators that run blocks, or join what blocks make."""
