"""The code of users' plug-ins: metrics, MACE's scripts, functions that give samples.  An error in it is one message
that names the file and the line."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from tenon.errors import InputError, TenonError
from tenon.tools.metrics.base import Evaluation, Metric

P = ParamSpec("P")
R = TypeVar("R")


def _of_tenon(file: str) -> bool:
    return file.startswith("<") or Path(file).is_relative_to(Path(__file__).parents[2])


@dataclass(frozen=True)
class PluginCode:
    """The user's name of a plug-in, for messages, and the file of its code ("" if it has none)."""

    name: str
    file: str = ""

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Within it, errors of the plug-in become an InputError; Tenon's own stay what they are."""
        try:
            yield
        except TenonError:
            raise
        except (Exception, SystemExit) as error:
            said = traceback.format_exception_only(error)[-1].strip()
            raise InputError(f"{self.name}: {said}{self._place(error)}: -v shows the traceback") from error

    def _place(self, error: BaseException) -> str:
        """The last line of the plug-in's file that was running, else of any file that is not Tenon's."""
        if isinstance(error, SyntaxError) and error.filename:
            return f" ({Path(error.filename).name}, line {error.lineno})"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _of_tenon(frame.filename)]
        own = [frame for frame in frames if self.file and Path(frame.filename) == Path(self.file)] or frames
        return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""

    def guarded(self, function: Callable[P, R]) -> Callable[P, R]:
        """The function, whose errors name the plug-in."""

        @wraps(function)
        def call(*arguments: P.args, **named: P.kwargs) -> R:
            with self.errors():
                return function(*arguments, **named)

        return call

    def items(self, made: Callable[[], Iterable[R]]) -> Iterator[R]:
        """Items of the iterable that ``made`` returns."""
        with self.errors():
            iterator = iter(made())
        while True:
            with self.errors():
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def number(self, value: Any, what: str) -> float:
        """A result as a number.  Raises InputError if it is none."""
        try:
            return float(value)
        except (TypeError, ValueError):
            raise InputError(f"{self.name}: {what} is {value!r:.60}, not a number") from None

    def evaluation(self, made: Evaluation) -> Evaluation:
        """The evaluation of a plug-in, whose errors name it."""
        dataset = made.dataset
        return replace(
            made,
            metric=lambda: _PluginMetric(self, self.guarded(made.metric)()),
            postprocess=self.guarded(made.postprocess),
            dataset=None if dataset is None else lambda: self.items(dataset),
            preprocess=self.guarded(made.preprocess),
        )


class _PluginMetric:
    """A metric of a plug-in."""

    def __init__(self, code: PluginCode, metric: Metric) -> None:
        self._code, self._metric = code, metric
        self.lower_is_better = bool(getattr(metric, "lower_is_better", False))

    def add(self, prediction: Any, truth: Any) -> None:
        with self._code.errors():
            self._metric.add(prediction, truth)

    def results(self) -> dict[str, float]:
        with self._code.errors():
            values = self._metric.results()
        if not isinstance(values, Mapping) or not values:
            raise InputError(f"{self._code.name}: results() returned {values!r:.60}, not numbers by name")
        return {str(name): self._code.number(value, f"result '{name}'") for name, value in values.items()}


def imported_module(module: str, where: str) -> ModuleType:
    """The module that Python finds by this name, or that is in this .py file; ``where`` names it in messages.  Raises
    InputError if there is none, or it cannot be imported."""
    if module.endswith(".py"):
        return load_module(module, where)
    with PluginCode(where).errors():
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            raise InputError(
                f"{where}: {error}: give MODULE:NAME of a module that Python finds, or FILE.py:NAME"
            ) from None


def load_module(file: str, where: str) -> ModuleType:
    """The module in a Python file; ``where`` names it in messages.  Raises InputError if there is none, or it cannot be
    imported."""
    path = Path(file).resolve()
    if not path.is_file():
        raise InputError(f"{file}: there is no such file")
    name = f"tenon_plugin_{sha256(str(path).encode()).hexdigest()[:16]}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is not a Python module")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        with PluginCode(where, str(path)).errors():
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
