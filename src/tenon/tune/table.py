"""Measured times of candidates, in one SQLite file that can be shared, merged and deleted.

A row is one candidate of one layer on one kind of machine: target, compiler and number of threads.  Rows of other
kinds live beside each other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tenon.errors import InputError

_SCHEMA = """
    create table if not exists candidates (
        kind text not null, layer text not null, candidate text not null, seconds real not null,
        primary key (kind, layer, candidate)
    ) without rowid
"""


@dataclass(frozen=True)
class Kind:
    """What times depend on besides the layer."""

    target: str
    compiler: str
    threads: int = 1

    def __str__(self) -> str:
        return f"{self.target} | {self.compiler} | {self.threads}"


class Table:
    """The file at ``path``; reading a file that is not there finds nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=30)
            try:
                connection.execute(_SCHEMA)
                with connection:
                    yield connection
            finally:
                connection.close()
        except (OSError, sqlite3.Error) as error:
            raise InputError(f"{self.path}: not a usable tuning table ({error}); name another with --table") from error

    def times(self, kind: Kind) -> dict[str, dict[str, float]]:
        """Seconds of every measured candidate, by layer."""
        found: dict[str, dict[str, float]] = {}
        if self.path.exists():
            with self._open() as db:
                rows = db.execute("select layer, candidate, seconds from candidates where kind = ?", (str(kind),))
                for layer, candidate, seconds in rows:
                    found.setdefault(layer, {})[candidate] = seconds
        return found

    def put(self, kind: Kind, layer: str, seconds: Mapping[str, float]) -> None:
        """Remember measurements; each call is durable by itself, so a search can be interrupted."""
        rows = [(str(kind), layer, candidate, t) for candidate, t in seconds.items()]
        with self._open() as db:
            db.executemany("insert or replace into candidates values (?, ?, ?, ?)", rows)
