"""Files of caches: what another user owns, or may write, is not read, because it may hold code."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from tenon.atomic_write import Content, writing

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_private(path: Path) -> bytes | None:
    """The content of a regular file of this user or root that nobody else may write; None if there is none.

    The file that is read is the one that was checked, and is no symbolic link.
    """
    try:
        handle = os.open(path, os.O_RDONLY | _flag("O_NONBLOCK") | _flag("O_BINARY") | _flag("O_NOFOLLOW"))
    except OSError:
        return None
    status = os.fstat(handle)
    if not _is_private_file(status):
        os.close(handle)
        return None
    with contextlib.suppress(OSError), os.fdopen(handle, "rb") as file:
        return file.read()
    return None


def write_private(path: Path, *pieces: Content) -> None:
    """Write a file so that ``read_private`` reads it, whatever the umask is.  Raises InputError for system errors."""
    if path.is_symlink() or (path.exists() and read_private(path) is None):
        with contextlib.suppress(OSError):
            path.unlink()  # a replaced file keeps its permissions
    with writing(path) as file:
        file.writelines(pieces)
    if _has_users():
        with contextlib.suppress(OSError):
            path.chmod(path.stat().st_mode & ~_OTHERS & 0o777)


def is_private_file(path: Path) -> bool:
    """Whether ``read_private`` would read the file, for one that is mapped, in a folder that ``is_private``."""
    try:
        return _is_private_file(path.lstat()) and is_private(path.parent)
    except OSError:
        return False


def _is_private_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode) and _is_own(status) and not (_has_users() and status.st_mode & _OTHERS)


def is_private(folder: Path) -> bool:
    """Whether a folder belongs to this user or root, and not everybody may write it."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and _is_own(status) and not (_has_users() and status.st_mode & stat.S_IWOTH)


def _is_own(status: os.stat_result) -> bool:
    return not _has_users() or status.st_uid in (0, os.geteuid())


def _has_users() -> bool:
    """Whether the system has owners and permissions of files as POSIX describes them."""
    return hasattr(os, "geteuid")


def _flag(name: str) -> int:
    return int(getattr(os, name, 0))
