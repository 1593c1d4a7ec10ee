"""The files of a bundle that an engine uses: code and weights."""

from __future__ import annotations

import ctypes
import mmap
import os
import zlib

import numpy as np

from tenon.bundle.manifest import Manifest, shared_library
from tenon.engine.loading import load_library
from tenon.errors import BundleError
from tenon.ir.dtype import Array

QUICK = 1 << 20
"""Bytes of weights whose quick checksum is compared whenever they are opened: that takes under a millisecond."""


def library(manifest: Manifest, root: str) -> ctypes.CDLL:
    """The code.  Raises BundleError if it is missing or damaged."""
    name = shared_library(manifest.name)
    path = _listed(manifest, root, name)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise _unreadable(path, error) from None
    _check(manifest, path, content)
    code = load_library(content, path)
    try:
        code[manifest.entry]
    except AttributeError:
        raise BundleError(f"{path} has no entry point '{manifest.entry}': compile the model again") from None
    return code


def weights(manifest: Manifest, root: str, verify: bool) -> Array:
    """The weights, mapped: all processes share their memory.  Raises BundleError if they are missing or damaged.

    Few are compared with their quick checksum; all with the other one if ``verify``.
    """
    path = _listed(manifest, root, f"{manifest.name}.weights.bin")
    try:
        content = _mapped(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    if content.size <= QUICK or content.size != manifest.files[os.path.basename(path)].bytes:
        _check(manifest, path, content.data)
    if verify:
        _verify(manifest, path, content)
    if content.size != manifest.memory.constant:
        raise BundleError(
            f"{path} has {content.size} bytes and the network reads {manifest.memory.constant}: compile the model again"
        )
    return content


def _mapped(path: str) -> Array:
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return np.empty(0, np.uint8)
        return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)


def _listed(manifest: Manifest, root: str, name: str) -> str:
    if name not in manifest.files:
        raise BundleError(f"{root} was saved without {name}: save it with its library and weights")
    return os.path.join(root, name)


def _check(manifest: Manifest, path: str, content: bytes | memoryview) -> None:
    record = manifest.files[os.path.basename(path)]
    if len(content) != record.bytes or zlib.crc32(content) != record.crc32:
        raise _damaged(path)


def _verify(manifest: Manifest, path: str, content: Array) -> None:
    import hashlib

    if hashlib.sha256(content.data).hexdigest() != manifest.files[os.path.basename(path)].sha256:
        raise _damaged(path)


def _damaged(path: str) -> BundleError:
    return BundleError(f"{path} is damaged (its checksum differs from the manifest's): compile the model again")


def _unreadable(path: str, error: OSError) -> BundleError:
    if isinstance(error, FileNotFoundError):
        return BundleError(f"{path} is missing: copy the whole folder, or compile the model again")
    return BundleError(f"cannot read {path}: {error.strerror}")
