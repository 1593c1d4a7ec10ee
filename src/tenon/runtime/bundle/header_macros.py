"""Macros of a bundle's header that say what the numbers of an input or output stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tenon.machine.codegen.comments import harmless
from tenon.machine.plan.program import Port
from tenon.network.graph.preprocessing import Preprocessing, planes
from tenon.network.graph.types import Quant

_FITS = {
    "stretch": "stretched to that size",
    "crop": "resized with its aspect ratio kept, its centre cropped",
    "letterbox": "resized whole, with a border of {border} around it",
}
_SAMPLINGS = {
    "smooth": "bilinear interpolation with antialiasing",
    "bilinear": "bilinear interpolation of the four nearest pixels",
    "nearest": "the nearest pixel",
    "bicubic": "bicubic interpolation with antialiasing",
    "lanczos": "Lanczos interpolation with antialiasing",
}


def quantisation_macros(name: str, quant: Quant) -> list[str]:
    """``<name>_SCALE`` and ``<name>_ZERO_POINT`` of a tensor with one scale."""
    scale, zero_point = quant.scale[0], quant.zero_point[0]
    return [
        f"/* An element q stands for {name}_SCALE * (q - ({name}_ZERO_POINT)). */",
        f"#define {name}_SCALE {_float(scale)}",
        f"#define {name}_ZERO_POINT {f'({zero_point})' if zero_point < 0 else zero_point}",
    ]


def initial_macros(name: str, initial: Sequence[float]) -> list[str]:
    """``<name>_INITIAL``: the elements of an input in the first run, or the one number that all have."""
    if not initial:
        return []
    numbers = ", ".join(_float(v) if isinstance(v, float) else str(v) for v in initial)
    what = "All elements in the first run." if len(initial) == 1 else "The elements in the first run."
    text = f"{{{numbers}}}" if len(initial) > 1 else numbers if initial[0] >= 0 else f"({numbers})"
    return [f"/* {what} */", f"#define {name}_INITIAL {text}"]


def state_comment(port: Port) -> list[str]:
    """Lines that say what a state holds from run to run; none for other inputs and outputs."""
    if not port.state:
        return []
    return [f"/* A state, at the place of '{harmless(port.state)}': what a run leaves there, the next one finds. */"]


def size_macros(name: str, port: Port) -> list[str]:
    """``<name>_LEAST``, ``_MOST`` and ``_STEP`` of an input that is a size; ``<name>_STRIDES``, in elements, of inputs
    and outputs with extents that only a run knows; nothing of others."""
    if port.size is not None:
        least, most, step = port.size
        what = f"A size: {least} to {most}" + (f" in steps of {step}." if step > 1 else ".")
        return [
            f"/* {what} */",
            f"#define {name}_LEAST {least}",
            f"#define {name}_MOST {most}",
            f"#define {name}_STEP {step}",
        ]
    if not port.extents:
        return []
    dims = port.type.dims
    extents = ", ".join(f"that of axis {axis} is '{harmless(holder)}'" for axis, holder in port.extents)
    strides = ", ".join(str(math.prod(dims[i + 1 :])) for i in range(len(dims)))
    return [
        f"/* The largest extents; in a run, {extents}.  Elements lie as far apart as in the largest. */",
        f"#define {name}_STRIDES {{{strides}}}",
    ]


def image_macros(name: str, shape: Sequence[int], preprocessing: Preprocessing) -> list[str]:
    """The size, layout and preprocessing of an image input of that shape; none for other inputs.

    The means and scales are initialisers with a number for each channel, in the order of the input's channels.
    """
    image = planes(shape)
    if image is None:
        return []
    channels, height, width, last = image
    size = f"{width}x{height} pixels (width x height)"
    fit = _FITS[preprocessing.fit].format(border=preprocessing.border)
    if preprocessing.fit == "crop" and preprocessing.resize:
        fit = f"its shorter side resized to {preprocessing.resize}, its centre cropped"
    about = f"An image of {size}: {fit}; {_SAMPLINGS[preprocessing.sampling]}."
    macros: dict[str, int | str] = {
        "IMAGE_HEIGHT": height,
        "IMAGE_WIDTH": width,
        "IMAGE_CHANNELS": channels,
        "IMAGE_CHANNELS_LAST": int(last),
    }
    if preprocessing.within is not None:
        note = "The network takes its bytes, from 0 to 255, as they are: preprocessing is compiled in."
        return [f"/* {about}\n   {note} */", *_defined(name, macros)]
    note = "An element of channel c is (v - IMAGE_MEAN[c]) * IMAGE_SCALE[c] of a value v from 0 to 255."
    per_channel: dict[str, int | str] = {
        "IMAGE_BGR": int(preprocessing.channels == "bgr"),
        "IMAGE_MEAN": _list(preprocessing.mean, channels),
        "IMAGE_SCALE": _list(preprocessing.scale, channels),
    }
    return [f"/* {about}\n   {note} */", *_defined(name, {**macros, **per_channel})]


def _defined(name: str, macros: Mapping[str, int | str]) -> list[str]:
    return [f"#define {name}_{word} {value}" for word, value in macros.items()]


def _list(values: tuple[float, ...], channels: int) -> str:
    return "{" + ", ".join(_float(v) for v in (values * channels if len(values) == 1 else values)) + "}"


def _float(value: float) -> str:
    """The shortest decimal that C reads as the same f32."""
    return f"{np.float32(value)!s}f"
