"""Building of a graph with type inference and constant folding.

A node is typed as soon as the types of all its inputs are known and bound, and folded if all of them are constants, so
the shape arithmetic of model exporters never enters the graph.  Problems are collected: the outputs of a node with a
problem stay untyped, and ``finish`` reports all problems.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from tenon.errors import InternalError, Problem, ShapeError, UnknownError, UnsupportedError
from tenon.network.graph.fixed import remedy
from tenon.network.graph.graph import Array, Graph, Node, Operation, Origin, Stored, Value
from tenon.network.graph.run_time_sizes import RunTimeSizes
from tenon.network.graph.sized_node import FIX, SizedNode, SizeRefusedError, UnboundedSizeError
from tenon.network.graph.sizes import UndecidedError
from tenon.network.graph.types import TensorType

LARGEST_TENSOR = 2**31
"""Elements.  Kernels address a tensor with 32-bit offsets."""

FOLDING_ALLOWANCE = 2**28
"""Bytes that folding may add to constants, plus four times the size of the model's data."""

MOST_NODES = 2**16
"""Most nodes after expanding functions and loops: far more than networks for edge devices have, and built in seconds.
A file of a kilobyte can expand to billions."""

NESTED_ATTEMPTS = 4
"""Loops within each other of which several ways to import them are tried."""

HOSTILE = (ArithmeticError, AssertionError, LookupError, MemoryError, TypeError, ValueError)
"""Exceptions caused by inconsistent attributes or data of damaged models."""


def reason(error: BaseException) -> str:
    """The message of a ``HOSTILE`` error without implementation details."""
    match error:
        case KeyError():
            return f"there is no {error.args[0]!r}" if error.args else "something is missing"
        case IndexError():
            return "a list is shorter than it should be"
        case MemoryError():
            return "it needs more memory than there is"
        case _:
            return str(error) or type(error).__name__


FOLDING_MACS = 2**32
"""Most multiplications of constant folding: a few seconds, and more than any valid model needs."""
LONGEST_MESSAGE = 1000
HIGHEST_RANK = 32
"""Most axes of a tensor: NumPy's limit for broadcasting."""


class Names:
    """Unused names for values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._taken = {v.name for v in graph.values()}
        self._next: dict[str, int] = {}
        self._stems: dict[str, str] = {}

    def fresh(self, stem: str) -> str:
        """``stem`` if it is free, else the first free one of stem_1, stem_2 ...; "value" for an empty stem."""
        stem = stem or "value"
        name, n = stem, self._next.get(stem, 0)
        while name in self._taken:
            n += 1
            name = f"{stem}_{n}"
        self._next[stem] = n
        self._taken.add(name)
        if n:
            self._stems[name] = stem
        return name

    def stem(self, name: str) -> str:
        """The name in the file of a value whose own name is ``name``: several copies of a body have it."""
        while name in self._stems:
            name = self._stems[name]
        return name

    def stands_for(self, name: str, stem: str) -> None:
        """Let ``name`` be known to users as ``stem``."""
        self._stems[name] = stem


def is_known(value: Value) -> bool:
    """Whether the value's type is known and bound."""
    return value.typed and value.type.bound


@dataclass(frozen=True)
class Mark:
    """The state of a ``Writer``, to return to."""

    nodes: int
    problems: int
    all_shapes: bool
    allowance: tuple[int, int]


