"""Kernels on boxes: decoding, selection by score, non-maximum suppression (NMS).

All work on lists in scratch memory whose lengths depend on data: a candidate is appended by writing it past the end
and advancing the end by 0 or 1, which needs no branch.  Selection takes the largest score repeatedly
(``kernels.tournament``), until the output is full: the order is that of a stable sort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Const, Expr, Kernel, Type, cast, less, maximum, minimum, op, select
from tenon.machine.kernels.math import exp
from tenon.machine.kernels.tournament import Tournament, room
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32

Fits = Callable[[Sequence[Expr], Sequence[Expr]], Expr]
"""Whether two boxes do not overlap too much, as a mask."""

_GROUP = 32
"""Boxes compared between two tests for early exit."""


@dataclass(frozen=True)
class DetectionParameters:
    """Parameters of SSD's detection output: ``items`` images, ``priors`` boxes of ``classes`` classes.

    ``sets`` is 1 when the classes share their boxes, else ``classes``.  ``candidates`` is how many boxes of a class are
    considered, ``keep`` the number of output rows per image, and ``cut`` whether these are the best over all classes.
    """

    items: int
    priors: int
    classes: int
    sets: int
    background: int
    code: str
    encoded: bool
    least_score: float
    threshold: float
    eta: float
    candidates: int
    keep: int
    cut: bool

    @property
    def longest(self) -> int:
        """The longest list."""
        return max(self.priors, self.most, self.items)

    @property
    def foreground(self) -> list[tuple[int, int]]:
        """Runs of classes (first, how many) without the background."""
        if not 0 <= self.background < self.classes:
            return [(0, self.classes)]
        runs = [(0, self.background), (self.background + 1, self.classes - self.background - 1)]
        return [run for run in runs if run[1]]

    @property
    def most(self) -> int:
        """Candidates of all classes together."""
        return self.candidates * self.classes


def positions(n: int) -> Array:
    """0, 1, 2 ...: an index as a value."""
    return np.arange(n, dtype=np.int32)


def one_if(mask: Expr) -> Expr:
    """A mask as 1 or 0."""
    return op("and", mask, Const(1, Type(I32)))


def integer(value: int) -> Expr:
    return Const(value, Type(I32))


def number(value: float) -> Expr:
    return Const(value, Type(F32))


def decode(d: DetectionParameters) -> Kernel:
    """(location [N, P, sets, 4], priors [2, P, 4]) -> boxes [N, sets, P, 4] as corners."""
    k = Builder(f"decode_boxes_{d.code}_{d.items}_{d.priors}x{d.sets}", "Boxes as corners from locations and priors")
    location, priors = k.param("location", d.items, d.priors, d.sets, 4), k.param("priors", 2, d.priors, 4)
    boxes = k.param("boxes", d.items, d.sets, d.priors, 4, out=True)
    with k.loop("n", d.items) as n, k.loop("s", d.sets) as s, k.loop("p", d.priors) as p:
        corner = [priors[0, p, i] for i in range(4)]
        delta = [location[n, p, s, i] for i in range(4)]
        if not d.encoded:
            delta = [delta[i] * priors[1, p, i] for i in range(4)]
        for i, value in enumerate(decoded(d.code, corner, [k.let("d", v) for v in delta])):
            boxes[n, s, p, i] = value
    return k.done()


def decoded(code: str, corner: Sequence[Expr], delta: Sequence[Expr]) -> list[Expr]:
    """The corners of a box decoded from a prior and its deltas, by one of SSD's code types."""
    if code == "corner":
        return [c + d for c, d in zip(corner, delta, strict=True)]
    width, height = corner[2] - corner[0], corner[3] - corner[1]
    if code == "corner_size":
        return [c + d * side for c, d, side in zip(corner, delta, (width, height) * 2, strict=True)]
    x = delta[0] * width + (corner[0] + corner[2]) * 0.5
    y = delta[1] * height + (corner[1] + corner[3]) * 0.5
    half_width, half_height = exp(delta[2]) * width * 0.5, exp(delta[3]) * height * 0.5
    return [x - half_width, y - half_height, x + half_width, y + half_height]


