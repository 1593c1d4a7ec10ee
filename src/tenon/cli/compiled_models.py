"""Models compiled by earlier commands: a bundle for each model and options, while the model's files are unchanged.

An entry in the folder "compiled" of the cache is a ``.tenon`` file and a JSON file, which holds the state of the files
that the import read, the names that it looked for in vain, and the warnings that it issued.  Entries appear by rename,
so any number of processes may share a cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tenon.errors import InputError, TenonWarning, warn
from tenon.formats.wire.stored_files import known_key
from tenon.input_file import Dependencies, dependencies, names_in
from tenon.machine.targets.host_cpu import flags
from tenon.machine.targets.host_cpu import model as processor_model
from tenon.options import Options, plugins
from tenon.private_files import is_private_file, read_private, write_private
from tenon.runtime.bundle.container import container_pieces, parts_of

if TYPE_CHECKING:
    from tenon.runtime.bundle import Bundle

LARGEST = 8 << 30
"""Bytes of the largest bundle that is kept; the disk must have room for another one as large behind it."""

BUDGET = 8 << 30
"""Bytes of all bundles; the ones used longest ago are removed first."""

_FRESH = 2_000_000_000
"""Nanoseconds.  A file may change again without a new time of modification soon after the last change, so such files
are compared by content."""


@dataclass
class CompiledModel:
    """The entry of a model with options; ``base`` is its path without suffix, None where nothing may be kept.

    ``assumed`` are the batch dimensions that are 1 because nothing bound them (``Program.assumed``).
    """

    base: Path | None
    assumed: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    dependencies: Dependencies | None = None

    @classmethod
    def of(cls, model: str, weights: str | None, options: Options, *more: object) -> CompiledModel:
        """The entry of a model and its second file; ``more`` is whatever else the bundle depends on.

        Nothing is kept of models at addresses, with --verify, with a key, and with plug-ins, whose code may depend on
        anything.
        """
        address = "://" in model or "://" in (weights or "")
        if address or options.verify or plugins() or _has_key():
            return cls(None)
        return cls(options.cache / "compiled" / _key(model, weights, options, more))

    @property
    def bundle(self) -> Path | None:
        """The bundle of an earlier command, where it is still that of the model; issues the warnings of its import."""
        if self.base is None:
            return None
        path, record = self.base.with_suffix(".tenon"), _read(self.base.with_suffix(".json"))
        if record is None or not is_private_file(path) or not _unchanged(record):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # when it was last used
        self.assumed = tuple((name, dim) for name, dim in record["assumed"])
        for text in record["warnings"]:
            warn(text)
        return path

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Collect what the compilation inside depends on; its warnings are issued afterwards."""
        with dependencies() as self.dependencies, warnings.catch_warnings(record=True) as issued:
            warnings.simplefilter("always", TenonWarning)
            try:
                yield
            finally:
                self.warnings = tuple(str(w.message) for w in issued if issubclass(w.category, TenonWarning))
        for warning in issued:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)

    def keep(self, bundle: Bundle) -> Path | None:
        """Keep a bundle that was made inside ``compiling``; None where that is not possible.

        A cache that cannot be written is a TenonWarning.
        """
        files = self.dependencies
        if self.base is None or files is None or files.private or bundle.interface.memory.constant > LARGEST:
            return None
        record: dict[str, Any] = {
            "files": {path: _state(path) for path in sorted(files.read)},
            "absent": sorted(files.absent),
            "listed": [[folder, pattern, names] for (folder, pattern), names in sorted(files.listed.items())],
            "warnings": self.warnings,
            "assumed": bundle.program.assumed,
            "written": time.time_ns(),
        }
        path = self.base.with_suffix(".tenon")
        try:
            write_private(path, *container_pieces(parts_of({bundle.target.name: bundle.loaded_files()})))
            write_private(self.base.with_suffix(".json"), json.dumps(record).encode())
        except (InputError, OSError) as error:
            cause = error.__cause__ if isinstance(error, InputError) else error
            why = cause.strerror if isinstance(cause, OSError) and cause.strerror else error
            warn(
                f"the cache {self.base.parent} cannot be written ({why}), so the compiled model is not kept there: "
                "make room, or set TENON_CACHE"
            )
            return None
        _shrink(self.base.parent)
        return path


def _has_key() -> bool:
    """Whether encrypted files can be read here: what is made of them is not kept in plain form."""
    try:
        return known_key() is not None
    except InputError:
        return True


# ------------------------------------------------------------------------------------------------- keys
def _key(model: str, weights: str | None, options: Options, more: Sequence[object]) -> str:
    """A digest of what the bundle depends on besides the contents of the model's files."""
    from dataclasses import fields

    where = [os.path.abspath(path) if path else "" for path in (model, weights)]
    chosen = {f.name: repr(getattr(options, f.name)) for f in fields(options) if f.name != "cache"}
    here = [processor_model(), sorted(flags()), sys.version, _sources(), _compiler(options.compiler)]
    parts = [where, chosen, repr(more), _status(str(options.tuning)), here]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]


def _compiler(name: str | None) -> object:
    """The file of the compiler, and its state."""
    from importlib.util import find_spec
    from shutil import which

    if name is not None:
        return [(word, _status(which(word) or word)) for word in name.split()]
    zig = find_spec("ziglang")
    if zig is None:  # as ``toolchain.compiler.find``
        return [(word, _status(which(word) or word)) for word in ("gcc", "clang")]
    return zig.origin and (zig.origin, _status(os.path.join(os.path.dirname(zig.origin), "zig")))


@lru_cache(maxsize=1)
def _sources() -> str:
    """A digest of the names, sizes and times of Tenon's own files, and of NumPy's version."""
    import numpy as np

    digest = hashlib.sha256(np.__version__.encode())
    for root, folders, names in os.walk(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
        folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
        for name in sorted(names):
            digest.update(f"{root}/{name} {_status(os.path.join(root, name))}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _status(path: str) -> list[int]:
    """The size and the time of modification (ns) of a file; empty if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


# ---------------------------------------------------------------------------------------------- records
def _state(path: str) -> list[int | str]:
    return [*_status(path), _digest(path)]


def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""


def _read(path: Path) -> dict[str, Any] | None:
    content = read_private(path)
    try:
        return None if content is None else cast("dict[str, Any]", json.loads(content))
    except ValueError:
        return None


def _unchanged(record: dict[str, Any]) -> bool:
    """Whether the model's files are those that were compiled."""
    return (
        all(_same(path, state, record["written"]) for path, state in record["files"].items())
        and not any(os.path.isfile(path) for path in record["absent"])
        and all(names_in(folder, pattern) == names for folder, pattern, names in record["listed"])
    )


def _same(path: str, state: list[Any], written: int) -> bool:
    status = _status(path)
    if status == state[:2] and status[1] < written - _FRESH:
        return True
    return status[:1] == state[:1] and _digest(path) == state[2]


def _shrink(folder: Path) -> None:
    """Remove the bundles used longest ago until all take at most ``BUDGET`` bytes."""
    with contextlib.suppress(OSError):
        entries = sorted((e.stat().st_mtime, e.stat().st_size, e.path) for e in os.scandir(folder) if e.is_file())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= BUDGET:
                return
            if path.endswith(".tenon"):
                os.unlink(path)
                total -= size
