#!/usr/bin/env python3
"""Time dynamically quantised models against onnxruntime, one thread, interleaved.

    python bench/dynamic.py [NAME ...] [--repeat N] [--hidden N] [--tokens N] [--blocks N]

NAME are operators of ONNX and com.microsoft whose scales and zero points are known at run time, as ``quantize_dynamic``
writes them, and "encoder", a transformer encoder as BERT's, which onnxruntime's ``quantize_dynamic`` quantises.
Prints milliseconds (minimum, median) of Tenon, onnxruntime, and of Tenon on the same model in f32, the ratio of
onnxruntime's time to Tenon's, and the largest difference of both results relative to their largest magnitude.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from integers import interleaved
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import tenon
from tenon.machine.targets import find
from tenon.machine.targets.host_cpu import model as processor
from tenon.runtime.engine.compare import relative_error

Node = onnx.NodeProto
Array = np.ndarray[Any, Any]
node = helper.make_node
rng = np.random.default_rng(0)


@dataclass(frozen=True)
class Pair:
    """A quantised model, the same one in f32 (if there is one), and what both are run on."""

    quantised: bytes
    floats: bytes | None
    feeds: dict[str, Array]


def graph(nodes: list[Node], feeds: dict[str, Array], constants: dict[str, Array], outputs: str = "y:1") -> bytes:
    """A model of these nodes; outputs are names and element types."""
    made = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                     for n, a in feeds.items()],
        [helper.make_tensor_value_info(n, int(t), None) for n, t in (o.split(":") for o in outputs.split())],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(made, opset_imports=opsets, ir_version=8).SerializeToString()  # type: ignore[no-any-return]


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def weights(*shape: int, dtype: type = np.int8) -> Array:
    whole = rng.integers(-60, 60, shape)
    return (whole + (128 if dtype is np.uint8 else 0)).astype(dtype)


QUANTISE = node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
SCALED = [node("Cast", ["i"], ["c"], to=1), node("Mul", ["s", "ws"], ["sw"]), node("Mul", ["c", "sw"], ["y"])]
STEP = np.array(0.01, np.float32)


def quantise_linear() -> Pair:
    feeds = {"x": normal(128, 768)}
    return Pair(graph([QUANTISE], feeds, {}, "q:2 s:1 z:2"), None, feeds)


def conv_integer() -> Pair:
    feeds, w = {"x": normal(1, 32, 32, 48)}, weights(64, 32, 3, 3, dtype=np.uint8)
    product = node("ConvInteger", ["q", "w", "z", "wz"], ["i"], pads=[1] * 4)
    real = (w.astype(np.float32) - 128) * STEP
    return Pair(
        graph([QUANTISE, product, *SCALED], feeds, {"w": w, "wz": np.array(128, np.uint8), "ws": STEP}),
        graph([node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], feeds, {"w": real}), feeds,
    )  # fmt: skip


def conv_depthwise() -> Pair:
    feeds, w = {"x": normal(1, 64, 32, 32)}, weights(64, 1, 3, 3, dtype=np.uint8)
    product = node("ConvInteger", ["q", "w", "z", "wz"], ["i"], pads=[1] * 4, group=64)
    real = (w.astype(np.float32) - 128) * STEP
    return Pair(
        graph([QUANTISE, product, *SCALED], feeds, {"w": w, "wz": np.array(128, np.uint8), "ws": STEP}),
        graph([node("Conv", ["x", "w"], ["y"], pads=[1] * 4, group=64)], feeds, {"w": real}), feeds,
    )  # fmt: skip


def mat_mul_integer(rows: int = 16, dtype: type = np.int8, zero: int = 0) -> Pair:
    feeds, w = {"x": normal(rows, 512)}, weights(512, 512, dtype=dtype)
    product = node("MatMulInteger", ["q", "w", "z", "wz"], ["i"])
    real = (w.astype(np.float32) - zero) * STEP
    return Pair(
        graph([QUANTISE, product, *SCALED], feeds, {"w": w, "wz": np.array(zero, dtype), "ws": STEP}),
        graph([node("MatMul", ["x", "w"], ["y"])], feeds, {"w": real}), feeds,
    )  # fmt: skip


def mat_mul_at_run_time() -> Pair:
    """Both operands are computed at run time."""
    feeds = {"x": normal(8, 128, 64), "v": normal(8, 64, 128)}
    nodes = [
        QUANTISE, node("DynamicQuantizeLinear", ["v"], ["p", "ws", "wz"]),
        node("MatMulInteger", ["q", "p", "z", "wz"], ["i"]), *SCALED,
    ]  # fmt: skip
    return Pair(graph(nodes, feeds, {}), graph([node("MatMul", ["x", "v"], ["y"])], feeds, {}), feeds)


def to_float() -> Pair:
    """MatMulIntegerToFloat: scales of columns, and a bias."""
    feeds, w = {"x": normal(64, 256)}, weights(256, 512)
    scales, b = np.full(512, STEP), normal(512)
    product = node("MatMulIntegerToFloat", ["q", "w", "s", "ws", "z", "", "b"], ["y"], domain="com.microsoft")
    return Pair(
        graph([QUANTISE, product], feeds, {"w": w, "ws": scales, "b": b}),
        graph([node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])], feeds, {"w": w * STEP, "b": b}),
        feeds,
    )  # fmt: skip


def quantise_mat_mul() -> Pair:
    """DynamicQuantizeMatMul."""
    feeds, w, b = {"x": normal(64, 256)}, weights(256, 512), normal(512)
    product = node("DynamicQuantizeMatMul", ["x", "w", "ws", "", "b"], ["y"], domain="com.microsoft")
    return Pair(
        graph([product], feeds, {"w": w, "ws": np.full(512, STEP), "b": b}),
        graph([node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])], feeds, {"w": w * STEP, "b": b}),
        feeds,
    )  # fmt: skip


def lstm(hidden: int = 256, steps: int = 20) -> Pair:
    """DynamicQuantizeLSTM."""
    feeds, step = {"x": normal(steps, 1, hidden)}, np.full(1, 0.004, np.float32)
    w, r, b = weights(1, hidden, 4 * hidden), weights(1, hidden, 4 * hidden), normal(1, 8 * hidden) * np.float32(0.1)
    names = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]
    zero = np.zeros(1, np.int8)
    real = [np.ascontiguousarray((a * step).transpose(0, 2, 1)) for a in (w, r)]
    return Pair(
        graph([node("DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=hidden)], feeds,
              {"w": w, "r": r, "b": b, "ws": step, "wz": zero, "rs": step, "rz": zero}),
        graph([node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=hidden)], feeds,
              {"w": real[0], "r": real[1], "b": b}),
        feeds,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ encoder
def _block(i: int, hidden: int, heads: int, tokens: int, constants: dict[str, Array]) -> list[Node]:
    """Attention and two dense layers, each added to what it reads and normalised: t{i} to t{i + 1}."""
    nodes: list[Node] = []

    def constant(name: str, data: Array) -> str:
        constants[f"{name}{i}"] = data
        return f"{name}{i}"

    def add(kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        nodes.append(node(kind, inputs, [f"{name}{i}"], f"{name}{i}", **attributes))
        return f"{name}{i}"

    def dense(x: str, name: str, m: int, n: int) -> str:
        product = add("MatMul", [x, constant(f"{name}_w", normal(m, n) / np.float32(m) ** 0.5)], f"{name}_m")
        return add("Add", [product, constant(f"{name}_b", normal(n) * np.float32(0.1))], name)

    def normalised(x: str, name: str) -> str:
        scale, bias = constant(f"{name}_s", 1 + normal(hidden) * np.float32(0.1)), constant(f"{name}_o", normal(hidden))
        return add("LayerNormalization", [x, scale, bias], name, axis=-1)

    def split(x: str, name: str, perm: list[int]) -> str:
        shape = constant(f"{name}_h", np.array([1, tokens, heads, hidden // heads]))
        return add("Transpose", [add("Reshape", [x, shape], f"{name}_r")], name, perm=perm)

    x = "x" if i == 0 else f"ffn_n{i - 1}"
    q, k, v = (dense(x, name, hidden, hidden) for name in "qkv")
    scores = add("MatMul", [split(q, "qh", [0, 2, 1, 3]), split(k, "kh", [0, 2, 3, 1])], "scores")
    depth = constant("depth", np.array((hidden / heads) ** -0.5, np.float32))
    shares = add("Softmax", [add("Mul", [scores, depth], "scaled")], "shares", axis=-1)
    context = add("MatMul", [shares, split(v, "vh", [0, 2, 1, 3])], "context")
    turned = add("Transpose", [context], "turned", perm=[0, 2, 1, 3])
    whole = add("Reshape", [turned, constant("whole", np.array([1, tokens, hidden]))], "whole_r")
    attention = normalised(add("Add", [x, dense(whole, "out", hidden, hidden)], "added"), "att_n")
    inner = dense(attention, "inner", hidden, 4 * hidden)
    root, one, half = (
        constant(n, np.array(a, np.float32)) for n, a in (("root", 2**0.5), ("one", 1), ("half", 0.5))
    )  # fmt: skip
    share = add("Add", [add("Erf", [add("Div", [inner, root], "gd")], "ge"), one], "ga")
    gelu = add("Mul", [add("Mul", [inner, share], "gm"), half], "gelu")
    normalised(add("Add", [attention, dense(gelu, "ffn", 4 * hidden, hidden)], "ffn_a"), "ffn_n")
    return nodes


def encoder(hidden: int, tokens: int, blocks: int) -> Pair:
    """A transformer encoder, and what onnxruntime's dynamic quantisation makes of it."""
    constants: dict[str, Array] = {}
    feeds = {"x": normal(1, tokens, hidden)}
    nodes = [n for i in range(blocks) for n in _block(i, hidden, hidden // 32, tokens, constants)]
    floats = graph([*nodes, node("Identity", [f"ffn_n{blocks - 1}"], ["y"])], feeds, constants)
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "floats.onnx", Path(folder) / "int8.onnx"
        given.write_bytes(floats)
        quantize_dynamic(given, made, weight_type=QuantType.QInt8)
        return Pair(made.read_bytes(), floats, feeds)


MODELS: dict[str, Callable[[], Pair]] = {
    "DynamicQuantizeLinear": quantise_linear,
    "ConvInteger": conv_integer,
    "ConvInteger-depthwise": conv_depthwise,
    "MatMulInteger": mat_mul_integer,
    "MatMulInteger-row": lambda: mat_mul_integer(1),
    "MatMulInteger-u8": lambda: mat_mul_integer(64, np.uint8, 128),
    "MatMulInteger-u8-97": lambda: mat_mul_integer(64, np.uint8, 97),
    "MatMulInteger-run-time": mat_mul_at_run_time,
    "MatMulIntegerToFloat": to_float,
    "DynamicQuantizeMatMul": quantise_mat_mul,
    "DynamicQuantizeLSTM": lstm,
}


# -------------------------------------------------------------------------------------------------- times
def by_onnxruntime(model: bytes, feeds: dict[str, Array]) -> Callable[[], list[Array]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def measure(name: str, pair: Pair, repeat: int) -> float:
    """Prints a row; returns onnxruntime's time over Tenon's."""
    peer, engine = by_onnxruntime(pair.quantised, pair.feeds), tenon.open(tenon.compile(pair.quantised))
    truth, ours = peer(), [a.copy() for a in engine.run(pair.feeds).values()]
    calls: dict[str, Callable[[], object]] = {"ours": engine.run, "onnxruntime": peer}
    if pair.floats is not None:
        floats = tenon.open(tenon.compile(pair.floats))
        floats.run(pair.feeds)
        calls["f32"] = floats.run
    times = interleaved(calls, repeat)
    error = max(relative_error(a, b) for a, b in zip(ours, truth, strict=True))
    ratio, middle = (times["onnxruntime"][i] / times["ours"][i] for i in (0, 1))
    shown = "".join(f"{least:9.3f} ({median:.3f})" for least, median in times.values())
    print(f"{name:24}{shown}{'' if 'f32' in times else ' ' * 17}  {ratio:5.2f} ({middle:.2f}){error:10.1e}", flush=True)
    return float(ratio)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--repeat", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2)
    options = parser.parse_args()
    models = {**MODELS, "encoder": lambda: encoder(options.hidden, options.tokens, options.blocks)}
    load = ", ".join(f"{n:.1f}" for n in os.getloadavg())
    print(f"{processor()}, target {find('host').name}, load {load}; milliseconds: minimum (median)")
    print(f"{'':24}{'tenon':>17}{'onnxruntime':>17}{'tenon f32':>17}  ort / tenon    error")
    ratios = [measure(name, models[name](), options.repeat) for name in options.names or models]
    print(f"least ratio of minima {min(ratios):.2f}, geometric mean {np.exp(np.mean(np.log(ratios))):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
