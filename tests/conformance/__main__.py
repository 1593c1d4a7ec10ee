"""Run the conformance cases and print how many of each operator passed; see ``scripts/conformance --help``."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from conformance.cases import Conformance, cases
from conformance.harness import PASSED, REFUSED, WRONG, Outcome, attempt_all

LISTED = Path(__file__).parent / "expected_failures.txt"


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if exactly the listed cases are refused and all others pass."""
    parser = argparse.ArgumentParser(prog="scripts/conformance", description=__doc__)
    parser.add_argument("--filter", default="", help="only cases whose name or operator matches this expression")
    parser.add_argument("--kind", default="", help="only cases of this kind (node, simple, pytorch-...)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument("--compiler", default="gcc", help="the C compiler (gcc)")
    parser.add_argument("--update", action="store_true", help="write the refused cases to expected_failures.txt")
    parser.add_argument("--verbose", "-v", action="store_true", help="show every case that did not pass")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    wanted = [c for c in cases() if selected(c, options.filter, options.kind)]
    outcomes = attempt_all(wanted, options.jobs, options.compiler)
    if options.json:
        options.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1))
    print(table(outcomes))
    if options.verbose:
        print(*(f"{o.status:8} {o.name}: {o.detail}" for o in outcomes if o.status != PASSED), sep="\n")
    print(f"{summary(outcomes)}; {time.monotonic() - started:.0f} s")
    return 0


def selected(case: Conformance, pattern: str, kind: str) -> bool:
    text = f"{case.name} {case.operator}"
    return (not kind or case.kind == kind) and (not pattern or re.search(pattern, text) is not None)


def table(outcomes: Sequence[Outcome]) -> str:
    """A line per operator: how its cases ended."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.operator][outcome.status] += 1
    lines = [f"{'operator':32}{PASSED:>8}{REFUSED:>8}{WRONG:>8}"]
    for operator, count in sorted(counts.items()):
        lines.append(f"{operator:32}{count[PASSED]:8}{count[REFUSED]:8}{count[WRONG]:8}")
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome]) -> str:
    """Totals, of all cases and of the node cases."""
    def totals(chosen: Sequence[Outcome]) -> str:
        count = Counter(o.status for o in chosen)
        return f"{len(chosen)} cases: {count[PASSED]} passed, {count[REFUSED]} refused, {count[WRONG]} wrong"

    return f"{totals(outcomes)}\nnode: {totals([o for o in outcomes if o.kind == 'node'])}"


if __name__ == "__main__":
    sys.exit(main())
