"""Encoders of texts in safetensors and GGUF files: BERT, RoBERTa, Nomic BERT and ModernBERT beside NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from damage import COUNT, survive
from gguf_models import F32, STRING, U32, Pair, gguf
from tenon.errors import FormatError, UnsupportedError
from tenon.formats import importers
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph
from text_encoder_models import (
    LAYERS,
    MODERN,
    NOMIC,
    in_gguf,
    modern_states,
    modern_tensors,
    nomic_states,
    nomic_tensors,
)
from transformer_models import SMALL_BERT, bert_tensors, config, safetensors
from transformer_references import bert_embedding

TOKENS = [3, 17, 9, 28, 4, 0, 22, 8, 15, 1]
FEW = TOKENS[:7]
STATES = {"modern": modern_states, "nomic": nomic_states}
FOLDERS = {"modern": (MODERN, modern_tensors), "nomic": (NOMIC, nomic_tensors)}
BERT = bert_tensors(SMALL_BERT)
_BERT_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def folder(path: Path, settings: dict[str, Any], tensors: dict[str, Array], **pooling: bool) -> Path:
    """A model's folder, with the file of sentence-transformers if ``pooling`` is given."""
    (path / "config.json").write_text(json.dumps(settings))
    (path / "model.safetensors").write_bytes(safetensors(tensors))
    if pooling:
        (path / "1_Pooling").mkdir()
        (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **pooling}))
    return path


def unit(vector: Array) -> Array:
    return np.asarray(vector / np.linalg.norm(vector))


def embedded(graph: Graph, tokens: list[int]) -> Array:
    return np.asarray(evaluate(graph, {"tokens": np.array([tokens])})["embedding"][0])


def bert_file(pooling: int = 1) -> bytes:
    """BERT as a GGUF file."""
    stored = {}
    for name, data in BERT.items():
        stem, kind = name.rsplit(".", 1)
        if stem.startswith("encoder.layer."):
            number, part = stem.removeprefix("encoder.layer.").split(".", 1)
            stem = f"blk.{number}.{_BERT_NAMES[part]}"
        else:
            stem = _BERT_NAMES[stem]
        stored[f"{stem}.{kind}"] = ("f32", data.shape, data.tobytes())
    keys: dict[str, Pair] = {
        "general.architecture": (STRING, "bert"),
        "bert.block_count": (U32, SMALL_BERT.num_hidden_layers),
        "bert.embedding_length": (U32, SMALL_BERT.hidden_size),
        "bert.feed_forward_length": (U32, SMALL_BERT.intermediate_size),
        "bert.attention.head_count": (U32, SMALL_BERT.num_attention_heads),
        "bert.attention.layer_norm_epsilon": (F32, SMALL_BERT.layer_norm_eps),
        "bert.context_length": (U32, SMALL_BERT.max_position_embeddings),
        "bert.pooling_type": (U32, pooling),
    }
    return gguf(keys, stored)


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
@pytest.mark.parametrize("name", STATES)
def test_states_of_rotary_encoders(name: str, form: str, tmp_path: Path) -> None:
    """The layers of ModernBERT look at all tokens and at those near; both embeddings, the mean and the first state."""
    states = STATES[name](TOKENS)
    settings, tensors = FOLDERS[name]
    for first, right in ((False, states.mean(0)), (True, states[0])):
        path = tmp_path / str(first)
        path.mkdir()
        pooling = {"pooling_mode_cls_token": first, "pooling_mode_mean_tokens": not first}
        source = in_gguf(f"{name}-bert", 1 + first) if form == "gguf" else folder(path, settings, tensors(), **pooling)
        graph = importers.load(source, {"length": len(TOKENS)})
        outputs = evaluate(graph, {"tokens": np.array([TOKENS])})
        np.testing.assert_allclose(outputs["last_hidden_state"][0], states, atol=1e-5)
        np.testing.assert_allclose(outputs["embedding"][0], unit(right), atol=1e-5)


def test_texts_of_any_length(tmp_path: Path) -> None:
    with tenon.open(tenon.compile(folder(tmp_path, MODERN, modern_tensors()), no_tuning=True)) as engine:
        for tokens in (TOKENS, TOKENS[:1], TOKENS[2:8]):
            vector = engine.run({"tokens": np.array([tokens])})["embedding"][0]
            np.testing.assert_allclose(vector, unit(modern_states(tokens).mean(0)), atol=1e-5)


def test_bert_in_gguf() -> None:
    right = bert_embedding(BERT, FEW, 2, 2)
    np.testing.assert_allclose(embedded(importers.load(bert_file(), {"length": 7}), FEW), right, atol=1e-5)
    graph = importers.load(bert_file(2), {"length": 7})
    outputs = evaluate(graph, {"tokens": np.array([FEW])})
    np.testing.assert_allclose(outputs["embedding"][0], unit(outputs["last_hidden_state"][0, 0]), atol=1e-5)
    assert graph.text is not None
    assert (graph.text.kind, graph.text.ports["embedding"], graph.text.add_eos) == ("encoder", "embedding", True)


def test_positions_of_roberta_begin_behind_padding(tmp_path: Path) -> None:
    places = BERT["embeddings.position_embeddings.weight"]
    moved = {**BERT, "embeddings.position_embeddings.weight": np.concatenate([places[-2:], places[:-2]])}
    settings = {**json.loads(config("xlm-roberta", SMALL_BERT)), "pad_token_id": 1}
    graph = importers.load(folder(tmp_path, settings, moved), {"length": 7})
    np.testing.assert_allclose(embedded(graph, FEW), bert_embedding(BERT, FEW, 2, 2), atol=1e-5)


def test_what_is_not_supported(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="pools states by the way 4"):
        importers.load(bert_file(4), {"length": 7})
    model = folder(tmp_path, MODERN, modern_tensors(), pooling_mode_max_tokens=True)
    with pytest.raises(UnsupportedError, match="pools states by max_tokens"):
        importers.load(model, {"length": 7})
    (model / "1_Pooling" / "config.json").write_text("[")
    with pytest.raises(FormatError, match=r"1_Pooling/config\.json: it is no JSON"):
        importers.load(model, {"length": 7})
    biased = json.dumps({**MODERN, "mlp_bias": True}).encode()
    with pytest.raises(UnsupportedError, match="ModernBERT with biases"):
        importers.load(safetensors(modern_tensors()), weights=biased)
    with pytest.raises(FormatError, match="16 elements in 3 heads"):
        importers.load(in_gguf("nomic-bert", attention__head_count=(U32, 3)))


@pytest.mark.parametrize("name", STATES)
def test_damaged_encoders_are_errors(name: str) -> None:
    data = in_gguf(f"{name}-bert")
    end = data.index(b"blk.1.")
    survive(f"gguf {name}", data[:end], lambda d: importers.load(d + data[end:], {"length": 7}), COUNT // 8)
    settings = json.dumps(FOLDERS[name][0]).encode()
    weights = safetensors(FOLDERS[name][1]())
    survive(name, settings, lambda d: importers.load(weights, {"length": 7}, weights=d or b"0"), COUNT // 8)
    assert LAYERS > 1
