"""Whisper in the ONNX files that optimum writes, with weights by the names of the library transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tenon.formats.decompositions.transformers.whisper import WhisperConfig
from tenon.network.graph.graph import Array


class _Nodes:
    """Nodes of a graph; results are named by their numbers unless they are outputs."""

    def __init__(self, weights: Mapping[str, Array], config: WhisperConfig) -> None:
        self.weights, self.config = weights, config
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def add(self, type: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        output = name or f"/{type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(type, list(inputs), [output], **attributes))
        return output

    def given(self, data: object, name: str = "", dtype: Any = np.int64) -> str:
        array = np.array(data, dtype)
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, name: str) -> str:
        return self.given(self.weights[name], name, np.float32)

    def linear(self, x: str, name: str) -> str:
        matrix = self.given(self.weights[f"{name}.weight"].T, f"onnx::MatMul_{name}", np.float32)
        y = self.add("MatMul", x, matrix)
        return self.add("Add", self.weight(f"{name}.bias"), y) if f"{name}.bias" in self.weights else y

    def norm(self, x: str, name: str, output: str = "") -> str:
        parts = [self.weight(f"{name}.{part}") for part in ("weight", "bias")]
        return self.add("LayerNormalization", x, *parts, axis=-1, name=output)

    def gelu(self, x: str) -> str:
        erf = self.add("Erf", self.add("Div", x, self.given(2**0.5, dtype=np.float32)))
        y = self.add("Mul", x, self.add("Add", erf, self.given(1, dtype=np.float32)))
        return self.add("Mul", y, self.given(0.5, dtype=np.float32))

    def extent(self, x: str, axis: int) -> str:
        return self.add("Gather", self.add("Shape", x), self.given(axis), axis=0)

    def joined(self, *parts: str | int) -> str:
        """A shape of numbers and extents."""
        axes = self.given([0])
        return self.add(
            "Concat",
            *(self.given([p]) if isinstance(p, int) else self.add("Unsqueeze", p, axes) for p in parts),
            axis=0,
        )

    def heads(self, x: str, name: str = "") -> str:
        count = self.config.decoder_attention_heads
        split = self.joined(self.extent(x, 0), -1, count, self.config.d_model // count)
        return self.add("Transpose", self.add("Reshape", x, split), perm=[0, 2, 1, 3], name=name)

    def attend(self, q: str, k: str, v: str, seen: str = "") -> str:
        size = self.config.d_model // self.config.decoder_attention_heads
        scale = self.given(size**-0.25, dtype=np.float32)
        turned = self.add("Mul", self.add("Transpose", k, perm=[0, 1, 3, 2]), scale)
        scores = self.add("MatMul", self.add("Mul", q, scale), turned)
        terms = self.add("Softmax", self.add("Add", scores, seen) if seen else scores, axis=-1)
        y = self.add("Transpose", self.add("MatMul", terms, v), perm=[0, 2, 1, 3])
        return self.add("Reshape", y, self.joined(self.extent(y, 0), self.extent(y, 1), self.config.d_model))

    def feed_forward(self, x: str, name: str) -> str:
        y = self.gelu(self.linear(self.norm(x, f"{name}.final_layer_norm"), f"{name}.fc1"))
        return self.add("Add", x, self.linear(y, f"{name}.fc2"))


def encoder(config: WhisperConfig, weights: Mapping[str, Array]) -> bytes:
    """``encoder_model.onnx``."""
    n, x = _Nodes(weights, config), "input_features"
    for i, stride in ((1, 1), (2, 2)):
        name = f"model.encoder.conv{i}"
        conv = n.add("Conv", x, n.weight(f"{name}.weight"), n.weight(f"{name}.bias"), pads=[1, 1], strides=[stride])
        x = n.gelu(conv)
    x = n.add("Add", n.add("Transpose", x, perm=[0, 2, 1]), n.weight("model.encoder.embed_positions.weight"))
    for i in range(config.encoder_layers):
        name = f"model.encoder.layers.{i}"
        y = n.norm(x, f"{name}.self_attn_layer_norm")
        q, k, v = (n.heads(n.linear(y, f"{name}.self_attn.{part}_proj")) for part in "qkv")
        x = n.add("Add", x, n.linear(n.attend(q, k, v), f"{name}.self_attn.out_proj"))
        x = n.feed_forward(x, name)
    n.norm(x, "model.encoder.layer_norm", "last_hidden_state")
    shape = ["batch_size", config.num_mel_bins, 2 * config.max_source_positions]
    return _model(
        n, {"input_features": (np.float32, shape)}, {"last_hidden_state": ["batch_size", "n", config.d_model]}
    )


def _ports(config: WhisperConfig, *, cached: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs, with types and shapes, and the outputs of a decoder."""
    heads, size = config.decoder_attention_heads, config.d_model // config.decoder_attention_heads
    dims = {"decoder": "past_decoder_sequence_length", "encoder": "encoder_sequence_length"}
    caches = {
        f"{i}.{side}.{part}": ["batch_size", heads, dim, size]
        for i in range(config.decoder_layers)
        for side, dim in dims.items()
        for part in ("key", "value")
    }
    inputs: dict[str, Any] = {"input_ids": (np.int64, ["batch_size", "decoder_sequence_length"])}
    if cached:
        inputs |= {f"past_key_values.{name}": (np.float32, shape) for name, shape in caches.items()}
    else:
        inputs["encoder_hidden_states"] = (np.float32, ["batch_size", dims["encoder"], config.d_model])
    made = {name: shape for name, shape in caches.items() if not cached or ".decoder." in name}
    grown = {f"present.{name}": [*shape[:2], f"{shape[2]}_of_output", shape[3]] for name, shape in made.items()}
    return inputs, {"logits": ["batch_size", "decoder_sequence_length", config.vocab_size], **grown}


