"""Segmentation: the class of each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.preprocessing import planes
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Head, Run, sigmoid
from tenon.runtime.answers.boxes import shown_image
from tenon.runtime.answers.drawing import Pen
from tenon.runtime.bundle.manifest import BundleTensor, Manifest
from tenon.runtime.engine.detect import THRESHOLD

if TYPE_CHECKING:
    from PIL.Image import Image as Photo


@dataclass(frozen=True, kw_only=True)
class Mask(Head):
    """The output is [1, classes, h, w], or [1, h, w, classes] with ``axes=nhwc``: the class of a pixel is that with
    the largest value, or, where there is one map only, whether its value is at least the threshold.  Whole numbers
    [1, h, w] are the classes themselves.  ``background`` is the class that is not coloured."""

    kind = "mask"
    about = "the classes of pixels, [1, classes, h, w]"

    axes: Literal["nchw", "nhwc"] = "nchw"
    activation: Literal["none", "sigmoid"] = "none"
    background: int = 0

    @classmethod
    def recognise(cls, manifest: Manifest, labels: int) -> Self | None:
        """A single output of one value for each pixel of the input, or of as many as there are names."""
        images = [image for tensor in manifest.inputs if (image := planes(tensor.shape))]
        if len(images) != 1 or len(manifest.outputs) != 1 or len(manifest.outputs[0].shape) != 4:
            return None
        channels, height, width, _ = images[0]
        name, shape = manifest.outputs[0].name, manifest.outputs[0].shape
        counts = {labels} | ({1} if channels == 3 else set())
        if shape[:3] == (1, height, width) and shape[3] in counts:
            return cls(outputs=(name,), axes="nhwc")
        return cls(outputs=(name,)) if shape[1] in counts and shape[2:] == (height, width) else None

    @classmethod
    def fitting(cls, outputs: Sequence[BundleTensor]) -> Sequence[BundleTensor]:
        return sorted((t for t in outputs if len(t.shape) in (3, 4)), key=lambda t: -len(t.shape))

    def answer(self, run: Run) -> Answer:
        classes, count = self._classes(run)
        image = shown_image(run, self.kind)
        shares = np.bincount(classes.reshape(-1), minlength=count) / classes.size
        order = [int(i) for i in np.argsort(-shares, kind="stable") if shares[i] > 0]
        rows = tuple((self._label(run, i, count), f"{shares[i]:.1%}") for i in order)
        listed = [{"class": i, "label": self._label(run, i, count), "share": float(shares[i])} for i in order]

        def draw(photo: Photo) -> Photo:
            pen = Pen(photo)
            pen.areas(classes, image.view, self.background)
            return pen.photo

        return Answer("", ("class", "share of pixels"), rows, {"areas": listed}, draw)

    def _classes(self, run: Run) -> tuple[Array, int]:
        """The class of each pixel, i64 [h, w], and the number of classes."""
        values = run.outputs[self.outputs[0]]
        if values.dtype.kind in "iu" and values.shape[0] == 1 and values.ndim == 3:
            return values[0].astype(np.int64), int(values.max()) + 1
        if values.ndim != 4 or values.shape[0] != 1:
            raise InputError(f"--head mask: an output of {list(values.shape)} is not [1, classes, h, w]")
        maps = values[0].transpose(2, 0, 1) if self.axes == "nhwc" else values[0]
        if len(maps) > 1:
            return maps.argmax(0), len(maps)
        scores = sigmoid(maps[0]) if self.activation == "sigmoid" else maps[0]
        return (scores >= (THRESHOLD if run.threshold is None else run.threshold)).astype(np.int64), 2

    def _label(self, run: Run, number: int, count: int) -> str:
        if count == 2 and len(run.labels) < 2:
            return ("background", run.labels[0] if run.labels else "foreground")[number]
        return run.label(number)
