"""A decoder with caches that grow: they stay in place from run to run, and prefill and decode share them."""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tenon
from command_line import run_main
from decoder_models import CACHES, HEAD, HEADS, WORDS, decoder, generated
from libtenon import CLIENTS, needed, run, sdk_for_clients, succeeded
from tenon.cli import main
from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.timing import time_runs
from tenon.tools.quantization.samples import random_samples

PROMPT, COUNT = [3, 1, 4, 1, 5], 60
PREFILL, ROOM = 8, 72
"""The most words of a prompt, and words that the caches have room for."""


def shapes(words: int, room: int) -> dict[str, str]:
    """The dimensions of a run with up to ``words`` words, where the caches have room for ``room``; that of the mask is
    called "past + sequence"."""
    return {"sequence": f"1..{words}", "past": f"0..{room - words}"}


def feeds(words: list[int], past: int) -> dict[str, Array]:
    """The inputs for words behind ``past`` others."""
    return {"input_ids": np.array([words]), "attention_mask": np.ones((1, past + len(words)), np.int64)}


@cache
def bundle() -> tenon.Bundle:
    """Two entry points: one word, and up to 8 at once."""
    both = [shapes(most, ROOM) for most in (1, PREFILL)]
    return tenon.compile(decoder(), shapes=both, name="net", target="x86-64", threads=2, no_tuning=True)


@cache
def expected() -> tuple[list[int], list[Array]]:
    return generated(decoder(), PROMPT, COUNT)


def needs_x86() -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the bundle is compiled for x86-64 here")


@pytest.mark.parametrize("threads", [1, 2])
def test_words_are_those_of_a_growing_cache(threads: int) -> None:
    """A prompt at once and then word by word; again after a reset."""
    pytest.importorskip("onnxruntime")
    needs_x86()
    words, logits = expected()
    with tenon.open(bundle(), threads=threads) as engine:
        for _ in range(2):
            given, chosen, past = PROMPT, list[int](), 0
            for right in logits:
                results = engine.run(feeds(given, past))
                past += len(given)
                np.testing.assert_allclose(results["logits"][0, -1], right, rtol=1e-4, atol=1e-4)
                given = [int(results["logits"][0, -1].argmax())]
                chosen += given
            assert chosen == words
            assert results["present.0.key"].shape == (1, HEADS, len(PROMPT) + COUNT - 1, HEAD)
            engine.reset()


def test_caches_can_be_fed_and_read() -> None:
    """As a program does that passes them on itself, and that goes back to an earlier word."""
    needs_x86()
    with tenon.open(bundle()) as engine:
        past = len(PROMPT)
        first, second, third = (engine.run(feeds(*each)) for each in ((PROMPT, 0), ([7], past), ([9], past + 1)))
        kept = {f"past_key_values.{name}": first[f"present.{name}"] for name in CACHES}
        again = engine.run({**feeds([7], past), **kept})
        np.testing.assert_array_equal(again["logits"], second["logits"])
        np.testing.assert_array_equal(engine.run(feeds([9], past + 1))["logits"], third["logits"])


def test_full_caches_end_a_run() -> None:
    """Nothing is written past their end."""
    needs_x86()
    with tenon.open(bundle()) as engine:
        for past in range(ROOM):
            results = engine.run(feeds([1], past))
        with pytest.raises(InputError, match=r"size 'past' is 72, and the network was compiled for 0\.\.71"):
            engine.run(feeds([1], ROOM - 1))
        assert results["present.1.value"].shape == (1, HEADS, ROOM, HEAD)
        engine.reset()
        assert engine.run(feeds([1], 0))["present.1.value"].shape == (1, HEADS, 1, HEAD)


def test_masks_are_as_long_as_the_words() -> None:
    """A mask of another length than the caches and the words have would be read where nothing was written."""
    needs_x86()
    with tenon.open(bundle()) as engine:
        engine.run(feeds([1, 2], 0))
        for past in (1, 3):
            with pytest.raises(InputError, match="a size is not in the range"):
                engine.run(feeds([3], past))
        engine.run(feeds([3], 2))


def test_both_entry_points_have_one_copy_of_weights_and_caches() -> None:
    """The caches are at the same places, and only their new rows are written."""
    made = bundle()
    first, second = made.interface.bindings
    places = [{t.name: t.offset for t in each.inputs if t.state} for each in (first, second)]
    assert places[0] == places[1]
    assert places[0].keys() == {"past", *(f"past_key_values.{name}" for name in CACHES)}
    weights = made.interface.memory.constant
    alone = tenon.compile(decoder(), shapes=shapes(1, ROOM), target="x86-64", no_tuning=True).interface.memory.constant
    assert weights < alone + 1024
    for program, counted in ((made.program, False), *((more, True) for more in made.more)):
        calls = [call for call in program.calls if call.op == "Append"]
        assert len(calls) == len(CACHES), "no call copies a cache"
        assert all(("_counted" in call.kernel.name) == counted for call in calls), "no row beyond the words is read"
    moved = {"reorder", "transpose", "mask"}
    moves = [call for call in made.program.calls if moved & {*call.kernel.name.split("_")} and call.facts.bytes > 16]
    assert not moves, "one word reads the keys and values where they are"
    assert [call.kernel.name for call in made.program.calls if call.op == "HeadAttention"] == [
        "row_attention_2x72x16"
    ] * 2


