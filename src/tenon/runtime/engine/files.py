"""Load the manifest, code and weights of a bundle: of a folder, or of a ``.tenon`` file."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from tenon.errors import BundleError, InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.bundle.checksum import checksum
from tenon.runtime.bundle.layout import layout, symbols
from tenon.runtime.bundle.manifest import Manifest, read_manifest, shared_library
from tenon.runtime.engine.loading import load_library

if TYPE_CHECKING:
    from tenon.formats.wire.encryption import Key
    from tenon.network.graph.text_model import TextModel
    from tenon.runtime.bundle.container import Container
    from tenon.runtime.bundle.signature import PublicKey


class Opening(NamedTuple):
    """How a ``.tenon`` file is opened.

    ``target``: whose code is taken; "": the best for this machine, or that of TENON_OPEN_TARGET.  ``key``: of an
    encrypted file; None: that of TENON_KEY or TENON_KEY_FILE; where there is a key, what is not encrypted is refused.
    ``public_key``: of who has to have signed the file, as ``minimum_version`` or a later one; None: that of
    ``signed_by``.  ``transform`` makes the content of a bundle of what is stored, before anything of it is used.
    ``own``: this process wrote the bundle, so that it needs neither key nor signature.
    """

    target: str = ""
    key: Key | None = None
    public_key: PublicKey | None = None
    transform: Callable[[bytes], bytes] | None = None
    minimum_version: int = 0
    own: bool = False


class BundleFiles(Protocol):
    """Where the files of a bundle are."""

    def manifest(self) -> Manifest:
        """Raises BundleError if there is none, or it is damaged."""

    def label(self, name: str) -> str:
        """A file for messages; of "" all of them."""

    def content(self, name: str, *, mapped: bool = False) -> Array:
        """The bytes of a file; ``mapped``: shared by all processes.  Raises BundleError if it is missing."""


USUAL = Opening()
OWN = Opening(own=True)
_demanded: ContextVar[tuple[PublicKey | None, int]] = ContextVar("demanded", default=(None, 0))


@contextmanager
def signed_by(public_key: PublicKey | None, minimum_version: int = 0) -> Iterator[None]:
    """Bundles that are opened inside have to be signed by the owner of the key, as ``minimum_version`` or a later one.
    Raises InputError for a version without key."""
    if public_key is None:
        raise InputError("a minimum version needs a public key (--public-key): it says whose versions count")
    token = _demanded.set((public_key, minimum_version))
    try:
        yield
    finally:
        _demanded.reset(token)


def refuse_unsigned(path: str | os.PathLike[str]) -> None:
    """Raises InputError for a model, or a folder, where ``signed_by`` demands a signature."""
    if _demanded.get()[0] is not None:
        raise InputError(
            f"{os.fspath(path)} is no .tenon file, and only those are signed: compile and sign it (tenon sign), or "
            "leave out --public-key"
        )


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
    """A target of a ``.tenon`` file."""

    def __init__(self, path: str, how: Opening) -> None:
        from tenon.options import opening

        self._path, self._file = path, open_container(path, how)
        self._target = choose_target(path, self._file.targets, how.target or opening()[0])

    def manifest(self) -> Manifest:
        return self._file.manifest(self._target)

    def label(self, name: str) -> str:
        return f"{self._path} ({self._target}{'/' if name else ''}{name})"

    def content(self, name: str, *, mapped: bool = False) -> Array:  # always mapped
        return self._file.part(self._target, name)


def open_container(path: str, how: Opening = USUAL) -> Container:
    """A ``.tenon`` file whose signature is verified, if that is asked for, and that can be read, if its key is known.

    Raises BundleError for a file that is damaged, encrypted with another key, or not signed by whom it should be.
    """
    from tenon.runtime.bundle.container import Container

    file = Container(path, how.transform)
    if how.own:
        return file
    public_key, minimum_version = (how.public_key, how.minimum_version) if how.public_key else _demanded.get()
    if public_key is not None:
        from tenon.runtime.bundle.signature import check_signature

        check_signature(file, public_key, minimum_version)
    if key := _key(how):
        if not file.encrypted:
            raise _not_encrypted(path)
        file.unlock(key)
    return file


def check_demanded_signature(path: str | os.PathLike[str]) -> None:
    """Raises where ``signed_by`` demands a signature that a file has not: SignatureError, or InputError for what is no
    ``.tenon`` file."""
    from tenon.runtime.bundle.container import Container, is_container

    public_key, minimum_version = _demanded.get()
    if public_key is None:
        return
    if not is_container(path):
        refuse_unsigned(path)
    from tenon.runtime.bundle.signature import check_signature

    check_signature(Container(os.fspath(path)), public_key, minimum_version)


def _key(how: Opening) -> bytes | None:
    """The key with which bundles have to be encrypted, where there is one."""
    from tenon.options import opening

    _, digits, key_file = opening()
    if how.key is None and not digits and not key_file and "tenon.formats.wire.stored_files" not in sys.modules:
        return None  # without loading what gives keys
    from tenon.formats.wire.stored_files import known_key

    return known_key(how.key)


def _not_encrypted(path: str) -> BundleError:
    from tenon.formats.wire.encryption import WrongKeyError

    return WrongKeyError(path, unneeded=True)


def choose_target(path: str, targets: Sequence[str], wanted: str = "") -> str:
    """The target of a ``.tenon`` file that is taken: the one that is wanted (of several, separated by commas, the first
    that it has), or that asks for most of what this machine has ("host"); a device, or what is tuned for one processor,
    where there is nothing else.

    Raises BundleError if there is none.
    """
    from tenon.machine.targets.host_cpu import runs_here
    from tenon.machine.targets.registry import rows

    asked = [name.strip() for name in wanted.split(",")]
    named = next((name for name in asked if name in targets), "")
    fitting = [named] if named else []
    if not named and (not wanted or "host" in asked):
        fitting = [name for name in targets if runs_here(name)]
    if not fitting:
        listed = ", ".join(targets) or "no target"
        raise BundleError(
            f"{path} has code for {listed} and none for {wanted or 'this machine'}: compile the model again with "
            f"--target {wanted or 'host'}"
        )
    known = rows()

    def preference(name: str) -> tuple[bool, int]:
        host = known[name].host if name in known else None
        return host is not None and not host.tuned, len(host.features) if host else 0

    return max(fitting, key=preference)


def bundle_files(path: str, how: Opening = USUAL) -> BundleFiles:
    """The files of a bundle: a folder, or a ``.tenon`` file.  Raises BundleError if that is damaged, not for this
    machine, encrypted with another key, or not signed by whom it should be."""
    if how.minimum_version and how.public_key is None:
        raise InputError("a minimum version needs a public key: it says whose versions count")
    if os.path.isfile(path):
        return _SingleFile(path, how)
    if how.public_key is not None or how.transform is not None:
        raise InputError(f"{path} is no .tenon file: only those are signed, or stored in another form")
    if not how.own:
        check_folder(path, how)
    return _Folder(path)


def check_folder(path: str | os.PathLike[str], how: Opening = USUAL) -> None:
    """Raises for the folder of a bundle where a key or a signature is demanded, which only ``.tenon`` files have:
    WrongKeyError, InputError."""
    refuse_unsigned(path)
    if _key(how):
        raise _not_encrypted(os.fspath(path))


def part(manifest: Manifest, files: BundleFiles, name: str, verify: bool = False) -> bytes:
    """The content of a file of the bundle.  Raises BundleError if it is missing or damaged."""
    path = _listed(manifest, files, name)
    content = files.content(name).tobytes()
    _check(manifest, name, path, content, verify)
    return content


def library(manifest: Manifest, files: BundleFiles, verify: bool) -> ctypes.CDLL:
    """The code.  Raises BundleError if it is missing or damaged, or was made for other sizes than the manifest says."""
    name = shared_library(manifest.name)
    path = files.label(name)
    code = load_library(part(manifest, files, name, verify), path)
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


def text(manifest: Manifest, files: BundleFiles) -> TextModel | None:
    """The settings of a language model with its tokenizer; None for other networks.  Raises BundleError if the
    tokenizer's file is missing or damaged."""
    record = manifest.language
    if record is None:
        return None
    from tenon.runtime.bundle.text_record import text_model

    return text_model(record, part(manifest, files, record.tokenizer.file) if record.tokenizer else None)


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
