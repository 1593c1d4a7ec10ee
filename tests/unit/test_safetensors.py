"""Safetensors files with settings: embeddings and speech to text beside NumPy, types, several files, damage."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from PIL import Image

import tenon
from damage import COUNT, survive
from installed import succeeds
from installed import tenon as command
from tenon.errors import FormatError, ModelError
from tenon.formats import importers
from tenon.formats.decompositions.transformers.moonshine import positions
from tenon.formats.wire.safetensors import tensors
from tenon.network.graph.graph import Array, Graph
from transformer_models import (
    SMALL_BERT,
    SMALL_CLIP,
    SMALL_MOONSHINE,
    bert_tensors,
    clip_settings,
    clip_tensors,
    config,
    moonshine_tensors,
    safetensors,
    tokenizer,
)
from transformer_references import bert_embedding, clip_image, clip_text, moonshine_decoder, moonshine_encoder

pytestmark = pytest.mark.quick(importer="safetensors")

BERT = bert_tensors(SMALL_BERT)
TOKENS = [3, 1, 4, 1, 5]
WORDS = [f"w{chr(ord('a') + i % 26)}{'x' * (i // 26)}" for i in range(SMALL_BERT.vocab_size)]
"""wa, wb, ...: a word is a token."""


def folder(path: Path, model_type: str, sizes: object, weights: dict[str, Array]) -> Path:
    (path / "config.json").write_bytes(config(model_type, sizes))
    (path / "model.safetensors").write_bytes(safetensors(weights))
    return path


def embedded(model: Path) -> Array:
    with tenon.open(tenon.compile(model)) as engine:
        long = engine.run({"tokens": np.array([TOKENS * 2])})["last_hidden_state"]
        assert long.shape == (1, 10, 16)
        return np.array(engine.run({"tokens": np.array([TOKENS])})["embedding"][0])


def test_embeddings(tmp_path: Path) -> None:
    model = folder(tmp_path, "bert", SMALL_BERT, BERT)
    np.testing.assert_allclose(embedded(model), bert_embedding(BERT, TOKENS, 2, 2), atol=1e-5)
    assert importers.load(tmp_path / "model.safetensors").name == tmp_path.name
    assert [value.name for value in importers.load(tmp_path / "config.json").inputs] == ["tokens", "length"]


def test_texts_are_compared(tmp_path: Path) -> None:
    model = folder(tmp_path, "bert", SMALL_BERT, BERT)
    (model / "tokenizer.json").write_bytes(tokenizer(["<pad>", *(f"Ġ{word}" for word in WORDS[1:])], {0: "<pad>"}))
    texts = (" wd wb", " we wb wf", " wd wb")
    given = [part for text in texts for part in ("--text", text)]
    listed = json.loads(succeeds("run", model, *given, "--json", cwd=tmp_path))
    vectors = np.stack([bert_embedding(BERT, tokens, 2, 2) for tokens in ([3, 1], [4, 1, 5], [3, 1])])
    np.testing.assert_allclose(listed["embeddings"], vectors, atol=1e-5)
    np.testing.assert_allclose(listed["similarities"], vectors @ vectors.T, atol=1e-4)
    done = command("run", model, "--text", " wb", "--output", "x.wav", cwd=tmp_path)
    assert (done.returncode, "is no voice" in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_an_image_and_texts_are_compared(tmp_path: Path) -> None:
    weights = clip_tensors(SMALL_CLIP)
    (tmp_path / "config.json").write_bytes(clip_settings(SMALL_CLIP))
    (tmp_path / "model.safetensors").write_bytes(safetensors(weights))
    (tmp_path / "tokenizer.json").write_bytes(tokenizer(["<pad>", *(f"Ġ{word}" for word in WORDS[1:])], {0: "<pad>"}))
    rng = np.random.default_rng(4)
    pixels = rng.integers(0, 256, (12, 12, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    given = ("--text", " wd wb", "--text", " we wb wf", "--json")
    done = command("run", tmp_path, "x.png", cwd=tmp_path)
    assert (done.returncode, "reads texts: give one or several (--text)" in done.stderr) == (2, True), done.stderr
    listed = json.loads(succeeds("run", tmp_path, "x.png", *given, cwd=tmp_path))
    mean, spread = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    image = ((pixels / 255 - mean) / spread).transpose(2, 0, 1)
    texts = np.stack([clip_text(weights, tokens, SMALL_CLIP) for tokens in ([3, 1], [4, 1, 5])])
    np.testing.assert_allclose(listed["image"], clip_image(weights, image, SMALL_CLIP), atol=1e-4)
    np.testing.assert_allclose(listed["embeddings"], texts, atol=1e-4)
    np.testing.assert_allclose(np.ravel(listed["similarities"]), texts @ listed["image"], atol=1e-3)


def test_narrow_types_and_files_of_an_index(tmp_path: Path) -> None:
    named = bert_tensors(SMALL_BERT, prefix="bert.")
    kinds = {"F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
    rounded: dict[str, Array] = {}
    for part, (kind, dtype) in enumerate(kinds.items(), 1):
        own = {name: array.astype(dtype) for i, (name, array) in enumerate(named.items()) if i % 2 == part - 1}
        rounded |= {name: array.astype(np.float32) for name, array in own.items()}
        (tmp_path / f"part-{part}.safetensors").write_bytes(safetensors(own, dict.fromkeys(own, kind)))
    index = {name: f"part-{1 + i % 2}.safetensors" for i, name in enumerate(named)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (tmp_path / "config.json").write_bytes(config("bert", SMALL_BERT))
    graph = importers.load(tmp_path, {"length": len(TOKENS)})
    with tenon.open(tenon.compile(graph)) as engine:
        result = engine.run({"tokens": np.array([TOKENS])})["embedding"][0]
    np.testing.assert_allclose(result, bert_embedding(rounded, TOKENS, 2, 2, "bert."), atol=1e-5)


def test_moonshine_listens_to_sounds_of_any_length(tmp_path: Path) -> None:
    settings, weights = SMALL_MOONSHINE, moonshine_tensors(SMALL_MOONSHINE)
    model, cross = folder(tmp_path, "moonshine", settings, weights), settings.caches.cross_names
    sound = np.random.default_rng(2).normal(0, 0.3, 7000).astype(np.float32)
    tokens = [1, 30, 7, 7, 12]
    with (
        tenon.open(tenon.compile(model, outputs=cross, shapes={"sound_length": "1024..8000"})) as encoder,
        tenon.open(tenon.compile(model, inputs=cross, shapes={"positions": f"1..{positions(8000)}"})) as decoder,
    ):
        for count in (7000, 2100):
            rows = moonshine_encoder(weights, sound[:count], settings)
            results = encoder.run({"samples": sound[None, :count]})
            crossed = {name: results[name].copy() for name in cross}
            assert crossed["cross.0.key"].shape == (1, 2, len(rows), 12) == (1, 2, positions(count), 12)
            expected = moonshine_decoder(weights, tokens, rows, settings)
            decoder.reset()
            for start, end in ((0, 3), (3, 4), (4, 5)):
                logits = decoder.run({"tokens": np.array([tokens[start:end]]), **crossed})["logits"]
                np.testing.assert_allclose(logits[0, 0], expected[end - 1], atol=2e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model_type": "dinosaur"}, "models of type 'dinosaur' are not known; there are bert"),
        ({"model_type": "bert"}, "config.json: 'vocab_size' is missing"),
        ({"model_type": "bert", "vocab_size": -1}, "'vocab_size' is -1, and must be a positive integer"),
        ({**json.loads(config("bert", SMALL_BERT)), "num_hidden_layers": 9**9}, "387420489 layers 'encoder.layer'"),
        ([], "the settings of a model are a JSON object"),
    ],
)
def test_settings_that_are_refused(settings: object, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "model.safetensors").write_bytes(safetensors(BERT))
    with pytest.raises(FormatError, match=words):
        importers.load(tmp_path / "model.safetensors")


def test_weights_without_settings(tmp_path: Path) -> None:
    (tmp_path / "net.safetensors").write_bytes(safetensors(BERT))
    with pytest.raises(FormatError, match=r"net\.safetensors: its settings were not found; looked for config\.json"):
        importers.load(tmp_path / "net.safetensors")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'"F32"', b'"F31"', "type 'F31'"),
        (b"[0, 8]", b"[0, 9]", "not all there"),
        (b"[0, 8]", b"[0,-8]", "place of the tensor 'a' is damaged"),
        (b'"shape"', b'"shapf"', "entry of the tensor 'a' is damaged"),
        (b"{", b"[", "not a safetensors file"),
        (b'"a"', b'"a ', "no JSON"),
    ],
)
def test_damaged_headers(old: bytes, new: bytes, words: str) -> None:
    data = safetensors({"a": np.zeros(2, np.float32)})
    with pytest.raises(FormatError, match=words):
        tensors(data.replace(old, new, 1), "x.safetensors")
    with pytest.raises(FormatError, match=r"x\.safetensors"):
        tensors(data[:-1], "x.safetensors")


def test_names_of_an_index_stay_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))
    (tmp_path / "config.json").write_bytes(config("bert", SMALL_BERT))
    with pytest.raises(ModelError, match="is no name of a file beside it"):
        importers.load(tmp_path)


def test_damaged_files() -> None:
    settings = config("bert", SMALL_BERT)

    def weights(data: bytes) -> Graph:
        return importers.load(data, {"length": 3}, weights=settings)

    def sizes(data: bytes) -> Graph:
        return importers.load(safetensors(BERT), {"length": 3}, weights=data or b"0")

    survive("weights", safetensors(BERT), weights, COUNT // 4)
    survive("settings", settings, sizes, COUNT // 4)
