"""Preprocess image files to network inputs, and map positions back to the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tenon.errors import InputError
from tenon.formats.wire.file_kinds import told_kind
from tenon.input_file import open_regular
from tenon.network.graph.dtype import Array
from tenon.network.graph.preprocessing import AS_IT_IS, Box, Preprocessing, letterbox, planes, view
from tenon.network.graph.size_range import SizeRange
from tenon.runtime.bundle.manifest import BundleTensor, size_ranges

if TYPE_CHECKING:
    from PIL.Image import Image as Photo


_LARGEST = 1 << 15
"""Pixels of a side of a part of an image."""


@dataclass(frozen=True)
class ChangingShape:
    """The shape of an input that takes images of different sizes: ``largest``, of which some ``axes`` have ranges."""

    largest: tuple[int, ...]
    axes: Mapping[int, SizeRange]

    def for_image(self, height: int, width: int) -> tuple[int, ...]:
        """The shape for an image of that size: its own, reduced with its aspect ratio kept until it fits, and rounded
        to the nearest sizes of the ranges."""
        layout = planes(self.largest)
        last = layout is not None and layout[3]
        rows = len(self.largest) - (3 if last else 2)
        sides = {rows: height, rows + 1: width}
        limited = [self.axes[axis].most / side for axis, side in sides.items() if axis in self.axes]
        scale = min(1.0, *limited) if limited else 1.0
        shape = list(self.largest)
        for axis, sizes in self.axes.items():
            shape[axis] = sizes.nearest(sides.get(axis, 1) * scale)
        return tuple(shape)


def image_shape(tensors: Sequence[BundleTensor], name: str) -> Sequence[int] | ChangingShape:
    """The shape of an input among ``tensors``."""
    ranges, tensor = size_ranges(tensors), next(t for t in tensors if t.name == name)
    axes = {axis: ranges[size] for axis, size in tensor.extents if size in ranges}
    return ChangingShape(tensor.shape, axes) if axes else tensor.shape


@dataclass(frozen=True)
class InputImage:
    """An image as a network sees it.

    ``pixels`` is the input.  ``size`` is (width, height) of the image and ``view`` the part of it that the input shows,
    in pixels of the image; larger than the image with letterbox.  ``inner`` is (height, width) that the network works
    on, which differs from the input's if preprocessing is compiled in.
    """

    pixels: Array
    size: tuple[int, int]
    view: Box
    inner: tuple[int, int]

    def on_image(self, boxes: Array) -> Array:
        """Boxes [n, 4] (left, top, right, bottom over the input's size) in pixels of the image, clipped to the
        image."""
        left, top, right, bottom = self.view
        origin, extent = np.array([left, top] * 2), np.array([right - left, bottom - top] * 2)
        return np.asarray((boxes * extent + origin).clip(0, np.array(self.size * 2)))

    def points_on_image(self, points: Array) -> Array:
        """Points [n, 2] (x, y over the input's size) in pixels of the image; they may lie outside."""
        left, top, right, bottom = self.view
        return np.asarray(points * np.array([right - left, bottom - top]) + np.array([left, top]))


def read_image(
    path: str | Path,
    shape: Sequence[int] | ChangingShape,
    preprocessing: Preprocessing = AS_IT_IS,
    dtype: Any = np.float32,
    crop: Box | None = None,
) -> InputImage:
    """An image as an input of ``shape``: [1, C, H, W], [1, H, W, C] or [H, W, C], C being 1 (grey) or 3.

    It is fitted, resized and scaled as ``preprocessing`` says, with a shape that suits it where there are ranges.
    ``crop``: only this part of the image (left, top, right, bottom in pixels); what lies outside of the image is black.
    Raises InputError for a file that is not an image, and for a shape that cannot hold one.
    """
    _layout(shape.largest if isinstance(shape, ChangingShape) else shape)
    return preprocess(open_photo(path), shape, preprocessing, dtype, crop)


def preprocess(
    photo: Photo,
    shape: Sequence[int] | ChangingShape,
    preprocessing: Preprocessing = AS_IT_IS,
    dtype: Any = np.float32,
    crop: Box | None = None,
) -> InputImage:
    """The network's input (see ``read_image``) of an image in memory."""
    if crop is not None:
        part = preprocess(part_of(photo, crop), shape, preprocessing, dtype)
        left, top, right, bottom = part.view
        return replace(part, size=photo.size, view=(left + crop[0], top + crop[1], right + crop[0], bottom + crop[1]))
    if isinstance(shape, ChangingShape):
        shape = shape.for_image(photo.height, photo.width)
    channels, height, width, last = layout = _layout(shape)
    photo = photo.convert("L" if channels == 1 else "RGB")
    if preprocessing.within:
        return _bytes(photo, layout[:3], preprocessing)
    pixels = np.asarray(_fitted(photo, height, width, preprocessing), np.float32).reshape(height, width, channels)
    if preprocessing.channels == "bgr":
        pixels = pixels[:, :, ::-1]
    pixels = (pixels - _per_channel("mean", preprocessing.mean, channels)) * _per_channel(
        "scale", preprocessing.scale, channels
    )
    given = np.dtype(dtype)
    if given.kind in "iu":
        limits = np.iinfo(given)
        pixels = np.round(pixels).clip(limits.min, limits.max)
    ordered = pixels if last else pixels.transpose(2, 0, 1)
    shown = view(preprocessing, photo.height, photo.width, height, width)
    return InputImage(np.ascontiguousarray(ordered.reshape(tuple(shape)), given), photo.size, shown, (height, width))


def part_of(photo: Photo, crop: Box) -> Photo:
    """The part of an image within whole pixels.  Raises InputError for an empty one."""
    left, top, right, bottom = (round(edge) for edge in crop)
    if right <= left or bottom <= top or max(right - left, bottom - top) > _LARGEST:
        raise InputError(f"--crop {left},{top},{right},{bottom}: write LEFT,TOP,RIGHT,BOTTOM in pixels")
    return photo.crop((left, top, right, bottom))


def _layout(shape: Sequence[int]) -> tuple[int, int, int, bool]:
    """``planes`` of a shape.  Raises InputError if it cannot hold an image."""
    layout = planes(shape)
    if layout is None:
        raise InputError(f"an input of shape {list(shape)} cannot hold an image: give it with --input name=file.npy")
    return layout


def _bytes(photo: Photo, shape: tuple[int, int, int], preprocessing: Preprocessing) -> InputImage:
    """For an input with preprocessing compiled in: the image is only resized."""
    from PIL import Image

    channels, height, width = shape
    pixels = np.asarray(photo.resize((width, height), Image.Resampling.BILINEAR)).reshape(height, width, channels)
    inner = preprocessing.within or (height, width)
    x, y = photo.width / width, photo.height / height
    left, top, right, bottom = view(preprocessing, height, width, *inner)
    return InputImage(pixels, photo.size, (left * x, top * y, right * x, bottom * y), inner)


_HEAD = 64
"""Bytes that tell what a file is that is no image."""


def open_photo(path: str | Path) -> Photo:
    """The image in a file, upright.  Raises InputError for a file that is not an image."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with open_regular(path) as raw, Image.open(raw) as file:
            photo = _narrowed(ImageOps.exif_transpose(file))
            photo.load()
            return photo
    except UnidentifiedImageError:
        with open_regular(path) as raw:
            what = told_kind(raw.read(_HEAD)) or "its format is none that Pillow reads"
        raise InputError(f"{path}: not an image: {what}; give a JPEG, PNG, BMP, GIF, TIFF or WebP file") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable image ({error})") from None


def _narrowed(photo: Photo) -> Photo:
    """Scale 16-bit grey to 8 bits; Pillow would clip it."""
    from PIL import Image

    if photo.mode != "I" and not photo.mode.startswith("I;16"):
        return photo
    wide = np.asarray(photo, np.float64).clip(0, 65535)
    return Image.fromarray(np.rint(wide / 65535 * 255).astype(np.uint8))


def _fitted(photo: Photo, height: int, width: int, preprocessing: Preprocessing) -> Photo:
    """The image fitted to the input's size."""
    from PIL import Image

    wide, high = photo.size
    if preprocessing.fit == "letterbox":
        left, top, inner_width, inner_height = letterbox(high, wide, height, width)
        framed = Image.new(photo.mode, (width, height), (preprocessing.border,) * len(photo.getbands()))
        inner = _resized(photo, (inner_height, inner_width), (0.0, 0.0, float(wide), float(high)), preprocessing)
        framed.paste(inner, (left, top))
        return framed
    return _resized(photo, (height, width), view(preprocessing, high, wide, height, width), preprocessing)


def _resized(photo: Photo, size: tuple[int, int], view: Box, preprocessing: Preprocessing) -> Photo:
    from PIL import Image

    height, width = size
    filters = {
        "smooth": Image.Resampling.BILINEAR,
        "bicubic": Image.Resampling.BICUBIC,
        "lanczos": Image.Resampling.LANCZOS,
    }
    if preprocessing.sampling in filters:
        return photo.resize((width, height), filters[preprocessing.sampling], box=view)
    point = Image.Resampling.BILINEAR if preprocessing.sampling == "bilinear" else Image.Resampling.NEAREST
    return photo.transform((width, height), Image.Transform.EXTENT, view, point)


def _per_channel(name: str, values: Sequence[float], channels: int) -> Array:
    if len(values) not in (1, channels):
        raise InputError(f"--{name} has {len(values)} values for {channels} channel(s): give one, or one per channel")
    return np.asarray(values, np.float32)
