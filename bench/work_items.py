#!/usr/bin/env python3
"""Load balance of networks over many threads: python bench/work_items.py MODEL... [--threads 16] [--layers]

Work items can be counted on machines with few processors.  The time of a kernel is modelled as its vector instructions:
those of the thread with the most work items, or all instructions of a kernel that runs on one thread.  "one" is
compiled for one thread (the default), "many" for the given number; shown is the speedup of both with that number of
threads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import tenon
from tenon.machine.algorithms.estimate import barrier, slowest
from tenon.machine.codegen.threads import Sharing, barriers, firsts
from tenon.machine.plan.program import Program
from tenon.machine.proofs.count import count


@dataclass(frozen=True)
class Part:
    """A kernel call: instructions, and work items (1: it runs on one thread)."""

    layer: str
    kernel: str
    work: int
    items: int
    meets: bool

    def time(self, threads: int) -> float:
        """Instructions of the busiest thread, plus the cost of a barrier."""
        return self.work * slowest(self.items, threads) + (barrier(threads) if self.meets else 0)


def parts(program: Program) -> Iterator[Part]:
    """The calls of a program, as distributed to threads."""
    sharing = Sharing(program.threads)
    all_parts = [sharing.part(call) for call in program.calls]
    for part, meets in zip(all_parts, barriers(all_parts, firsts(program.items)), strict=True):
        items = part.slices.length if part.slices else 1
        kernel = part.call.kernel
        yield Part(part.call.layer, kernel.name, count(kernel).instructions, items, meets)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--layers", action="store_true", help="every kernel of the network compiled for many")
    options = parser.parse_args()
    many = options.threads
    print(f"| network | instructions, M | one: gain from {many} | many: gain from {many} | instructions, M |")
    print("|---|---|---|---|---|")
    for model in options.models:
        graph = tenon.load(model)
        row = []
        for changes in ({}, {"threads": many}):
            program = tenon.compile(graph, **changes).program
            all_parts = list(parts(program))
            work = sum(part.work for part in all_parts)
            row.append((work, work / sum(part.time(many) for part in all_parts), all_parts))
        (alone, before, _), (together, after, listed) = row
        shown = f"{alone / 1e6:.1f} | {before:.1f} | {after * alone / together:.1f} | {together / 1e6:.1f}"
        print(f"| {Path(model).stem} | {shown} |", flush=True)
        for part in listed if options.layers else ():
            gain = part.work / max(1.0, part.time(many))
            print(
                f"    {part.layer[:24]:24} {part.kernel:44} {part.work / 1e3:9.0f} k {part.items:6} items {gain:6.1f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
