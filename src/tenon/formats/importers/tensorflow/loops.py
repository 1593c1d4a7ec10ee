"""Control flow: functions are inlined, known conditions decided, and few steps of loops become nodes of their own.

Loops of many steps, or whose condition is computed at run time, and branches of functions under such a condition become
bodies of nodes, if their states are tensors.  Switch and Merge need conditions that are known.

A loop of TensorFlow 1 is a frame: Enter brings values in, Merge takes the first or the next one, Switch lets it
continue while LoopCond is true, NextIteration carries it around, Exit lets it out.  A loop of TensorFlow 2 names two
functions.  Source: "Implementation of Control Flow in TensorFlow"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tenon.formats.decompositions.branches import choose
from tenon.formats.decompositions.loops import LongLoopError, RepeatedBody, Repetition, repeat
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tensorflow.importer import (
    DEAD,
    MAX_CALL_DEPTH,
    MAX_STEPS,
    Dead,
    NodeResult,
    TensorArray,
    TensorflowImporter,
    TensorflowNode,
    TensorflowScope,
    TensorflowVariable,
    canonical,
    data_inputs,
    split_reference,
)
from tenon.formats.wire.protobuf import Message
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType
from tenon.network.graph.writer import is_known
from tenon.network.ops.unroll import UNROLLED

_UNROLL = "only loops whose number of steps is known when compiling can be unrolled"


class _OpenError(Exception):
    """A condition that is not known when compiling."""

    def __init__(self, value: NodeResult) -> None:
        super().__init__()
        self.value = value


def _truth(value: NodeResult) -> bool:
    if not isinstance(value, Value) or value.data is None or value.data.size != 1:
        raise _OpenError(value)
    return bool(value.data.item())


def _refused(node: TensorflowNode, key: str, what: str, error: _OpenError) -> list[NodeResult]:
    """Report a loop or a condition that is computed at run time, once for all the nodes that it needs.

    Raises RefusedError for the first of them; the others are left without results.
    """
    importer, value = node.importer, error.value
    if key in importer.refused:
        node.note(importer.refused[key])
        return []
    importer.refused[key] = node.node.name
    if isinstance(value, Value) and not value.typed:
        return []  # what the condition is computed from was refused, and that is reported
    inputs = importer.builder.writer.need(value)
    fixed = " and ".join(f"--value {name}=..." for name in inputs)
    remedy = f"fix {fixed}, or cut the model around it with --from and --to" if inputs else _UNROLL
    raise RefusedError(f"{what} is computed at run time", remedy)


# ----------------------------------------------------------------------------------------------------- frames
def _node(reference: str, scope: TensorflowScope) -> Message:
    name = split_reference(reference)[0]
    if name not in scope.nodes:
        raise RefusedError(f"reads '{name}', which does not exist")
    return scope.nodes[name]


def _input(node: Message, i: int) -> str:
    inputs = data_inputs(node)
    if i >= len(inputs):
        raise RefusedError(f"'{node.name}' ({node.op}) reads {len(inputs)} tensors, fewer than a loop needs")
    return inputs[i]


def _parts(exit: Message, scope: TensorflowScope) -> tuple[list[Message], str, Message]:
    """The Merges of the frame that an Exit leaves, its name, and its LoopCond."""
    switch = _node(_input(exit, 0), scope)
    condition = _node(_input(switch, 1), scope)
    frame = _frame(_node(_input(switch, 0), scope), scope)
    merges = [n for n in scope.nodes.values() if n.op == "Merge" and _frame(n, scope) == frame]
    if not frame or not merges:
        raise RefusedError(f"the loop that '{exit.name}' leaves is malformed")
    return merges, frame, condition


def _frame(merge: Message, scope: TensorflowScope) -> str:
    """The frame of a loop's Merge; empty for one that joins two branches."""
    inputs = data_inputs(merge)
    enter = scope.nodes.get(split_reference(inputs[0])[0]) if inputs else None
    if enter is None or enter.op not in ("Enter", "RefEnter"):
        return ""
    return bytes(enter.attr["frame_name"].s).decode("utf-8", "replace") if "frame_name" in enter.attr else ""


def entries(exit: Message, scope: TensorflowScope) -> list[Message]:
    """The Enters of the frame that an Exit leaves."""
    _, frame, _ = _parts(exit, scope)
    name = frame.encode()
    enters = [n for n in scope.nodes.values() if n.op in ("Enter", "RefEnter") and "frame_name" in n.attr]
    return [n for n in enters if bytes(n.attr["frame_name"].s) == name]


