"""Decoders with a range of tokens that the user gives: beside its entry point there is one for a token alone."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import tenon
from libtenon import CLIENTS, needed, run, succeeded
from tenon.network.graph.graph import Graph
from tenon.network.graph.text_shapes import decoder_shapes, entry_points
from tenon.runtime.bundle.manifest import size_ranges
from tenon.runtime.engine.bindings import fitting
from text_models import talking_decoder, written_model

pytest.importorskip("tokenizers")

GIVEN: dict[str, Any] = {"length": "1..8", "past": "0..24"}
PROMPT = "abc cat"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "words.gguf"
    path.write_bytes(talking_decoder().file())
    return path


def entries(bundle: tenon.Bundle) -> list[tuple[int, int]]:
    """The most tokens of the runs of each entry point, and in its caches in front of them."""
    with tenon.open(bundle) as engine:
        ranges = [size_ranges(binding.inputs) for binding in engine.manifest.every_binding()]
    return [(sizes["length"].most, sizes["past"].most) for sizes in ranges]


@pytest.mark.parametrize("weight_format", ["fp32", "q4_0"])
def test_weights_are_shared(model: Path, weight_format: Any) -> None:
    """The given entry point is the first one, so that its names in the header stay; the other adds no weights."""
    sizes = {"name": "words", "no_tuning": True, "weight_format": weight_format}
    both = tenon.compile(model, shapes=GIVEN, **sizes)
    assert entries(both) == [(8, 24), (1, 31)]
    loaded = tenon.compile(tenon.load(model, shapes=GIVEN), **sizes)  # sizes of a loaded graph stay as they are
    assert entries(loaded) == [(8, 24)]
    assert len(both.weights) <= len(loaded.weights) + 256  # the largest sizes of its runs are constants
    assert "#define WORDS_length_MOST 8" in both.header
    assert "#define WORDS_2_length_MOST 1" in both.header
    with tenon.Generator(both) as generator, tenon.Generator(loaded) as alone:
        texts = [each.generate(PROMPT, max_tokens=5) for each in (generator, alone)]
    assert texts[0].tokens == texts[1].tokens
    assert len(texts[0].tokens) == 5


@pytest.mark.parametrize(
    ("shapes", "added"),
    [
        (GIVEN, {"length": "1..1", "past": "0..31"}),
        ({"length": "1..8"}, {"length": "1..1", "past": "0..255"}),
        ({"length": "2..8", "past": "0..24"}, None),
        ({"length": "1..1", "past": "0..24"}, None),
        ({"length": 4, "past": "0..24"}, None),
        ({"tokens": "1,L:1..8", "past": "0..24"}, {"tokens": "1,L:1..1", "past": "0..31"}),
    ],
    ids=str,
)
def test_which_ranges_get_one(model: Path, shapes: dict[str, Any], added: dict[str, Any] | None) -> None:
    points = entry_points(tenon.load(model, shapes=shapes), [shapes], None, 64, 1)
    assert bool(points) == (added is not None)
    if added is not None:
        wanted, got = (tenon.load(model, shapes=each) for each in (added, points[1]))
        assert ranges(got) == ranges(wanted)


def ranges(graph: Graph) -> dict[str, Any]:
    return {**graph.sizes, **{value.name: value.type for value in graph.inputs}}


def test_onnx(tmp_path: Path) -> None:
    """Decoders of ONNX name their dimensions; several sets of shapes stay as they are."""
    path = written_model(tmp_path)
    shapes: dict[str, Any] = {"batch_size": 1, "sequence": "1..8", "past": "0..24"}
    one: dict[str, Any] = {"batch_size": 1, "sequence": "1..1", "past": "0..31"}
    graph = tenon.load(path, shapes=shapes)
    added = entry_points(graph, [shapes], None, 64, 1)[1]
    assert ranges(tenon.load(path, shapes=added)) == ranges(tenon.load(path, shapes=one))
    assert not entry_points(graph, [shapes, one], None, 64, 1)
    opened = tenon.load(path)
    assert entry_points(opened, [None], 40, 8, 1) == decoder_shapes(opened, 40, 8)


def test_programs_in_c_take_it(tmp_path: Path, model: Path) -> None:
    """The prompt by the given entry point and what follows by that of a token, also where both have room."""
    bundle = tenon.compile(model, shapes=GIVEN, name="words", no_tuning=True, threads=1)
    place = bundle.save(tmp_path / "words", emit=("header", "object", "weights", "manifest", "text"))
    files = (CLIENTS / "text_entries.c", place / "words_text.c", place / "words.o")
    succeeded(run(needed("gcc"), "-std=c99", "-Wall", f"-I{place}", *files, "-lm", "-o", place / "text_entries"))
    shown = succeeded(subprocess.run([place / "text_entries", PROMPT], cwd=place, capture_output=True, check=False))
    runs = shown.decode()
    assert set(runs[:-3]) <= {"0"}
    assert runs[-3:] == "111"


def test_engines_take_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point for the fewest elements runs, of all that take an array, whichever is the first."""
    chosen = list[int]()

    def noted(*arguments: Any) -> int:
        chosen.append(fitting(*arguments))
        return chosen[-1]

    monkeypatch.setattr("tenon.runtime.engine.engine.fitting", noted)
    bundle = tenon.compile(model, shapes=GIVEN, name="words", no_tuning=True)
    with tenon.Generator(bundle) as generator:
        generator.generate(PROMPT, max_tokens=4)
    assert chosen[0] == 0
    assert chosen[-3:] == [1, 1, 1]
