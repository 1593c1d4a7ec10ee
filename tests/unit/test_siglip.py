"""SigLIP: embeddings of both towers and the logit of a pair, beside NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from damage import COUNT, survive
from tenon.errors import FormatError
from tenon.formats import importers
from tenon.formats.decompositions.transformers.clip import TowerConfig
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array
from transformer_models import Seeded, safetensors
from transformer_references import attention, clip_layers, gelu, linear, norm

WIDTH, INNER, HEADS, LAYERS, WORDS, MOST, SIDE, PATCH, PADDING = 16, 24, 2, 2, 30, 8, 12, 4, 1
SIZES = TowerConfig(WIDTH, INNER, LAYERS, HEADS, "gelu", 1e-5)
TOKENS = [3, 17, 9]


def tensors() -> dict[str, Array]:
    """The tensors of ``model.safetensors``."""
    w = Seeded(6)
    w.draw("text_model.embeddings.token_embedding.weight", WORDS, WIDTH, scale=1)
    w.draw("text_model.embeddings.position_embedding.weight", MOST, WIDTH)
    w.draw("vision_model.embeddings.patch_embedding.weight", WIDTH, 3, PATCH, PATCH)
    w.draw("vision_model.embeddings.patch_embedding.bias", WIDTH)
    w.draw("vision_model.embeddings.position_embedding.weight", (SIDE // PATCH) ** 2, WIDTH)
    for tower in ("text_model", "vision_model"):
        w.clip_layers(tower, LAYERS, WIDTH, INNER)
    w.norm("text_model.final_layer_norm", WIDTH)
    w.linear("text_model.head", WIDTH, WIDTH)
    w.norm("vision_model.post_layernorm", WIDTH)
    head = "vision_model.head"
    w.draw(f"{head}.probe", 1, 1, WIDTH, scale=1)
    w.draw(f"{head}.attention.in_proj_weight", 3 * WIDTH, WIDTH, scale=WIDTH**-0.5)
    w.draw(f"{head}.attention.in_proj_bias", 3 * WIDTH)
    w.linear(f"{head}.attention.out_proj", WIDTH, WIDTH)
    w.norm(f"{head}.layernorm", WIDTH)
    w.linear(f"{head}.mlp.fc1", WIDTH, INNER)
    w.linear(f"{head}.mlp.fc2", INNER, WIDTH)
    w.draw("logit_scale", 1, mean=1)
    w.draw("logit_bias", 1, mean=-1)
    return w.tensors


def settings(**image: int) -> bytes:
    """The content of ``config.json``."""
    sizes = {**vars(SIZES)}
    text = {**sizes, "vocab_size": WORDS, "max_position_embeddings": MOST, "pad_token_id": PADDING}
    vision = {**sizes, "image_size": SIDE, "patch_size": PATCH, **image}
    return json.dumps({"model_type": "siglip", "text_config": text, "vision_config": vision}).encode()


def unit(vector: Array) -> Array:
    return np.asarray(vector / np.linalg.norm(vector))


def text_embedding(w: dict[str, Array]) -> Array:
    """The embedding of a text with padding behind it, which all tokens see."""
    tokens = TOKENS + [PADDING] * (MOST - len(TOKENS))
    x = w["text_model.embeddings.token_embedding.weight"][tokens] + w["text_model.embeddings.position_embedding.weight"]
    x = clip_layers(w, "text_model", x, SIZES, causal=False)
    return unit(linear(w, "text_model.head", norm(w, "text_model.final_layer_norm", x[-1])))


def image_embedding(w: dict[str, Array], image: Array) -> Array:
    """The embedding of an image [3, side, side]."""
    count, name = SIDE // PATCH, "vision_model.embeddings"
    cut = image.reshape(3, count, PATCH, count, PATCH).transpose(1, 3, 0, 2, 4).reshape(count * count, -1)
    x = cut @ w[f"{name}.patch_embedding.weight"].reshape(WIDTH, -1).T + w[f"{name}.patch_embedding.bias"]
    x = clip_layers(w, "vision_model", x + w[f"{name}.position_embedding.weight"], SIZES, causal=False)
    x, head = norm(w, "vision_model.post_layernorm", x), "vision_model.head"
    matrices = np.split(w[f"{head}.attention.in_proj_weight"], 3)
    biases = np.split(w[f"{head}.attention.in_proj_bias"], 3)
    q, k, v = (a @ m.T + b for a, m, b in zip((w[f"{head}.probe"][0], x, x), matrices, biases, strict=True))
    y = linear(w, f"{head}.attention.out_proj", attention(q, k, v, HEADS))
    y = y + linear(w, f"{head}.mlp.fc2", gelu(linear(w, f"{head}.mlp.fc1", norm(w, f"{head}.layernorm", y))))
    return unit(y[0])


def test_embeddings_and_the_logit_of_a_pair() -> None:
    w, image = tensors(), np.random.default_rng(0).normal(size=(3, SIDE, SIDE)).astype(np.float32)
    graph = importers.load(safetensors(w), {"length": len(TOKENS)}, weights=settings())
    outputs = evaluate(graph, {"tokens": np.array([TOKENS]), "image": image[None]})
    text, seen = text_embedding(w), image_embedding(w, image)
    np.testing.assert_allclose(outputs["text_embedding"][0], text, atol=1e-5)
    np.testing.assert_allclose(outputs["image_embedding"][0], seen, atol=1e-5)
    right = text @ seen * np.exp(w["logit_scale"]) + w["logit_bias"]
    np.testing.assert_allclose(outputs["logits"][0], right, atol=1e-4)
    assert graph.preprocessing["image"].sampling == "bicubic"


def test_one_tower_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(settings())
    (tmp_path / "model.safetensors").write_bytes(safetensors(tensors()))
    for name, given in (("text_embedding", "tokens"), ("image_embedding", "image")):
        graph = importers.load(tmp_path, {"length": 3} if given == "tokens" else None, outputs=[name])
        assert [value.name for value in graph.inputs] == [given]


def test_wrong_settings_are_errors() -> None:
    weights = safetensors(tensors())
    with pytest.raises(FormatError, match="patches do not fill an image"):
        importers.load(weights, weights=settings(patch_size=5))

    def load(content: bytes) -> object:
        return importers.load(weights, {"length": 3}, weights=content or b"0")

    survive("siglip", settings(), load, COUNT // 8)
