"""Load the code and weights of a bundle."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

from tenon.bundle.checksum import checksum
from tenon.bundle.layout import layout, symbols
from tenon.bundle.manifest import Manifest, shared_library
from tenon.engine.loading import load_library
from tenon.errors import BundleError
from tenon.ir.dtype import Array


def library(manifest: Manifest, root: str, verify: bool) -> ctypes.CDLL:
    """The code.  Raises BundleError if it is missing or damaged, or was made for other sizes than the manifest says."""
    name = shared_library(manifest.name)
    path = _listed(manifest, root, name)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise _unreadable(path, error) from None
    _check(manifest, path, content, verify)
    code = load_library(content, path)
    if _layout(code, manifest.name) != layout(manifest).encode():
        raise BundleError(
            f"{path} was compiled for another layout of memory than the manifest says: copy the whole folder, or "
            "compile the model again"
        )
    return code


def _layout(code: ctypes.CDLL, name: str) -> bytes:
    text, length = symbols(name)
    try:
        size = ctypes.c_uint.in_dll(code, length).value
        return bytes((ctypes.c_ubyte * size).in_dll(code, text))
    except ValueError:
        return b""


def weights(manifest: Manifest, root: str, verify: bool) -> Array:
    """The weights, mapped: all processes share their memory.  Raises BundleError if they are missing or damaged."""
    path = _listed(manifest, root, f"{manifest.name}.weights.bin")
    try:
        content = _mapped(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    _check(manifest, path, content.data, verify)
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


def _check(manifest: Manifest, path: str, content: bytes | memoryview, verify: bool) -> None:
    record = manifest.files[os.path.basename(path)]
    if len(content) != record.bytes or checksum(content) != record.checksum:
        raise _damaged(path)
    if verify:
        import hashlib

        if hashlib.sha256(content).hexdigest() != record.sha256:
            raise _damaged(path)


def _damaged(path: str) -> BundleError:
    return BundleError(f"{path} is damaged (its checksum differs from the manifest's): compile the model again")


def _unreadable(path: str, error: OSError) -> BundleError:
    if isinstance(error, FileNotFoundError):
        return BundleError(f"{path} is missing: copy the whole folder, or compile the model again")
    return BundleError(f"cannot read {path}: {error.strerror}")
