"""``model-profiler``: the ranges of a model's tensors on files of numbers, as a profile to quantise by."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np

import tenon
from tenon.atomic_write import write
from tenon.compat.glow.model import load, refuse_unsupported
from tenon.compat.glow.options import Arguments
from tenon.errors import InputError
from tenon.input_file import read_regular
from tenon.network.graph.graph import Array, Graph, Value
from tenon.tools.quantization.by_ranges import profiled
from tenon.tools.quantization.glow_profile import GlowProfile

_FORM = "write -input-dataset=INPUT,rawbin|rawtxt,file|dir,PATH"


def profile(arguments: Arguments) -> int:
    """Write ``-dump-profile`` on the files of every ``-input-dataset``.  Raises InputError."""
    path = arguments.get("dump-profile")
    if not path:
        raise InputError("Use the 'dump-profile' option to specify the dump profile path!")
    if arguments.positional:
        raise InputError(f"{arguments.positional[0]}: name the files of an input with -input-dataset")
    asked = arguments.lists.get("input-dataset", [])
    if not asked:
        raise InputError(f"no files to profile with: {_FORM}")
    refuse_unsupported(arguments)
    graph = load(arguments)
    inputs = {value.name: value for value in graph.inputs}
    files: dict[str, tuple[str, list[Path]]] = {}
    for text in asked:
        name, form, paths = _dataset(text)
        if name not in inputs:
            raise InputError(f"-input-dataset={text}: '{name}' is no input: the model has {', '.join(inputs)}")
        files[name] = form, paths
    if absent := [name for name in inputs if name not in files]:
        raise InputError(f"input '{absent[0]}' has no files: {_FORM} for every input")
    counts = {name: len(paths) for name, (_, paths) in files.items()}
    if len(set(counts.values())) > 1:
        raise InputError(f"inputs have different numbers of files: {', '.join(f'{n} {c}' for n, c in counts.items())}")
    dump_profile(arguments, graph, _feeds(inputs, files), path)
    return 0


def dump_profile(arguments: Arguments, graph: Graph, feeds: Iterable[Mapping[str, Array]], path: str) -> None:
    """Write the ranges of all tensors on ``feeds``, which are arrays by the names of the inputs.  Raises InputError for
    options that exclude that."""
    for other in ("convert-to-fp16", "load-profile"):
        if other in arguments.flags or other in arguments.values:
            raise InputError(f"-dump-profile and -{other} exclude each other: leave out one")
    whole = profiled(graph)
    results = [v for node in whole for v in node.outputs if v.type.dtype.is_float and v not in whole.outputs]
    whole.outputs = [*whole.outputs, *results]
    profile = GlowProfile.of(graph, arguments.number("num-histogram-bins", 10))
    with tenon.open(tenon.compile(whole, target="host")) as engine:
        for feed in feeds:
            profile.add({f"{tensor}:0": array for tensor, array in feed.items()})
            profile.add({f"{tensor}:0": array for tensor, array in engine.run(dict(feed)).items()})
    write(path, profile.text(), "-dump-profile")


def _feeds(inputs: Mapping[str, Value], files: Mapping[str, tuple[str, list[Path]]]) -> Iterable[dict[str, Array]]:
    for number in range(len(next(iter(files.values()))[1])):
        yield {name: _READERS[form](inputs[name], paths[number]) for name, (form, paths) in files.items()}


def _dataset(text: str) -> tuple[str, str, list[Path]]:
    """The input, the format and the files that an option names."""
    name, form, source, *rest = (*text.split(","), "", "", "")[: max(3, text.count(",") + 1)]
    if not name or form not in _READERS or source not in _SOURCES or not 1 <= len(rest) <= _SOURCES[source]:
        raise InputError(f"-input-dataset={text}: {_FORM}" + (",FOLDER of its paths" if source == "file" else ""))
    return name, form, _listed(*rest) if source == "file" else _in_folder(Path(rest[0]))


_SOURCES = {"file": 2, "dir": 1}
"""Most paths that follow."""


def _listed(listing: str, folder: str = "") -> list[Path]:
    """The files that a text file names, a line each, up to a comma or a space; in ``folder`` if that is given."""
    lines = read_regular(Path(listing)).decode("utf-8", "replace").splitlines()
    paths = [Path(folder) / words[0] for line in lines if (words := re.split(r"[\s,]+", line.strip())) and words[0]]
    if not paths:
        raise InputError(f"{listing}: there are no files in it: write a path in each line")
    return paths


def _in_folder(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InputError(f"-input-dataset: {folder}: there is no such folder")
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    if not paths:
        raise InputError(f"-input-dataset: {folder}: there are no files in it")
    return paths


def _binary(value: Value, path: Path) -> Array:
    data, dtype = read_regular(path), value.type.dtype.numpy
    needed = value.type.size * np.dtype(dtype).itemsize
    if len(data) != needed:
        raise InputError(f"{path}: it has {len(data)} bytes, and input '{value.name}' {needed}: {value.type}")
    return np.frombuffer(data, dtype).reshape(value.type.dims)


def _text(value: Value, path: Path) -> Array:
    words = [word for word in re.split(r"[\s,]+", read_regular(path).decode("utf-8", "replace")) if word]
    if len(words) != value.type.size:
        raise InputError(
            f"{path}: it has {len(words)} numbers, and input '{value.name}' {value.type.size}: {value.type}"
        )
    try:
        return np.array([float(word) for word in words]).astype(value.type.dtype.numpy).reshape(value.type.dims)
    except ValueError as error:
        raise InputError(f"{path}: {error}: write numbers separated by commas") from None


_READERS: dict[str, Callable[[Value, Path], Array]] = {"rawbin": _binary, "rawtxt": _text}
