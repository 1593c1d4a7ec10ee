"""Photos as the rows that a language model reads, by its tower of images."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.text_model import ImageText
from tenon.runtime.engine import Engine
from tenon.runtime.engine.detect import image_input
from tenon.runtime.engine.image import image_shape, open_photo, preprocess

if TYPE_CHECKING:
    from PIL.Image import Image as Photo

FEATURES = "image_features"
"""The output of the tower of images, and the input of the language model."""

_LARGEST_SIDE = 4096
"""Pixels of a side of an image that is cut into parts, at most."""


class ImageFeatures(NamedTuple):
    """The rows f32 [parts, n, width] of an image, and how many lines and columns of parts there are before the whole
    image, which is the last part; (0, 0) for an image that is not cut."""

    rows: Array
    grid: tuple[int, int] = (0, 0)


class ImageReader:
    """Reads photos with the tower of a model, whose language model reads images as ``text`` says.

    Raises InputError for a network that is no such tower.
    """

    def __init__(self, engine: Engine, text: ImageText | None = None) -> None:
        if FEATURES not in {tensor.name for tensor in engine.manifest.outputs}:
            raise InputError(f"'{engine.name}' is no tower of images: it has no output '{FEATURES}'")
        self.engine, self._longest = engine, 0 if text is None else text.longest
        self._input = image_input(engine)

    def read(self, photo: Photo | str | os.PathLike[str]) -> ImageFeatures:
        """The rows of a photo, cut into parts where the model reads images so.

        Raises InputError for a file that is no image.
        """
        opened = open_photo(os.fspath(photo)) if isinstance(photo, str | os.PathLike) else photo
        shape = image_shape(self.engine.manifest.inputs, self._input)
        preprocessing = self.engine.manifest.preprocessing[self._input]
        parts, grid = [opened], (0, 0)
        if self._longest and isinstance(shape, tuple):
            parts, grid = _cut(opened, shape[2], self._longest)
        rows = []
        for part in parts:
            pixels = preprocess(part, shape, preprocessing).pixels
            rows.append(np.array(self.engine.run({self._input: pixels})[FEATURES], np.float32))
        return ImageFeatures(np.stack(rows), grid)


def _cut(photo: Photo, side: int, longest: int) -> tuple[list[Photo], tuple[int, int]]:
    """Squares of a ``side`` and the whole image, resized to one; and the lines and columns of squares.

    The longer side of the photo is resized to ``longest``, both sides then to multiples of the square's.
    """
    from PIL import Image

    photo = _resized(photo.convert("RGB"), *_longer_side(photo.width, photo.height, longest))
    width, height = _multiples(photo.width, photo.height, side)
    photo = _resized(photo, width, height)
    lines, columns = height // side, width // side
    if lines == columns == 1:
        return [photo], (0, 0)
    corners = [(x * side, y * side) for y in range(lines) for x in range(columns)]
    parts: list[Photo] = [photo.crop((x, y, x + side, y + side)) for x, y in corners]
    return [*parts, photo.resize((side, side), Image.Resampling.LANCZOS)], (lines, columns)


def _resized(photo: Photo, width: int, height: int) -> Photo:
    from PIL import Image

    return photo.resize((width, height), Image.Resampling.LANCZOS)


def _longer_side(width: int, height: int, longest: int) -> tuple[int, int]:
    """The size with a longer side of ``longest``, the other rounded up to an even number, as Idefics 3 has it."""
    longest = min(longest, _LARGEST_SIDE)
    if width >= height:
        other = int(longest / (width / height))
        return longest, min(max(other + other % 2, 1), longest)
    other = int(longest * (width / height))
    return min(max(other + other % 2, 1), longest), longest


def _multiples(width: int, height: int, side: int) -> tuple[int, int]:
    """The size with sides that are multiples of ``side``: the longer one is rounded up, and then the other."""
    ratio = width / height
    if width >= height:
        width = math.ceil(width / side) * side
        return width, math.ceil(int(width / ratio) / side) * side
    height = math.ceil(height / side) * side
    return math.ceil(int(height * ratio) / side) * side, height
