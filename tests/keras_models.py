"""Builds small Keras files in both formats."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from tenon.network.graph.graph import Array

Arrays = Mapping[str, Array]


def layer(kind: str, name: str, *inputs: str, **config: Any) -> dict[str, Any]:
    """A layer of a functional model, applied once."""
    nodes = [[[i, 0, 0, {}] for i in inputs]] if inputs else []
    return {"class_name": kind, "name": name, "config": {"name": name, **config}, "inbound_nodes": nodes}


def start(name: str, *shape: int | None) -> dict[str, Any]:
    return layer("InputLayer", name, batch_input_shape=[None, *shape], dtype="float32")


def sequential(*layers: dict[str, Any]) -> dict[str, Any]:
    return {"class_name": "Sequential", "config": {"name": "net", "layers": list(layers)}}


def functional(inputs: Sequence[str], outputs: Sequence[str], *layers: dict[str, Any]) -> dict[str, Any]:
    ends = {"input_layers": [[n, 0, 0] for n in inputs], "output_layers": [[n, 0, 0] for n in outputs]}
    return {"class_name": "Functional", "config": {"name": "net", "layers": list(layers), **ends}}


def h5(model: Mapping[str, Any], weights: Mapping[str, Arrays], version: str = "2.4.0") -> bytes:
    """An .h5 file; ``weights`` are those of each layer by the variables' names."""
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file.attrs["model_config"] = json.dumps(model)
        file.attrs["keras_version"] = version
        group = file.create_group("model_weights")
        for name, arrays in weights.items():
            inner = group.create_group(name)
            inner.attrs["weight_names"] = [f"{path}:0".encode() for path in arrays]
            for path, array in arrays.items():
                inner[f"{path}:0"] = array
    return out.getvalue()


def archive(model: Mapping[str, Any], weights: Mapping[str, Sequence[Array]]) -> bytes:
    """A .keras file; ``weights`` are those of each group of layers/, in order."""
    data = io.BytesIO()
    with h5py.File(data, "w") as file:
        for group, arrays in weights.items():
            for i, array in enumerate(arrays):
                file[f"layers/{group}/vars/{i}"] = array
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", json.dumps(model))
        archive.writestr("model.weights.h5", data.getvalue())
    return out.getvalue()


def small() -> bytes:
    """A convolution, a batch normalisation, an LSTM over the rows, a dense layer."""
    rng = np.random.default_rng(0)

    def some(*shape: int) -> Array:
        return rng.uniform(-0.5, 0.5, shape).astype(np.float32)

    model = functional(
        ["x"],
        ["out"],
        start("x", 6, 5, 2),
        layer("Conv2D", "conv", "x", filters=4, kernel_size=[3, 3], strides=[1, 1], padding="same", activation="relu"),
        layer("BatchNormalization", "bn", "conv", axis=[3], epsilon=1e-3),
        layer("Reshape", "rows", "bn", target_shape=[6, 20]),
        layer("LSTM", "lstm", "rows", units=3, activation="tanh", recurrent_activation="sigmoid"),
        layer("Dense", "out", "lstm", units=2, activation="softmax"),
    )
    names = ("gamma", "beta", "moving_mean", "moving_variance")
    return h5(
        model,
        {
            "conv": {"conv/kernel": some(3, 3, 2, 4), "conv/bias": some(4)},
            "bn": {f"bn/{n}": np.abs(some(4)) for n in names},
            "lstm": {
                "lstm/cell/kernel": some(20, 12),
                "lstm/cell/recurrent_kernel": some(3, 12),
                "lstm/cell/bias": some(12),
            },
            "out": {"out/kernel": some(3, 2), "out/bias": some(2)},
        },
    )
