"""The costs of a split between this machine's processor and one of its devices, measured."""

from __future__ import annotations

from functools import lru_cache
from time import perf_counter

import numpy as np

from tenon.errors import ResourceError
from tenon.machine.targets import find
from tenon.network.graph.graph import Graph
from tenon.network.graph.types import F32, TensorType
from tenon.network.ops.activation import Relu
from tenon.network.ops.base import Operator
from tenon.network.ops.softmax import Softmax
from tenon.options import Options
from tenon.pipeline import compile
from tenon.runtime.engine import Engine, open_bundle
from tenon.runtime.engine.device_here import device_here
from tenon.runtime.engine.device_peak import device_peak
from tenon.runtime.engine.peak import peak_macs, read_bandwidth
from tenon.runtime.plugins.cost_split import SplitCosts

_READ = 64 << 20  # bytes: more than caches hold
_SIDE, _FLOATS = 16, 1 << 20
_LAUNCHES = 16
_ROUNDS = 10


@lru_cache(maxsize=4)
def measured_costs(target: str) -> SplitCosts:
    """The costs of one thread of this processor and of the device that ``target`` chooses; measured once per process.

    Rates are the peaks that profiles refer to: multiply-adds in fp32, and reads (of the device, a copy) of memory.  The
    time of a launch is that of one more layer in a network of tiny ones; the rate of copies is that of 4 MiB by the
    device's clock, and the time that every copy takes half of what a run of a single tiny layer takes beside it.
    Raises ResourceError if there is no device.
    """
    properties = device_here(find(target))
    if properties is None:
        raise ResourceError(f"there is no device of {target} here whose costs could be measured")
    device = device_peak(target, properties.units)
    one, more = (_seconds(target, (Softmax(),) * count, (_SIDE, _SIDE)) for count in (1, 1 + _LAUNCHES))
    launch = max(0.0, more - one) / _LAUNCHES
    small = _seconds(target, (Relu(),), (_SIDE,))
    with _opened(target, (Relu(),), (_FLOATS,)) as engine:  # the device's clock: of inputs, of outputs, of steps
        copying = min(int(engine.device_times()[:2].sum()) for _ in range(_ROUNDS)) / 1e9
    return SplitCosts(
        processor_macs=peak_macs(),
        processor_bytes=read_bandwidth(_READ),
        device_macs=device.macs,
        device_bytes=device.bandwidth,
        launch=launch,
        copied_bytes=2 * 4 * _FLOATS / max(copying, 1e-9),
        copy=max(0.0, small - launch) / 2,
    )


def _seconds(target: str, chain: tuple[Operator, ...], dims: tuple[int, ...]) -> float:
    """The shortest time of some runs of a network of layers that follow each other, with its copies."""
    x, times = np.zeros(dims, np.float32), []
    with _opened(target, chain, dims) as engine:
        for _ in range(_ROUNDS + 1):
            began = perf_counter()
            engine.run({"x": x})
            times.append(perf_counter() - began)
    return min(times[1:])


def _opened(target: str, chain: tuple[Operator, ...], dims: tuple[int, ...]) -> Engine:
    graph = Graph("measured_costs")
    value = graph.add_input("x", TensorType(F32, dims))
    for number, operator in enumerate(chain):
        value = graph.add(operator, [value], [f"y{number}"]).output
    graph.outputs = [value]
    return open_bundle(compile(graph, Options.from_environment(target=target, threads=1, no_tuning=True)))
