"""Caffe nets for tests: prototxt with random weights, and the imported graphs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from evaluate import evaluate
from tenon.formats import importers
from tenon.formats.importers.caffe.node import CaffeLayer
from tenon.formats.importers.caffe.schema import SCHEMA
from tenon.formats.wire.protobuf import Message
from tenon.formats.wire.protobuf_write import serialise
from tenon.network.graph.graph import Array, Graph

Blobs = Mapping[str, Sequence[Array]]


def head(*dims: int, name: str = "data") -> str:
    """An input layer."""
    shape = " ".join(f"dim: {d}" for d in dims)
    return f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ {shape} }} }} }}\n'


def layer(type: str, options: str = "", bottoms: Sequence[str] = ("data",), top: str = "y", name: str = "it") -> str:
    read = " ".join(f'bottom: "{b}"' for b in bottoms)
    return f'layer {{ name: "{name}" type: "{type}" {read} top: "{top}" {options} }}\n'


def caffemodel(blobs: Blobs) -> bytes:
    """A weights file."""
    layers = [
        SCHEMA.new("LayerParameter", name=n, type="x", blobs=[blob(a) for a in some]) for n, some in blobs.items()
    ]
    return serialise(SCHEMA.new("NetParameter", layer=layers), ("dim",))


def blob(array: Array) -> Message:
    data = np.asarray(array, np.float32)
    return SCHEMA.new("BlobProto", data=data.reshape(-1), shape=SCHEMA.new("BlobShape", dim=list(data.shape)))


def run(text: str, *inputs: Array, blobs: Blobs | None = None) -> list[Array]:
    """The outputs of a net for the inputs in order."""
    graph = loaded(text, blobs)
    feeds = {v.name: np.asarray(a, np.float32) for v, a in zip(graph.inputs, inputs, strict=True)}
    return list(evaluate(graph, feeds).values())


def random(*dims: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, dims).astype(np.float32)


def shapes_of_weights(
    source: Path | bytes, monkeypatch: pytest.MonkeyPatch
) -> dict[str, dict[int, tuple[str, tuple[int, ...]]]]:
    """(type, shape) of each blob that the layers of a net read, by layer and blob index."""
    shapes: dict[str, dict[int, tuple[str, tuple[int, ...]]]] = {}
    real = CaffeLayer.array

    def record_shape(self: CaffeLayer, i: int, shape: Sequence[int], filler: Message | None = None) -> Array | None:
        shapes.setdefault(self.message.name, {})[i] = (self.type, tuple(shape))
        return real(self, i, shape, filler)

    with monkeypatch.context() as patch:
        patch.setattr(CaffeLayer, "array", record_shape)
        importers.load(source)
    return shapes


def random_weights(source: Path | bytes, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A weights file for a net, with values that keep activations bounded."""
    rng = np.random.default_rng(0)
    blobs: dict[str, list[Array]] = {}
    for name, asked in shapes_of_weights(source, monkeypatch).items():
        some = []
        for i, (type, shape) in sorted(asked.items()):
            size = 1 / math.sqrt(max(1, math.prod(shape[1:]))) if len(shape) > 1 else 0.1
            data = rng.standard_normal(shape).astype(np.float32) * np.float32(size)
            data = np.abs(data) + np.float32(0.5) if type == "BatchNorm" and i == 1 else data
            some.append(data + np.float32(type in ("Scale", "Normalize") and i == 0))
        blobs[name] = [*some, np.ones(1, np.float32)] if asked[0][0] == "BatchNorm" else some
    return caffemodel(blobs)


def loaded(text: str, blobs: Blobs | None = None) -> Graph:
    return importers.load(text.encode(), weights=caffemodel(blobs) if blobs else None)
