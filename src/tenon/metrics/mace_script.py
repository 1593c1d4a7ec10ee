"""MACE's accuracy scripts: a Python file with a class ``AccuracyValidator``, which reads its samples and counts by
itself (``tools/accuracy_validator.py`` of XiaoMi/mace)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from tenon.errors import InputError
from tenon.ir.graph import Array
from tenon.metrics.registry import load_module

CLASS = "AccuracyValidator"
_METHODS = ("sample_size", "batch_size", "preprocess", "postprocess", "result")


class MaceScript(Protocol):
    """``preprocess`` gives the inputs of samples [start, end) by name, ``postprocess`` takes their outputs."""

    def sample_size(self) -> int: ...

    def batch_size(self) -> int: ...

    def preprocess(self, sample_idx_start: int, sample_idx_end: int) -> Mapping[str, Any]: ...

    def postprocess(self, sample_idx_start: int, sample_idx_end: int, output_map: Mapping[str, Array]) -> None: ...

    def result(self) -> Any: ...


def read_mace_script(name: str) -> MaceScript | None:
    """The validator of FILE.py or FILE.py:AccuracyValidator; None for anything else.

    Raises InputError for a file that is missing, cannot be imported, or whose class lacks a method.
    """
    file, colon, kind = name.rpartition(":")
    path = file if colon and kind == CLASS else name
    if not path.endswith(".py"):
        return None
    try:
        found = getattr(load_module(path), CLASS, None)
    except (ImportError, OSError) as error:
        raise InputError(f"{Path(path)}: cannot be imported: {error}") from None
    if found is None:
        raise InputError(f"{path}: it has no class {CLASS}: name what it has as {path}:NAME")
    if missing := [method for method in _METHODS if not callable(getattr(found, method, None))]:
        raise InputError(f"{path}: {CLASS} has no method '{missing[0]}'")
    return cast(MaceScript, found())
