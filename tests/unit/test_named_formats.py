"""Caffe2, Paddle, OneFlow and MegEngine: small networks, and errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluate import evaluate
from real import DIGITS
from small_models import (
    ONEFLOW_JOB,
    Option,
    caffe2_fill,
    caffe2_net,
    caffe2_operator,
    paddle,
    paddle_operator,
    paddle_tensor,
)
from tenon.errors import FormatError, InputError, ShapeError, UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.megengine.load import hashed
from tenon.network.graph.graph import Array

X = np.random.default_rng(5).uniform(-1, 1, (1, 4, 6, 5)).astype(np.float32)
W = np.random.default_rng(6).uniform(-1, 1, (3, 4, 1, 1)).astype(np.float32)
B = np.array([0.5, -0.5, 0.25], np.float32)
CONVOLVED = np.einsum("fc,nchw->nfhw", W[:, :, 0, 0], X) + B.reshape(1, 3, 1, 1)


# ---------------------------------------------------------------------------------------------- Caffe2
INIT = caffe2_net([caffe2_fill("w", W), caffe2_fill("b", B)])
PREDICT = caffe2_net(
    [caffe2_operator("Conv", ["x", "w", "b"], ["y"], kernel=1), caffe2_operator("Relu", ["y"], ["z"])],
    ["x", "w", "b"],
    ["z"],
)


def test_caffe2_init_and_predict_net(tmp_path: Path) -> None:
    (tmp_path / "predict_net.pb").write_bytes(PREDICT)
    (tmp_path / "init_net.pb").write_bytes(INIT)
    for name in ("predict_net.pb", "init_net.pb", ""):
        graph = importers.load(tmp_path / name, {"x": X.shape})
        (output,) = evaluate(graph, {"x": X}).values()
        np.testing.assert_allclose(output, np.maximum(CONVOLVED, 0), atol=1e-6)
    with pytest.raises(ShapeError, match="shape of 'x'"):
        importers.load(tmp_path)


def test_caffe2_placeholder_fills_do_not_define_shapes() -> None:
    """An init net that also fills the input, with a scalar placeholder."""
    for data in (np.zeros(1, np.float32), np.zeros((1, 9, 9, 9), np.float32)):
        init = caffe2_net([caffe2_fill("x", data), caffe2_fill("w", W), caffe2_fill("b", B)])
        graph = importers.load(PREDICT, {"x": X.shape}, weights=init)
        (output,) = evaluate(graph, {"x": X}).values()
        np.testing.assert_allclose(output, np.maximum(CONVOLVED, 0), atol=1e-6)
        fixed = importers.load(PREDICT, values={"x": X}, weights=init)
        np.testing.assert_allclose(fixed.outputs[0].array, np.maximum(CONVOLVED, 0), atol=1e-6)
    init = caffe2_net([caffe2_fill("x", np.zeros(1, np.float32)), caffe2_fill("w", W), caffe2_fill("b", B)])
    with pytest.raises(ShapeError, match="--shape x="):
        importers.load(PREDICT, weights=init)


def run_caffe2(type: str, **options: Option) -> Array:
    predict = caffe2_net([caffe2_operator(type, ["x"], ["y"], **options)], ["x"], ["y"])
    (output,) = evaluate(importers.load(predict, {"x": X.shape}), {"x": X}).values()
    return output


def test_caffe2_operators() -> None:
    np.testing.assert_array_equal(run_caffe2("Slice", starts=[0, 1], ends=[-1, 3]), X[:, 1:3])
    np.testing.assert_array_equal(run_caffe2("Transpose", axes=[0, 2, 3, 1]), X.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(
        run_caffe2("ResizeNearest", width_scale=2.0, height_scale=3.0), X.repeat(3, 2).repeat(2, 3)
    )
    output = run_caffe2("MaxPool", kernel=3, stride=2, legacy_pad=3)
    np.testing.assert_array_equal(output[:, :, 2, 0], X[:, :, 4:, :3].max((2, 3)))
    flat = np.exp(X.reshape(1, -1))
    np.testing.assert_allclose(run_caffe2("Softmax").ravel(), (flat / flat.sum()).ravel(), atol=1e-6)


def test_caffe2_refusals() -> None:
    operators = [caffe2_operator("Odd", ["x"], ["y"]), caffe2_operator("Odder", ["y"], ["z"])]
    with pytest.raises(UnsupportedError) as error:
        importers.load(caffe2_net(operators, ["x"], ["z"]), {"x": X.shape})
    assert [p.where for p in error.value.problems] == ["Odd_0 (Odd)", "Odder_1 (Odder)"]


# ---------------------------------------------------------------------------------------------- Paddle
PADDLE = paddle(
    paddle_operator(
        "conv2d",
        {"Input": "x", "Filter": "w"},
        {"Output": "c"},
        strides=[1, 1],
        dilations=[1, 1],
        paddings=[0, 0],
        groups=1,
    ),
    paddle_operator("elementwise_add", {"X": "c", "Y": "b"}, {"Out": "y"}, axis=1),
)


def test_paddle_parameters_in_separate_and_combined_files(tmp_path: Path) -> None:
    apart, together = tmp_path / "apart", tmp_path / "together"
    apart.mkdir()
    together.mkdir()
    (apart / "__model__").write_bytes(PADDLE)
    (apart / "w").write_bytes(paddle_tensor(W))
    (apart / "b").write_bytes(paddle_tensor(B))
    (together / "net.pdmodel").write_bytes(PADDLE)
    (together / "net.pdiparams").write_bytes(paddle_tensor(B) + paddle_tensor(W))
    for path in (apart, together, together / "net.pdiparams"):
        (output,) = evaluate(importers.load(path), {"x": X}).values()
        np.testing.assert_allclose(output, CONVOLVED, atol=1e-6)
    assert importers.load(apart, {"x": (2, 4, 6, 5)}).outputs[0].type.dims == (2, 3, 6, 5)
    assert importers.load(PADDLE).incomplete


def run_paddle(type: str, **options: Option) -> Array:
    program = paddle(paddle_operator(type, {"X": "x"}, {"Out": "y"}, **options))
    (output,) = evaluate(importers.load(program), {"x": X}).values()
    return output


def test_paddle_operators() -> None:
    np.testing.assert_array_equal(run_paddle("reshape2", shape=[0, -1, 5]), X.reshape(1, 24, 5))
    np.testing.assert_allclose(run_paddle("scale", scale=2.0, bias=1.0), 2 * X + 1, atol=1e-6)
    np.testing.assert_array_equal(
        run_paddle("pad2d", paddings=[1, 0, 0, 2], mode="edge"), np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2)), "edge")
    )
    output = run_paddle("nearest_interp_v2", out_h=12, out_w=10, align_corners=0)
    np.testing.assert_array_equal(output, X.repeat(2, 2).repeat(2, 3))
    np.testing.assert_allclose(run_paddle("dropout", dropout_prob=0.25), 0.75 * X, atol=1e-6)
    np.testing.assert_array_equal(run_paddle("slice", axes=[1], starts=[1], ends=[2], decrease_axis=[1]), X[:, 1])


def test_paddle_refusals() -> None:
    with pytest.raises(UnsupportedError, match=r"y \(where_index\): this operator is not supported"):
        importers.load(paddle(paddle_operator("where_index", {"Condition": "x"}, {"Out": "y"})))
    with pytest.raises(FormatError, match="belong"):
        importers.load(PADDLE, weights=paddle_tensor(W) + paddle_tensor(B))
    with pytest.raises(FormatError, match="too early"):
        importers.load(PADDLE, weights=paddle_tensor(B) + paddle_tensor(W)[:-4])


# --------------------------------------------------------------------------------- OneFlow, MegEngine
def test_oneflow(tmp_path: Path) -> None:
    w = X[0, :2, :4, 0]
    (tmp_path / "model.mlir").write_text(ONEFLOW_JOB.replace("KIND", "relu"))
    assert importers.load(tmp_path).incomplete
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "out").write_bytes(np.ascontiguousarray(w).tobytes())
    (tmp_path / "w" / "meta").write_text("shape {\n  dim: 2\n  dim: 4\n}\ndata_type: kFloat\n")
    x = X[0, :1, 0, :4]
    (output,) = evaluate(importers.load(tmp_path), {"x": x}).values()
    np.testing.assert_allclose(output, np.maximum(2 * x @ w.T, 0), atol=1e-6)
    (tmp_path / "w" / "out").write_bytes(bytes(12))
    with pytest.raises((UnsupportedError, FormatError), match="does not hold"):
        importers.load(tmp_path)
    with pytest.raises(UnsupportedError, match=r"r \(odd\): this operation is not supported"):
        importers.load(ONEFLOW_JOB.replace("KIND", "odd").encode())


def test_megengine_operator_hashes() -> None:
    assert hashed("Elemwise") == 0xD6C488C11172EC08
    assert hashed("Host2DeviceCopy") == 0x9F9DB55D661D5F11


def test_damaged_dumps_of_megengine() -> None:
    with pytest.raises(FormatError, match="dump_format"):
        importers.load(b"mgb0" + bytes(40))
    with pytest.raises(FormatError):
        importers.load(bytes(8) + b"mge2" + bytes(40))


def test_most_similar_operator_is_suggested() -> None:
    with pytest.raises(UnsupportedError, match=r"not supported \(the nearest that is: Relu\)"):
        importers.load(caffe2_net([caffe2_operator("Reluu", ["x"], ["y"])], ["x"], ["y"]), {"x": (1, 2)})
    with pytest.raises(UnsupportedError, match="cut the model around it with --from and --to"):
        importers.load(caffe2_net([caffe2_operator("Histogramme", ["x"], ["y"])], ["x"], ["y"]), {"x": (1, 2)})


def test_a_second_file_is_refused_where_models_have_one() -> None:
    """It would be ignored, although the weights that the user wants are in it."""
    with pytest.raises(InputError, match=r"^digits\.onnx: ONNX models have no second file: leave out --weights"):
        importers.load(DIGITS / "digits.onnx", weights=DIGITS / "held_out.txt")