def overlap(a: Sequence[Expr], b: Sequence[Expr], extra: float) -> tuple[Expr, Expr]:
    """(intersection, union) of two boxes as corners; ``extra`` is 1 where coordinates count whole pixels."""
    width = maximum(minimum(a[2], b[2]) - maximum(a[0], b[0]) + extra, 0.0)
    height = maximum(minimum(a[3], b[3]) - maximum(a[1], b[1]) + extra, 0.0)
    inside = width * height
    return inside, area(a, extra) + area(b, extra) - inside


def area(box: Sequence[Expr], extra: float) -> Expr:
    return maximum(box[2] - box[0] + extra, 0.0) * maximum(box[3] - box[1] + extra, 0.0)


class Choice:
    """A list of scored candidates in scratch memory, from which the best are taken in order."""

    def __init__(self, k: Builder, most: int) -> None:
        self.k, self.most = k, most
        self.list = Tournament(k, most)
        self.which = k.param("which", most, out=True, dtype=I32)
        self.best = k.param("best", 1, out=True)
        self.places = k.param("places", most, dtype=I32)

    def clear(self) -> None:
        self.list.clear()

    def append(self, score: Expr, which: Expr, mask: Expr | None = None) -> None:
        """Put a candidate on the list where ``mask`` holds."""
        with self.k.bind("end", self.list.length, self.most) as end:
            self.which[end] = which
        self.list.append(score, mask)

    def in_order(
        self, most: int, room: Callable[[], Expr] | None = None, *, among: int | None = None
    ) -> AbstractContextManager[Index]:
        """A loop over at most ``most`` candidates, best first, while ``room()`` is 1.  It yields each one's index in
        the list, which is known to be no longer than ``among``; its score is ``best[0]``."""
        self.list.play()
        return self._taken(most, room, self.most if among is None else among)

    @contextmanager
    def _taken(self, most: int, room: Callable[[], Expr] | None, among: int) -> Iterator[Index]:
        k = self.k
        with k.bind("m", self.list.length, self.most + 1) as m, k.loop("t", most, m), ExitStack() as stack:
            if room is not None:
                more = stack.enter_context(k.bind("room", room(), 2))
                stack.enter_context(k.when(more - 1))
            self.best[0] = self.list.best()
            at = stack.enter_context(k.bind("b", self.list.place(), among))
            self.list.drop(at)
            yield at


def choice_room(most: int) -> dict[str, int]:
    """Bytes of scratch memory of a ``Choice``, by parameter; positions follow it."""
    return {**room(most), "which": 4 * most, "best": 4}


