"""Damaging files for fuzz tests, and loading them under bounds.

``TENON_FUZZ`` sets the number of mutations per file and kind (default 100); seeds are fixed, so a failure repeats.
"""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tenon.errors import ModelError
from tenon.ir.graph import Graph
from tenon.ir.verify import verify

COUNT = int(os.environ.get("TENON_FUZZ", "100"))
MEMORY = 6 << 30
"""Bytes of address space that a load may not exceed."""


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


def renumbered(data: bytes, rng: random.Random) -> bytes:
    """A run of digits replaced by another number: for text formats."""
    spots = [i for i, c in enumerate(data) if 48 <= c <= 57 and not (i and 48 <= data[i - 1] <= 57)]
    if not spots:
        return flipped(data, rng)
    at = end = rng.choice(spots)
    while end < len(data) and 48 <= data[end] <= 57:
        end += 1
    number = rng.choice(("0", "1", "-1", "3", "255", "65536", "99999999", "1e9", "4294967296", "x"))
    return data[:at] + number.encode() + data[end:]


KINDS: tuple[Callable[[bytes, random.Random], bytes], ...] = (truncated, flipped, overwritten, spliced, renumbered)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Let an allocation that a damaged file asks for fail instead of taking the machine down."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def survive(name: str, data: bytes, load: Callable[[bytes], Graph], count: int = COUNT) -> int:
    """Load ``count`` mutations of each kind; only ModelError may escape.  Returns how many were refused."""
    refused = 0
    with bounded_memory():
        for kind in KINDS:
            rng = random.Random(f"{name} {kind.__name__}")
            for _ in range(count):
                try:
                    graph = load(kind(data, rng))
                    verify(graph, typed=all(v.type.bound for v in graph.inputs))
                except ModelError:
                    refused += 1
    return refused
