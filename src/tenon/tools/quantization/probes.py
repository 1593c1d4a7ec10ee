"""Values inside of a graph, computed on samples by its compiled code."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.size_range import Extents
from tenon.network.ops.activation import Sigmoid
from tenon.network.ops.softmax import LogSoftmax, Softmax
from tenon.options import Options
from tenon.pipeline import compile
from tenon.runtime.engine import Engine, open_bundle
from tenon.tools.quantization.samples import Sample

_NORMALISED = (LogSoftmax, Sigmoid, Softmax)


class Probes:
    """The engine of a copy of ``graph`` whose outputs are ``values`` of the graph; the order is theirs.

    Constants and inputs may be among them.  ``threads`` samples are computed at the same time, each by an engine of its
    own: small networks gain little from several threads for one sample.
    """

    def __init__(
        self, graph: Graph, values: Sequence[Value], arithmetic: str = "float", threads: int = 1, target: str = "host"
    ) -> None:
        self.values = list(dict.fromkeys(values))
        self._inputs = {id(v): v.name for v in graph.inputs}
        asked = [v for v in self.values if id(v) not in self._inputs]
        copy, self._names = exposing(graph, asked)
        options = Options.from_environment(arithmetic=arithmetic, threads=1, name="probes", target=target)
        self.bundle = compile(copy, options)
        first = open_bundle(self.bundle)
        self._engines: list[Engine] = [first, *(first.fork() for _ in range(threads - 1))]
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    @property
    def outputs(self) -> dict[Value, str]:
        """The names that ``bundle`` has for the values: of an output, or of an input."""
        return {v: self._inputs.get(id(v)) or self._names[id(v)] for v in self.values}

    def run(self, samples: Sequence[Sample], more: Mapping[str, Array] | None = None) -> Iterator[dict[Value, Array]]:
        """The values on each sample, with ``more`` inputs.  The arrays of a sample are overwritten after it."""
        if self._pool is None:
            for sample in samples:
                yield self._values(self._engines[0], {**sample, **(more or {})})
            return
        running: deque[Future[dict[Value, Array]]] = deque()
        try:
            for number, sample in enumerate(samples):
                engine = self._engines[number % len(self._engines)]
                if len(running) == len(self._engines):
                    yield running[0].result()
                    running.popleft()
                running.append(self._pool.submit(self._values, engine, {**sample, **(more or {})}))
            while running:
                yield running[0].result()
                running.popleft()
        finally:
            wait(running)

    def _values(self, engine: Engine, feeds: Mapping[str, Array]) -> dict[Value, Array]:
        results = engine.run(feeds, copy=False)
        return {
            v: feeds[self._inputs[id(v)]] if id(v) in self._inputs else results[self._names[id(v)]] for v in self.values
        }

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        for engine in self._engines:
            engine.close()


def exposing(graph: Graph, values: Sequence[Value]) -> tuple[Graph, dict[int, str]]:
    """A copy of ``graph`` whose outputs are ``values`` of its nodes, and the names of these outputs by the ids of the
    values."""
    copy = graph.copy()
    twins = {
        id(old): new for a, b in zip(graph, copy, strict=True) for old, new in zip(a.outputs, b.outputs, strict=True)
    }
    copy.outputs = [twins[id(v)] for v in values]
    copy.heads = None
    names: dict[int, str] = {}
    for i, (old, new) in enumerate(zip(values, copy.outputs, strict=True)):
        new.name = names[id(old)] = f"probe_{i}"
    copy.extents = _renamed(graph, names)
    copy.prune()
    return copy, names


def _renamed(graph: Graph, names: Mapping[int, str]) -> dict[str, Extents]:
    """The extents of inputs, and those of outputs that have new ``names``; of what is inside they are not known."""
    ports = {value.name: value.name for value in graph.inputs}
    ports |= {value.name: names[id(value)] for value in graph.outputs if id(value) in names}
    return {
        ports[name]: tuple((axis, ports[holder]) for axis, holder in extents)
        for name, extents in graph.extents.items()
        if name in ports and all(holder in ports for _, holder in extents)
    }


def scores(graph: Graph) -> list[Value]:
    """The outputs; of a softmax or a sigmoid, what it reads: its noise does not depend on how certain the answer is."""
    nodes = [value.producer for value in graph.outputs]
    return [
        node.input(0) if node is not None and isinstance(node.op, _NORMALISED) else value
        for node, value in zip(nodes, graph.outputs, strict=True)
    ]
