"""Names of tensors across optimisation: ranges are known by the names that a model's file has, and operators move past
transpositions, which gives their results new names."""

from __future__ import annotations

from collections.abc import Mapping

from tenon.network import passes
from tenon.network.graph.graph import Graph, Value
from tenon.network.ops.move import Transpose
from tenon.network.ops.shape import Flatten, Identity, Reshape, Squeeze, Unsqueeze
from tenon.tools.quantization.ranges import Range

_REARRANGING = (Flatten, Identity, Reshape, Squeeze, Transpose, Unsqueeze)
"""Operators whose result has the elements of their first operand, each once."""


def optimized_names(graph: Graph) -> dict[str, str]:
    """Optimise ``graph`` for quantisation; returns what each of its tensors that are left is called afterwards.

    A tensor that is left in another order of axes counts.
    """
    forms: dict[Value, list[Value]] = {}
    for value in graph.values():
        if not value.constant:
            forms.setdefault(_unarranged(value), []).append(value)
    before = {value: value.name for values in forms.values() for value in values}
    heirs: dict[Value, Value] = {}

    def note(old: Value, new: Value) -> None:
        heirs[old] = new
        if (source := _unarranged(new)) is not new:
            heirs.setdefault(new, source)  # should ``new`` not stay

    graph.on_replace = note
    passes.optimize(graph, fuse=False)
    graph.on_replace = None
    left, names = set(graph.values()), {}
    for values in forms.values():
        ends = [_end(value, heirs, left) for value in values]
        survivor = next((end for end in ends if end is not None), None)
        for value, end in zip(values, ends, strict=True):
            if survivor is not None:
                names[before[value]] = _unarranged(end or survivor).name
    return names


def _unarranged(value: Value) -> Value:
    """The tensor whose elements ``value`` has in another order or shape, or itself."""
    while value.producer is not None and isinstance(value.producer.op, _REARRANGING):
        value = value.producer.input(0)
    return value


def _end(value: Value, heirs: Mapping[Value, Value], left: set[Value]) -> Value | None:
    """The value that is left of a value; None if there is none."""
    passed = set[Value]()
    while value not in left:
        if value in passed or value not in heirs:
            return None
        passed.add(value)
        value = heirs[value]
    return value


def renamed(ranges: Mapping[str, Range], names: Mapping[str, str]) -> dict[str, Range]:
    """Ranges by the names that tensors got; TensorFlow's ``name:0`` is found as ``name``, too."""
    by_name: dict[str, Range] = {}
    for name, each in ranges.items():
        plain = name if name in names else name.removesuffix(":0")
        by_name.setdefault(names.get(plain, name), each)
    return by_name
