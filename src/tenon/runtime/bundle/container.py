"""``.tenon`` files: bundles for one or several targets in a single file.

Numbers are little-endian:

    8 bytes    "TENON\\r\\n" and 0x1a
    u32        1, the version of this form; 2 if it is encrypted
    u32        number of parts
    u64        bytes of the whole file
    32 bytes   BLAKE2b of the 24 bytes before it and of the directory
    directory  120 bytes for each part: its name in 104, zero-padded; u64 offset; u64 bytes

Names are TARGET/FILE; the files of a target are the manifest, library and weights of a folder.  Parts begin at
multiples of 4096 bytes, so that weights can be used where they are mapped; parts with the same content are stored once.
``runtime/c/libtenon/container.c`` reads the same.  In an encrypted file these parts are sealed (``wire.encryption``).
Parts whose names have no target are about the file: "key-check" (``wire.encryption``), "signature"
(``bundle.signature``), and of an encrypted file "directory", the sealed ``digest_of_sealed`` of the others, so that
parts of files with the same key cannot be exchanged, left out or put elsewhere.
"""

import mmap
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from tenon.atomic_write import Content
from tenon.errors import BundleError
from tenon.network.graph.dtype import Array
from tenon.runtime.bundle.manifest import FILE, Manifest, parse_manifest

try:
    from _blake2 import blake2b  # hashlib's own, without loading OpenSSL
except ImportError:
    from hashlib import blake2b

SUFFIX = ".tenon"
MAGIC = b"TENON\r\n\x1a"
VERSION, ENCRYPTED = 1, 2
_HEAD = struct.Struct("<8sIIQ")
_DIGEST = 32
_ROW = struct.Struct("<104sQQ")
_NAME = 103
_ALIGNMENT = 4096
SIGNATURE, DIRECTORY = "signature", "directory"
_SEALED = struct.Struct("<104sQ12s16s")


def container(targets: Mapping[str, Mapping[str, Content]]) -> bytes:
    """The content of a file with these files of each target."""
    return container_of(parts_of(targets))


def parts_of(targets: Mapping[str, Mapping[str, Content]]) -> dict[str, Content]:
    """The parts of a file with these files of each target."""
    return {f"{target}/{name}": content for target, files in targets.items() for name, content in files.items()}


def container_of(parts: Mapping[str, Content], version: int = VERSION) -> bytes:
    """The content of a file with these parts, as they are stored."""
    return b"".join(container_pieces(parts, version))


def container_pieces(parts: Mapping[str, Content], version: int = VERSION) -> Iterator[Content]:
    """The same in pieces, one behind the other, without copying parts.  Parts that are mapped are read-only."""
    at = _aligned(_HEAD.size + _DIGEST + len(parts) * _ROW.size)
    offsets, rows = dict[Content, int](), list[bytes]()
    for name, content in parts.items():
        encoded = name.encode()
        if len(encoded) > _NAME:
            raise BundleError(f"{name} is too long a name for a {SUFFIX} file: choose a shorter --name")
        if content not in offsets:
            offsets[content] = at
            at = _aligned(at + len(content))
        rows.append(_ROW.pack(encoded, offsets[content], len(content)))
    head, directory = _HEAD.pack(MAGIC, version, len(parts), at), b"".join(rows)
    top = head + _digest(head, directory) + directory
    yield top
    written = len(top)
    for content, offset in offsets.items():
        yield bytes(offset - written)
        yield content
        written = offset + len(content)
    yield bytes(at - written)


def digest_of_sealed(parts: Mapping[str, bytes | memoryview]) -> bytes:
    """The digest of the names, sizes, nonces and tags of all sealed parts, in their order.

    A tag authenticates the content of its part.
    """
    rows = (
        _SEALED.pack(name.encode(), len(content), bytes(content[:12]), bytes(content[-16:]))
        for name, content in parts.items()
        if name not in (SIGNATURE, DIRECTORY)
    )
    return blake2b(b"".join(rows), digest_size=_DIGEST).digest()


