"""Statements of ONNX models besides their graph: class names in the metadata, names of dimensions that are none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

import tenon
from installed import succeeds
from onnx_models import model, node
from tenon.errors import TenonError


def network(metadata: Mapping[str, str], shape: list[int | str | None] | None = None) -> ModelProto:
    constants = {"to": np.array([1, -1], np.int64)}
    made: ModelProto = model([node("Reshape", ["x", "to"], ["y"])], {"x": shape or [1, 3]}, ["y"], constants)
    for key, value in metadata.items():
        made.metadata_props.add(key=key, value=value)
    return made


@pytest.mark.parametrize(
    ("metadata", "labels"),
    [
        ({"names": "{0: 'cat', 1: 'dog', 3: 'cow'}"}, ("cat", "dog", "2", "cow")),
        ({"names": "['a', 'b']"}, ("a", "b")),
        ({"character": "a\nb\nü\n"}, ("a", "b", "ü")),
        ({}, ()),
        ({"author": "nobody"}, ()),
        ({"names": "{0: 'cat'"}, ()),
        ({"names": "{'a': 'b'}"}, ()),
        ({"names": "{-1: 'b'}"}, ()),
        ({"names": "{99999999999: 'b'}"}, ()),
        ({"names": "{0: 1}"}, ()),
        ({"names": "{}"}, ()),
        ({"names": "3"}, ()),
        ({"names": "__import__('os').getcwd()"}, ()),
        ({"names": "(" * 5000}, ()),
        ({"names": "{True: 'x'}"}, ()),
    ],
)
def test_class_names_in_the_metadata(metadata: dict[str, str], labels: tuple[str, ...]) -> None:
    data = network(metadata).SerializeToString()
    assert tenon.load(data).labels == labels
    assert tenon.compile(data).interface.labels == labels


def test_names_given_take_precedence_and_others_are_used(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(network({"names": "['cat', 'dog', 'cow']"}).SerializeToString())
    np.save(tmp_path / "x.npy", np.array([[1, 3, 2]], np.float32))
    assert tenon.compile(tmp_path / "net.onnx", labels=["x", "y", "z"]).interface.labels == ("x", "y", "z")
    assert "3  dog" in succeeds("run", "net.onnx", "--input", "x.npy", cwd=tmp_path)


@pytest.mark.parametrize("name", ["?", "None", "-1"])
def test_dimensions_of_which_nothing_is_known_are_not_one(name: str) -> None:
    """Paddle's exporter writes "?" for every one of them."""
    data = network({}, [1, name, name]).SerializeToString()
    graph = tenon.load(data, shapes={"x": (1, 2, 5)})
    assert graph.inputs[0].type.dims == (1, 2, 5)
    with pytest.raises(TenonError, match="'h' is bound to"):
        tenon.load(network({}, [1, "h", "h"]).SerializeToString(), shapes={"x": (1, 2, 5)})