class Writer:
    """Appends nodes to ``graph``.  ``model_bytes`` is the size of the model's data."""

    def __init__(self, graph: Graph, model_bytes: int = 0) -> None:
        self.graph = graph
        self.names = Names(graph)
        self.sizes = RunTimeSizes(self)
        self.problems: list[Problem] = []
        self.needs: dict[str, None] = {}
        self._all_shapes = True
        self._allowance = FOLDING_ALLOWANCE + 4 * model_bytes
        self._macs = FOLDING_MACS
        self._nodes = MOST_NODES
        self.attempts = 0
        """Attempts that are going on, one within the other; ``restore`` may take each of them back."""

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """A context manager around what may be taken back by ``restore``."""
        self.attempts += 1
        try:
            yield
        finally:
            self.attempts -= 1

    @property
    def may_attempt(self) -> bool:
        """Whether there may be another attempt within those that are going on: their number is exponential in these."""
        return self.attempts < NESTED_ATTEMPTS

    def report(
        self,
        origin: Origin | str,
        what: str,
        remedy: str = "",
        *,
        shape: bool = False,
        inputs: Sequence[Value | None] = (),
    ) -> None:
        """Record a problem of the model; ``shape``: it concerns only shapes."""
        self.problems.append(Problem(str(origin), _shortened(what), remedy, _types(inputs)))
        self._all_shapes = self._all_shapes and shape

    def finish(self) -> None:
        """Raise ShapeError or UnsupportedError if there are problems; duplicates are reported once."""
        if not self.problems:
            return
        unsupported = UnsupportedError(self.graph.source or self.graph.name, list(dict.fromkeys(self.problems)))
        error = ShapeError(str(unsupported)) if self._all_shapes else unsupported
        error.needs = tuple(self.needs)
        raise error

    def mark(self) -> Mark:
        """The present state, for ``restore``."""
        allowance = self._allowance, self._macs
        return Mark(len(self.graph), len(self.problems), self._all_shapes, allowance)

    def restore(self, mark: Mark) -> None:
        """Remove the nodes that were added since then, and forget the problems.  They count as nodes all the same, so
        that a file whose import fails in many ways is not tried for ever."""
        for node in reversed(self.graph.nodes[mark.nodes :]):
            self.graph.remove(node)
        del self.problems[mark.problems :]
        self._all_shapes = mark.all_shapes
        self._allowance, self._macs = mark.allowance

    def charge(self, origin: Origin) -> None:
        """Count one node, or one expansion of a function.  Raises UnsupportedError beyond ``MOST_NODES``
        immediately: the expansion must not continue."""
        self._nodes -= 1
        if self._nodes < 0:
            what = f"functions and loops expand to more than {MOST_NODES} nodes"
            problem = Problem(
                str(origin), what, "export the model with its functions inlined, or cut it with --from and --to"
            )
            raise UnsupportedError(self.graph.source or self.graph.name, [problem])

    def fresh(self, stem: str) -> str:
        """A name that no value of the graph has."""
        return self.names.fresh(stem)

    def stem(self, name: str) -> str:
        """The name in the file of a value of this name."""
        return self.names.stem(name)

    def constant(self, stem: str, data: Array) -> Value:
        return self.graph.constant(self.names.fresh(stem), data)

    def add(
        self,
        op: Operation,
        inputs: Sequence[Value | None],
        names: Sequence[str],
        origin: Origin,
        bodies: Sequence[Graph] = (),
    ) -> tuple[Value, ...]:
        """The outputs of a new node, or constants if it was folded."""
        self.charge(origin)
        names = [self.names.fresh(name) for name in names]
        least, most = op.arity
        if not least <= len(inputs) <= most:
            self.report(origin, f"{op.name} takes {least} to {most} inputs, not {len(inputs)}", inputs=inputs)
            return tuple(Value(name) for name in names)
        if absent := [i for i, value in enumerate(inputs[:least]) if value is None]:
            self.report(origin, f"{op.name} needs its input {absent[0]}, which is missing", inputs=inputs)
            return tuple(Value(name) for name in names)
        if self.sizes.concern(inputs) and all(v is None or is_known(v) for v in inputs):
            return self._sized(op, inputs, names, origin, bodies)
        try:
            made = self._plain(op, inputs, names, origin, bodies)
        except UnknownError as error:
            return self._sized(op, inputs, names, origin, bodies, error)
        if self.sizes.counting and all(map(is_known, made)):
            self.sizes.use(op)
            for value, axis in zip(made, op.counted_axes(inputs), strict=False):
                if axis is not None and not made[-1].constant:
                    self.sizes.count(value, axis, made[-1])
        return made

    def plain(
        self,
        op: Operation,
        inputs: Sequence[Value | None],
        names: Sequence[str],
        origin: Origin,
        bodies: Sequence[Graph] = (),
    ) -> tuple[Value, ...]:
        """As ``add``, for buffers as they are, whatever of their extents only a run knows; ``names`` are free."""
        given = [None if v is None else self.sizes.made(v, origin) for v in inputs]
        try:
            return self._plain(op, given, names, origin, bodies)
        except UnknownError as error:
            self._report_unknown(error, origin, inputs)
            return tuple(Value(name) for name in names)

    def _plain(
        self,
        op: Operation,
        inputs: Sequence[Value | None],
        names: Sequence[str],
        origin: Origin,
        bodies: Sequence[Graph],
    ) -> tuple[Value, ...]:
        """As ``plain``.  Raises UnknownError."""
        node = self.graph.add(op, inputs, names, origin, infer=False, bodies=bodies)
        if all(v is None or is_known(v) for v in node.inputs) and self._infer(node):
            data = self._fold(node)
            if data is not None:
                stored = _stored(node)
                self.graph.remove(node)
                made = tuple(self.graph.constant(name, a) for name, a in zip(names, data, strict=False))
                made[0].stored = stored
                return made
        return node.outputs

    def _sized(
        self,
        op: Operation,
        inputs: Sequence[Value | None],
        names: Sequence[str],
        origin: Origin,
        bodies: Sequence[Graph],
        unknown: UnknownError | None = None,
    ) -> tuple[Value, ...]:
        """The outputs of a node of which extents are known only at run time."""
        self.sizes.use(op)
        node = SizedNode(self, op, list(inputs), names, origin, bodies)
        refused, bound = ("", ""), ""
        try:
            return self._named(names, self._by_rule(node), inputs)
        except UnboundedSizeError as error:
            refused, bound = (error.what, error.remedy), error.remedy
        except SizeRefusedError as error:
            refused = error.what, error.remedy
        except UndecidedError as error:
            refused = f"{op.name}: an extent of its result cannot be told: {error}", FIX
        except ShapeError as error:
            refused = str(error), ""
        except HOSTILE as error:
            refused = f"inputs and attributes contradict each other: {reason(error)}", ""
        if unknown is not None:
            self._report_unknown(unknown, origin, inputs, bound)
        else:
            self.report(origin, *refused, shape=True, inputs=inputs)
        return tuple(Value(name) for name in names)

    def _by_rule(self, node: SizedNode) -> Sequence[Value]:
        """The results of a node as expressions, or by the rule of its operator."""
        if any(v in self.sizes.symbolic for v in node.inputs if v is not None):
            elements = [self.sizes.elements_of(v) for v in node.inputs]
            if all(v is None or e is not None for v, e in zip(node.inputs, elements, strict=True)):
                try:
                    types = node.op.infer(node.inputs)
                    results = node.op.symbolic(elements, types)
                except (UndecidedError, UnknownError):
                    results = None
                if results is not None:
                    made = zip(node.names, types, results, strict=False)
                    return [self.sizes.symbolic_value(name, type, array) for name, type, array in made]
        return node.op.at_run_time(node)

    def _named(
        self, names: Sequence[str], results: Sequence[Value], inputs: Sequence[Value | None]
    ) -> tuple[Value, ...]:
        for name, value in zip(names, results, strict=False):
            if value.name.startswith(f"{names[0]}_part") and not any(value is v for v in inputs):
                value.name = name
        return tuple(results)

    def _report_unknown(
        self, error: UnknownError, origin: Origin, inputs: Sequence[Value | None], bound: str = ""
    ) -> None:
        remedy = "; or ".join(filter(None, (bound, self.fixing(error.value))))
        what = str(error)
        if isinstance(error.value, Value):
            what = what.replace(f"'{error.value.name}'", f"'{self.names.stem(error.value.name)}'")
        self.report(origin, what, remedy, shape=True, inputs=inputs)

    def _infer(self, node: Node) -> bool:
        wrong = _wrong_input(node)
        if wrong:
            self.report(node.origin, wrong)
            return False
        try:
            types = node.infer()
        except UnknownError:
            self.graph.remove(node)
            raise
        except ShapeError as error:
            self.report(node.origin, str(error), shape=True, inputs=node.inputs)
            return False
        except HOSTILE as error:
            what = f"inputs and attributes contradict each other: {reason(error)}"
            self.report(node.origin, what, shape=True, inputs=node.inputs)
            return False
        wrong = _wrong_type(node, types)
        if wrong:
            self.report(node.origin, wrong, inputs=node.inputs)
            return False
        for value, type in zip(node.outputs, types, strict=False):
            value.type = type
        return True

    def need(self, value: object) -> list[str]:
        """The graph inputs that a value depends on; they are recorded as needed at compile time."""
        names, todo, visited = list[str](), [value], set[int]()
        while todo:
            current = todo.pop()
            if isinstance(current, Value) and id(current) not in visited:
                visited.add(id(current))
                if current in self.graph.inputs:
                    names.append(current.name)
                elif current.producer is not None:
                    todo += current.producer.inputs
        self.needs.update(dict.fromkeys(names))
        return sorted(names)

    def fixing(self, value: object, otherwise: str = "") -> str:
        """The options that make a value known when compiling, which are recorded as needed.

        Where it is computed from whole arrays, fixing these would leave nothing to compute: then the value itself is
        to be an input that is fixed.
        """
        names = self.need(value)
        arrays = [v for v in self.graph.inputs if v.name in names and not (is_known(v) and v.type.size <= 1)]
        if arrays and isinstance(value, Value) and value.producer is not None:
            name = self.names.stem(value.name)
            return f"make '{name}' an input and fix it, to the largest that is needed: --from {name} --value {name}=N"
        return remedy(names, otherwise)

    def _fold(self, node: Node) -> tuple[Array, ...] | None:
        """The node's results if it can be folded."""
        if not can_fold(node):
            return None
        cost = sum(v.type.nbytes for v in node.outputs)
        if cost > self._allowance:
            what = f"is made of constants alone, and its result is too large to keep: {node.output.type}"
            self.report(node.origin, what, "the file is damaged, or builds data that belongs into an input")
            return None
        self._macs -= node.op.macs([v.type if v else None for v in node.inputs], [v.type for v in node.outputs])
        if self._macs < 0:
            self.report(node.origin, "is made of constants alone, and takes too long to compute", "the file is damaged")
            return None
        try:
            data = evaluate(node)
        except ShapeError as error:
            self.report(node.origin, str(error), inputs=node.inputs)
            return None
        except HOSTILE as error:
            self.report(node.origin, f"cannot be computed from its constants: {reason(error)}")
            return None
        self._allowance -= sum(a.nbytes for a in data if a.size == 1 or any(a.strides))
        return data


