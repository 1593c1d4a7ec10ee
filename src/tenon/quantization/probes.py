"""Values inside of a graph, computed on samples by its compiled code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tenon.engine import Engine, open_bundle
from tenon.ir.graph import Array, Graph, Value
from tenon.options import Options
from tenon.pipeline import compile
from tenon.quantization.samples import Sample

_NORMALISED = frozenset({"LogSoftmax", "Sigmoid", "Softmax"})


class Probes:
    """The engine of a copy of ``graph`` whose outputs are ``values`` of the graph; the order is theirs.

    Constants and inputs may be among them.  ``threads`` is the number of threads of a run.
    """

    def __init__(self, graph: Graph, values: Sequence[Value], arithmetic: str = "float", threads: int = 1) -> None:
        self.values = list(dict.fromkeys(values))
        self._inputs = {id(v): v.name for v in graph.inputs}
        asked = [v for v in self.values if id(v) not in self._inputs]
        copy = graph.copy()
        twins = {
            id(old): new
            for a, b in zip(graph, copy, strict=True)
            for old, new in zip(a.outputs, b.outputs, strict=True)
        }
        copy.outputs = [twins[id(v)] for v in asked]
        copy.extents, copy.heads = {}, None
        self._names: dict[int, str] = {}
        for i, (old, new) in enumerate(zip(asked, copy.outputs, strict=True)):
            new.name = self._names[id(old)] = f"probe_{i}"
        copy.prune()
        self._used = {v.name for v in copy.inputs}
        options = Options.from_environment(arithmetic=arithmetic, threads=threads, name="probes")
        self._engine: Engine = open_bundle(compile(copy, options), threads=threads)

    def run(self, samples: Sequence[Sample], more: Mapping[str, Array] | None = None) -> Iterator[dict[Value, Array]]:
        """The values on each sample, with ``more`` inputs.  The arrays are overwritten by the next run."""
        for sample in samples:
            feeds = {**sample, **(more or {})}
            results = self._engine.run(feeds, copy=False)
            yield {
                v: feeds[self._inputs[id(v)]] if id(v) in self._inputs else results[self._names[id(v)]]
                for v in self.values
            }

    def close(self) -> None:
        self._engine.close()


def scores(graph: Graph) -> list[Value]:
    """The outputs; of a softmax or a sigmoid, what it reads: its noise does not depend on how certain the answer is."""
    nodes = [value.producer for value in graph.outputs]
    return [
        node.input(0) if node is not None and node.op.name in _NORMALISED else value
        for node, value in zip(nodes, graph.outputs, strict=True)
    ]
