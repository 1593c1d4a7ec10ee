"""Integer models give the results of TFLite Micro and LiteRT bit for bit, both the references and compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tenon
from integer_models import MODELS, inputs, model, records
from tenon.network.graph.evaluate import evaluate
from tenon.network.passes.integers import to_integers
from tenon.options import Arithmetic

REFERENCE_RECORDS = 4
"""Records that are computed by the references, which take a while."""


@pytest.mark.parametrize("arithmetic", ["tflm", "litert"])
@pytest.mark.parametrize("name", MODELS)
def test_references_match_recorded_results(name: str, arithmetic: Arithmetic) -> None:
    graph = tenon.load(model(name))
    assert not to_integers(graph, arithmetic)
    given, answers = records(name, arithmetic)
    for record, answer in list(zip(given, answers, strict=True))[:REFERENCE_RECORDS]:
        (got,) = evaluate(graph, inputs(graph, record)).values()
        np.testing.assert_array_equal(np.ascontiguousarray(got).reshape(-1).view(np.uint8), answer)


@pytest.mark.parametrize("arithmetic", ["tflm", "litert"])
@pytest.mark.parametrize("name", MODELS)
def test_compiled_models_match_recorded_results(name: str, arithmetic: Arithmetic, tmp_path: Path) -> None:
    graph = tenon.load(model(name))
    bundle = tenon.compile(graph, arithmetic=arithmetic, name=name, no_tuning=True)
    bundle.save(tmp_path)
    engine = tenon.Engine(tmp_path)
    for record, answer in zip(*records(name, arithmetic), strict=True):
        (got,) = engine.run(inputs(graph, record)).values()
        np.testing.assert_array_equal(np.ascontiguousarray(got).reshape(-1).view(np.uint8), answer)


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_not_larger_than_the_file(name: str) -> None:
    bundle = tenon.compile(model(name), arithmetic="tflm", name=name, no_tuning=True)
    assert bundle.program.memory.constant <= 1.02 * model(name).stat().st_size
