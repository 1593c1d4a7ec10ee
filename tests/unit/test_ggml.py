"""Whisper models of whisper.cpp: logits beside NumPy, texts, and damaged files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

import tenon
from damage import survive
from ggml_models import FILTERS, TINY, WORDS, whisper_file
from installed import succeeds
from installed import tenon as command
from tenon.errors import FormatError
from tenon.formats import importers
from tenon.formats.importers.ggml.vocabulary import special_tokens, text_model
from tenon.network.graph.graph import Array
from tenon.speech import DECODER, ENCODER, Recognizer, write_wav
from transformer_models import whisper_tensors
from transformer_references import log_mel, whisper_decoder, whisper_encoder

pytestmark = pytest.mark.quick(importer="ggml")

TENSORS = whisper_tensors(TINY)
END, START, SILENT = len(WORDS), len(WORDS) + 1, special_tokens(TINY.vocab_size)["<|notimestamps|>"]


def sound() -> Array:
    n = TINY.samples
    noise = np.random.default_rng(3).normal(0, 0.05, n)
    return np.asarray(0.5 * np.sin(0.2 * np.arange(n)) + noise, np.float32)


def expected(tensors: dict[str, Array], tokens: list[int], samples: Array) -> Array:
    """Logits [tokens, vocabulary] by NumPy without caches."""
    rows = whisper_encoder(tensors, log_mel(samples, FILTERS.T), TINY.encoder_layers, TINY.encoder_attention_heads)
    return whisper_decoder(tensors, tokens, rows, TINY.decoder_layers, TINY.decoder_attention_heads)


@pytest.mark.parametrize(
    ("kind", "loose"), [("f32", 1e-3), ("f16", 1e-3), ("q8_0", 0.05), ("q5_0", 0.05), ("q5_1", 0.05)]
)
def test_logits(kind: str, loose: float) -> None:
    """Weights in blocks are multiplied with activations of 8 bits, of which each adds half a step of noise."""
    data, numbers = whisper_file(TINY, TENSORS, kind)
    tokens = [START, SILENT, 3, 17, 5]
    right = expected(numbers, tokens, sound())
    with tenon.open(tenon.compile(data, **ENCODER)) as encoder, tenon.open(tenon.compile(data, **DECODER)) as decoder:
        for name, array in encoder.run({"samples": sound()[None]}).items():
            decoder.inputs[name][...] = array
        for token, scores in zip(tokens, right, strict=True):
            decoder.inputs["tokens"][...] = token
            np.testing.assert_allclose(decoder.run()["logits"][0, 0], scores, atol=loose * np.abs(right).max())


def test_encoder_written_as_onnx(tmp_path: Path) -> None:
    """The decoder has caches, of which ONNX has no operators: the network is cut before it."""
    import onnxruntime

    (tmp_path / "whisper.bin").write_bytes(whisper_file(TINY, TENSORS, "f32")[0])
    failed = command("optimize", "whisper.bin", "-o", "whole.onnx", cwd=tmp_path)
    assert failed.returncode == 2
    assert "end the model before it with --to" in " ".join(failed.stderr.split())
    succeeds("optimize", "whisper.bin", "--to", "cross.*", "-o", "encoder.onnx", cwd=tmp_path)
    session = onnxruntime.InferenceSession((tmp_path / "encoder.onnx").read_bytes())
    with tenon.open(tenon.compile(tmp_path / "whisper.bin", **ENCODER)) as encoder:
        ours = encoder.run({"samples": sound()[None]})
    written = dict(zip(ours, session.run(list(ours), {"samples": sound()[None]}), strict=True))
    for name, array in ours.items():
        np.testing.assert_allclose(array, written[name], atol=1e-3)


def test_matrices_stay_in_blocks() -> None:
    graph = importers.load(whisper_file(TINY, TENSORS, "q5_0")[0])
    kinds = [node.op.name for node in graph]
    assert kinds.count("BlockMatMul") == 6 + 2 * 2 + 2 * 8 + 1
    assert kinds.count("BlockGather") == 1


def test_texts_and_times(tmp_path: Path) -> None:
    data, numbers = whisper_file(TINY, TENSORS)
    (tmp_path / "ggml-tiny.en.bin").write_bytes(data)
    write_wav(tmp_path / "x.wav", sound(), 16000)
    listed = json.loads(succeeds("run", "ggml-tiny.en.bin", "x.wav", "--json", cwd=tmp_path))
    written, samples = list[int](), np.rint(sound() * 32767) / 2.0**15
    while len(written) < TINY.max_target_positions - 2:
        scores = expected(numbers, [START, SILENT, *written], samples)[-1]
        scores[[*range(START, TINY.vocab_size), 27, 28, 29]] = -np.inf
        if not written:
            scores[[26, END]] = -np.inf
        if int(scores.argmax()) == END:
            break
        written.append(int(scores.argmax()))
    assert listed["text"] == b"".join(WORDS[token] for token in written).decode("utf-8", "replace").strip()


def test_special_tokens_of_real_vocabularies() -> None:
    english, several, third = (special_tokens(count) for count in (51864, 51865, 51866))
    assert [english[f"<|{name}|>"] for name in ("endoftext", "startoftranscript", "en")] == [50256, 50257, 50258]
    assert [english[f"<|{name}|>"] for name in ("translate", "notimestamps", "0.00")] == [50357, 50362, 50363]
    assert [several[f"<|{name}|>"] for name in ("endoftext", "su", "translate", "30.00")] == [
        50257,
        50357,
        50358,
        51864,
    ]
    assert [third[f"<|{name}|>"] for name in ("yue", "transcribe", "notimestamps")] == [50358, 50360, 50364]
    with pytest.raises(FormatError, match="is none of Whisper"):
        special_tokens(1000)


def test_settings_of_texts() -> None:
    text = text_model(TINY.vocab_size, WORDS)
    assert (text.start, text.eos, text.suppressed, text.suppressed_first) == ((START,), (END,), (27, 28, 29), (26, END))


def test_a_recognizer_without_several_languages() -> None:
    data = whisper_file(TINY, TENSORS)[0]
    with tenon.open(tenon.compile(data, **ENCODER)) as encoder, tenon.open(tenon.compile(data, **DECODER)) as decoder:
        assert Recognizer(encoder, decoder).text([24, 25, 2, END, SILENT]) == "ä w2"


def test_damaged_files_are_errors() -> None:
    data = whisper_file(TINY, TENSORS, "q5_0")[0]
    survive("ggml", data, importers.load)
    head = 4 * (12 + 2)
    survive("ggml sizes", data[:head], lambda cut: importers.load(cut + data[head:]))


def test_old_blocks_and_missing_tensors_are_named(tmp_path: Path) -> None:
    data = bytearray(whisper_file(TINY, TENSORS, "q8_0")[0])
    data[4 * 11 : 4 * 12] = struct.pack("<i", 1007)
    (tmp_path / "old.bin").write_bytes(data)
    done = command("compile", "old.bin", "-o", "out", cwd=tmp_path)
    assert (done.returncode, "quantise the model again" in " ".join(done.stderr.split())) == (2, True), done.stderr
    less = {name: array for name, array in TENSORS.items() if not name.endswith("fc1.bias")}
    with pytest.raises(tenon.errors.ModelError, match=r"model.encoder.layers.0.fc1.bias' is missing"):
        importers.load(whisper_file(TINY, less)[0])
