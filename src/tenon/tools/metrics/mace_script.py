"""MACE's accuracy scripts: a Python file with a class ``AccuracyValidator``, which reads its samples and counts by
itself (``tools/accuracy_validator.py`` of XiaoMi/mace)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.tools.metrics.plugin_code import PluginCode, imported_module

CLASS = "AccuracyValidator"
_METHODS = ("sample_size", "batch_size", "preprocess", "postprocess", "result")


class MaceScript(Protocol):
    """``preprocess`` gives the inputs of samples [start, end) by name, ``postprocess`` takes their outputs."""

    def sample_size(self) -> int: ...

    def batch_size(self) -> int: ...

    def preprocess(self, sample_idx_start: int, sample_idx_end: int) -> Mapping[str, Any]: ...

    def postprocess(self, sample_idx_start: int, sample_idx_end: int, output_map: Mapping[str, Array]) -> None: ...

    def result(self) -> Mapping[str, float]: ...


def read_mace_script(name: str) -> MaceScript | None:
    """The validator of FILE.py or FILE.py:AccuracyValidator; None for anything else.

    Raises InputError for a file that is missing, cannot be imported, or whose class lacks a method.
    """
    file, colon, kind = name.rpartition(":")
    path = file if colon and kind == CLASS else name
    if not path.endswith(".py"):
        return None
    module = imported_module(path, path)
    validator = getattr(module, CLASS, None)
    if validator is None:
        raise InputError(f"{path}: it has no class {CLASS}: name what it has as {path}:NAME")
    if missing := [method for method in _METHODS if not callable(getattr(validator, method, None))]:
        raise InputError(f"{path}: {CLASS} has no method '{missing[0]}'")
    code = PluginCode(path, module.__file__ or "")
    return _GuardedScript(code, code.guarded(validator)())


class _GuardedScript:
    """A script whose errors name its file and line, and whose numbers are numbers."""

    def __init__(self, code: PluginCode, script: Any) -> None:
        self._code, self._script = code, script

    def sample_size(self) -> int:
        with self._code.errors():
            return int(self._script.sample_size())

    def batch_size(self) -> int:
        with self._code.errors():
            return int(self._script.batch_size())

    def preprocess(self, sample_idx_start: int, sample_idx_end: int) -> Mapping[str, Any]:
        with self._code.errors():
            given = self._script.preprocess(sample_idx_start, sample_idx_end)
        if not isinstance(given, Mapping):
            raise InputError(f"{self._code.name}: preprocess returned {given!r:.60}, not arrays by input name")
        return given

    def postprocess(self, sample_idx_start: int, sample_idx_end: int, output_map: Mapping[str, Array]) -> None:
        with self._code.errors():
            self._script.postprocess(sample_idx_start, sample_idx_end, output_map)

    def result(self) -> Mapping[str, float]:
        """Results that the script counted, by name: nothing if it only prints."""
        with self._code.errors():
            answer = self._script.result()
        named = answer if isinstance(answer, Mapping) else {} if answer is None else {"result": answer}
        return {str(name): self._code.number(value, f"result '{name}'") for name, value in named.items()}
