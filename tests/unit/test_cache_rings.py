"""Rings for the caches of layers with sliding windows: texts longer than the window, and what can be taken back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import tenon
from gguf_models import DEPTH, HIDDEN, U32, VOCABULARY, DecoderFile, Variant, logits
from tenon.formats import importers
from tenon.network.passes.cache_rings import with_rings
from tenon.network.passes.states import with_states
from tenon.options import CacheType
from tenon.runtime.text.tokenizer import common_prefix
from text_models import talking_decoder

WINDOW, CHUNK, ROOM = 5, 8, 64
RING = WINDOW + CHUNK
PAIRS = {"attention.sliding_window": (U32, WINDOW)}
POST = ("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm")
CASES = {
    "phi3": (DecoderFile("phi3", joined=True, pairs=PAIRS), Variant(windows=(WINDOW, WINDOW))),
    "llama": (DecoderFile("llama", key_heads=4, pairs=PAIRS), Variant(neighbours=True, windows=(WINDOW, WINDOW))),
    "gemma2": (
        DecoderFile("gemma2", tied=True, norms=POST, pairs=PAIRS),
        Variant(gelu=True, embedding=HIDDEN**0.5, windows=(WINDOW, 0), softcaps=(50.0, 30.0)),
    ),
}
TOKENS = [int(token) for token in np.random.default_rng(7).integers(0, VOCABULARY, ROOM)]
ENTRIES = [{"length": f"1..{n}", "past": f"0..{ROOM - n}"} for n in (1, CHUNK)]
RUNS = (8, 8, 3, 1, 1, 8, 7, 1, 1, 1, 8, 4, 1, 1, 3, *(1,) * 8)
"""Tokens of runs: whole and shorter pieces and single tokens, by which every place of a ring begins and ends a run."""


@pytest.mark.parametrize(("kind", "error"), [("fp32", 1e-5), ("fp16", 4e-3), ("int8", 4e-2)])
@pytest.mark.parametrize("name", CASES)
def test_texts_longer_than_the_window(name: str, kind: CacheType, error: float) -> None:
    """The logits of the definition, which looks at all tokens, and of a second text after a reset."""
    model, variant = CASES[name]
    with tenon.open(tenon.compile(model.file(), name="net", shapes=ENTRIES, cache_type=kind, no_tuning=True)) as engine:
        assert engine.text is not None
        assert engine.text.rewind == CHUNK + 1
        tokens = sum(RING if window else ROOM for window in variant.windows)
        element = {"fp32": 4, "fp16": 2, "int8": 1 + 4 / DEPTH}[kind]
        assert engine.manifest.state_bytes == 2 * tokens * model.key_heads * DEPTH * element + 8
        for _ in range(2):
            past = 0
            for count in RUNS:
                row = engine.run({"tokens": np.array([TOKENS[past : past + count]])})["logits"][0, -1]
                past += count
                right = logits(model, variant, TOKENS[:past])
                np.testing.assert_allclose(row, right, atol=error * np.abs(right).max())
            engine.reset()
        assert past == ROOM


def test_caches_that_are_no_larger_stay() -> None:
    """A ring would take as much memory, and a program that feeds caches itself must find them whole."""
    model, _ = CASES["phi3"]
    for sizes, states in ((RING, {}), (ROOM, {"": "none"})):
        shapes = {"length": f"1..{CHUNK}", "past": f"0..{sizes - CHUNK}"}
        graph = with_states(importers.load(model.file(), shapes), states)
        changed, rewind = with_rings([graph])
        assert changed == [graph]
        assert rewind is None


def test_tokens_taken_back(tmp_path: Path) -> None:
    """What a prompt has in common with the last text is kept as far as the rings have what is before it; the text is
    that of a generator without a past, and of a program in C."""
    pytest.importorskip("tokenizers")
    model = talking_decoder("phi3", layers=2, joined=True, pairs=PAIRS)
    (tmp_path / "net.gguf").write_bytes(model.file())
    bundle = tenon.compile(tmp_path / "net.gguf", name="net", shapes=ENTRIES, no_tuning=True)
    text = "the cat sat on the mat and the dog sat on the cat 12"
    prompts = (text, text + " and the mat", text, text[:20], text + "ing")
    reused, expected, before, reached = list[int](), list[int](), list[int](), 0
    with tenon.Generator(bundle) as generator:
        for prompt in prompts:
            completion = generator.generate(prompt, max_tokens=6)
            with tenon.Generator(bundle) as fresh:
                assert fresh.generate(prompt, max_tokens=6).tokens == completion.tokens
            tokens = generator.tokens_of(prompt)
            common = min(common_prefix(before, tokens), len(tokens) - 1)
            expected.append(common if common >= reached - CHUNK - 1 else 0)
            reused.append(completion.reused_tokens)
            before = tokens + list(completion.tokens[:5])
            reached = max(reached, len(before)) if reused[-1] else len(before)
    assert reused == expected
    assert [count > 0 for count in reused] == [False, True, False, False, True]
    bundle.save(tmp_path / "net", ("exe",))
    command = [str(tmp_path / "net" / "net"), "--max-tokens", "6", prompts[4]]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    assert printed.decode(errors="replace") == completion.text + "\n"
