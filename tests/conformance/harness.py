"""Compile and run conformance cases on this machine, in parallel processes, and return their outcomes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tenon
from conformance.cases import Conformance
from conformance.run import Wrong, run
from tenon.errors import InternalError, TenonError, ToolchainError

SECONDS = 120
"""A case that takes longer has failed."""

PASSED, REFUSED, WRONG = "passed", "refused", "wrong"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case: passed, refused (with an error that gives the reason) or wrong (anything else)."""

    name: str
    kind: str
    operator: str
    status: str
    detail: str = ""
    bound: tuple[str, ...] = ()


def attempt(case: Conformance, compiler: str) -> Outcome:
    """Compile and run one case."""

    def outcome(status: str, detail: str = "", bound: tuple[str, ...] = ()) -> Outcome:
        return Outcome(case.name, case.kind, case.operator, status, detail, bound)

    try:
        return outcome(PASSED, bound=run(case, compiler))
    except (InternalError, ToolchainError) as error:
        return outcome(WRONG, _short(error))
    except TenonError as error:
        return outcome(REFUSED, str(error))
    except Wrong as error:
        return outcome(WRONG, str(error))
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return outcome(WRONG, f"{error!r} at {Path(where.filename).name}:{where.lineno}")


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def attempt_all(cases: Sequence[Conformance], jobs: int, compiler: str = "gcc") -> list[Outcome]:
    """All cases, in worker processes so that a crash affects one case only."""
    with tempfile.TemporaryDirectory(prefix="tenon-conformance-") as place:
        workers = [_Worker(cases[i::jobs], Path(place) / f"{i}.json", compiler) for i in range(jobs)]
        for worker in workers:
            worker.start()
        outcomes = [outcome for worker in workers for outcome in worker.finish()]
    order = {case.name + case.kind: i for i, case in enumerate(cases)}
    return sorted(outcomes, key=lambda o: order[o.name + o.kind])


class _Worker:
    """A process that runs some of the cases; after a crash it is restarted behind the case that caused it."""

    def __init__(self, cases: Sequence[Conformance], report: Path, compiler: str) -> None:
        self.cases, self.report, self.compiler = cases, report, compiler
        self.done: list[Outcome] = []
        self.process: Any = None

    def start(self) -> None:
        context = multiprocessing.get_context("fork")
        rest = self.cases[len(self.done) :]
        self.report.write_text("")
        self.process = context.Process(target=_work, args=(rest, self.report, self.compiler))
        self.process.start()

    def finish(self) -> list[Outcome]:
        while True:
            self.process.join()
            for line in self.report.read_text().splitlines():
                record = json.loads(line)
                self.done.append(Outcome(**{**record, "bound": tuple(record["bound"])}))
            if len(self.done) == len(self.cases):
                return self.done
            case, code = self.cases[len(self.done)], self.process.exitcode
            self.done.append(Outcome(case.name, case.kind, case.operator, WRONG, f"ended the process ({code})"))
            if len(self.done) == len(self.cases):
                return self.done
            self.start()


def _work(cases: Sequence[Conformance], report: Path, compiler: str) -> None:
    np.seterr(all="ignore")
    os.environ["TENON_CC"] = compiler
    tenon.load  # noqa: B018  the pipeline is imported before the first clock runs
    with report.open("a") as out:
        for case in cases:
            signal.alarm(SECONDS)
            outcome = attempt(case, compiler)
            signal.alarm(0)
            out.write(json.dumps(asdict(outcome)) + "\n")
            out.flush()
