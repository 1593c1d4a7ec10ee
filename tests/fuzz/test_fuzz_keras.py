"""Mutated Keras files (HDF5 structure and model description): the importer raises ModelError only."""

from __future__ import annotations

import io

import h5py
import numpy as np

from damage import COUNT, survive
from keras_models import archive, sequential, small
from tenon.formats import importers
from tenon.network.graph.graph import Graph


def test_h5() -> None:
    assert survive("h5", small(), importers.load) > COUNT // 20


def test_archive() -> None:
    model = sequential(
        {"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [None, 3]}},
        {"class_name": "Dense", "config": {"name": "d", "units": 4, "use_bias": False}},
    )
    data = archive(model, {"dense": [np.ones((3, 4), np.float32)]})
    assert survive("archive", data, importers.load) > COUNT // 20


def test_description() -> None:
    """Only the JSON is mutated, in a valid file."""
    with h5py.File(io.BytesIO(small()), "r") as file:
        description = str(file.attrs["model_config"])

    def load(data: bytes) -> Graph:
        out = io.BytesIO(small())
        with h5py.File(out, "r+") as file:
            file.attrs["model_config"] = np.bytes_(data or b"\0")
        return importers.load(out.getvalue())

    assert survive("description", description.encode(), load) > COUNT // 20


def test_new_style_groups() -> None:
    out = io.BytesIO()
    with h5py.File(io.BytesIO(small()), "r") as old, h5py.File(out, "w", libver="latest") as new:
        new.attrs.update(old.attrs)
        old.copy("model_weights", new)
    assert survive("latest", out.getvalue(), importers.load, COUNT // 2) > COUNT // 40
