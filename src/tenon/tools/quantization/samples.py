"""Samples to calibrate and to measure with: one dictionary of arrays, by the names of a graph's inputs, for each."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tenon.errors import InputError
from tenon.input_file import open_regular
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.preprocessing import AS_IT_IS, Preprocessing
from tenon.network.graph.size_range import SizeRange
from tenon.network.graph.types import TensorType
from tenon.network.ops.requantize import limits
from tenon.network.passes.preprocessing import described
from tenon.runtime.engine.image import InputImage, read_image
from tenon.tools.metrics.plugin_code import PluginCode, imported_module
from tenon.tools.quantization import sounds

Sample = Mapping[str, Array]
Data = str | os.PathLike[str] | Iterable[Any]
"""A folder of images, .npy files or WAV files, an .npy or .npz file, ``module:function``, or an iterable of samples."""


class Numbered(NamedTuple):
    """A sample, its number among all of the data, the name of its file (if it has one of its own), and the image that
    it was read from."""

    number: int
    name: str
    sample: Sample
    image: InputImage | None = None


@dataclass(frozen=True)
class SampleSource:
    """At most ``count`` samples of ``data``, which ``seed`` chooses; images are preprocessed as the model says, changed
    by ``preprocess``."""

    data: Data
    count: int
    seed: int = 0
    preprocess: Mapping[str, Any] | None = None

    def numbered(self, graph: Graph) -> Iterator[Numbered]:
        """The samples for the inputs of ``graph``, read one by one.  Raises InputError if there are none."""
        return numbered_samples(graph, self.data, self.count, self.seed, self.preprocess)


RANGE = (-1.0, 1.0)
"""Range of random floats."""
SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp"})
"""Suffixes of image files."""


def read_samples(
    graph: Graph, data: Data, count: int, seed: int = 0, preprocess: Mapping[str, Any] | None = None
) -> list[Sample]:
    """At most ``count`` samples of ``data``: of a folder or file chosen at random by ``seed``, else the first ones.

    A sample is an array for the only input, or a mapping of names to arrays; a leading axis of 1 may be absent. Arrays
    of files hold samples along their first axis.  Images are preprocessed as the model says, changed by ``preprocess``
    (whose "focus" makes four channels of each, of even and odd rows and columns).
    Raises InputError if there are none, or if one does not fit.
    """
    return [each.sample for each in numbered_samples(graph, data, count, seed, preprocess)]


def random_samples(graph: Graph, count: int, seed: int = 0) -> list[Sample]:
    """``count`` samples of random numbers (see ``random_array``); sizes that a run chooses are the largest in the first
    one and random in the others."""
    rng = np.random.default_rng(seed)
    samples = list[Sample]()
    for number in range(count):
        sizes = {name: _size(range, rng if number else None) for name, range in graph.sizes.items()}
        for name, parts in graph.size_sums.items():
            sizes[name] = sum(sizes[part] if isinstance(part, str) else part for part in parts)
        samples.append({v.name: random_array(_sized(graph, v, sizes), rng) for v in given_inputs(graph)})
    return samples


def given_inputs(graph: Graph) -> list[Value]:
    """The inputs of which a sample has arrays: all but the sizes that follow from the shapes of these."""
    return [value for value in graph.inputs if value.name not in graph.sizes]


def _size(range: SizeRange, rng: np.random.Generator | None) -> int:
    """A random size, or the largest."""
    if rng is None:
        return range.most
    return range.least + range.step * int(rng.integers((range.most - range.least) // range.step, endpoint=True))


def _sized(graph: Graph, value: Value, sizes: Mapping[str, int]) -> TensorType:
    """The type of an input with these sizes."""
    shape = list(value.type.shape)
    for axis, name in graph.extents.get(value.name, ()):
        shape[axis] = sizes[name]
    return replace(value.type, shape=tuple(shape))


def random_array(type: TensorType, rng: np.random.Generator, bounds: tuple[float, float] | None = None) -> Array:
    """Random numbers within ``bounds``, by default ``RANGE`` for floats, all steps for quantised integers, and 0 and 1
    for others, which are indices or lengths, say."""
    dtype = type.dtype.numpy
    if type.dtype.is_float:
        return rng.uniform(*(bounds or RANGE), type.dims).astype(dtype)
    usual = (0, 1) if type.quant is None else limits(type.dtype)
    least, most = usual if bounds is None else (int(bounds[0]), int(bounds[1]))
    return rng.integers(least, most, type.dims, endpoint=True).astype(dtype)


def numbered_samples(
    graph: Graph, data: Data, count: int, seed: int = 0, preprocess: Mapping[str, Any] | None = None
) -> Iterator[Numbered]:
    """The same with their numbers, read one by one."""
    count_read = 0
    for number, name, item in islice(_read(graph, data, count, seed, preprocess), count):
        image = item if isinstance(item, InputImage) else None
        sample = _fitted(graph, item if image is None else image.pixels, f"sample {number}")
        count_read += 1
        yield Numbered(number, name, sample, image)
    if not count_read:
        raise InputError(f"{_named(data)}: there are no samples in it: give images, .npy, .npz or .wav files")


def finite(samples: Iterable[Sample]) -> list[Sample]:
    """The samples, to calibrate with.  Raises InputError for infinities and NaN, which no range contains."""
    listed = list(samples)
    for i, sample in enumerate(listed):
        for name, array in sample.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise InputError(f"sample {i} to calibrate with has infinities or NaN in the input '{name}'")
    return listed


def _named(data: Data) -> str:
    return os.fspath(data) if isinstance(data, str | os.PathLike) else "the data"


_Item = tuple[int, str, Any]
"""Number, name of the file, and content of a sample."""


def _read(graph: Graph, data: Data, count: int, seed: int, preprocess: Mapping[str, Any] | None) -> Iterator[_Item]:
    if not isinstance(data, str | os.PathLike):
        yield from ((i, "", each) for i, each in enumerate(data))
        return
    path = Path(data)
    if path.is_dir():
        yield from _folder(graph, path, count, seed, preprocess)
    elif path.suffix == ".npz":
        yield from _archive(graph, path, count, seed)
    elif path.suffix == ".npy":
        array = np.atleast_1d(load_array(path))
        yield from ((i, "", array[i]) for i in _chosen(len(array), count, seed))
    elif not path.exists() and ":" in str(data):
        yield from ((i, "", each) for i, each in enumerate(_function(str(data))))
    else:
        raise InputError(f"{path}: not a folder, an .npy or .npz file, or MODULE:FUNCTION")


def _chosen(total: int, count: int, seed: int) -> list[int]:
    """Indices in ascending order."""
    if total <= count:
        return list(range(total))
    return sorted(map(int, np.random.default_rng(seed).choice(total, count, replace=False)))


def _folder(graph: Graph, folder: Path, count: int, seed: int, preprocess: Mapping[str, Any] | None) -> Iterator[_Item]:
    files = sample_files(folder)
    arrays = [p for p in files if p.suffix == ".npy"]
    if arrays:
        yield from ((i, _name(arrays[i], folder), load_array(arrays[i])) for i in _chosen(len(arrays), count, seed))
        return
    given, *others = given_inputs(graph)
    images = [p for p in files if p.suffix.lower() in SUFFIXES]
    recorded = [p for p in files if p.suffix.lower() == sounds.SUFFIX]
    if (images or recorded) and others:
        raise InputError(f"{folder}: the model has {1 + len(others)} inputs: images and sounds are for models of one")
    if recorded and not images:
        parts = sounds.pieces(recorded, given.type)
        for i in _chosen(len(parts), count, seed):
            path, start = parts[i]
            yield i, _name(path, folder), sounds.read_piece(path, start, given.type)
        return
    changes = dict(preprocess or {})
    focus = bool(changes.pop("focus", False))
    read: Callable[[Path], InputImage | Array]
    if focus:
        read = partial(_focused, kind=given.type, preprocessing=AS_IT_IS.changed(changes))
    else:
        preprocessing = described(graph, changes).get(given.name, AS_IT_IS)
        read = partial(read_image, shape=given.type.dims, preprocessing=preprocessing, dtype=given.type.dtype.numpy)
    for i in _chosen(len(images), count, seed):
        yield i, _name(images[i], folder), read(images[i])


def sample_files(folder: Path) -> list[Path]:
    """The files of samples in a folder, sorted; if it has none, those in its subfolders (one for each class, say)."""
    known = {".npy", sounds.SUFFIX, *SUFFIXES}

    def listed(paths: Iterable[Path]) -> list[Path]:
        return sorted(p for p in paths if p.suffix.lower() in known and p.is_file())

    return listed(folder.iterdir()) or listed(folder.rglob("*"))


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def _focused(path: Path, kind: TensorType, preprocessing: Preprocessing) -> Array:
    """An image of twice the height and width, its even and odd rows and columns as channels, as YOLOv5's focus layer
    has them: of [even, even], [odd, even], [even, odd] and [odd, odd] rows and columns."""
    dims = kind.dims
    if len(dims) != 4 or dims[0] != 1 or dims[1] not in (4, 12):
        raise InputError(f"focus is for inputs [1, 12, H, W] or [1, 4, H, W], and this one is {list(dims)}")
    shape = (1, dims[1] // 4, 2 * dims[2], 2 * dims[3])
    pixels = read_image(path, shape, preprocessing, kind.dtype.numpy).pixels
    return np.concatenate([pixels[:, :, row::2, column::2] for column in (0, 1) for row in (0, 1)], axis=1)


def load_array(path: str | os.PathLike[str]) -> Array:
    """The array of an .npy file.  Raises InputError if it is none."""
    content = _load_numpy(path)
    if isinstance(content, dict):
        raise InputError(f"{Path(path)}: not an .npy file, but an archive of {', '.join(content) or 'nothing'}")
    return content


def load_archive(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of an .npz file by name.  Raises InputError if it is none."""
    content = _load_numpy(path)
    if not isinstance(content, dict):
        raise InputError(f"{Path(path)}: not an .npz file with arrays: it has one array without a name")
    return content


