"""Elementwise operators, and chains of them.

``Pointwise`` is their base class, with type rule, layouts and lowering; a subclass only defines the function of one
element.  A ``Chain`` is several applied in sequence; it is lowered to a kernel of its own, or is the epilogue of a
fused operator.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.loops import Const, Expr, Type, cast, op
from tenon.machine.kernels import pointwise as kernels
from tenon.machine.kernels import storage_types
from tenon.machine.kernels.image import Box
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.run_time_sizes import exact_in_floats
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.sizes import UndecidedError
from tenon.network.graph.types import BOOL, F32, ROW_MAJOR, DType, Layout, TensorType
from tenon.network.ops.base import (
    Arg,
    Case,
    Input,
    Layouts,
    Operator,
    Output,
    Site,
    Step,
    Weights,
    broadcast_shapes,
    padding_mask,
    typed,
)
from tenon.network.ops.patch import Patch, Span, broadcast_reads
from tenon.network.ops.reach import Operands, Reaches, broadcast_reach


@dataclass(frozen=True)
class Pointwise(Operator):
    """An elementwise operator; broadcasts as in NumPy.

    Subclasses give ``scalar``, one expression for any number of lanes, and ``reference``.
    """

    fusable: ClassVar[bool] = True
    single_only: ClassVar[bool] = False
    """Whether ``scalar`` holds for floats only (those narrower than f32 are computed in f32 anyway)."""

    @abstractmethod
    def scalar(self, *args: Any, **kwargs: Any) -> Expr:
        """The result for one element of each input; None for an input that is absent."""

    def result(self, dtypes: Sequence[DType]) -> DType:
        """The element type of the result.  Raises ShapeError if the operator is not defined for ``dtypes``."""
        if len(set(dtypes)) > 1:
            raise ShapeError(f"{self.name}: inputs of types {', '.join(dtypes)} must have one type")
        return dtypes[0]

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        types = typed(inputs)
        return (TensorType(self.result([t.dtype for t in types]), broadcast_shapes(self.name, types)),)

    def of_numbers(self, *numbers: Any, **kwargs: Any) -> Any:
        """One element of the result, a number of floats or of integers, for expressions, bools, or None for an operand
        that is absent.  Raises UndecidedError where there is no expression for it, by default always."""
        raise UndecidedError(self.name)

    def symbolic(self, inputs: Sequence[Array | None], types: Sequence[TensorType]) -> tuple[Array, ...] | None:
        shape, floats = types[0].dims, types[0].dtype.is_float
        wide = [None if a is None else np.broadcast_to(a, shape) for a in inputs]
        result = np.empty(shape, object)
        for place in np.ndindex(shape):
            given = (None if a is None else a[place] for a in wide)
            result[place] = self.of_numbers(*given, floats=floats)
        if floats and not exact_in_floats(result):
            raise UndecidedError(self.name)
        return (result,)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        extents = node.broadcast([i for i in range(len(node.inputs)) if node.has(i)])
        return node.same(extents)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        return broadcast_reach(inputs, outputs[0], axis)

    def supported(self, site: Site) -> str:
        dtypes = {t.dtype for t in site.inputs if t is not None}
        if self.single_only and not all(d.is_float or d.is_small_float for d in dtypes):
            return f"element type {', '.join(sorted(dtypes))}: convert the model to float32"
        return ""

    def fuses(self, inputs: Sequence[TensorType | None], output: TensorType, operand: TensorType) -> bool:
        """Whether it broadcasts to the output: a chain is one kernel over all its inputs."""
        shapes = zip(reversed(operand.dims), reversed(output.dims), strict=False)
        return operand.rank <= output.rank and all(a in (1, b) for a, b in shapes)

    def layouts(self, site: Site) -> Layouts:
        return pointwise_layouts(site)

    def in_place(self, site: Site) -> tuple[int, ...]:
        return overwritable(site)

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        return Patch(self, broadcast_reads(inputs, output, span))

    def lower(self, site: Site) -> list[Step]:
        dtypes = [t.dtype for t in site.inputs if t is not None]
        return lower_chain(self.name, site, alone(self, site), self.result(dtypes))


# ------------------------------------------------------------------------------------------------ chains
@dataclass(frozen=True)
class Apply:
    """One pointwise operator of a chain; ``args`` number the values that exist before it, None is absent."""

    op: Pointwise
    args: tuple[int | None, ...]


@dataclass(frozen=True)
class Immediate:
    """A number known at compile time, kept as its bytes: equal only if all bits are."""

    dtype: DType
    data: bytes

    @classmethod
    def of(cls, array: Array) -> Immediate:
        return cls(DType.of(array.dtype), array.reshape(1).tobytes())

    @property
    def array(self) -> Array:
        return np.frombuffer(self.data, np.uint8).view(self.dtype.numpy)[0]  # type: ignore[no-any-return]

    def expression(self) -> Expr:
        """The number in the type of the arithmetic."""
        type = Type(storage_types.computed(self.dtype))
        return Const(float(self.array) if type.dtype.is_float else int(self.array), type)


@dataclass(frozen=True)
class Chain:
    """Pointwise operators applied in sequence: a function of loaded values, whose result is that of the last.
    The values are numbered: first ``operands``, each either loaded (an int counts the arguments of the call) or
    an immediate, then the results of ``steps``.
    """

    operands: tuple[int | Immediate | None, ...]
    steps: tuple[Apply, ...]

    def __call__(self, *loaded: Expr) -> Expr:
        values: list[Expr | None] = [_operand(o, loaded) for o in self.operands]
        for step in self.steps:
            values.append(_applied(step.op, [None if i is None else values[i] for i in step.args]))
        result = values[-1]
        assert result is not None
        return result

    def evaluate(self, *loaded: Array) -> Array:
        """The chain's reference."""
        values: list[Array | None] = [
            o.array if isinstance(o, Immediate) else None if o is None else loaded[o] for o in self.operands
        ]
        for step in self.steps:
            values.append(step.op.evaluate([None if i is None else values[i] for i in step.args])[0])
        result = values[-1]
        assert result is not None
        return result

    def keeps_zero(self, zero: Sequence[bool]) -> bool:
        """Whether the result is zero wherever the arguments marked in ``zero`` are, for all values of the others.

        The others are tested with a few numbers, among them those at which operators change behaviour.
        """
        probes = np.array([0.0, 1.0, -1.0, 0.5, -3.0, 7.0], np.float32)
        for turn in range(1 if all(zero) else 3):
            loaded = [np.zeros_like(probes) if z else np.roll(probes, i * turn) for i, z in enumerate(zero)]
            if np.any(self.evaluate(*loaded) != 0):
                return False
        return True


