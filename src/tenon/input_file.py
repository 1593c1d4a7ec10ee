"""Open input files: regular files only, because reading a pipe or device may block or never end."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO, cast

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


def printable(name: str | os.PathLike[str]) -> str:
    """A file's name as text that can be written as UTF-8: bytes of it that are not UTF-8 become \\xff."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
