"""An operator of whose results only the first positions along some axes are needed, as many as a run says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import Layout, TensorType
from tenon.network.ops.base import Algorithm, Alias, Cost, Layouts, Operator, Site, Step, register
from tenon.network.ops.patch import Patch, Span
from tenon.network.ops.reach import Absorbed, CountedRead, Operands, Reaches


def _with_a_column(layout: Layout | None) -> Layout | None:
    """The layout of an image with a halo behind each row, if it has none."""
    if layout is None or len(layout.halo) < 2 or any(layout.halo[-1]):
        return layout
    return replace(layout, halo=(*layout.halo[:-1], (0, 1)))


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


@dataclass(frozen=True)
class AbsorbedPositions:
    """Elements of operand ``operand`` along ``axis`` change no result from the position on that extent number
    ``extent`` of the node says; the first ``Clipped.spare`` of these may be read."""

    operand: int
    axis: int
    extent: int


SPARES = (0, 3, 7, 15, 31, 63)
"""Positions beyond an extent that sums over an axis may read, because they take vectors or several steps at once: the
least number that a kernel gets by with."""


@register
@dataclass(frozen=True)
class Clipped(Operator):
    """``base`` over its ``count`` inputs.  The inputs after these are extents (i64 scalars), beyond which its results
    are not needed, as ``needed`` says, and therefore undefined.  ``blocks`` says whether kernels may compute blocks of
    several rows together (``Operator.in_blocks``)."""

    base: Operator
    count: int
    needed: tuple[NeededPositions, ...] = ()
    absorbed: tuple[AbsorbedPositions, ...] = ()
    spare: int = 0
    blocks: bool = False
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

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        base = self.base.reach(inputs[: self.count], outputs, axis, output)
        return None if base is None else (*base, *(None for _ in inputs[self.count :]))

    def counted_reads(self, inputs: Operands) -> tuple[CountedRead, ...]:
        return self.base.counted_reads(inputs[: self.count])

    def absorbs(self, inputs: Operands) -> tuple[Absorbed, ...]:
        return self.base.absorbs(inputs[: self.count])

    def in_blocks(self, inputs: Operands) -> bool:
        return self.base.in_blocks(inputs[: self.count])

    @property
    def edits(self) -> bool:
        return self.base.edits

    def inner(self, site: Site) -> Site:
        """The site of ``base``, whose kernels are cut short.  An algorithm that was chosen with blocks for whole
        results only says how many levels of Strassen's algorithm there are at most: none, where the rows that it adds
        may hold anything."""
        algorithm, limits = site.algorithm, site.limits
        if algorithm is not None and not algorithm.cut_alike:
            limits = replace(limits, strassen=min(limits.strassen, algorithm.numbers["levels"]))
            algorithm = None
        if not self.blocks:
            limits = replace(limits, strassen=0)
        return replace(
            site,
            algorithm=algorithm,
            limits=limits,
            inputs=site.inputs[: self.count],
            constants=site.constants[: self.count],
            machine=replace(site.machine, cut_short=True),
        )

    def layouts(self, site: Site) -> Layouts:
        """The layouts of ``base``.  Where less than whole rows are needed, a column of halo keeps the rows of images
        apart, so that kernels do not take all rows for one."""
        base = self.base.layouts(self.inner(site))
        if any(p.axis == site.output.rank - 1 > 2 for p in self.needed):
            base = replace(base, inputs=tuple(map(_with_a_column, base.inputs)))
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
