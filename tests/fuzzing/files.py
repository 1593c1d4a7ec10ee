"""Fuzz importers with damaged copies of the small models of the tests: they load, or are rejected with a proper error.

scripts/fuzz-files --count 100000             that many of every format
scripts/fuzz-files --minutes 5 Caffe ONNX     as many of these as there is time for
scripts/fuzz-files --replay FILE              a kept finding again, with its traceback
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from damage import Outcomes, bounded, insert_keyword, kept, kinds, splice_from_donor
from fuzzing.corpus import ROOT, Recorded, gather, models, unpack, words
from tenon.formats.importers import FORMATS

SLICE = 200
"""Files between time checks."""
REPORT = 20
"""Seconds between progress messages."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("scripts/fuzz-files", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"all unless named: {', '.join(FORMATS)}")
    parser.add_argument("--count", type=int, default=1000, help="damaged files of each format")
    parser.add_argument("--seed", type=int, default=0, help="the first one; file i of a format follows from SEED + i")
    parser.add_argument("--minutes", type=float, help="stop each format after that long")
    parser.add_argument("--corpus", type=Path, default=ROOT / "build" / "corpus", help="recorded there if it is empty")
    parser.add_argument("--messages", type=int, default=0, help="print that many refusals of each format")
    parser.add_argument("--replay", type=Path, help="load one kept file")
    given = parser.parse_args()
    unknown = set(given.formats) - FORMATS.keys()
    if unknown:
        parser.error(f"no such format: {', '.join(sorted(unknown))}")
    return given


def damaged(corpus: list[Recorded], seed: int) -> Recorded:
    """A model of the corpus with one or two mutations of one of its files."""
    rng = random.Random(f"{corpus[0].format} {seed}")
    model = rng.choice(corpus)
    name = model.main if rng.random() < 0.6 else rng.choice(sorted(model.files))
    data = model.files[name]
    kind = rng.random()
    if kind < 0.15:
        data = insert_keyword(data, rng.choice(words(model.format)), rng)
    elif kind < 0.3:
        donor = rng.choice(corpus)
        data = splice_from_donor(
            data, donor.files[donor.main if name == model.main else donor.weights or donor.main], rng
        )
    else:
        data = rng.choice(kinds(data))(data, rng) if data else b"\0"
    if data and rng.random() < 0.2:
        data = rng.choice(kinds(data))(data, rng)
    return replace(model, files={**model.files, name: data or b"\0"})


@dataclass
class Run:
    """Damaged files of one format."""

    corpus: list[Recorded]
    seed: int
    outcomes: Outcomes
    refusals: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def go_on(self, count: int) -> None:
        began = monotonic()
        with bounded():
            for seed in range(self.seed, self.seed + count):
                self._load(seed)
        self.seed += count
        self.seconds += monotonic() - began

    def _load(self, seed: int) -> None:
        model = damaged(self.corpus, seed)
        refusal = self.outcomes.take(f"seed {seed}", model.load, lambda: keep(model, seed))
        if refusal is not None and random.Random(seed).random() < 0.02:
            self.refusals.append(f"{type(refusal).__name__}: {refusal}")

    def row(self) -> str:
        outcomes = self.outcomes
        speed = outcomes.files / self.seconds
        return (
            f"{outcomes.name:12}{len(self.corpus):8}{outcomes.files:10}{outcomes.refused:10}{speed:9.0f}/s"
            f"{outcomes.slowest:9.2f} s  {outcomes.slowest_file:14}{len(outcomes.failures):9}"
        )


def keep(model: Recorded, seed: int) -> Path:
    path = kept(model.format) / f"{seed}.zip"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.pack())
    return path


HEAD = f"{'format':12}{'models':>8}{'damaged':>10}{'refused':>10}{'speed':>11}{'slowest':>11}  {'':14}{'findings':>9}"


def fuzz(format: str, given: argparse.Namespace, said: Callable[[str], None]) -> Run:
    run = Run(models(given.corpus, format), given.seed, Outcomes(format))
    last, end, reported = given.seed + given.count, monotonic() + 60 * (given.minutes or 1e9), 0
    shown = monotonic()
    while run.corpus and run.seed < last and monotonic() < end:
        run.go_on(min(SLICE, last - run.seed))
        for what in list(run.outcomes.failures.values())[reported:]:
            said(f"FOUND {format}: {what}")
        reported = len(run.outcomes.failures)
        if monotonic() - shown > REPORT:
            shown = monotonic()
            said(run.row())
    return run


def main() -> int:
    given = arguments()
    if given.replay:
        print(unpack(given.replay).load())
        return 0
    if not given.corpus.exists():
        gather(given.corpus)
    runs = [fuzz(f, given, lambda line: print(line, flush=True)) for f in given.formats or FORMATS]
    print("\n".join([HEAD, *(run.row() for run in runs if run.corpus)]))
    for run in runs:
        for what in random.Random(0).sample(run.refusals, min(given.messages, len(run.refusals))):
            print(f"\n{run.outcomes.name} {what}")
        for what in run.outcomes.failures.values():
            print(f"FOUND {run.outcomes.name}: {what}")
    return 1 if any(run.outcomes.failures for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
