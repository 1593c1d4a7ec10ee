"""Embeddings of texts by ONNX networks as exporters write them: masks, token types, and states to be averaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tenon
from embedding_models import NETWORK, SHAPES, folder
from libtenon import needed, run, succeeded
from tenon.errors import InputError
from tenon.speech import Embedder
from transformer_models import SMALL_BERT, bert_tensors, config, safetensors


def test_states_are_averaged(tmp_path: Path) -> None:
    model, table = folder(tmp_path)
    with tenon.open(tenon.compile(model, shapes=SHAPES)) as engine:
        one, other = Embedder(engine).embed([" wb", " wc wa"])
    for vector, tokens in ((one, [2]), (other, [3, 1])):
        mean = (table[tokens] + table[0]).mean(0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)


def test_inputs_that_a_text_does_not_give(tmp_path: Path) -> None:
    model, _ = folder(tmp_path, NETWORK.replace("token_type_ids", "colours"))
    with (
        tenon.open(tenon.compile(model, shapes=SHAPES)) as engine,
        pytest.raises(InputError, match="has an input 'colours', which a text does not give"),
    ):
        Embedder(engine)


def bert_folder(path: Path) -> Path:
    """A small network of the shape of MiniLM, with the tokenizer of BERT: word pieces, lower case, tokens around."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "man", "is", "eat", "##ing", "food", ".", "##s", "u", "##n"]
    names = {name: i for i, name in enumerate(words)}
    special = {name: {"id": name, "ids": [names[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    around = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    around += [{"SpecialToken": {"id": "[SEP]", "type_id": 0}}]
    settings = {"prefix": "##", "cleanup": True}
    normalizer = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    added = [
        {"id": names[name], "content": name, "special": True, "single_word": False}
        | {"lstrip": False, "rstrip": False, "normalized": False}
        for name in words[:4]
    ]
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": names}
    definition = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", **normalizer},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", **settings},
        "post_processor": {"type": "TemplateProcessing", "single": around, "pair": around, "special_tokens": special},
        "model": {**model, "max_input_chars_per_word": 100},
    }
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps(definition))
    (path / "model.safetensors").write_bytes(safetensors(bert_tensors(SMALL_BERT)))
    (path / "config.json").write_bytes(config("bert", SMALL_BERT))
    return path


TEXTS = ("A man is eating food.", "  M\u00e0n EATS \u4f60 (food)", "[SEP] un", "a")


def test_programs_embed_texts(tmp_path: Path) -> None:
    """By word pieces of BERT and the mean of a network's states: the vectors of Python."""
    bert, averaged = bert_folder(tmp_path / "bert"), folder(tmp_path)[0] / "model.onnx"
    for source, shapes, texts in ((bert, None, TEXTS), (averaged, SHAPES, (" wa wb", " wc"))):
        bundle = tenon.compile(source, shapes=shapes, no_tuning=True, name="net")
        with tenon.open(bundle) as engine:
            wanted = np.stack(list(Embedder(engine).embed(texts)))
        made = bundle.save(tmp_path / "net", ("exe", "text", "header", "object", "weights"))
        shown = succeeded(run(made / "net", *texts)).decode()
        vectors = np.array([list(map(float, line.split())) for line in shown.splitlines()])
        np.testing.assert_allclose(vectors, wanted, rtol=0, atol=2e-7)
        assert succeeded(run(made / "net", stdin="\n".join(texts).encode())).decode() == shown
        done = run(made / "net", "a " * 40)
        assert (done.returncode, b"more tokens than the network takes" in done.stderr) == (2, True)
        flags = ("-std=c99", "-Wall", "-Wextra", "-Wcast-qual", "-Werror", "-pedantic", f"-I{made}", "-c")
        succeeded(run(needed("gcc"), *flags, made / "net_text.c", "-o", tmp_path / "net_text.o"))
