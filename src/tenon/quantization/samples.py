"""Samples to calibrate and to measure with: one dictionary of arrays, by the names of a graph's inputs, for each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tenon.engine.image import read_image
from tenon.errors import InputError
from tenon.ir.graph import Array, Graph
from tenon.ir.preprocessing import AS_IT_IS
from tenon.passes.preprocessing import described

Sample = Mapping[str, Array]
Data = str | os.PathLike[str] | Iterable[Any]
"""A folder of images or of .npy files, an .npy or .npz file, ``module:function``, or an iterable of samples."""

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp"})
"""Of image files."""


def read_samples(
    graph: Graph, data: Data, count: int, seed: int = 0, preprocess: Mapping[str, Any] | None = None
) -> list[Sample]:
    """At most ``count`` samples of ``data``: of a folder or file chosen at random by ``seed``, else the first ones.

    A sample is an array for the only input, or a mapping of names to arrays; a leading axis of 1 may be absent. Arrays
    of files hold samples along their first axis.  Images are preprocessed as the model says, changed by ``preprocess``.
    Raises InputError if there are none, or if one does not fit.
    """
    read = islice(_read(graph, data, count, seed, preprocess), count)
    found = [_fitted(graph, each, f"sample {i}") for i, each in enumerate(read)]
    if not found:
        raise InputError(f"{_named(data)}: there are no samples in it: give images, .npy or .npz files")
    return found


def _named(data: Data) -> str:
    return os.fspath(data) if isinstance(data, str | os.PathLike) else "the data"


def _read(graph: Graph, data: Data, count: int, seed: int, preprocess: Mapping[str, Any] | None) -> Iterator[Any]:
    if not isinstance(data, str | os.PathLike):
        yield from data
        return
    path = Path(data)
    if path.is_dir():
        yield from _folder(graph, path, count, seed, preprocess)
    elif path.suffix == ".npz":
        yield from _archive(graph, path, count, seed)
    elif path.suffix == ".npy":
        array = np.atleast_1d(_loaded(path))
        yield from (array[i] for i in _chosen(len(array), count, seed))
    elif not path.exists() and ":" in str(data):
        yield from _function(str(data))
    else:
        raise InputError(f"{path}: not a folder, an .npy or .npz file, or MODULE:FUNCTION")


def _chosen(total: int, count: int, seed: int) -> list[int]:
    """Indices in ascending order."""
    if total <= count:
        return list(range(total))
    return sorted(map(int, np.random.default_rng(seed).choice(total, count, replace=False)))


def _folder(graph: Graph, folder: Path, count: int, seed: int, preprocess: Mapping[str, Any] | None) -> Iterator[Any]:
    files = sorted(p for p in folder.iterdir() if p.is_file())
    arrays = [p for p in files if p.suffix == ".npy"]
    if arrays:
        yield from (_loaded(arrays[i]) for i in _chosen(len(arrays), count, seed))
        return
    images = [p for p in files if p.suffix.lower() in SUFFIXES]
    if images and len(graph.inputs) != 1:
        raise InputError(f"{folder}: the model has {len(graph.inputs)} inputs: images are for models of one")
    given = graph.inputs[0]
    preprocessing = described(graph, dict(preprocess or {})).get(given.name, AS_IT_IS)
    for i in _chosen(len(images), count, seed):
        yield read_image(images[i], given.type.dims, preprocessing, given.type.dtype.numpy).pixels


def _loaded(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: not a NumPy file ({error})") from None


def _archive(graph: Graph, path: Path, count: int, seed: int) -> Iterator[Mapping[str, Array]]:
    """Arrays by the names of inputs; a single input is also found as ``x``, or as the only array."""
    with _loaded(path) as arrays:
        names = [v.name for v in graph.inputs]
        if len(names) == 1 and names[0] not in arrays:
            source = "x" if "x" in arrays else arrays.files[0] if len(arrays.files) == 1 else ""
            found = {names[0]: arrays[source]} if source else {}
        else:
            found = {name: arrays[name] for name in names if name in arrays}
        listed = ", ".join(arrays.files)
    if missing := [name for name in names if name not in found]:
        raise InputError(f"{path}: it has no array for the input '{missing[0]}', but {listed}")
    for i in _chosen(min(len(array) for array in found.values()), count, seed):
        yield {name: array[i] for name, array in found.items()}


def _function(text: str) -> Iterable[Any]:
    """The samples that a function returns or yields, of a module that Python finds."""
    module, _, name = text.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{text}: {error}") from None
    result: Iterable[Any] = function()
    return result


def _fitted(graph: Graph, sample: Any, where: str) -> Sample:
    given = sample if isinstance(sample, Mapping) else None
    if given is None:
        if isinstance(sample, Sequence) and not isinstance(sample, str) and len(sample) == len(graph.inputs) > 1:
            given = {v.name: each for v, each in zip(graph.inputs, sample, strict=True)}
        elif len(graph.inputs) == 1:
            given = {graph.inputs[0].name: sample}
        else:
            raise InputError(f"{where}: the model has {len(graph.inputs)} inputs: give a mapping of names to arrays")
    found = {}
    for value in graph.inputs:
        if value.name not in given:
            raise InputError(f"{where}: it has no array for the input '{value.name}'")
        array, dims = np.asarray(given[value.name]), value.type.dims
        if array.shape != dims and array.size == value.type.size and (1, *array.shape) == dims:
            array = array[None]
        if array.shape != dims:
            raise InputError(f"{where}: '{value.name}' has the shape {list(array.shape)}, not {list(dims)}")
        if array.dtype.kind not in "biuf":
            raise InputError(f"{where}: '{value.name}' holds {array.dtype}, not numbers")
        found[value.name] = array.astype(value.type.dtype.numpy)
    return found
