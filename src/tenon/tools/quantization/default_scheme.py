"""The scheme that a network is quantised to where none is asked for: by what the target can do."""

from __future__ import annotations

from dataclasses import replace

from tenon.machine.plan.lowering_context import operator, site
from tenon.machine.targets import find
from tenon.machine.targets.base import Group
from tenon.network.graph.graph import Graph
from tenon.network.passes.precision import states_f16
from tenon.options import Options
from tenon.pipeline import prepared
from tenon.tools.quantization.candidates import grids
from tenon.tools.quantization.half_precision import layer_name
from tenon.tools.quantization.insertion import insert, products
from tenon.tools.quantization.placement import placement
from tenon.tools.quantization.scheme import SCHEMES
from tenon.tools.quantization.weights_only import has_weights

AUTO = "auto"
"""The name that stands for ``default_scheme``."""

_ANY = "every target computes it"
_SOME_RANGE = (-1.0, 1.0)  # the estimate does not depend on scales


def default_scheme(graph: Graph, target: str) -> tuple[str, str]:
    """The name of a scheme for a float network on a target, and why.

    Integers of 8 bits, but for a target that computes this network faster in floats by its cost model: weights of 16
    bits there.  Microcontrollers get integers in any case, because these take a quarter of the memory, and are told
    where floats are faster.  So does "host", so that the result does not depend on this machine.  Raises InputError for
    an unknown target.
    """
    if target == "host":
        return "int8", _ANY
    row, small = find(target), f"{target} is a microcontroller: weights and activations take a byte each"
    copy, scheme = graph.copy(), SCHEMES["int8"]
    placed = placement(copy)
    if not row.format.compiled or not placed.tensors or not any(map(has_weights, graph)):
        return "int8", small if row.group is Group.MICROCONTROLLER else _ANY
    quants = grids(placed, dict.fromkeys(placed.tensors, _SOME_RANGE), scheme)
    # A bias beyond these ranges would make a channel constant, which is not computed at all.
    weighed = [replace(each, bias=0 * each.bias) for each in products(placed, quants, scheme)]
    insert(copy, placed, weighed, quants, scheme)
    floats, integers = (sum(estimated_times(each, target).values()) for each in (graph, copy))
    share = f"integers take {integers / floats:.2f} of the time of floats on {target}, by its cost model"
    if row.group is Group.MICROCONTROLLER:
        return "int8", small if integers <= floats else f"{small}, though {share}"
    return ("int8", share) if integers <= floats else ("fp16", f"{share}: weights of 16 bits, sums of floats")


def estimate_options(graph: Graph, target: str) -> Options:
    """Options for the cost estimate of ``graph``: layers stored in fp16 are computed in fp16.  Measured times are not
    used, so that the result does not depend on this machine."""
    precision = "fp16" if states_f16(graph) else "fp32"
    return Options.from_environment(target=target, name="estimate", precision=precision, no_tuning=True)


def estimated_times(graph: Graph, target: str) -> dict[str, float]:
    """The estimated time of each layer on a target, in multiply-adds of a vector of f32."""
    made, setting = prepared(graph, estimate_options(graph, target))
    times: dict[str, float] = {}
    for node in made:
        name = layer_name(node)
        times[name] = times.get(name, 0.0) + operator(node).cost(site(node, setting)).time
    return times
