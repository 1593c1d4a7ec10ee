"""The operator protocol.  One operator is one frozen dataclass: its fields are its attributes.

An operator has a type rule (``infer``), semantics (``reference``, in NumPy: this is the definition), preferred
layouts of its operands (``layouts``), aliases (``alias``: what it does without moving data), a lowering to loop IR
(``lower``) and test cases for all of these (``cases``).  Names and semantics are those of the newest ONNX; importers
decompose everything else into them.

``_template.py`` is a commented operator to copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, TypeVar

import numpy as np

from tenon.errors import InternalError, ShapeError, UnknownError
from tenon.machine.algorithms.base import Algorithm, Arg, Cost, Input, Limits, Output, Scratch, Step, Weights, lane_mask
from tenon.machine.kernels.image import Epilogue, Image, identity
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array, Graph, Stored, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.sizes import Expression
from tenon.network.graph.types import ROW_MAJOR, DType, Layout, TensorType
from tenon.network.ops.patch import Patch, Span
from tenon.network.ops.reach import Absorbed, CountedRead, Operands, Reaches


# ------------------------------------------------------------------------------------------- lowering
@dataclass(frozen=True)
class Site:
    """A node about to be lowered: the context that layouts, aliases and lowering depend on.

    ``extras`` are the operands of ``epilogue``, which come after the operator's own inputs.  ``clears`` says that
    the epilogue maps 0 to nonzero, so that padding lanes must be masked (see ``needs_clear``).
    ``placed`` are the inputs that are already stored in the output's memory (a concatenation in place, an operand that
    the output overwrites).
    ``algorithm`` is the one selected by a search or a budget; None leaves the choice to the operator.
    """

    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]
    constants: tuple[Array | None, ...]
    machine: Machine
    epilogue: Epilogue = identity
    extras: tuple[int, ...] = ()
    clears: bool = False
    placed: frozenset[int] = frozenset()
    algorithm: Algorithm | None = None
    limits: Limits = field(default_factory=Limits)

    def input(self, i: int) -> TensorType:
        """The type of an input."""
        type = self.inputs[i]
        assert type is not None
        return type

    def has(self, i: int) -> bool:
        """Whether an optional input is given."""
        return i < len(self.inputs) and self.inputs[i] is not None

    @property
    def output(self) -> TensorType:
        """The type of the first output."""
        return self.outputs[0]

    @property
    def fused(self) -> bool:
        """Whether pointwise steps are fused into the operator."""
        return self.epilogue is not identity


@dataclass(frozen=True)
class Layouts:
    """The layouts that an operator requires of its inputs and gives to its outputs.

    ``None`` for an input means any (the lowering takes the constant itself, or supports every layout).  A halo is
    the least required.  ``Layout(1, halo)`` with a halo, even of zeros, means an image whose blocks are single
    channels, and ``ROW_MAJOR`` that there may be no halo.
    """

    inputs: tuple[Layout | None, ...]
    outputs: tuple[Layout, ...]


@dataclass(frozen=True)
class Alias:
    """Output ``output`` is input ``input``'s memory from byte ``offset`` on, when ``inside`` is "input"; when it is
    "output", the input's memory is part of the output's (a concatenation in place).  With ``written`` the node also
    writes some of that memory, and nothing else may read the input."""

    input: int
    output: int
    offset: int = 0
    inside: str = "input"
    written: bool = False


# ---------------------------------------------------------------------------------------------- cases
@dataclass(frozen=True)
class Case:
    """A test case: an operator, and its inputs as arrays, or as shapes to fill with random numbers.
    ``constant`` names the inputs that are weights.  ``tolerance`` is the largest difference allowed, over the
    largest magnitude of the reference's result.
    """

    op: Operator
    inputs: tuple[Array | tuple[int, ...] | None, ...]
    constant: tuple[int, ...] = ()
    tolerance: float = 1e-5
    low: float = -1.0
    high: float = 1.0
    label: str = ""
    dtypes: tuple[DType, ...] = ()  # of the random inputs; f32 where there is none

    def arrays(self, seed: int = 0) -> list[Array | None]:
        """The inputs as arrays; shapes are filled with random numbers."""
        rng = np.random.default_rng(seed)
        dtypes = (*self.dtypes, *(DType.F32,) * len(self.inputs))
        return [
            rng.uniform(self.low, self.high, a).astype(np.float32).astype(dtype.numpy) if isinstance(a, tuple) else a
            for a, dtype in zip(self.inputs, dtypes, strict=False)
        ]


ROUNDED = 2.0**-7
"""Tolerance of results rounded to bf16: a value near the midpoint of two neighbours may be rounded to either, and they
are 2**-7 apart."""


# ------------------------------------------------------------------------------------------ operators
REGISTRY: dict[str, type[Operator]] = {}
_T = TypeVar("_T", bound="type[Operator]")


def register(cls: _T) -> _T:
    """Class decorator: register an operator by its name."""
    if cls.__name__ in REGISTRY:
        raise ValueError(f"operator {cls.__name__} is defined twice")
    REGISTRY[cls.__name__] = cls
    return cls


class ErrorBound(Enum):
    """The error bound of a result computed in floats from exact operands."""

    EXACT = "not at all"
    RESULT = "by a fraction of the result"
    PARTS = "by a fraction of the largest operand or result, or of one where these are larger, as what is summed is"


@dataclass(frozen=True)
class Operator(ABC):
    """Base of all operators; the defaults are safe: row-major operands, nothing aliased, nothing fused.

    The class variables are its traits: passes test them, never names.  ``tests/unit/test_traits.py`` checks each
    against the reference, on the operator's own cases.
    """

    arity: ClassVar[tuple[int, int]] = (1, 1)
    """The least and greatest number of inputs."""
    fusable: ClassVar[bool] = False
    """Whether ``lower`` applies ``site.epilogue`` to what it stores."""
    accuracy: ClassVar[ErrorBound] = ErrorBound.RESULT
    """The error bound of a result; that of operators that move data is always ``EXACT`` (see ``exact``)."""
    least_error: ClassVar[float] = 0.0
    """The absolute error bound of an f32 result, whatever the magnitudes of operands and result."""
    moves: ClassVar[bool] = False
    """Results are elements of the operands as they are, whatever their type, or follow from shapes and attributes."""
    rearranges: ClassVar[bool] = False
    """Results are elements of the first operand, at places that do not depend on its values: integers that stand for
    real numbers can be moved in their place."""
    selects: ClassVar[bool] = False
    """Results are elements of the first operand, selected by their order, which a positive scale keeps."""
    quantised: ClassVar[bool] = False
    """Computes on integers that stand for real numbers, in a named arithmetic."""
    converts: ClassVar[bool] = False
    """Results are the elements of the first operand, in another type or on another scale."""
    commutative: ClassVar[bool] = False
    """Whether the operator is commutative."""
    neutral: ClassVar[float | None] = None
    """The neutral second operand, for which the result is the first operand."""
    one_is_itself: ClassVar[bool] = False
    """A variadic operator that is the identity for a single operand."""
    bilinear: ClassVar[bool] = False
    """A sum of products of the first operand's elements with the second's, its weights, and a third operand."""
    along_axis: ClassVar[bool] = False
    """Has an attribute ``axis``; all other axes of its first operand are batch axes, in any order."""
    on_devices: ClassVar[bool] = True
    """Targets whose steps are launches on a device (GPUs) run it, as those whose steps are calls do."""
    narrow_images: ClassVar[bool] = False
    """Kernels read and write images of bf16 and f16."""
    narrow_rows: ClassVar[bool] = False
    """Kernels read and write rows of bf16 and f16 as well, on devices; operands but the first are as they were."""
    widens: ClassVar[bool] = False
    """Kernels widen operands of f16 and bf16 where they load them."""
    internal: ClassVar[bool] = False
    """Created by passes and the planner only, for operands and shapes that they have checked."""
    counts_up: ClassVar[bool] = False
    """Integer results are counts, or indices from 0 on."""
    shape_operands: ClassVar[frozenset[int]] = frozenset()
    """Float operands that determine the extents of the result."""

    @classmethod
    def exact(cls) -> bool:
        """Whether nothing is rounded."""
        return cls.moves or cls.accuracy is ErrorBound.EXACT

    def unchanging(self, inputs: Sequence[Value | None]) -> bool:
        """Whether the only result, of the first operand's type and shape, equals that operand."""
        return False

    @property
    def edits(self) -> bool:
        """Whether the result is the first operand but for some elements, so that it should be written over it."""
        return False

    def reads_shapes_only(self) -> bool:
        """Whether results follow from the shapes of the operands."""
        return False

    def dequantised_from(self, inputs: Sequence[Value | None], dims: tuple[int, ...]) -> Stored | None:
        """The integers that the result, of a shape ``dims``, of constant ``inputs`` is dequantised from; None where
        they are not known."""
        return None

    def zero_points(self) -> Sequence[int | None]:
        """Zero points that operators on quantised integers subtract from their inputs; None where nothing is known."""
        return ()

    @property
    def name(self) -> str:
        """The operator's name in graphs and models: that of the class."""
        return type(self).__name__

    @abstractmethod
    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        """The types of the outputs.  Raises ShapeError when the inputs do not fit."""

    @abstractmethod
    def reference(self, *inputs: Any) -> Array | tuple[Array, ...]:
        """The definition, on arrays of exactly the inferred types."""

    def infer_with(self, inputs: Sequence[Value | None], bodies: Sequence[Graph]) -> tuple[TensorType, ...]:
        """``infer`` for a node with bodies."""
        raise InternalError(f"{self.name} has no bodies")

    def evaluate_with(self, inputs: Sequence[Array | None], bodies: Sequence[Graph]) -> tuple[Array, ...]:
        """``evaluate`` for a node with bodies."""
        raise InternalError(f"{self.name} has no bodies")

    def evaluate(self, inputs: Sequence[Array | None]) -> tuple[Array, ...]:
        """``reference``, always as a tuple; not called for empty results, which follow from the type rule."""
        if any(a is not None and not a.size for a in inputs):
            values = [None if a is None else Value("", TensorType(DType.of(a.dtype), a.shape), a) for a in inputs]
            types = self.infer(values)
            if not any(t.size for t in types):
                return tuple(np.zeros(t.dims, t.dtype.numpy) for t in types)
        with np.errstate(all="ignore"):
            result = self.reference(*inputs)
        return result if isinstance(result, tuple) else (result,)

    # ------------------------------------------------------------------------------ sizes known at run time
    def other(self, name: str, **attributes: Any) -> Operator:
        """The operator of that name."""
        return REGISTRY[name](**attributes)

    def counted_axes(self, inputs: Sequence[Value | None]) -> Sequence[int | None]:
        """For each output but the last, the axis whose extent the last output, an i64, is; () for other operators."""
        return ()

    def symbolic(self, inputs: Sequence[Array | None], types: Sequence[TensorType]) -> tuple[Array, ...] | None:
        """The results, of these types, for operands whose elements are expressions (``graph.sizes``) or bools; None
        where they are none.  Raises UndecidedError where they depend on the numbers of a run.

        By default, for what moves elements of its first operand: its reference.
        """
        if not self.moves or not inputs or inputs[0] is None:
            return None
        rest = [None if a is None else as_numbers(a) for a in inputs[1:]]
        result = self.reference(inputs[0], *rest)
        return tuple(as_objects(a) for a in (result if isinstance(result, tuple) else (result,)))

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        """The results of a node that reads extents, or whose results have extents, that only a run knows.

        Operands are buffers of the largest extents, of which what lies beyond the true ones is not specified.  Raises
        SizeRefusedError, by default for every node.
        """
        if node.fixed(*range(len(node.inputs))):
            return node.same()
        raise SizeRefusedError(f"{self.name} cannot take a tensor whose extents are known only at run time")

    def layouts(self, site: Site) -> Layouts:
        """The memory layouts of operands and results that the operator asks for: row-major unless overridden."""
        return Layouts((ROW_MAJOR,) * len(site.inputs), (ROW_MAJOR,) * len(site.outputs))

    def alias(self, site: Site) -> tuple[Alias, ...]:
        """Inputs and outputs that can share memory.  An operator all of whose outputs are aliases runs no code."""
        return ()

    def any_block(self, site: Site, i: int | None) -> bool:
        """Whether input ``i``, or the first output if it is None, may be an image in blocks of any number of vectors of
        channels, whatever ``layouts`` asks for."""
        return False

    def in_place(self, site: Site) -> tuple[int, ...]:
        """Inputs that the first output may overwrite in place, element for element, if nothing reads them later.  The
        input that it does overwrite is in ``site.placed`` when the node is lowered."""
        return ()

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        """How the part ``span`` of the only result is computed; None where it cannot be computed by itself."""
        return None

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        """The positions of the operands that the first positions along an axis of one of the outputs need;
        None where all are needed."""
        return None

    def counted_reads(self, inputs: Operands) -> tuple[CountedRead, ...]:
        """Operands that are read as far along an axis as another operand, an i64, says."""
        return ()

    def in_blocks(self, inputs: Operands) -> bool:
        """Whether kernels of which only the first rows are needed may add up rows of blocks
        (``algorithms.strassen.MOST_ROWS``): ``reach`` counts these rows, and they hold zeros beyond the extent."""
        return False

    def absorbs(self, inputs: Operands) -> tuple[Absorbed, ...]:
        """The elements of operands that change no result."""
        return ()

    def supported(self, site: Site) -> str:
        """Empty, or why this node cannot be compiled, with a remedy."""
        return ""

    def fills_halo(self, site: Site) -> bool:
        """Whether ``lower`` stores the halo of the result, too."""
        return False

    @property
    def takes_epilogue(self) -> bool:
        """Whether an operator with these attributes is ``fusable``."""
        return self.fusable

    @property
    def fused_types(self) -> frozenset[DType]:
        """The element types of results that ``site.epilogue`` is applied to, and of what it makes of them."""
        return frozenset({DType.F32})

    def fuses(self, inputs: Sequence[TensorType | None], output: TensorType, operand: TensorType) -> bool:
        """Whether ``lower`` can read ``operand`` in an epilogue of ``output``; asked only of fusable operators.

        By default: an image like the output, every axis as long or one element.
        """
        floats = (DType.F32, DType.BF16, DType.F16)
        alike = operand.dtype in floats and operand.rank == output.rank and 2 <= output.rank <= 4
        return alike and all(a in (1, b) for a, b in zip(operand.dims, output.dims, strict=True))

    def candidates(self, site: Site) -> tuple[Algorithm, ...]:
        """Algorithms for the node, best first by estimate; () where there is no choice.  The site's layouts are not
        assigned yet."""
        return ()

    def packed_alike(self, site: Site, other: Site) -> Algorithm | None:
        """An algorithm for ``site`` with the same packed weights as at ``other``, the same node for inputs of another
        shape; None if there is none."""
        candidates = self.candidates(other)
        chosen = other.algorithm if other.algorithm is not None else next(iter(candidates), None)
        return chosen if chosen is not None and chosen in self.candidates(site) else None

    def cost(self, site: Site) -> Cost:
        """The cost of ``site.algorithm``, or of the best candidate by estimate."""
        return Cost()

    def error(self, site: Site) -> float:
        """The largest additional error over the RMS of an output channel, on random data, compared with direct sums of
        the model's weights in f32: that of ``site.algorithm`` or of the best candidate by estimate, and of rounding to
        16 bits (see ``algorithms.rounding``)."""
        return 0.0

    def lower(self, site: Site) -> list[Step]:
        """Loop IR kernels and their arguments.  An operator without any rejects every node in ``supported``."""
        raise InternalError(f"{self.name} has no kernels and did not refuse to be compiled")

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        """Multiply-accumulates of one run."""
        return 0

    @classmethod
    def cases(cls) -> Iterable[Case]:
        """The test cases: operators with inputs."""
        return ()

    def __str__(self) -> str:
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != _default(f)]
        return f"{self.name}({', '.join(shown)})"