def _exit(node: TensorflowNode) -> Sequence[NodeResult]:
    """Unrolls the loop and keeps the outputs of this Exit."""
    scope = node.scope
    merges, frame, condition = _parts(node.node, scope)
    for enter in entries(node.node, scope):
        node.note(data_inputs(enter)[0])
    left = _node(data_inputs(_node(data_inputs(node.node)[0], scope))[0], scope)
    names = [m.name for m in merges]
    if frame not in scope.loops:
        carried = [data_inputs(_node(data_inputs(m)[1], scope))[0] for m in merges]

        def demanded(wanted: Sequence[str], state: Sequence[NodeResult]) -> list[NodeResult]:
            inner = TensorflowScope(scope.nodes, {}, scope, dict(zip(names, state, strict=True)), scope.calls)
            node.importer.demand(wanted, inner)
            return [inner.values[canonical(name)] for name in wanted]

        loop = _TensorflowLoop(
            node, lambda state: demanded(data_inputs(condition)[:1], state)[0], partial(demanded, carried)
        )
        try:
            scope.loops[frame] = loop.run([_entered(m, scope) for m in merges])
        except _OpenError as error:
            return _refused(node, f"loop {frame}", f"the condition of the loop '{frame}'", error)
    return [scope.loops[frame][names.index(left.name)]]


State = Sequence[NodeResult]


@dataclass(frozen=True)
class _TensorflowLoop:
    """A loop: whether it goes on from a state, and the next state."""

    node: TensorflowNode
    condition: Callable[[State], NodeResult]
    body: Callable[[State], Sequence[NodeResult]]

    def run(self, state: State) -> Sequence[NodeResult]:
        """The last state: of few steps by nodes of their own, else by a node that repeats its body, or unrolled where
        that does not fit.  Raises _OpenError, RefusedError."""
        builder = self.node.importer.builder
        if not all(isinstance(value, Value) and is_known(value) for value in state):
            return self.unrolled(state, MAX_STEPS)
        if not builder.writer.may_attempt:
            return self.repeated(state)
        mark = builder.mark()
        try:
            with builder.writer.attempt():
                return self.unrolled(state, UNROLLED)
        except (_OpenError, LongLoopError):
            builder.restore(mark)
        try:
            with builder.writer.attempt():
                results = self.repeated(state)
            if builder.unchanged_since(mark):
                return results
        except (RefusedError, _OpenError):
            pass
        builder.restore(mark)
        return self.unrolled(state, MAX_STEPS)

    def unrolled(self, state: State, most: int) -> Sequence[NodeResult]:
        """Raises _OpenError for a condition that is not known, LongLoopError for more than so many steps."""
        for _ in range(most):
            if not _truth(self.condition(state)):
                return state
            state = self.body(state)
        raise LongLoopError(f"its loop runs more than {most} steps", _UNROLL)

    def repeated(self, state: State) -> Sequence[NodeResult]:
        """Raises RefusedError where the body does not fit into a loop."""
        importer = self.node.importer

        def body(number: Value, kept: Sequence[Value]) -> RepeatedBody:
            after = _tensors(self.body(kept))
            return RepeatedBody(_condition(importer, self.condition(after)), after, [])

        start = _condition(importer, self.condition(state))
        writer, origin = importer.builder.writer, importer.builder.origin
        return repeat(writer, origin, Repetition(None, start), _tensors(state), body, None).states


def _tensors(results: State) -> list[Value]:
    tensors = [value for value in results if isinstance(value, Value)]
    if len(tensors) < len(results):
        raise RefusedError("a list of tensors is a state of its loop, or the result of a branch")
    return tensors


def _condition(importer: TensorflowImporter, value: NodeResult) -> Value:
    """A condition as a bool of rank 0."""
    if not isinstance(value, Value):
        raise RefusedError("its condition is no tensor")
    type = importer.builder.type(value)
    if type.size != 1:
        raise RefusedError(f"its condition has {type.size} elements, not one")
    value = importer.builder.reshape(value, ()) if type.rank else value
    return value if type.dtype is DType.BOOL else importer.builder.add("Cast", value, to="bool")


def _entered(merge: Message, scope: TensorflowScope) -> NodeResult:
    enter = _node(data_inputs(merge)[0], scope)
    return scope.values[data_inputs(enter)[0]]


