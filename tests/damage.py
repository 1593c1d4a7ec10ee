"""Mutations of files for fuzz tests, and loading of mutated files under limits of time and memory.

``TENON_FUZZ`` sets how many mutations of each file are loaded (default 300); seeds are fixed, so failures are
reproducible, and ``TENON_FUZZ_FROM`` continues where an earlier run ended. Half of the mutations are structure-aware:
lines and words, fields of protobuf, tables of FlatBuffers, values of JSON (on their own or inside HDF5), files of an
archive, or 32-bit words.
"""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from types import FrameType
from typing import Any

from flat import damaged_tables, is_flat
from nested import damaged_json, damaged_member, is_archive, json_in
from tenon.errors import InputError, ModelError
from tenon.network.graph.graph import Graph
from tenon.network.graph.verify import verify
from wire import damaged_message, fields, grafted_message, renamed_field

COUNT = int(os.environ.get("TENON_FUZZ", "300"))
FIRST = int(os.environ.get("TENON_FUZZ_FROM", "0"))
MEMORY = 1 << 30
"""Bytes that a load may take."""
TIMEOUT = 10
"""Seconds that a load may take on a machine with other work."""
READABLE = 4000
"""Characters that a line of a message may have."""

Damage = Callable[[bytes, random.Random], bytes]


class HangError(BaseException):
    """A load took longer than TIMEOUT. A BaseException, so that no handler in an importer catches it."""


# ------------------------------------------------------------------------------------ any file
def truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def flipped(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def overwritten(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at + rng.randrange(9) :]


def spliced(data: bytes, rng: random.Random) -> bytes:
    a, b = sorted((rng.randrange(len(data)), rng.randrange(len(data))))
    return data[:b] + data[a:]


# ----------------------------------------------------------------------------------------- text
NUMBERS = (
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "255",
    "65536",
    "99999999",
    "2147483647",
    "4294967296",
    "18446744073709551615",
    "1e9",
    "1e40",
    "0.5",
    "nan",
    "x",
)
PIECES = ("{", "}", "[", "]", '"', ":", "=", ",", "\0", "-")


DIGITS, WORD, NAME = re.compile(rb"[0-9]+"), re.compile(rb"[A-Za-z0-9_.-]+"), re.compile(rb"[A-Za-z_][A-Za-z0-9_]{2,}")


@lru_cache(maxsize=8)
def _spans(data: bytes, pattern: re.Pattern[bytes]) -> list[tuple[int, int]]:
    """The spans of all matches of ``pattern``."""
    return [match.span() for match in pattern.finditer(data)]


def replace_number(data: bytes, rng: random.Random) -> bytes:
    """A run of digits replaced by another number."""
    spans = _spans(data, DIGITS)
    if not spans:
        return flipped(data, rng)
    a, b = rng.choice(spans)
    return data[:a] + rng.choice(NUMBERS).encode() + data[b:]


def replace_word(data: bytes, rng: random.Random) -> bytes:
    """A word replaced by another one of the file, or punctuation put before it."""
    spans = _spans(data, WORD)
    if not spans:
        return flipped(data, rng)
    (a, b), (c, d) = rng.choice(spans), rng.choice(spans)
    if rng.random() < 0.2:
        return data[:a] + rng.choice(PIECES).encode() + data[a:]
    return data[:a] + data[c:d] + data[b:]


def damage_lines(data: bytes, rng: random.Random) -> bytes:
    """Lines deleted, repeated or swapped."""
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            del lines[i]
        case 1:
            lines.insert(j, lines[i])
        case _:
            lines[i], lines[j] = lines[j], lines[i]
    return b"\n".join(lines)


# --------------------------------------------------------------------------------------- binary
def damage_words(data: bytes, rng: random.Random) -> bytes:
    """Aligned 32-bit words set to small, huge or negative numbers, or copied from elsewhere in the file."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, other = (4 * rng.randrange(max(1, len(data) // 4)) for _ in range(2))
        word = int.from_bytes(data[at : at + 4], "little")
        known = (
            0,
            1,
            2,
            255,
            0x7FFFFFFF,
            0x80000000,
            0xFFFFFFFF,
            word + 1,
            word - 1,
            word * 2,
            word ^ 0x10000,
            rng.randrange(100),
        )
        value = int.from_bytes(data[other : other + 4], "little") if rng.random() < 0.3 else rng.choice(known)
        damaged[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")[: len(data) - at]
    return bytes(damaged)


def damage_member(data: bytes, rng: random.Random) -> bytes:
    """An archive with one of its files mutated, by a mutation that fits its format."""
    return damaged_member(data, rng, lambda inside, _: rng.choice(kinds(inside))(inside, rng))


ANYWHERE: tuple[Damage, ...] = (truncated, flipped, overwritten, spliced)
TEXT: tuple[Damage, ...] = (replace_number, replace_word, damage_lines, replace_number)
WORDS: tuple[Damage, ...] = (damage_words, damage_words, damage_words, replace_number)
FIELDS: tuple[Damage, ...] = (damaged_message, damaged_message, damaged_message, replace_number)
TABLES: tuple[Damage, ...] = (damaged_tables, damaged_tables, damaged_tables, damage_words)
VALUES: tuple[Damage, ...] = (damaged_json, damaged_json, damaged_json, replace_number)
INSIDE: tuple[Damage, ...] = (damaged_json, damaged_json, damage_words, damage_words)
MEMBERS: tuple[Damage, ...] = (damage_member, damage_member, damage_member, damage_member)


def is_text(data: bytes) -> bool:
    return all(c >= 32 or c in b"\t\r\n" for c in data[:4096])


@lru_cache(maxsize=64)
def kinds(data: bytes) -> tuple[Damage, ...]:
    """The mutations that apply to a file: half of them generic, half structure-aware."""
    if is_text(data):
        return ANYWHERE + (VALUES if json_in(data) else TEXT)
    if is_archive(data):
        return ANYWHERE + MEMBERS
    if fields(data):
        return ANYWHERE + FIELDS
    if is_flat(data):
        return ANYWHERE + TABLES
    return ANYWHERE + (INSIDE if json_in(data) else WORDS)


def insert_keyword(data: bytes, word: str, rng: random.Random) -> bytes:
    """A file with a word replaced by one from the importer's dictionary."""
    if fields(data):
        return renamed_field(data, word, rng)
    spans = _spans(data, NAME)
    if not spans:
        return data
    a, b = rng.choice(spans)
    fitting = word.encode() if is_text(data) else word.encode().ljust(b - a)[: b - a]
    return data[:a] + fitting + data[b:]


def splice_from_donor(data: bytes, donor: bytes, rng: random.Random) -> bytes:
    """A file with a part of another file of its format inserted: a protobuf field, some lines, or a run of bytes."""
    if fields(data) and fields(donor):
        return grafted_message(data, donor, rng)
    if is_text(data) and is_text(donor):
        lines, given = data.split(b"\n"), donor.split(b"\n")
        at, first = rng.randrange(len(lines) + 1), rng.randrange(len(given))
        lines[at : at + rng.choice((0, 0, 1, 3))] = given[first : first + rng.choice((1, 2, 8, 20))]
        return b"\n".join(lines)
    at, first = rng.randrange(len(data) + 1), rng.randrange(len(donor) + 1)
    return data[:at] + donor[first : first + rng.choice((4, 16, 64))] + data[at:]


# ------------------------------------------------------------------------------------- loading
@contextmanager
def bounded() -> Iterator[None]:
    """Limit memory and time: a huge allocation fails with MemoryError, and a hang raises HangError."""

    def hang(_number: int, _frame: FrameType | None) -> None:
        raise HangError

    limit, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, hang)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limit[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, limit)


