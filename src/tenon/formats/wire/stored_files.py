"""The files of models as programs store them: as they are, encrypted, or in a form of the program's own.

Whatever reads a file of a model reads it here, so that keys and transforms need not be handed through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from tenon.formats.wire.encryption import MAGIC, Key, WrongKeyError, decrypt_content, find_key
from tenon.input_file import mark_private, open_regular, printable, read_regular

Transform = Callable[[bytes], bytes]
"""Makes the content of a file of what is stored."""


@dataclass
class _Storage:
    """``contents`` has what was made of files of which parts are read."""

    key: Key | None = None
    transform: Transform | None = None
    contents: dict[Path, bytes] = field(default_factory=dict)


_current: ContextVar[_Storage | None] = ContextVar("storage", default=None)


@contextmanager
def stored_as(key: Key | None = None, transform: Transform | None = None) -> Iterator[None]:
    """How the files are stored that are read inside; None: as outside.  Without a key, that of the environment is used
    where a file is encrypted.  ``transform`` comes before decryption."""
    outer = _current.get() or _Storage()
    token = _current.set(_Storage(outer.key if key is None else key, transform or outer.transform))
    try:
        yield
    finally:
        _current.reset(token)


def known_key(given: Key | None = None) -> bytes | None:
    """The key of encrypted files: ``given``, that of ``stored_as``, or of the environment.  Raises InputError."""
    storage = _current.get()
    return find_key(storage.key if given is None and storage is not None else given)


def plain_content(stored: bytes, name: str) -> bytes:
    """The content of a file; ``name`` is for messages.

    Raises WrongKeyError for an encrypted one without its key, BundleError if it is damaged.
    """
    storage = _current.get()
    content = storage.transform(stored) if storage is not None and storage.transform is not None else stored
    if content[: len(MAGIC)] != MAGIC:
        return content
    mark_private()
    key = known_key()
    if key is None:
        raise WrongKeyError(name, missing=True)
    return decrypt_content(key, content, name)


def is_plain() -> bool:
    """Whether no transform makes the content of files of what is stored."""
    storage = _current.get()
    return storage is None or storage.transform is None


def read_stored(path: Path) -> bytes:
    """The content of a file.  Raises InputError if it cannot be read, and as ``plain_content`` does."""
    return plain_content(read_regular(path), printable(path))


def open_stored(path: Path) -> BinaryIO:
    """The content of a file of which parts are read.  Raises as ``read_stored`` does."""
    storage = _current.get()
    if storage is not None and path in storage.contents:
        return BytesIO(storage.contents[path])
    file = open_regular(path)
    begin = file.read(len(MAGIC))
    file.seek(0)
    if begin != MAGIC and (storage is None or storage.transform is None):
        return file
    file.close()
    content = read_stored(path)
    if storage is not None:
        storage.contents[path] = content
    return BytesIO(content)
