"""Weights rounded to blocks when compiling: their error, which layers have them, and a limit for the outputs."""

from __future__ import annotations

import numpy as np
import pytest

import tenon
from decoder_runs import SIZES, TOKENS, last_logits
from gguf_models import DecoderFile, Variant, logits
from onnx_models import model, node
from tenon.errors import InputError
from tenon.formats import importers
from tenon.machine.kernels.block_formats import FORMATS, dequantised
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array
from tenon.network.passes.block_weights import BLOCK_FORMATS, block_weights, rounded_blocks

RNG = np.random.default_rng(3)


@pytest.mark.parametrize(("format", "decibels"), [("q8_0", 44), ("q4_0", 20.5)])
def test_error_of_rounded_weights(format: str, decibels: float) -> None:
    """It is that of the nearest numbers of a uniform grid for normal weights; zeros and single weights are exact."""
    weights = RNG.normal(size=(40, 96)).astype(np.float32)
    error = dequantised(FORMATS[format], rounded_blocks(weights, format)) - weights
    assert 10 * np.log10(np.square(weights).sum() / np.square(error).sum()) > decibels
    single = np.zeros((2, 32), np.float32)
    single[0, 5] = -0.5
    np.testing.assert_allclose(dequantised(FORMATS[format], rounded_blocks(single, format)), single, atol=3e-4)


def products() -> bytes:
    """x [2, 64] by a MatMul, a Gemm with a transposed matrix and a bias, and one of 20 inputs, which stays."""
    weights: dict[str, Array] = {
        "a": RNG.normal(size=(64, 32)).astype(np.float32),
        "b": RNG.normal(size=(20, 32)).astype(np.float32),
        "c": RNG.normal(size=(20,)).astype(np.float32),
        "d": RNG.normal(size=(20, 8)).astype(np.float32),
    }
    nodes = [
        node("MatMul", ["x", "a"], ["y"]),
        node("Gemm", ["y", "b", "c"], ["z"], transB=1),
        node("MatMul", ["z", "d"], ["result"]),
    ]
    return bytes(model(nodes, {"x": (2, 64)}, ["result"], weights).SerializeToString())


def test_products_have_weights_in_blocks() -> None:
    data = products()
    graph = importers.load(data)
    feeds = {"x": RNG.normal(size=(2, 64)).astype(np.float32)}
    right = evaluate(graph, feeds)["result"]
    lines: list[str] = []
    assert block_weights("q8_0").run(graph, lines.append) == 2
    assert [each.op.name for each in graph if "MatMul" in each.op.name] == ["BlockMatMul", "BlockMatMul", "MatMul"]
    np.testing.assert_allclose(evaluate(graph, feeds)["result"], right, atol=0.02 * np.abs(right).max())
    assert all("in q8_0, 4" in line and line.endswith(" dB") for line in lines)
    with tenon.open(tenon.compile(data, name="net", weight_format="q8_0", max_weight_error=0.1)) as engine:
        stored = engine.manifest.stored
        assert stored is not None
        assert (stored.layers, stored.bytes) == ({"q8_0": 2}, {"q8_0": 34 * (64 + 20)})
        assert stored.error is not None
        assert 0 < stored.error < 0.1
        np.testing.assert_allclose(engine.run(feeds)["result"], right, atol=0.02 * np.abs(right).max())
    words = "weights in q4_0 change the outputs .*, above max_weight_error=0.001: give a larger limit"
    with pytest.raises(InputError, match=words):
        tenon.compile(data, name="net", weight_format="q4_0", max_weight_error=0.001)


@pytest.mark.parametrize(("format", "loose"), [("q8_0", 0.04), ("q4_0", 0.4)])
def test_decoders_in_floats_are_rounded(format: str, loose: float) -> None:
    """Embedding and output layer share their blocks."""
    file = DecoderFile("llama", tied=True)
    graph = importers.load(file.file(), SIZES)
    block_weights(format).run(graph, lambda line: None)
    blocks = {v.array.tobytes() for v in graph.constants() if v.array.dtype == np.uint8}
    kinds = {n.op.name for n in graph if n.op.name in ("MatMul", "Gather", "BlockGather", "BlockMatMul")}
    assert kinds == {"BlockGather", "BlockMatMul", "Gather"}  # that of the last token, and of the tables of angles
    assert len(blocks) == 1 + 7 * file.layers
    right = logits(file, Variant(neighbours=True), TOKENS)
    np.testing.assert_allclose(last_logits(graph, TOKENS), right, atol=loose * np.abs(right).max())


def test_formats_are_those_of_the_option() -> None:
    data = DecoderFile("llama", 1).file()
    with pytest.raises(InputError, match="numbers for length, past"):
        tenon.compile(data, shapes=SIZES, weight_format="q8_0", max_weight_error=0.1)
    assert BLOCK_FORMATS == ("q8_0", "q4_0")
