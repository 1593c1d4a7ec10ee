"""Frozen graphs and SavedModels compared with TensorFlow; skipped if it is not installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluate import difference, evaluate
from tenon.formats import importers
from tensorflow_peer import (
    IMAGE,
    Shape,
    arrays,
    frozen,
    keras,
    nested,
    shared,
    some,
    tf,
    transformer,
    w,
    with_convolutions,
    with_random_weights,
    with_rnn,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks warn of themselves

MATH = """
    abs acos asin asinh atan atanh ceil cos cosh erf erfc exp expm1 floor log1p negative reciprocal rint round sign
    sin sinh square tan tanh sigmoid softplus is_finite is_inf is_nan reduce_logsumexp reduce_std reduce_variance
"""
ACTIVATIONS = """
    elu leaky_relu log_softmax relu relu6 selu softmax softplus softsign gelu silu l2_loss crelu
"""
BINARY = """
    add subtract multiply divide divide_no_nan multiply_no_nan floordiv floormod maximum minimum squared_difference
    atan2 xdivy equal greater greater_equal less less_equal not_equal
"""
GRAPHS: dict[str, tuple[Callable[..., Any], tuple[Shape, ...]]] = {
    **{
        f"conv2d {p} {s} {d}": (lambda x, p=p, s=s, d=d: tf.nn.conv2d(x, w(3, 3, 4, 5), s, p, dilations=d), (IMAGE,))
        for p in ("SAME", "VALID", [[0, 0], [1, 2], [0, 1], [0, 0]])
        for s, d in ((1, 1), (2, 1), (1, 2))
    },
    "conv2d groups": (lambda x: tf.nn.conv2d(x, w(3, 3, 2, 6), 1, "SAME"), (IMAGE,)),
    "atrous": (lambda x: tf.nn.atrous_conv2d(x, w(3, 3, 4, 5), 2, "SAME"), (IMAGE,)),
    "convolution 1d": (lambda x: tf.nn.conv1d(x, w(3, 4, 5), 2, "SAME"), ((1, 9, 4),)),
    "conv3d": (lambda x: tf.nn.conv3d(x, w(3, 3, 3, 2, 5), (1, 2, 2, 2, 1), "SAME"), ((1, 5, 6, 7, 2),)),
    "conv2d_transpose": (lambda x: tf.nn.conv2d_transpose(x, w(3, 3, 5, 4), (1, 14, 16, 5), 2), (IMAGE,)),
    "conv2d_transpose odd": (lambda x: tf.nn.conv2d_transpose(x, w(4, 4, 5, 4), (1, 13, 15, 5), 2), (IMAGE,)),
    "conv2d_transpose valid": (
        lambda x: tf.nn.conv2d_transpose(x, w(3, 3, 5, 4), (1, 16, 18, 5), 2, "VALID"),
        (IMAGE,),
    ),
    "conv3d_transpose": (
        lambda x: tf.nn.conv3d_transpose(x, w(3, 3, 3, 5, 2), (1, 10, 12, 14, 5), 2),
        ((1, 5, 6, 7, 2),),
    ),
    "depthwise": (lambda x: tf.nn.depthwise_conv2d(x, w(3, 3, 4, 2), (1, 2, 2, 1), "SAME"), (IMAGE,)),
    "depthwise dilated": (
        lambda x: tf.nn.depthwise_conv2d(x, w(3, 3, 4, 2), (1, 1, 1, 1), "SAME", dilations=(2, 2)),
        (IMAGE,),
    ),
    "separable": (lambda x: tf.nn.separable_conv2d(x, w(3, 3, 4, 2), w(1, 1, 8, 3), (1, 1, 1, 1), "VALID"), (IMAGE,)),
    "dilation2d": (lambda x: tf.nn.dilation2d(x, w(3, 3, 4), (1, 1, 1, 1), "SAME", "NHWC", (1, 1, 1, 1)), (IMAGE,)),
    **{
        f"{f} {p} {s}": (lambda x, f=f, p=p, s=s: getattr(tf.nn, f)(x, 3, s, p), (IMAGE,))
        for f in ("max_pool2d", "avg_pool2d")
        for p in ("SAME", "VALID")
        for s in (1, 2)
    },
    "max_pool explicit": (lambda x: tf.nn.max_pool2d(x, 3, 2, [[0, 0], [1, 1], [0, 1], [0, 0]]), (IMAGE,)),
    "max_pool argmax": (lambda x: tf.nn.max_pool_with_argmax(x, 2, 2, "SAME"), (IMAGE,)),
    "max_pool3d": (lambda x: tf.nn.max_pool3d(x, 2, 2, "SAME"), ((1, 5, 6, 7, 2),)),
    "avg_pool3d": (lambda x: tf.nn.avg_pool3d(x, 2, 2, "VALID"), ((1, 5, 6, 7, 2),)),
    "lrn": (lambda x: tf.nn.local_response_normalization(x, 2, 1.5, 0.3, 0.6), (IMAGE,)),
    "batch_norm": (lambda x: tf.nn.batch_normalization(x, w(4), tf.abs(w(4)) + 0.5, w(4), w(4), 1e-3), (IMAGE,)),
    "fused_batch_norm": (
        lambda x: tf.compat.v1.nn.fused_batch_norm(x, w(4), w(4), w(4), tf.abs(w(4)) + 0.5, is_training=False)[0],
        (IMAGE,),
    ),
    "fused_batch_norm training": (
        lambda x: tf.compat.v1.nn.fused_batch_norm(x, w(4), w(4), is_training=True)[0],
        (IMAGE,),
    ),
    "extract_patches": (
        lambda x: tf.image.extract_patches(x, (1, 3, 3, 1), (1, 2, 2, 1), (1, 1, 1, 1), "SAME"),
        (IMAGE,),
    ),
    **{
        f"resize {m} {a} {s}": (lambda x, m=m, a=a, s=s: tf.image.resize(x, s, m, antialias=a), (IMAGE,))
        for m in ("bilinear", "nearest", "area")
        for a in (False,)
        for s in ((4, 5), (13, 17), (14, 16))
    },
    **{
        f"resize v1 {m} {a} {h} {s}": (
            lambda x, m=m, a=a, h=h, s=s: getattr(tf.raw_ops, m)(
                images=x, size=s, align_corners=a, half_pixel_centers=h
            ),
            (IMAGE,),
        )
        for m in ("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic")
        for a, h in ((False, False), (True, False), (False, True))
        for s in ((4, 5), (13, 17))
    },
    "crop_and_resize": (
        lambda x: tf.image.crop_and_resize(
            x, [[0.1, 0.2, 0.8, 0.9], [-0.2, 0.5, 1.2, 0.1]], [0, 0], (4, 5), extrapolation_value=2.0
        ),
        (IMAGE,),
    ),
    "crop_and_resize zeros": (
        lambda x: tf.image.crop_and_resize(x, [[0.1, 0.2, 0.8, 0.9], [-0.2, 0.5, 1.2, 0.1]], [0, 0], (4, 5)),
        (IMAGE,),
    ),
    "depth_to_space": (lambda x: tf.nn.depth_to_space(x, 2), (IMAGE,)),
    "space_to_depth": (lambda x: tf.nn.space_to_depth(x, 2), ((1, 6, 8, 3),)),
    "space_to_batch": (lambda x: tf.space_to_batch(x, [2, 2], [[0, 1], [1, 1]]), (IMAGE,)),
    "batch_to_space": (lambda x: tf.batch_to_space(x, [2, 2], [[0, 1], [1, 0]]), ((4, 3, 3, 2),)),
    **{f: (lambda x, f=f: getattr(tf.math, f)(x), ((3, 5),)) for f in MATH.split()},
    **{
        f"{f} positive": (lambda x, f=f: getattr(tf.math, f)(tf.abs(x) + 1.1), ((3, 5),))
        for f in ("log", "sqrt", "rsqrt", "acosh")
    },
    **{f: (lambda x, f=f: getattr(tf.nn, f)(x), ((3, 5),)) for f in ACTIVATIONS.split()},
    **{f: (lambda x, y, f=f: getattr(tf.math, f)(x, y), ((3, 5), (3, 5))) for f in BINARY.split()},
    "truncatediv": (
        lambda x, y: tf.truncatediv(tf.cast(x * 20, tf.int32), tf.cast(y * 5, tf.int32) * 2 + 1),
        ((3, 5), (3, 5)),
    ),
    "truncatemod": (
        lambda x, y: tf.truncatemod(tf.cast(x * 20, tf.int32), tf.cast(y * 5, tf.int32) * 2 + 1),
        ((3, 5), (3, 5)),
    ),
    "truncatemod float": (lambda x, y: tf.truncatemod(x * 20, y), ((3, 5), (3, 5))),
    "floordiv int": (
        lambda x, y: tf.math.floordiv(tf.cast(x * 20, tf.int32), tf.cast(y * 5, tf.int32) * 2 + 1),
        ((3, 5), (3, 5)),
    ),
    "floormod int": (
        lambda x, y: tf.math.floormod(tf.cast(x * 20, tf.int32), tf.cast(y * 5, tf.int32) * 2 + 1),
        ((3, 5), (3, 5)),
    ),
    "pow": (lambda x: tf.pow(tf.abs(x), 1.7), ((3, 5),)),
    "xlogy": (lambda x, y: tf.math.xlogy(tf.nn.relu(x), tf.abs(y) + 0.1), ((3, 5), (3, 5))),
    "add_n": (lambda x, y: tf.add_n([x, y, x]), ((3, 5), (3, 5))),
    "clip": (lambda x: tf.clip_by_value(x, -0.3, 0.4), ((3, 5),)),
    "clip_by_norm": (lambda x: tf.clip_by_norm(x, 0.5), ((3, 5),)),
    "l2_normalize": (lambda x: tf.nn.l2_normalize(x, 1), ((3, 5),)),
    "moments": (lambda x: tf.nn.moments(x, [1, 2]), (IMAGE,)),
    "cumsum": (lambda x: tf.cumsum(x, 1, exclusive=True, reverse=True), ((3, 5),)),
    "cumprod": (lambda x: tf.math.cumprod(x, 0), ((3, 5),)),
    "bits": (
        lambda x: tf.bitwise.bitwise_xor(
            tf.bitwise.invert(tf.cast(x * 9, tf.int32)), tf.bitwise.left_shift(tf.cast(x * 9, tf.int32), 2)
        ),
        ((3, 5),),
    ),
    "logic": (lambda x, y: tf.logical_or(tf.logical_and(x > 0, y > 0), tf.logical_not(x > y)), ((3, 5), (3, 5))),
    "where": (lambda x, y: tf.where(x > 0, x, y), ((3, 5), (3, 5))),
    "where broadcast": (lambda x, y: tf.where(x > 0, x, 3.0 * y[:1]), ((3, 5), (3, 5))),
    **{
        f"{f} {k}": (lambda x, f=f, k=k: getattr(tf, f)(x, [1, -1], keepdims=k), ((2, 3, 4),))
        for f in ("reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum")
        for k in (True, False)
    },
    "reduce_all": (lambda x: (tf.reduce_all(x > -0.5, 1), tf.reduce_any(x > 0.5, 1)), ((3, 5),)),
    "reduce everything": (lambda x: tf.reduce_sum(x), ((3, 5),)),
    "norm": (lambda x: tf.raw_ops.EuclideanNorm(input=x, axis=[1], keep_dims=True), ((3, 5),)),
    "argmax": (lambda x: (tf.argmax(x, 1), tf.argmin(x, 0, output_type=tf.int32)), ((3, 5),)),
    "top_k": (lambda x: tf.math.top_k(x, 3), ((3, 5),)),
    "sort": (lambda x: (tf.sort(x, 1), tf.argsort(x, 1, "DESCENDING")), ((3, 5),)),
    "segments": (
        lambda x: tuple(getattr(tf.math, f"segment_{f}")(x, [0, 0, 2]) for f in ("sum", "mean", "max", "min", "prod")),
        ((3, 5),),
    ),
    "unsorted segments": (
        lambda x: tuple(
            getattr(tf.math, f"unsorted_segment_{f}")(x, [2, 0, 2], 4) for f in ("sum", "max", "min", "prod")
        ),
        ((3, 5),),
    ),
    "bucketize": (lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[-0.5, 0.0, 0.5]), ((3, 5),)),
    "broadcast_to": (lambda x: tf.broadcast_to(x, (2, 3, 5)), ((3, 1),)),
    "concat": (lambda x, y: tf.concat([x, y], -1), ((3, 5), (3, 2))),
    "expand_dims": (lambda x: tf.expand_dims(x, -2), ((3, 5),)),
    "gather": (lambda x: tf.gather(x, [[2, 0], [1, 1]], axis=1), ((3, 5),)),
    "gather batch": (lambda x: tf.gather(x, [[2, 0], [1, 1], [0, 4]], axis=1, batch_dims=1), ((3, 5),)),
    "gather_nd": (lambda x: tf.gather_nd(x, [[2, 0], [1, 1]]), ((3, 5, 2),)),
    "gather_nd batch": (lambda x: tf.gather_nd(x, [[[2], [0]], [[1], [1]], [[3], [4]]], batch_dims=1), ((3, 5, 2),)),
    "mirror_pad": (
        lambda x: (tf.pad(x, [[1, 2], [2, 3]], "REFLECT"), tf.pad(x, [[1, 2], [2, 3]], "SYMMETRIC")),
        ((3, 5),),
    ),
    "pad": (lambda x: (tf.pad(x, [[1, 2], [2, 3]]), tf.pad(x, [[1, 2], [0, 3]], constant_values=2.0)), ((3, 5),)),
    "one_hot": (lambda x: (tf.one_hot([1, 7, 3], 5, 2.0, -1.0), tf.one_hot([1, 0], 3, axis=0), x * 1), ((3, 5),)),
    "stack": (lambda x, y: (tf.stack([x, y], 1), *tf.unstack(x, axis=1)), ((3, 5), (3, 5))),
    "reverse": (lambda x: tf.reverse(x, [0, -1]), ((3, 5),)),
    "reverse_sequence": (lambda x: tf.reverse_sequence(x, [2, 5, 1], 1, 0), ((3, 5, 2),)),
    "roll": (lambda x: tf.roll(x, [1, -2], [0, 1]), ((3, 5),)),
    "scatter_nd": (lambda x: tf.scatter_nd([[4], [1], [4]], x, (6, 5)), ((3, 5),)),
    "tensor_scatter": (
        lambda x: tuple(
            getattr(tf, f"tensor_scatter_nd_{f}")(x, [[2], [0]], w(2, 5))
            for f in ("add", "max", "min", "update", "sub")
        ),
        ((3, 5),),
    ),
    "slice": (lambda x: tf.slice(x, [0, 1], [2, -1]), ((3, 5),)),
    "split": (lambda x: tuple(tf.split(x, 2, -1)), ((3, 4),)),
    "split_v": (lambda x: tuple(tf.split(x, [1, -1, 2], -1)), ((3, 6),)),
    "squeeze": (lambda x: tf.squeeze(x), ((1, 3, 1),)),
    "strided": (lambda x: (x[..., ::2, 1:], x[:, tf.newaxis, -1], x[::-1, 3:0:-2], x[1:-1, 2]), ((3, 5, 4),)),
    "tile": (lambda x: tf.tile(x, [2, 3]), ((3, 5),)),
    "transpose": (lambda x: tf.transpose(x, (2, 0, 1)), ((3, 5, 2),)),
    "matrix": (
        lambda x: (
            tf.linalg.diag(x),
            tf.linalg.band_part(x, 1, 0),
            tf.linalg.diag_part(x[:, :3]),
            tf.linalg.set_diag(x, x[:, 0]),
        ),
        ((3, 5),),
    ),
    "meshgrid": (lambda x: tuple(tf.meshgrid(x[0], x[1])), ((3, 5),)),
    "linspace": (
        lambda x: tf.linspace(0.0, 3.0, 5) + x + tf.range(5, dtype=tf.float32) + tf.fill([3, 5], 2.0) + tf.ones_like(x),
        ((3, 5),),
    ),
    "shape arithmetic": (lambda x: tf.reshape(x, tf.stack([tf.shape(x)[0] * 5, -1])), ((3, 5, 2),)),
    "matmul": (
        lambda x, y: (tf.matmul(x, y, transpose_b=True), tf.matmul(x, y, transpose_a=True)),
        ((2, 3, 5), (2, 3, 5)),
    ),
    "matmul 2d": (lambda x: tf.matmul(x, w(5, 4)) + w(4), ((3, 5),)),
    "matmul broadcast": (lambda x: tf.matmul(x, w(2, 1, 5, 4)), ((2, 3, 3, 5),)),
    "tensordot": (lambda x: tf.tensordot(x, w(5, 4, 3), [[2], [0]]), ((2, 3, 5),)),
    "einsum": (lambda x, y: tf.einsum("bij,bkj->bik", x, y), ((2, 3, 5), (2, 4, 5))),
    "einsum ellipsis": (lambda x: tf.einsum("...ij,jk->...ik", x, w(5, 4)), ((2, 3, 5),)),
    "bias_add": (lambda x: tf.nn.bias_add(x, w(4)), (IMAGE,)),
    "fake_quant": (
        lambda x: (
            tf.quantization.fake_quant_with_min_max_args(x, -0.4, 0.7),
            tf.quantization.fake_quant_with_min_max_vars(x, -0.3, 0.5, 5, True),
            tf.quantization.fake_quant_with_min_max_vars_per_channel(x, [-0.5] * 5, [0.1, 0.2, 0.3, 0.4, 0.5]),
        ),
        ((3, 5),),
    ),
    "nms": (
        lambda x: tf.image.combined_non_max_suppression(
            tf.reshape(x, (1, 6, 1, 4)), tf.nn.sigmoid(tf.reshape(x, (1, 6, 4))), 3, 5, 0.5, 0.3
        ),
        ((6, 4),),
    ),
    "while": (
        lambda x: tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, tf.nn.tanh(y) * 2.0), (tf.constant(0), x))[1],
        ((3, 5),),
    ),
    "map": (lambda x: tf.map_fn(lambda r: tf.nn.softmax(r), x), ((3, 5),)),
    "scan": (lambda x: tf.scan(lambda a, b: a * 0.5 + b, x), ((3, 5),)),
    "cond": (lambda x: tf.cond(tf.constant(True), lambda: x + 1, lambda: x - 1), ((3, 5),)),
    "cond shape": (lambda x: tf.cond(tf.shape(x)[0] > 2, lambda: x + 1, lambda: x - 1), ((3, 5),)),
    "casts": (
        lambda x: (
            tf.cast(x * 9, tf.int32),
            tf.cast(x * 9, tf.int8),
            tf.cast(x > 0, tf.float32),
            tf.cast(tf.abs(x) * 200, tf.uint8),
        ),
        ((3, 5),),
    ),
    "half": (lambda x: tf.cast(tf.cast(x, tf.float16), tf.float32), ((3, 5),)),
    "bitcast": (lambda x: tf.bitcast(x, tf.int32), ((3, 5),)),
    "dynamic_stitch": (lambda x: tf.dynamic_stitch([[0, 2, 4], [1, 3]], [x, w(2, 5)]), ((3, 5),)),
    "invert_permutation": (lambda x: tf.transpose(x, tf.math.invert_permutation([2, 0, 1])), ((3, 5, 2),)),
    "adjust_contrast": (lambda x: tf.image.adjust_contrast(x, 1.3), ((1, 4, 4, 3),)),
    "rgb_to_grayscale": (lambda x: tf.image.rgb_to_grayscale(x), ((1, 4, 4, 3),)),
    "per_image_standardization": (lambda x: tf.image.per_image_standardization(x), ((4, 4, 3),)),
    "flip": (lambda x: (tf.image.flip_left_right(x), tf.image.flip_up_down(x)), ((1, 4, 4, 3),)),
    "ensure_shape": (lambda x: tf.ensure_shape(tf.stop_gradient(tf.identity(x)), (3, 5)), ((3, 5),)),
    "embedding": (lambda x: tf.nn.embedding_lookup(w(10, 4), tf.cast(tf.abs(x) * 9, tf.int32)), ((3, 5),)),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_match_tensorflow(name: str, tmp_path: Path) -> None:
    function, shapes = GRAPHS[name]
    made, outputs = frozen(function, shapes)
    path = tmp_path / "net.pb"
    path.write_bytes(made.graph.as_graph_def().SerializeToString())
    inputs = [some(*shape) for shape in shapes]
    graph = importers.load(path, outputs=[name.removesuffix(":0") for name in outputs])
    actual = evaluate(graph, {f"x{i}": x for i, x in enumerate(inputs) if any(v.name == f"x{i}" for v in graph.inputs)})
    for ours, theirs in zip(actual.values(), arrays(made(*map(tf.constant, inputs))), strict=True):
        assert ours.shape == theirs.shape
        # TensorFlow tabulates the weights of cubic interpolation.
        assert difference(ours, theirs) < (2e-3 if "Bicubic" in name else 1e-5)


class Counter(tf.Module):  # type: ignore[misc]
    """Variables that are read, and a loop over them."""

    def __init__(self) -> None:
        self.weight, self.steps = tf.Variable(some(5, 5)), tf.Variable(3)

    @tf.function(input_signature=[tf.TensorSpec((1, 5), tf.float32, name="x")])  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        for _ in tf.range(3):
            x = tf.tanh(tf.matmul(x, self.weight))
        return {"y": x, "z": tf.reduce_sum(x, 1)}


SAVED = {
    "Counter": Counter,
    "with_rnn": with_rnn,
    "with_convolutions": with_convolutions,
    "transformer": transformer,
    "shared": shared,
    "nested": nested,
}


@pytest.mark.parametrize("name", SAVED)
def test_saved_models_match_tensorflow(name: str, tmp_path: Path) -> None:
    keras.utils.clear_session(free_memory=False)
    model = SAVED[name]()
    path = tmp_path / "saved"
    if isinstance(model, tf.Module) and not isinstance(model, keras.Model):
        tf.saved_model.save(model, path)
        inputs = [some(1, 5)]
    else:
        with_random_weights(model).export(path, verbose=False)
        inputs = [some(1, *x.shape[1:]) for x in model.inputs]
    serve = tf.saved_model.load(path).signatures["serving_default"]
    names = list(serve.structured_input_signature[1])
    theirs = serve(**{n: tf.constant(x) for n, x in zip(names, inputs, strict=True)})
    graph = importers.load(path)
    ours = evaluate(
        graph,
        {
            v.name: next(x for n, x in zip(names, inputs, strict=True) if v.name in (n, f"serving_default_{n}"))
            for v in graph.inputs
        },
    )
    assert len(ours) == len(theirs)
    rest = list(ours.values())
    for value in theirs.values():
        assert any(a.shape == value.shape and difference(a, value.numpy()) < 1e-5 for a in rest)
