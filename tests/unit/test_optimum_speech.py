"""Whisper in the ONNX files of optimum: keys, values and logits beside NumPy, and what is said about missing files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import tenon
from installed import succeeds
from optimum_models import decoder, encoder, merged_decoder
from tenon.errors import FormatError, InputError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tenon.network.graph.sound_features import mel_bands
from tenon.runtime.speech.model_folder import speech_model
from tenon.speech import DECODER, ENCODER, write_wav
from transformer_models import SMALL_WHISPER, config, tokenizer, whisper_tensors
from transformer_references import log_mel, whisper_decoder, whisper_encoder

CONFIG, TENSORS = SMALL_WHISPER, whisper_tensors(SMALL_WHISPER)
WORDS = [f"Ġw{i}" for i in range(CONFIG.vocab_size)]
FILES: Mapping[str, Mapping[str, bytes]] = {
    "merged": {"decoder_model_merged.onnx": merged_decoder(CONFIG, TENSORS)},
    "two": {
        "decoder_model.onnx": decoder(CONFIG, TENSORS, cached=False),
        "decoder_with_past_model.onnx": decoder(CONFIG, TENSORS, cached=True),
    },
}


def write(folder: Path, kind: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in {**FILES[kind], "encoder_model.onnx": encoder(CONFIG, TENSORS)}.items():
        (folder / name).write_bytes(data)
    return folder


def settings(folder: Path) -> Path:
    (folder / "config.json").write_bytes(config("whisper", CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": 30, "eos_token_id": 31}))
    (folder / "tokenizer.json").write_bytes(tokenizer(WORDS, {30: "<|startoftranscript|>", 31: "<|endoftext|>"}))
    return folder


def sound() -> Array:
    noise = np.random.default_rng(5).normal(0, 0.05, CONFIG.samples)
    return np.asarray(0.5 * np.sin(0.3 * np.arange(CONFIG.samples)) + noise, np.float32)


def encoded(samples: Array) -> Array:
    features = log_mel(samples, mel_bands(CONFIG.num_mel_bins, 400, 16000, 0, 8000, "slaney"))
    return whisper_encoder(TENSORS, features, CONFIG.encoder_layers, CONFIG.encoder_attention_heads)


@pytest.mark.parametrize("kind", FILES)
def test_keys_values_and_logits(kind: str, tmp_path: Path) -> None:
    file = write(settings(tmp_path), kind) / "encoder_model.onnx"
    tokens = [30, 3, 17, 5, 1]
    right = whisper_decoder(TENSORS, tokens, encoded(sound()), CONFIG.decoder_layers, CONFIG.decoder_attention_heads)
    with tenon.open(tenon.compile(file, **ENCODER)) as hearing, tenon.open(tenon.compile(file, **DECODER)) as writing:
        for name, array in hearing.run({"samples": sound()[None]}).items():
            writing.inputs[name][...] = array
        for _ in range(2):
            writing.reset()
            for token, scores in zip(tokens, right, strict=True):
                writing.inputs["tokens"][...] = token
                np.testing.assert_allclose(writing.run()["logits"][0, 0], scores, atol=1e-3)


def test_a_folder_with_the_files_in_another_one(tmp_path: Path) -> None:
    write(settings(tmp_path) / "onnx", "merged")
    write_wav(tmp_path / "x.wav", sound(), 16000)
    samples = np.rint(sound() * 32767) / 2.0**15
    rows, tokens = encoded(samples), [30]
    while len(tokens) < CONFIG.max_target_positions and tokens[-1] != 31:
        scores = whisper_decoder(TENSORS, tokens, rows, CONFIG.decoder_layers, CONFIG.decoder_attention_heads)[-1]
        scores[30] = -np.inf
        tokens.append(int(scores.argmax()))
    text = " ".join(WORDS[token][1:] for token in tokens[1:] if token != 31)
    listed = json.loads(succeeds("run", tmp_path, "x.wav", "--json", cwd=tmp_path))
    assert listed["text"] == text


def test_where_the_files_are(tmp_path: Path) -> None:
    folder = write(settings(tmp_path), "two")
    for given in (folder, folder / "encoder_model.onnx", folder / "decoder_model.onnx"):
        assert speech_model(given) == (folder / "encoder_model.onnx" if given == folder else given)
    (folder / "x.safetensors").write_bytes(b"")
    assert speech_model(folder) == folder
    (folder / "config.json").write_text('{"model_type": "bert"}')
    assert speech_model(folder) is None


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = write(settings(tmp_path), "two")
    (folder / "decoder_with_past_model.onnx").unlink()
    with pytest.raises(FormatError, match=r"its part decoder_model_merged.* or decoder_with_past_model.* is not"):
        importers.load(folder / "encoder_model.onnx", {"length": 1}, inputs=["cross.*"])
    with pytest.raises(InputError, match="give one of them in its folder"):
        importers.load(encoder(CONFIG, TENSORS), outputs=["cross.*"])
    with pytest.raises(InputError, match="no dimension is called 'batch'; there are length, past"):
        importers.load(folder / "encoder_model.onnx", {"batch": 1}, inputs=["cross.*"])
    (folder / "config.json").write_text('{"model_type": "whisper", "max_source_positions": -3}')
    with pytest.raises(FormatError, match="'max_source_positions' is -3, and must be a positive integer"):
        importers.load(folder / "encoder_model.onnx", outputs=["cross.*"])
