"""A decoder as exporters write it: its caches grow by what they are given, from input to output."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tenon.network.graph.graph import Array

WORDS, WIDTH, HEADS, LAYERS, POSITIONS = 50, 32, 2, 2, 96
HEAD = WIDTH // HEADS
CACHES = tuple(f"{i}.{part}" for i in range(LAYERS) for part in ("key", "value"))


class _Writer:
    """Adds nodes and weights; a node is called by its output."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, name: str, data: object, dtype: type = np.int64) -> str:
        self.weights.append(numpy_helper.from_array(np.array(data, dtype), name))
        return name

    def random(self, name: str, *shape: int, scale: float, mean: float = 0.0) -> str:
        return self.constant(name, mean + scale * self.rng.normal(size=shape), np.float32)

    def add(self, type: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(type, inputs, [name], name=f"the_{name}", **attributes))
        return name

    def norm(self, x: str, name: str) -> str:
        scale = self.random(f"{name}.scale", WIDTH, scale=0.1, mean=1)
        bias = self.random(f"{name}.bias", WIDTH, scale=0.1)
        return self.add("LayerNormalization", [x, scale, bias], name)

    def linear(self, x: str, name: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        return self.add("MatMul", [x, self.random(f"{name}.w", inputs, outputs, scale=gain / inputs**0.5)], name)

    def attention(self, x: str, layer: int) -> str:
        parts = {}
        for part in ("query", "key", "value"):
            flat = self.linear(x, f"{layer}.{part}.flat", WIDTH, WIDTH)
            split = self.add("Reshape", [flat, "split"], f"{layer}.{part}.split")
            parts[part] = self.add("Transpose", [split], f"{layer}.{part}", perm=[0, 2, 1, 3])
        for part in ("key", "value"):
            name = f"{layer}.{part}"
            parts[part] = self.add("Concat", [f"past_key_values.{name}", parts[part]], f"present.{name}", axis=2)
        turned = self.add("Transpose", [parts["key"]], f"{layer}.turned", perm=[0, 1, 3, 2])
        scores = self.add("MatMul", [parts["query"], turned], f"{layer}.scores")
        scaled = self.add("Mul", [scores, "factor"], f"{layer}.scaled")
        causal = self.add("Where", ["seen", scaled, "lowest"], f"{layer}.causal")
        weights = self.add("Softmax", [causal], f"{layer}.weights", axis=-1)
        heads = self.add("MatMul", [weights, parts["value"]], f"{layer}.heads")
        joined = self.add("Transpose", [heads], f"{layer}.joined", perm=[0, 2, 1, 3])
        return self.linear(self.add("Reshape", [joined, "join"], f"{layer}.flat"), f"{layer}.attention", WIDTH, WIDTH)

    def positions(self) -> None:
        """``place`` [S], the positions of the words, and ``seen`` [S, P + S], the words that each may look at."""
        self.add("Shape", ["input_ids"], "shape")
        self.add("Shape", ["past_key_values.0.key"], "past_shape")
        count = self.add("Gather", ["shape", self.constant("axis_1", 1)], "count")
        past = self.add("Gather", ["past_shape", self.constant("axis_2", 2)], "past")
        total = self.add("Add", [past, count], "total")
        one = self.constant("one", 1)
        place = self.add("Range", [past, total, one], "place")
        every = self.add("Range", [self.constant("zero", 0), total, one], "every")
        column = self.add("Unsqueeze", [place, self.constant("last", [1])], "column")
        row = self.add("Unsqueeze", [every, self.constant("first", [0])], "row")
        self.add("LessOrEqual", [row, column], "before")
        self.add("Cast", ["attention_mask"], "given", to=TensorProto.BOOL)
        self.add("And", ["before", "given"], "seen")


def decoder(seed: int = 0) -> bytes:
    """A model like GPT: ``input_ids`` [1, S], ``attention_mask`` [1, P + S], ``past_key_values.N.key`` and ``.value``
    [1, heads, P, head] to ``logits`` [1, S, words] and ``present.N.key`` and ``.value`` [1, heads, P + S, head]."""
    w = _Writer(seed)
    w.constant("split", [0, 0, HEADS, HEAD])
    w.constant("join", [0, 0, WIDTH])
    w.constant("factor", HEAD**-0.5, np.float32)
    w.constant("lowest", -3.4e38, np.float32)
    w.positions()
    words = w.add("Gather", [w.random("words", WORDS, WIDTH, scale=1), "input_ids"], "embedded")
    places = w.add("Gather", [w.random("places", POSITIONS, WIDTH, scale=0.5), "place"], "placed")
    x = w.add("Add", [words, places], "x")
    for i in range(LAYERS):
        x = w.add("Add", [x, w.attention(w.norm(x, f"{i}.norm"), i)], f"{i}.x")
        wide = w.linear(w.norm(x, f"{i}.second"), f"{i}.wide", WIDTH, 4 * WIDTH)
        narrow = w.linear(w.add("Relu", [wide], f"{i}.relu"), f"{i}.narrow", 4 * WIDTH, WIDTH)
        x = w.add("Add", [x, narrow], f"{i}.y")
    w.linear(w.norm(x, "norm"), "logits", WIDTH, WORDS, gain=3)
    floats = TensorProto.FLOAT
    inputs = [
        helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "sequence"]),
        helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, "past + sequence"]),
    ]
    outputs = [helper.make_tensor_value_info("logits", floats, [1, "sequence", WORDS])]
    for name in CACHES:
        inputs.append(helper.make_tensor_value_info(f"past_key_values.{name}", floats, [1, HEADS, "past", HEAD]))
        outputs.append(helper.make_tensor_value_info(f"present.{name}", floats, [1, HEADS, "total", HEAD]))
    graph = helper.make_graph(w.nodes, "decoder", inputs, outputs, w.weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def generated(model: bytes, prompt: list[int], count: int) -> tuple[list[int], list[Array]]:
    """The words that onnxruntime generates greedily after a prompt, with a cache that grows, and the logits of each."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options)
    past = {f"past_key_values.{name}": np.zeros((1, HEADS, 0, HEAD), np.float32) for name in CACHES}
    words, logits, given = list[int](), list[Array](), prompt
    for i in range(count):
        mask = np.ones((1, len(prompt) + i), np.int64)
        results = session.run(None, {"input_ids": np.array([given]), "attention_mask": mask, **past})
        past = dict(zip(past, results[1:], strict=True))
        logits.append(results[0][0, -1])
        words.append(int(logits[-1].argmax()))
        given = words[-1:]
    return words, logits
