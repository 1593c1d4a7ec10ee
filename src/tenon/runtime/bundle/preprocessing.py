"""Image preprocessing, the format of detections and labels as C tables (``runtime/c/tables.h``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from tenon.errors import InputError
from tenon.network.graph.preprocessing import Corners, Fit, Heads, Kind, Preprocessing, Sampling, planes
from tenon.runtime.bundle.header import c_text
from tenon.runtime.bundle.manifest import BundleTensor


def preprocessing_source(inputs: tuple[BundleTensor, ...], preprocessing: Mapping[str, Preprocessing]) -> str:
    """The C file: a row for each input.  Raises InputError for numbers that are neither one nor one per channel."""
    rows = [_row(tensor, preprocessing.get(tensor.name)) for tensor in inputs]
    head = '#include "tables.h"\n\nconst TenonPreprocessing tenon_preprocessing[] = {'
    return "\n".join((head, *rows, "  {0}};\n"))  # a terminator: a network may have no input


def detection_source(outputs: Sequence[BundleTensor], heads: Heads | None, labels: Sequence[str]) -> str:
    """The C file: the format of the outputs, and the names of classes."""
    names = "".join(f'  "{c_text(label)}",\n' for label in labels)
    head = '#include "tables.h"\n\nconst TenonHeads tenon_heads = '
    table = f"const char *const tenon_labels[] = {{\n{names}  NULL}};\nconst long tenon_label_count = {len(labels)};\n"
    return f"{head}{_heads(outputs, heads)};\n\n{table}"


def classes_source(outputs: Sequence[BundleTensor], *, other: bool) -> str:
    """The C file: whether the only output is that of a classifier, which it is not where ``other`` answers are decoded
    from it, and its quantisation."""
    listed = len(outputs) == 1 and not other
    scale, zero = (outputs[0].scale or 1.0, outputs[0].zero_point or 0) if listed else (1.0, 0)
    fields = f"{{.listed = {int(listed)}, .scale = {scale!r}, .zero = {zero}}}"
    return f'#include "tables.h"\n\nconst TenonClasses tenon_classes = {fields};\n'


def _heads(outputs: Sequence[BundleTensor], heads: Heads | None) -> str:
    if heads is None:
        return "{0}"
    by_name = {tensor.name: i for i, tensor in enumerate(outputs)}
    fields = {
        "kind": 1 + get_args(Kind).index(heads.kind),
        "outputs": "{" + ", ".join(str(by_name[name]) for name in heads.outputs) + "}",
        "output_count": len(heads.outputs),
        "corners": get_args(Corners).index(heads.corners),
        "pixels": -1 if heads.pixels is None else int(heads.pixels),
        "background": heads.background,
    }
    return "{" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "}"


def _row(tensor: BundleTensor, preprocessing: Preprocessing | None) -> str:
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
        "inner_height": (preprocessing.within or (0, 0))[0],
        "inner_width": (preprocessing.within or (0, 0))[1],
        "resize": preprocessing.resize,
        "means": len(preprocessing.mean),
        "scales": len(preprocessing.scale),
        "mean": _numbers(preprocessing.mean),
        "scale": _numbers(preprocessing.scale),
    }
    return "  {" + ", ".join(f".{name} = {value}" for name, value in fields.items()) + "},"


def _numbers(values: tuple[float, ...]) -> str:
    return "{" + ", ".join(float(v).hex() for v in values) + "}"
