"""Pictures as network inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tenon.errors import InputError
from tenon.ir.graph import Array


def read_image(
    path: str | Path,
    shape: Sequence[int],
    *,
    mean: Sequence[float] = (0.0,),
    scale: Sequence[float] = (1.0,),
    bgr: bool = False,
) -> Array:
    """A picture as f32 of ``shape`` [1, C, H, W] (or [1, H, W, C]), C being 1 (grey) or 3.

    It is resized to H x W (bilinear), then each value v of 0..255 becomes (v - mean) * scale; ``mean`` and
    ``scale`` are one number, or one per channel in the order of the channels.  Raises InputError for a file that
    is no picture and for a shape that cannot hold one.
    """
    from PIL import Image, UnidentifiedImageError

    if len(shape) != 4 or shape[0] != 1 or not ({shape[1], shape[3]} & {1, 3}):
        raise InputError(f"an input of shape {list(shape)} cannot hold a picture: give it with --input name=file.npy")
    last = shape[1] not in (1, 3)
    channels, height, width = (shape[3], shape[1], shape[2]) if last else (shape[1], shape[2], shape[3])
    try:
        with Image.open(path) as file:
            picture = file.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not a readable picture ({error})") from None
    pixels = np.asarray(picture, np.float32).reshape(height, width, channels)
    if bgr:
        pixels = pixels[:, :, ::-1]
    pixels = (pixels - _per_channel("mean", mean, channels)) * _per_channel("scale", scale, channels)
    return np.ascontiguousarray((pixels if last else pixels.transpose(2, 0, 1))[None], np.float32)


def _per_channel(name: str, values: Sequence[float], channels: int) -> Array:
    if len(values) not in (1, channels):
        raise InputError(f"--{name} has {len(values)} values for {channels} channel(s): give one, or one per channel")
    return np.asarray(values, np.float32)
