"""Quantised models in integers: operators between DequantizeLinear and QuantizeLinear become integer operators.

A rule matches backwards from a QuantizeLinear. The matched operators are computed in a named arithmetic
(``arithmetic``), which may differ from floats by that arithmetic's rounding; operators that an arithmetic does not
define exactly stay in float, with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tenon.errors import Problem
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Graph, Value
from tenon.network.ops.activation import PRelu
from tenon.network.ops.pointwise import Add, Div, Mul, Sub
from tenon.network.ops.quantize import QuantizeLinear
from tenon.network.ops.traits import is_quantised
from tenon.network.passes.base import Log, Match, Result, Rule, apply, attribute, make, run, silent
from tenon.network.passes.canonicalize import DEAD
from tenon.network.passes.integers.chain import FloatChain, chain
from tenon.network.passes.integers.comparisons import comparison_rules
from tenon.network.passes.integers.extremes import extreme
from tenon.network.passes.integers.float_results import float_result_rules
from tenon.network.passes.integers.functions import prelu
from tenon.network.passes.integers.operands import TensorGrid, grid_of
from tenon.network.passes.integers.pointwise import binary, table
from tenon.network.passes.integers.pools import average, concat, is_sized_mean, resize, softmax, total
from tenon.network.passes.integers.products import product
from tenon.network.passes.integers.quotients import divide, log_softmax
from tenon.network.passes.integers.same_operand import same_operand_rules
from tenon.network.passes.integers.splits import slice_quantised
from tenon.network.passes.integers.unsigned import pays, without_signs
from tenon.network.passes.patterns import IsOp
from tenon.network.passes.site import why_not_compiled
from tenon.options import Arithmetic

Convert = Callable[[Match, FloatChain, Arithmetic], Value | str]

CORES: dict[str, Convert] = {
    "Add": binary,
    "AveragePool": average,
    "Concat": concat,
    "Conv": product,
    "ConvTranspose": product,
    "Div": divide,
    "Gemm": product,
    "GlobalAveragePool": average,
    "LogSoftmax": log_softmax,
    "MatMul": product,
    "Max": extreme,
    "Min": extreme,
    "Mul": binary,
    "PRelu": prelu,
    "ReduceMean": average,
    "ReduceSum": total,
    "Resize": resize,
    "Softmax": softmax,
    "Sub": binary,
}
"""Rules by the operator whose result a QuantizeLinear stores."""


PAIRS = (Add, Div, Mul, PRelu, Sub)
"""Operators of two tensors that TFLite rounds in steps, also those with a constant, or of one tensor."""


def to_integers(
    graph: Graph, arithmetic: Arithmetic, log: Log = silent, machine: Machine | None = None
) -> list[Problem]:
    """Rewrite ``graph`` and the bodies in it in place; returns what stays in float, with reasons.  ``log`` gets a line
    per rule that declines; ``machine`` says which types of integers it prefers."""
    bodies = [body for node in graph for body in node.bodies]
    inside = [problem for body in bodies for problem in to_integers(body, arithmetic, log, machine)]
    left: dict[int, Problem] = {}
    rule = Rule("integers", IsOp("QuantizeLinear"), partial(_converted, arithmetic=arithmetic, left=left))
    if not is_quantised(graph):
        return []
    apply(graph, [Rule("choice", IsOp("ArithmeticChoice"), partial(_chosen, arithmetic=arithmetic))], silent)
    slice_quantised(graph)
    if machine is not None and pays(machine):
        without_signs(graph, arithmetic)
    apply(graph, [rule, *map(_compiled, comparison_rules(arithmetic))], log)
    apply(graph, [_compiled(each) for each in same_operand_rules()], log)
    apply(graph, [_compiled(each) for each in float_result_rules()], log)
    run(graph, DEAD)
    if arithmetic != "onnx":
        _quantize_as_tflite(graph, left)
    nodes = {id(node) for node in graph}
    return [*inside, *(problem for node, problem in left.items() if node in nodes)]


def _chosen(match: Match, *, arithmetic: Arithmetic) -> Result:
    """The operand of an ArithmeticChoice for an arithmetic; LiteRT's XNNPACK kernels, too, leave it to LiteRT's own."""
    return match.root.input(1 if arithmetic == "tflm" else 0)


def _quantize_as_tflite(graph: Graph, left: dict[int, Problem]) -> None:
    """Let what still quantises floats round halves away from zero; ``left`` has the reasons by node."""
    for node in graph:
        if isinstance(node.op, QuantizeLinear) and isinstance(grid_of(node), TensorGrid):
            rounded = make("QuantizeLinear", to=attribute(node, "to"), ties="away")
            new = graph.add(rounded, node.inputs, [node.output.name], node.origin, before=node)
            new.output.type = node.output.type
            if id(node) in left:
                left[id(new)] = left.pop(id(node))
            graph.replace(node.output, new.output)
            graph.remove(node)


def _converted(match: Match, *, arithmetic: Arithmetic, left: dict[int, Problem]) -> Result:
    result = _integers(match, arithmetic)
    result = _uncompiled(match, result) or result
    if isinstance(result, str):
        if result:
            left[id(match.root)] = Problem(str(match.root.origin), result)
        return None
    grid = grid_of(match.root)
    assert not isinstance(grid, str)
    result.type = replace(result.type, quant=grid.quant)
    return result


def _compiled(given: Rule) -> Rule:
    """A rule that declines where no kernel computes what it would make."""

    def rewrite(match: Match) -> Result:
        result = given.rewrite(match)
        return _uncompiled(match, result) or result

    return replace(given, rewrite=rewrite)


def _uncompiled(match: Match, result: Result) -> str:
    """Why an operator that the rule made, and that the result depends on, is not compiled, or nothing."""
    made, todo = {id(node): node for node in match.made}, [result] if isinstance(result, Value) else []
    while todo:
        node = made.pop(id(todo.pop().producer), None)
        if node is not None and (why := why_not_compiled(node)):
            return why
        todo += [] if node is None else [v for v in node.inputs if v is not None]
    return ""


def _integers(match: Match, arithmetic: Arithmetic) -> Value | str:
    if is_sized_mean(match.root):
        return ""
    if arithmetic != "onnx":
        pair = chain(match, PAIRS)
        if not isinstance(pair, str) and isinstance(pair.core.op, PAIRS) and pair.slope == 1:
            made = CORES[pair.core.op.name](match, pair, arithmetic)
            if isinstance(made, Value):
                return made
    looked_up = table(match, arithmetic)
    if looked_up is not None and not isinstance(looked_up, str):
        return looked_up
    candidate = chain(match)
    if isinstance(candidate, str):
        return looked_up or candidate
    convert = CORES.get(candidate.core.op.name)
    made = looked_up or f"{candidate.core.op.name} is computed in float"
    if convert is not None:
        made = convert(match, candidate, arithmetic)
    if isinstance(made, str) and candidate.scaled and not isinstance(scaled := chain(match, (Mul,)), str):
        by_constant = binary(match, scaled, arithmetic)
        return made if isinstance(by_constant, str) else by_constant
    return made


__all__ = ["to_integers"]
