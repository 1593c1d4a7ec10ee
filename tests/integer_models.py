"""Quantised models beside the project, with inputs and expected outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from real import shared
from tenon.network.graph.graph import Array, Graph
from tenon.options import Arithmetic

MODELS = ("ad", "ic", "kws", "mcunet", "person", "speech", "sww", "vww")


def model(name: str) -> Path:
    described = json.loads(shared(f"mcu/{name}.json").read_text())
    return shared("mcu") / str(described["path"])


def records(name: str, arithmetic: Arithmetic) -> tuple[Array, Array]:
    """(inputs, expected outputs), as bytes: 20 random ones and those recorded with the model."""
    with np.load(shared(f"mcu/{name}.npz")) as kept:
        given, answers = kept["in"], kept["out"]
    if arithmetic == "tflm":
        answers = np.fromfile(shared(f"mcu/{name}.tflm.bin"), np.uint8).reshape(len(given), -1)
    return given, answers


def inputs(graph: Graph, record: Array) -> dict[str, Array]:
    (x,) = graph.inputs
    return {x.name: record.view(x.type.dtype.numpy).reshape(x.type.dims)}
