"""The kernel of Faster R-CNN's region proposals.  Source: Ren et al., Faster R-CNN, and its layer in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast, less, maximum, minimum, op
from tenon.machine.kernels.boxes import Choice, Kept, integer, number, one_if, overlap
from tenon.machine.kernels.math import exp
from tenon.network.graph.types import F32, I32


@dataclass(frozen=True)
class Proposals:
    """Sizes and rules: ``anchors`` at each of ``height`` x ``width`` positions, ``stride`` pixels apart."""

    anchors: int
    height: int
    width: int
    stride: int
    before: int
    after: int
    threshold: float
    least: float
    inclusive: int = 0

    @property
    def count(self) -> int:
        return self.anchors * self.height * self.width


def moved(anchor: list[Expr], delta: list[Expr]) -> list[Expr]:
    """The corners of the box decoded from an anchor (in whole pixels) and its deltas."""
    width, height = anchor[2] - anchor[0] + 1.0, anchor[3] - anchor[1] + 1.0
    x, y = delta[0] * width + (anchor[0] + width * 0.5), delta[1] * height + (anchor[1] + height * 0.5)
    half_width, half_height = exp(delta[2]) * width * 0.5, exp(delta[3]) * height * 0.5
    return [x - half_width, y - half_height, x + half_width, y + half_height]


def propose(d: Proposals) -> Kernel:
    """(scores [2 A, H, W], deltas [A, 4, H, W], image [3], anchors [A, 4]) -> rows [after, 5]; unused rows are 0."""
    k = Builder(
        f"proposals_{d.anchors}x{d.height}x{d.width}_{d.after}" + "_inclusive" * d.inclusive,
        "Region proposals: anchors moved by deltas, ranked by score, non-maximum suppression",
    )
    scores = k.param("objectness", 2 * d.anchors, d.height, d.width)
    deltas = k.param("deltas", d.anchors, 4, d.height, d.width)
    image, anchors = k.param("image", 3), k.param("anchors", d.anchors, 4)
    choice = Choice(k, d.count)
    boxes = k.param("boxes", d.count, 4, out=True)
    rows = k.param("rows", d.after, 5, out=True)
    count = k.param("count", 1, out=True, dtype=I32)
    with k.loop("r", d.after) as r, k.loop("e", 5) as e:
        rows[r, e] = number(0.0)
    count[0] = integer(0)
    choice.clear()
    with k.loop("y", d.height) as y, k.loop("x", d.width) as x, k.loop("a", d.anchors) as a:
        delta = [k.let("d", deltas[a, i, y, x]) for i in range(4)]
        shift = [_pixels(choice, i, d.stride) for i in (x, y)] * 2
        anchor = [k.let("c", anchors[a, i] + shift[i]) for i in range(4)]
        edges = (image[1] - 1.0, image[0] - 1.0) * 2
        corner = moved(anchor, delta)
        if d.inclusive:
            corner[2:] = [far - 1.0 for far in corner[2:]]
        box = [k.let("b", maximum(minimum(c, edge), 0.0)) for c, edge in zip(corner, edges, strict=True)]
        where = (y * d.width + x) * d.anchors + a
        for i, value in enumerate(box):
            boxes[where, i] = value
        least = k.let("least", image[2] * d.least)
        wide = op("less_equal", least, box[2] - box[0] + 1.0)
        high = op("less_equal", least, box[3] - box[1] + 1.0)
        choice.append(scores[d.anchors + a, y, x], choice.places[where], op("and", wide, high))

    def room() -> Expr:
        return one_if(less(count[0], integer(d.after)))

    with choice.in_order(min(d.before, d.count), room) as b:
        _take(k, d, choice, (boxes, rows, count), b)
    return k.done()


def _pixels(choice: Choice, at: Index, stride: int) -> Expr:
    return cast(choice.places[at], F32) * float(stride)


def _take(k: Builder, d: Proposals, choice: Choice, memory: tuple[Tensor, Tensor, Tensor], b: Index) -> None:
    """Keep box ``b`` of the list unless a kept one overlaps it too much."""
    boxes, rows, count = memory
    with k.bind("q", choice.which[b], d.count) as q:
        box = [k.let("v", boxes[q, i]) for i in range(4)]

        def fits(mine: Sequence[Expr], other: Sequence[Expr]) -> Expr:
            inside, union = overlap(mine, other, 1.0)
            return op("less_equal", inside, union * d.threshold)

        most = min(d.after, d.count)
        free = Kept(choice, count[0], most, d.after, lambda o: [rows[o, 1 + e] for e in range(4)]).free(box, fits)
        with k.bind("take", free[0], 2) as take, k.when(take >= 1):
            with k.bind("r", count[0], d.after) as r:
                for e, value in enumerate(box):
                    rows[r, 1 + e] = value
            count[0] = count[0] + 1
