"""ncnn files, text and binary, and the storage formats of weights."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from evaluate import difference, evaluate
from small_models import ncnn_net
from tenon.errors import FormatError, ShapeError, UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.ncnn.file import TYPES
from tenon.network.graph.graph import Array

pytestmark = pytest.mark.quick(importer="ncnn")

RNG = np.random.default_rng(5)
X = RNG.uniform(-1, 1, (1, 3, 5, 6)).astype(np.float32)
W = RNG.uniform(-1, 1, (4, 3, 3, 3)).astype(np.float32)
B = RNG.uniform(-1, 1, 4).astype(np.float32)
CONV = "0=4 1=3 4=1 5=1 6=108 9=1"


def run(param: bytes, weights: bytes = b"", x: Array = X) -> Array:
    (output,) = evaluate(importers.load(param, weights=weights or b"\0"), {"data": x}).values()
    return output


def expected(w: Array) -> Array:
    padded = np.pad(X, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((1, 4, 5, 6), np.float32)
    for f, i, j in np.ndindex(4, 5, 6):
        out[0, f, i, j] = max(0, (padded[0, :, i : i + 3, j : j + 3] * w[f]).sum() + B[f])
    return out


def test_plain_weights() -> None:
    assert (
        difference(run(ncnn_net(f"Convolution c 1 1 data y {CONV}"), bytes(4) + W.tobytes() + B.tobytes()), expected(W))
        < 1e-6
    )


def test_fp16_weights() -> None:
    half = W.astype(np.float16)
    stored = struct.pack("<I", 0x01306B47) + half.tobytes() + B.tobytes()
    assert (
        difference(run(ncnn_net(f"Convolution c 1 1 data y {CONV}"), stored), expected(half.astype(np.float32))) < 1e-6
    )


def test_int8_weights() -> None:
    """One scale per filter, then the input's; computed in floats."""
    scales = 127 / np.abs(W).max((1, 2, 3))
    small = np.round(W * scales[:, None, None, None]).astype(np.int8)
    stored = struct.pack("<I", 0x000D4B38) + small.tobytes() + B.tobytes()
    stored += scales.astype("<f4").tobytes() + struct.pack("<f", 50.0)
    output = run(ncnn_net(f"Convolution c 1 1 data y {CONV} 8=2"), stored)
    assert difference(output, expected((small / scales[:, None, None, None]).astype(np.float32))) < 1e-6


def test_quantised_weights_with_table() -> None:
    table = np.linspace(-1, 1, 256, dtype=np.float32)
    picked = RNG.integers(0, 256, W.shape).astype(np.uint8)
    stored = struct.pack("<I", 1) + table.tobytes() + picked.tobytes() + B.tobytes()
    assert difference(run(ncnn_net(f"Convolution c 1 1 data y {CONV}"), stored), expected(table[picked])) < 1e-6


