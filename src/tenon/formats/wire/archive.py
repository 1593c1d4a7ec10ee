"""Parts of a zip archive, read within bounds."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

from tenon.errors import FormatError

SIGNATURE = b"PK\x03\x04"
MAX_BYTES = 4 << 30
"""Bytes that the parts of an archive may unpack to in all."""
SMALL_BYTES = 64 << 20
"""Bytes that any archive may unpack to."""
MAX_COMPRESSION = 32
"""A larger archive may unpack to this many times its own size.  Weights do not compress that well, and deflate can pack
1032 to 1."""


class Archive:
    """Raises FormatError for a file that is no archive, a missing or damaged part, or parts that unpack to more than a
    model needs."""

    def __init__(self, data: bytes) -> None:
        self._left = min(MAX_BYTES, max(SMALL_BYTES, MAX_COMPRESSION * len(data)))
        try:
            self._file = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
            raise FormatError(f"the archive is damaged: {_first_words(error)}") from error
        self.names = self._file.namelist()

    def read(self, name: str) -> bytes:
        if name not in self.names:
            raise FormatError(f"there is no '{name}' in the archive")
        self._left -= self._file.getinfo(name).file_size
        if self._left < 0:
            raise FormatError(
                f"its parts unpack to more than {MAX_COMPRESSION} times its size, as no model's do; it is damaged"
            )
        try:
            return self._file.read(name)
        except MemoryError:
            raise
        except Exception as error:  # besides BadZipFile what zlib, lzma and the reader raise for damaged streams
            raise FormatError(f"the archive is damaged: {_first_words(error)}") from error

    def json(self, name: str) -> Any:
        return parsed(self.read(name).decode("utf-8", "replace"))


def _first_words(error: Exception) -> str:
    """The beginning of an error's text: zipfile's texts quote the file."""
    return str(error).split("\n")[0][:80]


def parsed(text: str) -> Any:
    """The parsed JSON.  Raises FormatError."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"its description is not JSON: {error}") from error