def _enter(node: TensorflowNode) -> Sequence[NodeResult]:
    """Enter: within a loop, the value from outside."""
    outer = node.scope.outer
    if outer is None:
        return [node.made()]
    return [outer.values[node.references[0]]]


def _merge(node: TensorflowNode) -> Sequence[NodeResult]:
    """A loop's state, or that of two branches which was taken, and its number."""
    if node.node.name in node.scope.merges:
        return [node.scope.merges[node.node.name]]
    alive = {i: v for i in range(node.count) if not isinstance(v := node.made(i), Dead)}
    if any(isinstance(v, Value) and not v.typed for v in alive.values()):
        return []  # a branch may be the one that is taken as long as its condition is not known
    if len(alive) > 1:
        names = " and ".join(repr(node.references[i]) for i in alive)
        raise RefusedError(f"joins {names}, and no condition says which of them is taken")
    return [*alive.values(), *(node.builder.constant(np.array(i, np.int32), "taken") for i in alive)] or [DEAD, DEAD]


def _switch(node: TensorflowNode) -> Sequence[NodeResult]:
    value, condition = node.made(0), _node(node.references[1], node.scope)
    if condition.op == "LoopCond":
        return [DEAD, value]
    try:
        taken = _truth(node.made(1))
    except _OpenError as error:
        name = node.references[1]
        return _refused(node, f"condition {name}", f"the condition '{name}'", error)
    return [DEAD if taken else value, value if taken else DEAD]


# -------------------------------------------------------------------------------------------------- functions
def _call(
    importer: TensorflowImporter, name: str, arguments: Sequence[NodeResult], scope: TensorflowScope
) -> list[NodeResult]:
    """The results of a function of the graph's library."""
    nodes, results = importer.body(name)
    if scope.calls >= MAX_CALL_DEPTH:
        raise RefusedError(f"functions are nested more than {MAX_CALL_DEPTH} deep")
    names = [argument.name for argument in importer.functions[name].signature.input]
    inner = TensorflowScope(nodes, calls=scope.calls + 1)
    inner.values.update(zip(names, arguments, strict=True))
    wanted = [canonical(r) for r in results]
    importer.demand(wanted, inner)
    return [inner.values[name] for name in wanted]


def _called(node: TensorflowNode) -> Sequence[NodeResult]:
    name = node.message("f").func.name
    return _call(node.importer, name, _pass_all(node), node.scope)


def _while(node: TensorflowNode) -> Sequence[NodeResult]:
    condition, body = (node.message(k).func.name for k in ("cond", "body"))
    importer, scope = node.importer, node.scope
    loop = _TensorflowLoop(
        node,
        lambda state: _call(importer, condition, state, scope)[0],
        lambda state: _call(importer, body, state, scope),
    )
    try:
        return loop.run(_pass_all(node))
    except _OpenError as error:
        return _refused(node, f"loop {node.node.name}", f"the condition of the loop '{node.node.name}'", error)


def _if(node: TensorflowNode) -> Sequence[NodeResult]:
    importer, given, scope = node.importer, _pass_all(node)[1:], node.scope
    names = [node.message(branch).func.name for branch in ("then_branch", "else_branch")]
    try:
        return _call(importer, names[0 if _truth(node.made(0)) else 1], given, scope)
    except _OpenError as error:
        if not isinstance(error.value, Value) or not is_known(error.value):
            return _refused(node, f"condition {node.references[0]}", f"the condition '{node.references[0]}'", error)
    branches = [lambda name=name: _tensors(_call(importer, name, given, scope)) for name in names]
    return choose(importer.builder.writer, _condition(importer, node.made(0)), branches, importer.builder.origin)


# ----------------------------------------------------------------------------------------------- tensor arrays
def _new_array(node: TensorflowNode) -> Sequence[NodeResult]:
    (size,) = node.constant_integers(0)
    return [TensorArray(size), TensorArray(size)]


def _reserve(node: TensorflowNode) -> Sequence[NodeResult]:
    return [TensorArray(node.constant_integers(1)[0])]


def _from_tensor(node: TensorflowNode) -> Sequence[NodeResult]:
    parts = node.builder.unpack(node.input(0), 0)
    return [TensorArray(len(parts), dict(enumerate(parts)))]


def _scatter(node: TensorflowNode) -> Sequence[NodeResult]:
    """Operands: array, indices, a tensor to unpack, flow."""
    flow, parts = node.items(3), node.builder.unpack(node.input(2), 0)
    return [TensorArray(flow.size, {**flow.values, **dict(zip(node.constant_integers(1), parts, strict=True))})]


