"""Control flow and variables of TFLite.

A condition that is known picks a branch, which is inlined; otherwise both become bodies of a node that runs one of
them and decides what is assigned to variables.  The body of a loop of many steps, or whose condition is computed at run
time, is repeated; other loops are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tenon.formats.decompositions.branches import choose
from tenon.formats.decompositions.loop_forms import LoopForms
from tenon.formats.decompositions.loops import LongLoopError, RepeatedBody, Repetition, repeat
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.formats.importers.tflite.variables import (
    Argument,
    Complex,
    Handle,
    loop_variables,
    variable_name,
)
from tenon.network.graph.graph import Value

MAX_STEPS = 4096
"""Steps that a loop may be unrolled to."""
_UNROLL = "only loops whose number of steps is known when compiling can be unrolled"


def _arguments(node: TfliteNode, first: int = 0) -> list[Argument]:
    return [node.importer.argument(node.index(k)) for k in range(first, node.count)]


def _while(node: TfliteNode) -> Sequence[Argument]:
    """WHILE: unrolled where it is short, else a node that repeats its body, or unrolled where that does not fit."""
    builder, state = node.builder, _arguments(node)
    numbers = node.integer("condition"), node.integer("body")
    named, variables = loop_variables(node.importer.graphs, numbers), node.importer.variables
    if any(isinstance(value, Handle) for value in state) or named is None or variables.starting:
        return _unrolled(node, state, MAX_STEPS)
    for name, tensor in named.items():
        variables.read(builder, name, tensor)
    before = dict(variables.current)

    def unrolled(most: int) -> Sequence[Argument]:
        variables.current = dict(before)
        return _unrolled(node, state, most)

    def repeated() -> Sequence[Argument]:
        variables.current = dict(before)
        return _repeated(node, state, [name for name in named if name in before])

    return LoopForms[Sequence[Argument]](builder, unrolled, repeated, MAX_STEPS).run()


def _unrolled(node: TfliteNode, state: list[Argument], most: int) -> Sequence[Argument]:
    """The states after a loop as copies of its body.  Raises LongLoopError."""
    problems = node.builder.writer.problems
    for _ in range(most + 1):
        before = len(problems)
        if not _truth(node, node.importer.call(node.integer("condition"), state, apart=True)[:1]):
            return state
        state = node.importer.call(node.integer("body"), state, apart=True)
        if len(problems) > before:
            return state  # the operators of the body are refused: every step would say the same
    raise LongLoopError(f"its loop runs more than {most} steps", _UNROLL)


def _repeated(node: TfliteNode, state: Sequence[Argument], names: Sequence[str]) -> Sequence[Argument]:
    """The states after a loop as a node with a body, of which some variables are states, too.  Raises RefusedError."""
    importer, builder, variables = node.importer, node.builder, node.importer.variables
    before = dict(variables.current)
    initial = [value for value in state if isinstance(value, Value)]
    if len(initial) < len(state):
        raise RefusedError("a state of its loop is a variable or complex")

    def holds(values: Sequence[Value], *, apart: bool) -> Value:
        (condition, *_) = importer.call(node.integer("condition"), values, apart=apart)
        if not isinstance(condition, Value):
            raise RefusedError("its condition gives no result")
        return builder.reshape(condition, ()) if builder.type(condition).rank else condition

    def body(number: Value, kept: Sequence[Value]) -> RepeatedBody:
        variables.current = {**before, **dict(zip(names, kept[len(state) :], strict=True))}
        after = _tensors(importer.call(node.integer("body"), kept[: len(state)], apart=True))
        holding, stored = holds(after, apart=True), [variables.current[name] for name in names]
        variables.current = dict(before)
        return RepeatedBody(holding, [*after, *stored], [])

    start = holds(initial, apart=False)
    first = [*initial, *(before[name] for name in names)]
    made = repeat(builder, builder.origin, Repetition(None, start), first, body, None)
    variables.current = {**before, **dict(zip(names, made.states[len(state) :], strict=True))}
    return list(made.states[: len(state)])


def _truth(node: TfliteNode, results: Sequence[Argument]) -> bool:
    """Whether a loop goes on.  Raises RefusedError if that is not known."""
    value = results[0] if results else None
    if not isinstance(value, Value):
        raise RefusedError("its condition gives no result")
    node.builder.type(value)
    if value.data is None or value.data.size != 1:
        inputs = node.builder.writer.need(value)
        fixed = " and ".join(f"--value {name}=..." for name in inputs)
        remedy = f"fix {fixed}, or cut the model around it with --from and --to" if inputs else _UNROLL
        raise LongLoopError("the condition of its loop is computed at run time", remedy)
    return bool(value.data.item())


def _if(node: TfliteNode) -> Sequence[Argument]:
    condition, arguments = node.stored(0), _arguments(node, 1)
    node.builder.type(condition)
    branches = [node.integer("then"), node.integer("otherwise")]
    if condition.data is not None and condition.data.size == 1:
        return node.importer.call(branches[0 if condition.data.item() else 1], arguments)
    if node.builder.type(condition).rank:
        condition = node.builder.reshape(condition, ())
    return _chosen(node, condition, branches, arguments)


def _chosen(
    node: TfliteNode, condition: Value, branches: Sequence[int], arguments: Sequence[Argument]
) -> list[Argument]:
    """The results of the branch that a condition picks at run time, which also decides what variables keep."""
    variables = node.importer.variables
    before, outer = dict(variables.current), variables.conditional
    made, after, values = list[list[Argument]](), list[dict[str, Value]](), (list[Value](), list[Value]())

    def branch(which: int) -> list[Value]:
        variables.current = {**variables.states, **before}
        made.append(node.importer.call(branches[which], arguments, apart=True))
        after.append(variables.current)
        if which == 1:
            _check_alike(*made)
            names = {**after[0], **after[1]}
            for k in (0, 1):
                kept = {**variables.states, **after[k]}
                values[k].extend((*_tensors(made[k]), *(kept[name] for name in names)))
        return values[which]

    variables.conditional = True
    try:
        chosen = choose(node.builder.writer, condition, [partial(branch, 0), partial(branch, 1)], node.builder.origin)
    finally:
        variables.conditional = outer
    results, names = len(_tensors(made[0])), {**after[0], **after[1]}
    variables.current = dict(zip(names, chosen[results:], strict=True))
    return _rebuilt(made[0], chosen[:results])


def _check_alike(first: Sequence[Argument], second: Sequence[Argument]) -> None:
    for a, b in zip(first, second, strict=True):
        if type(a) is not type(b) or (isinstance(a, Handle) and a != b):
            raise RefusedError("its branches refer to different variables, and its condition is computed at run time")


def _tensors(arguments: Sequence[Argument]) -> list[Value]:
    """The tensors that arguments consist of."""
    values: list[Value] = []
    for argument in arguments:
        match argument:
            case Complex():
                values += argument.parts
            case Value():
                values.append(argument)
    return values


def _rebuilt(arguments: Sequence[Argument], values: Sequence[Value]) -> list[Argument]:
    """Arguments like these, of other tensors."""
    rest, made = iter(values), list[Argument]()
    for argument in arguments:
        match argument:
            case Complex():
                made.append(Complex(next(rest), next(rest)))
            case Value():
                made.append(next(rest))
            case Handle():
                made.append(argument)
    return made


def _call_once(node: TfliteNode) -> Sequence[Argument]:
    variables = node.importer.variables
    outer, variables.starting = variables.starting, True
    try:
        node.importer.call(node.integer("initial"), [])
    finally:
        variables.starting = outer
    return []


def _assign(node: TfliteNode) -> Sequence[Argument]:
    importer, source = node.importer, node.index(1)
    value, tensor = importer.raw(source), importer.content.tensors[source]
    importer.variables.assign(importer.builder, node.variable(0), value, tensor, importer.names[source])
    return []


CONTROL: dict[str, Callable[[TfliteNode], Value | Sequence[Argument]]] = {
    "ASSIGN_VARIABLE": _assign,
    "CALL_ONCE": _call_once,
    "IF": _if,
    "READ_VARIABLE": lambda node: node.importer.variables.read(node.builder, node.variable(0), node.output()),
    "VAR_HANDLE": lambda node: [Handle(variable_name(node.operation.options))],
    "WHILE": _while,
}
