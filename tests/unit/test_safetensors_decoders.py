"""Decoders in safetensors files: logits beside NumPy, settings of rotary embeddings and of texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from decoder_runs import SIZES, TOKENS, last_logits
from gguf_models import (
    DEPTH,
    END_NAMES,
    F32,
    HIDDEN,
    LAYER_NAMES,
    POST_NAMES,
    STRING,
    U32,
    DecoderFile,
    Pair,
    Variant,
    gguf,
    logits,
)
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.safetensors.decoder_config import decoder_config
from tenon.formats.importers.safetensors.settings import ModelSettings
from tenon.network.graph.graph import Array
from transformer_models import safetensors

NAMES = {**END_NAMES, **LAYER_NAMES, "attn_qkv": "self_attn.qkv_proj"}
JOINED = {"ffn_up": "mlp.gate_up_proj"}


def named(model: DecoderFile, names: Mapping[str, str], added: float, seed: int = 0) -> dict[str, Array]:
    """The weights of a model by the library's names; scales of normalisation less ``added``."""
    result = {}
    for name, data in model.weights(seed).items():
        stem, kind = name.rsplit(".", 1)
        layer, own = stem.split(".", 2)[1:] if stem.startswith("blk.") else ("", stem)
        place = f"model.layers.{layer}.{names[own]}" if layer else names[own]
        result[f"{place}.{kind}"] = data - np.float32(added) if data.ndim == 1 and kind == "weight" else data
    return result


def settings(model_type: str, model: DecoderFile, **others: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": HIDDEN,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.key_heads,
        "num_hidden_layers": model.layers,
        "head_dim": DEPTH,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": model.tied,
        **others,
    }


