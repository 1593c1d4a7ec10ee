"""A small language model: a network with a cache, weights by a seed, and tokenizers of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import gguf_models
from tenon.network.graph.byte_signs import byte_of_sign
from tenon.network.graph.graph import Array
from text_vocabularies import gguf

WIDTH = 8
WORDS = ("the", " cat", " dog", " sat", " on", " mat", " and", "ing", "\u00fc", "\u4f60\u597d", " 12", "\n")
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPLIT = r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def byte_pairs() -> dict[str, Any]:
    """A tokenizer.json of byte pairs: all bytes, some words, and three special tokens."""
    signs = {byte: sign for sign, byte in byte_of_sign().items()}
    vocabulary = {signs[byte]: byte for byte in range(256)}
    merges = list[list[str]]()
    for word in WORDS:
        name = "".join(signs[byte] for byte in word.encode())
        for end in range(2, len(name) + 1):
            pair = [name[: end - 1], name[end - 1]]
            if name[:end] not in vocabulary:
                vocabulary[name[:end]] = len(vocabulary)
                merges.append(pair)
    added = [
        {"id": len(vocabulary) + i, "content": name, "special": True, "single_word": False}
        | {"lstrip": False, "rstrip": False, "normalized": False}
        for i, name in enumerate(SPECIAL)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


def vocabulary_size(definition: Mapping[str, Any]) -> int:
    return len(definition["model"]["vocab"]) + len(definition["added_tokens"])


class Weights:
    """The weights of the network, by a seed; ``logits`` is its definition."""

    def __init__(self, words: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.rows = rng.normal(size=(words, WIDTH)).astype(np.float32)
        self.turn = (2 * rng.normal(size=(WIDTH, WIDTH))).astype(np.float32)
        self.back = rng.normal(size=(WIDTH, words)).astype(np.float32)

    def logits(self, tokens: Sequence[int]) -> Array:
        """The logits behind the last of some tokens."""
        x = self.rows[list(tokens)].astype(np.float64)
        scores = x @ x[-1]
        weights = np.exp(scores - scores.max())
        seen = weights @ x / weights.sum()
        return np.asarray(np.tanh((seen + x[-1]) @ self.turn) @ self.back)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The most probable tokens behind others."""
        chosen = list[int]()
        for _ in range(count):
            chosen.append(int(self.logits([*tokens, *chosen]).argmax()))
        return chosen


def language_model(words: int, seed: int = 0) -> bytes:
    """An ONNX file of the network, with the names of optimum's exports."""
    weights = Weights(words, seed)
    stored = {name: getattr(weights, name) for name in ("rows", "turn", "back")}
    nodes = [
        helper.make_node("Gather", ["rows", "input_ids"], ["x"]),
        helper.make_node("Concat", ["past_key_values.0.key", "x"], ["present.0.key"], axis=1),
        helper.make_node("Transpose", ["present.0.key"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "turned"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "present.0.key"], ["seen"]),
        helper.make_node("Add", ["seen", "x"], ["sum"]),
        helper.make_node("MatMul", ["sum", "turn"], ["wide"]),
        helper.make_node("Tanh", ["wide"], ["bent"]),
        helper.make_node("MatMul", ["bent", "back"], ["logits"]),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch_size", "sequence"])
    floats: dict[str, list[str | int]] = {
        "past_key_values.0.key": ["batch_size", "past", WIDTH],
        "logits": ["batch_size", "sequence", words],
        "present.0.key": ["batch_size", "all", WIDTH],
    }
    ports = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in floats.items()}
    constants = [numpy_helper.from_array(data, name) for name, data in stored.items()]
    inputs, outputs = [ids, ports["past_key_values.0.key"]], [ports["logits"], ports["present.0.key"]]
    graph = helper.make_graph(nodes, "words", inputs, outputs, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def talking_decoder(architecture: str = "llama", **changes: Any) -> gguf_models.DecoderFile:
    """A decoder as GGUF files have it, with the tokenizer of ``byte_pairs`` and the chat template."""
    keys = gguf(byte_pairs())
    kinds = {"model": gguf_models.STRING, "pre": gguf_models.STRING}
    items = {"tokens": gguf_models.STRING, "token_type": gguf_models.U32, "merges": gguf_models.STRING}
    stated: dict[str, gguf_models.Pair] = {
        **{f"tokenizer.ggml.{name}": (kind, keys[name]) for name, kind in kinds.items()},
        **{f"tokenizer.ggml.{name}": (gguf_models.ARRAY, (kind, keys[name])) for name, kind in items.items()},
        "tokenizer.chat_template": (gguf_models.STRING, TEMPLATE),
        **changes.pop("pairs", {}),
    }
    return gguf_models.DecoderFile(architecture, pairs=stated, vocabulary=len(keys["tokens"]), **changes)


def written_model(folder: Path, definition: Mapping[str, Any] | None = None, **config: Any) -> Path:
    """The model's file in a folder, with its tokenizer and settings beside it; ``config`` are of generation_config."""
    tokenizer = byte_pairs() if definition is None else definition
    numbers = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    options = {"eos_token": {"content": SPECIAL[0]}, "chat_template": TEMPLATE, "model_max_length": 64}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "words.onnx").write_bytes(language_model(vocabulary_size(tokenizer)))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [numbers[SPECIAL[0]]], **config}))
    (folder / "config.json").write_text(json.dumps({"model_type": "words", "max_position_embeddings": 64}))
    return folder / "words.onnx"
