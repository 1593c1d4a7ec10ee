"""Conditionals of TensorFlow 1, whose Merge joins two branches, under a condition that is computed at run time.

Switches send a tensor to one of two branches, and a Merge takes what comes from the branch that was taken.  Source:
"Implementation of Control Flow in TensorFlow".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from tenon.formats.decompositions.branches import choose
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tensorflow.importer import (
    EXITS,
    ITERATIONS,
    MERGES,
    SWITCHES,
    NodeResult,
    TensorflowNode,
    TensorflowScope,
    condition_of,
    control_inputs,
    data_inputs,
    split_reference,
)
from tenon.formats.wire.protobuf import Message
from tenon.network.graph.graph import Value

Sides = set[tuple[str, int]]
"""Conditions, by reference, and which output of their Switches is read: 1 where the condition holds."""


def predicate(merge: Message, scope: TensorflowScope) -> tuple[str, int] | None:
    """The condition that decides between the two operands of a Merge, and for which output of its Switches the first
    one is taken; None for the Merge of a loop, and where Switches do not tell."""
    inputs = data_inputs(merge)
    if len(inputs) != 2 or _joins_iterations(merge, scope):
        return None
    first, second = (_sides(reference, scope) for reference in inputs)
    for name, side in sorted(first):
        if (name, side) not in second and (not second or (name, 1 - side) in second):
            return name, side
    return next(((name, 1 - side) for name, side in sorted(second) if not first), None)


def _joins_iterations(merge: Message, scope: TensorflowScope) -> bool:
    """Whether a Merge is that of a loop."""
    makers = (scope.nodes.get(split_reference(reference)[0]) for reference in data_inputs(merge))
    return any(maker is not None and maker.op in ITERATIONS for maker in makers)


def _sides(reference: str, scope: TensorflowScope) -> Sides:
    """The Switches that lead to a result, but those of whole conditionals and loops on the way."""
    sides, seen = Sides(), set[tuple[str, int]]()
    todo = [(reference, 0)]
    while todo:
        reference, closed = todo.pop()
        name, output = split_reference(reference)
        node = scope.nodes.get(name)
        if node is None or (reference, closed) in seen or node.op in ITERATIONS:
            continue
        seen.add((reference, closed))
        inputs = data_inputs(node)
        if node.op in SWITCHES and closed == 0:
            sides.update([(condition_of(node, scope.nodes), output)] if len(inputs) == 2 else [])
            continue
        opened = node.op in EXITS or (node.op in MERGES and not _joins_iterations(node, scope))
        closed += opened - (node.op in SWITCHES)
        todo += [(each, closed) for each in (*inputs, *control_inputs(node))]
    return sides


def merged(node: TensorflowNode, name: str, side: int) -> Sequence[NodeResult]:
    """The result of a Merge under the condition of that name, which is computed at run time; ``side`` is as
    ``predicate`` says.  Raises RefusedError where a branch gives no tensor, or both differ in type or shape.
    """
    importer, builder, condition = node.importer, node.importer.builder, node.scope.values[name]
    assert isinstance(condition, Value)
    if builder.type(condition).size != 1:
        raise RefusedError(f"its condition has {condition.type.size} elements, not one")
    holds = builder.reshape(condition, ()) if condition.type.rank else condition

    def branch(number: int) -> Sequence[Value]:
        taken = {**node.scope.taken, name: (side == 1) == (number == 0)}
        inner = replace(node.scope, values=dict(node.scope.values), loops=dict(node.scope.loops), taken=taken)
        importer.demand([node.references[number]], inner)
        result = inner.values[node.references[number]]
        if not isinstance(result, Value):
            raise RefusedError("a branch under a condition that is computed at run time gives no tensor")
        return [result]

    numbers = [0, 1] if side == 1 else [1, 0]
    (value,) = choose(builder.writer, holds, [partial(branch, number) for number in numbers], builder.origin)
    indices = [builder.constant(np.array(number, np.int32), "taken") for number in numbers]
    return [value, builder.add("Where", holds, *indices)]
