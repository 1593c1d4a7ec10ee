"""Random valid graphs: test cases of operators with other shapes, attributes and operands, combined where types fit."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from fuzzing.idioms import IDIOMS
from fuzzing.moves import MOVES
from fuzzing.numbers import ordinary, special
from tenon.errors import TenonError, UnsupportedError
from tenon.machine.kernels.machine import Machine
from tenon.machine.plan.lower import check
from tenon.machine.plan.lowering_context import Setting, site
from tenon.network.graph.graph import Array, Graph, Node, Origin, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.graph.verify import impossible_quantisation
from tenon.network.graph.writer import HOSTILE
from tenon.network.ops import registry
from tenon.network.ops.base import Case, Operator
from tenon.network.ops.region import RoiAlign
from tenon.network.passes import optimize
from tenon.network.passes.tolerance import UNIT

T = TypeVar("T")

ORDERED = frozenset(
    {
        "ArgMax",
        "ArgMin",
        "DirectMaxPool",
        "GlobalMaxPool",
        "Max",
        "MaxPool",
        "MaxPoolWithIndices",
        "Min",
        "QuantizeLinear",
        "ReduceMax",
        "ReduceMin",
        "ScatterElements",
        "ScatterND",
        "TopK",
        "Unique",
    }
)
"""Operators that select a maximum or produce integers: their result for NaN is unspecified."""

PLACES = frozenset(
    {
        "CumProd",
        "Det",
        "DetectionOutput",
        "DetectionPostProcess",
        "MaxRoiPool",
        "NonMaxSuppression",
        "Proposal",
        "PsRoiAlign",
        "PsRoiPool",
        "ReduceProd",
        "Resize",
        "RoiAlign",
    }
)
"""Operators whose operands are coordinates, and products of many numbers, whose overflow depends on the order."""

SPREADING = frozenset({"ConvTranspose", "AveragePool", "DirectAveragePool", "DirectConv", "DirectConvTranspose"})
"""Operators that multiply by zero padding, or whose windows may consist of padding only."""

EXTENTS = (1, 1, 2, 3, 5, 7, 8, 13, 16, 17, 19, 23, 31, 33)
"""Extents: one, primes, and the number of lanes plus or minus one."""

MOST_ELEMENTS = 20_000
"""Most elements of a tensor: kernels are compiled without optimisation, and compared with NumPy."""

MOST_SAMPLES = 1_000_000
"""Most samples of regions for onnxruntime."""

MACHINE = Machine(lanes=16, registers=32, block=16)


@dataclass
class Sample:
    """A graph, its feeds, and its seed."""

    seed: int
    graph: Graph
    feeds: dict[str, Array]
    wild: bool
    """Whether feeds include NaN, infinities, denormals and extreme integers."""
    endless: str = ""
    """Why onnxruntime would not terminate in reasonable time, or an empty text."""


def sample(seed: int) -> Sample:
    """The graph of a seed."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of empty arrays
        return Generator(seed).sample()


@cache
def catalogue() -> dict[str, list[Case]]:
    """The test cases of all operators that models can contain."""
    return {
        name: cases for name, cls in sorted(registry().items()) if not cls.internal and (cases := list(cls.cases()))
    }


