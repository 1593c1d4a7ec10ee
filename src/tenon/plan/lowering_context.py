"""What an operator is told of where it stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from tenon.errors import InternalError
from tenon.ir.graph import Array, Node, Value
from tenon.ir.operation_text import show_operation
from tenon.ir.types import PLAIN, TensorType
from tenon.kernels.machine import Machine
from tenon.ops.base import Layouts, Limits, Operator, Site, Step


@dataclass(frozen=True)
class Setting:
    """What a whole plan is made for: the machine, what algorithms may cost, what a search has chosen, by ``key`` of
    the site, and the most threads that may run it together.  ``measured`` are the keys of choices for which measured
    times counted."""

    machine: Machine
    limits: Limits = field(default_factory=Limits)
    choices: Mapping[str, object] = field(default_factory=dict)
    threads: int = 1
    measured: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Nothing(Operator):
    """Stands in for an operator whose outputs have no elements: there is nothing to compute, whatever it is."""

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        raise InternalError("it stands in for an operator whose outputs have types already")

    def reference(self, *inputs: Any) -> Array | tuple[Array, ...]:
        raise InternalError("it stands in for an operator when planning only")

    def layouts(self, site: Site) -> Layouts:
        return Layouts((None,) * len(site.inputs), (PLAIN,) * len(site.outputs))

    def lower(self, site: Site) -> list[Step]:
        return []


def operator(node: Node) -> Operator:
    """How a node is planned: by its operation, which in a graph made of Tenon's operators is an Operator, or not at all
    where none of its outputs has an element."""
    assert isinstance(node.op, Operator)
    return node.op if any(v.type.size for v in node.outputs) else _Nothing()


def site(node: Node, setting: Setting, placed: frozenset[int] = frozenset()) -> Site:
    """The site of a node, with the layouts that its values have now."""
    return Site(
        inputs=tuple(None if v is None else v.type for v in node.inputs),
        outputs=tuple(v.type for v in node.outputs),
        constants=tuple(None if v is None else v.data for v in node.inputs),
        machine=setting.machine,
        placed=placed,
        limits=setting.limits,
        choice=setting.choices.get(key(node)) if setting.choices else None,
    )


def key(node: Node) -> str:
    """What the best way to compute a node depends on, besides the machine: its operator and logical types."""

    def shown(value: object) -> str:
        return "-" if value is None else str(value)

    types = [None if v is None else f"{v.type.dtype}{list(v.type.shape)}{'c' * v.constant}" for v in node.inputs]
    results = [f"{v.type.dtype}{list(v.type.shape)}" for v in node.outputs]
    return f"{show_operation(node.op)}({', '.join(map(shown, types))}) -> {', '.join(results)}"


def choice_text(choice: object) -> str:
    """A candidate as text that tables keep: ``winograd m=4 tiles=12 cols=6 vecs=2``."""
    return " ".join([type(choice).__module__.rpartition(".")[2], *_fields(choice, "")])


def _fields(value: object, prefix: str) -> list[str]:
    if not is_dataclass(value):
        return [f"{prefix.rstrip('.') or 'value'}={value}"]
    return [
        text
        for f in fields(value)
        for each in [getattr(value, f.name)]
        for text in (_fields(each, f"{prefix}{f.name}.") if is_dataclass(each) else [f"{prefix}{f.name}={each}"])
    ]
