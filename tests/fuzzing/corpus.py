"""A corpus of small valid models: those that the tests pass to ``tenon.formats.importers``, recorded when they load.

    pytest --record-models FOLDER tests/unit      # puts FOLDER/<format>/<hash>.zip there

A recorded model is an archive of its files and of ``load.json``, which says how they are loaded.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tenon.errors import InputError, ModelError
from tenon.formats import importers
from tenon.formats.importers import FORMATS
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.graph import Graph
from tenon.options import child_environment

LARGEST = 100_000
"""Maximum size in bytes of a recorded model."""
SLOWEST = 0.1
"""Maximum time in seconds to load it, without imports."""
MOST_FILES = 24
ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    *(p for p in sorted((ROOT / "tests/unit").glob("*.py")) if re.search("importers|_models import", p.read_text())),
    *(
        ROOT / "tests/e2e" / f"test_{name}.py"
        for name in ("collection", "optimize_formats", "real_caffe", "real_darknet", "real_formats", "real_tensorflow")
    ),
]
"""Tests that load models."""
_HOW = "load.json"


@dataclass(frozen=True)
class Recorded:
    """A model of a format: its files by name, and what else ``importers.load`` is given.

    ``weights`` is the file that is named as such; a model of more files than the main one and this lies in a folder.
    """

    format: str
    main: str
    files: Mapping[str, bytes]
    weights: str | None = None
    shapes: Mapping[str, Any] | None = None
    inputs: Sequence[str] | None = None
    outputs: Sequence[str] | None = None

    def load(self) -> Graph:
        """The graph; loaded from memory if it consists of a main file and weights only."""
        how = (self.shapes, self.inputs, self.outputs)
        if self.files.keys() <= {self.main, self.weights}:
            weights = self.files[self.weights] if self.weights else None
            return importers.load(self.files[self.main], *how, weights=weights)
        folder = Path(tempfile.mkdtemp(prefix="tenon-model-"))
        try:
            for name, data in self.files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
            return importers.load(folder / self.main, *how, weights=folder / self.weights if self.weights else None)
        finally:
            shutil.rmtree(folder)

    def pack(self) -> bytes:
        """A reproducible archive of the model."""
        how = {
            "main": self.main,
            "weights": self.weights,
            "shapes": self.shapes,
            "inputs": self.inputs,
            "outputs": self.outputs,
        }
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            for name, data in {_HOW: json.dumps(how).encode(), **self.files}.items():
                archive.writestr(zipfile.ZipInfo(name), data)
        return out.getvalue()


def unpack(path: Path) -> Recorded:
    """A model written by ``pack``; its folder is named after the format."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    how = json.loads(files.pop(_HOW))
    shapes = how["shapes"] and {name: tuple(v) if isinstance(v, list) else v for name, v in how["shapes"].items()}
    return Recorded(path.parent.name, how["main"], files, how["weights"], shapes, how["inputs"], how["outputs"])


# --------------------------------------------------------------------------------------- recording
@contextmanager
def recording(corpus: Path) -> Iterator[None]:
    """Record every small model loaded by an importer in ``corpus``."""
    with ExitStack() as stack:
        for name, format in FORMATS.items():
            module = format.importer()
            stack.enter_context(patch.object(module, "load", _recorder(name, module.load, corpus)))
        yield


def _recorder(format: str, load: Callable[..., Graph], corpus: Path) -> Callable[..., Graph]:
    def recorded(file: ModelFile, *how: Any) -> Graph:
        graph = load(file, *how)
        began = time.monotonic()
        load(file, *how)
        if time.monotonic() - began < SLOWEST:
            _store(format, file, how, corpus)
        return graph

    return recorded


def _store(format: str, file: ModelFile, how: Sequence[Any], corpus: Path) -> None:
    shapes, inputs, outputs = how
    model = Recorded(format, file.name, _files(file), None, shapes or None, inputs, outputs)
    if file.weights is not None and not file.weights.is_folder:
        name = file.weights.name if file.weights.name not in model.files else f"weights-{file.weights.name}"
        model = replace(model, weights=name, files={**model.files, name: file.weights.data})
    if sum(map(len, model.files.values())) <= LARGEST:
        packed = model.pack()
        path = corpus / format / f"{hashlib.sha256(packed).hexdigest()[:16]}.zip"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(packed)


def _files(file: ModelFile) -> dict[str, bytes]:
    """The file, and all other files in its folder if that belongs to one model."""
    files = {file.name: file.data}
    beside = [p for p in file.folder.rglob("*") if p.is_file()] if file.folder is not None else []
    if file.folder is None or len(beside) > MOST_FILES or sum(p.stat().st_size for p in beside) > LARGEST:
        return files
    return {str(p.relative_to(file.folder)): p.read_bytes() for p in sorted(beside)} | files


def gather(corpus: Path) -> None:
    """Record the models of the tests and of ONNX's conformance suite.  Raises CalledProcessError."""
    environment = child_environment(PYTHONPATH=f"{ROOT}/src:{ROOT}/tests")
    options = ["-q", "--continue-on-collection-errors", "-p", "no:cacheprovider", "--record-models"]
    command = [sys.executable, "-m", "pytest", *options, str(corpus.resolve())]
    subprocess.run([*command, *map(str, SOURCES)], cwd=ROOT, env=environment, check=False)
    from conformance.cases import cases

    with recording(corpus):
        for case in cases():
            with suppress(ModelError):
                importers.load(case.model)


def models(corpus: Path, format: str) -> list[Recorded]:
    """The recorded models of a format that can be loaded, ordered by hash."""
    return [model for path in sorted((corpus / format).glob("*.zip")) if (model := _quickest(unpack(path)))]


def _quickest(model: Recorded) -> Recorded | None:
    """The model loaded from memory, if it consists of a file and weights only, else from a folder; None if loading
    fails."""
    beside = [name for name in model.files if name != model.main]
    for weights in dict.fromkeys((model.weights, *beside[: len(beside) == 1])):
        files = {name: model.files[name] for name in (model.main, weights) if name}
        with suppress(ModelError, InputError):
            in_memory = replace(model, files=files, weights=weights)
            if not in_memory.load().incomplete:
                return in_memory
    with suppress(ModelError, InputError):
        model.load()
        return model
    return None


@cache
def words(format: str) -> tuple[str, ...]:
    """The fuzzing dictionary of a format: the names in the source of its importer."""
    place = Path(str(import_module(FORMATS[format].module).__file__))
    trees = [ast.parse(m.read_text()) for m in (place.parent.glob("*.py") if place.stem == "load" else [place])]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    prose = {node.value for node in nodes if isinstance(node, ast.Expr)}
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and node not in prose]
    names = {word for text in texts if isinstance(text, str) for word in text.split()}
    return tuple(sorted(word for word in names if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_:.]+", word)))
