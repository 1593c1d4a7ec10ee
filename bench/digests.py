#!/usr/bin/env python3
"""One digest per quantised model, on machines of several kinds: python bench/digests.py MODEL ... [--targets ...]

MODEL are files, or folders that are searched for .tflite and .onnx files.  Each is compiled in one arithmetic for every
target, run there on the fixed input (by an emulator where needed), and the digest of its outputs is compared with that
of the NumPy references (as ``tenon verify`` does).  A row per model: arithmetic, the digest, and for
each target whether its digest is the same.  Models with operators in float have no digest and are listed with a reason.
The exit status is 1 if any digest differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import tenon
from tenon.errors import TenonError
from tenon.network.graph.graph import Graph
from tenon.network.passes.integers import is_quantised
from tenon.options import Arithmetic
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.verify import verify

TARGETS = ("host", "aarch64", "cortex-m4", "wasm32", "riscv64")
SHOWN = 12


def models(given: Sequence[Path]) -> Iterator[Path]:
    for path in given:
        if path.is_file():
            yield path
        else:
            yield from sorted(p for p in path.rglob("*") if p.suffix in (".tflite", ".onnx") and p.is_file())


def run_on(graph: Graph, target: str, arithmetic: Arithmetic, expected: str) -> tuple[str, bool]:
    """The line printed for a target, and whether its digest is the expected one.  What a target cannot hold is no
    difference."""
    try:
        bundle = tenon.compile(graph.copy(), target=target, arithmetic=arithmetic, name="net", no_tuning=True)
        device = RemoteBundle(bundle)
        verdict = verify(device.manifest._replace(answer=expected), lambda feeds: device.run([feeds])[0])
    except TenonError as error:
        return f"not run ({str(error).splitlines()[-1][:60]})", True
    return ("equal", True) if verdict.right else (f"DIFFERS: {verdict.digest[:SHOWN]}", False)


def row(path: Path, targets: Sequence[str], arithmetic: Arithmetic) -> tuple[str, bool]:
    """The row of a model, and whether all targets agree; empty for models without quantised operators."""
    graph = tenon.load(path)
    if not is_quantised(graph) or not all(v.type.bound for v in graph.inputs):
        return "", True
    expected = tenon.compile(graph.copy(), target="host", arithmetic=arithmetic, name="net", no_tuning=True).answer
    if not expected:
        left = tenon.inspect(graph.copy(), arithmetic=arithmetic)[0].left_in_float
        reason = left[0][1] if left else "some operators round floats"
        return f"| {path.stem} | {arithmetic} | no digest: {reason} |{' |' * len(targets)}", True
    cells = [run_on(graph, target, arithmetic, expected) for target in targets]
    shown = " | ".join(text for text, _ in cells)
    return f"| {path.stem} | {arithmetic} | {expected[:SHOWN]} | {shown} |", all(right for _, right in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--targets", default=",".join(TARGETS), help="separated by commas (default: %(default)s)")
    parser.add_argument("--arithmetic", choices=("tflm", "litert", "onnx"), help="default: tflm for TFLite, else onnx")
    options = parser.parse_args()
    targets, agree = options.targets.split(","), True
    print(f"| model | arithmetic | digest | {' | '.join(targets)} |\n|{'---|' * (3 + len(targets))}", flush=True)
    for path in models(options.models):
        usual = "tflm" if path.suffix == ".tflite" else "onnx"
        try:
            text, right = row(path, targets, options.arithmetic or usual)
        except TenonError as error:
            text, right = f"| {path.stem} | not compiled: {str(error).splitlines()[0][:80]} |", True
        agree = agree and right
        if text:
            print(text, flush=True)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
