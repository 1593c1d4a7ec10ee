"""Measured times of candidates, in one SQLite file that can be shared, merged and deleted.

A row is one candidate of one layer on one kind of machine: target, compiler, generator and number of threads.  The
table only affects speed, so a damaged or read-only one is a TenonWarning.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tenon.errors import warn

_SCHEMA = """
    create table if not exists measured (
        target text not null, compiler text not null, generator text not null, threads integer not null,
        layer text not null, candidate text not null, seconds real not null,
        primary key (target, compiler, generator, threads, layer, candidate)
    ) without rowid
"""
_PACKAGE = Path(__file__).resolve().parents[2]
_GENERATOR = ("network/graph", "network/ops", "machine", "runtime/c")
"""Folders that determine the code of a candidate, besides the compiler's flags."""


@lru_cache(maxsize=1)
def generator_version() -> str:
    """A digest of the files that generate code: times of another generator's code are not comparable."""
    digest = hashlib.sha256()
    files = [p for room in _GENERATOR for p in (_PACKAGE / room).rglob("*") if p.suffix in (".py", ".c", ".h")]
    for path in sorted(files):
        digest.update(f"{path.relative_to(_PACKAGE).as_posix()}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Kind:
    """The key of measured times, besides the layer."""

    target: str
    compiler: str
    threads: int = 1
    generator: str = ""


Times = dict[str, dict[str, float]]
"""Seconds of every measured candidate, by layer."""


class TimesTable:
    """The table in the file ``path``; a missing file is an empty table."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def times(self, kind: Kind) -> Times:
        """Times measured for exactly this key."""
        return self._read(kind).get(kind.threads, {})

    def nearest(self, kind: Kind) -> Times:
        """Times for this key, for each layer with the same number of threads, else the next smaller one, else the next
        larger one."""
        times: Times = {}
        by_threads = self._read(kind)
        for threads in sorted(by_threads, key=lambda n: (n > kind.threads, abs(n - kind.threads))):
            for layer, seconds in by_threads[threads].items():
                times.setdefault(layer, seconds)
        return times

    def put(self, kind: Kind, layer: str, seconds: Mapping[str, float]) -> None:
        """Store times; each call is committed, so that a search can be interrupted."""
        rows = [
            (kind.target, kind.compiler, kind.generator, kind.threads, layer, candidate, t)
            for candidate, t in seconds.items()
        ]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=30)) as db, db:
                db.execute(_SCHEMA)
                db.executemany("insert or replace into measured values (?, ?, ?, ?, ?, ?, ?)", rows)
        except (OSError, sqlite3.Error) as error:
            warn(f"{self.path}: the tuning table cannot be written ({error}), measurements are lost: {_REMEDY}")

    def _read(self, kind: Kind) -> dict[int, Times]:
        """Times by number of threads."""
        by_threads: dict[int, Times] = {}
        try:
            if not self.path.exists():
                return {}
            with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)) as db:
                if not db.execute("select 1 from sqlite_master where name = 'measured'").fetchone():
                    return {}
                query = (
                    "select threads, layer, candidate, seconds from measured "
                    "where target = ? and compiler = ? and generator = ?"
                )
                for threads, layer, candidate, seconds in db.execute(
                    query, (kind.target, kind.compiler, kind.generator)
                ):
                    if _plausible(threads, layer, candidate, seconds):
                        by_threads.setdefault(threads, {}).setdefault(layer, {})[candidate] = seconds
        except (OSError, ValueError, sqlite3.Error) as error:
            warn(f"{self.path}: not a usable tuning table ({error}), compiling by the estimate alone: {_REMEDY}")
            return {}
        return by_threads


_REMEDY = "delete it, or name another with --table or TENON_TUNING"


def _plausible(threads: object, layer: object, candidate: object, seconds: object) -> bool:
    texts = isinstance(layer, str) and isinstance(candidate, str)
    return texts and isinstance(threads, int) and isinstance(seconds, float) and 0 < seconds < math.inf
