"""Inputs that the user fixes to values: they are constants from the start of an import."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tenon.errors import InputError, ShapeError
from tenon.network.graph.arrays import as_array
from tenon.network.graph.graph import Array
from tenon.network.graph.types import TensorType

Values = Mapping[str, Any]
"""Values of fixed inputs by name: a number, nested lists of numbers, or an array."""

ANY_RANK = "..."
"""The only dimension of an input of unknown rank."""


def of_bindings(values: Values | Sequence[Values] | None, count: int) -> list[Values | None]:
    """The values for each of ``count`` bindings: the same for all, or a list with those of each.  Raises InputError for
    a list of another length."""
    if values is None or isinstance(values, Mapping):
        return [values] * count
    if len(values) != count:
        raise InputError(f"there are values for {len(values)} bindings and shapes for {count}: give both for each")
    return list(values)


def arrays(values: Values | None) -> dict[str, Array]:
    """The values as arrays of numbers.  Raises InputError for anything else."""
    result: dict[str, Array] = {}
    for name, given in (values or {}).items():
        array = as_array(name, given)
        if array.dtype.kind not in "biuf" or not isinstance(name, str):
            raise InputError(f"--value {name}: {str(given)[:80]!r} is not a number or an array of numbers")
        result[name] = array
    return result


def shape_for(name: str, given: Array, type: TensorType) -> tuple[int, ...]:
    """The shape of an input of ``type`` that is fixed to ``given``.

    A number is broadcast to the input, open dimensions become 1; a list sets the length of a single open dimension;
    other arrays have the input's shape.  Raises ShapeError.
    """
    shape = type.shape
    if shape == (ANY_RANK,):
        return tuple(map(int, given.shape))
    if given.ndim == 0:
        return tuple(d if isinstance(d, int) else 1 for d in shape)
    open_axes = [i for i, d in enumerate(shape) if not isinstance(d, int)]
    rest = math.prod(d for d in shape if isinstance(d, int))
    if given.ndim == len(shape):
        chosen = tuple(map(int, given.shape))
    elif given.ndim == 1 and len(open_axes) <= 1 and rest:
        chosen = tuple(d if isinstance(d, int) else given.size // rest for d in shape)
    else:
        raise ShapeError(f"--value {name}: an array of shape {list(given.shape)} for an input {type}")
    fits = all(d == e for d, e in zip(shape, chosen, strict=True) if isinstance(d, int))
    if not fits or math.prod(chosen) != given.size:
        raise ShapeError(f"--value {name}: an array of shape {list(given.shape)} for an input {type}")
    return chosen


def bindings(values: Mapping[str, Array], types: Mapping[str, TensorType]) -> dict[str, Sequence[int]]:
    """The shapes that fixed inputs have, for ``bind_types``.  Raises ShapeError."""
    return {name: shape_for(name, given, types[name]) for name, given in values.items() if name in types}


def data_for(name: str, given: Array, type: TensorType) -> Array:
    """The constant that replaces an input of a bound type.  Raises ShapeError and InputError."""
    shape, dtype = shape_for(name, given, type), type.dtype
    if given.dtype.kind == "f" and not dtype.is_float and not np.array_equal(given, np.floor(given)):
        raise InputError(f"--value {name}: {_shown(given)} are not integers, and the input is {type}")
    with np.errstate(all="ignore"):
        data = given.astype(dtype.numpy)
    if not dtype.is_float and not np.array_equal(data.astype(np.float64), given.astype(np.float64)):
        raise InputError(f"--value {name}: {_shown(given)} does not fit an input {type}")
    return np.asarray(np.broadcast_to(data, shape) if given.ndim == 0 else data.reshape(shape), order="C")


def _shown(given: Array) -> str:
    return str(given.tolist())[:80]


def check_names(values: Iterable[str], inputs: Iterable[str], source: str) -> None:
    """Raise InputError for an unknown input, with the most similar name."""
    known = sorted(set(inputs))
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            have = ", ".join(map(repr, known)) or "none"
            hint = f"; is '{near[0]}' meant?" if near else ""
            raise InputError(f"{source}: --value {name}: no input is called '{name}'{hint} (the model has {have})")


def remedy(inputs: Sequence[str], otherwise: str = "") -> str:
    """The command-line options that make values computed from these inputs constant."""
    return "fix " + " and ".join(f"--value {name}=..." for name in inputs) if inputs else otherwise
