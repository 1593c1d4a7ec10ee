"""TFLite models of one quantised operator each, by the operator's name and the type of its activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.requantize import limits
from tflite_models import OPTION_TYPES, Model

IMAGE = (1, 4, 6, 8)
OPTION_TYPES |= {
    "BATCH_TO_SPACE_ND": 24,
    "SPACE_TO_BATCH_ND": 25,
    "SUM": 27,
    "REDUCE_MAX": 27,
    "REDUCE_MIN": 27,
    "DIV": 29,
    "SQUEEZE": 30,
    "EXP": 33,
    "SPLIT": 35,
    "LOG_SOFTMAX": 36,
    "ARG_MAX": 40,
    "LESS": 41,
    "NEG": 42,
    "PADV2": 43,
    "SELECT": 47,
    "SLICE": 48,
    "EXPAND_DIMS": 52,
    "EQUAL": 53,
    "PACK": 59,
    "UNPACK": 64,
    "SQUARED_DIFFERENCE": 76,
    "MIRROR_PAD": 77,
    "ABS": 78,
    "ADD_N": 82,
    "DEPTH_TO_SPACE": 94,
    "SELECT_V2": 98,
    "TILE": 51,
    "L2_NORMALIZATION": 12,
}
WINDOW = {"padding": 0, "stride_h": 2, "stride_w": 2, "filter_h": 2, "filter_w": 3}
DENSE = {"padding": 0, "stride_h": 1, "stride_w": 1, "dilation_h": 1, "dilation_w": 1}


@dataclass(frozen=True)
class Single:
    """One operator: the shape of its result, its constant operands of i32, and its options.

    ``x`` counts its quantised operands of the shape ``given``.  ``fine`` is the scale of the result over that of the
    operands (1: the same quantisation); ``fixed`` is a scale and a zero point by type of what has one.
    """

    shape: tuple[int, ...] = IMAGE
    constants: Sequence[Any] = ()
    options: dict[str, Any] = field(default_factory=dict)
    given: tuple[int, ...] = IMAGE
    x: int = 1
    fine: float = 1.0
    fixed: dict[str, tuple[float, int]] = field(default_factory=dict)
    weights: tuple[int, ...] = ()
    axis: int = 0
    to: str = ""


def _fractions(bits_8: tuple[float, int]) -> dict[str, tuple[float, int]]:
    return {"i8": bits_8, "i16": (2.0**-15, 0)}


SINGLES: dict[str, Single] = {
    # products
    "BATCH_MATMUL": Single((2, 4, 4), given=(2, 4, 4), x=2, fine=9),
    "CONV_2D": Single((1, 4, 6, 3), options=DENSE, weights=(3, 3, 3, 8), fine=9),
    "DEPTHWISE_CONV_2D": Single(options={**DENSE, "multiplier": 1}, weights=(1, 3, 3, 8), axis=3, fine=9),
    "FULLY_CONNECTED": Single((4, 3), weights=(3, 8), given=(4, 8), fine=9),
    "TRANSPOSE_CONV": Single(
        (1, 8, 12, 3), [[1, 8, 12, 3]], {"padding": 0, "stride_h": 2, "stride_w": 2}, weights=(3, 3, 3, 8), fine=9
    ),
    # sums, products and comparisons of two tensors
    **{name: Single(x=2, fine=1.3) for name in ("ADD", "SUB", "MUL", "SQUARED_DIFFERENCE", "DIV")},
    **{name: Single(x=2) for name in ("MAXIMUM", "MINIMUM")},
    **{name: Single(x=2, to="bool") for name in ("EQUAL", "LESS")},
    "PRELU": Single(weights=(1, 1, 8), fine=1.3),
    # functions
    **{name: Single(fine=1.3) for name in ("ABS", "ELU", "EXP", "HARD_SWISH", "LOG", "NEG", "RELU", "RELU_N1_TO_1")},
    "RELU6": Single(),
    "LEAKY_RELU": Single(fine=1.3, options={"alpha": 0.2}),
    "LOGISTIC": Single(fixed=_fractions((1 / 256, -128))),
    "TANH": Single(fixed=_fractions((1 / 128, 0))),
    "SOFTMAX": Single(fixed=_fractions((1 / 256, -128)), options={"beta": 1.0}),
    "LOG_SOFTMAX": Single(fixed={"i8": (16 / 256, 127), "i16": (2.0**-11, 0)}),
    "L2_NORMALIZATION": Single(fixed=_fractions((1 / 128, 0))),
    "QUANTIZE": Single(fine=1.3),
    # along axes
    "MEAN": Single((1, 8), [[1, 2]], fine=0.7),
    "SUM": Single((1, 8), [[1, 2]], fine=5),
    **{name: Single((1, 8), [[1, 2]]) for name in ("REDUCE_MAX", "REDUCE_MIN")},
    "ARG_MAX": Single((1, 4, 6), [3], to="i32", options={"output_type": 2}),
    # windows and images
    **{name: Single((1, 2, 3, 8), options=WINDOW) for name in ("AVERAGE_POOL_2D", "MAX_POOL_2D")},
    **{name: Single((1, 7, 9, 8), [[7, 9]]) for name in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")},
    # movement
    "CONCATENATION": Single((1, 4, 6, 16), x=2, options={"axis": 3}),
    "PACK": Single((2, *IMAGE), x=2, options={"count": 2, "values_count": 2}),
    **{name: Single((1, 6, 8, 8), [[[0, 0], [1, 1], [0, 2], [0, 0]]]) for name in ("PAD", "MIRROR_PAD")},
    "RESHAPE": Single((1, 192), [[1, 192]], {"shape": [1, 192]}),
    "TRANSPOSE": Single((1, 8, 4, 6), [[0, 3, 1, 2]]),
    "SLICE": Single((1, 2, 6, 5), [[0, 1, 0, 3], [1, 2, 6, 5]]),
    "STRIDED_SLICE": Single((1, 2, 6, 4), [[0, 0, 0, 0], [1, 4, 6, 8], [1, 2, 1, 2]]),
    "GATHER": Single((1, 4, 3, 8), [[0, 4, 2]], {"axis": 2}),
    "TILE": Single((1, 8, 6, 8), [[1, 2, 1, 1]]),
    "EXPAND_DIMS": Single((1, *IMAGE), [0]),
    "SQUEEZE": Single((4, 6, 8), options={"dims": [0]}),
    "SPACE_TO_DEPTH": Single((1, 2, 3, 32), options={"block_size": 2}),
    "DEPTH_TO_SPACE": Single((1, 8, 12, 2), options={"block_size": 2}),
    "SPACE_TO_BATCH_ND": Single((4, 2, 3, 8), [[2, 2], [[0, 0], [0, 0]]]),
    "BATCH_TO_SPACE_ND": Single(constants=[[2, 2], [[0, 0], [0, 0]]], given=(4, 2, 3, 8)),
}


def single(type: str, dtype: str) -> bytes:
    """A model of one operator on tensors of i8 or i16."""
    s, model, rng = SINGLES[type], Model(), np.random.default_rng(1)
    scale, zero = (0.05, 3) if dtype == "i8" else (0.0003, 0)
    inputs = [model.tensor(f"x{i}", s.given, dtype, scale=[scale], zero=[zero]) for i in range(s.x)]
    constants = [model.constant(f"c{i}", np.array(c, np.int32)) for i, c in enumerate(s.constants)]
    weights = []
    if s.weights:
        outs = s.weights[s.axis]
        one = type == "PRELU" or type == "FULLY_CONNECTED"
        scales = [0.01] if one else [0.01 + 0.001 * i for i in range(outs)]
        data = rng.integers(-127, 128, s.weights).astype(np.int8)
        weights = [model.constant("w", data, scale=scales, axis=s.axis)]
        if type != "PRELU":
            sums = [float(np.float32(scale) * np.float32(each)) for each in scales]
            bias = rng.integers(-900, 900, outs).astype(np.int32 if dtype == "i8" else np.int64)
            weights.append(model.constant("b", bias, scale=sums))
    if s.to:
        y = model.tensor("y", s.shape, s.to)
    elif dtype in s.fixed:
        y = model.tensor("y", s.shape, dtype, scale=[s.fixed[dtype][0]], zero=[s.fixed[dtype][1]])
    else:
        y = model.tensor("y", s.shape, dtype, scale=[scale * s.fine], zero=[zero])
    order = [*inputs, *weights, *constants]
    if type == "TRANSPOSE_CONV":
        order = [*constants, weights[0], *inputs, *weights[1:]]
    model.add(type, order, [y], **s.options)
    return model.bytes(inputs, [y])


def whole_range(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Random integers of the whole range of a type."""
    low, high = limits(dtype)
    return np.random.default_rng(seed).integers(low, high + 1, shape).astype(dtype.numpy)