def _decoder(n: _Nodes, *, cached: bool, tail: str = "") -> None:
    """The nodes of a decoder; ``tail`` stands behind the names of its outputs."""
    config = n.config
    length, zero, one = n.extent("input_ids", 1), n.given(0), n.given(1)
    past = n.extent("past_key_values.0.decoder.key", 2) if cached else zero
    total = n.add("Add", past, length)
    own, every = n.add("Range", past, total, one), n.add("Range", zero, total, one)
    column, row = n.add("Unsqueeze", own, n.given([1])), n.add("Unsqueeze", every, n.given([0]))
    unseen = n.given(np.finfo(np.float32).min, dtype=np.float32)
    seen = n.add("Where", n.add("LessOrEqual", row, column), n.given(0, dtype=np.float32), unseen)
    words = n.add("Gather", n.weight("model.decoder.embed_tokens.weight"), "input_ids")
    x = n.add("Add", words, n.add("Gather", n.weight("model.decoder.embed_positions.weight"), own))
    for i in range(config.decoder_layers):
        name = f"model.decoder.layers.{i}"
        y = n.norm(x, f"{name}.self_attn_layer_norm")
        caches = []
        for part in ("key", "value"):
            new, output = n.linear(y, f"{name}.self_attn.{part[0]}_proj"), f"present.{i}.decoder.{part}"
            if cached:
                old = f"past_key_values.{i}.decoder.{part}"
                caches.append(n.add("Concat", old, n.heads(new), axis=2, name=output + tail))
            else:
                caches.append(n.heads(new, output + tail))
        q = n.heads(n.linear(y, f"{name}.self_attn.q_proj"))
        x = n.add("Add", x, n.linear(n.attend(q, caches[0], caches[1], seen), f"{name}.self_attn.out_proj"))
        q = n.heads(n.linear(n.norm(x, f"{name}.encoder_attn_layer_norm"), f"{name}.encoder_attn.q_proj"))
        kept = [f"past_key_values.{i}.encoder.{part}" for part in ("key", "value")]
        if not cached:
            for place, part in enumerate(("key", "value")):
                made = n.linear("encoder_hidden_states", f"{name}.encoder_attn.{part[0]}_proj")
                kept[place] = n.heads(made, f"present.{i}.encoder.{part}{tail}")
        x = n.add("Add", x, n.linear(n.attend(q, kept[0], kept[1]), f"{name}.encoder_attn.out_proj"))
        x = n.feed_forward(x, name)
    y = n.norm(x, "model.decoder.layer_norm")
    out = n.given(n.weights["model.decoder.embed_tokens.weight"].T, "onnx::MatMul_words", np.float32)
    n.add("MatMul", y, out, name=f"logits{tail}")


def decoder(config: WhisperConfig, weights: Mapping[str, Array], *, cached: bool) -> bytes:
    """``decoder_with_past_model.onnx`` where it is ``cached``, else ``decoder_model.onnx``."""
    n = _Nodes(weights, config)
    _decoder(n, cached=cached)
    return _model(n, *_ports(config, cached=cached))