def is_container(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins like a ``.tenon`` file."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except (OSError, ValueError):
        return False


class Container:
    """A ``.tenon`` file, mapped; ``transform`` makes its content of what the file holds.  Raises BundleError if it is
    damaged."""

    def __init__(self, path: str, transform: Callable[[bytes], bytes] | None = None) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if not size:
                    raise BundleError(f"{path} is not a bundle: it is empty")
                self._content = np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)
        except (OSError, ValueError) as error:
            raise BundleError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
        if transform is not None:
            self._content = _aligned_copy(transform(self._content.tobytes()))
        self.version = VERSION
        self._key = b""
        self._opened = dict[str, Array]()
        self._parts = self._directory()

    @property
    def encrypted(self) -> bool:
        """Whether a key is needed to read the files of a target."""
        return self.version == ENCRYPTED

    def unlock(self, key: bytes) -> None:
        """Use a key for an encrypted file.  Raises WrongKeyError if it is that of another one, BundleError if the parts
        are not those that were encrypted together."""
        from tenon.formats.wire.encryption import KEY_CHECK, WrongKeyError, unseal

        if unseal(key, KEY_CHECK, self.stored(KEY_CHECK).tobytes()) is None:
            raise WrongKeyError(self.path)
        stored = {name: self.stored(name).data for name in self._parts}
        if unseal(key, DIRECTORY, self.stored(DIRECTORY).tobytes()) != digest_of_sealed(stored):
            why = "its parts are not those that were encrypted together"
            raise BundleError(f"{self.path} is damaged: {why}: encrypt the bundle again")
        self._key = key

    def _directory(self) -> dict[str, tuple[int, int]]:
        content, size = self._content, self._content.size
        if size < _HEAD.size + _DIGEST:
            raise self._damaged("it is incomplete")
        head = content[: _HEAD.size].tobytes()
        magic, version, count, stated = _HEAD.unpack(head)
        if magic != MAGIC:
            if not self.path.endswith(SUFFIX):
                raise BundleError(f"{self.path} is no bundle: give what 'tenon compile' or tenon.compile made of it")
            raise self._damaged(f"it is not a {SUFFIX} file")
        if version not in (VERSION, ENCRYPTED):
            raise BundleError(
                f"{self.path} has form {version} of {SUFFIX} files and this Tenon reads {VERSION} and {ENCRYPTED}: "
                "install a newer Tenon, or compile the model again"
            )
        self.version = version
        begin = _HEAD.size + _DIGEST
        if stated != size or count * _ROW.size > size - begin:
            raise self._damaged("it is incomplete")
        directory = content[begin : begin + count * _ROW.size].tobytes()
        if _digest(head, directory) != content[_HEAD.size : begin].tobytes():
            raise self._damaged("the digest of its directory differs")
        rows = _ROW.iter_unpack(directory)
        parts = {name.rstrip(b"\0").decode("utf-8", "replace"): (offset, length) for name, offset, length in rows}
        if len(parts) < count or any("\0" in name for name in parts):
            raise self._damaged("its directory lists a name twice, or none")
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
        """A file of a target, as bytes.  Raises WrongKeyError for an encrypted file without key."""
        full = f"{target}/{name}"
        if not self.encrypted:
            return self.stored(full)
        if full not in self._opened:
            self._opened[full] = self._decrypted(full, name)
        return self._opened[full]

    def manifest(self, target: str) -> Manifest:
        """The manifest of a target.  Raises BundleError if it is damaged."""
        return parse_manifest(self.part(target, FILE).tobytes(), f"{self.path} ({target}/{FILE})")

    def _decrypted(self, full: str, name: str) -> Array:
        from tenon.formats.wire.encryption import WrongKeyError, unseal

        if not self._key:
            raise WrongKeyError(self.path, missing=True)
        text = unseal(self._key, name, self.stored(full).tobytes())
        if text is None:
            raise BundleError(
                f"{self.path} is damaged: {full} was changed after it was encrypted: encrypt the bundle again"
            )
        return _aligned_copy(text)

    def stored(self, part: str) -> Array:
        """A part as the file holds it, encrypted if the file is."""
        place = self._parts.get(part)
        if place is None:
            raise self._damaged(f"it has no {part}")
        return self._content[place[0] : place[0] + place[1]]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of all parts."""
        return tuple(self._parts)

    @property
    def places(self) -> Mapping[str, tuple[int, int]]:
        """Offset and bytes of each part."""
        return self._parts


def _aligned_copy(content: bytes) -> Array:
    """At a multiple of 64 bytes, as weights have to be."""
    room = np.empty(len(content) + 64, np.uint8)
    begin = -room.ctypes.data % 64
    copy = room[begin : begin + len(content)]
    copy[:] = np.frombuffer(content, np.uint8)
    return copy


def _aligned(at: int) -> int:
    return -(-at // _ALIGNMENT) * _ALIGNMENT


def _digest(head: bytes, directory: bytes) -> bytes:
    return blake2b(head + directory, digest_size=_DIGEST).digest()
