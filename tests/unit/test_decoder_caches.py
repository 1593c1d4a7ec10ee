"""Caches of decoders in 16 and 8 bits: what they cost the logits, what they take, and that nothing widens them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tenon
from command_line import run_main
from decoder_runs import CHUNK, ROOM, SIZES, TOKENS, last_logits
from gguf_models import DEPTH, DecoderFile, Variant, logits
from real import DIGITS
from tenon.cli import main
from tenon.errors import InputError
from tenon.formats import importers
from tenon.network.graph.types import F32
from tenon.network.passes.cache_types import with_cache_type
from tenon.options import CacheType, Options
from tenon.pipeline import prepared
from text_models import talking_decoder

MODEL, VARIANT = DecoderFile("llama", key_heads=2), Variant(neighbours=True)
ERRORS: dict[CacheType, float] = {"fp16": 2e-3, "bf16": 1.5e-2, "int8": 3e-2}
"""The largest difference of logits, as a part of their largest: some times the rounding of an element, 2**-12, 2**-9,
1 / 254."""
BYTES: dict[CacheType, float] = {"fp32": 4, "fp16": 2, "bf16": 2, "int8": 1 + 4 / DEPTH}
"""The bytes of an element."""


@pytest.mark.parametrize("kind", ERRORS)
def test_logits_are_near_those_of_f32(kind: CacheType) -> None:
    """Beside the definition of the network in f64; the caches do round."""
    graph = importers.load(MODEL.file(), SIZES)
    right = logits(MODEL, VARIANT, TOKENS)
    exact = np.abs(last_logits(graph, TOKENS) - right).max() / np.abs(right).max()
    error = np.abs(last_logits(with_cache_type(graph, kind), TOKENS) - right).max() / np.abs(right).max()
    assert 10 * exact < error < ERRORS[kind]


@pytest.mark.parametrize("kind", BYTES)
def test_compiled_caches(kind: CacheType) -> None:
    """A prompt in pieces and then token by token are as the references; the states take what they should, and no tensor
    beside them is as large as a cache."""
    given = [{"length": f"1..{n}", "past": f"0..{ROOM - n}"} for n in (1, CHUNK)]
    graph = with_cache_type(importers.load(MODEL.file(), SIZES), kind)
    bundle = tenon.compile(MODEL.file(), name="net", shapes=given, cache_type=kind, no_tuning=True)
    with tenon.open(bundle) as engine:
        for _ in range(2):
            for start, end in ((0, 8), (8, 12), (12, 13), (13, 14)):
                row = engine.run({"tokens": np.array([TOKENS[start:end]])})["logits"][0, -1]
            right = last_logits(graph, TOKENS)
            np.testing.assert_allclose(row, right, atol=2e-5 * np.abs(right).max())
            engine.reset()
        elements = 2 * MODEL.layers * MODEL.key_heads * ROOM * DEPTH
        assert engine.manifest.state_bytes == elements * BYTES[kind] + 8
    for length in (1, CHUNK):
        sized = importers.load(MODEL.file(), {"length": f"1..{length}", "past": f"0..{ROOM - length}"})
        optimised, _ = prepared(with_cache_type(sized, kind), Options(no_tuning=True))
        sizes = [v.type.dims for node in optimised for v in node.outputs if v.type.dtype is F32 and v.type.rank == 4]
        assert kind == "fp32" or (1, MODEL.key_heads, ROOM, DEPTH) not in sizes


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``tenon run``, ``compile``, a program in C, and what ``inspect`` says."""
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENON_CACHE", str(tmp_path / "cache"))
    Path("net.gguf").write_bytes(talking_decoder(layers=1).file())
    prompt = ["--prompt", "the cat sat on the", "--max-tokens", "6"]
    texts = []
    for kind in ("fp32", "fp16", "int8"):
        assert run_main(main, ["run", "net.gguf", *prompt, "--context", "40", "--cache-type", kind]) == 0
        texts.append(capsys.readouterr().out)
        assert run_main(main, ["compile", "net.gguf", "-o", kind, "--context", "40", "--cache-type", kind]) == 0
        assert run_main(main, ["run", kind, *prompt]) == 0
        assert capsys.readouterr().out.endswith(texts[-1])
    assert len(set(texts)) == 1
    assert run_main(main, ["compile", "net.gguf", "-o", "exe", "--cache-type", "int8", "--emit", "exe"]) == 0
    program = subprocess.run(["exe/net", "--max-tokens", "6", prompt[1]], capture_output=True, check=True)
    assert program.stdout.decode(errors="replace") == texts[-1]
    capsys.readouterr()
    assert run_main(main, ["inspect", "int8", "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["options"]["cache_type"] == "int8"
    states = {each["name"]: each for each in about["inputs"] if "past_key" in each["name"]}
    assert states["past_key_values.0.key"]["dtype"] == "i8"
    assert states["past_key_values.0.key.scale"]["shape"] == [1, 2, 40, 1]
    assert run_main(main, ["inspect", "int8"]) == 0
    assert "of which states" in capsys.readouterr().out


def test_what_has_no_such_cache_is_said() -> None:
    with pytest.raises(InputError, match=r"digits\.onnx: it has no cache of keys and values that one operator reads"):
        tenon.compile(DIGITS / "digits.onnx", cache_type="int8")
    with pytest.raises(InputError, match=r"target \S+ stores caches in 32 bits: leave out cache_type=fp16"):
        tenon.compile(MODEL.file(), target="opencl", cache_type="fp16")
