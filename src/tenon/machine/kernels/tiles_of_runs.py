"""The loops of direct sums of integers over images, output channels and positions, by tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernels.conv import Conv, GroupRun, OutputTile, images_inside, runs, shown_tile, tiles
from tenon.machine.kernels.machine import Machine

W = TypeVar("W")


def tiles_of_runs(
    k: Builder, s: Conv, machine: Machine, tile: OutputTile, weights: Iterable[W]
) -> Iterator[tuple[GroupRun, W, tuple[Index, Index, Index, Index], tuple[int, int]]]:
    """A function for each tile of all images and runs: (run, its weights, (image, group of output channels, top, left),
    (height, width))."""
    images = images_inside(s)
    with k.loop("n", s.y.n // images) as first:
        for r, w in zip(runs(s, machine, tile.vecs), weights, strict=True):
            for o, n, top, left, height, width in tiles(
                k, r.iterations, s.extent, tile, machine.threads, images=images
            ):
                with k.outline(f"{height}x{width}x{r.vecs}v{r.lanes}", shown_tile(height, width, r)):
                    yield r, w, (first * images + n, o, top, left), (height, width)
