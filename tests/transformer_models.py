"""Models of the library transformers of true structure and small size, with weights of a seed."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tenon.formats.decompositions.transformers.bert import BertConfig
from tenon.formats.decompositions.transformers.clip import ClipConfig, ImageTowerConfig, TextTowerConfig
from tenon.formats.decompositions.transformers.moonshine import MoonshineConfig
from tenon.formats.decompositions.transformers.whisper import WhisperConfig
from tenon.network.graph.graph import Array

SMALL_WHISPER = WhisperConfig(
    vocab_size=40,
    d_model=16,
    encoder_layers=1,
    encoder_attention_heads=2,
    encoder_ffn_dim=24,
    decoder_layers=2,
    decoder_attention_heads=2,
    decoder_ffn_dim=20,
    num_mel_bins=8,
    max_source_positions=12,
    max_target_positions=32,
)

SMALL_MOONSHINE = MoonshineConfig(
    vocab_size=40,
    hidden_size=24,
    intermediate_size=20,
    encoder_num_hidden_layers=1,
    encoder_num_attention_heads=2,
    decoder_num_hidden_layers=2,
    decoder_num_attention_heads=2,
    max_position_embeddings=32,
    partial_rotary_factor=0.7,
)
SMALL_BERT = BertConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=12,
)
SMALL_CLIP = ClipConfig(
    TextTowerConfig(16, 24, 2, 2, vocab_size=30, max_position_embeddings=8),
    ImageTowerConfig(24, 32, 1, 3, hidden_act="gelu", image_size=12, patch_size=4),
    10,
)


def safetensors(tensors: Mapping[str, Array], types: Mapping[str, str] | None = None) -> bytes:
    """A file of the format; ``types`` are names of other types than F32."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    content = b""
    for name, array in tensors.items():
        data = array.tobytes()
        place = [len(content), len(content) + len(data)]
        header[name] = {"dtype": (types or {}).get(name, "F32"), "shape": list(array.shape), "data_offsets": place}
        content += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content


def config(model_type: str, sizes: object) -> bytes:
    """The content of ``config.json`` for a dataclass of sizes."""
    return json.dumps({"model_type": model_type, **asdict(sizes)}).encode()  # type: ignore[call-overload]


def tokenizer(words: Sequence[str], special: Mapping[int, str]) -> bytes:
    """A ``tokenizer.json`` of whole words, with special tokens by their numbers."""
    names = {i: special.get(i, word) for i, word in enumerate(words)}
    added = [{"id": i, "content": name, "special": True} for i, name in special.items()]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [{**token, **flags} for token in added],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE",
                "ignore_merges": True,
                "vocab": {name: i for i, name in names.items()},
                "merges": [],
            },
        }
    ).encode()


