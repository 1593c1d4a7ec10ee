#!/usr/bin/env python3
"""Operators furthest from the machine's limits: python bench/worst_layers.py [NAME ...] [--count 10] [--rounds 30]

Profiles each network and lists the operators whose fastest round is furthest from the limit of the machine: their
multiply-accumulates at the measured peak, or their bytes at the measured read bandwidth, whichever takes longer.
Winograd and Strassen need fewer multiplications than counted, so operators can be faster than the limit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tenon
from tenon.runtime.engine.peak import peak_macs, read_bandwidth
from tenon.runtime.engine.profile import Row, profile, rate

ROOT = Path(__file__).resolve().parents[1]


def bound(row: Row) -> float:
    """Milliseconds of the operator at the machine's limits."""
    return max(row.macs / peak_macs(), row.facts.bytes / read_bandwidth(row.facts.bytes)) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "zoo")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    names = options.names or sorted(path.stem for path in options.models.glob("*.onnx"))
    losses = []
    for name in names:
        with tenon.open(tenon.compile(options.models / f"{name}.onnx", profile=True)) as engine:
            measured = profile(engine, options.rounds, 3, name)
        whole = sum(row.min for row in measured.rows)
        losses += [(row.min - bound(row), 100 * (row.min - bound(row)) / whole, name, row) for row in measured.rows]
    losses.sort(key=lambda entry: -entry[1])
    print("| network | operator | output | kernel | ms | at the limit | % of peak | lost, % of the network |")
    print("|---|---|---|---|---|---|---|---|")
    for _, share, name, row in losses[: options.count]:
        output = "x".join(map(str, row.facts.output))
        peak = f"{100e9 * rate(row.macs, row.min) / peak_macs():.0f}" if row.macs else "-"
        print(
            f"| {name} | {row.op} | {output} | {row.kernels[-1]} | {row.min:.3f} | {bound(row):.3f} | {peak} | "
            f"{share:.1f} |"
        )


if __name__ == "__main__":
    main()
