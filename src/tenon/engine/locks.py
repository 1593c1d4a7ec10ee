"""Locks that a forked child finds open, whoever held them in its parent."""

from __future__ import annotations

import os
from _thread import allocate_lock
from weakref import WeakSet


class Locked:
    """Something with a lock, ``_lock``.

    A child has only the thread that forked: a lock that another thread held would stay locked in it for ever.
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