def _shortened(what: str) -> str:
    """Truncate messages filled with numbers from damaged files."""
    return (
        what if len(what) <= LONGEST_MESSAGE else f"{what[: LONGEST_MESSAGE // 2]} ... {what[-LONGEST_MESSAGE // 4 :]}"
    )


def _types(inputs: Sequence[Value | None]) -> str:
    """The known input types of a node."""
    return ", ".join("-" if v is None else str(v.type) if v.typed else "?" for v in inputs)


def _wrong_input(node: Node) -> str:
    for value in node.inputs:
        if value is None or not value.typed:
            continue
        if value.type.rank > HIGHEST_RANK:
            return f"reads a tensor of {value.type.rank} axes; at most {HIGHEST_RANK} are possible"
        if value.producer is None and value.type.bound and max(value.type.size, *value.type.dims, 0) > LARGEST_TENSOR:
            return f"reads '{value.name}', {value.type}; at most {LARGEST_TENSOR} elements are possible"
    return ""


def _wrong_type(node: Node, types: Sequence[TensorType]) -> str:
    if len(types) < len(node.outputs):
        return f"{node.op.name} has {len(types)} output(s) here, the model asks for {len(node.outputs)}"
    for type in types:
        if any(not 0 <= d <= LARGEST_TENSOR for d in type.dims):
            return f"the output's shape would be {list(type.dims)}"
        if type.size > LARGEST_TENSOR:
            return f"the output {type} is too large: at most {LARGEST_TENSOR} elements are possible"
    return ""