def test_binary_param() -> None:
    """The same network in binary form: layers by type index, options as 32-bit words, no names."""

    def words(*values: int | float) -> bytes:
        return b"".join(struct.pack("<f" if isinstance(v, float) else "<i", v) for v in values)

    head = words(7767517, 3, 3)
    given = words(TYPES.index("Input"), 0, 1, 0, 0, 6, 1, 5, 2, 3, -233)
    conv = words(TYPES.index("Convolution"), 1, 1, 0, 1, 0, 4, 1, 3, 4, 1, 5, 1, 6, 108, 9, 2, -23310, 1, 0.25, -233)
    power = words(TYPES.index("Power"), 1, 1, 1, 2, 1, 2.0, -233)
    weights = bytes(4) + W.tobytes() + B.tobytes()
    graph = importers.load(head + given + conv + power, weights=weights)
    assert [v.name for v in (*graph.inputs, *graph.outputs)] == ["blob_0", "blob_2"]
    (output,) = evaluate(graph, {"blob_0": X}).values()
    text = ncnn_net("Convolution c 1 1 data y 0=4 1=3 4=1 5=1 6=108 9=2 -23310=1,0.25", "Power p 1 1 y z 1=2.0")
    np.testing.assert_allclose(output, run(text, weights), atol=1e-6)


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("Permute p 1 1 data y 0=3", X.transpose(0, 2, 3, 1)),
        ("Reshape r 1 1 data y 0=0 1=-1", X.reshape(1, -1, 6)),
        ("Pooling p 1 1 data y 0=1 4=1", X.mean((2, 3))),
        ("Softmax s 1 1 data y 0=0 1=1", np.exp(X) / np.exp(X).sum(1, keepdims=True)),
        ("BinaryOp b 1 1 data y 0=8 1=1 2=2.0", 2 / X),
        ("Reduction r 1 1 data y 0=3 1=0 -23303=2,1,2 4=0", X.mean((2, 3))),
        ("Crop c 1 1 data y 0=1 1=2 2=0 3=3 4=-233 5=-233", X[:, :, 2:, 1:4]),
        ("Interp i 1 1 data y 0=1 1=2.0 2=3.0", X.repeat(2, 2).repeat(3, 3)),
        ("ShuffleChannel s 1 1 data y 0=3", X),
        ("HardSwish h 1 1 data y 0=0.2 1=0.5", X * np.clip(0.2 * X + 0.5, 0, 1)),
    ],
    ids=lambda v: v.split()[0] if isinstance(v, str) else "",
)
def test_layers(line: str, result: Array) -> None:
    np.testing.assert_allclose(run(ncnn_net(line)), result, rtol=1e-5, atol=1e-6)


def test_broadcasting_along_the_outermost_fitting_axis() -> None:
    line = ("Pooling p 1 1 data a 0=1 4=1", "Split s 1 2 data b c", "BinaryOp m 2 1 b a y 0=2")
    graph = importers.load(ncnn_net(*line), weights=b"\0")
    outputs = evaluate(graph, {"data": X})
    np.testing.assert_allclose(outputs["y"], X * X.mean((2, 3), keepdims=True), atol=1e-6)


def test_files_find_each_other(tmp_path: Path) -> None:
    (tmp_path / "net.param").write_bytes(ncnn_net(f"Convolution c 1 1 data y {CONV}"))
    (tmp_path / "net.bin").write_bytes(bytes(4) + W.tobytes() + B.tobytes())
    for name in ("net.param", "net.bin", ""):
        assert not importers.load(tmp_path / name).incomplete
    (tmp_path / "net.bin").unlink()
    assert "--weights" in importers.load(tmp_path / "net.param").incomplete


def test_refusals() -> None:
    with pytest.raises(UnsupportedError) as error:
        importers.load(ncnn_net("Requantize q 1 1 data a", "ReLU r 1 1 a b", "Proposal p 1 1 b y"), weights=b"\0")
    assert [p.where for p in error.value.problems] == ["q (Requantize)", "p (Proposal)"]
    with pytest.raises(ShapeError, match=r"--shape data=1,3,N,N"):
        importers.load(ncnn_net(f"Convolution c 1 1 data y {CONV}", shape=""), weights=b"\0")
    with pytest.raises((UnsupportedError, FormatError), match="end too early"):
        importers.load(ncnn_net(f"Convolution c 1 1 data y {CONV}"), weights=bytes(100))
    with pytest.raises(FormatError, match="not used"):
        importers.load(ncnn_net(f"Convolution c 1 1 data y {CONV}"), weights=bytes(4 + 4 * 200))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("2 2\nInput data 0 1 data 0 3 4\nReLU r 1 1 data y 0.0\n", "convert the original model again"),
        ("2 2\nInput data 0 1 data 0=4 1=4 2=3\nReLU r 1 1 data y 0=0.1\n", "convert the original model again"),
        (
            "7767517\n2 2\nInput data 0 1 data 0=4 1=4 2=3\nPooling p 1 1 data y 0 3 2 0\n",
            "'Pooling p 1 1 data y 0 3 2 0' is not a layer",
        ),
    ],
)
def test_files_without_magic_number_are_rejected(text: str, what: str) -> None:
    with pytest.raises(FormatError, match="of before 2017, which ncnn itself refuses") as error:
        importers.load(text.encode())
    assert what in str(error.value)
