"""Operators of com.microsoft compared with ONNX Runtime, and those of QONNX with definitions in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import exact_onnxruntime
from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.formats.decompositions.onnx.contrib import DOMAINS, MICROSOFT, RUNTIME, SAME
from tenon.formats.decompositions.onnx.qonnx import QONNX
from tenon.network.graph.graph import Array

RNG = np.random.default_rng(7)
U8, I8, I32 = np.uint8, np.int8, np.int32


def f(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def whole(kind: Any, *shape: int) -> Array:
    limits = np.iinfo(kind)
    return RNG.integers(limits.min, limits.max + 1, shape).astype(kind)


def step(value: float) -> Array:
    return np.array(value, np.float32)


def zero(value: int, kind: Any = U8) -> Array:
    return np.array(value, kind)


@dataclass
class Case:
    """An operator on these inputs; those in ``constants`` are initializers."""

    type: str
    inputs: Sequence[Array | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: Sequence[str] = ("y",)
    constants: Sequence[int] = ()
    domain: str = "com.microsoft"
    tolerance: float = 2e-6

    @property
    def feeds(self) -> dict[str, Array]:
        return {f"i{k}": a for k, a in enumerate(self.inputs) if a is not None and k not in self.constants}

    def model(self) -> onnx.ModelProto:
        names = [f"i{k}" if a is not None else "" for k, a in enumerate(self.inputs)]
        node = helper.make_node(self.type, names, self.outputs, name="n", domain=self.domain, **self.attributes)
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in self.feeds.items()
        ]
        graph = helper.make_graph(
            [node],
            "g",
            inputs,
            [helper.make_empty_tensor_value_info(name) for name in self.outputs if name],
            [numpy_helper.from_array(np.asarray(self.inputs[k]), f"i{k}") for k in self.constants],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(self.domain or "ai.onnx", 1 if self.domain else 17)]
        return helper.make_model(graph, opset_imports=opsets[: 2 if self.domain else 1], ir_version=8)


def ours(case: Case) -> list[Array]:
    """The outputs of the file, cut to their extents."""
    graph = importers.load(case.model().SerializeToString())
    results = evaluate(graph, case.feeds)
    for name, ((axis, count),) in graph.extents.items():
        results[name] = np.take(results[name], np.arange(int(results[count])), axis)
    return [results[name] for name in case.outputs if name in results]


def theirs(case: Case) -> list[Array]:
    """ONNX Runtime's result with one thread: with more, DynamicQuantizeLSTM quantises parts of a batch separately."""
    import onnxruntime as rt

    options = rt.SessionOptions()
    options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = rt.InferenceSession(case.model().SerializeToString(), options)
    return [np.asarray(a) for a in session.run(None, case.feeds)]


# ------------------------------------------------------------------------------------------------- floats
X, G = f(2, 3, 8) * 3, f(8)
IDS, SEGMENTS = (whole(U8, 2, 4).astype(I32) % n for n in (10, 2))
EMBEDDED = (IDS, SEGMENTS, f(10, 8), f(6, 8), f(2, 8), G, f(8))
MASK = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], I32)
POSITIONS = np.array([[3, 2, 1, 0], [0, 0, 1, 2]], I32)
PICTURE = (f(1, 3, 6, 6), f(4, 3, 3, 3), f(4))
SAME_PADS = {"pads": [1, 1, 1, 1], "kernel_shape": [3, 3]}

