"""The corpus of recorded models and their mutations, as used by ``scripts/fuzz-files``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from damage import Outcomes
from fuzzing.corpus import models, recording, unpack, words
from fuzzing.files import Run, damaged, keep
from onnx_models import classifier
from tenon.formats import importers
from tenon.formats.importers.darknet import load as darknet

NET = b"[net]\nheight=4\nwidth=4\nchannels=1\n[convolutional]\nfilters=2\nsize=1\nactivation=linear\n"
WEIGHTS = bytes([0, 0, 0, 0, 2]) + bytes(15 + 4 * 4)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Recorded models: Darknet from memory and from a folder, ONNX from memory."""
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "net.cfg").write_bytes(NET)
    (tmp_path / "net" / "net.weights").write_bytes(WEIGHTS)
    with recording(tmp_path / "corpus"):
        importers.load(NET, weights=WEIGHTS)
        importers.load(tmp_path / "net" / "net.cfg")
        for made in (classifier(), classifier()):
            importers.load(made.SerializeToString(), {"batch": 3})
    return tmp_path / "corpus"


def test_recorded_models_are_unique_and_load(corpus: Path) -> None:
    alone, beside = sorted(models(corpus, "Darknet"), key=lambda model: len(model.main))
    assert (alone.main, beside.main, beside.weights) == ("model", "net.cfg", "net.weights")
    assert not alone.load().incomplete
    assert not beside.load().incomplete
    assert [model.shapes for model in models(corpus, "ONNX")] == [{"batch": 3}]


def test_damaged_copies_are_reproducible(corpus: Path) -> None:
    recorded = models(corpus, "Darknet")
    run = Run(recorded, 0, Outcomes("Darknet"))
    run.go_on(60)
    assert (run.outcomes.files, run.seed, run.outcomes.failures) == (60, 60, {})
    assert 10 < run.outcomes.refused < 60
    assert damaged(recorded, 7) == damaged(recorded, 7)


def test_findings_are_kept(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    recorded = models(corpus, "Darknet")
    run = Run(recorded, 0, Outcomes("Darknet"))
    with monkeypatch.context() as patched:
        patched.setattr(darknet, "load", lambda *_: dict[str, str]()["x"])
        run.go_on(20)
    (failure,) = run.outcomes.failures.values()
    assert "KeyError in test_files.py" in failure
    assert unpack(keep(recorded[0], -1)) == recorded[0]


def test_dictionary_contains_names_of_the_importer() -> None:
    assert {"convolutional", "batch_normalize", "leaky"} <= set(words("Darknet"))
