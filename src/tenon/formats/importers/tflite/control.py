"""Control flow and variables of TFLite, resolved while importing.

Sub-graphs are inlined.  A loop is unrolled as long as its condition is known.  A condition that is known picks a
branch; otherwise both are computed, and the results and what they assign to variables are chosen at run time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.formats.importers.tflite.variables import Argument, Complex, Handle, variable_name
from tenon.network.graph.graph import Value

MAX_STEPS = 4096
"""Steps that a loop may be unrolled to."""
_UNROLL = "only loops whose number of steps is known when compiling can be unrolled"


def _arguments(node: TfliteNode, first: int = 0) -> list[Argument]:
    return [node.importer.argument(node.index(k)) for k in range(first, node.count)]


def _while(node: TfliteNode) -> Sequence[Argument]:
    state, problems = _arguments(node), node.builder.writer.problems
    for _ in range(MAX_STEPS + 1):
        before = len(problems)
        if not _truth(node, node.importer.call(node.integer("condition"), state)[:1]):
            return state
        state = node.importer.call(node.integer("body"), state)
        if len(problems) > before:
            return state  # the operators of the body are refused: every step would say the same
    raise RefusedError(f"its loop runs more than {MAX_STEPS} steps", _UNROLL)


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
        raise RefusedError("the condition of its loop is computed at run time", remedy)
    return bool(value.data.item())


def _if(node: TfliteNode) -> Sequence[Argument]:
    condition, arguments = node.stored(0), _arguments(node, 1)
    node.builder.type(condition)
    branches = [node.integer("then"), node.integer("otherwise")]
    if condition.data is not None and condition.data.size == 1:
        return node.importer.call(branches[0 if condition.data.item() else 1], arguments)
    if node.builder.type(condition).rank:
        condition = node.builder.reshape(condition, ())
    return _both(node, condition, branches, arguments)


def _both(node: TfliteNode, condition: Value, branches: Sequence[int], arguments: Sequence[Argument]) -> list[Argument]:
    """The results of two branches, and the variables after them, chosen by a condition."""
    variables = node.importer.variables
    before, outer = dict(variables.current), variables.conditional
    results, after = [], []
    variables.conditional = True
    for branch in branches:
        variables.current = {**variables.states, **before}
        results.append(node.importer.call(branch, arguments))
        after.append(variables.current)
    variables.conditional = outer
    names = {**after[0], **after[1]}
    first, second = ({**variables.states, **chosen} for chosen in after)
    variables.current = {name: _choice(node, condition, first[name], second[name]) for name in names}
    return [_chosen(node, condition, a, b) for a, b in zip(*results, strict=True)]


def _chosen(node: TfliteNode, condition: Value, a: Argument, b: Argument) -> Argument:
    if isinstance(a, Complex) and isinstance(b, Complex):
        return Complex(*(_choice(node, condition, x, y) for x, y in zip(a.parts, b.parts, strict=True)))
    if not isinstance(a, Value) or not isinstance(b, Value):
        if a != b:
            raise RefusedError("its branches refer to different variables, and its condition is computed at run time")
        return a
    return _choice(node, condition, a, b)


def _choice(node: TfliteNode, condition: Value, a: Value, b: Value) -> Value:
    if a is b:
        return a
    shapes = [list(node.builder.dims(value)) for value in (a, b)]
    if shapes[0] != shapes[1]:
        raise RefusedError(
            f"its condition is computed at run time, and its branches have results of {shapes[0]} and {shapes[1]}",
            "cut the model around it with --from and --to",
        )
    return node.builder.add("Where", condition, a, b)


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
