"""Embeddings of texts by ONNX networks as exporters write them: masks, token types, and states to be averaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tenon
from command_line import run_main
from embedding_models import NETWORK, SHAPES, folder
from gguf_models import BOOL, DEPTH, F32, HIDDEN, U32, WIDE, DecoderFile, Variant, states
from libtenon import needed, run, succeeded
from real import DIGITS
from tenon.cli import main
from tenon.errors import InputError, TenonError, UnsupportedError
from tenon.speech import Embedder
from text_models import byte_pairs, vocabulary_size
from transformer_models import (
    SMALL_BERT,
    SMALL_CLIP,
    bert_tensors,
    clip_settings,
    clip_tensors,
    config,
    safetensors,
    tokenizer,
)


def test_states_are_averaged(tmp_path: Path) -> None:
    model, table = folder(tmp_path)
    with tenon.open(tenon.compile(model, shapes=SHAPES)) as engine:
        one, other = Embedder(engine).embed([" wb", " wc wa"])
    for vector, tokens in ((one, [2]), (other, [3, 1])):
        mean = (table[tokens] + table[0]).mean(0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)


def test_open_dimensions_of_texts_are_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One text of up to 512 tokens, or of as many as the model was trained for."""
    model, table = folder(tmp_path)
    with tenon.open(tenon.compile(model)) as engine:
        (tokens,) = (tensor for tensor in engine.manifest.inputs if tensor.name == "input_ids")
        assert tokens.shape == (1, 512)
        (vector,) = Embedder(engine).embed([" wb"])
    mean = table[2] + table[0]
    np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 6}))
    assert run_main(main, ["run", str(model), "--text", " wb", "--text", " wc wa", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["embeddings"]
    np.testing.assert_allclose(first, vector, atol=1e-6)
    assert len(second) == 4
    assert run_main(main, ["run", str(model), "--text", 7 * " wa"]) == 2
    assert "takes 6 at most" in capsys.readouterr().err


def test_networks_without_caches(tmp_path: Path) -> None:
    """Options of caches are refused where there are none."""
    model, _ = folder(tmp_path)
    digits = DIGITS / "digits.onnx"
    refused: tuple[tuple[Path, dict[str, Any], str], ...] = (
        (model, {"context": 64}, r"--context\), and give the length of its texts with --shape"),
        (digits, {"context": 64}, r"digits.onnx: it has no caches: leave out context=64 \(--context\)$"),
        (digits, {"sequences": 2}, r"leave out sequences=2 \(--sequences\)"),
    )
    for source, options, message in refused:
        with pytest.raises(InputError, match=message):
            tenon.compile(source, no_tuning=True, **options)


def test_inputs_that_a_text_does_not_give(tmp_path: Path) -> None:
    model, _ = folder(tmp_path, NETWORK.replace("token_type_ids", "colours"))
    with (
        tenon.open(tenon.compile(model, shapes=SHAPES)) as engine,
        pytest.raises(InputError, match="has an input 'colours', which a text does not give"),
    ):
        Embedder(engine)


def test_texts_that_the_network_does_not_take(tmp_path: Path) -> None:
    model, _ = folder(tmp_path)
    with tenon.open(tenon.compile(model, shapes=SHAPES)) as engine:
        embedder = Embedder(engine)
        for text, message in (
            ("", "the text '' has no tokens"),
            (" wa" * 7, "a text has 7 tokens, and the network takes 6 at most"),
            (" wa\udcff", "the text is not valid UTF-8 at character 4"),
        ):
            with pytest.raises(InputError, match=message):
                next(embedder.embed([text]))


def test_towers_of_an_image_and_a_text(tmp_path: Path) -> None:
    """The tower of texts becomes a program that reads texts, the tower of images one that reads images."""
    words = ["<pad>", *(f"\u0120w{letter}" for letter in "abcdef")]
    (tmp_path / "config.json").write_bytes(clip_settings(SMALL_CLIP))
    (tmp_path / "model.safetensors").write_bytes(safetensors(clip_tensors(SMALL_CLIP)))
    (tmp_path / "tokenizer.json").write_bytes(tokenizer(words, {0: "<pad>"}))
    with (
        tenon.open(tenon.compile(tmp_path)) as engine,
        pytest.raises(InputError, match="which a text does not give: take its part for texts, --to text_embedding"),
    ):
        Embedder(engine)
    pixels = np.random.default_rng(4).integers(0, 256, (12, 12, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    texts = tenon.compile(tmp_path, outputs=["text_embedding"], name="texts")
    images = tenon.compile(tmp_path, outputs=["image_embedding"], name="images")
    with tenon.open(texts) as engine:
        wanted = next(Embedder(engine).embed([" wa"]))
    shown = succeeded(run(texts.save(tmp_path / "texts", ("exe",)) / "texts", " wa")).split()
    np.testing.assert_allclose([float(number) for number in shown], wanted, rtol=0, atol=2e-7)
    mean, spread = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    with tenon.open(images) as engine:
        image = (((pixels / 255 - mean) / spread).transpose(2, 0, 1)[None]).astype(np.float32)
        largest = engine.run({"image": image})["image_embedding"].max()
        with pytest.raises(InputError, match="is no network that embeds texts"):
            Embedder(engine)
    program = images.save(tmp_path / "images", ("exe",)) / "images"
    answer = succeeded(run(program, tmp_path / "x.png", "--top", "1")).decode().split()
    assert answer[:2] == ["image_embedding", "f32[1,10]"]
    assert float(answer[-1]) == pytest.approx(largest, abs=1e-5)


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
        assert succeeded(run(made / "net", "-h")) == succeeded(run(made / "net", "--help")) != b""
        done = run(made / "net", "a " * 40)
        assert (done.returncode, b"more tokens than the network takes" in done.stderr) == (2, True)
        flags = ("-std=c99", "-Wall", "-Wextra", "-Wcast-qual", "-Werror", "-pedantic", f"-I{made}", "-c")
        succeeded(run(needed("gcc"), *flags, made / "net_text.c", "-o", tmp_path / "net_text.o"))


QWEN = DecoderFile(
    "qwen3",
    norms=("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm"),
    vocabulary=vocabulary_size(byte_pairs()),
    pairs={"rope.freq_base": (F32, 10000.0)},
)
POOLINGS = {"mean": (1, "mean_tokens"), "first": (2, "cls_token"), "last": (3, "lasttoken")}
"""The names that GGUF files and folders have for what is made of states."""
NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj",
    **{f"attn_{part}_norm": f"self_attn.{part}_norm" for part in "qk"},
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}


def pooled(tokens: list[int], pooling: str) -> np.ndarray:
    rows = states(QWEN, Variant(), tokens)
    vector = rows.mean(0) if pooling == "mean" else rows[0 if pooling == "first" else -1]
    return np.asarray(vector / np.linalg.norm(vector))


def write_modules(path: Path, **modes: bool) -> None:
    """The files of the library sentence-transformers in a model's folder."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    listed = [{"path": name, "type": f"sentence_transformers.models.{kind}"} for name, kind in kinds.items()]
    (path / "modules.json").write_text(json.dumps(listed))
    (path / "1_Pooling").mkdir(exist_ok=True)
    stated = {f"pooling_mode_{name}": value for name, value in modes.items()}
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **stated}))


def qwen_folder(path: Path) -> Path:
    """The decoder as the library transformers writes one without its last layer."""
    path.mkdir()
    tensors = dict[str, np.ndarray]()
    for name, data in QWEN.weights().items():
        stem = name.removesuffix(".weight")
        if stem == "output":
            continue
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            tensors[f"layers.{layer}.{NAMES[part]}.weight"] = data
        else:
            tensors[{"token_embd": "embed_tokens", "output_norm": "norm"}[stem] + ".weight"] = data
    sizes = {
        "model_type": "qwen3",
        "vocab_size": QWEN.vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": QWEN.layers,
        "num_attention_heads": QWEN.heads,
        "num_key_value_heads": QWEN.key_heads,
        "head_dim": DEPTH,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
    }
    (path / "model.safetensors").write_bytes(safetensors(tensors))
    (path / "config.json").write_text(json.dumps(sizes))
    (path / "tokenizer.json").write_text(json.dumps(byte_pairs()))
    return path


@pytest.mark.parametrize("pooling", POOLINGS)
def test_decoders_embed_texts(pooling: str, tmp_path: Path) -> None:
    """A GGUF file and a folder give the state of a token, or the mean of all, of the network without caches."""
    number, mode = POOLINGS[pooling]
    gguf = tmp_path / "net.gguf"
    gguf.write_bytes(replace(QWEN, pairs={**QWEN.pairs, "pooling_type": (U32, number)}).file())
    folder = qwen_folder(tmp_path / "net")
    write_modules(folder, **{name: name == mode for _, name in POOLINGS.values()}, max_tokens=False)
    for source in (gguf, folder):
        with tenon.open(tenon.compile(source, no_tuning=True)) as engine:
            assert engine.text is not None
            assert engine.text.kind == "encoder"
            for count in (1, 2, 30):
                tokens = np.random.default_rng(count).integers(0, QWEN.vocabulary, count)
                got = engine.run({"tokens": tokens[None]})["embedding"][0]
                np.testing.assert_allclose(got, pooled(tokens.tolist(), pooling), atol=3e-6)


def test_texts_of_a_decoder(tmp_path: Path) -> None:
    """By the Embedder and the program: the vectors of the tokens of texts."""
    folder = qwen_folder(tmp_path / "net")
    write_modules(folder, lasttoken=True)
    bundle = tenon.compile(folder, no_tuning=True, name="net")
    with tenon.open(bundle) as engine:
        embedder = Embedder(engine)
        wanted = np.stack(list(embedder.embed(["the cat", " dog"])))
        tokens = embedder.tokenizer.encode("the cat")
    np.testing.assert_allclose(wanted[0], pooled(tokens, "last"), atol=3e-6)
    made = bundle.save(tmp_path / "out", ("exe",))
    shown = succeeded(run(made / "net", "the cat", " dog")).decode()
    np.testing.assert_allclose([list(map(float, line.split())) for line in shown.splitlines()], wanted, atol=2e-7)


def test_bert_with_its_first_token(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "bert")
    write_modules(folder, cls_token=True)
    with tenon.open(tenon.compile(folder, no_tuning=True)) as engine:
        outputs = engine.run({"tokens": np.array([[2, 4, 5, 3]])})
        first = outputs["last_hidden_state"][0, 0]
        np.testing.assert_allclose(outputs["embedding"][0], first / np.linalg.norm(first), atol=1e-6)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules.json": "{"}, "modules.json: it is no JSON"),
        ({"modules.json": "{}"}, "modules.json: it is no list of modules"),
        ({"modules.json": '[{"type": "x.models.Dense", "path": "2_Dense"}]'}, "has a module Dense"),
        ({"modules.json": '[{"type": "x.models.Pooling", "path": "../a"}]'}, "has a module Pooling"),
        ({"1_Pooling/config.json": '{"pooling_mode_max_tokens": true}'}, "pools states by max_tokens"),
        ({"1_Pooling/config.json": "{}"}, "pools states by nothing"),
        ({"1_Pooling/config.json": "[]"}, "the settings of a module are a JSON object"),
    ],
)
def test_modules_that_are_refused(files: dict[str, str], message: str, tmp_path: Path) -> None:
    folder = qwen_folder(tmp_path / "net")
    write_modules(folder, lasttoken=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    with pytest.raises(TenonError, match=message):
        tenon.compile(folder, no_tuning=True)


def test_files_that_are_refused(tmp_path: Path) -> None:
    pairs = {"pooling_type": (U32, 4)}, {"pooling_type": (U32, 1), "attention.causal": (BOOL, False)}
    for number, (own, message) in enumerate(
        zip(pairs, ("rerankers are not supported", "those behind them"), strict=True)
    ):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(replace(QWEN, pairs={**QWEN.pairs, **own}).file())
        with pytest.raises(UnsupportedError, match=message):
            tenon.compile(path, no_tuning=True)
