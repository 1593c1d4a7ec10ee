"""A content-hashed store of what compilers made.

Each entry is one file: a SHA-256 digest and the bytes it is of, so a torn or damaged entry is a miss, never a
wrong answer; what another user owns or may write is a miss, too.  Entries appear by rename, so any number of
processes may share a cache.  A cache that cannot be written (a full disk, a folder of another user) is a
TenonWarning: nothing is kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tenon.errors import InputError, warn
from tenon.private_files import read_private, write_private

_DIGEST = hashlib.sha256().digest_size
LARGEST = 64 << 20
"""Bytes.  Anything larger (an executable with big weights inside) is cheaper to link again than to keep."""


def key(parts: Iterable[str | bytes]) -> str:
    """A name for everything that a result depends on; parts are length-prefixed, so they cannot run together."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


class Cache:
    """Bytes by key, under ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, name: str) -> bytes | None:
        entry = read_private(self._path(name))
        if entry is None:
            return None
        digest, content = entry[:_DIGEST], entry[_DIGEST:]
        return content if hashlib.sha256(content).digest() == digest else None

    def put(self, name: str, content: bytes) -> None:
        if len(content) > LARGEST:
            return
        try:
            write_private(self._path(name), hashlib.sha256(content).digest() + content)
        except InputError as error:
            warn_unwritable(self.folder, error.__cause__)

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / name[2:]


def warn_unwritable(folder: Path, error: object) -> None:
    """Say that nothing is kept in a cache."""
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    warn(f"the cache {folder} cannot be written ({why}), so nothing is kept there: make room, or set TENON_CACHE")
