"""Answers over time: what a network says of each part of a sound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tenon.network.graph.dtype import Array
from tenon.runtime.answers.answer import Answer
from tenon.runtime.engine.detect import THRESHOLD


class Moment(NamedTuple):
    """The scores [classes] of the part of a sound from ``start`` to ``end``, in seconds."""

    start: float
    end: float
    scores: Array


def timeline_answer(moments: Sequence[Moment], labels: Sequence[str], threshold: float | None) -> Answer:
    """A row for each part with its best class; for networks with one score, one for each stretch of time in which it
    is at least ``threshold``."""
    if moments and moments[0].scores.size == 1:
        return _stretches(moments, THRESHOLD if threshold is None else threshold, labels)
    rows, listed = [], []
    for moment in moments:
        best = int(moment.scores.argmax())
        score, name = float(moment.scores.reshape(-1)[best]), labels[best] if best < len(labels) else str(best)
        if threshold is None or score >= threshold:
            rows.append((f"{moment.start:.2f}", f"{moment.end:.2f}", name, f"{score:.3f}"))
            listed.append({"start": moment.start, "end": moment.end, "class": best, "label": name, "score": score})
    return Answer("" if rows else "nothing heard", ("from s", "to s", "class", "score"), tuple(rows), {"heard": listed})


def _stretches(moments: Sequence[Moment], threshold: float, labels: Sequence[str]) -> Answer:
    name = labels[0] if labels else "heard"
    scores = np.array([float(moment.scores.reshape(-1)[0]) for moment in moments])
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (scores >= threshold).astype(int), [0]]))).reshape(-1, 2)
    listed = [
        {"start": moments[a].start, "end": moments[b - 1].end, "label": name, "score": float(scores[a:b].max())}
        for a, b in edges
    ]
    rows = [
        (f"{moments[a].start:.2f}", f"{moments[b - 1].end:.2f}", name, f"{scores[a:b].max():.3f}") for a, b in edges
    ]
    data = {"heard": listed, "scores": scores.tolist()}
    columns = ("from s", "to s", "class", "highest score")
    return Answer("" if rows else f"nothing heard: highest score {scores.max():.3f}", columns, tuple(rows), data)