def _operand(operand: int | Immediate | None, loaded: Sequence[Expr]) -> Expr | None:
    if isinstance(operand, Immediate):
        return operand.expression()
    return None if operand is None else loaded[operand]


def _applied(op: Pointwise, args: Sequence[Expr | None]) -> Expr:
    """``op`` on expressions; what is narrower than f32 is computed in f32 and rounded once."""
    return op.scalar(*(a if a is None else storage_types.loaded(a) for a in args))


def immediate(site: Site, i: int) -> Immediate | None:
    """Input ``i`` as a number in the code, if it is a constant of one element."""
    data = site.constants[i]
    return Immediate.of(data) if data is not None and data.size == 1 else None


def bind(site: Site, first: int = 0) -> tuple[tuple[int | Immediate | None, ...], tuple[int, ...]]:
    """The operands of a chain for the inputs from ``first`` on, and the inputs that it loads, in order."""
    operands: list[int | Immediate | None] = []
    loaded: list[int] = []
    for i in range(first, len(site.inputs)):
        number = immediate(site, i) if site.has(i) else None
        if number is None and site.has(i):
            operands.append(len(loaded))
            loaded.append(i)
        else:
            operands.append(number)
    return tuple(operands), tuple(loaded)


def alone(op: Pointwise, site: Site) -> Chain:
    """The chain of one operator over the inputs of ``site``."""
    operands, _ = bind(site)
    return Chain(operands, (Apply(op, tuple(range(len(operands)))),))


@dataclass(frozen=True)
class Unary(Pointwise):
    """A pointwise operator of one float tensor."""

    span: ClassVar[tuple[float, float]] = (-4.0, 4.0)
    """The range of the random test inputs."""

    @classmethod
    def cases(cls) -> Iterable[Case]:
        low, high = cls.span
        for shape in ((), (37,), (3, 5), (2, 5, 7), (1, 19, 3, 5)):
            yield Case(cls(), (shape,), low=low, high=high, label=f"rank{len(shape)}")
        odd = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 0.75, 1.0, -1.0)
        yield Case(cls(), (np.array(odd * 3, np.float32),), label="odd")


# ----------------------------------------------------------------------------------------------- layouts
BLOCKED = (F32, DType.BF16, DType.F16, DType.I8, DType.U8, DType.I16)
"""Element types of images in blocks."""


def _full(site: Site, i: int) -> bool:
    return site.has(i) and site.constants[i] is None and site.input(i).dims == site.output.dims


def image_block(site: Site) -> int:
    """The channel block of a pointwise operator's images; 0 if its operands must be row-major."""
    out = site.output
    blocks = [
        site.input(i).layout.block for i in range(len(site.inputs)) if _full(site, i) and site.input(i).layout.image
    ]
    if not blocks or out.dtype not in BLOCKED:
        return 0
    present = [i for i in range(len(site.inputs)) if site.has(i)]
    return max(blocks) if all(_can_be_image(site, i) for i in present) else 0