def merged_decoder(config: WhisperConfig, weights: Mapping[str, Array]) -> bytes:
    """``decoder_model_merged.onnx``: both in the branches of one node; the cached one gives no keys of the encoder."""
    outer, branches = _Nodes(weights, config), {}
    (first, outputs), (second, _) = (_ports(config, cached=cached) for cached in (False, True))
    for cached, tail in ((True, ".then"), (False, ".else")):
        n = _Nodes(weights, config)
        _decoder(n, cached=cached, tail=tail)
        heads, size = config.decoder_attention_heads, config.d_model // config.decoder_attention_heads
        for name in outputs if cached else ():
            if ".encoder." in name:
                n.add("Identity", n.given(np.zeros((0, heads, 1, size)), dtype=np.float32), name=f"{name}{tail}")
        ports = [helper.make_tensor_value_info(f"{name}{tail}", TensorProto.FLOAT, None) for name in outputs]
        for node in n.nodes:  # results of the two branches have different names
            for names in (node.input, node.output):
                names[:] = [f"{x}{tail}" if x.startswith("/") else x for x in names]
        outer.constants |= {f"{name}{tail}": _called(each, f"{name}{tail}") for name, each in n.constants.items()}
        for node in n.nodes:
            node.input[:] = [f"{x}{tail}" if x in n.constants else x for x in node.input]
        branches[tail] = helper.make_graph(n.nodes, tail, [], ports)
    sides = {"then_branch": branches[".then"], "else_branch": branches[".else"]}
    outer.nodes.append(helper.make_node("If", ["use_cache_branch"], list(outputs), **sides))
    return _model(outer, {**first, **second, "use_cache_branch": (np.bool_, [1])}, outputs)


def _called(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    tensor.name = name
    return tensor


def _model(n: _Nodes, inputs: Mapping[str, tuple[Any, Sequence[Any]]], outputs: Mapping[str, Sequence[Any]]) -> bytes:
    kinds = {np.float32: TensorProto.FLOAT, np.int64: TensorProto.INT64, np.bool_: TensorProto.BOOL}
    given = [helper.make_tensor_value_info(name, kinds[kind], shape) for name, (kind, shape) in inputs.items()]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()]
    graph = helper.make_graph(n.nodes, "main_graph", given, made, list(n.constants.values()))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def sound_encoder(config: WhisperConfig, seed: int = 0) -> bytes:
    """``encoder_model.onnx`` of a network like Moonshine: samples of any number, and a mask of those that count.

    Convolutions of Moonshine's strides, and one layer of attention, to whose scores the mask is added.
    """
    rng, width = np.random.default_rng(seed), config.d_model
    kernels = {"conv1": (width, 1, 127), "conv2": (width, width, 7), "conv3": (width, width, 3)}
    matrices = {f"{part}_proj": (width, width) for part in "qkvo"}
    shapes = {f"{name}.weight": shape for name, shape in (kernels | matrices).items()}
    weights = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    n, zero = _Nodes(weights, config), [0]
    x = n.add("Unsqueeze", "input_values", n.given([1]))
    for name, stride in (("conv1", 64), ("conv2", 3), ("conv3", 2)):
        x = n.add("Tanh", n.add("Conv", x, n.weight(f"{name}.weight"), strides=[stride]))
        if name == "conv1":
            row, ends = n.add("Reshape", x, n.given([0, 1, -1])), [n.given([k], dtype=np.float32) for k in (1, 0)]
            x = n.add("Reshape", n.add("InstanceNormalization", row, *ends), n.add("Shape", x))
    x = n.add("Transpose", x, perm=[0, 2, 1])
    count = n.joined(n.extent(x, 1))
    every = n.add("Slice", "attention_mask", n.given(zero), n.given([2**62]), n.given([1]), n.given([384]))
    mask = n.add("Slice", every, n.given(zero), count, n.given([1]))
    whole = n.joined(n.extent(mask, 0), 1, n.extent(x, 1), n.extent(mask, 1))
    mask = n.add("Cast", n.add("Expand", n.add("Unsqueeze", mask, n.given([1, 2])), whole), to=TensorProto.FLOAT)
    hidden = n.add("Sub", n.given(1, dtype=np.float32), mask)
    least = n.given(np.finfo(np.float32).min, dtype=np.float32)
    hidden = n.add("Where", n.add("Cast", hidden, to=TensorProto.BOOL), least, hidden)
    q, k, v = (n.heads(n.linear(x, f"{part}_proj")) for part in "qkv")
    n.add("Add", x, n.linear(n.attend(q, k, v, hidden), "o_proj"), name="last_hidden_state")
    shape = ["batch_size", "encoder_sequence_length"]
    inputs = {"input_values": (np.float32, shape), "attention_mask": (np.int64, shape)}
    return _model(n, inputs, {"last_hidden_state": ["batch_size", "n", width]})