def _load_numpy(path: str | os.PathLike[str]) -> Array | dict[str, Array]:
    try:
        with open_regular(path) as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.lib.npyio.NpzFile):
                return {name: content[name] for name in content.files}
            array: Array = content
            return array
    except (OSError, ValueError, EOFError, KeyError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{Path(path)}: not a NumPy file: {error}") from None


def _archive(graph: Graph, path: Path, count: int, seed: int) -> Iterator[_Item]:
    """Arrays by the names of inputs; a single input is also found as ``x``, or as the only array."""
    arrays, names = load_archive(path), [v.name for v in given_inputs(graph)]
    if len(names) == 1 and names[0] not in arrays:
        source = "x" if "x" in arrays else next(iter(arrays)) if len(arrays) == 1 else ""
        named = {names[0]: arrays[source]} if source else {}
    else:
        named = {name: arrays[name] for name in names if name in arrays}
    listed = ", ".join(arrays)
    if missing := [name for name in names if name not in named]:
        raise InputError(f"{path}: it has no array for the input '{missing[0]}', but {listed}")
    for i in _chosen(min(len(array) for array in named.values()), count, seed):
        yield i, "", {name: array[i] for name, array in named.items()}


def _function(text: str) -> Iterable[Any]:
    """The samples that a function returns or yields, of a module that Python finds."""
    module, _, name = text.partition(":")
    home = imported_module(module, text)
    try:
        function = getattr(home, name)
    except AttributeError as error:
        raise InputError(f"{text}: {error}") from None
    return PluginCode(text, getattr(home, "__file__", None) or "").items(function)


def _fitted(graph: Graph, sample: Any, where: str) -> Sample:
    given = sample if isinstance(sample, Mapping) else None
    inputs = given_inputs(graph)
    if given is None:
        if isinstance(sample, Sequence) and not isinstance(sample, str) and len(sample) == len(inputs) > 1:
            given = {v.name: each for v, each in zip(inputs, sample, strict=True)}
        elif len(inputs) == 1:
            given = {inputs[0].name: sample}
        else:
            raise InputError(f"{where}: the model has {len(inputs)} inputs: give a mapping of names to arrays")
    arrays = {}
    for value in inputs:
        if value.name not in given:
            raise InputError(f"{where}: it has no array for the input '{value.name}'")
        array = np.asarray(given[value.name])
        dims = _own_dims(graph, value, array.shape)
        if array.shape != dims and (1, *array.shape) == _own_dims(graph, value, (1, *array.shape)):
            array, dims = array[None], (1, *array.shape)
        if array.shape != dims:
            raise InputError(f"{where}: '{value.name}' has the shape {list(array.shape)}, not {list(dims)}")
        if array.dtype.kind not in "biuf":
            raise InputError(f"{where}: '{value.name}' holds {array.dtype}, not numbers")
        arrays[value.name] = array.astype(value.type.dtype.numpy)
    return arrays


def _own_dims(graph: Graph, value: Value, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that an array of this ``shape`` for an input should have: a run chooses some extents."""
    dims, chosen = list(value.type.dims), graph.extents.get(value.name, ())
    for axis, _ in chosen if len(shape) == len(dims) else ():
        dims[axis] = shape[axis]
    return tuple(dims)