def as_numbers(elements: Array) -> Array:
    """Expressions that are integers as an array of i64, bools as they are.  Raises UndecidedError for others."""
    if elements.size and not isinstance(elements.flat[0], Expression):
        return elements.astype(bool)
    flat = [e.number for e in elements.reshape(-1)]
    return np.array(flat, np.int64).reshape(elements.shape)


def as_objects(result: Any) -> Array:
    """A result of arithmetic on arrays of expressions, which is one of rank 0 without its array."""
    if isinstance(result, np.ndarray):
        return result
    elements = np.empty((), object)
    elements[()] = result
    return elements


def objects(items: Sequence[Any]) -> Array:
    """A vector of expressions."""
    elements = np.empty(len(items), object)
    elements[:] = items
    return elements


def _default(f: Any) -> object:
    return f.default_factory() if callable(f.default_factory) else f.default


def broadcast_shapes(name: str, types: Sequence[TensorType]) -> tuple[int, ...]:
    """NumPy's rule.  Raises ShapeError naming both shapes."""
    return broadcast_dims(name, *(t.dims for t in types))


def broadcast_dims(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """As ``broadcast_shapes``."""
    try:
        return np.broadcast_shapes(*shapes)
    except (RuntimeError, ValueError):  # the former for more axes than NumPy can take
        shown = " and ".join(str(list(shape)) for shape in shapes)
        raise ShapeError(f"{name}: shapes {shown} do not broadcast") from None


def typed(inputs: Sequence[Value | None]) -> list[TensorType]:
    """The types of the inputs that are present."""
    return [v.type for v in inputs if v is not None]


LONGEST = 1 << 16
"""The most elements of a constant that determines a type: an extent or a pad for each axis, or a size for each part."""


def const_input(name: str, what: str, inputs: Sequence[Value | None], i: int) -> Array | None:
    """The data of input ``i`` where the type rule needs it; None if absent.

    Raises ShapeError if it is not constant, or too large to be meant.
    """
    value = inputs[i] if i < len(inputs) else None
    if value is None:
        return None
    if value.data is None:
        what = f"{name}: {what} ('{value.name}') is computed at run time; it must be known when compiling"
        raise UnknownError(what, value)
    if value.data.size > LONGEST:
        raise ShapeError(f"{name}: {what} ('{value.name}') is a tensor of {value.data.size} elements")
    return value.data


def widened(*arrays: Array | None) -> tuple[Array | None, ...]:
    """Arrays of 16-bit floats as f32, in which they are computed."""
    narrow = (DType.F16, DType.BF16)
    return tuple(a.astype(np.float32) if a is not None and DType.of(a.dtype) in narrow else a for a in arrays)


def padding_mask(type: TensorType) -> Array:
    """i32, one per channel of the whole blocks of ``type``: -1 for a real channel, 0 for a padding lane."""
    return lane_mask(type.dims[1], type.block)


def needs_clear(site: Site) -> bool:
    """Whether the kernel that stores the output must write zeros to its padding lanes after the epilogue."""
    if site.output.layout.in_order or site.output.dims[1] % site.output.block == 0:
        return False
    return site.clears or any(site.input(i).dims[1] == 1 for i in site.extras)  # spread over padding lanes too


def conv_images(site: Site) -> tuple[Image, ...]:
    """The epilogue's operands as images."""
    return tuple(Image.of(site.input(i)) for i in site.extras)


__all__ = [
    "REGISTRY",
    "ROUNDED",
    "Algorithm",
    "Alias",
    "Arg",
    "Callable",
    "Case",
    "Cost",
    "ErrorBound",
    "Input",
    "Layout",
    "Layouts",
    "Limits",
    "Operator",
    "Output",
    "Scratch",
    "Site",
    "Step",
    "Weights",
    "broadcast_dims",
    "broadcast_shapes",
    "const_input",
    "conv_images",
    "field",
    "needs_clear",
    "padding_mask",
    "register",
    "typed",
    "widened",
]
