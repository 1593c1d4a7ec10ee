"""Images of few channels, whose positions are one group of four elements, as algorithms of work groups read them."""

from __future__ import annotations

from tenon.machine.algorithms.base import Algorithm, Problem
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_tiles import in_rows_of_taps, is_narrow, with_halo
from tenon.network.graph.types import Layout


class ReadsNarrowImages(Algorithm):
    """An algorithm that reads a narrow image with its halo, in rows of taps (``group_tiles.in_rows_of_taps``)."""

    @classmethod
    def arranged(cls, s: Conv) -> Conv:
        return in_rows_of_taps(s.flattened())

    def layouts(self, problem: Problem, x: Layout, y: Layout) -> tuple[Layout, Layout]:
        """A narrow image has its halo, others none."""
        own, result = super().layouts(problem, x, y)
        return with_halo(problem[0], x) if is_narrow(problem[0]) else own, result
