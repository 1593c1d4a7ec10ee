"""Whisper: encoder and decoder with caches beside the same model in NumPy without any, and speech written down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tenon
from installed import succeeds
from installed import tenon as command
from tenon.errors import InputError, UnsupportedError
from tenon.formats.decompositions.transformers import whisper
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.sound_features import mel_bands
from tenon.runtime.speech.pieces import pieces
from tenon.runtime.speech.recognizer import RATE
from tenon.speech import DECODER, ENCODER, Recognizer, Sound, write_wav
from transformer_models import SMALL_WHISPER, config, safetensors, tokenizer, whisper_tensors
from transformer_references import log_mel, whisper_decoder, whisper_encoder

CONFIG, TENSORS = SMALL_WHISPER, whisper_tensors(SMALL_WHISPER)
START, END, SILENCED = 30, 31, 7
SPECIAL = {START: "<|startoftranscript|>", END: "<|endoftext|>", 32: "<|notimestamps|>"}
SETTINGS = {"decoder_start_token_id": START, "eos_token_id": END, "suppress_tokens": [SILENCED]}
WORDS = [f"Ġw{i}" for i in range(CONFIG.vocab_size)]


def sound(seed: int = 1) -> Array:
    """As many samples as the encoder takes."""
    n = CONFIG.samples
    noise = np.random.default_rng(seed).normal(0, 0.05, n)
    samples: Array = (0.5 * np.sin(0.1 * seed * np.arange(n)) * (np.arange(n) < n // 2) + noise).astype(np.float32)
    return samples


def encoded(samples: Array) -> Array:
    features = log_mel(samples, mel_bands(CONFIG.num_mel_bins, 400, RATE, 0, 8000, "slaney"))
    return whisper_encoder(TENSORS, features, CONFIG.encoder_layers, CONFIG.encoder_attention_heads)


def logits(tokens: list[int], rows: Array) -> Array:
    return whisper_decoder(TENSORS, tokens, rows, CONFIG.decoder_layers, CONFIG.decoder_attention_heads)


def written(samples: Array) -> str:
    """The text that is expected: greedily, without caches."""
    rows, tokens = encoded(np.pad(samples, (0, CONFIG.samples - len(samples)))), [START, 32]
    first = len(tokens)
    while len(tokens) < CONFIG.max_target_positions:
        scores = logits(tokens, rows)[-1]
        scores[[SILENCED, START, 32]] = -np.inf
        if int(scores.argmax()) == END:
            break
        tokens.append(int(scores.argmax()))
    return " ".join(WORDS[token][1:] for token in tokens[first:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whisper")
    (path / "config.json").write_bytes(config("whisper", CONFIG))
    (path / "generation_config.json").write_text(json.dumps(SETTINGS))
    (path / "tokenizer.json").write_bytes(tokenizer(WORDS, SPECIAL))
    (path / "model.safetensors").write_bytes(safetensors(TENSORS))
    return path


@pytest.fixture(scope="module")
def recognizer(folder: Path) -> Iterator[Recognizer]:
    with (
        tenon.open(tenon.compile(folder, **ENCODER)) as encoder,
        tenon.open(tenon.compile(folder, **DECODER)) as decoder,
    ):
        yield Recognizer(encoder, decoder)


def test_keys_and_values_of_a_sound(recognizer: Recognizer) -> None:
    results = recognizer.encoder.run({"samples": sound()[None]})
    rows = encoded(sound())
    for layer in range(CONFIG.decoder_layers):
        name = f"model.decoder.layers.{layer}.encoder_attn"
        keys = rows @ TENSORS[f"{name}.k_proj.weight"].T
        values = rows @ TENSORS[f"{name}.v_proj.weight"].T + TENSORS[f"{name}.v_proj.bias"]
        for part, expected in (("key", keys), ("value", values)):
            heads = expected.reshape(len(rows), CONFIG.caches.heads, -1).swapaxes(0, 1)[None]
            np.testing.assert_allclose(results[f"cross.{layer}.{part}"], heads, atol=2e-4)


def test_logits_with_caches_are_those_without(recognizer: Recognizer) -> None:
    decoder, tokens = recognizer.decoder, [3, 17, 5, 1, 30, 30, 2]
    for name, array in recognizer.encoder.run({"samples": sound()[None]}).items():
        decoder.inputs[name][...] = array  # once for a sound
    expected = logits(tokens, encoded(sound()))
    for _ in range(2):
        decoder.reset()
        for token, scores in zip(tokens, expected, strict=True):
            decoder.inputs["tokens"][...] = token
            np.testing.assert_allclose(decoder.run()["logits"][0, 0], scores, atol=1e-3)


def test_a_sound_is_written_down_in_pieces(recognizer: Recognizer) -> None:
    samples = np.concatenate([sound(2), sound(9)[:2000]])
    segments = list(recognizer.stream(Sound(samples, RATE)))
    parts = list(pieces(samples, RATE, recognizer.longest))
    assert len(parts) == len(segments) == 2
    for segment, (start, end) in zip(segments, parts, strict=True):
        assert (segment.start * RATE, segment.end * RATE) == pytest.approx((start, end))
        assert segment.text == written(samples[start:end])
    assert len({segment.text for segment in segments}) == 2


def test_a_sound_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    samples = np.clip(sound(2), -1, 1)
    write_wav(tmp_path / "x.wav", np.repeat(samples, 2), 2 * RATE)
    listed = json.loads(succeeds("run", folder / "model.safetensors", tmp_path / "x.wav", "--json", cwd=tmp_path))
    assert listed["text"] == listed["segments"][0]["text"]
    assert set(listed["text"].split()) <= {word[1:] for word in WORDS}
    done = command("run", folder, "x.wav", "--features", "mfcc", cwd=tmp_path)
    assert (done.returncode, "speech is written down" in " ".join(done.stderr.split())) == (2, True), done.stderr


def test_pieces_end_where_it_is_quiet() -> None:
    samples = np.ones(10 * 1000)
    samples[3500:3800] = 0
    parts = list(pieces(samples, 1000, 5, search=2))
    assert parts[0][0] == 0
    assert 3500 < parts[0][1] < 3800
    assert parts[-1][1] == len(samples)
    assert all(a[1] == b[0] for a, b in pairwise(parts))
    assert all(end - start <= 5000 for start, end in parts)
    assert list(pieces(samples[:0], 1000, 5)) == []


def test_a_network_without_text_is_refused(recognizer: Recognizer) -> None:
    with pytest.raises(InputError, match="is no network for speech to text"):
        Recognizer(recognizer.decoder, recognizer.decoder)
    with pytest.raises(InputError, match="knows one language only: leave out the language 'en'"):
        Recognizer(recognizer.encoder, recognizer.decoder, "en")


def graph(tensors: dict[str, Array]) -> Graph:
    builder = GraphBuilder(ModelFile("small", b""), "small", {}, None, None, 1 << 24)
    return whisper.build(builder, CONFIG, tensors)


def test_missing_and_wrong_tensors_are_reported_together() -> None:
    tensors = dict(TENSORS)
    del tensors["model.encoder.layers.0.fc1.bias"]
    tensors["model.encoder.conv1.weight"] = np.zeros((16, 8, 5), np.float32)
    with pytest.raises(UnsupportedError) as error:
        graph(tensors)
    assert "'model.encoder.layers.0.fc1.bias' is missing" in str(error.value)
    assert "'model.encoder.conv1.weight' has the shape [16, 8, 5], not [16, 8, 3]" in str(error.value)