BOTH = ("attn_norm", "ffn_norm")
GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
CASES: Mapping[str, tuple[DecoderFile, Variant, Mapping[str, str], float, Mapping[str, Any]]] = {
    "llama": (DecoderFile("llama"), Variant(), NAMES, 0.0, {}),
    "qwen2": (DecoderFile("qwen2", tied=True, biases=True), Variant(), NAMES, 0.0, {"rope_theta": 10000.0}),
    "qwen3": (DecoderFile("qwen3", norms=(*BOTH, "attn_q_norm", "attn_k_norm")), Variant(), NAMES, 0.0, {}),
    "phi3": (DecoderFile("phi3", joined=True), Variant(), {**NAMES, **JOINED}, 0.0, {}),
    "smollm3": (
        DecoderFile("smollm3"),
        Variant(bases=(5000.0, 0)),
        NAMES,
        0.0,
        {"no_rope_layers": [1, 0], "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
    ),
    "gemma2": (
        DecoderFile("gemma2", tied=True, norms=(*BOTH, *POST_NAMES)),
        Variant(gelu=True, embedding=HIDDEN**0.5, windows=(5, 0), softcaps=(50.0, 30.0)),
        {**NAMES, **POST_NAMES},
        1.0,
        {**GEMMA, "sliding_window": 5, "query_pre_attn_scalar": DEPTH},
    ),
}


def write(folder: Path, content: Mapping[str, Any], weights: dict[str, Array]) -> Path:
    (folder / "config.json").write_text(json.dumps(content))
    (folder / "model.safetensors").write_bytes(safetensors(weights))
    return folder


@pytest.mark.parametrize("name", CASES)
def test_logits_of_decoders(name: str, tmp_path: Path) -> None:
    model, variant, names, added, others = CASES[name]
    folder = write(tmp_path, settings(name, model, **others), named(model, names, added))
    graph = importers.load(folder, SIZES)
    right = logits(model, variant, TOKENS)
    np.testing.assert_allclose(last_logits(graph, TOKENS), right, atol=2e-4 * np.abs(right).max())


AFTER = ("post_attention_norm", "post_ffw_norm", "attn_q_norm", "attn_k_norm")
FROM_4 = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
GREEDY: Mapping[str, tuple[DecoderFile, int, Mapping[str, Any], str]] = {
    "olmo2": (
        DecoderFile("olmo2", norms=AFTER, together=True),
        0,
        {"rope_theta": 10000.0},
        "38 38 38 31 11 11 20 38 5 31 31 31 17 8 17 7 9 20 1 17 30 7 9 38 31 2 11 18 38 31 15 17 8 "
        "17 7 28 17 36 3 8 28 17 17 8 28 17 7 28 17 36 35 19 8 8 28 17 19 8 28 17 19 8 28 2",
    ),
    "olmo3": (
        DecoderFile("olmo2", 4, norms=AFTER, together=True),
        2,
        {"rope_theta": 10000.0, "sliding_window": 5, "rope_scaling": FROM_4},
        "27 10 14 0 35 14 9 24 0 15 15 15 15 11 1 1 19 14 31 7 19 19 22 35 37 7 34 20 34 7 30 30 12 "
        "12 34 33 32 32 11 19 11 27 28 19 0 0 28 22 7 7 8 7 25 28 13 7 7 7 7 7 7 7 7 7",
    ),
    "granite": (
        DecoderFile("granite"),
        4,
        {
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.125,
            "residual_multiplier": 0.7,
            "logits_scaling": 4.0,
        },
        "18 13 20 20 20 19 21 18 7 29 18 7 29 30 18 7 15 21 3 29 30 37 13 25 22 22 3 21 6 29 18 28 34 "
        "3 0 15 21 16 3 19 24 6 16 3 29 39 35 29 18 23 29 13 20 26 26 26 26 25 31 3 1 26 25 22",
    ),
}
"""Seeds and further settings, and the 64 tokens that transformers 4.57 chooses after five in f64: each time the best
logit leads by more than 0.4 % of the largest."""

KEYS = {
    "sliding_window": ("attention.sliding_window", U32),
    "embedding_multiplier": ("embedding_scale", F32),
    "attention_multiplier": ("attention.scale", F32),
    "residual_multiplier": ("residual_scale", F32),
    "logits_scaling": ("logit_scale", F32),
}
"""The keys and types of settings in GGUF files."""


def in_gguf(model: DecoderFile, seed: int, others: Mapping[str, Any]) -> bytes:
    """The same model as a converter writes it: the rows of Granite's queries and keys in the order of neighbours."""
    pairs: dict[str, Pair] = {KEYS[name][0]: (KEYS[name][1], value) for name, value in others.items() if name in KEYS}
    if "rope_scaling" in others:
        scaling = "rope.scaling."
        pairs |= {scaling + "type": (STRING, "yarn"), scaling + "factor": (F32, 4.0)}
        pairs[scaling + "original_context_length"] = (U32, 64)
    tensors = dict[str, tuple[str, tuple[int, ...], bytes]]()
    for name, data in model.weights(seed).items():
        if model.architecture == "granite" and name.endswith(("attn_q.weight", "attn_k.weight")):
            data = data.reshape(-1, 2, DEPTH // 2, HIDDEN).swapaxes(1, 2).reshape(data.shape)
        tensors[name] = ("f32", data.shape, data.tobytes())
    return gguf(replace(model, pairs=pairs).keys(), tensors)


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
@pytest.mark.parametrize("name", GREEDY)
def test_greedy_tokens_are_those_of_transformers(name: str, form: str, tmp_path: Path) -> None:
    model, seed, others, right = GREEDY[name]
    weights = named(model, {**NAMES, **(POST_NAMES if "olmo" in name else {})}, 0.0, seed)
    source = (
        in_gguf(model, seed, others) if form == "gguf" else write(tmp_path, settings(name, model, **others), weights)
    )
    with tenon.open(tenon.compile(source, name="net", no_tuning=True)) as engine:
        given, chosen = TOKENS[:5], list[int]()
        for _ in range(64):
            chosen.append(int(engine.run({"tokens": np.array([given])})["logits"][0, -1].argmax()))
            given = chosen[-1:]
    assert chosen == [int(token) for token in right.split()]


def test_settings_of_texts(tmp_path: Path) -> None:
    model = DecoderFile("llama", 1)
    tokens = {"bos_token_id": 1, "eos_token_id": [2, 5]}
    folder = write(tmp_path, settings("llama", model, **tokens), named(model, NAMES, 0.0))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "top_k": 20, "do_sample": True}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    (folder / "tokenizer.json").write_text("{}")
    graph = importers.load(folder)
    assert graph.default_sizes
    assert graph.text is not None
    assert (graph.text.bos, graph.text.eos, graph.text.context) == (1, (2, 5), 256)
    assert graph.text.ports["length"] == "length"
    assert graph.text.chat_template == "{{ x }}"
    assert graph.text.generation == {"temperature": 0.7, "top_k": 20.0, "do_sample": 1.0}
    assert graph.text.tokenizer is not None
    assert graph.text.tokenizer.content == b"{}"


LLAMA = settings("llama", DecoderFile("llama", 1))


def frequencies(content: Mapping[str, Any], room: int = 64) -> Array:
    """The frequencies of the first layer: angles of position 1."""
    rope = decoder_config(ModelSettings({**LLAMA, **content}, "config.json"), room).layers[0].rope
    assert rope is not None
    cosines, sines = rope.tables(2)
    return np.asarray(np.arctan2(sines[1], cosines[1]))


def test_rotary_embeddings_are_scaled() -> None:
    plain = 10000.0 ** -(np.arange(8) / 8)
    np.testing.assert_allclose(frequencies({}), plain, rtol=1e-5)
    linear = {"rope_scaling": {"type": "linear", "factor": 4.0}}
    np.testing.assert_allclose(frequencies(linear), plain / 4, rtol=1e-5)
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
    scaled = frequencies({"rope_scaling": llama3})
    np.testing.assert_allclose(scaled[0], plain[0], rtol=1e-5)  # a wave of 6 tokens turns more than 4 times in 64
    np.testing.assert_allclose(scaled[-1], plain[-1] / 8, rtol=1e-5)
    share = (64 * plain[1] / (2 * np.pi) - 1) / 3  # between 1 and 4 turns
    np.testing.assert_allclose(scaled[1], plain[1] * ((1 - share) / 8 + share), rtol=1e-5)
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "type": "longrope"}
    longrope = {"rope_scaling": factors, "original_max_position_embeddings": 64}
    np.testing.assert_allclose(frequencies({"rope_scaling": {**factors, **longrope}}), plain, rtol=1e-5)
    assert frequencies({"rope_scaling": {**factors, **longrope}}, room=128)[0] == pytest.approx(plain[0] / 2)


YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 2048}


@pytest.mark.parametrize(
    ("more", "right", "magnitude"),
    [
        (
            {"beta_fast": 16.0, "beta_slow": 2.0, "mscale": 1.0, "mscale_all_dim": 0.7},
            [1.0, 0.316227764, 0.100000001, 0.022399468, 0.004166666, 0.000395285, 0.000125, 3.9528e-05],
            1.0544565075669314,
        ),
        (
            {"truncate": False},
            [1.0, 0.316227764, 0.100000001, 0.022578098, 0.004233134, 0.000419459, 0.000125, 3.9528e-05],
            1.2079441541679836,
        ),
    ],
)
def test_yarn_is_that_of_transformers(more: Mapping[str, Any], right: list[float], magnitude: float) -> None:
    """Frequencies and magnitudes that transformers 4.57 computes for heads of 16 elements."""
    content = {**LLAMA, "max_position_embeddings": 8192, "rope_scaling": {**YARN, **more}}
    rope = decoder_config(ModelSettings(content, "config.json"), 64).layers[0].rope
    assert rope is not None
    assert rope.factors is not None
    np.testing.assert_allclose(10000.0 ** -(np.arange(8) / 8) / rope.factors, right, rtol=2e-5)
    assert rope.magnitude == pytest.approx(magnitude, rel=1e-6)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"rope_scaling": {"type": "proportional"}}, "scaled by 'proportional' are not supported"),
        ({"hidden_act": "relu6"}, "the activation 'relu6' is not supported"),
        ({"sliding_window": 4, "layer_types": ["linear_attention"]}, "layers of other kinds"),
    ],
)
def test_what_is_refused(others: Mapping[str, Any], words: str, tmp_path: Path) -> None:
    model = DecoderFile("llama", 1)
    folder = write(tmp_path, settings("llama", model, **others), named(model, NAMES, 0.0))
    with pytest.raises(UnsupportedError, match=words):
        importers.load(folder, SIZES)
