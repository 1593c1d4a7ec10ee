"""Shared libraries by content: load one safely, whatever happens to its file later."""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
import threading
from pathlib import Path

from tenon.errors import BundleError

_loaded: dict[str, ctypes.CDLL] = {}
_lock = threading.Lock()


def load_library(content: bytes, origin: Path) -> ctypes.CDLL:
    """The library with these bytes, once per process.

    dlopen recognises libraries by path and would hand out the old one after a bundle was written again, so each
    content is loaded from a file of its own that is gone again at once.  ``origin`` is for messages.
    """
    digest = hashlib.sha256(content).hexdigest()
    with _lock:
        if digest not in _loaded:
            _loaded[digest] = _load(content, digest, origin)
        return _loaded[digest]


def _load(content: bytes, digest: str, origin: Path) -> ctypes.CDLL:
    try:
        handle, temporary = tempfile.mkstemp(prefix=f"tenon-{digest[:16]}-", suffix=".so")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            return ctypes.CDLL(temporary)
        finally:
            Path(temporary).unlink()
    except OSError as error:
        raise BundleError(f"cannot load {origin}: {error}") from error
