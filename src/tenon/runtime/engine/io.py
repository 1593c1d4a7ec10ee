"""Validate feeds and copy them to the network's inputs; views of inputs and outputs."""

from __future__ import annotations

from collections.abc import Container, Mapping, Set
from types import MappingProxyType
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.arrays import as_array, fitted
from tenon.network.graph.dtype import Array, DType
from tenon.network.graph.strings import StringError, decoded, encoded
from tenon.runtime.bundle.manifest import BundleTensor

Feeds = Mapping[str, Any] | Any
"""Arrays, or objects that ``graph.arrays`` converts, by input name; or a single one for the only input."""

Given = Mapping[str, tuple[Array, Any]]
"""Every feed by input name, as an array and as the original object."""


def views(region: Array, tensors: tuple[BundleTensor, ...]) -> dict[str, Array]:
    """Views of a byte region as the given tensors."""
    return {t.name: region[t.offset : t.offset + t.bytes].view(DType(t.dtype).numpy).reshape(t.shape) for t in tensors}


def valid(count: Array, most: int) -> int:
    """The valid entries along an axis of ``most``, of which ``count`` are said to be valid."""
    return min(max(int(count.item()), 0), most)


def cropped(
    outputs: Mapping[str, Array], inputs: Mapping[str, Array], tensors: tuple[BundleTensor, ...]
) -> dict[str, Array]:
    """The outputs, cropped to their valid extents, which ``inputs`` or outputs hold, and with strings decoded."""
    results, values = dict(outputs), {**inputs, **outputs}
    for tensor in tensors:
        if tensor.extents:
            counts = list(tensor.shape)
            for axis, name in tensor.extents:
                counts[axis] = valid(values[name], counts[axis])
            results[tensor.name] = outputs[tensor.name][tuple(slice(0, n) for n in counts)]
        if tensor.string:
            results[tensor.name] = decoded(results[tensor.name])
    return results


def strings(tensors: tuple[BundleTensor, ...]) -> frozenset[str]:
    """The names of those that hold strings."""
    return frozenset(t.name for t in tensors if t.string)


def named(inputs: Mapping[str, Array], feeds: Feeds, optional: Container[str] = ()) -> Given:
    """The feeds by name; those of ``optional`` (sizes, states) need not be given.  Raises InputError for unknown or
    missing names, and for objects that are not arrays."""
    needed = {name: array for name, array in inputs.items() if name not in optional}
    if not isinstance(feeds, Mapping):
        if len(needed) != 1:
            raise InputError(f"give a dict of arrays: this network has inputs {_list(needed)}")
        feeds = {next(iter(needed)): feeds}
    if unknown := [name for name in feeds if name not in inputs]:
        raise InputError(f"no input named '{unknown[0]}': this network's inputs are {_list(needed)}")
    if missing := [name for name in needed if name not in feeds]:
        raise InputError(f"input '{missing[0]}' is missing: this network's inputs are {_list(needed)}")
    return {name: (as_array(name, value), value) for name, value in feeds.items()}


def fill_plain(inputs: Mapping[str, Array], feeds: Feeds, states: Set[str] = frozenset()) -> bool:
    """Copy the feeds if they are a dict of NumPy arrays of the inputs' shapes and dtypes, which small networks run on
    in less time than ``named`` and ``fill`` take; else nothing is written, and the result is False.

    Either all ``inputs`` or all but the ``states`` are fed.  Of several arrays, none is a view: arrays that own their
    memory do not overlap the inputs.
    """
    if type(feeds) is not dict or len(feeds) not in (len(inputs), len(inputs) - len(states)):
        return False
    if len(feeds) < len(inputs) and not states.isdisjoint(feeds):
        return False
    several = len(feeds) > 1
    for name, array in feeds.items():
        target = inputs.get(name)
        if type(array) is not np.ndarray or target is None or (several and array.base is not None):
            return False
        if array.dtype != target.dtype or array.shape != target.shape:
            return False
    for name, array in feeds.items():
        inputs[name][...] = array
    return True


def fill(
    inputs: Mapping[str, Array],
    given: Given,
    region: Array,
    texts: Set[str] = frozenset(),
    sizes: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Copy every feed into the input of its name; all is checked before anything is written.

    ``given`` is the result of ``named``, ``region`` the memory of all inputs.  Feeds may be views of it; their values
    before the call are used.  The inputs in ``texts`` take arrays of strings, or of their
    bytes.  ``sizes`` are the sizes of the run, by the names of the inputs that hold them.
    Raises InputError for a wrong shape or dtype (nothing is cast silently) and for strings without room.
    """
    checked = {
        name: _checked(name, array, value, inputs[name], texts)
        for name, (array, value) in given.items()
        if name not in sizes
    }
    for name, array in checked.items() if len(checked) > 1 else ():
        if array is not inputs[name] and np.may_share_memory(array, region):
            checked[name] = array.copy()
    for name, array in checked.items():
        inputs[name][...] = array  # NumPy handles a feed that overlaps its own input
    for name, size in sizes.items():
        inputs[name][...] = size


def _bytes(name: str, value: Array, target: Array) -> Array:
    """The bytes of an array of strings; other arrays are returned unchanged."""
    if value.dtype.kind not in "OSU":
        return value
    if value.shape != target.shape[:-1]:
        raise InputError(
            f"input '{name}' has shape {_shape(value)} and the network takes strings of {_shape(target[..., 0])}"
        )
    try:
        return encoded(value, target.shape[-1])
    except StringError as error:
        raise InputError(
            f"input '{name}': {error}: compile the model with --shape {name}.width=N for longer strings"
        ) from None


def _checked(name: str, array: Array, value: Any, target: Array, texts: Set[str]) -> Array:
    array = _bytes(name, array, target) if name in texts else fitted(array, value, target.dtype)
    if array.dtype != target.dtype:
        raise InputError(
            f"input '{name}' has dtype {array.dtype} and the network takes {target.dtype}: convert it with "
            f".astype(np.{target.dtype.name})"
        )
    if array.shape != target.shape:
        raise InputError(
            f"input '{name}' has shape {_shape(array)} and the network takes {_shape(target)}"
            + (": same number of elements, so .reshape may be meant" if array.size == target.size else "")
        )
    return array


def _list(inputs: Mapping[str, Array]) -> str:
    return ", ".join(f"'{name}' ({_describe(array)})" for name, array in inputs.items()) or "none"


def _describe(array: Array) -> str:
    return f"{array.dtype}{_shape(array)}"


def _shape(array: Array) -> str:
    return "[" + ",".join(map(str, array.shape)) + "]"
