"""A decoder like those of ONNX Runtime GenAI: grouped attention over a growing cache, products of 4-bit weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from tenon.errors import InputError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tenon.options import CacheType

WORDS, WIDTH, HEADS, KEY_HEADS, SIZE = 40, 64, 4, 2, 16
CACHES = ("key", "value")


def decoder() -> bytes:
    """``input_ids`` [1, S], ``attention_mask`` [1, T] and the caches [1, 2, P, 16] to ``logits`` and the caches."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def constant(name: str, data: Array) -> str:
        weights.append(numpy_helper.from_array(data, name))
        return name

    def product(x: str, name: str, outputs: int) -> str:
        codes = rng.integers(0, 256, (outputs, WIDTH // 32, 16), np.uint8)
        scales = rng.uniform(0.01, 0.05, outputs * WIDTH // 32).astype(np.float32)
        inputs = [x, constant(f"{name}.w", codes), constant(f"{name}.s", scales)]
        attributes: dict[str, Any] = {"N": outputs, "K": WIDTH, "bits": 4, "block_size": 32, "accuracy_level": 4}
        nodes.append(helper.make_node("MatMulNBits", inputs, [name], domain="com.microsoft", **attributes))
        return name

    def add(type: str, inputs: list[str], *outputs: str, domain: str = "", **attributes: Any) -> str:
        nodes.append(helper.make_node(type, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    table = constant("words", rng.normal(size=(WORDS, WIDTH)).astype(np.float32))
    x = add("Gather", [table, "input_ids"], "x")
    axis, one = constant("axis", np.array([1])), constant("one", np.array([[1]]))
    add("Sub", [add("ReduceSum", ["attention_mask", axis], "count"), one], "before")
    last = add("Reshape", ["before", constant("flat", np.array([1]))], "last")
    last = add("Cast", [last], "lengths", to=TensorProto.INT32)
    add("Shape", ["attention_mask"], "shape")
    total = add("Gather", ["shape", constant("second", np.array(1))], "length")
    total = add("Cast", [total], "total", to=TensorProto.INT32)
    angles = rng.uniform(0, 3, (32, SIZE // 2))
    tables = [constant(name, f(angles).astype(np.float32)) for name, f in (("cos", np.cos), ("sin", np.sin))]
    scale = constant("scale", np.ones(WIDTH, np.float32))
    y = add("SimplifiedLayerNormalization", [x, scale], "normal", epsilon=1e-5, axis=-1)
    parts = [product(y, name, n * SIZE) for name, n in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS))]
    past = [f"past_key_values.0.{name}" for name in CACHES]
    present = [f"present.0.{name}" for name in CACHES]
    flags = {"num_heads": HEADS, "kv_num_heads": KEY_HEADS, "do_rotary": 1}
    inputs = [*parts, *past, last, total, *tables]
    y = add("GroupQueryAttention", inputs, "attended", *present, domain="com.microsoft", **flags)
    skip = [x, product(y, "o", WIDTH), scale]
    add("SkipSimplifiedLayerNormalization", skip, "final", domain="com.microsoft", epsilon=1e-5)
    product("final", "logits", WORDS)
    cache: list[str | int] = [1, KEY_HEADS, "past_sequence_length", SIZE]
    ports = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "sequence_length"])]
    ports += [helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, "total_sequence_length"])]
    ports += [helper.make_tensor_value_info(name, TensorProto.FLOAT, cache) for name in past]
    results = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "sequence_length", WORDS])]
    total_cache: list[str | int] = [1, KEY_HEADS, "total_sequence_length", SIZE]
    results += [helper.make_tensor_value_info(name, TensorProto.FLOAT, total_cache) for name in present]
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(nodes, "decoder", ports, results, weights)
    return bytes(helper.make_model(graph, opset_imports=domains, ir_version=9).SerializeToString())


SHAPES = {"sequence_length": "1..4", "past_sequence_length": "0..12", "total_sequence_length": "1..16"}


def feeds(tokens: list[int], past: int) -> dict[str, Array]:
    return {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, past + len(tokens)), np.int64)}


def test_caches_grow_as_in_onnxruntime() -> None:
    model = decoder()
    session = onnxruntime.InferenceSession(model)
    caches = {f"past_key_values.0.{name}": np.zeros((1, KEY_HEADS, 0, SIZE), np.float32) for name in CACHES}
    with tenon.open(tenon.compile(model, shapes=SHAPES, name="net", no_tuning=True)) as engine:
        assert any(node.op.name == "BlockMatMul" for node in importers.load(model, SHAPES))
        past = 0
        for tokens in ([3, 1, 4], [1], [5]):
            right = session.run(None, {**feeds(tokens, past), **caches})
            caches = dict(zip(caches, right[1:], strict=True))
            results = engine.run(feeds(tokens, past))
            past += len(tokens)
            np.testing.assert_allclose(results["logits"], right[0], atol=0.03 * np.abs(right[0]).max())
            np.testing.assert_allclose(results["present.0.key"], right[1], atol=0.03 * np.abs(right[1]).max())
        with pytest.raises(InputError):
            engine.run({"input_ids": np.array([[1]]), "attention_mask": np.ones((1, 3), np.int64)})


def test_caches_of_onnx() -> None:
    """GroupQueryAttention reads caches of any type, too."""
    kinds: tuple[CacheType, ...] = ("fp32", "fp16", "bf16", "int8")
    results = {}
    for kind in kinds:
        bundle = tenon.compile(decoder(), shapes=SHAPES, name="net", cache_type=kind, no_tuning=True)
        with tenon.open(bundle) as engine:
            rows = [engine.run(feeds(tokens, past))["logits"][0, -1] for tokens, past in (([3, 1, 4], 0), ([1], 3))]
        results[kind] = np.stack(rows)
    right = results.pop("fp32")
    for rounded in results.values():
        assert 0 < np.abs(rounded - right).max() / np.abs(right).max() < 0.03
