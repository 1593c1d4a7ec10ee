"""Shared libraries by content: load one safely, whatever happens to its file later."""

from __future__ import annotations

import ctypes
import os
import threading

from tenon.bundle.checksum import sha256
from tenon.errors import BundleError

_loaded: dict[str, ctypes.CDLL] = {}
_lock = threading.Lock()


def load_library(content: bytes, origin: str | os.PathLike[str], digest: str = "") -> ctypes.CDLL:
    """The library with these bytes, once per process.

    dlopen recognises libraries by path and would hand out the old one after a bundle was written again, so each
    content is loaded from a file of its own.  ``origin`` is for messages; ``digest`` is the content's, if known.
    """
    digest = digest or sha256(content)
    with _lock:
        if digest not in _loaded:
            try:
                _loaded[digest] = _from_memory(content, digest) or _from_disk(content, digest)
            except OSError as error:
                raise BundleError(f"cannot load {origin}: {error}") from error
        return _loaded[digest]


def _from_memory(content: bytes, digest: str) -> ctypes.CDLL | None:
    """None where the system has no files in memory, or runs no code from them.

    The file stays open: the next one would have its number, and so its path.
    """
    if not hasattr(os, "memfd_create"):
        return None
    try:
        handle = os.memfd_create(f"tenon-{digest[:16]}")
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(content)
        return ctypes.CDLL(f"/proc/self/fd/{handle}")
    except OSError:
        return None


def _from_disk(content: bytes, digest: str) -> ctypes.CDLL:
    """From a file that is gone again at once."""
    import tempfile

    handle, path = tempfile.mkstemp(prefix=f"tenon-{digest[:16]}-", suffix=".so")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        return ctypes.CDLL(path)
    finally:
        os.unlink(path)
