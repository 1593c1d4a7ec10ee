"""Where items of work run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tenon import __version__
from tenon.errors import InputError
from tenon.machine.targets import Target
from tenon.machine.targets.host_cpu import flags, model, processor, suits, system
from tenon.tools.cluster.work import WorkItem


@dataclass(frozen=True)
class Worker:
    """A process that runs items: Tenon's version there, and the processor."""

    version: str
    family: str
    system: str
    model: str
    features: frozenset[str]

    @classmethod
    def here(cls) -> Worker:
        """This process."""
        return cls(__version__, processor(), system(), model(), flags())


class WorkerPool(Protocol):
    """Workers."""

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers that are connected now."""

    def results(self, items: Sequence[WorkItem]) -> Iterator[tuple[int, Any]]:
        """The number and result of every item, as they end.  Raises what an item raises, and ResourceError for one
        whose workers died."""


class ThisProcess:
    """One item after the other, here."""

    @property
    def workers(self) -> Sequence[Worker]:
        return (Worker.here(),)

    def results(self, items: Sequence[WorkItem]) -> Iterator[tuple[int, Any]]:
        for number, item in enumerate(items):
            yield number, item.function(*item.arguments)


def ordered(pool: WorkerPool, items: Sequence[WorkItem]) -> Iterator[Any]:
    """The results in the order of the items."""
    waiting: dict[int, Any] = {}
    at = 0
    for number, result in pool.results(items):
        waiting[number] = result
        while at in waiting:
            yield waiting.pop(at)
            at += 1


def executes(worker: Worker, target: Target) -> bool:
    """Whether a worker's processor and system execute code for a target."""
    return target.host is not None and suits(target.host, worker.family, worker.system, worker.features)


def check_target(pool: WorkerPool, target: Target) -> None:
    """Raise InputError unless every worker executes code for a target."""
    workers = pool.workers
    if unable := sum(not executes(worker, target) for worker in workers):
        raise InputError(
            f"{unable} of {len(workers)} workers do not execute code for {target.name}: use workers of one kind, or "
            "name their --target"
        )
