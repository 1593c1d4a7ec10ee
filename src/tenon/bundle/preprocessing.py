"""The image preprocessing of inputs as a C table for executables (``runtime/preprocess.h``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from tenon.bundle.manifest import Tensor
from tenon.errors import InputError
from tenon.ir.preprocessing import Fit, Preprocessing, Sampling, planes


def preprocessing_source(inputs: tuple[Tensor, ...], preprocessing: Mapping[str, Preprocessing]) -> str:
    """The C file: a row for each input.  Raises InputError for numbers that are neither one nor one per channel."""
    rows = [_row(tensor, preprocessing.get(tensor.name)) for tensor in inputs]
    head = '#include "preprocess.h"\n\nconst TenonPreprocessing tenon_preprocessing[] = {'
    return "\n".join((head, *rows, "  {0}};\n"))  # a terminator: a network may have no input


def _row(tensor: Tensor, preprocessing: Preprocessing | None) -> str:
    image_shape = planes(tensor.shape)
    if preprocessing is None or image_shape is None:
        return "  {0},"
    channels, height, width, last = image_shape
    for name, values in (("mean", preprocessing.mean), ("scale", preprocessing.scale)):
        if len(values) not in (1, channels):
            raise InputError(
                f"preprocessing of '{tensor.name}': {name} has {len(values)} values for {channels} channel(s): "
                "give one, or one per channel"
            )
    fields = {
        "channels": channels,
        "last": int(last),
        "height": height,
        "width": width,
        "fit": get_args(Fit).index(preprocessing.fit),
        "sampling": get_args(Sampling).index(preprocessing.sampling),
        "blue_first": int(preprocessing.channels == "bgr"),
        "border": preprocessing.border,
        "whole": int(preprocessing.within is not None),
        "resize": preprocessing.resize,
        "means": len(preprocessing.mean),
        "scales": len(preprocessing.scale),
        "mean": _numbers(preprocessing.mean),
        "scale": _numbers(preprocessing.scale),
    }
    return "  {" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "},"


def _numbers(values: tuple[float, ...]) -> str:
    return "{" + ", ".join(float(v).hex() for v in values) + "}"
