"""Atomic writes: files are written under a temporary name in the same folder, then renamed.

After an error, a full disk or an interrupt the old file is unchanged and no temporary file is left: the removal of each
temporary file is arranged before it is created.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from tenon.errors import InputError

Content = bytes | memoryview
"""The content of a file, or a piece of it; a ``memoryview`` is one of ``spooled``, which cannot be written."""

_TRIES, _PAUSE = 20, 0.05  # s: terminated child processes may still write into a folder that is being removed
_DEVICES = ("/dev/", "/proc/")


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], what: str = "") -> Iterator[IO[bytes]]:
    """A file to write to, renamed to ``path`` when the block ends without an error.

    Parent folders are created.  A replaced file keeps its permissions, a symbolic link stays one; devices and pipes are
    written to directly.  Raises InputError, naming ``what``, for system errors.
    """
    try:
        with _replacing(Path(path)) as file:
            yield file
    except OSError as error:
        raise InputError(write_error(path, error, what)) from error


def write(path: str | os.PathLike[str], content: bytes | str, what: str = "") -> None:
    """Put ``content`` (text as UTF-8) at ``path`` as ``writing`` does."""
    write_all({Path(path): content}, what)


def write_all(files: Mapping[Path, bytes | str], what: str = "") -> None:
    """Write several files; none is replaced before all are written."""
    with contextlib.ExitStack() as stack:
        for path, content in files.items():
            file = stack.enter_context(writing(path, what))
            with _reporting_errors(path, what):
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()


def check_writable(path: str | os.PathLike[str], what: str = "") -> None:
    """Raises InputError, naming ``what``, where ``writing`` to a path would fail because of what is there now."""
    place = Path(path)
    try:
        if place.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if place.exists():
            if not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        parent = next(each for each in place.absolute().parents if each.exists())
        if not parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(parent, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise InputError(write_error(path, error, what)) from error


@contextlib.contextmanager
def scratch(prefix: str = "tenon-") -> Iterator[Path]:
    """A new temporary folder, removed afterwards.  Raises InputError if it cannot be created."""
    import tempfile

    try:
        parent = Path(tempfile.gettempdir())
        stack = contextlib.ExitStack()
        folder = stack.enter_context(fresh_folder(parent, prefix, 0o700))
    except OSError as error:
        raise InputError(f"no folder for temporary files can be made ({error}): set TMPDIR to one with room") from error
    with stack:
        yield folder


def spooled(pieces: Iterable[Content]) -> memoryview:
    """The pieces one behind the other, in a temporary file without a name, which is mapped: of large contents, memory
    holds only what is being read.  Raises InputError for system errors."""
    import tempfile

    try:
        with tempfile.TemporaryFile(prefix="tenon-") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            if not file.tell():
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise InputError(f"a temporary file cannot be written ({error}): set TMPDIR to a folder with room") from error


@contextlib.contextmanager
def fresh_folder(parent: Path, prefix: str, mode: int = 0o777) -> Iterator[Path]:
    """A new empty folder, removed afterwards unless it was renamed.  ``mode`` is subject to the umask."""
    folder = parent / _name(prefix)
    try:
        folder.mkdir(mode)
        yield folder
    finally:
        remove_folder(folder)


def remove_folder(folder: Path) -> None:
    """Remove a folder, if it exists, even if terminating processes still write into it.

    An interrupt is delayed until this is done.
    """
    try:
        _try_remove(folder)
    except BaseException:
        _try_remove(folder)
        raise


def _try_remove(folder: Path) -> None:
    import shutil

    for _ in range(_TRIES):
        if not folder.exists():
            return
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(_PAUSE)


@contextlib.contextmanager
def created_folder(folder: Path) -> Iterator[None]:
    """Create a folder and its parents; after a failure remove those that were created."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def write_error(path: str | os.PathLike[str], error: OSError, what: str = "") -> str:
    """The error message for a path that cannot be written."""
    reason = error.strerror or str(error)
    return f"{what}{' ' if what else ''}{path}: cannot be written ({reason}): choose another place, or make room"


@contextlib.contextmanager
def _reporting_errors(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(write_error(path, error, what)) from error


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    known = _status(path)
    if str(path.absolute()).startswith(_DEVICES) or (known and not stat.S_ISREG(known.st_mode)):
        with path.open("wb") as file:  # a folder is refused here
            yield file
        return
    if known and not os.access(path, os.W_OK):
        raise PermissionError(13, "it is read-only")
    target = Path(os.path.realpath(path))
    with created_folder(target.parent):
        temporary = target.with_name(_name(".tenon-"))
        try:
            with temporary.open("xb") as file:
                _copy_permissions(temporary, known)
                yield file
            temporary.replace(target)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _copy_permissions(path: Path, known: os.stat_result | None) -> None:
    """Copy the permissions and, if allowed, the owner of the replaced file."""
    if known is None:
        return
    with contextlib.suppress(OSError, AttributeError):  # not every system has owners
        if (known.st_uid, known.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(path, known.st_uid, known.st_gid)
    with contextlib.suppress(OSError):
        path.chmod(stat.S_IMODE(known.st_mode))


def _name(prefix: str) -> str:
    return prefix + os.urandom(8).hex()
