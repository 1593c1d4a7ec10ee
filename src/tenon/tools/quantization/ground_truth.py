"""The ground truth of samples: their classes, texts or boxes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import FormatError, InputError
from tenon.input_file import read_regular
from tenon.network.graph.graph import Array
from tenon.tools.quantization.samples import Data, Numbered, load_archive, load_array

GroundTruth = str | os.PathLike[str] | Iterable[Any] | Mapping[str, Any]
"""An .npy, .npz, .json or .txt file, truths in the order of the samples, or by names of their files."""

Truths = Mapping[Any, Any]
"""By number or by name of the file of a sample."""

TRUTHS = ("y", "labels")
"""Arrays of an .npz file with samples that hold what is true of them."""


def read_truth(given: GroundTruth) -> Truths:
    """The ground truth of each sample, by number or by name of its file.

    A text file has a line for each sample, or lines of name and truth with a tab (or, for numbers, a space) between.
    Raises InputError for a file that cannot be read.
    """
    if isinstance(given, Mapping):
        return {str(name): truth for name, truth in given.items()}
    if not isinstance(given, str | os.PathLike):
        return dict(enumerate(given))
    path = Path(given)
    if path.suffix == ".npy":
        return dict(enumerate(np.atleast_1d(load_array(path))))
    if path.suffix == ".npz":
        return dict(enumerate(_labels(load_archive(path), path)))
    text = read_regular(path).decode("utf-8", "replace")
    if path.suffix == ".json":
        try:
            content = json.loads(text)
        except ValueError as error:
            raise FormatError(f"{path}: not JSON: {error}") from None
        if not isinstance(content, dict | list):
            raise InputError(f"{path}: must be a list in the order of the samples, or an object by file name")
        return dict(enumerate(content)) if isinstance(content, list) else content
    return _lines(text.splitlines())


def _lines(lines: list[str]) -> Truths:
    if all("\t" in line for line in lines if line):
        pairs = [line.split("\t", 1) for line in lines if line]
        return {name: _number_or_text(truth) for name, truth in pairs}
    words = [line.split() for line in lines]
    if all(len(w) == 2 and _is_number(w[1]) and not _is_number(w[0]) for w in words if w):
        return {w[0]: int(w[1]) for w in words if w}
    return {i: _number_or_text(line.strip()) for i, line in enumerate(lines)}


def _is_number(word: str) -> bool:
    return word.lstrip("-").isdecimal()


def _number_or_text(word: str) -> int | str:
    return int(word) if _is_number(word) else word


def truth_in_archive(data: Data) -> Truths | None:
    """The truth that an .npz file of samples holds too, if it does."""
    if not isinstance(data, str | os.PathLike) or Path(data).suffix != ".npz":
        return None
    arrays = load_archive(data)
    return next((dict(enumerate(arrays[name])) for name in TRUTHS if name in arrays), None)


def _labels(arrays: Mapping[str, Array], path: Path) -> Array:
    name = next((n for n in TRUTHS if n in arrays), next(iter(arrays), None) if len(arrays) == 1 else None)
    if name is None:
        raise InputError(f"{path}: there is no array '{TRUTHS[0]}' in it: it has {', '.join(arrays)}")
    return np.atleast_1d(arrays[name])


def truth_of(known: Truths, each: Numbered) -> Any:
    """By the name of the file, with or without its suffix, or by number."""
    for key in (each.name, Path(each.name).stem, each.number):
        if key != "" and key in known:
            return known[key]
    raise InputError(
        f"the ground truth has nothing for {each.name or f'sample {each.number}'}: it has {len(known)} rows"
    )