FLOATS: dict[str, Case] = {
    "gelu": Case("Gelu", [X]),
    "bias gelu": Case("BiasGelu", [X, f(8)]),
    "fast gelu": Case("FastGelu", [X]),
    "fast gelu bias": Case("FastGelu", [X, f(8)]),
    "quick gelu": Case("QuickGelu", [X]),
    "quick gelu alpha": Case("QuickGelu", [X], {"alpha": 1.2}),
    **{
        f"fused matmul {a}{b}": Case(
            "FusedMatMul",
            [f(2, 4, 3) if a else f(2, 3, 4), f(2, 5, 4) if b else f(2, 4, 5)],
            {"transA": a, "transB": b, "alpha": 0.5},
        )
        for a in (0, 1)
        for b in (0, 1)
    },
    "fused matmul batch a": Case("FusedMatMul", [f(3, 2, 4), f(2, 4, 5)], {"transBatchA": 1}),
    "fused matmul batch and a": Case("FusedMatMul", [f(4, 2, 3), f(2, 4, 5)], {"transBatchA": 1, "transA": 1}),
    "fused matmul batch and b": Case("FusedMatMul", [f(2, 3, 4), f(5, 2, 4)], {"transBatchB": 1, "transB": 1}),
    "fused matmul batches": Case("FusedMatMul", [f(3, 2, 6, 4), f(2, 6, 4, 5)], {"transBatchA": 1}),
    **{
        f"fused conv {name}": Case(
            "FusedConv", PICTURE, {"activation": name, **({"activation_params": p} if p else {}), **SAME_PADS}
        )
        for name, p in {
            "Relu": [],
            "Tanh": [],
            "Sigmoid": [],
            "LeakyRelu": [0.1],
            "Clip": [-0.2, 0.3],
            "HardSigmoid": [0.3, 0.4],
        }.items()
    },
    "fused conv sum": Case("FusedConv", [*PICTURE, f(1, 4, 6, 6)], {"activation": "Relu", **SAME_PADS}),
    **{
        f"fused gemm {name}": Case(
            "FusedGemm", [f(3, 4), f(5, 4), f(5)], {"activation": name, "transB": 1, "alpha": 0.7, "beta": 0.3, **p}
        )
        for name, p in {"Relu": {}, "Tanh": {}, "LeakyRelu": {"activation_alpha": 0.1}}.items()
    },
    **{
        f"skip layer norm {len(shape)} {shape[0]}": Case(
            "SkipLayerNormalization", [X, f(*shape), G, f(8), f(8)], {"epsilon": 1e-5}, ("y", "", "", "s")
        )
        for shape in ((2, 3, 8), (1, 3, 8), (3, 8))
    },
    "skip layer norm plain": Case("SkipLayerNormalization", [X, X * 0.3, G]),
    "skip simplified": Case("SkipSimplifiedLayerNormalization", [X, X * 0.4, G, f(8)], outputs=("y", "", "", "s")),
    "skip simplified epsilon": Case("SkipSimplifiedLayerNormalization", [X, X * 0.4, G], {"epsilon": 0.01}),
    "simplified": Case("SimplifiedLayerNormalization", [X, G], {"epsilon": 1e-3}, domain=""),
    **{
        f"embeddings {mask is None} {at is None}": Case(
            "EmbedLayerNormalization", [*EMBEDDED, mask, at], {"epsilon": 1e-6}, ("y", "m", "e")
        )
        for mask in (None, MASK)
        for at in (None, POSITIONS)
    },
    "embeddings without segments": Case(
        "EmbedLayerNormalization", [IDS, None, *EMBEDDED[2:4], None, G, f(8)], outputs=("y", "m")
    ),
}

