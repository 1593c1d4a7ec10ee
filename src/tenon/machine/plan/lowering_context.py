"""The site of a node: the context that its lowering depends on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tenon.errors import InternalError
from tenon.machine.algorithms.registry import parse
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array, Node, Value
from tenon.network.graph.operation_text import show_operation
from tenon.network.graph.types import ROW_MAJOR, TensorType
from tenon.network.ops.base import Layouts, Limits, Operator, Site, Step
from tenon.network.ops.clipped import Clipped


@dataclass(frozen=True)
class Setting:
    """The settings of a whole plan: the machine, the limits of algorithms, and the most threads that may run it.

    ``algorithms`` are those selected by a search or a budget, as ``Algorithm.key`` by ``key`` of the layer: text, as
    stored in tables and manifests.  ``measured`` are the layers for which measured times counted.
    """

    machine: Machine
    limits: Limits = field(default_factory=Limits)
    algorithms: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    measured: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Nothing(Operator):
    """Replaces any operator whose outputs have no elements, since it has nothing to compute."""

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        raise InternalError("it stands in for an operator whose outputs have types already")

    def reference(self, *inputs: Any) -> Array | tuple[Array, ...]:
        raise InternalError("it stands in for an operator when planning only")

    def layouts(self, site: Site) -> Layouts:
        return Layouts((None,) * len(site.inputs), (ROW_MAJOR,) * len(site.outputs))

    def lower(self, site: Site) -> list[Step]:
        return []


def operator(node: Node) -> Operator:
    """The operator that a node is planned as: its operation, which in a graph of Tenon's operators is an Operator, or
    one without code where no output has an element."""
    assert isinstance(node.op, Operator)
    return node.op if any(v.type.size for v in node.outputs) else _Nothing()


def site(node: Node, setting: Setting, placed: frozenset[int] = frozenset()) -> Site:
    """The site of a node, with the layouts that its values have now."""
    chosen = setting.algorithms.get(key(node)) if setting.algorithms else None
    return Site(
        inputs=tuple(None if v is None else v.type for v in node.inputs),
        outputs=tuple(v.type for v in node.outputs),
        constants=tuple(None if v is None else v.data for v in node.inputs),
        machine=setting.machine,
        placed=placed,
        limits=setting.limits,
        algorithm=None if chosen is None else parse(chosen),
    )


def key(node: Node) -> str:
    """The key of a node's algorithm in tables: its operator and logical types, on which the best one depends."""

    def shown(value: object) -> str:
        return "-" if value is None else str(value)

    op = node.op
    inputs = node.inputs[: op.count] if isinstance(op, Clipped) else node.inputs
    op = op.base if isinstance(op, Clipped) else op
    types = [None if v is None else f"{v.type.dtype}{list(v.type.shape)}{'c' * v.constant}" for v in inputs]
    results = [f"{v.type.dtype}{list(v.type.shape)}" for v in node.outputs]
    return f"{show_operation(op)}({', '.join(map(shown, types))}) -> {', '.join(results)}"
