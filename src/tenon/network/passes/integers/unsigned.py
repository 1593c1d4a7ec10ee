"""Activations of i8 whose zero point is the least byte, as those behind a ReLU, stored without a sign: as u8 with zero
point 0.

Asynchronous copies of GPUs lay zeros beside an image themselves; any other byte takes a branch for each copy.  Results
are the same bits, because clamping and rounding do not depend on what is added to a zero point.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tenon.machine.kernels.integer_staged import OPERATIONS
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Graph, Node, Value
from tenon.network.graph.types import DType
from tenon.network.graph.writer import Names
from tenon.network.ops.move import Concat
from tenon.network.ops.quantize import DequantizeLinear, QuantizeLinear
from tenon.options import Arithmetic

_MOVERS = frozenset({"MaxPool", "Concat", "Reshape", "Flatten", "Squeeze"})
"""Operators that give bytes of their operands, where the quantisation of both is the same."""
_ALONG = frozenset({"Relu", "Clip", "Identity"})
"""Operators between a sum and its quantisation."""
_CORES = frozenset({"Conv", "Add", "AveragePool", "GlobalAveragePool", "Gemm", "MatMul"}) | _MOVERS
"""Operators that compute with u8 as with i8."""
_APART = frozenset({"Concat"})
"""Operators whose arithmetic for u8 in LiteRT is not that for i8."""


def pays(machine: Machine) -> bool:
    """Whether convolutions copy images asynchronously to a matrix unit."""
    return machine.launch is not None and machine.launch.copies and machine.has(OPERATIONS[DType.U8])


def without_signs(graph: Graph, arithmetic: Arithmetic) -> int:
    """Change a quantised graph, whose integers are between QuantizeLinear and DequantizeLinear, in place; returns how
    many tensors have become u8."""
    cores = _CORES - _APART if arithmetic == "litert" else _CORES
    chosen = {id(node): node for node in graph if _convertible(node, graph, cores)}
    while left := [key for key, node in chosen.items() if not _together(node, chosen)]:
        for key in left:
            del chosen[key]
    names = Names(graph)
    for node in chosen.values():
        _convert(graph, node, names)
    return len(chosen)


def _zero(node: Node) -> Value | None:
    """The zero point of a conversion, where that is one constant -128 in i8."""
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if zero is None or zero.data is None or zero.type.dtype is not DType.I8 or zero.data.size != 1:
        return None
    return zero if int(zero.data.reshape(-1)[0]) == np.iinfo(np.int8).min else None


def _convertible(node: Node, graph: Graph, cores: frozenset[str]) -> bool:
    """Whether a QuantizeLinear has this zero point, as all that read its bytes, and operators on both sides are
    ``cores``."""
    if not isinstance(node.op, QuantizeLinear) or _zero(node) is None or graph.is_output(node.output):
        return False
    readers, core = node.output.uses, _core(node)
    back = bool(readers) and all(isinstance(r.op, DequantizeLinear) and _zero(r) is not None for r in readers)
    inside = back and not any(graph.is_output(r.output) for r in readers)
    used = [use for r in readers for use in r.output.uses] if inside else []
    return core is not None and core.op.name in cores and bool(used) and all(use.op.name in cores for use in used)


def _core(node: Node) -> Node | None:
    """The operator whose result a QuantizeLinear stores."""
    at = node.input(0).producer
    while at is not None and at.op.name in _ALONG:
        at = at.input(0).producer
    return at


def _neighbours(node: Node) -> Iterator[Node | None]:
    """The QuantizeLinear of the same bytes before and behind, through operators that move bytes; None for another
    source."""
    core = _core(node)
    assert core is not None
    if core.op.name in _MOVERS:
        operands = core.inputs if isinstance(core.op, Concat) else core.inputs[:1]
        for value in operands:
            back = None if value is None else value.producer
            yield back.input(0).producer if back is not None and isinstance(back.op, DequantizeLinear) else None
    for reader in node.output.uses:
        for use in reader.output.uses:
            if use.op.name in _MOVERS:
                yield from (each for each in use.output.uses if isinstance(each.op, QuantizeLinear))


def _together(node: Node, chosen: dict[int, Node]) -> bool:
    """Whether the bytes that are moved from and to those of a node change their type, too."""
    return all(each is not None and id(each) in chosen for each in _neighbours(node))


def _convert(graph: Graph, node: Node, names: Names) -> None:
    """Let a QuantizeLinear give u8, and what reads it take that."""
    old, x = _zero(node), node.input(0)
    assert old is not None
    assert isinstance(node.op, QuantizeLinear)
    zero = graph.constant(names.fresh("zero"), np.zeros(old.type.dims, np.uint8))
    made = graph.add(
        replace(node.op, to="u8"),
        [x, node.input(1), zero],
        [names.fresh(f"{node.output.name}_unsigned")],
        node.origin,
        before=node,
    )
    for reader in list(dict.fromkeys(node.output.uses)):
        graph.rewire(reader, (made.output, reader.input(1), zero, *reader.inputs[3:]))
    graph.remove(node)
