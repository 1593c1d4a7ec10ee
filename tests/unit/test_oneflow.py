"""OneFlow's operations, compared with definitions in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from definitions import conv_transpose2d
from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array

pytestmark = pytest.mark.quick(importer="oneflow")

RNG = np.random.default_rng(9)
X = RNG.uniform(-1, 1, (1, 4, 6, 5)).astype(np.float32)
P = np.abs(X) + np.float32(0.5)
M = RNG.uniform(-1, 1, (3, 4)).astype(np.float32)
KINDS = {"f": "f32", "i": "si64", "b": "i1"}


def run(folder: Path, op: str, attributes: str, inputs: list[Array], parameters: list[Array], result: Array) -> Array:
    """The operands are the inputs, followed by parameters stored beside the job."""
    lines, names = [], []
    for i, x in enumerate([*inputs, *parameters]):
        type = f"tensor<{'x'.join(map(str, x.shape))}x{KINDS[x.dtype.kind]}>"
        kind = "input" if i < len(inputs) else "variable"
        names.append(f"%v{i}")
        lines.append(f'%v{i} = "oneflow.{kind}"({"%a" if kind == "input" else ""}) {{op_name = "v{i}"}} : () -> {type}')
        if i >= len(inputs):
            (folder / f"v{i}").mkdir()
            (folder / f"v{i}" / "out").write_bytes(x.tobytes())
    made = f"tensor<{''.join(f'{d}x' for d in result.shape)}{KINDS[result.dtype.kind]}>"
    lines.append(f'%y = "oneflow.{op}"({", ".join(names)}) {{{attributes}op_name = "y"}} : () -> {made}')
    lines.append(f'%o = "oneflow.output"(%y) {{op_name = "o"}} : () -> {made}')
    body = "\n".join(["oneflow.job @G() {", *lines, f"oneflow.return %o : {made}", "}"])
    (folder / "model.mlir").write_text(body)
    (output,) = evaluate(importers.load(folder), {f"v{i}": x for i, x in enumerate(inputs)}).values()
    return output


def bins(x: Array, axis: int, count: int) -> Array:
    n = x.shape[axis]
    return np.stack(
        [x.take(range(i * n // count, -(-(i + 1) * n // count)), axis).mean(axis) for i in range(count)], axis
    )


def normal(x: Array, axes: tuple[int, ...], eps: float) -> Array:
    return np.asarray((x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps))


G5, B5 = RNG.uniform(0.5, 1, 5).astype(np.float32), RNG.uniform(-1, 1, 5).astype(np.float32)
G4, B4 = RNG.uniform(0.5, 1, 4).astype(np.float32), RNG.uniform(-1, 1, 4).astype(np.float32)
D = RNG.uniform(-1, 1, (4, 2, 3, 3)).astype(np.float32)
W1, W2 = RNG.uniform(-1, 1, (2, 4)).astype(np.float32), RNG.uniform(-1, 1, (5, 2)).astype(np.float32)
C1, C2 = RNG.uniform(-1, 1, 2).astype(np.float32), RNG.uniform(-1, 1, 5).astype(np.float32)
IDS = np.array([[2, 0], [1, 1]])
FLOAT = "has_float_operand = true, float_operand = 0.25 : f64, "
CENTRED = 'data_format = "channels_first", '
TALL = X.repeat(2, 2).repeat(3, 3)

UNARY: dict[str, Callable[[Array], Array]] = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "square": np.square,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "softsign": lambda x: x / (1 + x),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "logsigmoid": lambda x: -np.log1p(np.exp(-x)),
}
CASES: list[tuple[str, str, list[Array], list[Array], Array]] = [
    *[(name, "", [P], [], function(P)) for name, function in UNARY.items()],
    ("scalar_sub", FLOAT, [X], [], X - np.float32(0.25)),
    ("scalar_reverse_pow", FLOAT, [X], [], 0.25**X),
    ("scalar_logical_greater", FLOAT, [X], [], X > 0.25),
    ("broadcast_less_equal", "", [X, P], [], X <= P),
    ("broadcast_not_equal", "", [X, P], [], X != P),
    ("multiply", "", [X, P], [], X * P),
    ("add_n", "", [X, P, X], [], X + P + X),
    ("hardtanh", "min_val = -0.5 : f64, max_val = 0.3 : f64, ", [X], [], np.clip(X, -0.5, 0.3)),
    ("clip_by_scalar", "floating_min = -0.5 : f64, floating_max = 0.3 : f64, ", [X], [], np.clip(X, -0.5, 0.3)),
    ("clip_by_scalar_min", "floating_min = -0.5 : f64, floating_max = 0.0 : f64, ", [X], [], np.maximum(X, -0.5)),
    ("elu", "alpha = 0.5 : f64, ", [X], [], np.where(X > 0, X, 0.5 * np.expm1(X))),
    ("prelu", "", [X], [G4], np.where(X > 0, X, X * G4[:, None, None])),
    ("fused_matmul_bias", "", [M], [W1, C1], M @ W1.T + C1),
    (
        "cublas_fused_mlp",
        "skip_final_activation = true, ",
        [M],
        [W1, W2, C1, C2],
        np.maximum(M @ W1.T + C1, 0) @ W2.T + C2,
    ),
    (
        "fused_bias_add_gelu",
        "axis = 1 : si32, ",
        [M],
        [G4],
        (M + G4) * np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))))(M + G4),
    ),
    (
        "deconv2d",
        CENTRED
        + "padding_before = [0 : si32, 0 : si32], strides = [2 : si32, 2 : si32], dilation_rate = [1 : si32, 1 : si32], groups = 1 : si32, output_padding = [0 : si32, 0 : si32], ",  # noqa: E501
        [X],
        [D],
        conv_transpose2d(X, D, 2),
    ),
    ("adaptive_avg_pool2d", "output_size = [4 : si64, 3 : si64], ", [X], [], bins(bins(X, 2, 4), 3, 3)),
    (
        "max_pool_1d",
        CENTRED
        + "kernel_size = [2 : si32], stride = [2 : si32], padding = [0 : si32], dilation = [1 : si32], ceil_mode = false, ",  # noqa: E501
        [X[0]],
        [],
        X[0, :, :, :4].reshape(4, 6, 2, 2).max(3),
    ),
    (
        "layer_norm",
        "center = true, scale = true, begin_norm_axis = 3 : si64, epsilon = 0.01 : f64, ",
        [X],
        [B5, G5],
        normal(X, (3,), 0.01) * G5 + B5,
    ),
    (
        "group_norm",
        "affine = true, num_groups = 2 : si32, epsilon = 0.01 : f64, ",
        [X],
        [B4, G4],
        normal(X.reshape(1, 2, -1), (2,), 0.01).reshape(X.shape) * G4[:, None, None] + B4[:, None, None],
    ),
    ("rms_norm", "epsilon = 0.01 : f32, ", [X], [G5], X / np.sqrt((X * X).mean(3, keepdims=True) + 0.01) * G5),
    ("var", "dim = [2 : si32, 3 : si32], unbiased = true, keepdim = false, ", [X], [], X.var((2, 3), ddof=1)),
    ("reduce_min", "axis = [1 : si32], keepdims = true, ", [X], [], X.min(1, keepdims=True)),
    ("argmax", "", [X], [], X.argmax(3)),
    ("top_k", "k = 2 : si32, sorted = true, ", [X], [], np.argsort(-X, 3)[..., :2]),
    (
        "upsample_nearest_2d",
        CENTRED + "height_scale = 2.0 : f64, width_scale = 3.0 : f64, output_size = [], ",
        [X],
        [],
        TALL,
    ),
    (
        "pad",
        "padding_before = [0 : si64, 0 : si64, 1 : si64, 2 : si64], padding_after = [0 : si64, 0 : si64, 0 : si64, 1 : si64], floating_constant_value = 0.5 : f64, integral_constant_value = 0 : si64, ",  # noqa: E501
        [X],
        [],
        np.pad(X, ((0, 0), (0, 0), (1, 0), (2, 1)), constant_values=0.5),
    ),
    (
        "reflection_pad2d",
        "padding = [1 : si64, 2 : si64, 3 : si64, 0 : si64], ",
        [X],
        [],
        np.pad(X, ((0, 0), (0, 0), (3, 0), (1, 2)), mode="reflect"),
    ),
    (
        "unfold",
        "kernel_size = [2 : si32, 2 : si32], padding = [0 : si32, 0 : si32], strides = [1 : si32, 1 : si32], dilation_rate = [1 : si32, 1 : si32], ",  # noqa: E501
        [X],
        [],
        np.stack([X[:, :, i : i + 5, j : j + 4] for i in (0, 1) for j in (0, 1)], 2).reshape(1, 16, 20),
    ),
    ("stack", "axis = 1 : si64, ", [X, P], [], np.stack([X, P], 1)),
    ("flip", "dims = [1 : si32, 3 : si32], ", [X], [], X[:, ::-1, :, ::-1]),
    (
        "slice",
        "start = [0 : si64, 1 : si64], stop = [3 : si64, 4 : si64], step = [2 : si64, 1 : si64], ",
        [M],
        [],
        M[::2, 1:],
    ),
    ("narrow", "dim = 1 : si64, start = 1 : si64, length = 2 : si64, ", [M], [], M[:, 1:3]),
    ("cast", "dtype = 6 : i32, ", [P * 3], [], (P * 3).astype(np.int64)),
    ("expand", "", [M[:, :1]], [], np.broadcast_to(M[:, :1], (2, 3, 4))),
    (
        "broadcast_like",
        "broadcast_axes = [0 : si32], ",
        [M],
        [np.zeros((2, 3, 4), np.float32)],
        np.broadcast_to(M, (2, 3, 4)),
    ),
    ("where", "", [X, P], [], np.empty(0)),
    ("masked_fill", FLOAT, [M], [np.tri(3, 4) > 0], np.where(np.tri(3, 4) > 0, np.float32(0.25), M)),
    ("gather", "axis = 0 : si64, ", [M], [IDS], M[IDS]),
    ("embedding", "", [M], [IDS], M[IDS]),
    ("dim_gather", "dim = 1 : si32, ", [M[:2]], [IDS], np.take_along_axis(M[:2], IDS, 1)),
    ("cumsum", "dim = 1 : si64, ", [M], [], M.cumsum(1)),
    (
        "tril",
        "diagonal = 1 : si64, is_floating_fill_value = false, floating_fill_value = 0.0 : f64, integer_fill_value = 0 : si64, ",  # noqa: E501
        [M],
        [],
        np.tril(M, 1),
    ),
]


@pytest.mark.parametrize(("op", "attributes", "inputs", "parameters", "result"), CASES, ids=[c[0] for c in CASES])
def test_operations(
    op: str, attributes: str, inputs: list[Array], parameters: list[Array], result: Array, tmp_path: Path
) -> None:
    if op == "where":
        parameters, result = [X > 0], np.where(X > 0, X, P)
        output = run(tmp_path, op, attributes, [X > 0, X, P], [], result)
    else:
        output = run(tmp_path, op, attributes, inputs, parameters, np.asarray(result))
    assert output.shape == result.shape
    np.testing.assert_allclose(output, result, rtol=1e-4, atol=1e-5)


def test_constants(tmp_path: Path) -> None:
    output = run(tmp_path, "constant", "floating_value = 0.5 : f64, is_floating_value = true, ", [], [], M)
    np.testing.assert_array_equal(output, np.full_like(M, 0.5))
    row = np.array([3, 5, 7])
    output = run(tmp_path, "arange", "integer_start = 3 : si64, integer_delta = 2 : si64, ", [], [], row)
    np.testing.assert_array_equal(output, row)


@pytest.mark.parametrize(
    ("op", "attributes", "reason"),
    [
        ("conv2d", 'data_format = "channels_last", ', "channels_last"),
        ("adaptive_avg_pool2d", "output_size = [0 : si64, 1 : si64], ", "cannot be pooled"),
        ("normalization", "axis = 3 : si32, ", "on axis 3"),
        ("odd", "", "not supported"),
    ],
)
def test_refusals(op: str, attributes: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        run(tmp_path, op, attributes, [X], [], X)
