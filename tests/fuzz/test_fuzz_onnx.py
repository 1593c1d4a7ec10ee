"""Mutated ONNX files: import and binding of dimensions raise ModelError only."""

from __future__ import annotations

from pathlib import Path

import pytest

from damage import COUNT, survive, verified
from onnx_models import classifier, gated
from optimum_models import sound_encoder
from ort_models import MODELS, ort_file
from real import shared
from tenon.formats import importers
from tenon.formats.importers.onnx.load import parse
from tenon.formats.importers.onnx.masks import drop_mask
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.bind import ANY_RANK, bind
from tenon.network.graph.graph import Graph
from tenon.network.graph.size_range import Size
from transformer_models import SMALL_WHISPER

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


def without_mask(data: bytes) -> Graph:
    """An encoder of speech of which the mask is taken out, for sounds of several lengths."""
    model = parse(ModelFile("encoder_model.onnx", data))
    drop_mask(model, "attention_mask")
    count = Size("sound_length", 1024, 4096)
    return verified(importers.load(model.SerializeToString(), {"input_values": (1, count)}))


def test_damaged_encoders_of_speech() -> None:
    data = sound_encoder(SMALL_WHISPER)
    assert [v.name for v in without_mask(data).inputs] == ["input_values", "sound_length"]
    assert survive("sound encoder", data, without_mask) > COUNT // 20


@pytest.mark.parametrize("name", ["classifier", "branches", "integers"])
def test_damaged_files_of_onnxruntime(name: str, tmp_path: Path) -> None:
    data = ort_file(MODELS[name], tmp_path / "model.ort", optimised=name == "integers")
    assert survive(f"ort {name}", data, loaded_and_bound) > COUNT // 20
