"""Conversion of arguments to arrays: NumPy arrays, arrays of other libraries, and lists of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array

_ON_HOST = (1, 3)
"""The kinds of devices of DLPack whose memory the processor reads: itself, and memory pinned for CUDA."""

_REMEDY = "give a NumPy array, or an object that NumPy can convert: DLPack, __array__, a buffer, numbers in lists"


def as_array(name: str, value: Any) -> Array:
    """``value`` as an array, without a copy where that is possible.

    Takes NumPy arrays, objects with ``__dlpack__`` in the memory of the CPU (PyTorch, JAX), with ``__array__`` or a
    buffer, and lists of numbers or strings.  Raises InputError for input ``name`` if it is none of these.
    """
    if isinstance(value, np.ndarray):
        return value
    if (device := getattr(value, "__dlpack_device__", None)) is not None and device()[0] not in _ON_HOST:
        raise InputError(
            f"input '{name}' is a {type(value).__name__} on a GPU: give it to run_on_device (of a bundle for cuda), or "
            "copy it to the memory of the processor"
        )
    try:
        array = _exchanged(value)
    except (TypeError, ValueError, BufferError, RuntimeError, NotImplementedError) as error:
        raise InputError(
            f"input '{name}' is a {type(value).__name__} that cannot be read ({error}): {_REMEDY}"
        ) from None
    if array.dtype == object:
        raise InputError(f"input '{name}' is a {type(value).__name__}: {_REMEDY}")
    return array


def _exchanged(value: Any) -> Array:
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (TypeError, ValueError, BufferError, RuntimeError):
            if not hasattr(value, "__array__"):
                raise
    return np.asarray(value)


def fitted(array: Array, value: Any, dtype: np.dtype[Any]) -> Array:
    """``array`` converted to ``dtype`` if ``value`` is a list of untyped numbers and the conversion only rounds; else
    ``array`` unchanged."""
    if not isinstance(value, list | tuple | bool | int | float) or array.dtype == dtype:
        return array
    if array.dtype.kind in "biu" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        inside = not array.size or (int(array.min()) >= limits.min and int(array.max()) <= limits.max)
        return array.astype(dtype) if inside else array
    to_float = array.dtype.kind in "biuf" and dtype.name.startswith(("float", "bfloat"))
    return array.astype(dtype) if to_float or not array.size else array