@dataclass(frozen=True, eq=False)
class Kept:
    """The boxes kept so far: ``count``, from ``first`` on, of a list with room for ``length``; at most ``most`` count.
    ``box`` reads the corners of one."""

    choice: Choice
    count: Expr
    most: int
    length: int
    box: Callable[[Index], Sequence[Expr]]
    first: Expr | None = None

    def free(self, box: Sequence[Expr], fits: Fits) -> Tensor:
        """1 where ``fits`` holds for ``box`` and each box kept, else 0.

        They are compared in groups; the loop ends after the first group with a box that overlaps too much.
        """
        k = self.choice.k
        free = k.local("free", 1, dtype=I32, space="stack")
        free[0] = integer(1)
        size = max(1, min(_GROUP, self.most))
        with (
            k.bind("kept", self.count, self.most + 1) as kept,
            k.loop("g", -(-self.most // size), (kept + (size - 1)) // size) as g,
            k.bind("look", free[0], 2) as look,
            k.when(look - 1),
            k.loop("i", size) as i,
            k.when(kept - 1 - g * size - i),
        ):
            at = self.choice.places[g * size + i]
            with k.bind("o", at if self.first is None else self.first + at, self.length) as o:
                free[0] = op("and", free[0], one_if(fits(box, self.box(o))))
        return free


def suppress(d: DetectionParameters) -> Kernel:
    """(confidence [N, P, classes], boxes) -> rows [N, keep, 7]: image, class, score and corners; unused rows are -1."""
    k = Builder(
        f"detections_{d.items}_{d.priors}x{d.classes}_{d.keep}",
        "Detections: non-maximum suppression per class, the best rows of all",
    )
    confidence = k.param("confidence", d.items, d.priors, d.classes)
    boxes = k.param("boxes", d.items, d.sets, d.priors, 4)
    choice = Choice(k, d.longest)
    rows_found = k.param("found", d.most, 6, out=True)  # class, score, corners
    chosen = k.param("chosen", d.most, out=True, dtype=I32)
    rows = k.param("rows", d.items, d.keep, 7, out=True)
    count = k.param("count", 3, out=True, dtype=I32)  # found in all, where this class begins, rows written
    limit = k.param("limit", 1, out=True)
    with k.loop("n", d.items) as n:
        count[0] = integer(0)
        for first, classes in d.foreground:
            with k.loop("c", classes) as c:
                _suppress_class(k, d, choice, (confidence, boxes, rows_found, count, limit), n, c + first)
        _write_rows(k, d, choice, (rows_found, chosen, rows, count), n)
    return k.done()


def _suppress_class(
    k: Builder, d: DetectionParameters, choice: Choice, memory: tuple[Tensor, ...], n: Index, c: Index
) -> None:
    confidence, boxes, detections, count, limit = memory
    choice.clear()
    with k.loop("p", d.priors) as p:
        score = k.let("score", confidence[n, p, c])
        choice.append(score, choice.places[p], less(number(d.least_score), score))
    count[1] = count[0]
    limit[0] = number(d.threshold)
    with choice.in_order(d.candidates) as b, k.bind("q", choice.which[b], d.priors) as q:
        _keep_if_free(k, d, choice, (boxes, detections, count, limit), (n, c, q))


def _keep_if_free(
    k: Builder, d: DetectionParameters, choice: Choice, memory: tuple[Tensor, ...], at: tuple[Index, Index, Index]
) -> None:
    """Append box ``q`` unless one kept of its class overlaps it too much."""
    boxes, detections, count, limit = memory
    n, c, q = at
    box = [k.let("x", boxes[n, c if d.sets > 1 else 0, q, i]) for i in range(4)]

    def fits(mine: Sequence[Expr], other: Sequence[Expr]) -> Expr:
        inside, union = overlap(mine, other, 0.0)
        return op("less_equal", inside, limit[0] * union)

    kept = Kept(
        choice, count[0] - count[1], d.candidates, d.most, lambda o: [detections[o, 2 + e] for e in range(4)], count[1]
    )
    free = kept.free(box, fits)
    with k.bind("end", count[0], d.most) as end:
        values = [cast(choice.places[c], F32), choice.best[0], *box]
        for e, value in enumerate(values):
            detections[end, e] = value
    count[0] = count[0] + free[0]
    if d.eta < 1:
        shrinks = op("and", less(number(0.5), limit[0]), op("sub", integer(0), free[0]))
        limit[0] = select(shrinks, limit[0] * d.eta, limit[0])


def _write_rows(k: Builder, d: DetectionParameters, choice: Choice, memory: tuple[Tensor, ...], n: Index) -> None:
    """Write the best detections over all classes, ordered by class."""
    detections, chosen, rows, count = memory
    with k.loop("r", d.keep) as r, k.loop("e", 7) as e:
        rows[n, r, e] = number(-1.0)
    count[2] = integer(0)
    with k.bind("m", count[0], d.most + 1) as m:
        choice.clear()
        with k.loop("j", d.most, m) as j:
            chosen[j] = integer(0 if d.cut else 1)
            if d.cut:
                choice.append(detections[j, 1], choice.places[j])
        if d.cut:
            with choice.in_order(d.keep, among=d.most) as b:
                chosen[b] = integer(1)
        with k.loop("j", d.most, m) as j, k.bind("take", chosen[j], 2) as take, k.when(take >= 1):
            with k.bind("r", count[2], d.keep) as r:
                rows[n, r, 0] = cast(choice.places[n], F32) if n.terms else number(0.0)
                for i in range(6):
                    rows[n, r, 1 + i] = detections[j, i]
            count[2] = count[2] + 1
