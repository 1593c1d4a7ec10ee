"""The preprocessing of images of the library transformers: ``preprocessor_config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tenon.errors import FormatError
from tenon.formats.importers.safetensors.settings import read_object
from tenon.formats.importers.shared.image_texts import image_preprocessing
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.preprocessing import Fit, Preprocessing, Sampling

FILES = ("preprocessor_config.json", "processor_config.json")

_RESAMPLING: Mapping[int, Sampling] = {0: "nearest", 1: "lanczos", 2: "smooth", 3: "bicubic"}
"""Pillow's numbers of filters."""

_LARGEST = 1 << 14
"""Pixels of a side at most."""


def stated_preprocessing(file: ModelFile, usual: Preprocessing) -> tuple[Preprocessing, int]:
    """The preprocessing that the file beside the model states, else the ``usual`` one; and the longest side of images
    before they are cut into parts, 0 where they are not cut.

    Raises FormatError for a damaged file and for values that are not possible.
    """
    stated = next((each for name in FILES for each in file.matching(name)), None)
    if stated is None:
        return usual, 0
    content = read_object(stated)
    if content is None:
        raise FormatError(f"{stated.name}: the settings of images are a JSON object")
    nested = content.get("image_processor")
    return _read(nested if isinstance(nested, dict) else content, stated.name, usual)


def _read(content: Mapping[str, Any], name: str, usual: Preprocessing) -> tuple[Preprocessing, int]:
    normalised = content.get("do_normalize") is not False
    usual_mean = tuple(mean / 255 for mean in usual.mean)
    usual_spread = tuple(1 / (255 * scale) for scale in usual.scale)
    mean = _colours(content, "image_mean", name, usual_mean) if normalised else (0.0,)
    spread = _colours(content, "image_std", name, usual_spread) if normalised else (1.0,)
    if 0 in spread:
        raise FormatError(f"{name}: 'image_std' is {list(spread)}, and must not be 0")
    sampling = _RESAMPLING.get(content.get("resample", -1), usual.sampling)
    size = content.get("size")
    sides: Mapping[str, Any] = size if isinstance(size, dict) else {}
    fit: Fit = usual.fit
    shortest = _side(sides.get("shortest_edge", size if isinstance(size, int) else 0), name)
    if "height" in sides:
        fit = "stretch"
    elif shortest and content.get("do_center_crop") is not False:
        fit = "crop"
    longest = _side(sides.get("longest_edge", 0), name) if content.get("do_image_splitting") is True else 0
    resize = shortest if fit == "crop" else 0
    return image_preprocessing(mean, spread, sampling, fit, resize=resize), longest


def _colours(content: Mapping[str, Any], key: str, name: str, usual: Sequence[float]) -> Sequence[float]:
    values = content.get(key)
    if values is None:
        return usual
    listed = values if isinstance(values, list) else [values]
    if len(listed) not in (1, 3) or not all(type(v) in (int, float) and math.isfinite(v) for v in listed):
        raise FormatError(f"{name}: '{key}' is {values!r:.60}, and must be a number for each colour")
    return tuple(float(v) for v in listed)


def _side(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise FormatError(f"{name}: the size of images has {value!r:.40}, which is no number of pixels")
    return value
