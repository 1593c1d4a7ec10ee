"""Filling the halo around an image with zeros or a zero point, so that its readers need no padding."""

from __future__ import annotations

from functools import lru_cache

from tenon.machine.kernel_ir.build import Builder, Tensor, lane_segments
from tenon.machine.kernel_ir.index import IndexLike
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.parallel import deal


@lru_cache(maxsize=256)
def halo(image: Image, machine: Machine, fill: int = 0) -> Kernel:
    """Parameter: the whole buffer of ``image``.  Its halo is set to ``fill``; its interior is left unchanged."""
    what = f"The zero point {fill}" if fill else "Zeros"
    k = Builder(f"halo_{image.blocks}x{image.h}x{image.w}", f"{what} in the halo around {image.shown}")
    y = k.param("y", *image.shape, dtype=image.dtype, out=True)
    lanes = machine.lanes if image.block % machine.lanes == 0 else 1
    (kind,), inside = deal(image.blocks)
    with k.loop("n", image.n) as n, k.loop("c", image.blocks, kind=kind) as c:
        for first, count in ((0, image.top), (image.top + image.h, image.bottom)):
            if count:
                with k.loop("i", count, kind=inside) as i:
                    for start, across in _parts(image):
                        with k.loop("j", across) as j:
                            _cell(k, y, (n, c, i + first, j + start), image.block, lanes, fill)
        if image.left or image.right:
            with k.loop("i", image.h, kind=inside) as i:
                for first, count in ((0, image.left), (image.left + image.w, image.right)):
                    for col in range(first, first + count):
                        _cell(k, y, (n, c, i + image.top, col), image.block, lanes, fill)
    return k.done()


def _parts(image: Image) -> list[tuple[int, int]]:
    """(start, extent) of the halo before a row, the row, and the halo behind it, of which a run may need less."""
    parts = (0, image.left), (image.left, image.w), (image.left + image.w, image.right)
    return [(start, across) for start, across in parts if across]


def _cell(k: Builder, y: Tensor, at: tuple[IndexLike, ...], block: int, lanes: int, fill: int) -> None:
    for start, iterations, width in lane_segments(block, lanes):
        with k.unroll("v", iterations) as v:
            y.vec(width)[(*at, v + start // width)] = fill or 0.0