BITS: dict[str, Case] = {}
for bits in (2, 4, 8):
    packed = whole(U8, 6, 2, 4 * bits)
    for label, point in (("", None), (" zero", whole(U8, 6 * -(-2 * bits // 8))), (" floats", f(6, 2) * 3 + 8)):
        if bits < 8 or label != " floats":  # not implemented in ONNX Runtime
            BITS[f"matmul {bits} bits{label}"] = Case(
                "MatMulNBits",
                [f(2, 3, 40), packed, f(12) + 2, point],
                {"N": 6, "K": 40, "bits": bits, "block_size": 32},
                constants=(1, 2, 3) if label else (1, 2),
            )


def in_bytes(bits: int, block: int, *, zeros: bool) -> Case:
    """A product of activations in 8 bits: ONNX Runtime rounds them in blocks as well, so that both differ by that."""
    count, rng = 128 // block, np.random.default_rng(bits * block)
    points = rng.integers(0, 256, 6 * -(-count * bits // 8), U8) if zeros else None
    x, scales = rng.uniform(-1, 1, (2, 128)), rng.uniform(-0.05, 0.05, 6 * count)
    codes = rng.integers(0, 256, (6, count, block * bits // 8), U8)
    data = [x.astype(np.float32), codes, scales.astype(np.float32), points]
    attributes = {"N": 6, "K": 128, "bits": bits, "block_size": block, "accuracy_level": 4}
    return Case("MatMulNBits", data, attributes, constants=(1, 2, 3) if zeros else (1, 2), tolerance=0.02)


BITS |= {
    "matmul 4 bits by bytes": in_bytes(4, 32, zeros=False),
    "matmul 4 bits by bytes zero": in_bytes(4, 64, zeros=True),
    "matmul 8 bits by bytes": in_bytes(8, 128, zeros=False),
    "matmul 8 bits by bytes zero": in_bytes(8, 32, zeros=True),
}

# --------------------------------------------------------------------------------------------- attention
B, S, D, N, P = 2, 4, 12, 3, 3
PROJECTED = (f(B, S, D), f(D, 3 * D), f(3 * D))
PAST, PASTS = f(2, B, N, P, D // N), (f(B, N, P, D // N), f(B, N, P, D // N))
Q, K, V = f(B, S, D), f(B, 5, D), f(B, 5, D)
MASKS: dict[str, Array | None] = {
    "": None,
    " mask": MASK,
    " lengths": np.array([3, 2], I32),
    " begins": np.array([3, 4, 1, 0], I32),
    " mask of pairs": np.concatenate([np.ones((B, S, 1), I32), whole(U8, B, S, S - 1).astype(I32) % 2], 2),
}
EIGHT_BITS = (whole(U8, B, S, D), whole(I8, D, 3 * D), f(3 * D), step(0.01), step(0.02))

ATTENTIONS: dict[str, Case] = {
    **{
        f"attention{name}{' causal' if causal else ''}": Case(
            "Attention", [*PROJECTED, mask], {"num_heads": N, "unidirectional": causal}, ("y", "present")
        )
        for name, mask in MASKS.items()
        for causal in (0, 1)
    },
    **{
        f"attention past {causal}": Case(
            "Attention", [*PROJECTED, None, PAST], {"num_heads": N, "unidirectional": causal}, ("y", "present")
        )
        for causal in (0, 1)
    },
    "attention past and mask": Case(
        "Attention",
        [*PROJECTED, np.concatenate([np.ones((B, P), I32), MASK], 1), PAST],
        {"num_heads": N},
        ("y", "present"),
    ),
    "attention scores": Case("Attention", [*PROJECTED, None, None, f(B, N, S, S)], {"num_heads": N, "scale": 0.3}),
    "attention shared scores": Case("Attention", [*PROJECTED, None, None, f(1, N, S, S)], {"num_heads": N}),
    "attention sizes": Case("Attention", [Q, f(D, 21), f(21), MASK], {"num_heads": N, "qkv_hidden_sizes": [6, 6, 9]}),
    "attention filter": Case("Attention", [*PROJECTED, MASK], {"num_heads": N, "mask_filter_value": -5.0}),
    "heads": Case("MultiHeadAttention", [Q, K, V], {"num_heads": N}),
    "heads bias": Case("MultiHeadAttention", [Q, K, V, f(3 * D)], {"num_heads": N}),
    "heads mask": Case(
        "MultiHeadAttention", [Q, K, V, None, np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], I32)], {"num_heads": N}
    ),
    "heads lengths": Case("MultiHeadAttention", [Q, K, V, None, np.array([4, 2], I32)], {"num_heads": N}),
    "heads mask of pairs": Case(
        "MultiHeadAttention",
        [Q, K, V, None, np.ones((B, S, 5), I32) * np.array([1, 1, 0, 1, 1], I32)],
        {"num_heads": N},
    ),
    "heads scores": Case("MultiHeadAttention", [Q, K, V, None, None, f(B, N, S, 5)], {"num_heads": N, "scale": 0.4}),
    "heads shared scores": Case("MultiHeadAttention", [Q, K, V, None, None, f(1, 1, S, 5)], {"num_heads": N}),
    **{
        f"heads past {causal}": Case(
            "MultiHeadAttention",
            [Q, Q * 0.5, Q * 2, None, None, None, *PASTS],
            {"num_heads": N, "unidirectional": causal},
            ("y", "k", "v"),
        )
        for causal in (0, 1)
    },
    "heads causal": Case("MultiHeadAttention", [Q, Q * 0.5, Q * 2], {"num_heads": N, "unidirectional": 1}),
    "heads apart": Case("MultiHeadAttention", [Q, f(B, N, 5, 4), f(B, N, 5, 4)], {"num_heads": N}),
    "heads wide values": Case("MultiHeadAttention", [Q, K, f(B, 5, 15), f(2 * D + 15)], {"num_heads": N}),
    "q attention": Case("QAttention", [*EIGHT_BITS, MASK, zero(120), zero(0, I8)], {"num_heads": N}),
    "q attention u8": Case(
        "QAttention",
        [EIGHT_BITS[0], whole(U8, D, 3 * D), *EIGHT_BITS[2:], None, zero(120), zero(128)],
        {"num_heads": N},
    ),
    "q attention columns": Case(
        "QAttention",
        [*EIGHT_BITS[:4], np.abs(f(3 * D)) * 0.02, None, zero(120), whole(I8, 3 * D) // 8],
        {"num_heads": N},
    ),
    "q attention past": Case(
        "QAttention",
        [*EIGHT_BITS, None, zero(120), zero(0, I8), PAST],
        {"num_heads": N, "unidirectional": 1},
        ("y", "present"),
    ),
}


# -------------------------------------------------------------------------------------------- eight bits
def of_eight_bits(kind: Any) -> dict[str, Case]:
    """The quantised operators on unsigned or signed integers."""
    points = (120, 100, 90) if kind is U8 else (3, -5, 7)
    a, b, c = (zero(p, kind) for p in points)
    low = zero(0 if kind is U8 else -128, kind)
    first, second = [whole(kind, 2, 3, 4), step(0.05), a], [whole(kind, 2, 3, 4), step(0.03), b]
    result = [step(0.0713), c]  # chosen so that no sum is a tie
    image, last = [whole(kind, 2, 3, 5, 6), step(0.05), a], [whole(kind, 2, 5, 6, 3), step(0.05), a]
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    weights = [whole(I8, 4, 3, 3, 3), np.array([0.01, 0.02, 0.03, 0.04], np.float32), np.zeros(4, I8)]
    bias = RNG.integers(-100, 100, 5).astype(I32)
    return {
        "add": Case("QLinearAdd", [*first, *second, *result]),
        "add broadcast": Case("QLinearAdd", [*first, whole(kind, 4), *second[1:], *result]),
        "mul": Case("QLinearMul", [*first, *second, step(0.04), c]),
        "leaky relu": Case("QLinearLeakyRelu", [*first, *result], {"alpha": 0.1}),
        "sigmoid": Case("QLinearSigmoid", [*first, step(1 / 256), low]),
        "softmax": Case("QLinearSoftmax", [*first, step(1 / 256), low], {"axis": -1, "opset": 13}),
        "softmax of old": Case("QLinearSoftmax", [*first, step(1 / 256), low], {"axis": 1, "opset": 12}),
        "where": Case("QLinearWhere", [whole(U8, 2, 3, 4) > 128, *first, *second, *result]),
        "concat": Case("QLinearConcat", [*result, *first, whole(kind, 2, 2, 4), step(0.09), b], {"axis": 1}),
        "global pool": Case("QLinearGlobalAveragePool", [*image, *result]),
        "global pool last": Case("QLinearGlobalAveragePool", [*last, *result], {"channels_last": 1}),
        **{
            f"pool {sorted(k)}": Case("QLinearAveragePool", [*image, *result], {**window, **k})
            for k in ({}, {"pads": [1, 1, 1, 1]}, {"pads": [1, 1, 1, 1], "count_include_pad": 1}, {"ceil_mode": 1})
        },
        "pool last": Case("QLinearAveragePool", [*last, *result], {**window, "channels_last": 1}),
        "max pool last": Case("NhwcMaxPool", [last[0]], {**window, "pads": [0, 0, 1, 1]}),
        "conv": Case("QLinearConv", [*image, *weights, *result, bias[:4]], {**SAME_PADS, "channels_last": 0}),
        "conv last": Case("QLinearConv", [*last, *weights, *result, bias[:4]], {**SAME_PADS, "channels_last": 1}),
        **{
            f"gemm {turned} {name}": Case(
                "QGemm",
                [whole(kind, 3, 4), step(0.02), a, whole(kind, *((5, 4) if turned else (4, 5))), *scale, *rest],
                {"transB": turned, "alpha": 0.8},
            )
            for turned in (0, 1)
            for name, scale, rest in (
                ("", [step(0.03), b], [bias, step(0.5), c]),
                ("float", [step(0.03), b], [bias]),
                ("columns", [f(5) + 2, whole(kind, 5)], [None, step(9.0), c]),
            )
        },
        "dynamic matmul": Case("DynamicQuantizeMatMul", [f(2, 3, 4), whole(kind, 4, 5), step(0.02), a, f(5)]),
        "dynamic matmul columns": Case(
            "DynamicQuantizeMatMul", [f(2, 3, 4), whole(kind, 4, 5), f(5) + 2, whole(kind, 5)], tolerance=1e-3
        ),
        "dynamic matmul of zeros": Case(
            "DynamicQuantizeMatMul", [np.zeros((2, 4), np.float32), whole(kind, 4, 5), step(0.02), a]
        ),
        "matmul to float": Case(
            "MatMulIntegerToFloat",
            [whole(U8, 2, 3, 4), whole(kind, 4, 5), step(0.02), step(0.03), zero(120), a, f(5)],
            tolerance=1e-4,
        ),
        "matmul to float columns": Case(
            "MatMulIntegerToFloat",
            [whole(U8, 3, 4), whole(kind, 4, 5), step(0.02), f(5) + 2, zero(120), whole(kind, 5)],
            tolerance=1e-2,
        ),
        "quantize": Case("QuantizeLinear", [f(2, 3, 4) * 5, step(0.05), a]),
        "quantize axis": Case("QuantizeLinear", [f(2, 3, 4) * 5, f(3) + 2, whole(kind, 3)], {"axis": 1}),
        "dequantize": Case("DequantizeLinear", first),
        "dequantize axis": Case("DequantizeLinear", [first[0], f(3) + 2, whole(kind, 3)], {"axis": 1}, tolerance=1e-4),
        **{
            f"lstm {direction} {columns}": lstm(kind, direction, columns)
            for direction in ("forward", "reverse", "bidirectional")
            for columns in (False, True)
        },
    }


def lstm(kind: Any, direction: str, columns: bool) -> Case:
    sides, size, length, batch, hidden = 1 + (direction == "bidirectional"), 5, 6, 2, 4
    shape = (sides, 4 * hidden) if columns else (sides,)
    scales = [np.abs(f(*shape)) * 0.005 + 0.005 for _ in range(2)]
    point = np.full(shape, 128 if kind is U8 else 0, kind)
    w, r = whole(kind, sides, size, 4 * hidden), whole(kind, sides, hidden, 4 * hidden)
    state = (f(sides, batch, hidden), f(sides, batch, hidden))
    return Case(
        "DynamicQuantizeLSTM",
        [f(length, batch, size), w, r, f(sides, 8 * hidden), None, *state, None, scales[0], point, scales[1], point],
        {"hidden_size": hidden, "direction": direction},
        ("y", "h", "c"),
        (1, 2, 8, 9, 10, 11),
    )


BOXES = np.array([[0.1, 0.2, 0.8, 0.7], [0, 0, 1, 1], [-0.3, 0.1, 0.6, 1.4], [0.9, 0.8, 0.1, 0.05]], np.float32)
IMAGES = np.array([0, 1, 1, 0], I32)
TABLES = (f(7, 2), f(7, 2))
PLACES = np.array([[0, 3, 6], [2, 1, 5]])
MATRICES = f(2, 3, 5, 5) + 0.1 * np.eye(5, dtype=np.float32)

TENSOR_CASES: dict[str, Case] = {
    **{
        f"crops {mode} {size}": Case(
            "CropAndResize",
            [f(2, 3, 6, 7), BOXES, IMAGES, np.array(size, I32)],
            {"mode": mode, "extrapolation_value": 0.5},
            constants=(3,),
            tolerance=1e-5,
        )
        for mode in ("bilinear", "nearest")
        for size in ((3, 4), (1, 5), (11, 1))
    },
    "expand dims": Case("ExpandDims", [f(2, 3), np.array(1, I32)], constants=(1,)),
    "expand dims last": Case("ExpandDims", [f(2, 3), np.array(-1, I32)], constants=(1,)),
    "inverse": Case("Inverse", [MATRICES], tolerance=1e-4),
    "inverse, swapped": Case("Inverse", [np.array([[0, 2, 0], [0, 0, 4], [1, 0, 0]], np.float32)]),
    "squared distances": Case("CDist", [f(5, 3), f(4, 3)]),
    "distances": Case("CDist", [f(5, 3), f(4, 3)], {"metric": "euclidean"}),
    "unique": Case("Unique", [np.array([3, 1, 3, 2, 1, 3], np.float32)], outputs=("y", "at", "count")),
    **{
        f"rotary {interleaved} {rank}": Case("RotaryEmbedding", [x, PLACES, *TABLES], {"interleaved": interleaved})
        for interleaved in (0, 1)
        for rank, x in ((4, f(2, 2, 3, 4)), (3, f(2, 3, 8)))
    },
    "rotary in part": Case(
        "RotaryEmbedding", [f(2, 3, 12), PLACES, *TABLES], {"num_heads": 2, "rotary_embedding_dim": 4}
    ),
    "rotary from": Case("RotaryEmbedding", [f(2, 3, 8), np.array([2]), *TABLES]),
}
CASES = {
    **TENSOR_CASES,
    **FLOATS,
    **BITS,
    **ATTENTIONS,
    **{f"{name} u8": case for name, case in of_eight_bits(U8).items()},
    **{f"{name} i8": case for name, case in of_eight_bits(I8).items()},
    "quantize 16": Case("QuantizeLinear", [f(2, 3) * 5, step(0.0005), zero(300, np.uint16)]),
    "dequantize 16": Case("DequantizeLinear", [whole(np.uint16, 2, 3), step(0.0005), zero(300, np.uint16)]),
    "matmul 16": Case("MatMulInteger16", [whole(np.int16, 3, 4) // 100, whole(np.int16, 4, 5) // 100]),
    "trilu": Case("Trilu", [f(4, 4)], {"upper": 0}),
    "pad": Case("Pad", [f(2, 3), np.array([0, 1, 0, 2]), step(0.5)], {"mode": "constant"}, constants=(1, 2)),
    "grid sample": Case("GridSample", [f(1, 2, 4, 4), f(1, 3, 3, 2)], {"mode": "bilinear", "align_corners": 1}),
    "gather nd": Case("GatherND", [f(3, 4), np.array([[0, 1], [2, 3]])]),
}


GROUPED = np.random.default_rng(8)
ANGLES = GROUPED.uniform(0, 3, (16, 8))
TURNS = [np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)]


def grouped(length: int, past: int, **attributes: Any) -> Case:
    """Grouped attention of 4 heads with keys of 2."""

    def own(*shape: int) -> Array:
        return GROUPED.uniform(-1, 1, shape).astype(np.float32)

    caches = [own(1, 2, past, 16), own(1, 2, past, 16)]
    sizes = [np.array([past + length - 1], I32), np.array([past + length], I32)]
    queries: list[Array | None] = [own(1, length, 64), own(1, length, 32), own(1, length, 32)]
    if attributes.pop("packed", False):
        queries = [own(1, length, 128), None, None]
    turns = TURNS if attributes.get("do_rotary") else [None, None]
    flags = {"num_heads": 4, "kv_num_heads": 2, **attributes}
    return Case("GroupQueryAttention", [*queries, *caches, *sizes, *turns], flags, ("y", "k", "v"), (6,))


CASES |= {
    "grouped attention": grouped(1, 5, do_rotary=1),
    "grouped attention of a prompt": grouped(4, 0, do_rotary=1, rotary_interleaved=1, packed=True),
    "grouped attention in a window": grouped(1, 5, local_window_size=3, scale=0.3),
    "grouped attention with a cap": grouped(3, 0, softcap=2.0),
}

OF_BYTES = frozenset(
    {"q attention", "q attention columns", "q attention past", "conv u8", "conv last u8", "dynamic matmul columns i8"}
    | {"matmul to float columns i8"}
    | {f"lstm {way} {shape} i8" for way in ("forward", "reverse", "bidirectional") for shape in (False, True)}
)
"""Cases of products of u8 and i8 in kernels of ONNX Runtime that saturate on some processors."""


@pytest.mark.parametrize("name", CASES)
def test_operators_match_onnxruntime(name: str) -> None:
    if name in OF_BYTES and exact_onnxruntime.saturates():
        pytest.skip(exact_onnxruntime.SATURATING)
    case = CASES[name]
    outputs, expected = ours(case), theirs(case)
    assert len(outputs) == len(expected)
    for a, b in zip(outputs, expected, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        scale = max(1.0, float(np.abs(b.astype(np.float64)).max(initial=0))) if a.dtype.kind == "f" else 1.0
        gap = np.abs(a.astype(np.float64) - b.astype(np.float64))
        assert gap.max(initial=0) <= case.tolerance * scale


def test_every_microsoft_operator_has_a_case() -> None:
    aliases = {"TransposeMatMul"}  # an older name of FusedMatMul
    assert {case.type for case in CASES.values()} == {*MICROSOFT, *RUNTIME, *SAME} - aliases


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("SparseAttention", [Q, K, V]), "SparseAttention of the domain 'com.microsoft' is not supported"),
        (Case("GroupQueryAttention", [Q, K, V], {"num_heads": 2, "kv_num_heads": 2}), "a batch of 2 sequences"),
        (Case("QLinearAddd", [Q]), "the nearest that is: QLinearAdd"),
        (Case("Attention", PROJECTED, {"num_heads": N, "do_rotary": 1}), "rotary"),
        (Case("MultiHeadAttention", [f(B, S, N, 3, 4)], {"num_heads": N}), "in one tensor"),
        (Case("MultiHeadAttention", [Q, f(B, 5, N, 2, 4)], {"num_heads": N}), "in one tensor"),
        (Case("FusedConv", PICTURE, {"activation": "Mine"}), "the fused activation Mine"),
        (
            Case("MatMulNBits", [f(3, 40), whole(U8, 6, 2, 16), f(12)], {"N": 6, "K": 40, "bits": 4, "block_size": 32}),
            r"fix --value i1=\.\.\.",
        ),
        (Case("MultiThreshold", [Q], domain="qonnx.custom_op.general"), "MultiThreshold of the domain 'qonnx"),
        (
            Case(
                "Quant",
                [Q, step(1), step(0), step(4)],
                {"rounding_mode": "MINE"},
                constants=(1, 2, 3),
                domain="qonnx.custom_op.general",
            ),
            "the rounding mode MINE",
        ),
    ],
)
def test_unsupported_forms_are_rejected(case: Case, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        ours(case)


# --------------------------------------------------------------------------------------------------- QONNX
def nearest(x: Array, away: bool) -> Array:
    """To the nearest integer, ties away from zero or towards it."""
    low = np.floor(np.abs(x))
    half = np.abs(x) - low
    return np.asarray(np.sign(x) * (low + ((half > 0.5) | ((half == 0.5) & away))))


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "ROUND": np.rint,
    "HALF_EVEN": np.rint,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "DOWN": np.trunc,
    "UP": lambda x: np.where(x < 0, np.floor(x), np.ceil(x)),
    "HALF_UP": lambda x: nearest(x, True),
    "HALF_DOWN": lambda x: nearest(x, False),
}
HALVES = np.concatenate([np.arange(-20, 21) * np.float32(0.25), [-300, 300]]).astype(np.float32)


def integers(bits: int, signed: int, narrow: int) -> range:
    """The integer range of ``bits`` bits."""
    if signed:
        return range(-(2 ** (bits - 1)) + narrow, 2 ** (bits - 1))
    return range(2**bits - narrow)


def qonnx(type: str, *inputs: Array, domain: str = "qonnx.custom_op.general", **attributes: Any) -> Array:
    (output,) = ours(Case(type, inputs, attributes, constants=range(1, len(inputs)), domain=domain))
    return output


@pytest.mark.parametrize("mode", ROUNDINGS)
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_quant(bits: int, mode: str) -> None:
    for signed in (0, 1):
        for narrow in (0, 1):
            held = integers(bits, signed, narrow)
            for point in (0.0, 1.0):
                y = np.clip(HALVES / np.float32(0.5) + np.float32(point), held[0], held[-1])
                expected = (ROUNDINGS[mode](y) - np.float32(point)) * np.float32(0.5)
                for type, domain in (("Quant", "onnx.brevitas"), ("IntQuant", "qonnx.custom_op.general")):
                    output = qonnx(
                        type,
                        HALVES,
                        step(0.5),
                        step(point),
                        step(bits),
                        domain=domain,
                        signed=signed,
                        narrow=narrow,
                        rounding_mode=mode.lower() if signed else mode,
                    )
                    np.testing.assert_array_equal(output, expected)


def test_quant_per_channel_and_of_one_bit() -> None:
    x, scale = f(2, 3, 4) * 4, np.abs(f(1, 3, 1)) + np.float32(0.1)
    output = qonnx("Quant", x, scale, step(0), step(4), signed=1, narrow=0)
    np.testing.assert_array_equal(output, np.rint(np.clip(x / scale, -8, 7)) * scale)
    np.testing.assert_array_equal(
        qonnx("Quant", HALVES, step(0.5), step(0), step(1), signed=1, narrow=0), np.where(HALVES >= 0, 0.5, -0.5)
    )
    np.testing.assert_array_equal(
        qonnx("BipolarQuant", HALVES, step(0.3)), np.where(HALVES >= 0, step(0.3), step(-0.3))
    )


@pytest.mark.parametrize("mode", ROUNDINGS)
def test_trunc(mode: str) -> None:
    x, point = np.arange(-130, 131).astype(np.float32) * np.float32(0.5), step(2)
    whole_numbers = np.rint(x / np.float32(0.5) + point)
    expected = (ROUNDINGS[mode](whole_numbers / 4) - point) * np.float32(0.5)
    output = qonnx("Trunc", x, step(0.5), point, step(8), step(6), rounding_mode=mode)
    np.testing.assert_array_equal(output, expected)
    for signed in (0, 1):
        held = integers(5, signed, 0)
        cut = np.clip(whole_numbers / 4, held[0], held[-1])
        expected = np.asarray((ROUNDINGS[mode](cut) - point / 4) * np.float32(2))
        output = qonnx(
            "Trunc", x, step(0.5), point, step(8), step(2), step(5), rounding_mode=mode, signed=signed, narrow=0
        )
        np.testing.assert_array_equal(output, expected)


def test_every_qonnx_operator_has_a_case() -> None:
    assert set(QONNX) == {"BipolarQuant", "IntQuant", "Quant", "Trunc"}
    assert {domain for domain, table in DOMAINS.items() if table is QONNX} == {
        "qonnx.custom_op.general",
        "onnx.brevitas",
        "finn.custom_op.general",
    }
