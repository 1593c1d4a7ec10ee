"""TFLite models in all quantisation modes compared with LiteRT; skipped if TensorFlow is not installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluate import difference, evaluate
from tenon.formats import importers
from tensorflow_peer import (
    IMAGE,
    Shape,
    frozen,
    nested,
    some,
    tf,
    transformer,
    w,
    with_convolutions,
    with_random_weights,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks warn of themselves

ACTIVATIONS = """
    relu relu6 elu leaky_relu tanh sigmoid softmax log_softmax gelu silu selu softplus
"""
LITE: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
    "conv": (lambda x: tf.nn.relu(tf.nn.conv2d(x, w(3, 3, 4, 6), 2, "SAME") + w(6)), (IMAGE,)),
    "conv relu6": (lambda x: tf.nn.relu6(tf.nn.conv2d(x, w(3, 3, 4, 6), 1, "VALID") + w(6)), (IMAGE,)),
    "conv dilated": (lambda x: tf.nn.conv2d(x, w(3, 3, 4, 6), 1, "SAME", dilations=2), (IMAGE,)),
    "conv groups": (lambda x: tf.nn.conv2d(x, w(3, 3, 2, 6), 1, "SAME"), (IMAGE,)),
    "depthwise": (lambda x: tf.nn.depthwise_conv2d(x, w(3, 3, 4, 2), (1, 2, 2, 1), "SAME"), (IMAGE,)),
    "transposed": (lambda x: tf.nn.conv2d_transpose(x, w(3, 3, 5, 4), (1, 14, 16, 5), 2) + w(5), (IMAGE,)),
    "conv3d": (lambda x: tf.nn.conv3d(x, w(3, 3, 3, 2, 5), (1, 2, 2, 2, 1), "SAME"), ((1, 5, 6, 7, 2),)),
    "dense": (lambda x: tf.nn.relu(tf.matmul(x, w(20, 12)) + w(12)), ((1, 20),)),
    "dense 3d": (lambda x: tf.matmul(x, w(20, 12)) + w(12), ((1, 4, 20),)),
    "matmul": (lambda x, y: tf.matmul(x, y), ((1, 4, 5), (1, 5, 6))),
    "matmul t": (lambda x, y: tf.matmul(x, y, transpose_b=True), ((1, 4, 5), (1, 6, 5))),
    "max_pool": (lambda x: tf.nn.max_pool2d(x, 3, 2, "SAME"), (IMAGE,)),
    "avg_pool": (lambda x: tf.nn.avg_pool2d(x, 3, 2, "SAME"), (IMAGE,)),
    "mean": (lambda x: tf.reduce_mean(x, [1, 2]), (IMAGE,)),
    "mean keep": (lambda x: tf.reduce_mean(x, -1, keepdims=True), (IMAGE,)),
    **{
        f: (lambda x, f=f: getattr(tf, f)(x, [1, 2]), (IMAGE,))
        for f in ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
    },
    **{
        f: (lambda x, y, f=f: getattr(tf, f)(x, y), (IMAGE, IMAGE))
        for f in ("add", "subtract", "multiply", "maximum", "minimum")
    },
    "add broadcast": (lambda x: x + w(4), (IMAGE,)),
    "add relu": (lambda x, y: tf.nn.relu(x + y), (IMAGE, IMAGE)),
    "div": (lambda x, y: x / (tf.abs(y) + 1.0), (IMAGE, IMAGE)),
    "squared_difference": (lambda x, y: tf.math.squared_difference(x, y), (IMAGE, IMAGE)),
    **{f: (lambda x, f=f: getattr(tf.nn, f)(x), (IMAGE,)) for f in ACTIVATIONS.split()},
    "gelu approximate": (lambda x: tf.nn.gelu(x, approximate=True), (IMAGE,)),
    "softmax large": (lambda x: tf.nn.softmax(x * 10), ((1, 30),)),
    "hard_swish": (lambda x: x * tf.nn.relu6(x + 3) * (1 / 6), (IMAGE,)),
    "prelu": (lambda x: tf.nn.relu(x) + w(1, 1, 4) * (x - tf.abs(x)) * 0.5, (IMAGE,)),
    **{
        f: (lambda x, f=f: getattr(tf, f)(x), (IMAGE,))
        for f in ("abs", "exp", "floor", "cos", "sin", "negative", "square", "sign", "round")
    },
    **{f: (lambda x, f=f: getattr(tf.math, f)(tf.abs(x) + 1.1), (IMAGE,)) for f in ("log", "sqrt", "rsqrt")},
    "resize bilinear": (lambda x: tf.image.resize(x, (13, 11)), (IMAGE,)),
    "resize nearest": (lambda x: tf.image.resize(x, (13, 11), "nearest"), (IMAGE,)),
    "resize corners": (lambda x: tf.compat.v1.image.resize_bilinear(x, (13, 11), align_corners=True), (IMAGE,)),
    "concat": (lambda x, y: tf.concat([x, y * 0.3], -1), (IMAGE, IMAGE)),
    "pad": (lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]]), (IMAGE,)),
    "padv2": (lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]], constant_values=-2.0), (IMAGE,)),
    "mirror_pad": (lambda x: tf.pad(x, [[0, 0], [1, 2], [0, 1], [0, 0]], "REFLECT"), (IMAGE,)),
    "reshape": (lambda x: tf.reshape(x, (1, 28, 8)), (IMAGE,)),
    "transpose": (lambda x: tf.transpose(x, (0, 3, 1, 2)), (IMAGE,)),
    "strided": (lambda x: x[:, ::2, 1:5, ::-1], (IMAGE,)),
    "split": (lambda x: tuple(tf.split(x, 2, -1)), (IMAGE,)),
    "gather": (lambda x: tf.gather(x, [2, 0, 1], axis=2), (IMAGE,)),
    "depth_to_space": (lambda x: tf.nn.depth_to_space(x, 2), (IMAGE,)),
    "space_to_depth": (lambda x: tf.nn.space_to_depth(x, 2), ((1, 6, 8, 3),)),
    "tile": (lambda x: tf.tile(x, [1, 2, 1, 3]), (IMAGE,)),
    "pack": (lambda x, y: tf.stack([x, y], 2), (IMAGE, IMAGE)),
    "l2_normalize": (lambda x: tf.nn.l2_normalize(x, -1), (IMAGE,)),
    "lrn": (lambda x: tf.nn.local_response_normalization(x, 2, 1.5, 0.3, 0.6), (IMAGE,)),
    "argmax": (lambda x: tf.argmax(x, -1), (IMAGE,)),
    "top_k": (lambda x: tf.math.top_k(x, 3), ((1, 9),)),
    "where": (lambda x, y: tf.where(x > y, x, y * 0.5), (IMAGE, IMAGE)),
    "cumsum": (lambda x: tf.cumsum(x, 1), (IMAGE,)),
    "batch_norm": (lambda x: tf.nn.batch_normalization(x, w(4), tf.abs(w(4)) + 0.5, w(4), w(4), 1e-3), (IMAGE,)),
}
LITE_MODELS = {"convolutions": with_convolutions, "attention": transformer, "nested": nested}
OPTIMISED = ("elu", "round", "depth_to_space", "tile", "lrn", "reduce_sum")
"""Operators that the reference kernels lack or get wrong."""
EVERY = ("float", "half", "dynamic", "int8", "per tensor", "uint8", "int16")
THOROUGH = (
    "conv",
    "conv relu6",
    "depthwise",
    "transposed",
    "dense",
    "matmul",
    "add",
    "multiply",
    "concat",
    "mean",
    "sigmoid",
    "convolutions",
    "attention",
)
REFUSED = {"div int8", "where int8", "attention int16"}
"""LiteRT has no division of int8 by what may be 0, of numbers that are nearly equal it may find the other one larger,
and it cannot convert every operator to int16."""
ROWS = [
    (name, mode)
    for name in (*LITE, *LITE_MODELS)
    for mode in (EVERY if name in THOROUGH else ("float", "int8"))
    if f"{name} {mode}" not in REFUSED
]


def converted(name: str, mode: str) -> bytes:
    """A function or model as a .tflite file."""
    if name in LITE:
        function, shapes = LITE[name]
        concrete = tf.function(function).get_concrete_function(
            *(tf.TensorSpec(s, tf.float32, name=f"x{i}") for i, s in enumerate(shapes))
        )
        maker = tf.lite.TFLiteConverter.from_concrete_functions([concrete])
    else:
        model = with_random_weights(LITE_MODELS[name]())
        shapes = tuple((1, *x.shape[1:]) for x in model.inputs)
        concrete, _ = frozen(lambda x: model(x, training=False), shapes)
        maker = tf.lite.TFLiteConverter.from_concrete_functions([concrete])
    if mode != "float":
        maker.optimizations = [tf.lite.Optimize.DEFAULT]
    if mode == "half":
        maker.target_spec.supported_types = [tf.float16]
    if mode in ("int8", "per tensor", "uint8", "int16"):
        maker.representative_dataset = lambda: ([some(*s) for s in shapes] for _ in range(8))
        kinds = (
            tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
            if mode == "int16"
            else tf.lite.OpsSet.TFLITE_BUILTINS_INT8
        )
        maker.target_spec.supported_ops = [kinds]
        if mode != "int16":
            maker.inference_input_type = maker.inference_output_type = tf.uint8 if mode == "uint8" else tf.int8
        maker._experimental_disable_per_channel = mode == "per tensor"
    return bytes(maker.convert())


@pytest.mark.parametrize(("name", "mode"), ROWS)
def test_models_match_litert(name: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(converted(name, mode))
    kinds = tf.lite.experimental.OpResolverType
    peer = tf.lite.Interpreter(
        str(path), experimental_op_resolver_type=kinds.BUILTIN if name in OPTIMISED else kinds.BUILTIN_REF
    )
    peer.allocate_tensors()
    graph, given = importers.load(path), {}
    for value, detail in zip(graph.inputs, peer.get_input_details(), strict=True):
        x = some(*detail["shape"])
        scale, zero = detail["quantization"]
        if detail["dtype"] != np.float32:
            info = np.iinfo(detail["dtype"])
            x = np.clip(np.round(x / scale) + zero, info.min, info.max).astype(detail["dtype"])
        peer.set_tensor(detail["index"], x)
        given[value.name] = x
    peer.invoke()
    for ours, detail in zip(evaluate(graph, given).values(), peer.get_output_details(), strict=True):
        theirs = peer.get_tensor(detail["index"])
        assert ours.shape == theirs.shape
        if theirs.dtype == np.float32:
            assert difference(ours, theirs) < {"dynamic": 2e-2, "int16": 5e-4}.get(mode, 1e-5)
        else:
            # A difference of one quantisation step in one layer may become two after several layers.
            gap = np.abs(ours.astype(np.int64) - theirs.astype(np.int64))
            assert gap.max() <= (2 if name in LITE_MODELS else 1), f"{gap.max()} steps, {np.mean(gap > 0):.0%}"
