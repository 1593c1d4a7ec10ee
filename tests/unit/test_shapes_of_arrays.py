"""``tenon run`` takes open dimensions from the arrays that it is given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from installed import succeeds
from installed import tenon as command
from onnx_models import model, node


def network(folder: Path, *shape: int | str, second: bool = False) -> None:
    inputs = {"x": shape, **({"z": ("k", 3)} if second else {})}
    nodes = [node("Relu", ["x"], ["y"]), *([node("Neg", ["z"], ["w"])] if second else [])]
    made = model(nodes, inputs, ["y", *(["w"] if second else [])])
    (folder / "net.onnx").write_bytes(made.SerializeToString())


@pytest.mark.parametrize("given", ["x=x.npy", "x.npy"])
def test_open_dimensions_are_those_of_the_array(tmp_path: Path, given: str) -> None:
    network(tmp_path, "batch", "length", 2)
    for shape in ((3, 5, 2), (1, 4, 2)):
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        np.save(tmp_path / "x.npy", x)
        succeeds("run", "net.onnx", "--input", given, "--output", "y.npz", cwd=tmp_path)
        np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], np.maximum(x, 0))


def test_several_inputs(tmp_path: Path) -> None:
    network(tmp_path, "n", 2, second=True)
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    np.save(tmp_path / "z.npy", np.ones((5, 3), np.float32))
    succeeds("run", "net.onnx", "--input", "x=x.npy", "--input", "z=z.npy", "--output", "y.npz", cwd=tmp_path)
    assert np.load(tmp_path / "y.npz")["w"].shape == (5, 3)


def test_a_shape_that_is_given_is_kept(tmp_path: Path) -> None:
    network(tmp_path, "n", 2)
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    done = command("run", "net.onnx", "--shape", "x=4,2", "--input", "x.npy", cwd=tmp_path)
    assert done.returncode == 2
    assert "input 'x' has shape [3,2] and the network takes [4,2]" in " ".join(done.stderr.split())


def test_fixed_shapes_are_the_models(tmp_path: Path) -> None:
    network(tmp_path, 1, 2)
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    done = command("run", "net.onnx", "--input", "x.npy", cwd=tmp_path)
    assert done.returncode == 2
    assert "and the network takes [1,2]" in " ".join(done.stderr.split())