def _can_be_image(site: Site, i: int) -> bool:
    type = site.input(i)
    if type.size == 1 and not _full(site, i):
        return True
    return type.dtype in BLOCKED and (type.rank == site.output.rank or site.constants[i] is not None)


def _operand_layout(site: Site, i: int, block: int) -> Layout | None:
    """None for a constant: the lowering packs it itself, with leading ones if its rank is lower."""
    type = site.input(i)
    if site.constants[i] is not None:
        return None
    if type.size == 1 and not _full(site, i):
        return ROW_MAJOR
    if type.dims[1] == 1 < site.output.dims[1]:  # a single channel, broadcast: no need for whole blocks
        block = type.layout.block
    return Layout(block, ((0, 0),) * (type.rank - 2))


def pointwise_layouts(site: Site) -> Layouts:
    """Images if a full-sized operand already is one and all others can be converted, else row-major."""
    block, count = image_block(site), len(site.inputs)
    if not block:
        return Layouts((ROW_MAJOR,) * count, (ROW_MAJOR,))
    inputs = tuple(_operand_layout(site, i, block) if site.has(i) else None for i in range(count))
    return Layouts(inputs, (Layout(block, ((0, 0),) * (site.output.rank - 2)),))


def overwritable(site: Site) -> tuple[int, ...]:
    """Inputs with the output's layout, element for element."""
    return tuple(
        i
        for i in range(len(site.inputs))
        if _full(site, i)
        and site.input(i).dtype.bytes == site.output.dtype.bytes
        and site.input(i).layout.block == site.output.layout.block
    )


# ---------------------------------------------------------------------------------------------- lowering
def lower_chain(name: str, site: Site, chain: Chain, dtype: DType) -> list[Step]:
    """A kernel that stores ``chain`` of the inputs of ``site``, which it loads in the order of ``bind``."""
    _, loaded = bind(site)
    out = site.output
    image = out.layout.image
    operands = [_image_operand(site, i) if image else _plain_operand(site, i) for i in loaded]
    args: list[Arg] = [arg for arg, _ in operands]
    output = kernels.image_box(out.dims, out.layout, 1, dtype) if image else Box.of(out, max(1, out.rank))
    mask = None
    if image and out.dims[1] % out.layout.block and not chain.keeps_zero([has_channels(site, i) for i in loaded]):
        mask = kernels.mask_box(output)
        args.append(Weights(padding_mask(out)))
    boxes = tuple(box for _, box in operands)
    function = chain if storage_types.computed(dtype) is dtype else Rounded(chain, dtype)
    spec = kernels.Pointwise(name.lower(), boxes, output, function, mask)
    return [Step(kernels.pointwise(spec, site.machine), (*args, Output()))]


@dataclass(frozen=True)
class Rounded:
    """A chain whose result is stored as ``dtype``, which differs from its arithmetic type."""

    chain: Chain
    dtype: DType

    def __call__(self, *loaded: Expr) -> Expr:
        return storage_types.stored(self.chain(*loaded), self.dtype)


def has_channels(site: Site, i: int) -> bool:
    """Whether input ``i`` has the output's channels, and therefore zeros in its padding lanes."""
    type = site.input(i)
    at = type.rank - site.output.rank + 1
    single = type.size == 1 and not _full(site, i)
    return at >= 0 and not single and type.dims[at] == site.output.dims[1]


def _plain_operand(site: Site, i: int) -> tuple[Arg, Box]:
    return Input(i), Box.of(site.input(i), max(1, site.output.rank))


def _image_operand(site: Site, i: int) -> tuple[Arg, Box]:
    type, out, data = site.input(i), site.output, site.constants[i]
    if type.size == 1 and not _full(site, i):
        return Input(i), Box.of(type, out.rank + 1)
    if data is None:
        return Input(i), kernels.image_box(type.dims, type.layout, out.dims[1], type.dtype)
    data = data.reshape((1,) * (out.rank - data.ndim) + data.shape)
    layout = Layout(out.layout.block if data.shape[1] == out.dims[1] else 1)
    return Weights(layout.pack(data)), kernels.image_box(data.shape, layout, out.dims[1], type.dtype)


# ------------------------------------------------------------------------------------- truth in kernels
def truth(mask: Expr) -> Expr:
    """A mask as the elements of a bool tensor: 1 where it is set."""
    return cast(op("and", mask, 1), BOOL)


def mask_of(flag: Expr, like: Expr) -> Expr:
    """Elements of a bool tensor as a mask that selects among values as wide as ``like``."""
    integer = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}[like.type.dtype.bytes]
    return op("not_equal", cast(flag, integer), 0)