def _stored(node: Node) -> Stored | None:
    """The integers behind the result of a foldable node: of DequantizeLinear, and of what moves its elements."""
    x = node.inputs[0] if node.inputs else None
    return None if x is None or x.data is None else node.op.dequantised_from(node.inputs, node.output.type.dims)


def can_fold(node: Node) -> bool:
    """Whether all inputs are constant or empty, or only their shapes matter."""
    if node.op.reads_shapes_only():
        return True
    given = [v for v in node.inputs if v is not None]
    return bool(given) and all(v.constant or (v.typed and v.type.bound and not v.type.size) for v in given)


def evaluate(node: Node) -> tuple[Array, ...]:
    """The results of a foldable node.

    Raises ShapeError for a function of real numbers given integers, InternalError for results of any other wrong type.
    """
    arrays: list[Array | None] = []
    for value in node.inputs:
        if value is None or value.constant:
            arrays.append(None if value is None else value.data)
        else:
            arrays.append(np.broadcast_to(np.zeros((), value.type.dtype.numpy), value.type.dims))
    results = tuple(np.asarray(a) for a in node.evaluate(arrays))
    for value, array in zip(node.outputs, results, strict=False):
        if (array.dtype, array.shape) != (value.type.dtype.numpy, value.type.dims):
            if array.dtype.kind == "f" and not value.type.dtype.is_float:
                raise ShapeError(f"{node.op.name} is not defined for {value.type.dtype}")
            actual = f"{array.dtype}{list(array.shape)}"
            raise InternalError(f"{node.origin}: {node.op} gave {actual} where its type rule says {value.type}")
    return results[: len(node.outputs)]
