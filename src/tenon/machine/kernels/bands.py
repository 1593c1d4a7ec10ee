"""The order of tiles of direct sums where a part of the output channels has all positions: band by band.

A band of positions is read by all groups of channels of the part before the next one is: it stays in the cache of a
processor, as do the weights of a group, which the tiles of the band share.  The tiles of a band also prefetch the
weights of the next group together, all of them, which the tiles of a thread among those of others would not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tenon.machine.kernel_ir.build import Builder, segments
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernels.parallel import deal


@dataclass(frozen=True, eq=False)
class BandTile:
    """A tile of ``height x width`` positions from (``top``, ``left``) on of an image, by group ``o`` of the output
    channels: number ``turn`` of the ``of`` tiles of its band."""

    o: Index
    image: Index
    top: Index
    left: Index
    height: int
    width: int
    turn: Index
    of: int


def bands_of(image: int, threads: int, kept: int) -> int:
    """How many bands an image of so many bytes has: as many for each thread, none larger than ``kept``."""
    return threads * max(1, -(-image // (threads * kept)))


def tiles_of_bands(
    k: Builder,
    groups: tuple[int, int],
    extent: tuple[int, int],
    tile: tuple[int, int],
    threads: int,
    images: int,
    bands: int,
) -> Iterator[BandTile]:
    """Loops over ``groups``, which are (parts, groups of each), ``images``, bands and the tiles of a tiling of
    ``extent``, tails included.  Bands have whole rows of tiles, or parts of a single one."""
    (parts, each), rows = groups, segments(extent[0], tile[0])
    down, across = sum(count for _, count, _ in rows), segments(extent[1], tile[1])
    (outer, several, middle), inside = deal(parts, images, down if down > 1 else bands, threads=threads)
    wide = sum(count for _, count, _ in across)
    with k.loop("o", parts, kind=outer) as part, k.loop("n", images, kind=several) as n:
        if down > 1:
            for top, count, height in rows:
                for first, number, run in _split(count, bands):
                    with (
                        k.loop("b", number, kind=middle) as band,
                        k.loop("u", each, kind=inside) as u,
                        k.loop("i", run, kind=inside) as i,
                    ):
                        row, before = (band * run + i + first) * height + top, Index()
                        for left, iterations, width in across:
                            with k.loop("j", iterations, kind=inside) as j:
                                place = part * each + u, n, row, j * width + left, height, width
                                yield BandTile(*place, i * wide + j + before, run * wide)
                            before = before + iterations
            return
        for left, iterations, width in across:
            for first, number, run in _split(iterations, bands):
                with (
                    k.loop("b", number, kind=middle) as band,
                    k.loop("u", each, kind=inside) as u,
                    k.loop("j", run, kind=inside) as j,
                ):
                    col = (band * run + j + first) * width + left
                    yield BandTile(part * each + u, n, Index(), col, extent[0], width, j + 0, run)


def _split(count: int, bands: int) -> list[tuple[int, int, int]]:
    """(first, bands, tiles of each) of so many tiles, and a band of those that are left."""
    run = max(1, count // bands)
    rest = count % run
    return [(0, count // run, run), *([(count - rest, 1, rest)] if rest else [])]
