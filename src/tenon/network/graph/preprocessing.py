"""Image preprocessing of inputs, and formats of detection outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from tenon.errors import InputError
from tenon.network.graph.dtype import DType
from tenon.validation import MisfitError, least, most, reader

if TYPE_CHECKING:
    from tenon.network.graph.types import Quant

Channels = Literal["rgb", "bgr"]
"""The order of a colour image's channels."""

Fit = Literal["stretch", "crop", "letterbox"]
"""How to fit another aspect ratio: stretch, centre crop, or the whole image with a border."""

Sampling = Literal["smooth", "bilinear", "nearest", "bicubic", "lanczos"]
"""Interpolation: "smooth" is bilinear with antialiasing (over all covered pixels), "bilinear" uses the nearest four
pixels at any scale; "bicubic" and "lanczos" are wider filters with antialiasing."""

Kind = Literal["rows", "lists", "boxes", "yolo", "columns"]
Corners = Literal["xyxy", "yxyx", "cxcywh"]


def _some(numbers: Sequence[float]) -> str:
    return "" if numbers else "has no numbers"


def _finite(numbers: Sequence[float]) -> str:
    return "" if all(map(isfinite, numbers)) else "must be finite"


def _not_zero(numbers: Sequence[float]) -> str:
    return "must not be 0" if 0 in numbers else ""


class Preprocessing(NamedTuple):
    """Preprocessing of an image to an input: resizing, then (v - mean) * scale for each value v of 0..255.

    ``mean`` and ``scale`` are one number, or one per channel in the order of ``channels``.  With ``fit="crop"`` the
    shorter side is resized to ``resize`` before the centre crop, or to the size of the input if that is 0; with
    ``fit="letterbox"`` the border has the value ``border``.  Integer inputs are rounded and clipped.

    ``within`` is set if the preprocessing is compiled in: (height, width) of the network's original input.  The input
    is then an image [H, W, C] in bytes, and the other fields describe what the network does with it.
    """

    mean: Annotated[tuple[float, ...], _some, _finite] = (0.0,)
    scale: Annotated[tuple[float, ...], _some, _finite, _not_zero] = (1.0,)
    channels: Channels = "rgb"
    fit: Fit = "stretch"
    resize: Annotated[int, least(0), most((1 << 16) - 1)] = 0
    border: Annotated[int, least(0), most(255)] = 114
    sampling: Sampling = "smooth"
    within: tuple[int, int] | None = None

    def changed(self, changes: Mapping[str, Any]) -> Preprocessing:
        """A copy with some fields changed; a single number applies to all channels.  Raises InputError."""
        known = [name for name in self._fields if name != "within"]
        if unknown := [name for name in changes if name not in known]:
            raise InputError(f"preprocessing has no '{unknown[0]}'; it has {', '.join(known)}")
        try:
            given = {name: _plain(name, value) for name, value in changes.items()}
            changed: Preprocessing = reader(Preprocessing)({**self._asdict(), **given})
        except MisfitError as misfit:
            raise InputError(f"preprocessing: {misfit.where[0]} {misfit.why}") from None
        except (TypeError, ValueError) as error:
            raise InputError(f"preprocessing: {error}") from None
        return changed

    def quantised(self, quant: Quant) -> Preprocessing:
        """The preprocessing of a quantised input, which holds real / scale + zero point."""
        unit, zero = quant.scale[0], quant.zero_point[0]
        count = max(len(self.mean), len(self.scale))
        means, scales = _repeated(self.mean, count), _repeated(self.scale, count)
        shifted = tuple(m - zero * unit / s for m, s in zip(means, scales, strict=True))
        return self._replace(mean=shifted, scale=tuple(s / unit for s in scales))


AS_IT_IS = Preprocessing()


def raw(dtype: DType) -> Preprocessing:
    """The default preprocessing of integer inputs: unchanged (unsigned) or centred at zero (i8)."""
    return Preprocessing(mean=(128.0,)) if dtype is DType.I8 else AS_IT_IS


def planes(shape: Sequence[int]) -> tuple[int, int, int, bool] | None:
    """(channels, height, width, whether channels come last) of an image input; None if the shape is not that of an
    image."""
    if len(shape) == 3 and shape[2] in (1, 3):
        return shape[2], shape[0], shape[1], True
    if len(shape) != 4 or shape[0] != 1 or min(shape) < 1:
        return None
    if shape[1] in (1, 3):
        return shape[1], shape[2], shape[3], False
    return (shape[3], shape[1], shape[2], True) if shape[3] in (1, 3) else None


Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


def view(preprocessing: Preprocessing, high: int, wide: int, height: int, width: int) -> Box:
    """The part of an image of high x wide pixels that an input of height x width shows; larger than the image with
    letterbox."""
    if preprocessing.fit == "letterbox":
        left, top, inner_width, inner_height = letterbox(high, wide, height, width)
        across, down = wide / inner_width, high / inner_height
        return -left * across, -top * down, (width - left) * across, (height - top) * down
    if preprocessing.fit == "stretch":
        return 0.0, 0.0, float(wide), float(high)
    ratio = preprocessing.resize / min(high, wide) if preprocessing.resize else max(height / high, width / wide)
    shown_width, shown_height = min(wide, width / ratio), min(high, height / ratio)
    x, y = (wide - shown_width) / 2, (high - shown_height) / 2
    return x, y, x + shown_width, y + shown_height


def letterbox(high: int, wide: int, height: int, width: int) -> tuple[int, int, int, int]:
    """(left, top, width, height) of the largest centred area with the image's aspect ratio in height x width."""
    ratio = min(height / high, width / wide)
    inner_width, inner_height = max(1, round(wide * ratio)), max(1, round(high * ratio))
    return (width - inner_width) // 2, (height - inner_height) // 2, inner_width, inner_height


class Heads(NamedTuple):
    """The format of a detector's outputs.

    ``kind`` determines the outputs, in the order of ``outputs``:

        rows    one [.., n, 7] of (image, class, score, 4 corners), or [.., n, 6] without the image; the first row
                of a class below 0 ends it, and of one of class 0 where ``background`` is 0
        lists   boxes [.., n, 4], classes [.., n], scores [.., n] and optionally the number of valid ones [1]
        boxes   candidates before NMS: boxes [.., n, 4] and scores [.., n, classes]
        yolo    the same in one output: [.., n, 5 + classes], the fifth number being the objectness
        columns the same transposed, and without objectness: [.., 4 + classes, n]

    ``corners`` is the format of a box; ``pixels``: in pixels of the input, or relative to its size; None to detect it
    from the values.  ``background`` is the background class; -1 for none.
    """

    kind: Kind
    outputs: tuple[str, ...]
    corners: Corners = "xyxy"
    pixels: bool | None = None
    background: int = -1


def _plain(name: str, value: Any) -> Any:
    """A field's value in the type of the field."""
    if name in ("mean", "scale"):
        return tuple(float(v) for v in value) if isinstance(value, Iterable) else (float(value),)
    return int(value) if name in ("resize", "border") else str(value)


def _repeated(values: tuple[float, ...], count: int) -> tuple[float, ...]:
    return values * count if len(values) == 1 else values
