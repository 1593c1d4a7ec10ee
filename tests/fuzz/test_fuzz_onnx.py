"""Mutated ONNX files: import and binding of dimensions raise ModelError only."""

from __future__ import annotations

from pathlib import Path

import pytest

from damage import COUNT, survive, verified
from onnx_models import classifier, gated
from ort_models import MODELS, ort_file
from real import shared
from tenon.formats import importers
from tenon.network.graph.bind import ANY_RANK, bind
from tenon.network.graph.graph import Graph

MNIST = "models/onnx/mnist/mnist.onnx"


def loaded_and_bound(data: bytes) -> Graph:
    graph = verified(importers.load(data))
    names = {d for v in graph.inputs for d in v.type.shape if isinstance(d, str) and d != ANY_RANK}
    return verified(bind(graph, dict.fromkeys(names, 2)))


@pytest.mark.parametrize("name", ["classifier", "gated", "mnist"])
def test_only_model_errors_escape(name: str) -> None:
    if name == "mnist":
        data = shared(MNIST).read_bytes()
    else:
        data = (classifier() if name == "classifier" else gated()).SerializeToString()
    assert survive(name, data, loaded_and_bound) > COUNT // 20


@pytest.mark.parametrize("name", ["classifier", "branches", "integers"])
def test_damaged_files_of_onnxruntime(name: str, tmp_path: Path) -> None:
    data = ort_file(MODELS[name], tmp_path / "model.ort", optimised=name == "integers")
    assert survive(f"ort {name}", data, loaded_and_bound) > COUNT // 20
