"""Rings for the caches of layers with sliding windows: texts longer than the window, of one sequence and of several,
and what can be taken back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import tenon
from gguf_models import DEPTH, HIDDEN, U32, VOCABULARY, DecoderFile, Variant, logits
from tenon.errors import ResourceError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tenon.network.passes.cache_rings import Rings, with_rings
from tenon.network.passes.states import with_states
from tenon.options import CacheType
from tenon.runtime.generation.sequences import SequenceDecoder
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
SLOTS = 3
SEVERAL: list[dict[str, int | str]] = [
    {"sequences": SLOTS, "answers": f"1..{SLOTS}", "length": f"1..{n}", "past": f"0..{ROOM - n}"}
    for n in (SLOTS, CHUNK)
]
RUNS = (8, 8, 3, 1, 1, 8, 7, 1, 1, 1, 8, 4, 1, 1, 3, *(1,) * 8)
"""Tokens of runs: whole and shorter pieces and single tokens, by which every place of a ring begins and ends a run."""


@pytest.mark.parametrize(("kind", "error"), [("fp32", 1e-5), ("fp16", 4e-3), ("int8", 4e-2)])
@pytest.mark.parametrize("name", CASES)
def test_texts_longer_than_the_window(name: str, kind: CacheType, error: float) -> None:
    """The logits of the definition, which looks at all tokens, and of a second text after a reset."""
    model, variant = CASES[name]
    with tenon.open(tenon.compile(model.file(), name="net", shapes=ENTRIES, cache_type=kind, no_tuning=True)) as engine:
        assert engine.text is not None
        assert (engine.text.rewind, engine.text.room) == (CHUNK + 1, ROOM)
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


@pytest.mark.parametrize(("kind", "error"), [("fp32", 1e-5), ("fp16", 4e-3), ("int8", 4e-2)])
@pytest.mark.parametrize("name", CASES)
def test_several_texts_longer_than_the_window(name: str, kind: CacheType, error: float) -> None:
    """Pieces of prompts and single tokens of three texts, mixed in every order, have the logits of each text alone."""
    model, variant = CASES[name]
    rng = np.random.default_rng(3)
    texts = [[int(token) for token in rng.integers(0, VOCABULARY, ROOM)] for _ in range(SLOTS)]
    with tenon.open(tenon.compile(model.file(), name="net", shapes=SEVERAL, cache_type=kind, no_tuning=True)) as engine:
        tokens = sum(RING if window else ROOM for window in variant.windows)
        element = {"fp32": 4, "fp16": 2, "int8": 1 + 4 / DEPTH}[kind]
        assert engine.manifest.state_bytes == 2 * SLOTS * tokens * model.key_heads * DEPTH * element
        assert engine.text is not None
        decoder = SequenceDecoder(engine, engine.text)
        assert (decoder.room, decoder.count, decoder.most) == (ROOM, SLOTS, CHUNK)
        while min(map(len, decoder.tokens)) < ROOM:
            given, left = dict[int, list[int]](), CHUNK
            for slot in map(int, rng.permutation(SLOTS)):
                past = len(decoder.tokens[slot])
                count = min(left, ROOM - past, int(rng.integers(0, (CHUNK, 2, 5)[int(rng.integers(3))] + 1)))
                left -= count
                given |= {slot: texts[slot][past : past + count]} if count else {}
            for slot, row in decoder.run(given).items() if given else ():
                right = logits(model, variant, decoder.tokens[slot])
                np.testing.assert_allclose(row, right, atol=error * np.abs(right).max())


@pytest.mark.parametrize("target", ["opencl", "vulkan"])
def test_rings_of_several_texts_on_gpus(target: str) -> None:
    """Tokens of three texts in each run, of which one is longer than its ring in the end, and a beginning copied."""
    model, variant = CASES["gemma2"]
    with tenon.open(tenon.compile(model.file(), name="net", shapes=SEVERAL, target=target, no_tuning=True)) as engine:
        assert engine.text is not None
        try:
            engine.prepare()
        except ResourceError as error:
            pytest.skip(str(error))
        decoder, most = SequenceDecoder(engine, engine.text), (5, 1, 2)
        rows = dict[int, Array]()
        while len(decoder.tokens[0]) < 2 * RING:
            begun = [len(tokens) for tokens in decoder.tokens]
            rows = decoder.run({slot: TOKENS[begun[slot] : begun[slot] + most[slot]] for slot in range(SLOTS)})
        slot, kept = decoder.place(TOKENS[: 2 * RING], [1])
        assert kept > RING
        rows[slot] = decoder.run({slot: TOKENS[kept : 2 * RING]})[slot]
        for slot, row in rows.items():
            right = logits(model, variant, decoder.tokens[slot])
            np.testing.assert_allclose(row, right, atol=1e-5 * np.abs(right).max())


@pytest.mark.parametrize("name", ["phi3", "gemma2"])
def test_beginnings_are_shared_as_far_as_rings_have_them(name: str) -> None:
    """Tokens taken back, and those of another slot, are followed by the logits of the whole text, however often a
    slot is taken; and no more is computed again than must be."""
    model, variant = CASES[name]
    rng = np.random.default_rng(5)
    with tenon.open(tenon.compile(model.file(), name="net", shapes=SEVERAL, no_tuning=True)) as engine:
        assert engine.text is not None
        decoder, counts = SequenceDecoder(engine, engine.text), list[int]()
        for turn in range(40):
            past = decoder.tokens[int(rng.integers(SLOTS))]
            back = max(0, len(past) - int(rng.integers(0, (2 * CHUNK, 4)[turn % 2])))
            text = [*past[:back], *(int(token) for token in rng.integers(0, VOCABULARY, rng.integers(1, 20)))][:ROOM]
            free = [int(slot) for slot in rng.permutation(SLOTS)[: rng.integers(1, SLOTS + 1)]]
            slot, kept = decoder.place(text, free)
            counts.append(kept)
            assert slot in free
            assert decoder.tokens[slot] == text[:kept]
            while len(decoder.tokens[slot]) < len(text):
                count = len(decoder.tokens[slot])
                row = decoder.run({slot: text[count : count + CHUNK]})[slot]
            right = logits(model, variant, text)
            np.testing.assert_allclose(row, right, atol=1e-5 * np.abs(right).max())
        assert 0 < counts.count(0) < 30
        prompt = TOKENS[: 3 * CHUNK]
        for slot, wanted in ((0, 0), (1, len(prompt) - 1), (2, len(prompt) - 1)):
            assert decoder.place(prompt, [slot]) == (slot, wanted)
            while count := len(prompt) - len(decoder.tokens[slot]):
                decoder.run({slot: prompt[-count:][:CHUNK]})
        decoder.run({0: TOKENS[len(prompt) : len(prompt) + 1]})
        for back, wanted in ((CHUNK, len(prompt) - CHUNK), (CHUNK + 1, len(prompt) - CHUNK - 1), (CHUNK + 2, 0)):
            text = [*prompt[: len(prompt) - back], VOCABULARY - 1 - prompt[len(prompt) - back]]
            assert decoder.place(text, [1])[1] == wanted


def test_caches_that_are_no_larger_stay() -> None:
    """A ring would take as much memory, and a program that feeds caches itself must find them whole."""
    model, _ = CASES["phi3"]
    for sizes, states in ((RING, {}), (ROOM, {"": "none"})):
        shapes = {"length": f"1..{CHUNK}", "past": f"0..{sizes - CHUNK}"}
        graph = with_states(importers.load(model.file(), shapes), states)
        assert with_rings([graph]) == ([graph], Rings())


def test_tokens_taken_back(tmp_path: Path) -> None:
    """A beginning shared with the last text is kept as far as the rings have what is before it; the text is
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
