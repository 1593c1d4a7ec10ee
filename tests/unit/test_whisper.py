"""Whisper: encoder and decoder with caches beside the same model in NumPy without any."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import tenon
from tenon.errors import UnsupportedError
from tenon.formats.decompositions.transformers import whisper
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.sound_features import mel_bands
from tenon.runtime.engine import Engine
from transformer_models import SMALL_WHISPER, whisper_tensors
from transformer_references import log_mel, whisper_decoder, whisper_encoder

CONFIG, TENSORS = SMALL_WHISPER, whisper_tensors(SMALL_WHISPER)
CROSS = CONFIG.caches.cross_names


def graph(inputs: list[str] | None, outputs: list[str] | None, tensors: dict[str, Array] = TENSORS) -> Graph:
    builder = GraphBuilder(ModelFile("small", b""), "small", {}, inputs, outputs, 1 << 24)
    return whisper.build(builder, CONFIG, tensors)


def sound() -> Array:
    n = CONFIG.samples
    noise = np.random.default_rng(1).normal(0, 0.05, n)
    samples: Array = (0.5 * np.sin(0.3 * np.arange(n)) * (np.arange(n) < n // 2) + noise).astype(np.float32)
    return samples


def encoded() -> Array:
    features = log_mel(sound(), mel_bands(CONFIG.num_mel_bins, 400, 16000, 0, 8000, "slaney"))
    return whisper_encoder(TENSORS, features, CONFIG.encoder_layers, CONFIG.encoder_attention_heads)


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    """The encoder and the decoder."""
    with (
        tenon.open(tenon.compile(graph(None, CROSS))) as encoder,
        tenon.open(tenon.compile(graph(CROSS, None))) as decoder,
    ):
        yield encoder, decoder


def test_keys_and_values_of_a_sound(engines: tuple[Engine, Engine]) -> None:
    results = engines[0].run({"samples": sound()[None]})
    rows = encoded()
    for layer in range(CONFIG.decoder_layers):
        name = f"model.decoder.layers.{layer}.encoder_attn"
        keys = rows @ TENSORS[f"{name}.k_proj.weight"].T
        values = rows @ TENSORS[f"{name}.v_proj.weight"].T + TENSORS[f"{name}.v_proj.bias"]
        for part, expected in (("key", keys), ("value", values)):
            heads = expected.reshape(len(rows), CONFIG.caches.heads, -1).swapaxes(0, 1)[None]
            np.testing.assert_allclose(results[f"cross.{layer}.{part}"], heads, atol=2e-4)


def test_logits_with_caches_are_those_without(engines: tuple[Engine, Engine]) -> None:
    encoder, decoder = engines
    crossed = {name: array.copy() for name, array in encoder.run({"samples": sound()[None]}).items()}
    tokens = [3, 17, 5, 1, 30, 30, 2]
    expected = whisper_decoder(TENSORS, tokens, encoded(), CONFIG.decoder_layers, CONFIG.decoder_attention_heads)
    for name, array in crossed.items():
        decoder.inputs[name][...] = array  # once for a sound
    for _ in range(2):
        decoder.reset()
        for start, end in ((0, 3), (3, 4), (4, 5), (5, 7)):
            decoder.inputs["length"][...] = end - start
            decoder.inputs["tokens"][0, : end - start] = tokens[start:end]
            results = decoder.run()
            np.testing.assert_allclose(results["logits"][0, 0], expected[end - 1], atol=1e-3)


def test_missing_and_wrong_tensors_are_reported_together() -> None:
    tensors = dict(TENSORS)
    del tensors["model.encoder.layers.0.fc1.bias"]
    tensors["model.encoder.conv1.weight"] = np.zeros((16, 8, 5), np.float32)
    with pytest.raises(UnsupportedError) as error:
        graph(None, None, tensors)
    assert "'model.encoder.layers.0.fc1.bias' is missing" in str(error.value)
    assert "'model.encoder.conv1.weight' has the shape [16, 8, 5], not [16, 8, 3]" in str(error.value)
