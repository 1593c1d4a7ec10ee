"""Profiling: times per operator and per operator type, relative to the machine's peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from tenon.errors import InputError, ResourceError
from tenon.network.graph.graph import Array
from tenon.runtime.bundle.manifest import CallRecord
from tenon.runtime.engine.device import RemoteBundle
from tenon.runtime.engine.device_peak import device_peak
from tenon.runtime.engine.device_queue import DeviceProperties
from tenon.runtime.engine.engine import Engine
from tenon.runtime.engine.peak import peak_macs
from tenon.runtime.engine.timing import Times, measure, refilled, sizes_of_runs, time_runs

_NS = 1e6  # nanoseconds per millisecond


@dataclass(frozen=True)
class Speed:
    """Billions of multiply-accumulates, and of bytes read and written, per second; the first also as percent of the
    machine's measured peak: above 100 if an algorithm needs fewer multiplications than counted. All are from one
    measurement.  ``of_bandwidth`` is the percentage of a device's measured memory bandwidth: above 100 where caches
    hold what is read; 0 of processors.
    """

    gmacps: float
    gigabytes: float
    of_peak: float
    of_bandwidth: float = 0.0


@dataclass(frozen=True, eq=False)
class Row:
    """One operator of the network, in run order: all kernel calls of one node.

    Times are milliseconds; ``samples`` has one per round.
    """

    op: str
    layer: str
    kernels: tuple[str, ...]
    facts: CallRecord
    macs: int
    start: float
    samples: Array

    @property
    def first(self) -> float:
        return float(self.samples[0])

    @property
    def mean(self) -> float:
        return float(self.samples.mean())

    @property
    def min(self) -> float:
        return float(self.samples.min())

    @property
    def median(self) -> float:
        return float(np.median(self.samples))


@dataclass(frozen=True)
class TypeRow:
    """All operators of one type; ``mean`` is milliseconds per run, ``called`` counts calls in all rounds."""

    op: str
    count: int
    mean: float
    macs: int
    called: int

    @property
    def gmacps(self) -> float:
        return rate(self.macs, self.mean)


@dataclass(frozen=True)
class DeviceUse:
    """The device that was profiled: what it is, the bytes per second of a copy in its memory (measured), and the
    milliseconds, by its clock, in which the inputs are copied to it and the outputs back."""

    properties: DeviceProperties
    bandwidth: float
    upload: Times
    download: Times


@dataclass(frozen=True, eq=False)
class Profile:
    """The result of profiling.  ``sizes`` are those of the runs, by name, where a run chooses them.  ``peak`` is the
    fp32 multiply-accumulates per second of all threads together, or of the whole ``device``, on which times of
    operators are those of kernels, without the gaps between them."""

    name: str
    target: str
    threads: int
    warmup: Times | None
    plain: Times
    stamped: Times
    rows: tuple[Row, ...]
    peak: float
    device: DeviceUse | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def macs(self) -> int:
        return sum(row.macs for row in self.rows)

    @property
    def total(self) -> float:
        """Milliseconds per run in all operators, on average."""
        return sum(row.mean for row in self.rows)

    @property
    def summary(self) -> Times:
        """The sum over the operators, round by round."""
        return Times(tuple(float(t) for t in np.sum([row.samples for row in self.rows], axis=0)))

    def slowest(self, count: int = 10) -> list[Row]:
        return sorted(self.rows, key=lambda row: -row.mean)[:count]

    def types(self) -> list[TypeRow]:
        """Rows by operator type, slowest first."""
        rounds, types = len(self.rows[0].samples), []
        for op, group in groupby(sorted(self.rows, key=lambda row: row.op), key=lambda row: row.op):
            rows = list(group)
            called = rounds * len(rows)
            types.append(TypeRow(op, len(rows), sum(r.mean for r in rows), sum(r.macs for r in rows), called))
        return sorted(types, key=lambda t: -t.mean)

    def of_peak(self, gmacps: float) -> float:
        """Percent of the machine's measured peak; above 100 if an algorithm needs fewer multiplications than
        counted."""
        return 100 * 1e9 * gmacps / self.peak

    def speed(self, row: Row, milliseconds: float) -> Speed:
        """The speed of an operator for a time: ``row.mean``, or ``row.min``, which is least affected by other load."""
        gmacps, gigabytes = rate(row.macs, milliseconds), rate(row.facts.bytes, milliseconds)
        of_bandwidth = 100 * 1e9 * gigabytes / self.device.bandwidth if self.device else 0.0
        return Speed(gmacps, gigabytes, self.of_peak(gmacps), of_bandwidth)

    def json(self) -> dict[str, Any]:
        """The profile as JSON; the keys are part of the interface.  Speeds of operators follow from ``avg_ms``."""
        return {
            "name": self.name,
            "target": self.target,
            "threads": self.threads,
            **self._device(),
            **({"sizes": dict(self.sizes)} if self.sizes else {}),
            "macs": self.macs,
            "peak_gmacps": self.peak / 1e9,
            "warmup": self.warmup.summary() if self.warmup else None,
            "without_statistics": self.plain.summary(),
            "with_statistics": self.stamped.summary(),
            "summary": self.summary.summary(),
            "operators": [self._row(row) for row in self.rows],
            "types": [
                {"op": t.op, "count": t.count, "avg_ms": t.mean, "macs": t.macs, "gmacps": t.gmacps, "called": t.called}
                for t in self.types()
            ],
        }

    def _device(self) -> dict[str, Any]:
        """The entries of JSON about a device; none for processors."""
        if self.device is None:
            return {}
        return {
            "device": asdict(self.device.properties),
            "peak_gigabytes_per_s": self.device.bandwidth / 1e9,
            "upload": self.device.upload.summary(),
            "download": self.device.download.summary(),
        }

    def _row(self, row: Row) -> dict[str, Any]:
        facts, speed = row.facts, self.speed(row, row.mean)
        return {
            "op": row.op,
            "name": row.layer,
            "kernels": list(row.kernels),
            "start_ms": row.start,
            "first_ms": row.first,
            "avg_ms": row.mean,
            "median_ms": row.median,
            "min_ms": row.min,
            "macs": row.macs,
            "gmacps": speed.gmacps,
            "percent_of_peak": speed.of_peak,
            "bytes": facts.bytes,
            "gigabytes_per_s": speed.gigabytes,
            **({"percent_of_bandwidth": speed.of_bandwidth} if self.device else {}),
            "stride": list(facts.strides),
            "pad": list(facts.pads),
            "filter": list(facts.filter),
            "output": list(facts.output),
            "dilation": list(facts.dilations),
        }


def profile(engine: Engine | RemoteBundle, rounds: int = 100, warmup: int = 10, name: str = "") -> Profile:
    """Warm up, run ``rounds`` times without and ``rounds`` times with timestamps between the kernel calls: in this
    process, or on the machine of a ``RemoteBundle``, by that machine's clock.

    The input is random.  Raises InputError if the bundle was compiled without ``profile``, or has no
    kernels, ResourceError if its device fails.
    """
    manifest = engine.manifest
    if not manifest.nodes:
        raise InputError(f"'{manifest.name}' runs no kernels: its outputs are inputs or constants")
    device = None
    if isinstance(engine, Engine) and engine.on_device:
        (warm, plain, stamped, ticks), device, peak = _on_gpu(engine, rounds, warmup)
    elif isinstance(engine, RemoteBundle):
        warm, plain, stamped, ticks = _on_device(engine, rounds, warmup)
        peak = peak_macs(manifest.target.name, engine.runner)
    else:
        warm, plain, stamped, ticks = _in_process(engine, rounds, warmup)
        peak = peak_macs("host")
    return Profile(
        name=name or manifest.name,
        target=manifest.target.name,
        threads=engine.threads,
        warmup=warm,
        plain=plain,
        stamped=stamped,
        rows=_rows(manifest.nodes, ticks),
        peak=engine.threads * peak,
        device=device,
        sizes=sizes_of_runs(engine) if isinstance(engine, Engine) else {},
    )


_Measured = tuple[Times | None, Times, Times, Array]
"""Times of warm-up runs, of runs without timestamps and of runs with timestamps, and the timestamps."""


def _in_process(engine: Engine, rounds: int, warmup: int) -> _Measured:
    refill = refilled(engine)
    refill()
    engine.timestamps()
    warm, plain = time_runs(engine, rounds, warmup)
    readings: list[Array] = []

    def stamp() -> None:
        refill()
        readings.append(engine.timestamps())

    stamped = measure(stamp, rounds)
    return warm, plain, stamped, np.array(readings)


def _on_device(device: RemoteBundle, rounds: int, warmup: int) -> _Measured:
    ticks = device.timestamps(rounds, warmup)
    every = device.time(warmup + rounds).samples
    stamped = Times(tuple(float(t) for t in (ticks[:, -1] - ticks[:, 0]) / _NS))
    return Times(every[:warmup]) if warmup else None, Times(every[warmup:]), stamped, ticks


def _on_gpu(engine: Engine, rounds: int, warmup: int) -> tuple[_Measured, DeviceUse, float]:
    """The measurements, the device, and its peak."""
    warm, plain = time_runs(engine, rounds, warmup)
    readings: list[Array] = []
    stamped = measure(lambda: readings.append(engine.device_times()), rounds)
    spent = np.array(readings)
    properties = engine.device
    if properties is None:
        raise ResourceError(f"the device of '{engine.name}' is gone")
    peak = device_peak(engine.manifest.target.name, properties.units)
    copies = (Times(tuple(float(t) for t in spent[:, i] / _NS)) for i in range(2))
    ticks = np.cumsum(np.concatenate([np.zeros((rounds, 1), np.uint64), spent[:, 2:]], axis=1), axis=1)
    return (warm, plain, stamped, ticks), DeviceUse(properties, peak.bandwidth, *copies), peak.macs


def _rows(steps: tuple[CallRecord, ...], ticks: Array) -> tuple[Row, ...]:
    """One row per node, whose calls are consecutive.  ``ticks`` is [round, call + 1] in nanoseconds."""
    spent = np.diff(ticks.astype(np.int64), axis=1) / _NS
    starts = (ticks[:, :-1] - ticks[:, :1]).astype(np.int64).mean(axis=0) / _NS
    rows = []
    for _, group in groupby(enumerate(steps), key=lambda item: _node(item[1])):
        calls = [i for i, _ in group]
        macs = sum(steps[i].macs for i in calls)
        first = steps[calls[0]]
        kernels = tuple(steps[i].kernel for i in calls)
        rows.append(
            Row(_kind(first), first.layer, kernels, first, macs, float(starts[calls[0]]), spent[:, calls].sum(axis=1))
        )
    return tuple(rows)


def _node(step: CallRecord) -> CallRecord:
    """The fields that are equal in all calls of a node."""
    return step._replace(kernel="", macs=0)


def _kind(step: CallRecord) -> str:
    """The operator's name, with the prefix Depthwise for depthwise convolutions."""
    depthwise = step.group > 1 and step.filter[1:2] == (1,)
    return "Depthwise" + step.op if depthwise and step.op.startswith("Conv") else step.op


def rate(work: int, milliseconds: float) -> float:
    """Billions per second."""
    return work / milliseconds / 1e6 if milliseconds > 0 else 0.0
