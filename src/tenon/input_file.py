"""Open input files: regular files only, because reading a pipe or device may block or never end.

Whatever reads, looks for or lists files of a model does it here, so that ``dependencies`` can collect them.
"""

from __future__ import annotations

import errno
import fnmatch
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import BinaryIO, cast
from weakref import WeakValueDictionary

from tenon.errors import InputError

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """The file, open for reading bytes.  Raises InputError if it cannot be opened or is not a regular file."""
    shown = printable(path)
    try:
        # Without O_NONBLOCK, opening a pipe blocks until it has a writer; the flag has no effect on regular files.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise InputError(f"{shown}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{shown!r} is not the name of a file: {error}") from error
    kind = stat.S_IFMT(os.fstat(handle).st_mode)
    if kind != stat.S_IFREG:
        os.close(handle)
        if kind == stat.S_IFDIR:
            raise InputError(f"{shown}: it is a folder: name a file in it")
        what = _KINDS.get(kind, "something else")
        raise InputError(f"{shown}: it is {what}, not a regular file: save what it gives to a file first")
    if collected := _dependencies.get():
        collected.read.add(os.path.abspath(path))
    return cast(BinaryIO, os.fdopen(handle, "rb"))


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """All of a regular file.  Raises InputError if it cannot be read or does not fit into memory."""
    with open_regular(path) as file:
        try:
            return file.read()
        except OSError as error:
            raise InputError(f"{printable(path)}: {error.strerror or error}") from error
        except MemoryError:
            held = os.fstat(file.fileno()).st_size
            raise InputError(f"{printable(path)}: its {held} bytes do not fit into memory") from None


class MappedFile(mmap.mmap):
    """The content of a file, of which the system loads what is read and may give up what was read before."""


_mapped: WeakValueDictionary[tuple[str, int, int], MappedFile] = WeakValueDictionary()
"""The files that are in use, by path, size and time of modification: one that is read again takes no more memory."""


def map_regular(path: str | os.PathLike[str], least: int) -> MappedFile | None:
    """A regular file of at least so many bytes, mapped; None for a smaller one.  Raises as ``open_regular`` does.

    It has to stay as it is while it is in use: another program may replace it, but not shorten it.
    """
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size < max(least, 1):
            return None
        key = os.path.abspath(path), status.st_size, status.st_mtime_ns
        known = _mapped.get(key)
        if known is None:
            try:
                known = _mapped[key] = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError):  # some file systems cannot map files
                return None
        return known


def printable(name: str | os.PathLike[str]) -> str:
    """A file's name as text that can be written as UTF-8: bytes of it that are not UTF-8 become \\xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


# ---------------------------------------------------------------------------- files that a result depends on
class Dependencies:
    """The files that were read, looked for in vain and listed inside ``dependencies``.

    ``private`` is set where one of them was decrypted.
    """

    def __init__(self) -> None:
        self.read: set[str] = set()
        self.absent: set[str] = set()
        self.listed: dict[tuple[str, str], list[str]] = {}
        self.private = False


_dependencies: ContextVar[Dependencies | None] = ContextVar("dependencies", default=None)


@contextmanager
def dependencies() -> Iterator[Dependencies]:
    """Collect the files that a result depends on, as long as all of them are opened, looked for and listed here."""
    collected = Dependencies()
    token = _dependencies.set(collected)
    try:
        yield collected
    finally:
        _dependencies.reset(token)


def mark_private() -> None:
    """State that a file was decrypted: nothing that was made of it may be kept in plain form."""
    if collected := _dependencies.get():
        collected.private = True


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether there is a regular file of that name, which may be a symbolic link to one.

    Raises OSError for a name that no file can have here, such as one that is too long.
    """
    try:
        present = stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        present = False
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        present = False
    if not present and (collected := _dependencies.get()):
        collected.absent.add(os.path.abspath(path))
    return present


def is_own(path: str | os.PathLike[str]) -> bool:
    """Whether there is a regular file of that name that is not a symbolic link, which could lead out of its folder."""
    return is_regular(path) and not os.path.islink(path)


def matching_names(folder: str | os.PathLike[str], pattern: str = "*") -> list[str]:
    """The names in a folder that match a glob of one component, sorted; none if the folder cannot be read."""
    names = names_in(folder, pattern)
    if collected := _dependencies.get():
        collected.listed[os.path.abspath(folder), pattern] = names
    return names


def names_in(folder: str | os.PathLike[str], pattern: str) -> list[str]:
    """The same, without being collected."""
    try:
        return sorted(fnmatch.filter(os.listdir(folder), pattern))
    except OSError:
        return []
