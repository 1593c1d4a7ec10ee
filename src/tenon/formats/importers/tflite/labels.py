"""Class names in the files that TFLite's metadata appends to a model."""

from __future__ import annotations

from tenon.errors import FormatError
from tenon.formats.wire.archive import Archive

_END = b"PK\x05\x06"
"""Begins the last record of a zip archive, of 22 bytes and a comment."""
_LONGEST_COMMENT = 1 << 16


def stated_labels(data: bytes) -> tuple[str, ...]:
    """The lines of the only text file in the archive at the end of a model; () without one, with several, or if it is
    damaged or no text."""
    if _END not in data[-22 - _LONGEST_COMMENT :]:
        return ()
    try:
        archive = Archive(data)
        texts = [name for name in archive.names if name.endswith(".txt")]
        return tuple(archive.read(texts[0]).decode("utf-8").splitlines()) if len(texts) == 1 else ()
    except (FormatError, UnicodeDecodeError):
        return ()
