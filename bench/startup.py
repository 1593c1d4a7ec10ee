#!/usr/bin/env python3
"""Startup time and memory: python bench/startup.py [--nets NAMES] [--python PEERS/bin/python] [--json]

First the processor time of commands, compared with bare Python and with a program that runs the same model in ONNX
Runtime; "tenon run" runs a model that an earlier command compiled.  Then for every network, in fresh interleaved
processes: time from starting Python to the first result, peak resident memory, and size of loaded native code, for a
bundle and each installed peer; all run in the Python environment of the peers.  tenon-small is Tenon with
--max-weights: weights take hardly more space than in the model file, at some cost in speed.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

from contenders import PEERS
from prepare import ROOT, Workshop
from starts import Comparison, compare, table

_ONNXRUNTIME = """
import sys
import numpy, onnxruntime
from PIL import Image
image = numpy.asarray(Image.open(sys.argv[2]), numpy.float32)[None, None]
print(onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"]).run(None, {"image": image}))
"""
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "import numpy": ("-c", "import numpy"),
    "import tenon": ("-c", "import tenon"),
    "tenon --version": ("-m", "tenon", "--version"),
    "tenon --help": ("-m", "tenon", "--help"),
    "tenon run": ("-m", "tenon", "run", "DIGITS/digits.onnx", "DIGITS/seven.pgm"),
    "onnxruntime": ("-c", _ONNXRUNTIME, "DIGITS/digits.onnx", "DIGITS/seven.pgm"),
}
BARS = {"import tenon": 0.2, "tenon --version": 0.3, "tenon --help": 0.3, "tenon run": 0.6}
NETS = "mobilenet_v1,squeezenet_v1.1,shufflenet_v2_1.0,resnet18"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--nets", default=NETS, help="names of the zoo, or nothing")
    parser.add_argument("--peers", default=",".join((*PEERS, "openvino-default")))
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "zoo")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "peers", help="where converted models are kept")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="a Python that has the peers")
    parser.add_argument("--urgent", action="store_true", help="at real-time priority (root): for busy machines")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shop = Workshop(options.models, options.work, options.python, None)
    runtimes = ("tenon", "tenon-small", *(peer for peer in options.peers.split(",") if peer))
    commands = time_commands(options.repeat)
    comparisons = [
        compare(net, runtimes, shop, options.repeat, urgent=options.urgent) for net in options.nets.split(",") if net
    ]
    print(as_json(commands, comparisons) if options.json else as_text(commands, comparisons))
    return int(any(middle(commands[name]) > bar for name, bar in BARS.items()))


def time_commands(repeat: int) -> dict[str, list[float]]:
    """Seconds of processor time of each run of each command, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(repeat + 1):
        for name, arguments in COMMANDS.items():
            words = [word.replace("DIGITS", str(ROOT / "examples" / "digits")) for word in arguments]
            began = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *words], check=True, capture_output=True, cwd=ROOT / "src")
            ended = resource.getrusage(resource.RUSAGE_CHILDREN)
            if number:  # the first run compiles
                times[name].append(ended.ru_utime - began.ru_utime + ended.ru_stime - began.ru_stime)
    return times


def middle(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]


def as_text(commands: dict[str, list[float]], comparisons: list[Comparison]) -> str:
    lines = [
        f"{name:18} min {min(seconds):.3f} s  median {middle(seconds):.3f} s"
        + (f"  (bar {BARS[name]} s)" if name in BARS else "")
        for name, seconds in commands.items()
    ]
    return "\n".join([*lines, "", *([table(comparisons)] if comparisons else [])])


def as_json(commands: dict[str, list[float]], comparisons: list[Comparison]) -> str:
    measures = ("first_ms", "processor_ms", "rss", "libraries", "code")
    networks = {
        c.net: {"runtimes": [asdict(s) for s in c.starts], "ratios": {m: c.ratio(m) for m in measures}}
        for c in comparisons
    }
    return json.dumps({"commands_s": commands, "networks": networks}, indent=1)


if __name__ == "__main__":
    sys.exit(main())