def verified(graph: Graph) -> Graph:
    """The imported graph, after verification."""
    verify(graph, typed=all(v.type.bound for v in graph.inputs))
    return graph


@dataclass
class Outcomes:
    """Statistics of mutated files: how many were rejected, which took longest, and the first failure of each kind."""

    name: str
    files: int = 0
    refused: int = 0
    slowest: float = 0.0
    slowest_file: str = ""
    failures: dict[str, str] = field(default_factory=dict)

    def take(self, label: str, load: Callable[[], Any], keep: Callable[[], Path]) -> ModelError | InputError | None:
        """Load a mutated file inside ``bounded()``; returns the error if it was rejected properly. Exceptions other
        than ModelError and InputError, illegal graphs, loads beyond TIMEOUT or MEMORY and unprintable or overlong
        messages are failures; the first file of each kind is kept.
        """
        refusal, began = None, time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, TIMEOUT)
        try:
            graph = load()
            if isinstance(graph, Graph):
                verified(graph)
        except (ModelError, InputError) as error:
            refusal = error
            if max(map(len, str(error).splitlines()), default=0) > READABLE:
                self._fail(label, error, keep)
        except (Exception, HangError) as error:
            self._fail(label, error, keep)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        took = time.monotonic() - began
        self.files += 1
        self.refused += refusal is not None
        if took > self.slowest:
            self.slowest, self.slowest_file = took, label
        return refusal

    def _fail(self, label: str, error: BaseException, keep: Callable[[], Path]) -> None:
        where = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__][-1]
        kind = f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}"
        if kind not in self.failures:
            self.failures[kind] = f"{kind}: {str(error)[:200]} ({label}, kept as {keep()})"

    def __str__(self) -> str:
        slowest = f"the slowest took {self.slowest:.2f} s ({self.slowest_file})"
        return f"{self.name}: {self.files} files, {self.refused} refused, {slowest}"


def survive(
    name: str, data: bytes, load: Callable[[bytes], Any], count: int = COUNT, damage: Sequence[Damage] = ()
) -> int:
    """Load a valid file, then ``count`` mutations of it; returns how many were rejected. Fails the test at the end if
    any was not rejected properly (see ``Outcomes.take``).
    """
    ways, outcomes = tuple(damage) or kinds(data), Outcomes(name)
    load(data)
    with bounded():
        for i in range(FIRST, FIRST + count):
            way = ways[i % len(ways)]
            damaged = way(data, random.Random(f"{name} {way.__name__} {i}"))
            outcomes.take(f"{way.__name__} {i}", partial(load, damaged), partial(_keep, name, i, damaged))
    print(outcomes)
    assert not outcomes.failures, "\n".join(outcomes.failures.values())
    return outcomes.refused


def kept(name: str) -> Path:
    """The path at which a failing file is kept."""
    folder = Path(tempfile.gettempdir()) / "tenon-fuzz"
    folder.mkdir(exist_ok=True)
    return folder / name.replace(" ", "_")


def _keep(name: str, i: int, data: bytes) -> Path:
    path = kept(f"{name}-{i}")
    path.write_bytes(data)
    return path
