"""Locks that are released in forked child processes."""

from __future__ import annotations

import os
from _thread import allocate_lock
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
