"""Sorted tables of keys and values, as LevelDB and TensorFlow's checkpoints have them.

Blocks of keys that share prefixes, an index block, a footer.  Source: the table format of LevelDB.
"""

from __future__ import annotations

from collections.abc import Iterator

from tenon.errors import FormatError
from tenon.formats.wire.protobuf import varint

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48


def table(data: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    """(key, value) of every entry.  Raises FormatError."""
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise FormatError(f"{where} is not a table of names; it is truncated or damaged")
    footer = data[-_FOOTER:]
    _, at = varint(footer, 0)
    _, at = varint(footer, at)
    offset, at = varint(footer, at)
    size, at = varint(footer, at)
    for _, handle in _block(data, offset, size, where):
        start, at = varint(handle, 0)
        length, _ = varint(handle, at)
        for key, value in _block(data, start, length, where):
            yield key.decode("utf-8", "backslashreplace"), value


def _block(data: bytes, offset: int, size: int, where: str) -> Iterator[tuple[bytes, bytes]]:
    """Entries (shared prefix, rest of the key, value), then where full keys stand; one byte for compression follows."""
    if offset + size + 1 > len(data) or size < 4:
        raise FormatError(f"a block of {where} lies outside of it")
    if data[offset + size]:
        raise FormatError(f"{where} is compressed, which is not supported")
    block = data[offset : offset + size]
    end = size - 4 - 4 * int.from_bytes(block[-4:], "little")
    at, key = 0, b""
    while at < end:
        shared, at = varint(block, at)
        rest, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + rest + length > end:
            raise FormatError(f"a block of {where} is damaged")
        key = key[:shared] + block[at : at + rest]
        yield key, block[at + rest : at + rest + length]
        at += rest + length
