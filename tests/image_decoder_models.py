"""Models like SmolVLM of a small size with weights of a seed, and what they compute in NumPy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gguf_models import DEPTH, HIDDEN, LAYER_NAMES, VOCABULARY, DecoderFile, Variant, logits
from tenon.formats.decompositions.transformers.clip import ImageTowerConfig
from tenon.network.graph.graph import Array
from transformer_models import Seeded, safetensors, tokenizer
from transformer_references import clip_layers, linear, norm

IMAGE, AROUND, WHOLE = VOCABULARY - 1, VOCABULARY - 2, VOCABULARY - 3
WORDS = [f"{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(VOCABULARY)]
SPECIAL = {IMAGE: "<image>", AROUND: "<fake_token_around_image>", WHOLE: "<global-img>"}
TOWER = ImageTowerConfig(32, 48, 2, 2, hidden_act="gelu", image_size=16, patch_size=4)
FACTOR, ROWS = 2, 4
_ENDS = {
    "token_embd.weight": "model.text_model.embed_tokens.weight",
    "output_norm.weight": "model.text_model.norm.weight",
    "output.weight": "lm_head.weight",
}
MODEL = DecoderFile("llama")


def _named(name: str) -> str:
    if name in _ENDS:
        return _ENDS[name]
    _, layer, part, kind = name.split(".")
    return f"model.text_model.layers.{layer}.{LAYER_NAMES[part]}.{kind}"


def tower_tensors() -> dict[str, Array]:
    """The tensors of the tower and the connector, without the prefix "model."."""
    w, width, side = Seeded(4), TOWER.hidden_size, TOWER.image_size // TOWER.patch_size
    w.draw("vision_model.embeddings.patch_embedding.weight", width, 3, TOWER.patch_size, TOWER.patch_size)
    w.draw("vision_model.embeddings.patch_embedding.bias", width)
    w.draw("vision_model.embeddings.position_embedding.weight", side * side, width)
    w.clip_layers("vision_model", TOWER.num_hidden_layers, width, TOWER.intermediate_size)
    w.norm("vision_model.post_layernorm", width)
    w.linear("connector.modality_projection.proj", width * FACTOR * FACTOR, HIDDEN, bias=False)
    return w.tensors


def settings(**others: Any) -> dict[str, Any]:
    """The content of ``config.json``."""
    text = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_attention_heads": MODEL.heads,
        "num_key_value_heads": MODEL.key_heads,
        "num_hidden_layers": MODEL.layers,
        "head_dim": DEPTH,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }
    tower = {**vars(TOWER), "layer_norm_eps": 1e-5}
    return {
        "model_type": "smolvlm",
        "tie_word_embeddings": False,
        "scale_factor": FACTOR,
        "vision_config": tower,
        "text_config": text,
        **others,
    }


def weights() -> bytes:
    """The content of ``model.safetensors``."""
    tensors = {f"model.{name}": array for name, array in tower_tensors().items()}
    return safetensors({**tensors, **{_named(name): array for name, array in MODEL.weights().items()}})


def write(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(settings()))
    (folder / "model.safetensors").write_bytes(weights())
    (folder / "tokenizer.json").write_bytes(tokenizer(WORDS, SPECIAL))
    return folder


def features(image: Array) -> Array:
    """Rows [rows, hidden] of an image [3, size, size]."""
    w, patch, side = tower_tensors(), TOWER.patch_size, TOWER.image_size // TOWER.patch_size
    cut = image.reshape(3, side, patch, side, patch).transpose(1, 3, 0, 2, 4).reshape(side * side, -1)
    name = "vision_model.embeddings"
    x = cut @ w[f"{name}.patch_embedding.weight"].reshape(TOWER.hidden_size, -1).T + w[f"{name}.patch_embedding.bias"]
    x = clip_layers(w, "vision_model", x + w[f"{name}.position_embedding.weight"], TOWER, causal=False)
    grid = norm(w, "vision_model.post_layernorm", x).reshape(side, side, -1)
    joined = [
        grid[row : row + FACTOR, column : column + FACTOR].ravel()
        for row in range(0, side, FACTOR)
        for column in range(0, side, FACTOR)
    ]
    return linear(w, "connector.modality_projection.proj", np.stack(joined))


@dataclass(frozen=True)
class _Seeing(DecoderFile):
    """A decoder whose embeddings go on with the rows of an image."""

    rows: Any = None

    def weights(self, seed: int = 0) -> dict[str, Array]:
        own = MODEL.weights(seed)
        return {**own, "token_embd.weight": np.concatenate([own["token_embd.weight"], self.rows])}


def expected(tokens: Sequence[int], rows: Array) -> Array:
    """The logits behind tokens, of which those behind the vocabulary are rows of the image."""
    return logits(_Seeing("llama", rows=rows), Variant(neighbours=False), tokens)