@dataclass
class Generator:
    """Builds one graph; ``known`` has the value of each tensor for the feeds."""

    seed: int
    nodes: int = 8
    """Maximum number of nodes, without those that adapt operands."""
    idioms: float = 0.45
    """Probability of an idiom of real networks instead of an operator's test case."""
    moves: float = 0.2
    """Probability of a data movement operator."""
    graph: Graph = field(init=False)
    known: dict[Value, Array] = field(default_factory=dict)
    pool: list[Value] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)
    count: int = 0

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.graph = Graph(f"g{self.seed}")
        self.wild = self.chance(0.2)
        self.nothing = self.chance(0.1)  # some dimension may be zero

    def sample(self) -> Sample:
        wanted = 1 + int(self.rng.integers(self.nodes))
        for _ in range(6 * wanted):
            if len(self.graph) >= wanted:
                break
            self.grow()
        self.finish()
        regions = [(n.op, self.known[n.inputs[1]]) for n in self.graph if isinstance(n.op, RoiAlign) and n.inputs[1]]
        why = next((why for op, ends in regions if (why := endless(op, ends))), "")
        return Sample(self.seed, self.graph, self.feeds, self.wild, why)

    def grow(self) -> None:
        if self.chance(self.moves) and self.moved():
            return
        images = [v for v in self.pool if v.type.dtype is DType.F32 and v.type.rank == 4 and v.type.size]
        if self.chance(self.idioms) and (images or self.chance(0.5)):
            x = self.pick(images) if images else self.fresh(ordinary(self.rng, self.image(), DType.F32))
            self.pick(IDIOMS)(self, x)
            return
        name = self.pick(list(catalogue()))
        self.apply(self.pick(catalogue()[name]))

    def moved(self) -> bool:
        """Add a data movement of one of the last values; returns whether a node was added."""
        there = [v for v in self.pool[-6:] if v.type.rank and (self.nothing or v.type.size)]
        if not there:
            return False
        before = len(self.graph)
        try:
            self.pick(MOVES)(self, self.pick(there))
        except (TenonError, *HOSTILE):
            self.withdraw(before)
        return len(self.graph) > before

    def withdraw(self, before: int) -> None:
        """Remove the nodes that came after the first ``before``."""
        for node in reversed(self.graph.nodes[before:]):
            self.graph.remove(node)
            self.pool = [v for v in self.pool if v.producer is not node]

    # ------------------------------------------------------------------------------------- chances
    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def extent(self) -> int:
        return 0 if self.nothing and self.chance(0.15) else self.pick(EXTENTS)

    def image(self) -> tuple[int, ...]:
        while True:
            shape = (self.pick((1, 1, 2, 3)), self.pick(EXTENTS), self.pick(EXTENTS), self.pick(EXTENTS))
            if int(np.prod(shape)) <= 4000:
                return shape

    # -------------------------------------------------------------------------------------- values
    def fresh(self, data: Array, *, constant: bool = False) -> Value:
        """A new input or constant that holds ``data``."""
        data = np.asarray(data)
        self.count += 1
        if constant:
            value = self.graph.constant(f"c{self.count}", data)
        else:
            value = self.graph.add_input(f"x{self.count}", TensorType(DType.of(data.dtype), data.shape))
            self.feeds[value.name] = data
        self.known[value] = data
        return value

    def add(self, op: Operator | str, *inputs: Value | None, **attributes: Any) -> Value:
        """The first output of a new node.  Raises TenonError for inputs that do not fit."""
        if isinstance(op, str):
            op = registry()[op](**attributes)
        self.count += 1
        count = len(op.infer(list(inputs)))
        names = [f"v{self.count}_{i}" if i else f"v{self.count}" for i in range(count)]
        node = self.graph.add(op, inputs, names, Origin("", names[0], op.name))
        try:
            self.settle(node)
        except (TenonError, *HOSTILE):
            self.graph.remove(node)
            raise
        self.pool += [v for v in node.outputs if v.type.size <= MOST_ELEMENTS]
        return node.output

    def settle(self, node: Node) -> None:
        """Evaluate a new node.  Raises TenonError if Tenon rejects it, or its result is not meaningful."""
        if any(v.type.size > MOST_ELEMENTS for v in node.outputs):
            raise UnsupportedError("fuzzing", ())
        if node.op.supported(site(node, Setting(MACHINE))):  # type: ignore[attr-defined]
            check(lowered_alone(node), Setting(MACHINE))
        arrays = [None if v is None else self.known[v] for v in node.inputs]
        if not meaningful(node, [a for a in arrays if a is not None and fractional(a)]):
            raise UnsupportedError("fuzzing", ())
        results = node.op.evaluate(arrays)
        for value, array in zip(node.outputs, results, strict=True):
            if not self.wild and array.dtype.kind == "f" and not is_bounded(array):
                raise UnsupportedError("fuzzing", ())
            self.known[value] = np.asarray(array)

    def numbers(self, shape: tuple[int, ...], dtype: DType, low: float = -1, high: float = 1) -> Array:
        data = ordinary(self.rng, shape, dtype, low, high)
        return special(self.rng, data) if self.wild and self.chance(0.5) else data

    # --------------------------------------------------------------------------------------- cases
    def apply(self, case: Case) -> None:
        """Add a variation of the node of ``case``; nothing if it is not meaningful."""
        op = self.varied(case.op) if self.chance(0.3) else case.op
        shapes = self.stretched(case) if self.chance(0.6) else case.inputs
        before = len(self.graph)
        try:
            self.add(op, *[self.operand(case, i, given) for i, given in enumerate(shapes)])
        except (TenonError, *HOSTILE):
            self.withdraw(before)  # nodes that were added for this one only

    def operand(self, case: Case, i: int, given: Array | tuple[int, ...] | None) -> Value | None:
        if given is None:
            return None
        constant = i in case.constant
        dtypes = (*case.dtypes, *(DType.F32,) * len(case.inputs))
        dtype = dtypes[i] if isinstance(given, tuple) else DType.of(given.dtype)
        shape: tuple[int, ...] = given if isinstance(given, tuple) else given.shape
        if not constant and dtype.is_float and self.chance(0.75):
            existing = self.reused(shape, dtype)
            if existing is not None:
                return existing
        if isinstance(given, tuple):
            data = ordinary(self.rng, shape, dtype, case.low, case.high)
            if self.wild and not constant and self.chance(0.5):
                data = special(self.rng, data)
        else:
            data = special(self.rng, given) if self.wild and not constant and dtype is DType.F32 else given
        return self.fresh(data, constant=constant)

    def reused(self, shape: tuple[int, ...], dtype: DType) -> Value | None:
        """An existing value: of that shape, of a shape that happens to fit, or adapted to fit."""
        alike = [v for v in self.pool if v.type.dtype is dtype]
        same = [v for v in alike if v.type.dims == shape]
        if same and self.chance(0.8):
            return self.pick(same[-4:])
        near = [v for v in alike if v.type.rank == len(shape)]
        if near and self.chance(0.4):
            return self.pick(near[-4:])
        full = [v for v in alike if v.type.size]
        return self.reshaped(self.pick(full[-4:]), shape) if full and self.chance(0.7) else None

    def reshaped(self, x: Value, shape: tuple[int, ...]) -> Value:
        """``x`` reshaped: flattened, repeated or truncated."""
        size = int(np.prod(shape))
        flat = x if x.type.rank == 1 else self.add("Reshape", x, self.integers(-1))
        repeats = -(-size // flat.type.size)
        if repeats > 1:
            flat = self.add("Tile", flat, self.integers(repeats))
        if flat.type.size > size:
            flat = self.add("Slice", flat, self.integers(0), self.integers(size))
        if shape == flat.type.dims:
            return flat
        return self.add("Reshape", flat, self.integers(*shape), allowzero=1)

    def integers(self, *numbers: int) -> Value:
        return self.fresh(np.array(numbers, np.int64), constant=True)

    # ------------------------------------------------------------------------------------- changes
    def stretched(self, case: Case) -> tuple[Array | tuple[int, ...] | None, ...]:
        """The inputs with some extents replaced by others, the same everywhere."""
        present = {n for given in case.inputs if isinstance(given, tuple) for n in given}
        swap = {n: self.extent() for n in sorted(present) if self.chance(0.5)}
        grown = tuple(tuple(swap.get(n, n) for n in g) if isinstance(g, tuple) else g for g in case.inputs)
        if any(isinstance(g, tuple) and int(np.prod(g)) > MOST_ELEMENTS for g in grown):
            return case.inputs
        return self.broadcast(grown) if self.chance(0.15) else grown

    def broadcast(
        self, inputs: tuple[Array | tuple[int, ...] | None, ...]
    ) -> tuple[Array | tuple[int, ...] | None, ...]:
        """One input with an axis of one element, or with fewer or more axes."""
        at = int(self.rng.integers(len(inputs)))
        shape = inputs[at]
        if not isinstance(shape, tuple) or not shape:
            return inputs
        axis = int(self.rng.integers(len(shape)))
        other = self.pick([(*shape[:axis], 1, *shape[axis + 1 :]), shape[1:], (1, *shape)])
        return (*inputs[:at], other, *inputs[at + 1 :])

    def varied(self, op: Operator) -> Operator:
        """The operator with one attribute changed."""
        changes: list[tuple[str, Any]] = []
        for f in fields(op):
            value = getattr(op, f.name)
            if isinstance(value, bool) or (isinstance(value, int) and f.name != "axis" and value in (0, 1)):
                changes.append((f.name, 1 - value))
            elif f.name == "axis":
                changes.append((f.name, int(self.rng.integers(-3, 4))))
            elif isinstance(value, int):
                changes.append((f.name, self.pick((0, 1, 2, 3))))
            elif isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
                at = int(self.rng.integers(len(value)))
                changes.append((f.name, (*value[:at], int(self.rng.integers(4)), *value[at + 1 :])))
            elif isinstance(value, float):
                changes.append((f.name, self.pick((0.0, 0.5, 1.0, -1.0, 2.0))))
        if not changes:
            return op
        name, value = self.pick(changes)
        try:
            return replace(op, **{name: value})
        except (TenonError, *HOSTILE):
            return op

    # ----------------------------------------------------------------------------------------- end
    def finish(self) -> None:
        """Choose outputs: unused values, and sometimes used ones.  Most unused inputs are removed."""
        if not len(self.graph):
            self.add("Relu", self.fresh(self.numbers((3, 5), DType.F32)))
        made = [v for node in self.graph for v in node.outputs]
        outputs = [v for v in made if not v.uses or self.chance(0.1)]
        self.graph.outputs = [v for v in outputs if v.type.size or not self.chance(0.5)] or made[-1:]
        self.graph.inputs = [v for v in self.graph.inputs if v.uses or self.chance(0.05)]
        self.feeds = {v.name: self.feeds[v.name] for v in self.graph.inputs}


def fractional(array: Array) -> bool:
    """Whether the element type is a float, including the narrow ones."""
    dtype = DType.of(array.dtype)
    return dtype.is_float or dtype.is_small_float


def meaningful(node: Node, floats: Sequence[Array]) -> bool:
    """Whether the result is specified for such operands."""
    op = node.op
    assert isinstance(op, Operator)
    if any(v.type.quant is not None and impossible_quantisation(v.type) for v in node.outputs):
        return False
    if op.bilinear and len({v.type.dtype for v in node.inputs if v is not None}) > 1:
        return False
    if node.op.name in PLACES:
        return all(is_bounded(a) for a in floats)
    if node.op.name in SPREADING or getattr(node.op, "group", 1) > 1:  # kernels multiply zeros beside a group
        return all(np.isfinite(a.astype(np.float64)).all() for a in floats)
    if node.op.name == "Pow":  # C's pow(-inf, 0.5) is infinite, a square root is NaN
        return not np.isneginf(floats[0].astype(np.float64)).any() if floats else True
    result = node.output.type.dtype
    if node.op.name == "Cast" and not (result.is_float or result.is_small_float):  # others may be any integer
        return all((np.abs(a.astype(np.float64)) < 2**31).all() for a in floats)
    stored_only = result.carrier is not result and result not in UNIT
    if stored_only and not (op.exact() or (op.converts and op.name != "DequantizeLinear")):
        return False  # ONNX does not define how arithmetic in 8-bit floats and 4-bit integers rounds
    if node.op.name == "QuantizeLinear" and not floats[1].astype(np.float64).all():  # 0 / 0 is NaN
        return False
    if node.op.name == "Mod" and floats:  # the quotient is computed in f64
        x, y = (a.astype(np.float64) for a in floats)
        with np.errstate(all="ignore"):
            return not (np.isfinite(x / y) & (np.abs(x / y) >= 2**29)).any()
    if node.op.name in {"Sin", "Cos", "Tan"}:  # the spacing of large operands exceeds the period
        return is_bounded(floats[0])
    if node.op.name == "Clip":  # bounds that are NaN
        return not any(np.isnan(a.astype(np.float64)).any() for a in floats[1:])
    if node.op.name == "BitCast":  # the sign and the payload of NaN may be any
        return not any(np.isnan(a.astype(np.float64)).any() for a in floats)
    if node.op.name == "Gelu":  # -inf times a number that rounds to zero
        return not any(np.isneginf(a.astype(np.float64)).any() for a in floats)
    if node.op.name == "OneHot" and node.inputs[0] and node.inputs[0].type.dtype.is_float:  # cast to integers
        return is_bounded(floats[0])
    return node.op.name not in ORDERED or not any(np.isnan(a.astype(np.float64)).any() for a in floats)


def endless(op: RoiAlign, regions: Array) -> str:
    """Empty, or why onnxruntime would not terminate in reasonable time: it evaluates all samples of a region."""
    ends = regions.astype(np.float64) * op.spatial_scale
    sizes = np.ceil(ends[:, 2:] - ends[:, :2]) + np.array([op.output_width, op.output_height])
    most = 0 if op.sampling_ratio else np.maximum(sizes, 0).prod(1).sum()
    return f"regions of more than {MOST_SAMPLES} samples" if most > MOST_SAMPLES else ""


def is_bounded(array: Array) -> bool:
    """Whether all numbers are finite and small enough for one or two products."""
    wide = array.astype(np.float64)
    return bool(np.isfinite(wide).all() and np.abs(wide).max(initial=0.0) < 1e6)


def lowered_alone(node: Node) -> Graph:
    """The node as a graph of its own, as it is before lowering."""
    alone = Graph("alone")
    inputs: list[Value | None] = []
    for v in node.inputs:
        if v is None or v.constant:
            inputs.append(None if v is None else alone.constant(v.name, v.array))
        else:
            inputs.append(alone.add_input(v.name, v.type))
    made = alone.add(node.op, inputs, [v.name for v in node.outputs], node.origin)
    alone.outputs = list(made.outputs)
    return optimize(alone, level=0)
