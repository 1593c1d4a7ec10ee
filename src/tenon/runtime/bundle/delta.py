"""Delta updates: what turns one ``.tenon`` file into another, for devices that have the first.

Numbers are little-endian:

    8 bytes    "TENONDLT"
    u32        1, the version of this form
    u64 (3)    bytes of the old file, of the new file and of the steps
    32, 32     BLAKE2b of the old and of the new file
    ...        steps, compressed (LZMA, in the form of .lzma files)

A step is a byte and two u64, offset in the old file and length, then its data.  0: these bytes of the old file.  1: the
same, exclusive-or with as many bytes that follow, every fourth byte first, then those after them: small changes of
floats leave most of the upper bytes zero.  2: bytes that follow.  ``runtime/c/libtenon/patch.c`` applies the same.
"""

from __future__ import annotations

import lzma
import struct
from pathlib import Path

import numpy as np

from tenon.errors import BundleError, InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.bundle.container import Container
from tenon.runtime.bundle.signature import PublicKey, check_signature

try:
    from _blake2 import blake2b  # hashlib's own, without loading OpenSSL
except ImportError:
    from hashlib import blake2b

MAGIC, VERSION = b"TENONDLT", 1
_HEAD = struct.Struct("<8sIQQQ32s32s")
_MEMORY = 1 << 28
"""Most bytes of memory for decompression."""
_STEP = struct.Struct("<BQQ")
_COPY, _CHANGE, _NEW = range(3)
_STRIDE = 4


def delta(old: str | Path, new: str | Path) -> bytes:
    """The content of a patch.  Raises BundleError if a file is no ``.tenon`` file, or damaged."""
    before, after = Container(str(old)), Container(str(new))
    was, becomes = Path(old).read_bytes(), Path(new).read_bytes()
    known = dict(before.places)
    steps, at = [], 0
    for name, (offset, length) in sorted(after.places.items(), key=lambda item: item[1]):
        if offset < at or not length:
            continue  # content that another part has, too
        steps += _new(becomes[at:offset])
        begin, size = known.get(name, (0, 0))
        content = becomes[offset : offset + length]
        if size == length and was[begin : begin + size] == content:
            steps.append(_STEP.pack(_COPY, begin, length))
        elif size == length:
            steps.append(
                _STEP.pack(_CHANGE, begin, length) + _spread(_bytes(was)[begin : begin + size] ^ _bytes(content))
            )
        else:
            steps += _new(content)
        at = offset + length
    steps += _new(becomes[at:])
    text = b"".join(steps)
    head = _HEAD.pack(MAGIC, VERSION, len(was), len(becomes), len(text), _digest(was), _digest(becomes))
    return head + lzma.compress(text, format=lzma.FORMAT_ALONE)


def apply(old: str | Path, patch: str | Path, public_key: PublicKey | None = None, minimum_version: int = 0) -> bytes:
    """The content of the new file, which the owner of ``public_key`` has to have signed, if one is given, as
    ``minimum_version`` or a later one.

    Raises InputError if the patch is for another file, BundleError if it is damaged, SignatureError.
    """
    was, content = _read(Path(old)), _read(Path(patch))
    try:
        magic, version, size, new_size, step_bytes, before, after = _HEAD.unpack_from(content)
    except struct.error:
        magic, version = b"", 0
    if magic != MAGIC:
        raise BundleError(f"{patch} is no delta of Tenon: make one with 'tenon delta OLD NEW -o PATCH'")
    if version != VERSION:
        raise BundleError(
            f"{patch} has form {version} of deltas and this Tenon reads {VERSION}: make it with the same Tenon"
        )
    if len(was) != size or _digest(was) != before:
        raise InputError(f"{patch} is for another file than {old}: apply it to the version that it was made from")
    try:
        steps = _decompressed(content[_HEAD.size :], step_bytes, new_size)
        made = _followed(was, steps, new_size)
    except (lzma.LZMAError, struct.error, ValueError) as error:
        raise BundleError(f"{patch} is damaged ({error}): get it again") from None
    if _digest(made) != after:
        raise BundleError(f"{patch} is damaged (the digest of its result differs): get it again")
    if public_key is not None:
        check_signature(Container(str(patch), lambda _: made), public_key, minimum_version)
    return made


def _decompressed(data: bytes, size: int, new_size: int) -> bytes:
    if size > 2 * new_size + 65536:
        raise ValueError("it has too many steps")
    steps = lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=_MEMORY).decompress(data, size) if size else b""
    if len(steps) != size:
        raise ValueError("it is incomplete")
    return steps


def _followed(was: bytes, steps: bytes, size: int) -> bytes:
    made, at = bytearray(), 0
    while at < len(steps):
        kind, offset, length = _STEP.unpack_from(steps, at)
        at += _STEP.size
        if len(made) + length > size or (kind != _NEW and offset + length > len(was)):
            raise ValueError("a step leaves the file")
        own = was[offset : offset + length]
        data = b"" if kind == _COPY else steps[at : at + length]
        at += len(data)
        made += own if kind == _COPY else data if kind == _NEW else (_bytes(own) ^ _gathered(data)).tobytes()
    return bytes(made)


def _new(content: bytes) -> list[bytes]:
    return [_STEP.pack(_NEW, 0, len(content)) + content] if content else []


def _spread(data: Array) -> bytes:
    return b"".join(data[i::_STRIDE].tobytes() for i in range(_STRIDE))


def _gathered(data: bytes) -> Array:
    result, at = np.empty(len(data), np.uint8), 0
    for i in range(_STRIDE):
        count = len(result[i::_STRIDE])
        result[i::_STRIDE] = _bytes(data)[at : at + count]
        at += count
    return result


def _bytes(content: bytes) -> Array:
    return np.frombuffer(content, np.uint8)


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=32).digest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
