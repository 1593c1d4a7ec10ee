"""Batches of graphs on the workers of a cluster: each is a process of ``python -m fuzzing``, which may crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from fuzzing.judge import LONGEST, Report
from tenon.errors import ResourceError
from tenon.tools.cluster import WorkerPool, WorkItem, content_key
from tenon.tools.cluster.pool import ordered
from tenon.tools.tune.table import generator_version

AHEAD = 4
"""Batches that wait for each worker."""

_TESTS = str(Path(__file__).resolve().parents[1])


@dataclass(frozen=True)
class Batch:
    """Seeds, and how their graphs are compiled."""

    seeds: range
    target: str
    options: tuple[str, ...]

    @property
    def item(self) -> WorkItem:
        words = (
            "--seed",
            str(self.seeds.start),
            "--graphs",
            str(len(self.seeds)),
            "--target",
            self.target,
            *self.options,
        )
        return WorkItem(content_key("fuzz", words, generator_version()), judged, (words,))


def judged(words: tuple[str, ...]) -> str:
    """The report of a batch, as JSON.  Raises ResourceError if the process does not write one."""
    path = os.pathsep.join([str(Path(_TESTS).parent / "src"), _TESTS])
    command = [sys.executable, "-m", "fuzzing", "--json", *words]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=2 * LONGEST,
        check=False,
    )
    if done.returncode not in (0, 1):
        raise ResourceError(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def on_pool(pool: WorkerPool, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Report]]:
    """The report of each batch, in their order; there may be batches without end."""
    left = iter(batches)
    while some := list(islice(left, AHEAD * len(pool.workers))):
        for batch, text in zip(some, ordered(pool, [batch.item for batch in some]), strict=True):
            yield batch, Report.of(json.loads(text))
