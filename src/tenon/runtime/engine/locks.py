"""Locks of threads that are released in forked child processes, and locks of processes."""

from __future__ import annotations

import os
from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet


class Locked:
    """Base class of objects with a lock, ``_lock``.

    A forked child only has the forking thread: a lock held by another thread would never be released in it.
    """

    def __init__(self) -> None:
        self._lock = allocate_lock()
        _owners.add(self)


_owners: WeakSet[Locked] = WeakSet()


def _renew() -> None:
    for owner in list(_owners):
        owner._lock = allocate_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock that one process of this machine has at a time: the file at ``path``, which is made.

    Where there are no locks of files, or the file cannot be made, nothing is held.
    """
    try:
        import fcntl

        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    except (ImportError, OSError):
        yield
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
