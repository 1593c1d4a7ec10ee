#!/usr/bin/env python3
"""What it costs to import Tenon and to ask it for help, beside bare Python: python bench/startup.py [--repeat N]"""

from __future__ import annotations

import argparse
import subprocess
import sys
from time import perf_counter

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import tenon": [sys.executable, "-c", "import tenon"],
    "tenon --help": [sys.executable, "-m", "tenon", "--help"],
}
BARS = {"import tenon": 0.2, "tenon --help": 0.5}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=15)
    repeat = parser.parse_args().repeat
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repeat):
        for name, command in COMMANDS.items():
            began = perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append(perf_counter() - began)
    missed = 0
    for name, seconds in times.items():
        middle = sorted(seconds)[repeat // 2]
        bar = BARS.get(name)
        missed += bar is not None and middle > bar
        print(f"{name:18} min {min(seconds):.3f} s  median {middle:.3f} s" + (f"  (bar {bar} s)" if bar else ""))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
