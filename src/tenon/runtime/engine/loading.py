"""Load shared libraries by content, independent of later changes of their files."""

from __future__ import annotations

import ctypes
import os

from tenon.errors import BundleError
from tenon.runtime.engine.locks import Locked


class _Libraries(Locked):
    """The loaded libraries of this process, by content."""

    def __init__(self) -> None:
        super().__init__()
        self._loaded: dict[bytes, ctypes.CDLL] = {}

    def get(self, content: bytes, origin: str | os.PathLike[str]) -> ctypes.CDLL:
        with self._lock:
            if content not in self._loaded:
                try:
                    quick = None if self._loaded else _from_memory(content)
                    self._loaded[content] = quick or _from_disk(content)
                except OSError as error:
                    raise BundleError(f"cannot load {origin}: {error}") from error
            return self._loaded[content]


_libraries = _Libraries()


def load_library(content: bytes, origin: str | os.PathLike[str]) -> ctypes.CDLL:
    """The library with these bytes, once per process.

    dlopen identifies libraries by path and would return the old one after a bundle was rewritten, so each content is
    loaded from a file of its own.  ``origin`` is for messages.
    """
    return _libraries.get(content, origin)


def _from_memory(content: bytes) -> ctypes.CDLL | None:
    """Load from an in-memory file, which is fastest; only for the first library: the file must stay open, because a
    reused descriptor number would give the same path.

    None if the system has no in-memory files, or does not execute code from them.
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
    """Load from a temporary file."""
    from tenon.atomic_write import scratch

    with scratch() as folder:
        (folder / "library.so").write_bytes(content)
        return ctypes.CDLL(str(folder / "library.so"))
