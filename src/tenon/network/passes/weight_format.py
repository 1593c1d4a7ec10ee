"""The layers that store their weights in fewer bits, within a budget for the error of the outputs.

The error is measured: the graph is evaluated by the NumPy references on random inputs with a fixed seed, with weights
as they are and as they are stored.  Where it is above the budget, layers are stored in wider types, those first whose
own error, measured at their result, is largest for the bytes that they save.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.evaluate import by_reference, evaluate
from tenon.network.graph.graph import Array, Graph, Node
from tenon.network.graph.types import F32, DType
from tenon.network.passes.base import Log, Pass
from tenon.network.passes.precision import always_stored, can_store, rounded_weights, weights
from tenon.network.passes.validate import random_inputs

Preferred = Callable[[Node], Sequence[DType]]
"""The types that a product's weights may be stored in, the preferred one first; f32 is always the last."""

ROUNDS = 6
"""Most choices whose error is measured."""

SAFETY = 0.9
"""Share of the budget that the next choice aims at, where a choice was above it."""


@dataclass
class StoredWeights:
    """The choice: the number of layers and bytes of each type, and the largest error of an output, relative to its
    RMS, where it was measured."""

    layers: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    error: float | None = None


def stored_weights(preferred: Preferred, max_error: float = math.inf, report: StoredWeights | None = None) -> Pass:
    """A pass that stores the weights of products in the first type that ``preferred`` gives, or in a wider one where
    the outputs would differ by more than ``max_error``: the root of the mean square of the difference, over that of the
    output.  ``report`` gets what was chosen."""

    def run(graph: Graph, log: Log) -> int:
        ladders = {node: _ladder(node, preferred(node)) for node in graph if can_store(node)}
        choice, error = {node: ladder[0] for node, ladder in ladders.items()}, None
        check_one_size(graph, max_error)
        if max_error < math.inf and ladders:
            choice, error = _within(graph, ladders, max_error)
        _record(report, choice, error)
        changes = 0
        for dtype in dict.fromkeys(choice.values()):
            if dtype is not F32:
                chosen = {node for node, other in choice.items() if other is dtype}
                of = _only(chosen)
                changes += weights(dtype, of).run(graph, log)
        return changes

    return Pass("weights in fewer bits", run, level=0, ensures="products read their constant weights as chosen")


def exact_weights() -> Pass:
    """A pass that stores the weights of products in 16 bits where that changes none of them, as of language models
    whose files hold them so."""

    def run(graph: Graph, log: Log) -> int:
        types = {node: _exact_type(node.input(1).array) for node in graph if can_store(node)}
        changes = 0
        for dtype in (DType.BF16, DType.F16):
            if chosen := {node for node, exact in types.items() if exact is dtype}:
                changes += weights(dtype, _only(chosen)).run(graph, log)
        return changes

    return Pass("weights in 16 bits", run, level=0, ensures="weights that 16 bits hold exactly are stored in them")


_PROBE = 256
"""Weights that are looked at before all of a matrix."""


def _exact_type(array: Array) -> DType | None:
    """The type of 16 bits that holds all elements."""
    flat = array.reshape(-1)
    for dtype in (DType.BF16, DType.F16):
        if _exact(flat[:_PROBE], dtype) and _exact(flat, dtype):
            return dtype
    return None


def _exact(numbers: Array, dtype: DType) -> bool:
    with np.errstate(over="ignore"):
        return bool((numbers.astype(dtype.numpy).astype(np.float32) == numbers).all())


def check_one_size(graph: Graph, max_error: float) -> None:
    """Raise InputError where an error should be measured of a network whose sizes every run chooses."""
    if max_error < math.inf and graph.sizes:
        raise InputError(
            f"{graph.source or graph.name}: max_weight_error={max_error:g}: the error is measured on inputs of one "
            f"size: give numbers for {', '.join(graph.sizes)} (--shape)"
        )


def _only(nodes: set[Node]) -> Callable[[Node], str]:
    return lambda node: always_stored(node) if node in nodes else "wide"


