"""What the manifest says of pictures, as a C table for executables (``runtime/picture.h``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from tenon.bundle.manifest import Tensor
from tenon.errors import InputError
from tenon.ir.preprocessing import Fit, Picture, Sampling, planes


def pictures_source(inputs: tuple[Tensor, ...], pictures: Mapping[str, Picture]) -> str:
    """The C file: a row for each input.  Raises InputError for numbers that are neither one nor one per channel."""
    rows = [_row(tensor, pictures.get(tensor.name)) for tensor in inputs]
    head = '#include "picture.h"\n\nconst TenonPicture tenon_pictures[] = {'
    return "\n".join((head, *rows, "  {0}};\n"))  # a network may have no input


def _row(tensor: Tensor, picture: Picture | None) -> str:
    found = planes(tensor.shape)
    if picture is None or found is None:
        return "  {0},"
    channels, height, width, last = found
    for name, values in (("mean", picture.mean), ("scale", picture.scale)):
        if len(values) not in (1, channels):
            raise InputError(
                f"pre-processing of '{tensor.name}': {name} has {len(values)} values for {channels} channel(s): "
                "give one, or one per channel"
            )
    fields = {
        "channels": channels,
        "last": int(last),
        "height": height,
        "width": width,
        "fit": get_args(Fit).index(picture.fit),
        "sampling": get_args(Sampling).index(picture.sampling),
        "blue_first": int(picture.channels == "bgr"),
        "border": picture.border,
        "whole": int(picture.within is not None),
        "resize": picture.resize,
        "means": len(picture.mean),
        "scales": len(picture.scale),
        "mean": _numbers(picture.mean),
        "scale": _numbers(picture.scale),
    }
    return "  {" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "},"


def _numbers(values: tuple[float, ...]) -> str:
    return "{" + ", ".join(float(v).hex() for v in values) + "}"
