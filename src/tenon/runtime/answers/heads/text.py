"""Text recognition by CTC: scores of characters at each step, of which repetitions and blanks are dropped.

Source: Graves et al., Connectionist Temporal Classification (2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.preprocessing import planes
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Head, Run, softmax
from tenon.runtime.answers.drawing import Pen
from tenon.runtime.bundle.manifest import BundleTensor, Manifest

if TYPE_CHECKING:
    from PIL.Image import Image as Photo


@dataclass(frozen=True, kw_only=True)
class Text(Head):
    """The output is [1, steps, characters], or [steps, 1, characters].  The class names are the characters, without
    the blank, which is the class ``blank`` (-1: the last one); where there is one class more, it is the space.
    ``activation`` converts logits to scores."""

    kind = "text"
    about = "scores of characters, [1, steps, characters]"

    blank: int = 0
    activation: Literal["none", "softmax"] = "none"

    @classmethod
    def recognise(cls, manifest: Manifest, labels: int) -> Self | None:
        """Scores at several steps of one class more than there are names (the blank), or of two (and the space)."""
        images = any(planes(tensor.shape) for tensor in manifest.inputs)
        fits = [t for t in cls.fitting(manifest.outputs) if labels > 1 and t.shape[-1] - labels in (1, 2)]
        return cls(outputs=(fits[0].name,)) if images and len(manifest.outputs) == len(fits) == 1 else None

    @classmethod
    def fitting(cls, outputs: Sequence[BundleTensor]) -> Sequence[BundleTensor]:
        return [t for t in outputs if len(t.shape) == 3 and 1 in t.shape[:2] and max(t.shape[:2]) > 1]

    def answer(self, run: Run) -> Answer:
        scores = run.outputs[self.outputs[0]]
        if scores.ndim != 3 or 1 not in scores.shape[:2]:
            raise InputError(f"--head text: an output of {list(scores.shape)} is not [1, steps, characters]")
        scores = scores.reshape(-1, scores.shape[-1])
        scores = softmax(scores) if self.activation == "softmax" else scores
        text, score = self._decoded(scores, run.labels)

        def draw(photo: Photo) -> Photo:
            pen = Pen(photo)
            pen.text((0.0, 0.0), text, 2)
            return pen.photo

        return Answer("", ("text", "score"), ((text, f"{score:.3f}"),), {"text": text, "score": score}, draw)

    def _decoded(self, scores: Array, characters: Sequence[str]) -> tuple[str, float]:
        """The text, and the mean of the scores of its characters (0 for an empty one)."""
        blank = self.blank % scores.shape[1]
        names = [*characters, *" "[: max(0, scores.shape[1] - 1 - len(characters))]]
        if len(names) != scores.shape[1] - 1:
            raise InputError(
                f"--head text: {scores.shape[1]} classes need {scores.shape[1] - 1} characters in --labels (one per "
                f"line), or one less if the last is the space; there are {len(characters)}"
            )
        names.insert(blank, "")
        best = scores.argmax(1)
        new = (best != blank) & np.concatenate([[True], best[1:] != best[:-1]])
        return "".join(names[i] for i in best[new]), float(scores.max(1)[new].mean()) if new.any() else 0.0
