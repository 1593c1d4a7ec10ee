"""Damaging files for fuzz tests, and loading them under bounds.

``TENON_FUZZ`` sets how many mutations of each file are loaded (default 500); seeds are fixed, so a failure repeats, and
``TENON_FUZZ_FROM`` goes on where an earlier run ended.
Half of the damage knows what the file is made of: lines and words, fields of protobuf, or words of four bytes.
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
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from tenon.errors import InputError, ModelError
from tenon.ir.graph import Graph
from tenon.ir.verify import verify
from wire import damaged_message, fields

COUNT = int(os.environ.get("TENON_FUZZ", "500"))
FIRST = int(os.environ.get("TENON_FUZZ_FROM", "0"))
MEMORY = 3 << 30
"""Bytes that a load may take: constants may be folded up to 1 GiB, and are held twice while they are made."""
PATIENCE = 15
"""Seconds that a load may take on a machine with other work."""

Damage = Callable[[bytes, random.Random], bytes]


class HangError(BaseException):
    """A load took longer than PATIENCE; no handler of exceptions may take it for one of its own."""


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
    "0", "1", "-1", "2", "3", "7", "255", "65536", "99999999", "2147483647", "4294967296", "18446744073709551615",
    "1e9", "1e40", "0.5", "nan", "x",
)  # fmt: skip
PIECES = ("{", "}", "[", "]", '"', ":", "=", ",", "\0", "-")


DIGITS, WORD = re.compile(rb"[0-9]+"), re.compile(rb"[A-Za-z0-9_.-]+")


@lru_cache(maxsize=8)
def _spans(data: bytes, pattern: re.Pattern[bytes]) -> list[tuple[int, int]]:
    """Where what matches begins and ends."""
    return [match.span() for match in pattern.finditer(data)]


def renumbered(data: bytes, rng: random.Random) -> bytes:
    """A run of digits replaced by another number."""
    spans = _spans(data, DIGITS)
    if not spans:
        return flipped(data, rng)
    a, b = rng.choice(spans)
    return data[:a] + rng.choice(NUMBERS).encode() + data[b:]


def reworded(data: bytes, rng: random.Random) -> bytes:
    """A word replaced by another one of the file, or punctuation put before it."""
    spans = _spans(data, WORD)
    if not spans:
        return flipped(data, rng)
    (a, b), (c, d) = rng.choice(spans), rng.choice(spans)
    if rng.random() < 0.2:
        return data[:a] + rng.choice(PIECES).encode() + data[a:]
    return data[:a] + data[c:d] + data[b:]


def relined(data: bytes, rng: random.Random) -> bytes:
    """Lines left out, repeated or exchanged."""
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
def reworked(data: bytes, rng: random.Random) -> bytes:
    """Aligned words of four bytes set to small, huge or negative numbers, or to what stands elsewhere."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, other = (4 * rng.randrange(max(1, len(data) // 4)) for _ in range(2))
        word = int.from_bytes(data[at : at + 4], "little")
        known = (0, 1, 2, 255, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, word + 1, word - 1, word * 2, word ^ 0x10000)
        value = int.from_bytes(data[other : other + 4], "little") if rng.random() < 0.3 else rng.choice(known)
        damaged[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "little")[: len(data) - at]
    return bytes(damaged)


ANYWHERE: tuple[Damage, ...] = (truncated, flipped, overwritten, spliced)
TEXT: tuple[Damage, ...] = (renumbered, reworded, relined, renumbered)
WORDS: tuple[Damage, ...] = (reworked, reworked, reworked, renumbered)
FIELDS: tuple[Damage, ...] = (damaged_message, damaged_message, damaged_message, renumbered)


def kinds(data: bytes) -> tuple[Damage, ...]:
    """The damage that fits a file: half of it blind, half after what it is made of."""
    if all(c >= 32 or c in b"\t\r\n" for c in data[:4096]):
        return ANYWHERE + TEXT
    return ANYWHERE + (FIELDS if fields(data) else WORDS)


# ------------------------------------------------------------------------------------- loading
@contextmanager
def bounded() -> Iterator[None]:
    """Let an allocation that a damaged file asks for fail instead of taking the machine down, and a hang end."""

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


def checked(graph: Graph) -> Graph:
    """A graph that a frontend gave, which must be legal."""
    verify(graph, typed=all(v.type.bound for v in graph.inputs))
    return graph


def survive(
    name: str, data: bytes, load: Callable[[bytes], Any], count: int = COUNT, damage: Sequence[Damage] = ()
) -> int:
    """Load a sound file, then ``count`` mutations of it; returns how many were refused.

    Anything but ModelError and InputError, and a load beyond PATIENCE or MEMORY, fails the test once all are
    loaded; the file behind the first failure of each kind is kept in the folder for temporary files.
    """
    ways, refused, worst = tuple(damage) or kinds(data), 0, (0.0, "")
    failures: dict[str, str] = {}
    load(data)
    with bounded():
        for i in range(FIRST, FIRST + count):
            way = ways[i % len(ways)]
            damaged = way(data, random.Random(f"{name} {way.__name__} {i}"))
            began = time.monotonic()
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            try:
                found = load(damaged)
                if isinstance(found, Graph):
                    checked(found)
            except (ModelError, InputError):
                refused += 1
            except (Exception, HangError) as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                what = f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {str(error)[:200]}"
                key = f"{type(error).__name__} {where.filename}:{where.lineno}"
                if key not in failures:
                    failures[key] = f"{what} ({way.__name__} {i}, kept as {_keep(name, i, damaged)})"
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            worst = max(worst, (time.monotonic() - began, f"{way.__name__} {i}"))
    print(f"{name}: {count} files, {refused} refused, the slowest took {worst[0]:.2f} s ({worst[1]})")
    assert not failures, "\n".join(failures.values())
    return refused


def _keep(name: str, i: int, data: bytes) -> Path:
    folder = Path(tempfile.gettempdir()) / "tenon-fuzz"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name.replace(' ', '_')}-{i}"
    path.write_bytes(data)
    return path
