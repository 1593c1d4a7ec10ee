"""Translation validation: a pass must preserve the results of the graph.

After every pass that changed something, the graphs before and after are evaluated by the NumPy references on random
data.  They may differ by the propagated rounding error (``passes.tolerance``).  If they differ by more, a minimal set
of nodes that shows it is found by delta debugging and written to a file.

Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002), gives ddmin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tenon.atomic_write import write
from tenon.errors import InputError, InternalError, TenonError, UnsupportedError
from tenon.network.graph.evaluate import by_reference, evaluate
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import TensorType
from tenon.network.graph.writer import HOSTILE
from tenon.network.ops.base import ROUNDED, Operator
from tenon.network.passes.base import Pass, silent
from tenon.network.passes.tolerance import Extra, Reference, no_extra

SEED = 0


class Validator:
    """Compares graphs before and after passes, on random inputs that are drawn once.

    A minimised model of a failure is written into ``folder``.
    """

    def __init__(self, graph: Graph, folder: Path) -> None:
        self.folder = folder
        self.inputs = random_inputs(graph)
        self._before = graph.copy()

    def check(self, step: Pass, graph: Graph, *, rounds: bool = False) -> None:
        """Compare ``graph``, which ``step`` has just changed, with its state after the last check. ``rounds`` is true
        if the pass intentionally rounds operands of products to 16 bits. Raises InternalError naming the pass and the
        file with the minimised model.
        """
        before, self._before = self._before, graph.copy()
        extra = rounded_products if rounds else no_extra
        wrong = _differs(before, graph, self.inputs, extra)
        if wrong:
            small, feeds = minimised(before, step, self.inputs, extra)
            why = _differs(small, _passed(small, step), feeds, extra) or wrong
            where = _written(small, self.folder / f"verify-{step.name.replace(' ', '-')}")
            nodes = ", ".join(str(node.origin) for node in small)
            without = f"; -O{step.level - 1} compiles without this pass" if step.level else ""
            raise InternalError(
                f"pass '{step.name}' changes what the model computes: {why}\n"
                f"  on {len(small)} of {len(before)} nodes: {nodes}\n"
                f"  written to {where}: please report it{without}"
            )


def random_inputs(graph: Graph, seed: int = SEED) -> dict[str, Array]:
    """Floats between -1 and 1; integers 0 or 1, which are valid indices too; bools."""
    rng = np.random.default_rng(seed)

    def drawn(type: TensorType) -> Array:
        if type.dtype.is_float or type.dtype.is_small_float:
            return np.asarray(rng.uniform(-1, 1, type.dims)).astype(type.dtype.numpy)
        return np.asarray(rng.integers(0, 2, type.dims)).astype(type.dtype.numpy)

    return {v.name: drawn(v.type) for v in graph.inputs}


def rounded_products(node: Node, result: Array) -> float:
    """Products and convolutions whose operands may be rounded to bf16, each by half of ``ROUNDED``."""
    if not isinstance(node.op, Operator) or not node.op.bilinear:
        return 0.0
    return ROUNDED * float(np.abs(result.astype(np.float64)).max(initial=0.0))


def _differs(before: Graph, after: Graph, inputs: dict[str, Array], extra: Extra) -> str:
    results = evaluate(after, inputs)
    pairs = zip(before.outputs, after.outputs, strict=True)
    return Reference(before, inputs, extra).differs({a.name: results[b.name] for a, b in pairs})


def _passed(graph: Graph, step: Pass) -> Graph:
    copy = graph.copy()
    step.run(copy, silent)
    return copy


# ---------------------------------------------------------------------------------------- minimisation
def minimised(
    graph: Graph, step: Pass, inputs: dict[str, Array], extra: Extra = no_extra
) -> tuple[Graph, dict[str, Array]]:
    """A minimal part of ``graph`` whose results ``step`` changes, and its inputs."""
    known = _values(graph, inputs)

    def fails(nodes: Sequence[Node]) -> bool:
        part, feeds = _part(graph, nodes, known)
        try:
            return bool(_differs(part, _passed(part, step), feeds, extra))
        except (TenonError, *HOSTILE):
            return False

    return _part(graph, _ddmin(graph.nodes, fails), known)


def _values(graph: Graph, inputs: dict[str, Array]) -> dict[Value, Array]:
    """Every value of the graph."""
    known = {v: inputs[v.name] for v in graph.inputs}

    def step(node: Node, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
        results = by_reference(node, arrays)
        known.update(zip(node.outputs, results, strict=False))
        return results

    evaluate(graph, inputs, step)
    return known


def _part(graph: Graph, nodes: Sequence[Node], known: dict[Value, Array]) -> tuple[Graph, dict[str, Array]]:
    """These nodes as a graph: values computed by others are inputs, values read by others are outputs."""
    part, feeds = Graph(graph.name, graph.source), dict[str, Array]()
    twin: dict[Value, Value] = {}

    def of(value: Value) -> Value:
        if value not in twin and value.data is not None:
            twin[value] = Value(value.name, value.type, value.data)
        elif value not in twin:
            twin[value] = part.add_input(value.name, value.type)
            feeds[value.name] = known[value]
        return twin[value]

    inside = set(nodes)
    for node in graph:
        if node in inside:
            inputs = [None if v is None else of(v) for v in node.inputs]
            names, bodies = [v.name for v in node.outputs], [body.copy() for body in node.bodies]
            made = part.add(node.op, inputs, names, node.origin, bodies=bodies)
            twin.update(zip(node.outputs, made.outputs, strict=True))
    wanted = [v for node in graph if node in inside for v in node.outputs]
    part.outputs = [twin[v] for v in wanted if graph.is_output(v) or any(user not in inside for user in v.uses)]
    part.outputs = part.outputs or [twin[v] for v in wanted[-1:]]
    return part, feeds


def _ddmin(nodes: Sequence[Node], fails: Callable[[Sequence[Node]], bool]) -> list[Node]:
    """A minimal list of nodes that fail."""
    rest, count = list(nodes), 2
    while len(rest) > 1:
        size = -(-len(rest) // count)
        chunks = [rest[i : i + size] for i in range(0, len(rest), size)]
        others = [[n for n in rest if n not in chunk] for chunk in chunks]
        smaller = next((c for c in (*chunks, *others) if 0 < len(c) < len(rest) and fails(c)), None)
        if smaller is not None:
            count = 2 if len(smaller) <= size else max(2, count - 1)
            rest = smaller
        elif size == 1:
            break
        else:
            count = min(len(rest), 2 * count)
    return rest


def _written(graph: Graph, stem: Path) -> Path:
    """The graph as an ONNX file, or as text where ONNX lacks an operator."""
    from tenon.formats.exporters.onnx import to_onnx
    from tenon.network.graph.text import show

    try:
        path, content = stem.with_suffix(".onnx"), bytes(to_onnx(graph).SerializeToString())
    except UnsupportedError:
        path, content = stem.with_suffix(".txt"), show(graph).encode()
    try:
        write(path, content)
    except InputError as error:
        return Path(f"nowhere ({error})")
    return path
