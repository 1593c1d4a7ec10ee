"""Classification: the classes with the highest scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from tenon.network.graph.dtype import Array
from tenon.network.graph.preprocessing import planes
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Head, Run, sigmoid, softmax
from tenon.runtime.answers.drawing import Pen
from tenon.runtime.bundle.manifest import BundleTensor, Manifest

if TYPE_CHECKING:
    from PIL.Image import Image as Photo

TOP = 5


@dataclass(frozen=True, kw_only=True)
class Classes(Head):
    """``outputs`` is one vector of scores.  ``activation`` converts logits to scores."""

    kind = "classes"
    about = "a vector of scores"

    activation: Literal["none", "softmax", "sigmoid"] = "none"

    @classmethod
    def recognise(cls, manifest: Manifest, labels: int) -> Self | None:
        """A single output with as many values as there are names, of a network that takes an image."""
        (first, *others) = manifest.outputs or (None,)
        takes_image = any(planes(tensor.shape) for tensor in manifest.inputs)
        if first is None or others or not takes_image or labels < 2 or int(np.prod(first.shape)) != labels:
            return None
        return cls(outputs=(first.name,))

    @classmethod
    def fitting(cls, outputs: Sequence[BundleTensor]) -> Sequence[BundleTensor]:
        return [t for t in outputs if max(t.shape, default=1) == int(np.prod(t.shape)) > 1]

    def scores(self, run: Run) -> Array:
        values = run.outputs[self.outputs[0]].reshape(-1).astype(np.float64)
        if self.activation == "none":
            return np.asarray(values)
        return softmax(values) if self.activation == "softmax" else sigmoid(values)

    def answer(self, run: Run) -> Answer:
        scores = self.scores(run)
        order = np.argsort(-scores, kind="stable")[: TOP if run.top is None else run.top]
        best = [(run.label(int(i)), float(scores[i])) for i in order]
        listed = [
            {"class": int(i), "label": name, "score": score} for i, (name, score) in zip(order, best, strict=True)
        ]

        def draw(photo: Photo) -> Photo:
            pen = Pen(photo)
            pen.text((2.0 * pen.thick, 2.0 * pen.thick), f"{best[0][0]} {best[0][1]:.2f}", int(order[0]))
            return pen.photo

        rows = tuple((name, f"{score:.3f}") for name, score in best)
        return Answer("", ("class", "score"), rows, {"classes": listed}, draw if best else None)
