#!/usr/bin/env python3
"""Time attention on a CUDA device beside PyTorch's scaled_dot_product_attention.

    python bench/gpu_attention.py [--lengths 64 128 ...] [--heads 8] [--depth 64] [--causal] [--target cuda]
                                  [--precision fp16] [--layers 3] [--repeat 10] [--tiles 4,1,64,1 8,1,64,1]
                                  [--save FOLDER] [--saved FOLDER]

A network has some layers of softmax(Q K' / sqrt(d)) V, of one K and V and a Q of each; PyTorch's (of 16-bit floats
FlashAttention, of its backends the fastest) are recorded as one CUDA graph, as a network's launches are.  Prints for
each length microseconds of a layer, the least and the median of runs that alternate and are queued without copies from
and to the host, the ratio, and the largest difference from PyTorch in f32.  --tiles: also with these tiles in place of
the chosen one (warps, tiles of 16 queries of a warp, keys of a chunk, 1 for products ahead).  --save only compiles the
networks, to a folder from which --saved takes them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import tenon
from tenon.machine.kernels import flash_attention as flash
from tenon.network.ops import attention_steps as steps

TYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
RUNS = 20
"""Runs that are queued one after the other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 256, 512, 1024, 2048])
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--depth", type=int, default=64)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--precision", default="fp16", choices=TYPES)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--tiles", nargs="+", default=[])
    parser.add_argument("--save", type=Path)
    parser.add_argument("--saved", type=Path)
    options = parser.parse_args()
    kinds = ["", *options.tiles]
    with tempfile.TemporaryDirectory() as name:
        folder = options.saved or options.save or Path(name)
        if not options.saved:
            for length in options.lengths:
                for kind in kinds:
                    compiled(options, length, kind).save(place(folder, options, length, kind))
        if not options.save:
            for length in options.lengths:
                print(line(options, length, kinds, folder), flush=True)


def place(folder: Path, options: argparse.Namespace, length: int, kind: str) -> Path:
    """Where a network is saved."""
    causal = "-causal" * options.causal
    return folder / f"attention{causal}-{options.heads}x{length}x{options.depth}-{kind or 'chosen'}.tenon"


def compiled(options: argparse.Namespace, length: int, kind: str) -> tenon.Bundle:
    chosen = steps.tile_of, flash.tile_of
    flash.flash_attention.cache_clear()
    try:
        if kind:
            warps, tiles, chunk, ahead = map(int, kind.split(","))
            steps.tile_of = flash.tile_of = lambda *_: flash.FlashTile(warps, tiles, chunk, bool(ahead))
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "attention.onnx"
            path.write_bytes(model(options, length))
            ports = ["k", "v", *(f"{port}{i}" for port in "qy" for i in range(options.layers))]
            types = dict.fromkeys(ports, TYPES[options.precision])
            return tenon.compile(
                path, target=options.target, precision=options.precision, data_types=types, no_tuning=True
            )
    finally:
        steps.tile_of, flash.tile_of = chosen


def model(options: argparse.Namespace, length: int) -> bytes:
    """Layers of attention in ONNX, as exporters write it; ``causal`` by a constant mask."""
    shape, layers = (1, options.heads, length, options.depth), range(options.layers)
    constants = {"scale": np.float32(options.depth**-0.5)}
    if options.causal:
        low = np.finfo(np.float32).min
        constants["mask"] = np.where(np.tri(length, dtype=bool), 0, low).astype(np.float32)
    nodes = [helper.make_node("Transpose", ["k"], ["turned"], perm=[0, 1, 3, 2])]
    for i in layers:
        nodes.append(helper.make_node("MatMul", [f"q{i}", "turned"], [f"scores{i}"]))
        nodes.append(helper.make_node("Mul", [f"scores{i}", "scale"], [f"scaled{i}"]))
        if options.causal:
            nodes.append(helper.make_node("Add", [f"scaled{i}", "mask"], [f"masked{i}"]))
        last = f"masked{i}" if options.causal else f"scaled{i}"
        nodes.append(helper.make_node("Softmax", [last], [f"weights{i}"], axis=-1))
        nodes.append(helper.make_node("MatMul", [f"weights{i}", "v"], [f"y{i}"]))
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(name, floats, shape) for name in ("k", "v", *(f"q{i}" for i in layers))],
        [helper.make_tensor_value_info(f"y{i}", floats, shape) for i in layers],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def line(options: argparse.Namespace, length: int, kinds: list[str], folder: Path) -> str:
    import torch

    rng = np.random.default_rng(0)
    shape, dtype = (1, options.heads, length, options.depth), getattr(torch, TYPES[options.precision])
    ports = ("k", "v", *(f"q{i}" for i in range(options.layers)))
    feeds = {n: torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).cuda().to(dtype) for n in ports}
    attend, stream = torch.nn.functional.scaled_dot_product_attention, torch.cuda.current_stream().cuda_stream

    def theirs(feeds: dict[str, Any]) -> list[Any]:
        """All layers by PyTorch."""
        k, v = feeds["k"], feeds["v"]
        return [attend(feeds[f"q{i}"], k, v, is_causal=options.causal) for i in range(options.layers)]

    expected = theirs({name: tensor.float() for name, tensor in feeds.items()})
    with ThreadPoolExecutor(8) as pool:
        paths = [place(folder, options, length, kind) for kind in kinds]
        engines = list(pool.map(tenon.open, paths))
        list(pool.map(lambda engine: engine.prepare(), engines))
    errors = list[float]()
    for engine in engines:
        outputs = engine.run_on_device(feeds)
        own = [torch.from_dlpack(outputs[f"y{i}"]).float() for i in range(options.layers)]
        errors.append(max(float((a - b).abs().max()) for a, b in zip(own, expected, strict=True)))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        theirs(feeds)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = theirs(feeds)
    runs = {"torch": graph.replay}
    for kind, engine in zip(kinds, engines, strict=True):
        runs[kind or "tenon"] = lambda engine=engine: engine.run_on_device(stream=stream)
    times = {name: list[float]() for name in runs}
    for _ in range(options.repeat):
        for name, run in runs.items():
            times[name].append(microseconds(run) / options.layers)
    del kept
    ratio = min(times["torch"]) / min(times["tenon"])
    cells = [f"{name} {min(t):.2f} {median(t):.2f}" for name, t in times.items()]
    for engine in engines:
        engine.close()
    return f"{length:5} {'  '.join(cells)}  {ratio:.2f}x  {' '.join(f'{error:.1e}' for error in errors)}"


def microseconds(run: Callable[[], object]) -> float:
    """The time of one of several queued runs, by the device's clock."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    run()
    begin.record()
    for _ in range(RUNS):
        run()
    end.record()
    end.synchronize()
    return float(1e3 * begin.elapsed_time(end) / RUNS)


if __name__ == "__main__":
    main()
