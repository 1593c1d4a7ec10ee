"""Compile and run ONNX's conformance cases on this machine; print the outcomes by operator.

Exit status 0: exactly the cases listed in expected_failures.txt failed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from conformance.cases import Conformance, cases
from conformance.harness import PASSED, REFUSED, WRONG, Outcome, attempt_all

LISTED = Path(__file__).parent / "expected_failures.txt"

HEAD = """\
# Conformance cases that do not pass, and why; scripts/conformance --update writes the reasons of refusals.
# A case that passes must not stand here.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/conformance", description=__doc__)
    parser.add_argument("--filter", default="", help="only cases whose name or operator matches this expression")
    parser.add_argument("--kind", default="", help="only cases of this kind (node, simple, pytorch-...)")
    parser.add_argument("--quick", action="store_true", help="a few cases of every operator")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--json", type=Path, help="write every outcome to this file")
    parser.add_argument("--compiler", default="gcc", help="the C compiler (gcc)")
    parser.add_argument("--update", action="store_true", help="bring expected_failures.txt up to date (full run only)")
    parser.add_argument("--docs", type=Path, help="write the table of operators here (docs/reference/operators.md)")
    parser.add_argument("--verbose", "-v", action="store_true", help="show every case that did not pass")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    wanted = [c for c in cases() if selected(c, options.filter, options.kind)]
    if options.quick:
        wanted = quick(wanted)
    outcomes = attempt_all(wanted, options.jobs, options.compiler)
    if options.json:
        options.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1))
    if options.update:
        LISTED.write_text(updated(outcomes, expected_failures()))
    if options.docs:
        from conformance.lowering import lowered
        from conformance.tables import document

        passed = {o.name for o in outcomes if o.status == PASSED}
        some = smallest((c for c in wanted if c.name in passed), 3)
        options.docs.write_text(document(wanted, outcomes, lowered(some, options.jobs)))
    print(table(outcomes))
    if options.verbose:
        print(*(f"{o.status:8} {o.name}: {o.detail}" for o in outcomes if o.status != PASSED), sep="\n")
    unexpected_outcomes = unexpected(outcomes, expected_failures())
    print(*unexpected_outcomes, sep="\n")
    print(f"{summary(outcomes)}; {time.monotonic() - started:.0f} s")
    return 1 if unexpected_outcomes else 0


def selected(case: Conformance, pattern: str, kind: str) -> bool:
    text = f"{case.name} {case.operator}"
    return (not kind or case.kind == kind) and (not pattern or re.search(pattern, text) is not None)


def quick(wanted: Iterable[Conformance], limit: int = 2) -> list[Conformance]:
    """The smallest node cases of every operator."""
    return smallest((c for c in wanted if c.kind == "node" and "_expanded" not in c.name), limit)


def smallest(wanted: Iterable[Conformance], limit: int) -> list[Conformance]:
    """The smallest models of every operator."""
    groups: dict[str, list[Conformance]] = defaultdict(list)
    for case in wanted:
        groups[case.operator].append(case)
    return [case for group in groups.values() for case in sorted(group, key=lambda c: len(c.model))[:limit]]


def expected_failures() -> dict[str, str]:
    """The cases of expected_failures.txt, with their reasons."""
    lines = LISTED.read_text().splitlines() if LISTED.exists() else []
    pairs = (line.partition(": ") for line in lines if line and not line.startswith("#"))
    return {name: reason for name, _, reason in pairs}


def updated(outcomes: Sequence[Outcome], known: dict[str, str]) -> str:
    """The list for these outcomes; reasons written by hand are kept."""
    failed = (o for o in outcomes if o.status != PASSED)
    return HEAD + "".join(f"{o.name}: {known.get(o.name) or reason(o)}\n" for o in failed)


def reason(outcome: Outcome) -> str:
    """The first sentence of the error, on one line."""
    lines = [line.strip(" -") for line in outcome.detail.splitlines()]
    text = lines[1] if outcome.status == REFUSED and len(lines) > 1 else lines[0]
    return re.sub(r"^\S+ \((\w+)\)", r"\1", text)


def unexpected(outcomes: Sequence[Outcome], known: dict[str, str]) -> list[str]:
    """Failures that are not listed, and listed cases that pass."""
    lines = []
    for o in outcomes:
        if o.status == PASSED and o.name in known:
            lines.append(f"{o.name} passes: take it out of {LISTED.name}")
        elif o.status != PASSED and o.name not in known:
            lines.append(f"{o.name} is {o.status}: {o.detail}")
    return lines


def table(outcomes: Sequence[Outcome]) -> str:
    """A line per operator with the outcomes of its cases."""
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
