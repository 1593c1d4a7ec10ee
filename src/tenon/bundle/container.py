"""``.tenon`` files: bundles for one or several targets in a single file.

Numbers are little-endian:

    8 bytes    "TENON\\r\\n" and 0x1a
    u32        1, the version of this form
    u32        number of parts
    u64        bytes of the whole file
    32 bytes   BLAKE2b of the 24 bytes before it and of the directory
    directory  120 bytes for each part: its name in 104, zero-padded; u64 offset; u64 bytes

Names are TARGET/FILE; the files of a target are the manifest, library and weights of a folder.  Parts begin at
multiples of 4096 bytes, so that weights can be used where they are mapped; parts with the same content are stored once.
``runtime/libtenon/container.c`` reads the same.
"""

import mmap
import os
import struct
from collections.abc import Iterable, Mapping

import numpy as np

from tenon.bundle.manifest import FILE
from tenon.errors import BundleError
from tenon.ir.dtype import Array

try:
    from _blake2 import blake2b  # hashlib's own, without loading OpenSSL
except ImportError:
    from hashlib import blake2b

SUFFIX = ".tenon"
MAGIC = b"TENON\r\n\x1a"
VERSION = 1
_HEAD = struct.Struct("<8sIIQ")
_DIGEST = 32
_ROW = struct.Struct("<104sQQ")
_NAME = 103
_ALIGNMENT = 4096


def container(targets: Mapping[str, Mapping[str, bytes]]) -> bytes:
    """The content of a file with these files of each target."""
    parts = {f"{target}/{name}": content for target, files in targets.items() for name, content in files.items()}
    at = _aligned(_HEAD.size + _DIGEST + len(parts) * _ROW.size)
    offsets, rows = dict[bytes, int](), list[bytes]()
    for name, content in parts.items():
        encoded = name.encode()
        if len(encoded) > _NAME:
            raise BundleError(f"{name} is too long a name for a {SUFFIX} file: choose a shorter --name")
        if content not in offsets:
            offsets[content] = at
            at = _aligned(at + len(content))
        rows.append(_ROW.pack(encoded, offsets[content], len(content)))
    head, directory = _HEAD.pack(MAGIC, VERSION, len(parts), at), b"".join(rows)
    whole = bytearray(at)
    top = head + _digest(head, directory) + directory
    whole[: len(top)] = top
    for content, offset in offsets.items():
        whole[offset : offset + len(content)] = content
    return bytes(whole)


def is_container(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins like a ``.tenon`` file."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


class Container:
    """A ``.tenon`` file, mapped.  Raises BundleError if it is damaged."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                self._content = np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)
        except (OSError, ValueError) as error:
            raise BundleError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
        self._parts = self._directory()

    def _directory(self) -> dict[str, tuple[int, int]]:
        content, size = self._content, self._content.size
        if size < _HEAD.size + _DIGEST:
            raise self._damaged("it is incomplete")
        head = content[: _HEAD.size].tobytes()
        magic, version, count, stated = _HEAD.unpack(head)
        if magic != MAGIC:
            raise self._damaged(f"it is not a {SUFFIX} file")
        if version != VERSION:
            raise BundleError(
                f"{self.path} has form {version} of {SUFFIX} files and this Tenon reads {VERSION}: install a newer "
                "Tenon, or compile the model again"
            )
        begin = _HEAD.size + _DIGEST
        if stated != size or count * _ROW.size > size - begin:
            raise self._damaged("it is incomplete")
        directory = content[begin : begin + count * _ROW.size].tobytes()
        if _digest(head, directory) != content[_HEAD.size : begin].tobytes():
            raise self._damaged("the digest of its directory differs")
        rows = _ROW.iter_unpack(directory)
        parts = {name.rstrip(b"\0").decode("utf-8", "replace"): (offset, length) for name, offset, length in rows}
        if any(offset + length > size for offset, length in parts.values()):
            raise self._damaged("its directory is damaged")
        return parts

    def _damaged(self, why: str) -> BundleError:
        return BundleError(f"{self.path} is damaged: {why}: compile the model again")

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets that it has code for."""
        end = f"/{FILE}"
        return tuple(name.removesuffix(end) for name in self._parts if name.endswith(end))

    def files(self, target: str) -> Iterable[str]:
        """The names of a target's files."""
        return [name.removeprefix(f"{target}/") for name in self._parts if name.startswith(f"{target}/")]

    def part(self, target: str, name: str) -> Array:
        """A file of a target, as bytes."""
        place = self._parts.get(f"{target}/{name}")
        if place is None:
            raise self._damaged(f"it has no {target}/{name}")
        return self._content[place[0] : place[0] + place[1]]


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT


def _digest(head: bytes, directory: bytes) -> bytes:
    return blake2b(head + directory, digest_size=_DIGEST).digest()
