"""What a network's description says beyond its tensors: how an image becomes an input, and how outputs list things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from tenon.errors import InputError
from tenon.ir.dtype import DType
from tenon.validation import MisfitError, least, most, reader

if TYPE_CHECKING:
    from tenon.ir.types import Quant

Channels = Literal["rgb", "bgr"]
"""The order of a colour image's channels."""

Fit = Literal["stretch", "crop", "letterbox"]
"""An image of other proportions is stretched, covers the input and loses its edges, or is put into it whole."""

Sampling = Literal["smooth", "bilinear", "nearest"]
"""How pixels are resized: "smooth" is bilinear over all pixels that a new one covers, "bilinear" over the nearest four
whatever the scale."""

Kind = Literal["rows", "lists", "boxes", "yolo", "columns"]
Corners = Literal["xyxy", "yxyx", "cxcywh"]


def _some(numbers: Sequence[float]) -> str:
    return "" if numbers else "has no numbers"


def _finite(numbers: Sequence[float]) -> str:
    return "" if all(map(isfinite, numbers)) else "must be finite"


def _not_zero(numbers: Sequence[float]) -> str:
    return "is 0, which makes every image alike" if 0 in numbers else ""


class Preprocessing(NamedTuple):
    """How an image becomes a network's input: it is resized, then each value v of 0..255 becomes (v - mean) * scale.

    ``mean`` and ``scale`` are one number, or one per channel in the order of ``channels``.  With ``fit="crop"`` the
    shorter side becomes ``resize`` before the middle is cut out, or just covers the input when that is 0; with
    ``fit="letterbox"`` what is left free has the value ``border``.  Inputs of integers are rounded and clipped.

    ``within`` is (height, width) of the network's own input where all this is compiled in: the input then holds the
    bytes of an image [H, W, C] of any size, and the rest says what happens to it.
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
        """The same with some fields changed; a number alone stands for all channels.  Raises InputError."""
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
        """The description of an input that holds real / scale + zero point instead of the real numbers."""
        unit, zero = quant.scale[0], quant.zero_point[0]
        count = max(len(self.mean), len(self.scale))
        means, scales = _repeated(self.mean, count), _repeated(self.scale, count)
        shifted = tuple(m - zero * unit / s for m, s in zip(means, scales, strict=True))
        return self._replace(mean=shifted, scale=tuple(s / unit for s in scales))


AS_IT_IS = Preprocessing()


def raw(dtype: DType) -> Preprocessing:
    """How pixels are put into integers when nobody says: as they are, or about zero."""
    return Preprocessing(mean=(128.0,)) if dtype is DType.I8 else AS_IT_IS


def planes(shape: Sequence[int]) -> tuple[int, int, int, bool] | None:
    """(channels, height, width, whether channels come last) of an input that can hold an image."""
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
    """The part of an image of high x wide pixels that an input of height x width shows, beyond it in a letter box."""
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
    """(left, top, width, height) of the largest place of an image's proportions in the middle of height x width."""
    ratio = min(height / high, width / wide)
    inner_width, inner_height = max(1, round(wide * ratio)), max(1, round(high * ratio))
    return (width - inner_width) // 2, (height - inner_height) // 2, inner_width, inner_height


class Heads(NamedTuple):
    """How the outputs of a detector list what it found.

    ``kind`` says which outputs there are, in the order of ``outputs``:

        rows    one [.., n, 7] of (image, class, score, 4 corners), or [.., n, 6] without the image; the first row
                of a class below 0 ends it, and of one of class 0 where ``background`` is 0
        lists   boxes [.., n, 4], classes [.., n], scores [.., n] and, maybe, how many count [1]
        boxes   candidates that are still to be thinned out: boxes [.., n, 4] and scores [.., n, classes]
        yolo    the same in one output: [.., n, 5 + classes], the fifth number being the objectness
        columns the same turned, and without objectness: [.., 4 + classes, n]

    ``corners`` is what the four numbers of a box are; ``pixels``: in pixels of the input or over its size, None if only
    the numbers tell.  ``background`` is a class that is nothing; -1 for none.
    """

    kind: Kind
    outputs: tuple[str, ...]
    corners: Corners = "xyxy"
    pixels: bool | None = None
    background: int = -1


def _plain(name: str, value: Any) -> Any:
    """A field's value as it is kept."""
    if name in ("mean", "scale"):
        return tuple(float(v) for v in value) if isinstance(value, Iterable) else (float(value),)
    return int(value) if name in ("resize", "border") else str(value)


def _repeated(values: tuple[float, ...], count: int) -> tuple[float, ...]:
    return values * count if len(values) == 1 else values
