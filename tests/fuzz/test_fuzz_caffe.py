"""Damaged Caffe files, text and binary: whatever is in them, only ModelError may come out.

``TENON_FUZZ`` sets the number of mutations per file and kind (default 60); the seed is fixed, so a failure repeats.
"""

from __future__ import annotations

import os
import random
import re
import resource
from collections.abc import Callable, Iterator

import pytest

from caffe_models import blob, head, layer
from caffe_models import random as numbers
from real import SHARED
from tenon import frontends
from tenon.errors import InputError, ModelError
from tenon.frontends.caffe_optimize import optimise
from tenon.frontends.caffe_schema import SCHEMA
from tenon.frontends.protobuf_write import serialise
from tenon.frontends.prototext import parse
from tenon.frontends.source import ModelFile
from tenon.ir.verify import verify

COUNT = int(os.environ.get("TENON_FUZZ", "60"))
MEMORY = 6 << 30
"""Bytes of address space that a load may not exceed."""

TEXT = (
    head(1, 3, 8, 8)
    + layer("Convolution", "convolution_param { num_output: 4 kernel_size: 3 group: 1 }", top="c", name="c")
    + layer("BatchNorm", "batch_norm_param { eps: 0.1 }", ("c",), "c", "n")
    + layer("Scale", "scale_param { bias_term: true }", ("c",), "c", "s")
    + layer("Pooling", "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }", ("c",), "p", "p")
    + layer("PriorBox", "prior_box_param { min_size: 3 aspect_ratio: 2 }", ("p", "data"), "b", "b")
    + layer("Slice", 'top: "q" slice_param { slice_point: 1 }', ("c",), "r", "t")
    + layer("Reshape", "reshape_param { shape { dim: 0 dim: -1 } }", ("q",), "f", "f")
    + layer("InnerProduct", "inner_product_param { num_output: 5 }", ("f",), "i", "i")
)
PIECES = [b"{", b"}", b'"', b": -1", b": 0", b"99999999999", b"1e40", b"nan", b"[", b"type", b"\0", b"kernel_size: 0"]


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


def worded(data: bytes, rng: random.Random) -> bytes:
    """Another number in place of one, or a piece of text where none belongs."""
    found = list(re.finditer(rb"\d+", data))
    one = rng.choice(found)
    if rng.random() < 0.7:
        number = rng.choice(
            (b"0", b"-1", b"2", b"3", b"7", b"65536", b"2147483647", b"1e9", b"0.5", b"18446744073709551615")
        )
        return data[: one.start()] + number + data[one.end() :]
    return data[: one.start()] + rng.choice(PIECES) + data[one.start() :]


def binary() -> bytes:
    net = parse(SCHEMA, "NetParameter", TEXT, "net")
    shapes: dict[str, list[tuple[int, ...]]] = {
        "c": [(4, 3, 3, 3), (4,)],
        "n": [(4,), (4,), (1,)],
        "s": [(4,), (4,)],
        "i": [(5, 108), (5,)],
    }
    for one in net.layer:
        one.set(blobs=[blob(numbers(*dims)) for dims in shapes.get(one.name, [])] or None)
    return serialise(net, ("dim",))


def sources() -> list[tuple[str, bytes]]:
    found = [("text", TEXT.encode()), ("binary", binary())]
    for name in (
        "prototxt_only/lenet/lenet",
        "prototxt_only/mobilenet_ssd/MobileNetSSD_deploy",
        "cifar10_cgo/train_val",
    ):
        path = SHARED / f"models/caffe/{name}.prototxt"
        found += [(path.stem, path.read_bytes())] if path.exists() else []
    return found


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """Let an allocation that a damaged file asks for fail instead of taking the machine down."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def test_the_undamaged_files_load() -> None:
    for name, data in sources():
        shapes = {"data": (1, 3, 32, 32)} if name == "train_val" else None
        assert len(frontends.load(data, shapes=shapes)) > 5


@pytest.mark.parametrize("damage", [truncated, flipped, overwritten, spliced, worded], ids=lambda f: f.__name__)
@pytest.mark.parametrize("source", sources(), ids=lambda s: s[0])
def test_only_model_errors_escape(source: tuple[str, bytes], damage: Callable[[bytes, random.Random], bytes]) -> None:
    name, data = source
    rng = random.Random(f"{name} {damage.__name__}")
    refused = 0
    for _ in range(COUNT):
        damaged = damage(data, rng)
        try:
            verify(frontends.load(damaged, shapes={"data": (1, 3, 32, 32)} if name == "train_val" else None))
        except (ModelError, InputError):
            refused += 1
    assert refused > COUNT // 40


@pytest.mark.parametrize("damage", [truncated, flipped, overwritten, spliced], ids=lambda f: f.__name__)
def test_damaged_weights(damage: Callable[[bytes, random.Random], bytes]) -> None:
    rng, data = random.Random(damage.__name__), binary()
    for _ in range(COUNT):
        try:
            verify(frontends.load(TEXT.encode(), weights=damage(data, rng)))
        except ModelError:
            continue


@pytest.mark.parametrize("damage", [flipped, overwritten, spliced, worded], ids=lambda f: f.__name__)
def test_rewriting_damaged_nets(damage: Callable[[bytes, random.Random], bytes]) -> None:
    rng, weights = random.Random(damage.__name__), ModelFile("w.caffemodel", binary())
    refused = 0
    for _ in range(COUNT):
        text, other = damage(TEXT.encode(), rng), ModelFile("w.caffemodel", damage(weights.data, rng))
        try:
            optimise(ModelFile("net.prototxt", text, weights=rng.choice((weights, other)))).caffemodel()
        except (ModelError, InputError):
            refused += 1
    assert refused < COUNT
