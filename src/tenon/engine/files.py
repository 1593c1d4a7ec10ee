"""Load the manifest, code and weights of a bundle: of a folder, or of a ``.tenon`` file."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Protocol

import numpy as np

from tenon.bundle.checksum import checksum
from tenon.bundle.layout import layout, symbols
from tenon.bundle.manifest import FILE, Manifest, parse_manifest, read_manifest, shared_library
from tenon.engine.loading import load_library
from tenon.errors import BundleError
from tenon.ir.dtype import Array


class BundleFiles(Protocol):
    """Where the files of a bundle are."""

    def manifest(self) -> Manifest:
        """Raises BundleError if there is none, or it is damaged."""

    def label(self, name: str) -> str:
        """A file for messages; of "" all of them."""

    def content(self, name: str, *, mapped: bool = False) -> Array:
        """The bytes of a file; ``mapped``: shared by all processes.  Raises BundleError if it is missing."""


class _Folder:
    def __init__(self, root: str) -> None:
        self._root = root

    def manifest(self) -> Manifest:
        return read_manifest(self._root)

    def label(self, name: str) -> str:
        return os.path.join(self._root, name) if name else self._root

    def content(self, name: str, *, mapped: bool = False) -> Array:
        path = self.label(name)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if not mapped or not size:
                    return np.frombuffer(file.read(), np.uint8)
                return np.frombuffer(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ), np.uint8)
        except FileNotFoundError:
            raise BundleError(f"{path} is missing: copy the whole folder, or compile the model again") from None
        except OSError as error:
            raise BundleError(f"cannot read {path}: {error.strerror}") from None


class _SingleFile:
    """The target of a ``.tenon`` file that asks for most of what this machine has."""

    def __init__(self, path: str) -> None:
        from tenon.bundle.container import Container
        from tenon.targets.host_cpu import runs_here
        from tenon.targets.registry import rows

        self._path, self._file = path, Container(path)
        fitting = [name for name in self._file.targets if runs_here(name)]
        if not fitting:
            raise BundleError(
                f"{path} has code for {', '.join(self._file.targets) or 'no target'} and none for this machine: "
                "compile the model again with --target host"
            )
        known = rows()
        hosts = {name: host for name in fitting if (host := known[name].host)}
        self._target = max(fitting, key=lambda name: len(hosts[name].features))

    def manifest(self) -> Manifest:
        return parse_manifest(self.content(FILE).tobytes(), self.label(FILE))

    def label(self, name: str) -> str:
        return f"{self._path} ({self._target}{'/' if name else ''}{name})"

    def content(self, name: str, *, mapped: bool = False) -> Array:  # always mapped
        return self._file.part(self._target, name)


def bundle_files(path: str) -> BundleFiles:
    """The files of a bundle: a folder, or a ``.tenon`` file.  Raises BundleError if that is damaged, or not for this
    machine."""
    return _SingleFile(path) if os.path.isfile(path) else _Folder(path)


def library(manifest: Manifest, files: BundleFiles, verify: bool) -> ctypes.CDLL:
    """The code.  Raises BundleError if it is missing or damaged, or was made for other sizes than the manifest says."""
    name = shared_library(manifest.name)
    path = _listed(manifest, files, name)
    content = files.content(name).tobytes()
    _check(manifest, name, path, content, verify)
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


def weights(manifest: Manifest, files: BundleFiles, verify: bool) -> Array:
    """The weights, mapped: all processes share their memory.  Raises BundleError if they are missing or damaged."""
    name = f"{manifest.name}.weights.bin"
    path = _listed(manifest, files, name)
    content = files.content(name, mapped=True)
    _check(manifest, name, path, content.data, verify)
    if content.size != manifest.memory.constant:
        raise BundleError(
            f"{path} has {content.size} bytes and the network reads {manifest.memory.constant}: compile the model again"
        )
    return content


def _listed(manifest: Manifest, files: BundleFiles, name: str) -> str:
    """The file for messages."""
    if name not in manifest.files:
        raise BundleError(f"{files.label('')} was saved without {name}: save it with its library and weights")
    return files.label(name)


def _check(manifest: Manifest, name: str, path: str, content: bytes | memoryview, verify: bool) -> None:
    record = manifest.files[name]
    if len(content) != record.bytes or checksum(content) != record.checksum:
        raise _damaged(path)
    if verify:
        import hashlib

        if hashlib.sha256(content).hexdigest() != record.sha256:
            raise _damaged(path)


def _damaged(path: str) -> BundleError:
    return BundleError(f"{path} is damaged (its checksum differs from the manifest's): compile the model again")
