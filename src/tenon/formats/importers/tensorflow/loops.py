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
from tenon.formats.decompositions.loop_forms import LoopForms
from tenon.formats.decompositions.loops import LongLoopError, RepeatedBody, Repetition, repeat
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tensorflow.conditionals import merged
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
    condition_of,
    data_inputs,
    split_reference,
)
from tenon.formats.importers.tensorflow.tensor_arrays import ARRAYS, StateKind, element_of
from tenon.formats.wire.protobuf import Message
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType
from tenon.network.graph.writer import is_known

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
        if not all(isinstance(v, TensorArray) or (isinstance(v, Value) and is_known(v)) for v in state):
            return self.unrolled(state, MAX_STEPS)
        unrolled, repeated = partial(self.unrolled, state), partial(self.repeated, state)
        open = (RefusedError, _OpenError)
        return LoopForms(self.node.importer.builder, unrolled, repeated, MAX_STEPS, open).run()

    def unrolled(self, state: State, most: int) -> Sequence[NodeResult]:
        """Raises _OpenError for a condition that is not known, LongLoopError for more than so many steps."""
        for _ in range(most + 1):
            if not _truth(self.condition(state)):
                return state
            state = self.body(state)
        raise LongLoopError(f"its loop runs more than {most} steps", _UNROLL)

    def repeated(self, state: State) -> Sequence[NodeResult]:
        """Raises RefusedError where the body does not fit into a loop."""
        importer, kinds = self.node.importer, self.kinds(state)
        builder = importer.builder

        def given(values: Sequence[Value]) -> State:
            return [kind.state(value) for kind, value in zip(kinds, values, strict=True)]

        def carried(results: State) -> list[Value]:
            return [kind.value(builder, result) for kind, result in zip(kinds, results, strict=True)]

        def body(number: Value, kept: Sequence[Value]) -> RepeatedBody:
            after = carried(self.body(given(kept)))
            return RepeatedBody(_condition(importer, self.condition(given(after))), after, [])

        start = _condition(importer, self.condition(state))
        made = repeat(builder, builder.origin, Repetition(None, start), carried(state), body, None)
        return given(made.states)

    def kinds(self, state: State) -> list[StateKind]:
        """The kinds of the states.  The elements of lists that have none yet are known after an iteration, which is
        taken back."""
        if all(isinstance(result, Value) or element_of(result) for result in state):
            return [StateKind.of(result) for result in state]
        builder = self.node.importer.builder
        mark = builder.mark()
        with builder.writer.attempt():
            after = self.body(state)
        kinds = [StateKind.of(first, then) for first, then in zip(state, after, strict=True)]
        builder.restore(mark)
        return kinds


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
    decision = node.importer.predicate(node.node, node.scope)
    if decision is not None and node.importer.may_be_open(decision[0], node.scope):
        return merged(node, *decision)
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
        taken = node.scope.taken.get(condition_of(node.node, node.scope.nodes))
        taken = _truth(node.made(1)) if taken is None else taken
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
    **ARRAYS,
    "VarHandleOp": _variable,
    "ReadVariableOp": _read_variable,
    **dict.fromkeys(("Variable", "VariableV2"), _old_variable),
}
"""Operators that are decided while importing; their operands need not be tensors."""
