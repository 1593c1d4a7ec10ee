"""Importers load a model of each layer that they support, in most of its forms.

Results of layers are tested elsewhere; these models cover as many layers as possible, also for ``scripts/fuzz-files``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from keras_models import functional, h5, layer, start
from ncnn_layers import CASES, Case, param
from small_models import (
    Option,
    caffe2_fill,
    caffe2_net,
    caffe2_operator,
    mxnet_parameters,
    mxnet_symbol,
    paddle,
    paddle_operator,
    paddle_tensor,
)
from tenon.formats import importers
from tenon.formats.importers.caffe2.ops import OPERATORS as CAFFE2
from tenon.formats.importers.keras.layers import LAYERS
from tenon.formats.importers.mxnet.ops import OPERATORS as MXNET
from tenon.formats.importers.paddle.ops import OPERATORS as PADDLE
from tenon.network.graph.graph import Array

IMAGE, ROWS = (1, 4, 6, 5), (1, 4, 6)


def ones(*shape: int) -> Array:
    return np.ones(shape, np.float32)


# ------------------------------------------------------------------------------------------------ ncnn
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.options}")
def test_ncnn(case: Case) -> None:
    assert len(importers.load(param(case), weights=case.weights or b"\0").outputs) == case.tops


# ----------------------------------------------------------------------------------------------- Keras
KerasRow = tuple[str, tuple[int, ...], dict[str, Any], dict[str, tuple[int, ...]]]
BIASED = {"bias": (3,)}
KERAS: list[KerasRow] = [
    (
        "Conv1D",
        (6, 4),
        {"kernel_size": [3], "padding": "causal", "dilation_rate": [2]},
        {"kernel": (3, 4, 3), **BIASED},
    ),
    ("Conv2D", (6, 5, 4), {"strides": [2, 2], "activation": "swish"}, {"kernel": (3, 3, 4, 3), **BIASED}),
    ("Conv2D", (4, 6, 5), {"data_format": "channels_first", "groups": 2, "use_bias": False}, {"kernel": (2, 3, 2, 4)}),
    ("Conv3D", (4, 6, 5, 2), {"padding": "same"}, {"kernel": (2, 2, 2, 2, 3), **BIASED}),
    ("Conv2DTranspose", (6, 5, 4), {"strides": [2, 2], "padding": "same"}, {"kernel": (3, 3, 3, 4), **BIASED}),
    ("Conv1DTranspose", (6, 4), {"strides": [3]}, {"kernel": (2, 3, 4), **BIASED}),
    ("DepthwiseConv2D", (6, 5, 4), {"depth_multiplier": 2}, {"depthwise_kernel": (3, 3, 4, 2), "bias": (8,)}),
    ("DepthwiseConv1D", (6, 4), {"padding": "same"}, {"depthwise_kernel": (3, 4, 1), "bias": (4,)}),
    ("SeparableConv2D", (6, 5, 4), {}, {"depthwise_kernel": (3, 3, 4, 1), "pointwise_kernel": (1, 1, 4, 3), **BIASED}),
    ("SeparableConv1D", (6, 4), {}, {"depthwise_kernel": (3, 4, 1), "pointwise_kernel": (1, 4, 3), **BIASED}),
    (
        "Dense",
        (4,),
        {"activation": {"class_name": "LeakyReLU", "config": {"alpha": 0.1}}},
        {"kernel": (4, 3), **BIASED},
    ),
    ("PReLU", (6, 5, 4), {"shared_axes": [1, 2]}, {"alpha": (1, 1, 4)}),
    ("Embedding", (6,), {"input_dim": 9, "output_dim": 3}, {"embeddings": (9, 3)}),
    ("LayerNormalization", (6, 4), {"axis": [-1]}, {"gamma": (4,), "beta": (4,)}),
    (
        "BatchNormalization",
        (4, 6, 5),
        {"axis": 1, "scale": False},
        {"beta": (4,), "moving_mean": (4,), "moving_variance": (4,)},
    ),
    (
        "SimpleRNN",
        (6, 4),
        {"units": 3, "return_sequences": True},
        {"kernel": (4, 3), "recurrent_kernel": (3, 3), **BIASED},
    ),
    (
        "GRU",
        (6, 4),
        {"units": 3, "reset_after": True, "go_backwards": True},
        {"kernel": (4, 9), "recurrent_kernel": (3, 9), "bias": (2, 9)},
    ),
    (
        "TimeDistributed",
        (6, 4),
        {"layer": {"class_name": "Dense", "config": {"name": "it", "units": 3, "activation": "tanh"}}},
        {"kernel": (4, 3), **BIASED},
    ),
    *(
        (kind, shape, {}, {})
        for kind, shape in (
            ("AveragePooling1D", (6, 4)),
            ("MaxPooling2D", (6, 5, 4)),
            ("MaxPooling3D", (6, 5, 4, 2)),
            ("GlobalAveragePooling2D", (6, 5, 4)),
            ("GlobalMaxPooling1D", (6, 4)),
            ("Flatten", (6, 5, 4)),
            ("Dropout", (4,)),
            ("SpatialDropout2D", (6, 5, 4)),
            ("LeakyReLU", (4,)),
            ("Softmax", (6, 4)),
            ("ThresholdedReLU", (4,)),
            ("ELU", (4,)),
        )
    ),
    *(
        (kind, (6, 5, 4), options, {})
        for kind, options in (
            ("AveragePooling2D", {"pool_size": [3, 2], "strides": [1, 2], "padding": "same"}),
            ("ZeroPadding2D", {"padding": [[1, 0], [2, 3]]}),
            ("Cropping2D", {"cropping": [[1, 1], [0, 2]]}),
            ("UpSampling2D", {"size": [2, 3], "interpolation": "bilinear"}),
            ("ReLU", {"max_value": 6.0}),
            ("ReLU", {"negative_slope": 0.1, "max_value": 1.0}),
            ("Resizing", {"height": 3, "width": 7}),
            ("Rescaling", {"scale": 0.5, "offset": -1.0}),
            ("Permute", {"dims": [3, 1, 2]}),
            ("Reshape", {"target_shape": [-1, 10]}),
        )
    ),
    *(
        ("Activation", (4,), {"activation": name}, {})
        for name in ("hard_sigmoid", "gelu", "mish", "relu6", "exponential")
    ),
    ("UpSampling1D", (6, 4), {"size": 2}, {}),
    ("ZeroPadding1D", (6, 4), {"padding": [1, 2]}, {}),
    ("RepeatVector", (4,), {"n": 3}, {}),
]
MERGES = ("Add", "Average", "Concatenate", "Maximum", "Minimum", "Multiply", "Subtract")


@pytest.mark.parametrize("row", KERAS, ids=lambda row: row[0])
def test_keras(row: KerasRow) -> None:
    kind, shape, options, weights = row
    if "kernel" in weights and "Conv" in kind:
        options = {"kernel_size": list(weights["kernel"][: len(shape) - 1]), **options}
    model = functional(["x"], ["y"], start("x", *shape), layer(kind, "y", "x", **options))
    assert kind in LAYERS
    assert importers.load(h5(model, {"y": {f"y/{role}": ones(*dims) for role, dims in weights.items()}})).outputs


@pytest.mark.parametrize("kind", MERGES)
def test_keras_merges(kind: str) -> None:
    model = functional(["a", "b"], ["y"], start("a", 6, 4), start("b", 6, 4), layer(kind, "y", "a", "b"))
    model["config"]["layers"][-1]["inbound_nodes"] = [[["a", 0, 0, {}], ["b", 0, 0, {}]]]
    assert importers.load(h5(model, {})).outputs


# ----------------------------------------------------------------------------------------------- MXNet
MxnetRow = tuple[str, dict[str, str], Sequence[tuple[int, ...]]]
MXNET_ROWS: list[MxnetRow] = [
    (
        "Convolution",
        {"kernel": "(3, 3)", "num_filter": "6", "num_group": "2", "dilate": "(1, 2)"},
        [(6, 2, 3, 3), (6,)],
    ),
    ("Deconvolution", {"kernel": "(3, 3)", "stride": "(2, 2)", "num_filter": "3", "adj": "(1, 1)"}, [(4, 3, 3, 3)]),
    (
        "Deconvolution",
        {"kernel": "(4, 4)", "stride": "(2, 2)", "num_filter": "4", "num_group": "4", "target_shape": "(12, 10)"},
        [(4, 1, 4, 4)],
    ),
    ("FullyConnected", {"num_hidden": "3", "flatten": "False"}, [(3, 5), (3,)]),
    ("InstanceNorm", {}, [(4,), (4,)]),
    ("LayerNorm", {}, [(5,), (5,)]),
    ("LRN", {"nsize": "3"}, []),
    ("LeakyReLU", {"act_type": "prelu"}, [(4,)]),
    ("LeakyReLU", {"act_type": "gelu"}, []),
    ("LeakyReLU", {"act_type": "rrelu"}, []),
    ("Activation", {"act_type": "softrelu"}, []),
    ("Pooling", {"kernel": "(2, 2)", "pool_type": "avg", "pooling_convention": "same"}, []),
    ("SoftmaxActivation", {"mode": "channel"}, []),
    ("SoftmaxActivation", {}, []),
    ("log_softmax", {"axis": "1"}, []),
    ("SoftmaxOutput", {"multi_output": "True"}, []),
    ("L2Normalization", {"mode": "spatial"}, []),
    ("Concat", {"dim": "1"}, [IMAGE, IMAGE]),
    ("stack", {"axis": "1"}, [IMAGE]),
    ("add_n", {}, [IMAGE, IMAGE]),
    ("dot", {"transpose_b": "True"}, [(3, 5)]),
    ("batch_dot", {"transpose_a": "True"}, [IMAGE]),
    ("broadcast_add", {}, [(1, 4, 1, 1)]),
    ("elemwise_mul", {}, [IMAGE]),
    ("broadcast_greater", {}, [IMAGE]),
    ("_rdiv_scalar", {"scalar": "2"}, []),
    ("_power_scalar", {"scalar": "2"}, []),
    ("sqrt", {}, []),
    ("square", {}, []),
    ("hard_sigmoid", {}, []),
    ("Embedding", {"input_dim": "9", "output_dim": "3"}, [(9, 3)]),
    ("expand_dims", {"axis": "1"}, []),
    ("squeeze", {"axis": "0"}, []),
    ("tile", {"reps": "(1, 2, 1, 3)"}, []),
    ("_contrib_BilinearResize2D", {"height": "12", "width": "9"}, []),
    ("argmax", {"axis": "1"}, []),
    ("argmin", {"axis": "2", "keepdims": "True"}, []),
    ("Cast", {"dtype": "float16"}, []),
    ("depth_to_space", {"block_size": "2"}, []),
    ("space_to_depth", {"block_size": "1"}, []),
    ("UpSampling", {"scale": "2", "sample_type": "bilinear", "num_filter": "4"}, [(4, 1, 4, 4)]),
    ("where", {}, [IMAGE, IMAGE]),
    ("sum", {"axis": "1"}, []),
    ("prod", {}, []),
    ("identity", {}, []),
]


@pytest.mark.parametrize("row", MXNET_ROWS, ids=lambda row: row[0])
def test_mxnet(row: MxnetRow) -> None:
    kind, options, shapes = row
    stored = {f"w{i}": ones(*dims) for i, dims in enumerate(shapes)}
    nodes = [("null", name, dict[str, str](), ()) for name in ("data", *stored)]
    text = mxnet_symbol(*nodes, (kind, "y", options, range(len(nodes))))
    assert kind in MXNET
    assert importers.load(text, {"data": IMAGE}, weights=mxnet_parameters(stored)).outputs


# ---------------------------------------------------------------------------------------------- Paddle
WINDOW: dict[str, Option] = {"strides": [2, 2], "paddings": [1, 1], "dilations": [1, 1], "groups": 1}
PaddleRow = tuple[str, dict[str, tuple[int, ...]], dict[str, Option]]
PADDLE_ROWS: list[PaddleRow] = [
    ("conv2d_transpose", {"Filter": (4, 3, 3, 3)}, WINDOW | {"output_padding": [1, 1]}),
    ("depthwise_conv2d", {"Filter": (4, 1, 3, 3)}, WINDOW | {"groups": 4, "padding_algorithm": "SAME"}),
    ("batch_norm", {"Scale": (4,), "Bias": (4,), "Mean": (4,), "Variance": (4,)}, {"epsilon": 0.1}),
    ("layer_norm", {"Scale": (30,), "Bias": (30,)}, {"begin_norm_axis": 2}),
    ("instance_norm", {"Scale": (4,), "Bias": (4,)}, {}),
    ("group_norm", {"Scale": (4,), "Bias": (4,)}, {"groups": 2}),
    ("affine_channel", {"Scale": (4,), "Bias": (4,)}, {}),
    ("norm", {}, {"axis": 1}),
    ("lrn", {}, {"n": 3}),
    (
        "pool2d",
        {},
        {"ksize": [3, 2], "strides": [2, 1], "paddings": [1, 0, 0, 1], "pooling_type": "avg", "exclusive": 0},
    ),
    ("pool2d", {}, {"ksize": [3, 5], "adaptive": 1, "strides": [1, 1], "paddings": [0, 0]}),
    ("pool2d", {}, {"ksize": [1, 1], "global_pooling": 1, "strides": [1, 1], "paddings": [0, 0]}),
    ("elementwise_mul", {"Y": (4,)}, {"axis": 1}),
    ("equal", {"Y": IMAGE}, {}),
    ("prelu", {"Alpha": (4,)}, {"mode": "channel"}),
    ("mul", {"Y": (30, 3)}, {"x_num_col_dims": 2, "y_num_col_dims": 1}),
    ("fc", {"W": (120, 3), "Bias": (3,)}, {"in_num_col_dims": 1, "activation_type": "relu"}),
    ("matmul", {"Y": (3, 5)}, {"transpose_Y": 1, "alpha": 0.5}),
    ("matmul_v2", {"Y": (5, 3)}, {}),
    ("clip", {}, {"min": -1.0, "max": 0.5}),
    ("reduce_mean", {}, {"dim": [2, 3], "keep_dim": 1}),
    ("reduce_max", {}, {"reduce_all": 1}),
    ("hard_swish", {}, {"threshold": 5.0, "offset": 2.0}),
    ("arg_max", {}, {"axis": 1, "keepdims": 1}),
    ("arg_min", {}, {"flatten": 1, "dtype": 2}),
    ("flatten2", {}, {"axis": 2}),
    ("flatten_contiguous_range", {}, {"start_axis": 1, "stop_axis": -1}),
    ("squeeze2", {}, {"axes": [0, 1]}),
    ("unsqueeze2", {}, {"axes": [0, 3]}),
    ("transpose2", {}, {"axis": [0, 2, 3, 1]}),
    ("strided_slice", {}, {"axes": [2, 3], "starts": [0, -1], "ends": [9, 0], "strides": [2, -2]}),
    ("expand_v2", {}, {"shape": [3, -1, -1, 5]}),
    ("tile", {}, {"repeat_times": [2, 1, 1, 3]}),
    ("shape", {}, {}),
    ("pad3d", {}, {"paddings": [1, 0], "mode": "reflect"}),
    ("pad2d", {}, {"paddings": [1, 0, 2, 1], "pad_value": 0.5}),
    ("bilinear_interp_v2", {}, {"out_h": 9, "out_w": 7, "align_corners": 0, "align_mode": 1}),
    ("bicubic_interp", {}, {"scale": 2.0, "align_corners": 1}),
    ("pixel_shuffle", {}, {"upscale_factor": 2}),
    ("shuffle_channel", {}, {"group": 2}),
    ("cast", {}, {"in_dtype": 5, "out_dtype": 2}),
    ("softmax", {}, {"axis": 1}),
    ("gather", {"Index": (3,)}, {"axis": 1}),
    ("stack", {}, {"axis": 1}),
    ("concat", {}, {"axis": 1}),
    ("sum", {}, {}),
    ("split", {}, {"axis": 1, "sections": [1, -1]}),
    ("unstack", {}, {"axis": 1}),
    ("swish", {}, {"beta": 1.0}),
    ("gelu", {}, {"approximate": 1}),
    ("leaky_relu", {}, {"alpha": 0.1}),
    ("rsqrt", {}, {}),
    ("pow", {}, {"factor": 2.0}),
    ("scale", {}, {"scale": 2.0, "bias": 1.0, "bias_after_scale": 0}),
    ("hard_sigmoid", {}, {"slope": 0.1}),
]


@pytest.mark.parametrize("row", PADDLE_ROWS, ids=lambda row: row[0])
def test_paddle(row: PaddleRow) -> None:
    kind, shapes, options = row
    shape = ROWS if kind == "pad3d" else IMAGE
    names = {slot: slot.lower() for slot in shapes}
    x = "Input" if "Filter" in shapes else "X"
    slots: dict[str, str | list[str]] = {
        x: ["x"] * (2 if kind in ("stack", "concat", "sum") else 1),
        **{s: [n] for s, n in names.items()},
    }
    made = "Output" if x == "Input" else "Y" if kind in ("layer_norm", "batch_norm") else "Out"
    operator = paddle_operator(kind, slots, {made: "y"}, **options)
    program = paddle(operator, shape=shape, parameters={names[s]: dims for s, dims in shapes.items()})
    stored = b"".join(paddle_tensor(ones(*shapes[slot])) for slot in sorted(shapes, key=str.lower))
    assert kind in PADDLE
    assert importers.load(program, weights=stored or None).outputs


# ---------------------------------------------------------------------------------------------- Caffe2
Caffe2Row = tuple[str, Sequence[tuple[int, ...]], dict[str, Option]]
CAFFE2_ROWS: list[Caffe2Row] = [
    ("Conv", [(6, 2, 3, 3), (6,)], {"kernels": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 0], "group": 2}),
    ("Conv", [(4, 1, 3, 3)], {"kernel": 3, "legacy_pad": 3, "stride": 2, "group": 4}),
    ("ConvTranspose", [(4, 3, 2, 2), (3,)], {"kernel": 2, "stride": 2, "adj": 1}),
    ("FC", [(3, 120), (3,)], {}),
    ("FCTransposed", [(120, 3), (3,)], {}),
    ("SpatialBN", [(4,)] * 4, {"is_test": 1}),
    ("LRN", [], {"size": 3, "alpha": 0.1, "beta": 0.75}),
    ("MaxPool", [], {"kernel_h": 3, "kernel_w": 2, "pad": 1}),
    ("AveragePool", [], {"global_pooling": 1}),
    ("Concat", [IMAGE], {"axis": 1}),
    ("Concat", [IMAGE], {"add_axis": 1}),
    ("Split", [], {"axis": 1, "split": [1, 3]}),
    ("Reshape", [], {"shape": [0, -1]}),
    ("PRelu", [(4,)], {}),
    ("Transpose", [], {"axes": [0, 2, 3, 1]}),
    ("Slice", [], {"starts": [0, 1, 0, 0], "ends": [-1, 3, -1, -1]}),
    ("PadImage", [], {"pad": 2, "mode": "reflect"}),
    ("Clip", [], {"min": -1.0, "max": 1.0}),
    ("Normalize", [], {"axis": 1}),
    ("ReduceMean", [], {"axes": [2, 3], "keepdims": 0}),
    ("ArgMax", [], {"axis": 1}),
    ("MatMul", [(5, 3)], {}),
    ("Add", [(4,)], {"broadcast": 1, "axis": 1}),
    ("Sum", [IMAGE], {}),
    ("ExpandDims", [], {"dims": [1]}),
    ("Relu", [], {}),
    ("Squeeze", [], {"dims": [0]}),
    ("ChannelShuffle", [], {"group": 2}),
    ("Softmax", [], {"axis": 1}),
    ("Dropout", [], {}),
    ("ResizeNearest", [], {"width_scale": 2.0, "height_scale": 1.5}),
    ("InstanceNorm", [(4,), (4,)], {}),
    ("Copy", [], {}),
]


@pytest.mark.parametrize("row", CAFFE2_ROWS, ids=lambda row: row[0])
def test_caffe2(row: Caffe2Row) -> None:
    kind, shapes, options = row
    names = [f"w{i}" for i in range(len(shapes))]
    outputs = ["y", "z"] if kind == "Split" else ["y"]
    net = caffe2_net([caffe2_operator(kind, ["x", *names], outputs, **options)], ["x", *names], ["y"])
    init = caffe2_net([caffe2_fill(name, ones(*dims)) for name, dims in zip(names, shapes, strict=True)])
    assert kind in CAFFE2
    graph = importers.load(net, {"x": IMAGE}, weights=init if names else None)
    assert math.prod(graph.outputs[0].type.dims) > 0