def test_program_in_c(tmp_path: Path) -> None:
    """Both entry points, linked into a program."""
    pytest.importorskip("onnxruntime")
    needs_x86()
    folder = bundle().save(tmp_path / "net", ("header", "object", "weights", "weights-text"))
    built = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{folder}", CLIENTS / "decoder_program.c")
    succeeded(run(needed("gcc"), *built, folder / "net.o", "-o", tmp_path / "program"))
    words = [int(n) for n in succeeded(run(tmp_path / "program", str(COUNT), *map(str, PROMPT))).split()]
    assert words == expected()[0]


def test_libtenon(tmp_path: Path) -> None:
    """Selecting the other entry point keeps the caches."""
    pytest.importorskip("onnxruntime")
    needs_x86()
    library = ctypes.CDLL(str(sdk_for_clients(tmp_path, "") / "lib" / "libtenon.so"))
    library.tenon_last_error.restype = ctypes.c_char_p
    handle, engine, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t
    path = str(bundle().save(tmp_path / "net.tenon")).encode()

    def done(status: int) -> None:
        assert status == 0, library.tenon_last_error()

    done(library.tenon_bundle_open(path, None, ctypes.byref(handle)))
    done(library.tenon_engine_create(handle, None, ctypes.byref(engine)))
    numbers = {t.name: i for i, t in enumerate(bundle().interface.inputs)}

    def put(name: str, array: Array) -> None:
        done(
            library.tenon_engine_set_input(
                engine, numbers[name], ctypes.c_void_p(array.ctypes.data), size(array.nbytes)
            )
        )

    for _ in range(2):
        done(library.tenon_engine_select(engine, 1))
        put("input_ids", np.array([*PROMPT, *[0] * (PREFILL - len(PROMPT))]))
        put("sequence", np.array(len(PROMPT)))
        put("past_sequence", np.array(len(PROMPT)))
        put("attention_mask", np.ones(ROOM, np.int64))
        logits, words = np.zeros((PREFILL, WORDS), np.float32), list[int]()
        for i in range(COUNT):
            done(library.tenon_engine_run(engine))
            out = ctypes.c_void_p(logits.ctypes.data)
            done(library.tenon_engine_get_output(engine, 0, out, size(logits.nbytes)))
            words.append(int(logits[len(PROMPT) - 1 if i == 0 else 0].argmax()))
            if i == 0:
                done(library.tenon_engine_select(engine, 0))
                logits = np.zeros((1, WORDS), np.float32)
                put("sequence", np.array(1))
                put("attention_mask", np.ones(ROOM, np.int64))
            put("past_sequence", np.array(len(PROMPT) + i + 1))
            put("input_ids", np.array([words[-1]]))
        assert words == expected()[0]
        done(library.tenon_engine_reset(engine))
    done(library.tenon_engine_destroy(engine))
    done(library.tenon_bundle_close(handle))


def test_entry_points_have_the_same_inputs() -> None:
    """A number in place of a size would leave out its input."""
    with pytest.raises(InputError, match=r"'sequence' is a size .* in some bindings only: .* \(L:1\.\.1\)"):
        tenon.compile(decoder(), shapes=[shapes(PREFILL, ROOM), {**shapes(1, ROOM), "sequence": 1}])


def test_times_are_of_full_caches() -> None:
    """Each timed run begins with the largest sizes, here and in the program for another machine."""
    needs_x86()
    engine = tenon.open(bundle())
    _, times = time_runs(engine, 2 * ROOM, 0)
    assert len(times.samples) == 2 * ROOM
    assert engine.outputs["present.0.key.extent"] == ROOM
    alone = tenon.compile(decoder(), shapes=shapes(1, ROOM), target="x86-64", no_tuning=True, threads=1)
    assert len(RemoteBundle(alone).time(3, 1).samples) == 3
    (first, second) = random_samples(tenon.load(decoder(), shapes=shapes(PREFILL, ROOM)), 2)
    assert first["attention_mask"].shape == (1, ROOM)
    past, words = second["past_key_values.0.key"].shape[2], second["input_ids"].shape[1]
    assert second["attention_mask"].shape == (1, past + words)


def test_validate_compares_what_the_model_gives(tmp_path: Path) -> None:
    """Random words and caches of random lengths; outputs that hold extents have no counterpart in onnxruntime."""
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.onnx").write_bytes(decoder())
    dims = shapes(PREFILL, ROOM).items()
    options = [word for name, extent in dims for word in ("--shape", f"{name}={extent}")]
    assert run_main(main, ["validate", str(tmp_path / "net.onnx"), *options]) == 0
