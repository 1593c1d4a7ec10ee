"""An operator of whose results only the first positions along some axes are needed, as many as a run says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import TensorType
from tenon.network.ops.base import Algorithm, Alias, Cost, Layouts, Operator, Site, Step, register
from tenon.network.ops.patch import Patch, Span


@dataclass(frozen=True)
class NeededExtent:
    """ceil((factor * number + offset) / divisor), where the number is extent number ``extent`` of the node."""

    extent: int
    factor: int = 1
    offset: int = 0
    divisor: int = 1


@dataclass(frozen=True)
class NeededPositions:
    """The first positions along ``axis`` of result ``output`` are needed: as many as the largest of ``extents``."""

    output: int
    axis: int
    extents: tuple[NeededExtent, ...]


@register
@dataclass(frozen=True)
class Clipped(Operator):
    """``base`` over its ``count`` inputs.  The inputs after these are extents (i64 scalars), beyond which its results
    are not needed, as ``needed`` says, and therefore undefined."""

    base: Operator
    count: int
    needed: tuple[NeededPositions, ...] = ()
    arity: ClassVar[tuple[int, int]] = (1, 2**31)
    internal: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return self.base.name

    def __str__(self) -> str:
        return str(self.base)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        return self.base.infer(inputs[: self.count])

    def reference(self, *inputs: Any) -> Array | tuple[Array, ...]:
        return self.base.reference(*inputs[: self.count])

    def inner(self, site: Site) -> Site:
        """The site of ``base``."""
        return replace(site, inputs=site.inputs[: self.count], constants=site.constants[: self.count])

    def layouts(self, site: Site) -> Layouts:
        base = self.base.layouts(self.inner(site))
        return Layouts((*base.inputs, *(None for _ in site.inputs[self.count :])), base.outputs)

    def alias(self, site: Site) -> tuple[Alias, ...]:
        return self.base.alias(self.inner(site))

    def in_place(self, site: Site) -> tuple[int, ...]:
        return self.base.in_place(self.inner(site))

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        return None

    def supported(self, site: Site) -> str:
        return self.base.supported(self.inner(site))

    def candidates(self, site: Site) -> tuple[Algorithm, ...]:
        return self.base.candidates(self.inner(site))

    def cost(self, site: Site) -> Cost:
        return self.base.cost(self.inner(site))

    def error(self, site: Site) -> float:
        return self.base.error(self.inner(site))

    def lower(self, site: Site) -> list[Step]:
        return self.base.lower(self.inner(site))

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        return self.base.macs(inputs[: self.count], outputs)