class Seeded:
    """Weights drawn one after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.tensors: dict[str, Array] = {}

    def draw(self, name: str, *shape: int, mean: float = 0.0, scale: float = 0.1) -> None:
        self.tensors[name] = (mean + scale * self.rng.normal(size=shape)).astype(np.float32)

    def linear(self, name: str, inputs: int, outputs: int, *, bias: bool = True) -> None:
        self.draw(f"{name}.weight", outputs, inputs, scale=inputs**-0.5)
        if bias:
            self.draw(f"{name}.bias", outputs)

    def norm(self, name: str, width: int, *, bias: bool = True) -> None:
        self.draw(f"{name}.weight", width, mean=1)
        if bias:
            self.draw(f"{name}.bias", width)

    def clip_layers(self, tower: str, layers: int, width: int, inner: int) -> None:
        """The layers of a tower of CLIP or SigLIP."""
        for i in range(layers):
            name = f"{tower}.encoder.layers.{i}"
            for part in ("q", "k", "v", "out"):
                self.linear(f"{name}.self_attn.{part}_proj", width, width)
            for part in ("layer_norm1", "layer_norm2"):
                self.norm(f"{name}.{part}", width)
            self.linear(f"{name}.mlp.fc1", width, inner)
            self.linear(f"{name}.mlp.fc2", inner, width)


def whisper_tensors(config: WhisperConfig, seed: int = 0) -> dict[str, Array]:
    """The tensors of ``model.safetensors``."""
    w, width = Seeded(seed), config.d_model
    w.draw("model.encoder.conv1.weight", width, config.num_mel_bins, 3, scale=1)
    w.draw("model.encoder.conv2.weight", width, width, 3, scale=0.3)
    for name in ("model.encoder.conv1.bias", "model.encoder.conv2.bias"):
        w.draw(name, width)
    w.draw("model.encoder.embed_positions.weight", config.max_source_positions, width)
    w.draw("model.decoder.embed_tokens.weight", config.vocab_size, width, scale=1)
    w.draw("model.decoder.embed_positions.weight", config.max_target_positions, width, scale=1)
    sides = (
        ("encoder", config.encoder_layers, config.encoder_ffn_dim, ("self_attn",)),
        ("decoder", config.decoder_layers, config.decoder_ffn_dim, ("self_attn", "encoder_attn")),
    )
    for side, layers, inner, attentions in sides:
        for i in range(layers):
            name = f"model.{side}.layers.{i}"
            for attention in attentions:
                w.norm(f"{name}.{attention}_layer_norm", width)
                for part in ("q", "k", "v", "out"):
                    w.linear(f"{name}.{attention}.{part}_proj", width, width, bias=part != "k")
            w.norm(f"{name}.final_layer_norm", width)
            w.linear(f"{name}.fc1", width, inner)
            w.linear(f"{name}.fc2", inner, width)
        w.norm(f"model.{side}.layer_norm", width)
    return w.tensors


def moonshine_tensors(config: MoonshineConfig, seed: int = 0) -> dict[str, Array]:
    """The tensors of ``model.safetensors``."""
    w, width, inner = Seeded(seed), config.hidden_size, config.intermediate_size
    shapes = ((width, 1, 127), (2 * width, width, 7), (width, 2 * width, 3))
    for i, shape in enumerate(shapes, 1):
        w.draw(f"model.encoder.conv{i}.weight", *shape, scale=(shape[1] * shape[2]) ** -0.5)
        if i > 1:
            w.draw(f"model.encoder.conv{i}.bias", shape[0])
    w.norm("model.encoder.groupnorm", width)
    w.norm("model.encoder.layer_norm", width, bias=False)
    w.norm("model.decoder.norm", width, bias=False)
    w.draw("model.decoder.embed_tokens.weight", config.vocab_size, width, scale=1)
    for i in range(config.encoder_num_hidden_layers):
        _moonshine_layer(w, f"model.encoder.layers.{i}", width, inner, decoder=False)
    for i in range(config.decoder_num_hidden_layers):
        _moonshine_layer(w, f"model.decoder.layers.{i}", width, inner, decoder=True)
    return w.tensors


def _moonshine_layer(w: Seeded, name: str, width: int, inner: int, *, decoder: bool) -> None:
    for attention in ("self_attn", "encoder_attn") if decoder else ("self_attn",):
        for part in "qkvo":
            w.linear(f"{name}.{attention}.{part}_proj", width, width, bias=False)
    for norm in ("input_layernorm", "post_attention_layernorm", *(("final_layernorm",) if decoder else ())):
        w.norm(f"{name}.{norm}", width, bias=False)
    w.linear(f"{name}.mlp.fc1", width, 2 * inner if decoder else inner)
    w.linear(f"{name}.mlp.fc2", inner, width)


def bert_tensors(config: BertConfig, seed: int = 0, prefix: str = "") -> dict[str, Array]:
    """The tensors of ``model.safetensors``, whose names begin with ``prefix``."""
    w, width = Seeded(seed), config.hidden_size
    for name, rows in (
        ("word", config.vocab_size),
        ("position", config.max_position_embeddings),
        ("token_type", config.type_vocab_size),
    ):
        w.draw(f"{prefix}embeddings.{name}_embeddings.weight", rows, width, scale=1)
    w.norm(f"{prefix}embeddings.LayerNorm", width)
    for i in range(config.num_hidden_layers):
        name = f"{prefix}encoder.layer.{i}"
        for part in ("query", "key", "value"):
            w.linear(f"{name}.attention.self.{part}", width, width)
        w.linear(f"{name}.attention.output.dense", width, width)
        w.norm(f"{name}.attention.output.LayerNorm", width)
        w.linear(f"{name}.intermediate.dense", width, config.intermediate_size)
        w.linear(f"{name}.output.dense", config.intermediate_size, width)
        w.norm(f"{name}.output.LayerNorm", width)
    return w.tensors


def clip_settings(config: ClipConfig) -> bytes:
    """The content of ``config.json``."""
    parts = {"text_config": asdict(config.text), "vision_config": asdict(config.image)}
    return json.dumps({"model_type": "clip", "projection_dim": config.projection_dim, **parts}).encode()


def clip_tensors(config: ClipConfig, seed: int = 0) -> dict[str, Array]:
    """The tensors of ``model.safetensors``."""
    w, text, image = Seeded(seed), config.text, config.image
    side = image.image_size // image.patch_size
    w.draw("text_model.embeddings.token_embedding.weight", text.vocab_size, text.hidden_size, scale=1)
    w.draw("text_model.embeddings.position_embedding.weight", text.max_position_embeddings, text.hidden_size)
    w.draw("vision_model.embeddings.class_embedding", image.hidden_size)
    patches = (image.hidden_size, image.num_channels, image.patch_size, image.patch_size)
    w.draw("vision_model.embeddings.patch_embedding.weight", *patches)
    w.draw("vision_model.embeddings.position_embedding.weight", side * side + 1, image.hidden_size)
    w.clip_layers("text_model", text.num_hidden_layers, text.hidden_size, text.intermediate_size)
    w.clip_layers("vision_model", image.num_hidden_layers, image.hidden_size, image.intermediate_size)
    w.norm("text_model.final_layer_norm", text.hidden_size)
    for name in ("pre_layrnorm", "post_layernorm"):
        w.norm(f"vision_model.{name}", image.hidden_size)
    w.linear("text_projection", text.hidden_size, config.projection_dim, bias=False)
    w.linear("visual_projection", image.hidden_size, config.projection_dim, bias=False)
    return w.tensors
