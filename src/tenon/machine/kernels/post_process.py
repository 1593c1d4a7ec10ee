"""The kernels of TFLite's detection post-processing; ``kernels.boxes`` has the lists and the NMS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tenon.machine.kernel_ir.build import Builder, Tensor
from tenon.machine.kernel_ir.index import Index, IndexLike
from tenon.machine.kernel_ir.loops import Expr, Kernel, cast, less, maximum, op, select
from tenon.machine.kernels.boxes import Choice, Kept, integer, number, one_if, overlap
from tenon.machine.kernels.math import exp
from tenon.network.graph.types import F32, I32

_LEAST = -math.inf
"""The lowest score."""


@dataclass(frozen=True)
class PostProcess:
    """``anchors`` boxes of ``classes`` classes, the first ``background`` of which are ignored.

    ``regular`` runs NMS once per class; otherwise it runs once, over every anchor with its best class.  A run keeps at
    most ``cap`` boxes; the output has ``most`` rows, ``per`` for each box.
    """

    anchors: int
    classes: int
    background: int
    regular: bool
    cap: int
    most: int
    per: int
    least_score: float
    threshold: float
    scales: tuple[float, ...]

    @property
    def passes(self) -> int:
        return self.classes - self.background if self.regular else 1

    @property
    def kept(self) -> int:
        """Rows for what all runs keep, and a spare one for writes that are discarded."""
        return self.passes * self.cap + 1

    @property
    def longest(self) -> int:
        return max(self.anchors, self.kept, self.classes)


@dataclass(frozen=True)
class _Lists:
    """The detections kept: anchors, classes, scores and boxes; ``count`` is their number, and that before this run."""

    anchor: Tensor
    kind: Tensor
    score: Tensor
    corners: Tensor
    count: Tensor


@dataclass(frozen=True)
class _Results:
    boxes: Tensor
    kinds: Tensor
    scores: Tensor
    count: Tensor


def decode(d: PostProcess) -> Kernel:
    """(encodings [1, n, 4], anchors [n, 4]), both (y, x, height, width) of centres -> boxes [n, 4] as corners."""
    k = Builder(f"decode_centres_{d.anchors}", "Boxes as corners from encodings and anchors")
    encodings, anchors = k.param("encodings", 1, d.anchors, 4), k.param("anchors", d.anchors, 4)
    boxes = k.param("boxes", d.anchors, 4, out=True)
    with k.loop("p", d.anchors) as p:
        for i in range(2):
            side = k.let("side", anchors[p, 2 + i])
            centre = k.let("centre", encodings[0, p, i] / number(d.scales[i]) * side + anchors[p, i])
            half = k.let("half", exp(encodings[0, p, 2 + i] / number(d.scales[2 + i])) * 0.5 * side)
            boxes[p, i] = centre - half
            boxes[p, 2 + i] = centre + half
    return k.done()


def choose(d: PostProcess) -> Kernel:
    """(scores [1, n, classes], boxes [n, 4]) -> boxes, classes and scores of the rows, and their number."""
    k = Builder(
        f"post_process_{d.anchors}x{d.classes}_{d.most}",
        "Non-maximum suppression of boxes: boxes, classes and scores of those kept, and their number",
    )
    scores, boxes = k.param("confidence", 1, d.anchors, d.classes), k.param("boxes", d.anchors, 4)
    choice = Choice(k, d.longest)
    lists = _Lists(
        k.param("anchor", d.kept, out=True, dtype=I32),
        k.param("kind", d.kept, out=True, dtype=I32),
        k.param("score", d.kept, out=True),
        k.param("corners", d.kept, 4, out=True),
        k.param("count", 2, out=True, dtype=I32),
    )
    rows = d.most * d.per
    results = _Results(
        k.param("y_boxes", 1, rows, 4, out=True),
        k.param("y_classes", 1, rows, out=True),
        k.param("y_scores", 1, rows, out=True),
        k.param("y_count", 1, out=True),
    )
    lists.count[0] = integer(0)
    with k.loop("c", d.passes) as c:
        _pass(k, d, choice, lists, scores, boxes, c)
    _write(k, d, choice, lists, scores, boxes, results)
    return k.done()


def _pass(k: Builder, d: PostProcess, choice: Choice, lists: _Lists, scores: Tensor, boxes: Tensor, c: Index) -> None:
    """NMS over the boxes of class ``c``, or of all classes."""
    choice.clear()
    with k.loop("p", d.anchors) as p:
        if d.regular:
            score = k.let("score", scores[0, p, c + d.background])
        else:
            best = k.local("top", 1)
            best[0] = number(_LEAST)
            with k.loop("i", d.classes - d.background) as i:
                best[0] = maximum(best[0], scores[0, p, i + d.background])
            score = k.let("score", best[0])
        choice.append(score, choice.places[p], op("less_equal", number(d.least_score), score))
    lists.count[1] = lists.count[0]

    def room() -> Expr:
        return one_if(less(lists.count[0] - lists.count[1], integer(d.cap)))

    with choice.in_order(d.anchors, room) as b, k.bind("q", choice.which[b], d.anchors) as q:
        _keep_if_free(k, d, choice, lists, boxes, c, q)


def _keep_if_free(k: Builder, d: PostProcess, choice: Choice, lists: _Lists, boxes: Tensor, c: Index, q: Index) -> None:
    """Append anchor ``q`` unless one kept in this run overlaps it too much."""
    box = [k.let("x", boxes[q, i]) for i in range(4)]

    def fits(mine: Sequence[Expr], other: Sequence[Expr]) -> Expr:
        inside, union = overlap(mine, other, 0.0)
        return op("less_equal", inside, number(d.threshold) * union)

    count = lists.count[0] - lists.count[1]
    kept = Kept(choice, count, d.cap, d.kept, lambda o: [lists.corners[o, e] for e in range(4)], lists.count[1])
    free = kept.free(box, fits)
    with k.bind("end", lists.count[0], d.kept) as end:
        lists.anchor[end] = choice.places[q]
        lists.kind[end] = choice.places[c] if c.terms else integer(0)
        lists.score[end] = choice.best[0]
        for e in range(4):
            lists.corners[end, e] = box[e]
    lists.count[0] = lists.count[0] + free[0]


def _write(
    k: Builder, d: PostProcess, choice: Choice, lists: _Lists, scores: Tensor, boxes: Tensor, results: _Results
) -> None:
    """Write the best detections kept, padded with zeros."""
    with k.loop("r", d.most * d.per) as r:
        results.kinds[0, r] = number(0.0)
        results.scores[0, r] = number(0.0)
        with k.loop("e", 4) as e:
            results.boxes[0, r, e] = number(0.0)
    results.count[0] = cast(op("min", lists.count[0], integer(d.most)), F32)
    choice.clear()
    with k.bind("m", lists.count[0], d.kept) as m, k.loop("j", d.kept, m) as j:
        choice.append(lists.score[j], choice.places[j])
    lists.count[1] = integer(0)
    with (
        choice.in_order(d.most, among=d.kept) as b,
        k.bind("a", lists.anchor[b], d.anchors) as a,
        k.bind("t", lists.count[1], d.most) as t,
    ):
        if d.regular:
            _row(k, results, t, boxes, a, lists.kind[b], choice.best[0])
        else:
            _best_classes(k, d, choice, results, (scores, boxes), t, a)
        lists.count[1] = lists.count[1] + 1


def _best_classes(
    k: Builder, d: PostProcess, choice: Choice, results: _Results, inputs: tuple[Tensor, Tensor], t: Index, a: Index
) -> None:
    """Write one row for each of an anchor's best classes."""
    scores, boxes = inputs
    classes = d.classes - d.background
    row = k.local("row", classes, space="stack")
    with k.loop("i", classes) as i:
        row[i] = scores[0, a, i + d.background]
    best, kind = k.local("top", 1, space="stack"), k.local("class", 1, dtype=I32, space="stack")
    with k.loop("u", d.per) as u:
        best[0] = number(_LEAST)
        kind[0] = integer(0)
        with k.loop("i", classes) as i:
            better = k.let("better", less(best[0], row[i]))
            kind[0] = select(better, choice.places[i], kind[0])
            best[0] = select(better, row[i], best[0])
        _row(k, results, t * d.per + u, boxes, a, kind[0], best[0])
        with k.bind("taken", kind[0], classes) as taken:
            row[taken] = number(_LEAST)


def _row(k: Builder, results: _Results, r: IndexLike, boxes: Tensor, a: Index, kind: Expr, score: Expr) -> None:
    results.kinds[0, r] = cast(kind, F32)
    results.scores[0, r] = score
    with k.loop("e", 4) as e:
        results.boxes[0, r, e] = boxes[a, e]