def _ladder(node: Node, types: Sequence[DType]) -> tuple[DType, ...]:
    """The types, from the preferred one to f32, without those that are not wider than the one before."""
    kept = [types[0]]
    for dtype in (*types[1:], F32):
        if dtype.bytes > kept[-1].bytes:
            kept.append(dtype)
    return tuple(kept)


Choice = dict[Node, DType]


def _within(graph: Graph, ladders: Mapping[Node, tuple[DType, ...]], most: float) -> tuple[Choice, float]:
    """The choice, and its measured error."""
    inputs = random_inputs(graph)
    own, outputs = _measured(graph, ladders, inputs)
    aim = most
    for _ in range(ROUNDS):
        choice = _chosen(ladders, own, aim)
        error = _error(graph, choice, inputs, outputs)
        if error <= most:
            return choice, error
        aim *= SAFETY * most / error
    wide = dict.fromkeys(ladders, F32)
    return wide, 0.0


Errors = dict[tuple[Node, DType], float]


def _measured(
    graph: Graph, ladders: Mapping[Node, tuple[DType, ...]], inputs: Mapping[str, Array]
) -> tuple[Errors, dict[str, Array]]:
    """The square of each layer's error at its own result, over the result's mean square, by type; and the outputs."""
    errors: Errors = {}

    def step(node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
        results = by_reference(node, arrays)
        power = _power(results[0]) if node in ladders else 0.0
        for dtype in ladders.get(node, ()):
            if dtype is F32 or not power:
                errors[node, dtype] = 0.0
                continue
            x, w, *_ = arrays
            assert w is not None
            off = by_reference_without_bias(node, x, rounded_weights(node, dtype) - w)
            errors[node, dtype] = _power(off) / power
        return results

    return errors, evaluate(graph, inputs, step)


def by_reference_without_bias(node: Node, x: Array | None, w: Array) -> Array:
    """The result of a product by other weights, without what is added to it."""
    return node.evaluate([x, w, *([None] * (len(node.inputs) > 2))])[0]


def _chosen(ladders: Mapping[Node, tuple[DType, ...]], own: Errors, aim: float) -> Choice:
    """The preferred types, or wider ones for layers that save few bytes for their error, until the sum of the layers'
    errors is within ``aim``."""
    choice = {node: ladder[0] for node, ladder in ladders.items()}
    total = sum(own[node, dtype] for node, dtype in choice.items())
    while total > aim**2:
        steps = []
        for node, dtype in choice.items():
            ladder = ladders[node]
            at = ladder.index(dtype)
            if at + 1 < len(ladder):
                less = own[node, dtype] - own[node, ladder[at + 1]]
                more = node.input(1).type.size * (ladder[at + 1].bytes - dtype.bytes)
                steps.append((less / more, node, ladder[at + 1]))
        if not steps:
            break
        _, node, wider = max(steps, key=lambda each: each[0])
        choice[node] = wider
        total = sum(own[each, dtype] for each, dtype in choice.items())
    return choice


def _error(graph: Graph, choice: Choice, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> float:
    """The largest relative error of an output, measured."""

    def step(node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
        dtype = choice.get(node, F32)
        if dtype is F32:
            return by_reference(node, arrays)
        x, _, *rest = arrays
        return by_reference(node, [x, rounded_weights(node, dtype), *rest])

    got = evaluate(graph, inputs, step)
    pairs = [(outputs[name], array) for name, array in got.items() if np.issubdtype(array.dtype, np.floating)]
    return max((math.sqrt(_power(a - b) / (_power(a) or 1.0)) for a, b in pairs), default=0.0)


def _power(array: Array) -> float:
    wide = array.astype(np.float64)
    return float((wide**2).mean()) if wide.size else 0.0


def _record(report: StoredWeights | None, choice: Choice, error: float | None) -> None:
    if report is None:
        return
    for node, dtype in choice.items():
        name = str(dtype)
        report.layers[name] = report.layers.get(name, 0) + 1
        report.bytes[name] = report.bytes.get(name, 0) + node.input(1).type.size * dtype.bytes
    if error is not None:
        report.error = max(error, report.error or 0.0)
