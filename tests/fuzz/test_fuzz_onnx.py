"""Damaged ONNX files: whatever is in them, only ModelError may come out.

``TENON_FUZZ`` sets the number of mutations per model and kind (default 150); the seed is fixed, so a failure
repeats.
"""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onnx_models import classifier, gated
from tenon import frontends
from tenon.errors import ModelError
from tenon.ir.bind import ANY_RANK, bind
from tenon.ir.verify import verify

COUNT = int(os.environ.get("TENON_FUZZ", "150"))
MNIST = Path(__file__).parents[2] / "../shared/models/onnx/mnist/mnist.onnx"
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


def sources() -> list[tuple[str, bytes]]:
    found = [("classifier", classifier().SerializeToString()), ("gated", gated().SerializeToString())]
    return [*found, ("mnist", MNIST.read_bytes())] if MNIST.exists() else found


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """Let an allocation that a damaged file asks for fail instead of taking the machine down."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("damage", [truncated, flipped, overwritten, spliced], ids=lambda f: f.__name__)
@pytest.mark.parametrize("source", sources(), ids=lambda s: s[0])
def test_only_model_errors_escape(source: tuple[str, bytes], damage: Callable[[bytes, random.Random], bytes]) -> None:
    name, data = source
    rng = random.Random(f"{name} {damage.__name__}")
    refused = 0
    for _ in range(COUNT):
        damaged = damage(data, rng)
        try:
            graph = frontends.load(damaged)
            verify(graph, typed=all(v.type.bound for v in graph.inputs))
            names = {d for v in graph.inputs for d in v.type.shape if isinstance(d, str) and d != ANY_RANK}
            verify(bind(graph, dict.fromkeys(names, 2)))
        except ModelError:
            refused += 1
    assert refused > COUNT // 20