def _write(node: TensorflowNode) -> Sequence[NodeResult]:
    """Operands: array, index, value, flow."""
    flow = node.items(3)
    return [TensorArray(flow.size, {**flow.values, node.constant_integers(1)[0]: node.input(2)})]


def _set_item(node: TensorflowNode) -> Sequence[NodeResult]:
    """Operands: list, index, value."""
    items = node.items(0)
    return [TensorArray(items.size, {**items.values, node.constant_integers(1)[0]: node.input(2)})]


def _read(flow: int) -> Callable[[TensorflowNode], Sequence[NodeResult]]:
    def import_node(node: TensorflowNode) -> Sequence[NodeResult]:
        items, (index,) = node.items(flow), node.constant_integers(1)
        if index not in items.values:
            raise RefusedError(f"reads element {index} of a tensor array before it is written")
        return [items.values[index]]

    return import_node


def _gather(node: TensorflowNode) -> Sequence[NodeResult]:
    """Operands: array, indices, flow."""
    items, indices = node.items(2), node.constant_integers(1)
    if any(i not in items.values for i in indices):
        raise RefusedError("reads elements of a tensor array before they are written")
    return [node.builder.pack([items.values[i] for i in indices], 0)]


def _stack(node: TensorflowNode) -> Sequence[NodeResult]:
    items = node.items(0)
    if len(items.values) != items.size:
        raise RefusedError("reads elements of a list before they are written")
    return [node.builder.pack([items.values[i] for i in range(items.size)], 0)]


def _size(flow: int) -> Callable[[TensorflowNode], Sequence[NodeResult]]:
    return lambda node: [node.builder.constant(np.array(node.items(flow).size, np.int32), "size")]


# --------------------------------------------------------------------------------------------------- variables
def _variable(node: TensorflowNode) -> Sequence[NodeResult]:
    return [TensorflowVariable(node.text("shared_name") or node.node.name)]


def _read_variable(node: TensorflowNode) -> Sequence[NodeResult]:
    result = node.made(0)
    if isinstance(result, Value):  # frozen: a constant stands where the variable stood
        return [result]
    return _stored(node, result.name if isinstance(result, TensorflowVariable) else "")


def _old_variable(node: TensorflowNode) -> Sequence[NodeResult]:
    return _stored(node, node.node.name)


def _stored(node: TensorflowNode, name: str) -> Sequence[NodeResult]:
    data = node.importer.variables.get(name)
    if data is None:
        remedy = "freeze the graph, or give the SavedModel's whole folder"
        raise RefusedError("the variable has no value", remedy)
    return [node.builder.constant(data, "value")]


def _pass(node: TensorflowNode) -> Sequence[NodeResult]:
    return [node.made(0)]


def _pass_all(node: TensorflowNode) -> Sequence[NodeResult]:
    return [node.made(k) for k in range(node.count)]


CONTROL: dict[str, Callable[[TensorflowNode], Sequence[NodeResult]]] = {
    **dict.fromkeys(("Enter", "RefEnter"), _enter),
    **dict.fromkeys(("Exit", "RefExit"), _exit),
    **dict.fromkeys(("Merge", "RefMerge"), _merge),
    **dict.fromkeys(("Switch", "RefSwitch"), _switch),
    **dict.fromkeys(("Identity", "LoopCond", "NextIteration", "PreventGradient", "StopGradient", "Snapshot"), _pass),
    **dict.fromkeys(("CheckNumerics", "RefIdentity"), _pass),
    "IdentityN": _pass_all,
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), _called),
    **dict.fromkeys(("While", "StatelessWhile"), _while),
    **dict.fromkeys(("If", "StatelessIf"), _if),
    "TensorArrayV3": _new_array,
    "TensorArrayScatterV3": _scatter,
    "TensorArrayWriteV3": _write,
    "TensorArrayReadV3": _read(2),
    "TensorArrayGatherV3": _gather,
    "TensorArraySizeV3": _size(1),
    "TensorListReserve": _reserve,
    "TensorListFromTensor": _from_tensor,
    "TensorListSetItem": _set_item,
    "TensorListGetItem": _read(0),
    "TensorListStack": _stack,
    "TensorListLength": _size(0),
    "VarHandleOp": _variable,
    "ReadVariableOp": _read_variable,
    **dict.fromkeys(("Variable", "VariableV2"), _old_variable),
}
"""Operators that are decided while importing; their operands need not be tensors."""
