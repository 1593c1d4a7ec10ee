#!/usr/bin/env python3
"""Instructions and bytes of integer models on emulated microcontrollers: python bench/mcu.py FOLDER [--targets ...]

FOLDER has NAME.json (with "path", the model, relative to it), NAME.npz ("in": records of input bytes) and
NAME.tflm.bin (TFLite Micro's answers to them).  A row for each model and target: whether the answers are those, to the
bit, million instructions of the first inference, bytes of RAM (activations, inputs and outputs), stack, code and
constants.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import instruction_count

import tenon
from tenon.atomic_write import scratch
from tenon.machine.toolchain.size import sizes
from tenon.runtime.bundle import Bundle

TARGETS = ("cortex-m0plus", "cortex-m3", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55")


def compiled(folder: Path, name: str, target: str) -> Bundle:
    """A model for a target, in TFLite Micro's arithmetic."""
    path = folder / json.loads((folder / f"{name}.json").read_text())["path"]
    return tenon.compile(path, target=target, name=name, arithmetic="tflm", no_tuning=True)


def row(folder: Path, name: str, target: str, records: int, work: Path, functions: int) -> str:
    """One row of the table, and the functions that executed most instructions."""
    bundle = compiled(folder, name, target)
    with np.load(folder / f"{name}.npz") as kept:
        given = kept["in"]
    answers = np.fromfile(folder / f"{name}.tflm.bin", np.uint8).reshape(len(given), -1)
    (x,) = bundle.program.inputs
    feeds = [{x.name: r.view(x.type.dtype.numpy).reshape(x.type.dims)} for r in given[:records]]
    counted = instruction_count.count(bundle, feeds, work)
    found = [np.ascontiguousarray(*out.values()).reshape(-1).view(np.uint8) for out in counted.outputs]
    equal = sum(bool((a == b).all()) for a, b in zip(found, answers, strict=False))
    digest = hashlib.sha256(b"".join(a.tobytes() for a in found)).hexdigest()[:12]
    memory, size = bundle.program.memory, sizes(bundle.object)
    cells = [
        name, target, f"{equal}/{len(feeds)}", digest, f"{counted.instructions[0] / 1e6:.3f}",
        f"{memory.mutable + memory.activations:,}", f"{counted.stack:,}", f"{size.code + size.data:,}",
        f"{memory.constant:,}",
    ]  # fmt: skip
    most = sorted(counted.functions.items(), key=lambda item: -item[1])[:functions]
    return "\n".join(["| " + " | ".join(cells) + " |", *(f"    {n:12,} {function}" for function, n in most)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", help="names, separated by commas; default: all")
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--records", type=int, default=2, help="how many are compared (default: %(default)s)")
    parser.add_argument("--functions", type=int, default=0, help="list so many functions that execute the most")
    options = parser.parse_args()
    if why := instruction_count.missing():
        parser.error(why)
    names = options.models.split(",") if options.models else sorted(p.stem for p in options.folder.glob("*.json"))
    print("| model | target | equal | digest | M instructions | RAM | stack | code | constants |")
    print("|---|---|--:|---|--:|--:|--:|--:|--:|")
    with scratch() as work:
        for name in names:
            for target in options.targets.split(","):
                print(row(options.folder, name, target, options.records, work, options.functions), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
