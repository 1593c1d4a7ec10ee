"""The operators of ai.onnx.ml compared with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tenon
from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.network.graph.graph import Array
from tenon.network.graph.strings import decoded, encoded

X = np.random.default_rng(0).normal(0, 1, (7, 3)).astype(np.float32)


def made(type: str, inputs: Mapping[str, Array], outputs: Mapping[str, int], version: int, **attributes: Any) -> bytes:
    node = helper.make_node(type, [*inputs], [*outputs], name="it", domain="ai.onnx.ml", **attributes)
    graph = helper.make_graph(
        [node],
        "made",
        [helper.make_tensor_value_info(n, _kind(a), a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("ai.onnx.ml", version)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return data


def _kind(array: Array) -> int:
    return TensorProto.STRING if array.dtype == object else helper.np_dtype_to_tensor_dtype(array.dtype)


def agrees(
    type: str, inputs: Mapping[str, Array], outputs: Sequence[int] = (1,), version: int = 3, **attributes: Any
) -> None:
    named = {f"y{i}": kind for i, kind in enumerate(outputs)}
    data = made(type, inputs, named, version, **attributes)
    shapes: dict[str, Any] = {n: a.shape for n, a in inputs.items()}
    graph = tenon.load(data, shapes=shapes)
    results = evaluate(graph, {n: encoded(a, 64) if a.dtype == object else a for n, a in inputs.items()})
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for name, expected in zip(named, session.run(None, dict(inputs)), strict=True):
        ours = decoded(results[name]) if name in graph.strings else results[name]
        assert ours.shape == expected.shape
        if ours.dtype == object or ours.dtype.kind == "i":
            assert ours.tolist() == expected.tolist()
        else:
            np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_preprocessing_operators() -> None:
    agrees("Scaler", {"x": X}, offset=[0.5, 1.0, -1.0], scale=[2.0, 0.5, 1.0])
    agrees("Scaler", {"x": np.arange(6).reshape(2, 3)}, offset=[0.5], scale=[2.0])
    for norm in ("L1", "L2", "MAX"):
        agrees("Normalizer", {"x": np.abs(X)}, norm=norm)
    missing = X.copy()
    missing[[0, 3], [1, 2]] = np.nan
    agrees("Imputer", {"x": missing}, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=float("nan"))
    agrees("Imputer", {"x": np.array([[0, 1], [5, 0]])}, (7,), imputed_value_int64s=[9], replaced_value_int64=0)
    agrees("FeatureVectorizer", {"a": X, "b": X[:, :2]}, version=1, inputdimensions=[3, 2])


def test_one_hot() -> None:
    agrees("OneHotEncoder", {"x": np.array([[3, 1], [7, 2]])}, cats_int64s=[1, 2, 3])
    agrees("OneHotEncoder", {"x": np.array(["b", "a", "?"], object)}, cats_strings=["a", "b"])


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
@pytest.mark.parametrize("classes", [2, 3])
def test_linear_models(classes: int, transform: str) -> None:
    rows = 1 if classes == 2 else 3
    weights = np.random.default_rng(1).normal(0, 1, (rows, 3)).reshape(-1).tolist()
    given: dict[str, Any] = {"coefficients": weights, "intercepts": [0.1, -0.2, 0.3][:rows]}
    if classes == 3 or transform != "SOFTMAX":
        names: dict[str, Any] = {"classlabels_strings": ["no", "yes", "perhaps"][:classes]}
        agrees("LinearClassifier", {"x": X}, (8, 1), 1, **given, **names, post_transform=transform)
        agrees("LinearClassifier", {"x": X}, (7, 1), 1, **given, classlabels_ints=[4, 5, 6][:classes])
    agrees("LinearRegressor", {"x": X}, (1,), 1, **given, targets=rows)


NODES: dict[str, Any] = {
    "nodes_treeids": [0] * 5 + [1] * 3,
    "nodes_nodeids": [0, 1, 2, 3, 4, 0, 1, 2],
    "nodes_modes": ["BRANCH_LEQ", "BRANCH_GT", "LEAF", "LEAF", "LEAF", "BRANCH_LT", "LEAF", "LEAF"],
    "nodes_featureids": [0, 2, 0, 0, 0, 1, 0, 0],
    "nodes_values": [0.1, -0.3, 0.0, 0.0, 0.0, 0.2, 0.0, 0.0],
    "nodes_truenodeids": [1, 3, 0, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 4, 0, 0, 0, 2, 0, 0],
}
LEAVES = {"treeids": [0, 0, 0, 1, 1], "nodeids": [2, 3, 4, 1, 2]}
WEIGHTS = [0.3, 0.1, 0.4, 0.25, 0.5]


def leaves(role: str, ids: list[int], weights: list[float]) -> dict[str, Any]:
    return {**{f"{role}_{k}": v for k, v in LEAVES.items()}, f"{role}_ids": ids, f"{role}_weights": weights}


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE"])
def test_tree_ensemble_regressor(aggregate: str) -> None:
    given = {**NODES, **leaves("target", [0, 0, 0, 1, 1], WEIGHTS), "n_targets": 2, "aggregate_function": aggregate}
    agrees("TreeEnsembleRegressor", {"x": X}, **given)
    agrees("TreeEnsembleRegressor", {"x": X}, **given, base_values=[0.5, -1.0])


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_tree_ensemble_classifier(transform: str) -> None:
    many = {**NODES, **leaves("class", [0, 1, 2, 1, 0], WEIGHTS), "post_transform": transform}
    agrees("TreeEnsembleClassifier", {"x": X}, (8, 1), **many, classlabels_strings=["a", "bb", "c"])
    agrees(
        "TreeEnsembleClassifier", {"x": X}, (7, 1), **many, classlabels_int64s=[3, 4, 5], base_values=[1.0, 0.0, 0.5]
    )
    if transform != "SOFTMAX":
        for weights in (WEIGHTS, [w - 0.3 for w in WEIGHTS]):
            one = {**NODES, **leaves("class", [0] * 5, weights), "post_transform": transform}
            agrees("TreeEnsembleClassifier", {"x": X}, (7, 1), **one, classlabels_int64s=[0, 1])
            agrees("TreeEnsembleClassifier", {"x": X}, (7, 1), **one, classlabels_int64s=[0, 1], base_values=[0.2])


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match=r"post_transform=CUBE is not supported"):
        tenon.load(made("LinearRegressor", {"x": X}, {"y": 1}, 1, coefficients=[1.0] * 3, post_transform="CUBE"))
    with pytest.raises(UnsupportedError, match=r"ZipMap.*cut the model before it with --to"):
        tenon.load(made("ZipMap", {"x": X}, {"y": 1}, 1, classlabels_int64s=[1, 2, 3]))
