"""Shared libraries by content: load one safely, whatever happens to its file later."""

from __future__ import annotations

import ctypes
import os
from _thread import allocate_lock

from tenon.errors import BundleError

_loaded: dict[bytes, ctypes.CDLL] = {}
_lock = allocate_lock()


def load_library(content: bytes, origin: str | os.PathLike[str]) -> ctypes.CDLL:
    """The library with these bytes, once per process.

    dlopen recognises libraries by path and would hand out the old one after a bundle was written again, so each
    content is loaded from a file of its own.  ``origin`` is for messages.
    """
    with _lock:
        if content not in _loaded:
            try:
                _loaded[content] = (None if _loaded else _from_memory(content)) or _from_disk(content)
            except OSError as error:
                raise BundleError(f"cannot load {origin}: {error}") from error
        return _loaded[content]


def _from_memory(content: bytes) -> ctypes.CDLL | None:
    """The quickest way, for the first one: its file stays open, or another one would get its number and so its path.

    None where the system has no files in memory, or runs no code from them.
    """
    if not hasattr(os, "memfd_create"):
        return None
    try:
        handle = os.memfd_create("tenon")
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(content)
        return ctypes.CDLL(f"/proc/self/fd/{handle}")
    except OSError:
        return None


def _from_disk(content: bytes) -> ctypes.CDLL:
    """From a file that is gone again at once."""
    import tempfile

    handle, path = tempfile.mkstemp(prefix="tenon-", suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        return ctypes.CDLL(path)
    finally:
        os.unlink(path)
