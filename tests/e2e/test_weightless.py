"""Models without weights: written by optimize, inspected, benchmarked with random weights, refused by compile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import tenon
from real import DIGITS, shared
from tenon.cli.app import app
from tenon.errors import ModelError
from tenon.network.graph.random_weights import with_random_weights
from tenon.pipeline import rewrite

MODEL = DIGITS / "digits.onnx"


@pytest.fixture
def weightless(tmp_path: Path) -> Path:
    path = tmp_path / "empty.onnx"
    rewrite(MODEL, path, without_weights=True)
    return path


def test_optimize_writes_models_without_weights(weightless: Path) -> None:
    whole = tenon.load(MODEL)
    largest = max(v.array.size for v in whole.constants())
    kept = {t.name: len(t.raw_data) for t in onnx.load(weightless).graph.initializer if np.prod(t.dims) == largest}
    assert kept
    assert set(kept.values()) == {0}
    assert weightless.stat().st_size < MODEL.stat().st_size / 3


def test_incomplete_model_can_be_inspected_but_not_compiled(weightless: Path) -> None:
    graph = tenon.load(weightless)
    described, _ = tenon.inspect(graph)
    assert described.macs == tenon.inspect(tenon.load(MODEL))[0].macs
    with pytest.raises(ModelError, match="its weights were not given"):
        tenon.compile(weightless)


def test_random_weights_are_reproducible_and_distinct(weightless: Path) -> None:
    first, again = (with_random_weights(tenon.load(weightless)) for _ in range(2))
    weights = [v.array for v in first.constants() if v.array.size > 16]
    assert [w.tobytes() for w in weights] == [v.array.tobytes() for v in again.constants() if v.array.size > 16]
    assert len({w.tobytes() for w in weights}) == len(weights)
    assert all(np.isfinite(w).all() and w.any() for w in weights)


def fastest(model: Path) -> float:
    result = CliRunner().invoke(app, ["benchmark", str(model), "--rounds", "2", "--json"])
    assert result.exit_code == 0, result.output
    return float(json.loads(result.stdout)["networks"][0]["min"])


def test_benchmark_without_weights(weightless: Path) -> None:
    assert fastest(weightless) > 0


def test_benchmark_files_of_tengine() -> None:
    folder = shared("models/tmfile/tengine_benchmark_noweights")
    assert fastest(folder / "squeezenet_v1.1_benchmark.tmfile") > 0
