"""Post-training quantisation by ranges that are known: no samples are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenon.errors import InputError, ModelError, guarded
from tenon.ir.graph import Graph
from tenon.pipeline import Model
from tenon.quantization.insertion import insert, products
from tenon.quantization.placement import placement
from tenon.quantization.post_training import float_graph
from tenon.quantization.scheme import named_scheme


@guarded
def quantize_by_ranges(
    model: Model | Graph,
    ranges: Mapping[str, tuple[float, float]],
    *,
    scheme: str = "int8",
    exclude: Sequence[str] = (),
) -> Graph:
    """A float model with QuantizeLinear and DequantizeLinear around what integers compute.

    ``ranges`` are the least and the greatest value of tensors by their names, of those that ``profiled`` names at
    least.  ``scheme`` and ``exclude`` are as for ``quantize``.  Raises ModelError, and InputError for a tensor without
    a range.
    """
    graph, kind = float_graph(model), named_scheme(scheme)
    placed = placement(graph, exclude)
    if not placed.tensors:
        raise ModelError(f"{graph.source or graph.name}: none of its operators can be computed in integers")
    if missing := [value.name for value in placed.tensors if value.name not in ranges]:
        raise InputError(f"there is no range for tensor '{missing[0]}': profile the same model again")
    grids = {value: kind.activation_grid(*ranges[value.name]) for value in placed.tensors}
    for part, whole in placed.parts.items():
        while whole in placed.parts:
            whole = placed.parts[whole]
        grids[part] = grids[whole]
    insert(graph, placed, products(placed, grids, kind), grids, kind)
    return graph


def profiled(model: Model | Graph) -> Graph:
    """The graph whose tensors ``quantize_by_ranges`` needs the ranges of, by their names."""
    return float_graph(model)
