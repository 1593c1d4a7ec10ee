"""Every error a user can meet, in one tree.

    TenonError
    ├── ModelError            the model file: broken, unsupported, or not what it claims to be
    │   ├── FormatError           cannot be parsed (truncated, corrupt, unknown format)
    │   ├── UnsupportedError      valid, but holds operators or attributes that Tenon lacks; lists them all
    │   └── ShapeError            shapes or types that contradict each other, or dimensions left unbound
    │       └── UnknownError          a shape that depends on what is computed at run time
    ├── InputError            what was given to run, compile or the command line
    ├── BundleError           a bundle on disk that is damaged, foreign or made for another machine
    ├── ToolchainError        no compiler, or a compiler that refused
    ├── ResourceError         what the system refused: memory, disk space, permission
    └── InternalError         a bug in Tenon: a verifier or a proof refused what a pass or a kernel made

A message says what, where (file and source layer), why, and what to do.  The command line prints the message
alone and exits with status 2; ``-v`` adds the traceback.

What costs time but changes no answer (a cache or a tuning table that cannot be used) is a TenonWarning.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class TenonError(Exception):
    """Base of all errors raised on purpose."""


class ModelError(TenonError):
    """The model cannot be used as it is.  ``needs`` names the inputs whose values must be known when compiling."""

    needs: tuple[str, ...] = ()


class FormatError(ModelError):
    """The file is not a readable model."""


class Problem(NamedTuple):
    """One thing wrong with a model: where it is, what it is, the remedy, and the types of what the node there reads."""

    where: str
    what: str
    remedy: str = ""
    types: str = ""

    def __str__(self) -> str:
        location = f"{self.where} of {self.types}" if self.types else self.where
        return f"{location}: {self.what}" + (f" ({self.remedy})" if self.remedy else "")


class UnsupportedError(ModelError):
    """Operators, attributes or types that cannot be compiled.  ``problems`` lists all of them."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        lines = _by_cause(self.problems)
        head = f"{source}: {len(lines)} problem{'s' if len(lines) > 1 else ''} in this model"
        super().__init__("\n".join([head, *(f"  - {line}" for line in lines)]))


MAX_LAYERS_NAMED = 3
"""Places that are named of a cause that is met at many."""


def _by_cause(problems: Sequence[Problem]) -> list[str]:
    """A line for each thing that is wrong, however many layers meet it."""
    by_cause: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        by_cause.setdefault((problem.what, problem.remedy), []).append(problem)
    lines = []
    for (what, remedy), alike in by_cause.items():
        if len(alike) <= MAX_LAYERS_NAMED:
            lines += [str(problem) for problem in alike]
            continue
        named = ", ".join(problem.where for problem in alike[:MAX_LAYERS_NAMED])
        lines.append(str(Problem(f"{named} and {len(alike) - MAX_LAYERS_NAMED} more", what, remedy)))
    return lines


class ShapeError(ModelError):
    """Shapes or types do not fit together, or a symbolic dimension has no value."""


class UnknownError(ShapeError):
    """A shape depends on ``value``, which is computed at run time."""

    def __init__(self, message: str, value: object) -> None:
        super().__init__(message)
        self.value = value


class InputError(TenonError):
    """An argument of a call or of the command line is wrong."""


class BundleError(TenonError):
    """A bundle cannot be opened."""


class ToolchainError(TenonError):
    """The C compiler is missing or failed."""


class ResourceError(TenonError):
    """The system lacks something, or does not allow it."""


class InternalError(TenonError):
    """Tenon broke one of its own rules; please report it with the model."""


class TenonWarning(UserWarning):
    """Something could not be used that only saves time: a cache, or a table of measurements."""


def warn(message: str) -> None:
    """A TenonWarning; Python shows an equal one once per process unless told otherwise."""
    warnings.warn(message, TenonWarning, stacklevel=3)


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """A public function whose errors of the system, ``SYSTEM_ERRORS``, become ResourceError.

    A pipe that nobody reads any more is left for the caller to handle.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BrokenPipeError:
            raise
        except SYSTEM_ERRORS as error:
            raise ResourceError(explained(error)) from error

    return call


SYSTEM_ERRORS = (OSError, MemoryError, RecursionError, UnicodeError)


def explained(error: BaseException) -> str:
    """What an error of the system says, and what to do."""
    match error:
        case OSError(filename=str() | bytes() as name, strerror=str() as why):
            return f"{os.fsencode(name).decode('utf-8', 'backslashreplace')}: {why}"
        case OSError():
            return f"the system refused: {error.strerror or error}"
        case MemoryError():
            return "there is not enough memory for this model: free some, or use a smaller model or input shape"
        case RecursionError():
            return "the model is nested too deep"
        case UnicodeError():
            return f"a name cannot be written as text: {error}"
        case _:
            return str(error)
