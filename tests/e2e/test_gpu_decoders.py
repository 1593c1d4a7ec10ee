"""Language models on devices: the tokens of processors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tenon
from gguf_models import DecoderFile, gguf
from gpu_devices import needs_compiler, why_not
from libtenon import client, run, sdk_for_clients, succeeded
from tenon.network.passes.block_weights import rounded_blocks
from text_models import talking_decoder

COUNT = 12


@pytest.fixture(params=["opencl", "cuda", "vulkan"])
def device(request: pytest.FixtureRequest) -> str:
    """Each language for which there is a device."""
    if reason := why_not(request.param):
        pytest.skip(reason)
    needs_compiler(request.param)
    return str(request.param)


def decoder() -> bytes:
    """One whose matrices are in blocks of 4 bits."""
    of = DecoderFile("llama")
    tensors = {}
    for name, data in of.weights().items():
        form = "f32" if data.ndim == 1 else "q4_0"
        stored = data.tobytes() if form == "f32" else rounded_blocks(data, form).tobytes()
        tensors[name] = (form, data.shape, stored)
    return gguf(of.keys(), tensors)


def generated(target: str) -> list[int]:
    """Tokens that a decoder generates greedily after a prompt, which it reads at once."""
    words = list[int]()
    with tenon.open(tenon.compile(decoder(), target=target, context=64)) as engine:
        given = np.arange(20, dtype=np.int64)[None] * 7 % 40
        for _ in range(COUNT):
            words.append(int(engine.run({"tokens": given})["logits"].argmax()))
            given = np.array([words[-1:]])
    return words


def test_tokens_are_those_of_processors(device: str) -> None:
    assert generated(device) == generated("host")


def of_sequences(target: str) -> list[np.ndarray]:
    """Logits of two sequences whose tokens come mixed."""
    results = []
    with tenon.open(tenon.compile(decoder(), target=target, context=64, sequences=2)) as engine:
        steps = (([0, 0, 1], [0, 1, 0], [1, 2]), ([1, 0], [1, 2], [0, 1]), ([1, 1, 1], [2, 3, 4], [2]))
        for slots, positions, rows in steps:
            feeds = {"tokens": [[3, 5, 7][: len(slots)]], "slots": slots, "positions": positions, "rows": rows}
            results.append(engine.run({name: np.array(values, np.int64) for name, values in feeds.items()})["logits"])
    return results


def test_several_sequences(device: str) -> None:
    for got, right in zip(of_sequences(device), of_sequences("host"), strict=True):
        np.testing.assert_allclose(got, right, atol=2e-5 * np.abs(right).max())


ALIKE = ("abc abc cat", "abc abc dog", "abc abc cat sat")


def test_a_shared_beginning_is_copied(device: str, tmp_path: Path) -> None:
    """Texts that begin alike are those of processors: Python copies caches, and libtenon computes them again."""
    pytest.importorskip("tokenizers")
    path = tmp_path / "words.gguf"
    path.write_bytes(talking_decoder(layers=1).file())
    texts = dict[str, list[tuple[str, int]]]()
    for target in ("host", device):
        bundle = tenon.compile(path, target=target, context=64, sequences=2, no_tuning=True)
        bundle.save(tmp_path / target)
        with tenon.Generator(tmp_path / target) as generator:
            made = list(generator.generate_all(ALIKE, max_tokens=8))
        texts[target] = [(each.text.replace("\n", "/").replace("\0", "/"), each.reused_tokens) for each in made]
    assert texts[device] == texts["host"]
    assert [reused > 3 for _, reused in texts[device]] == [False, True, True]
    sdk_for_clients(tmp_path, "")
    program = client("batch_texts", tmp_path / "sdk", tmp_path)
    lines = succeeded(run(program, tmp_path / device, "1", "0", "", *ALIKE)).decode().rstrip("\n").split("\n")
    assert lines[::2] == [text for text, _ in texts["host"]]
