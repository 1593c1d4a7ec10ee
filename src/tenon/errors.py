"""All errors that users can encounter, as one tree.

    TenonError
    ├── ModelError            the model file: broken, unsupported, or not what it claims to be
    │   ├── FormatError           cannot be parsed (truncated, corrupt, unknown format)
    │   ├── UnsupportedError      valid, but holds operators or attributes that Tenon lacks; lists them all
    │   └── ShapeError            inconsistent shapes or types, or unbound dimensions
    │       └── UnknownError          a shape that depends on values computed at run time
    ├── InputError            an invalid argument of a function or of the command line
    │   └── LengthError           a text of more tokens than the network takes
    ├── BundleError           a bundle on disk that is damaged, foreign or made for another machine
    ├── ToolchainError        the C compiler, or what runs programs, is missing or failed
    │   └── DeviceError           a device does not answer, cannot keep a file, or fails to run its part of a network
    ├── ResourceError         the operating system failed: memory, disk space, permission
    └── InternalError         a bug in Tenon: verification of a graph or proof of a kernel failed

A message states what is wrong, where (file and layer), why, and a remedy.  The command line prints the message and
exits with status 2; ``-v`` adds the traceback.

Problems that only cost time (an unusable cache or tuning table) are a TenonWarning.
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
    """Base class of all errors."""


class ModelError(TenonError):
    """The model cannot be used as it is.  ``needs`` names the inputs whose values must be known when compiling."""

    needs: tuple[str, ...] = ()


class FormatError(ModelError):
    """The file is not a readable model."""


class Problem(NamedTuple):
    """A problem of a model: location, description, remedy, and the input types of the node."""

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


def prefixed(error: TenonError, where: str) -> TenonError:
    """The same error, whose message begins with where it occurred."""
    named = type(error).__new__(type(error))
    vars(named).update(vars(error))
    named.args = (f"{where}: {error}",)
    return named


MAX_LAYERS_NAMED = 3
"""Layers listed for a problem that occurs in more of them."""


def _by_cause(problems: Sequence[Problem]) -> list[str]:
    """One line per problem; problems that occur in many layers are merged."""
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
    """Inconsistent shapes or types, or a symbolic dimension without a value."""


class UnknownError(ShapeError):
    """A shape depends on ``value``, which is computed at run time."""

    def __init__(self, message: str, value: object) -> None:
        super().__init__(message)
        self.value = value


class InputError(TenonError):
    """An argument of a call or of the command line is wrong."""


class LengthError(InputError):
    """A text has more tokens than the network takes, or its caches have room for."""


class BundleError(TenonError):
    """A bundle cannot be opened."""


class ToolchainError(TenonError):
    """The C compiler, or what runs programs, is missing or failed."""


class DeviceError(ToolchainError):
    """A device does not answer, cannot keep a file, or fails to run its part of a network."""


class ResourceError(TenonError):
    """The operating system lacks a resource or denies access."""


class InternalError(TenonError):
    """A bug in Tenon; please report it with the model."""


class TenonWarning(UserWarning):
    """A cache, a tuning table or a device could not be used; something else is, and results are those of it."""


def warn(message: str) -> None:
    """Issue a TenonWarning; by default Python shows identical warnings once per process."""
    warnings.warn(message, TenonWarning, stacklevel=3)


def guarded(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: convert system errors, ``SYSTEM_ERRORS``, to ResourceError.

    BrokenPipeError is left to the caller.
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
    """The message of a system error, with a remedy."""
    match error:
        case OSError(filename=str() | bytes() as name, strerror=str() as why):
            return f"{os.fsencode(name).decode('utf-8', 'backslashreplace')}: {why}"
        case OSError():
            return f"system error: {error.strerror or error}"
        case MemoryError():
            return "not enough memory for this model: free some, or use a smaller model or input shape"
        case RecursionError():
            return "the model is nested too deep"
        case UnicodeError():
            return f"a name cannot be written as text: {error}"
        case _:
            return str(error)
