"""Check what a caller gives to run, and copy it to where the network reads it."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from tenon.bundle.manifest import Tensor
from tenon.errors import InputError
from tenon.ir.dtype import Array, DType
from tenon.ir.strings import StringError, decoded, encoded

Feeds = Mapping[str, Any] | Array


def views(region: Array, tensors: tuple[Tensor, ...]) -> dict[str, Array]:
    """The tensors of a region of bytes as arrays that share its memory."""
    return {t.name: region[t.offset : t.offset + t.bytes].view(DType(t.dtype).numpy).reshape(t.shape) for t in tensors}


def cropped(outputs: Mapping[str, Array], tensors: tuple[Tensor, ...]) -> dict[str, Array]:
    """The outputs, each cut to the extent that another output holds where it depends on data."""
    found = dict(outputs)
    for tensor in tensors:
        if tensor.extent is not None:
            axis, name = tensor.extent
            count = min(int(outputs[name].item()), tensor.shape[axis])
            found[tensor.name] = outputs[tensor.name][(slice(None),) * axis + (slice(0, count),)]
        if tensor.string:
            found[tensor.name] = decoded(found[tensor.name])
    return found


def strings(tensors: tuple[Tensor, ...]) -> frozenset[str]:
    """The names of those that hold strings."""
    return frozenset(t.name for t in tensors if t.string)


def fill(inputs: Mapping[str, Array], feeds: Feeds, texts: Set[str] = frozenset()) -> None:
    """Copy every feed into the input of its name; all is checked before anything is written.

    ``feeds`` maps names to arrays, or is one array for a network with one input.  The inputs in ``texts`` take arrays
    of strings, or of their bytes.  Raises InputError for unknown or missing names, for a wrong shape or dtype
    (nothing is cast silently) and for strings without room.
    """
    given = _by_name(inputs, feeds)
    told = {name: _bytes(name, value, inputs[name]) if name in texts else value for name, value in given.items()}
    checked = {name: _checked(name, value, inputs[name]) for name, value in told.items()}
    for name, value in checked.items():
        inputs[name][...] = value


def _by_name(inputs: Mapping[str, Array], feeds: Feeds) -> Mapping[str, Any]:
    if not isinstance(feeds, Mapping):
        if len(inputs) != 1:
            raise InputError(f"give a dict of arrays: this network has inputs {_list(inputs)}")
        return {next(iter(inputs)): feeds}
    if unknown := [name for name in feeds if name not in inputs]:
        raise InputError(f"no input named '{unknown[0]}': this network's inputs are {_list(inputs)}")
    if missing := [name for name in inputs if name not in feeds]:
        raise InputError(f"input '{missing[0]}' is missing: this network's inputs are {_list(inputs)}")
    return feeds


def _bytes(name: str, value: Any, wanted: Array) -> Any:
    """The bytes of an array of strings; what is none is left to be checked."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "OSU":
        return value
    if value.shape != wanted.shape[:-1]:
        raise InputError(
            f"input '{name}' has shape {_shape(value)} and the network takes strings of {_shape(wanted[..., 0])}"
        )
    try:
        return encoded(value, wanted.shape[-1])
    except StringError as error:
        raise InputError(
            f"input '{name}': {error}: compile the model with --shape {name}.width=N for longer strings"
        ) from None


def _checked(name: str, value: Any, wanted: Array) -> Array:
    if not isinstance(value, np.ndarray):
        raise InputError(f"input '{name}' is a {type(value).__name__}: give a NumPy array of {_describe(wanted)}")
    if value.dtype != wanted.dtype:
        raise InputError(
            f"input '{name}' has dtype {value.dtype} and the network takes {wanted.dtype}: convert it with "
            f".astype(np.{wanted.dtype.name})"
        )
    if value.shape != wanted.shape:
        raise InputError(
            f"input '{name}' has shape {_shape(value)} and the network takes {_shape(wanted)}"
            + (": same number of elements, so .reshape may be meant" if value.size == wanted.size else "")
        )
    return value


def _list(inputs: Mapping[str, Array]) -> str:
    return ", ".join(f"'{name}' ({_describe(array)})" for name, array in inputs.items()) or "none"


def _describe(array: Array) -> str:
    return f"{array.dtype}{_shape(array)}"


def _shape(array: Array) -> str:
    return "[" + ",".join(map(str, array.shape)) + "]"
