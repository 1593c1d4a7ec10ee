"""Random operators: means and variances, and reproducibility."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import tenon
from evaluate import evaluate
from onnx_models import model, node
from tenon.errors import UnsupportedError
from tenon.network.graph.graph import Array

COUNT = 40000


def draw(type: str, x: Array | None = None, **attributes: Any) -> Array:
    shape = {} if x is None else {"x": x.shape}
    made = model([node(type, [*shape], ["y"], **attributes)], shape, ["y"])
    return evaluate(tenon.load(made.SerializeToString()), {} if x is None else {"x": x})["y"]


@pytest.mark.parametrize("like", [False, True])
def test_uniform_and_normal(like: bool) -> None:
    where: dict[str, Any] = {"x": np.zeros((4, COUNT // 4), np.float32)} if like else {"shape": [4, COUNT // 4]}
    end = "Like" if like else ""
    u = draw(f"RandomUniform{end}", **where, low=-1.0, high=3.0, seed=1.0)
    assert u.shape == (4, COUNT // 4)
    assert u.dtype == np.float32
    assert u.min() >= -1
    assert u.max() < 3
    assert abs(u.mean() - 1) < 5 * np.sqrt(16 / 12 / COUNT)
    assert abs(u.var() - 16 / 12) < 0.02
    z = draw(f"RandomNormal{end}", **where, mean=2.0, scale=0.5, seed=1.0, dtype=TensorProto.DOUBLE)
    assert z.dtype == np.float64
    assert abs(z.mean() - 2) < 5 * 0.5 / np.sqrt(COUNT)
    assert abs(z.var() - 0.25) < 0.01
    assert abs(np.mean((z - 2) ** 4) / 0.25**2 - 3) < 0.2


def test_values_depend_on_seed_and_name() -> None:
    a, b, c = (draw("RandomNormal", shape=[8], seed=seed) for seed in (1.0, 1.0, 2.0))
    assert (a == b).all()
    assert (a != c).all()
    assert a[:3] == pytest.approx([-0.5084251, 1.3065683, 0.09987186])  # the contents of bundles must never change
    nodes = [node("RandomNormal", [], [name], shape=[8]) for name in ("p", "q")]
    outputs = evaluate(tenon.load(model(nodes, {}, ["p", "q"]).SerializeToString()), {})
    assert (outputs["p"] != outputs["q"]).all()


def test_bernoulli() -> None:
    x = np.broadcast_to(np.array([[0.0], [0.2], [0.75], [1.0]], np.float32), (4, COUNT))
    y = draw("Bernoulli", np.ascontiguousarray(x), seed=3.0, dtype=TensorProto.BOOL)
    assert y.dtype == np.bool_
    np.testing.assert_allclose(y.mean(1), [0, 0.2, 0.75, 1], atol=0.01)


def test_multinomial() -> None:
    weights = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-9]], np.float32)
    y = draw("Multinomial", np.log(weights) + 3, sample_size=COUNT, seed=3.0)
    assert y.shape == (2, COUNT)
    assert y.dtype == np.int32
    shares = [[np.mean(row == i) for i in range(3)] for row in y]
    np.testing.assert_allclose(shares, weights, atol=0.012)


def test_too_many_values() -> None:
    with pytest.raises(UnsupportedError, match=r"draws 100000000 numbers.*make them an input"):
        draw("RandomUniform", shape=[10000, 10000])


def test_random_operators_are_folded(tmp_path: Path) -> None:
    """Random values are drawn when compiling, which leaves a graph without nodes."""
    made = model([node("RandomUniform", [], ["y"], shape=[4], seed=1.0)], {}, ["y"])
    graph = tenon.load(made.SerializeToString())
    assert len(graph) == 0
    engine = tenon.open(tenon.compile(graph, name="drawn").save(tmp_path / "drawn"))
    assert (engine.run({})["y"] == draw("RandomUniform", shape=[4], seed=1.0)).all()
