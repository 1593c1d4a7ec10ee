#!/usr/bin/env python3
"""Time attention of one layer beside other runtimes, by length, one thread, repetitions interleaved.

    python bench/attention.py [--lengths 64 128 ...] [--heads 8] [--shared 8] [--depth 64] [--causal] [--decode]
                              [--target NAME] [--precision bf16|int8] [--threads 1] [--repeat 10] [--products]

Queries, keys and values are inputs: softmax(Q K' / sqrt(d)) V as exporters write it.  --decode: one query to as many
keys as the length.  --shared: heads of keys and values, which neighbouring heads share.  --causal: query i sees the
keys up to i, by a constant mask.  --products: also Tenon's products with a softmax between them.  In int8 all run the
same QDQ model, by onnxruntime's quantiser, bytes without sign, calibrated on such inputs.  Peers are those of
onnxruntime, in bf16 that in f32, and openvino that are installed; in bf16 only openvino counts.  Prints milliseconds of
processor time, or with several threads of the clock (minimum, median), multiply-adds of all scores in a nanosecond, the
ratio of the fastest peer to Tenon by minima, and the largest difference from onnxruntime.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import tenon
from tenon.machine.algorithms import attention as estimates
from tenon.network.graph.graph import Array

Run = Callable[[], object]


def model(heads: int, shared: int, queries: int, keys: int, depth: int, *, causal: bool) -> bytes:
    """Attention in ONNX; keys and values that several heads share are expanded."""
    names = {"q": (1, heads, queries, depth), "k": (1, shared, keys, depth), "v": (1, shared, keys, depth)}
    nodes, constants = [], {"scale": np.float32(depth**-0.5)}
    for name in "kv":
        nodes.append(helper.make_node("Unsqueeze", [name, "two"], [f"{name}_1"]))
        nodes.append(helper.make_node("Expand", [f"{name}_1", "grouped"], [f"{name}_2"]))
        nodes.append(helper.make_node("Reshape", [f"{name}_2", "every"], [f"{name}_all"]))
    if heads == shared:
        nodes = [helper.make_node("Identity", [name], [f"{name}_all"]) for name in "kv"]
    nodes += [
        helper.make_node("Transpose", ["k_all"], ["turned"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "turned"], ["scores"]),
        helper.make_node("Mul", ["scores", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "mask"], ["masked"]) if causal else None,
        helper.make_node("Softmax", ["masked" if causal else "scaled"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v_all"], ["y"]),
    ]
    if heads != shared:
        constants |= {"two": np.array([2]), "grouped": np.array([1, shared, heads // shared, keys, depth])}
        constants |= {"every": np.array([1, heads, keys, depth])}
    if causal:
        constants["mask"] = np.where(np.tri(queries, keys, keys - queries, bool), 0, np.finfo(np.float32).min)
        constants["mask"] = constants["mask"].astype(np.float32)
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        [node for node in nodes if node is not None],
        "attention",
        [helper.make_tensor_value_info(name, floats, dims) for name, dims in names.items()],
        [helper.make_tensor_value_info("y", floats, names["q"])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def quantise(whole: Path, narrow: Path) -> None:
    """Write ``whole`` as a QDQ model, calibrated on the inputs that are timed, with activations of u8."""
    from qdq import quantise as by_onnxruntime

    logging.disable(logging.WARNING)
    by_onnxruntime(whole, narrow, normal=True)


def ours(path: Path, feeds: dict[str, Array], options: argparse.Namespace) -> tuple[Run, Array]:
    """A run over inputs that lie in place, and the result."""
    precision = "fp32" if options.precision == "int8" else options.precision  # of what is not in integers
    bundle = tenon.compile(path, target=options.target, precision=precision, threads=options.threads)
    engine = tenon.open(bundle, threads=options.threads)
    result = engine.run(feeds)["y"]
    return lambda: engine.run(copy=False), result


def apart(path: Path, feeds: dict[str, Array], options: argparse.Namespace) -> Run:
    """The same by products with a softmax between them."""
    chosen = estimates.time_in_one
    try:
        estimates.time_in_one = lambda *_: float("inf")
        return ours(path, feeds, options)[0]
    finally:
        estimates.time_in_one = chosen


def of_onnxruntime(path: Path, feeds: dict[str, Array], threads: int) -> tuple[Run, Array]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(np.empty_like(feeds["q"])))
    return lambda: session.run_with_iobinding(binding), session.run(None, feeds)[0]


def of_openvino(path: Path, feeds: dict[str, Array], threads: int, precision: str) -> Run:
    import openvino

    core = openvino.Core()
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "ENABLE_CPU_PINNING": False}
    options["INFERENCE_PRECISION_HINT"] = "bf16" if precision == "bf16" else "f32"
    request = core.compile_model(str(path), "CPU", options).create_infer_request()
    request.infer(feeds)
    return request.infer


def race(runs: dict[str, Run], repeat: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Milliseconds of each, one after the other in each round."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeat):
        for name, run in runs.items():
            start = clock()
            run()
            times[name].append(1e3 * (clock() - start))
    return times


def line(options: argparse.Namespace, length: int, folder: Path) -> str:
    queries = 1 if options.decode else length
    path = folder / f"attention_{length}.onnx"
    made = model(options.heads, options.shared, queries, length, options.depth, causal=options.causal)
    path.write_bytes(made)
    if options.precision == "int8":
        whole, path = path, folder / f"attention_{length}_int8.onnx"
        quantise(whole, path)
    rng = np.random.default_rng(0)
    shapes = {"q": (options.heads, queries), "k": (options.shared, length), "v": (options.shared, length)}
    feeds = {n: rng.standard_normal((1, *dims, options.depth)).astype(np.float32) for n, dims in shapes.items()}
    run, result = ours(path, feeds, options)
    runs, error = {"tenon": run}, ""
    if options.products:
        runs["products"] = apart(path, feeds, options)
    if importlib.util.find_spec("onnxruntime"):
        runs["onnxruntime"], expected = of_onnxruntime(path, feeds, options.threads)
        error = f"  {np.abs(result - expected).max():.1e}"
    if importlib.util.find_spec("openvino"):
        runs["openvino"] = of_openvino(path, feeds, options.threads, options.precision)
    macs = 2 * options.heads * queries * length * options.depth
    repeat = max(options.repeat, int(options.repeat * 1e8 / macs) if macs < 1e8 else 0)
    times = race(runs, repeat, process_time if options.threads == 1 else perf_counter)
    low = {name: min(t) for name, t in times.items()}
    cells = [f"{name} {low[name]:.3f} {np.median(t):.3f}" for name, t in times.items()]
    others = [t for name, t in low.items() if name in ("onnxruntime", "openvino")[options.precision == "bf16" :]]
    ratio = f"  {min(others) / low['tenon']:.2f}x" if others else ""
    return f"{length:5} {'  '.join(cells)}  {macs / low['tenon'] / 1e6:.0f} MAC/ns{ratio}{error}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--shared", type=int)
    parser.add_argument("--depth", type=int, default=64)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--products", action="store_true")
    parser.add_argument("--target", default="host")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16", "int8"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=10)
    options = parser.parse_args()
    options.shared = options.shared or options.heads
    print(f"{options.heads} heads ({options.shared} of keys) of {options.depth}, {options.target}; ms minimum, median")
    with tempfile.TemporaryDirectory() as folder:
        for length in options.lengths:
            print(line(options, length, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
