"""Networks whose output is an image: super-resolution, denoising, style transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.preprocessing import planes
from tenon.runtime.answers.answer import Answer
from tenon.runtime.answers.base import Head, Run
from tenon.runtime.bundle.manifest import BundleTensor, Manifest

if TYPE_CHECKING:
    from PIL.Image import Image as Photo

_UNIT = 4
"""Values up to this are relative to white, larger ones are bytes."""


@dataclass(frozen=True, kw_only=True)
class Picture(Head):
    """The output is [1, 1 or 3, h, w], or [1, h, w, 1 or 3] with ``axes=nhwc``: grey or RGB, of 0..1 or 0..255
    (after ``scale`` and ``mean``: value * scale + mean).  ``colour=luma``: it is the brightness only, and the colours
    are those of the image given."""

    kind = "picture"
    about = "an image, [1, 1 or 3, h, w]"

    axes: Literal["nchw", "nhwc"] = "nchw"
    colour: Literal["own", "luma"] = "own"
    scale: float = 1.0
    mean: float = 0.0

    @classmethod
    def recognise(cls, manifest: Manifest, labels: int) -> Self | None:
        """A single output that is an image of several times the input's size."""
        images = [image for tensor in manifest.inputs if (image := planes(tensor.shape))]
        shapes = [shape for tensor in manifest.outputs if (shape := planes(tensor.shape))]
        if len(images) != 1 or len(manifest.outputs) != 1 or len(shapes) != 1:
            return None
        (channels, height, width, _), (own, high, wide, last) = images[0], shapes[0]
        larger = high > height and high * width == wide * height and not high % height
        axes: Literal["nchw", "nhwc"] = "nhwc" if last else "nchw"
        grey: Literal["own", "luma"] = "luma" if own == 1 else "own"
        return cls(outputs=(manifest.outputs[0].name,), axes=axes, colour=grey) if larger and own == channels else None

    @classmethod
    def fitting(cls, outputs: Sequence[BundleTensor]) -> Sequence[BundleTensor]:
        return [t for t in outputs if planes(t.shape)]

    def answer(self, run: Run) -> Answer:
        pixels = self._pixels(run.outputs[self.outputs[0]])
        height, width = pixels.shape[:2]

        def draw(photo: Photo) -> Photo:
            return self._coloured(pixels, photo, run)

        text = f"an image of {width} x {height} pixels (--draw writes it)"
        return Answer(text, data={"width": width, "height": height}, draw=draw)

    def _pixels(self, values: Array) -> Array:
        """u8 [h, w, 1 or 3]."""
        if values.ndim != 4 or values.shape[0] != 1:
            raise InputError(f"--head picture: an output of {list(values.shape)} is not [1, 1 or 3, h, w]")
        real = (values[0] if self.axes == "nhwc" else values[0].transpose(1, 2, 0)) * self.scale + self.mean
        if real.shape[2] not in (1, 3):
            raise InputError(
                f"--head picture: {real.shape[2]} channels are no image: 1 or 3 are, with axes=nchw or nhwc"
            )
        factor = 255 if np.abs(real).max(initial=0) <= _UNIT else 1
        return np.asarray(np.rint(real * factor).clip(0, 255).astype(np.uint8))

    def _coloured(self, pixels: Array, photo: Photo, run: Run) -> Photo:
        from PIL import Image

        if pixels.shape[2] == 3:
            return Image.fromarray(pixels)
        grey = Image.fromarray(pixels[:, :, 0])
        if self.colour == "own" or run.image is None:
            return grey.convert("RGB")
        shown = photo.convert("YCbCr").resize(grey.size, Image.Resampling.BICUBIC, box=run.image.view)
        return Image.merge("YCbCr", (grey, *shown.split()[1:])).convert("RGB")
