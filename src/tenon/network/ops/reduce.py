"""Reductions over axes and global pooling."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernel_ir.loops import Expr, less, op, select
from tenon.machine.kernels import math as functions
from tenon.machine.kernels import reduce as kernels
from tenon.machine.kernels.image import Epilogue, Image, identity
from tenon.machine.kernels.storage_types import NARROW
from tenon.network.graph import sizes
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.sizes import Number
from tenon.network.graph.types import F32, ROW_MAJOR, DType, Layout, TensorType
from tenon.network.ops.base import (
    ROUNDED,
    Case,
    ErrorBound,
    Input,
    Layouts,
    Operator,
    Output,
    Scratch,
    Site,
    Step,
    as_numbers,
    as_objects,
    const_input,
    register,
    typed,
)
from tenon.network.ops.reach import Operands, Reaches, alike
from tenon.network.ops.sized_views import product

Ints = tuple[int, ...]


def check_axes(name: str, axes: Sequence[int], rank: int) -> Ints:
    """Axes counted from the front, in order.  Raises ShapeError for floats, one out of range or repeated."""
    if any(isinstance(a, float) for a in axes):
        raise ShapeError(f"{name}: its axes are floats, not integers")
    if len(axes) > rank:
        raise ShapeError(f"{name}: {len(axes)} axes do not fit a tensor of rank {rank}")
    normal = sorted(a + rank if a < 0 else a for a in axes)
    if any(not 0 <= a < rank for a in normal) or len(set(normal)) < len(normal):
        raise ShapeError(f"{name}: axes {list(axes)} do not fit a tensor of rank {rank}")
    return tuple(normal)


# ---------------------------------------------------------------------------- functions for kernels
@dataclass(frozen=True)
class ReduceFunction:
    """A named function of one value (and a row operand), comparable so that kernels can be cached by it."""

    name: str
    number: float = 1.0

    def __call__(self, x: Expr, *row: Expr) -> Expr:
        return _FUNCTIONS[self.name](x, self.number, *row)


def _lowest(dtype: np.dtype[Any]) -> Any:
    """The maximum of no elements."""
    return np.iinfo(dtype).min if dtype.kind in "iu" else False if dtype.kind == "b" else _limit(dtype, -math.inf)


def _highest(dtype: np.dtype[Any]) -> Any:
    """The minimum of no elements."""
    return np.iinfo(dtype).max if dtype.kind in "iu" else True if dtype.kind == "b" else _limit(dtype, math.inf)


def _limit(dtype: np.dtype[Any], infinity: float) -> Any:
    """The infinity, or the finite number next to it where the type has none."""
    if np.isinf(np.array(infinity).astype(dtype)):
        return infinity
    import ml_dtypes

    limits = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return limits.max if infinity > 0 else limits.min


def neutral(dtype: DType, *, greatest: bool) -> float:
    """The minimum or, unless ``greatest``, the maximum of no elements, as an attribute."""
    number = (_highest if greatest else _lowest)(dtype.numpy)
    return float(number) if dtype.is_float or dtype.is_small_float else int(number)


_OF_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "ReduceSum": lambda a, b: a + b,
    "ReduceProd": lambda a, b: a * b,
    "ReduceMax": lambda a, b: sizes.extreme([a, b], greatest=True),
    "ReduceMin": lambda a, b: sizes.extreme([a, b], greatest=False),
}
"""Reductions of integers that are expressions."""


def _mean(x: Array, axis: Ints, keepdims: bool, dtype: Any = None) -> Any:
    """NumPy's mean, without its warning where there are no elements."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.mean(x, axis=axis, keepdims=keepdims, dtype=dtype)


def _whole_mean(x: Array, axis: Ints, keepdims: bool) -> Any:
    """The sum in 64 bits, where it may wrap around, over the number of elements, rounded towards zero."""
    total = x.sum(axis=axis, keepdims=keepdims, dtype=np.uint64 if x.dtype == np.uint64 else np.int64)
    count = total.dtype.type(max(1, x.size // max(1, total.size)))
    return total // count + ((total < 0) & (total % count != 0))


def _finite(top: Expr) -> Expr:
    """``top``, or 0 in place of an infinity."""
    return select(less(op("abs", top), math.inf), top, 0.0)


_FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "abs": lambda x, _: x if x.type.dtype.startswith("u") else op("abs", x),
    "square": lambda x, _: x * x,
    "sqrt": lambda x, _: op("sqrt", x),
    "log": lambda x, _: functions.log(x),
    "over": lambda x, n: x * (1 / n) if x.type.dtype.is_float else x / int(n),
    "exp_less": lambda x, _, top: functions.exp(x - _finite(top)),
    "log_plus": lambda x, _, top: functions.log(x) + _finite(top),
}


# --------------------------------------------------------------------------------------- the operators
@dataclass(frozen=True)
class Reduce(Operator):
    """Reduce along ``axes`` (the second input, constant); along all axes if there are none."""

    keepdims: int = 1
    noop_with_empty_axes: int = 0
    arity: ClassVar[tuple[int, int]] = (1, 2)
    combine: ClassVar[str] = "add"
    float_only: ClassVar[bool] = False
    single_only: ClassVar[bool] = False
    takes_bool: ClassVar[bool] = False
    sums_wide: ClassVar[bool] = False
    """Whether sums of integers may overflow their type."""

    zero_of_zeros: ClassVar[bool] = True
    """Whether the result for zeros is zero, so that padding lanes may be computed."""

    def stages(self, count: int) -> tuple[Epilogue, Epilogue]:
        """(map, finish) of a reduction of ``count`` elements."""
        return identity, identity

    def along(self, rank: int, axes: Array | None) -> Ints:
        given = [] if axes is None else axes.reshape(-1).tolist()
        if not given:
            return () if self.noop_with_empty_axes else tuple(range(rank))
        return check_axes(self.name, given, rank)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        if x.dtype is DType.BOOL and not self.takes_bool:
            raise ShapeError(f"{self.name} is not defined for bool: cast its input to int32 or float32")
        axes = self.along(x.rank, const_input(self.name, "the list of axes", inputs, 1))
        kept = [1 if i in axes else n for i, n in enumerate(x.dims) if i not in axes or self.keepdims]
        return (TensorType(x.dtype, tuple(kept)),)

    def symbolic(self, inputs: Sequence[Array | None], types: Sequence[TensorType]) -> tuple[Array, ...] | None:
        function = _OF_NUMBERS.get(self.name)
        if function is None or inputs[0] is None or types[0].dtype.is_float:
            return None
        axes = None if len(inputs) < 2 or inputs[1] is None else as_numbers(inputs[1])
        result: Any = inputs[0]
        for axis in reversed(self.along(result.ndim, axes)):
            result = np.expand_dims(as_objects(np.frompyfunc(function, 2, 1).reduce(result, axis)), axis)
        return (result.reshape(types[0].dims),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        axes = self.along(node.type(0).rank, self._listed(node))
        node.with_masked(0, axes, self.nothing(node.type(0).dtype))
        return node.same(self.left(node, axes))

    def _listed(self, node: SizedNode) -> Array | None:
        return np.array(node.integers(1, "the list of axes"), np.int64) if node.has(1) else None

    def left(self, node: SizedNode, axes: Ints) -> list[Number]:
        """The extents of the result."""
        return [1 if i in axes else e for i, e in enumerate(node.extents(0)) if i not in axes or self.keepdims]

    def nothing(self, dtype: DType) -> float:
        """The element that changes no result."""
        return 0.0

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        x, axes = inputs[0], inputs[1].data if len(inputs) > 1 and inputs[1] is not None else None
        assert x is not None
        gone = self.along(x.type.rank, axes)
        kept = [i for i in range(x.type.rank) if self.keepdims or i not in gone]
        return None if kept[axis] in gone else alike(inputs, kept[axis])

    def supported(self, site: Site) -> str:
        dtype = site.input(0).dtype
        if (self.single_only and not dtype.is_float) or (self.float_only and not dtype.is_float):
            return f"element type {dtype}: convert the model to float32"
        return ""

    def _axes(self, site: Site) -> Ints:
        return self.along(site.input(0).rank, site.constants[1] if site.has(1) else None)

    def layouts(self, site: Site) -> Layouts:
        x = site.input(0)
        layout = plane_layout(site) if self._axes(site) == tuple(range(2, x.rank)) and self.keepdims else ROW_MAJOR
        layout = layout if self.zero_of_zeros else ROW_MAJOR
        return Layouts((layout, *(None,) * (len(site.inputs) - 1)), (layout,))

    def lower(self, site: Site) -> list[Step]:
        x, axes = site.input(0), self._axes(site)
        map, finish = self.stages(math.prod(x.dims[a] for a in axes))
        if x.layout.image:
            return [_plane(site, self.combine, map, finish)]
        reduced = tuple(i in axes for i in range(x.rank))
        name, wide = self.name.lower(), self.sums_wide
        spec = kernels.Reduction(name, x.dims, reduced, self.combine, x.dtype, map, finish, wide=wide)
        return [Step(kernels.reduction(spec, site.machine), (Input(0), Output()))]

    def by_numpy(self, x: Array, axes: Array | None, function: Callable[..., Any]) -> Any:
        """The reference, by a NumPy function of (array, axis, keepdims)."""
        kept = self.along(x.ndim, axes)
        return np.asarray(function(x, axis=kept, keepdims=bool(self.keepdims))).astype(x.dtype)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        def case(label: str, shape: Ints, axes: Ints | None, **attributes: int) -> Case:
            data = None if axes is None else np.array(axes, np.int64)
            return Case(cls(**attributes), (shape, data), (1,), low=0.5, high=1.5, label=label)

        yield case("all", (3, 5, 7), None)
        yield case("last", (3, 37), (-1,), keepdims=0)
        yield case("first", (5, 21), (0,))
        yield case("middle", (3, 6, 13), (1,), keepdims=0)
        yield case("outer_and_inner", (3, 5, 19), (0, 2), keepdims=0)
        yield case("planes", (2, 19, 3, 5), (2, 3))
        yield case("rank1", (9,), (0,), keepdims=0)
        yield case("nothing", (2, 5), None, noop_with_empty_axes=1)


@register
@dataclass(frozen=True)
class ReduceSum(Reduce):
    def reference(self, x: Array, axes: Array | None = None) -> Any:
        return self.by_numpy(x, axes, np.sum)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield from super().cases()
        for dtype in (np.int32, np.int64, np.float64):
            x = np.arange(24, dtype=dtype).reshape(2, 3, 4)
            yield Case(cls(), (x, np.array([1], np.int64)), (1,), label=np.dtype(dtype).name)
        for dtype in (np.int32, np.int64):
            x = np.full((2, 35), np.iinfo(dtype).max, dtype)
            yield Case(cls(), (x, np.array([1], np.int64)), (1,), tolerance=0, label=f"wraps_{np.dtype(dtype).name}")


@register
@dataclass(frozen=True)
class ReduceMean(Reduce):
    sums_wide: ClassVar[bool] = True

    def stages(self, count: int) -> tuple[Epilogue, Epilogue]:
        return identity, ReduceFunction("over", count)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        listed = self._listed(node)
        axes = self.along(node.type(0).rank, listed)
        if not set(axes) & set(node.changing(0)):
            return node.same(self.left(node, axes))
        if not node.type(0).dtype.is_float:
            raise SizeRefusedError(f"{self.name} of integers along an axis whose extent is known only at run time")
        attributes = {"keepdims": self.keepdims, "noop_with_empty_axes": self.noop_with_empty_axes}
        total = node.add("ReduceSum", node.input(0), None if listed is None else node.constant(listed), **attributes)
        count = node.number(product([node.extents(0)[a] for a in axes]))
        return [node.add("Div", total, node.whole("Cast", count, to=node.type(0).dtype.value))]

    def reference(self, x: Array, axes: Array | None = None) -> Any:
        return self.by_numpy(x, axes, _mean if x.dtype.kind not in "iu" else _whole_mean)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield from super().cases()
        for dtype in (np.int32, np.uint32, np.uint8):
            x = np.array([[1, 3], [5, 9]]) + (np.iinfo(dtype).max - 9)
            yield Case(
                cls(), (x.astype(dtype), np.array([1], np.int64)), (1,), tolerance=0, label=f"large_{np.dtype(dtype)}"
            )
            rows = np.tile(x.astype(dtype), (1, 9))
            yield Case(cls(), (rows, np.array([0], np.int64)), (1,), tolerance=0, label=f"large_rows_{np.dtype(dtype)}")


@register
@dataclass(frozen=True)
class ReduceMax(Reduce):
    selects: ClassVar[bool] = True
    combine: ClassVar[str] = "max"
    takes_bool: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def nothing(self, dtype: DType) -> float:
        return neutral(dtype, greatest=False)

    def reference(self, x: Array, axes: Array | None = None) -> Any:
        return self.by_numpy(x, axes, partial(np.max, initial=_lowest(x.dtype)))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield from super().cases()
        x = np.array([[3, 250, 7], [9, 1, 2]], np.uint8)
        yield Case(cls(), (x, np.array([1], np.int64)), (1,), label="u8")
        yield Case(cls(), ((2, 7, 3, 3), np.array([2, 3], np.int64)), (1,), low=-2, high=-1, label="negative")


@register
@dataclass(frozen=True)
class ReduceMin(Reduce):
    selects: ClassVar[bool] = True
    combine: ClassVar[str] = "min"
    takes_bool: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def nothing(self, dtype: DType) -> float:
        return neutral(dtype, greatest=True)

    def reference(self, x: Array, axes: Array | None = None) -> Any:
        return self.by_numpy(x, axes, partial(np.min, initial=_highest(x.dtype)))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield from super().cases()
        x = np.array([[3, -2.5, 7], [9, 1, 448]], DType.F8E4M3.numpy)  # a type without infinity
        yield Case(cls(), (x, np.array([1], np.int64)), (1,), label="f8")


@register
@dataclass(frozen=True)
class ReduceProd(Reduce):
    combine: ClassVar[str] = "mul"
    zero_of_zeros: ClassVar[bool] = False

    def nothing(self, dtype: DType) -> float:
        return 1.0

    def reference(self, x: Array, axes: Array | None = None) -> Any:
        return self.by_numpy(x, axes, np.prod)


@register
@dataclass(frozen=True)
class ReduceL1(Reduce):
    def stages(self, count: int) -> tuple[Epilogue, Epilogue]:
        return ReduceFunction("abs"), identity

    def reference(self, x: Array, axes: Array | None = None) -> Any:
        return self.by_numpy(np.abs(x), axes, np.sum)


@register
@dataclass(frozen=True)
class ReduceL2(Reduce):
    float_only: ClassVar[bool] = True

    def stages(self, count: int) -> tuple[Epilogue, Epilogue]:
        return ReduceFunction("square"), ReduceFunction("sqrt")

    def reference(self, x: Array, axes: Array | None = None) -> Any:
        return np.sqrt(self.by_numpy(np.square(x), axes, np.sum))


@register
@dataclass(frozen=True)
class ReduceSumSquare(Reduce):
    def stages(self, count: int) -> tuple[Epilogue, Epilogue]:
        return ReduceFunction("square"), identity

    def reference(self, x: Array, axes: Array | None = None) -> Any:
        return self.by_numpy(np.square(x), axes, np.sum)


@register
@dataclass(frozen=True)
class ReduceLogSum(Reduce):
    single_only: ClassVar[bool] = True
    zero_of_zeros: ClassVar[bool] = False
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def stages(self, count: int) -> tuple[Epilogue, Epilogue]:
        return identity, ReduceFunction("log")

    def reference(self, x: Array, axes: Array | None = None) -> Any:
        return np.log(self.by_numpy(x, axes, np.sum))


@register
@dataclass(frozen=True)
class ReduceLogSumExp(Reduce):
    """Subtracts the greatest element, so that no exponential overflows, unless it is infinite."""

    single_only: ClassVar[bool] = True
    zero_of_zeros: ClassVar[bool] = False
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def nothing(self, dtype: DType) -> float:
        return -math.inf

    def reference(self, x: Array, axes: Array | None = None) -> Any:
        top = np.max(x, axis=self.along(x.ndim, axes), keepdims=True, initial=_lowest(x.dtype))
        top = np.where(np.isfinite(top), top, np.zeros_like(top))
        total = self.by_numpy(np.exp(x - top), axes, np.sum)
        return np.log(total) + top.reshape(total.shape)

    def lower(self, site: Site) -> list[Step]:
        x, axes = site.input(0), self._axes(site)
        reduced = tuple(i in axes for i in range(x.rank))
        top = Scratch("top", site.output.nbytes)
        greatest = kernels.Reduction("reducemax", x.dims, reduced, "max", x.dtype)
        total = kernels.Reduction(
            "reducelogsumexp",
            x.dims,
            reduced,
            "add",
            x.dtype,
            ReduceFunction("exp_less"),
            ReduceFunction("log_plus"),
            row=True,
        )
        return [
            Step(kernels.reduction(greatest, site.machine), (Input(0), top)),
            Step(kernels.reduction(total, site.machine), (Input(0), top, Output())),
        ]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        yield from super().cases()
        x = np.array([[1, np.inf, 0, 2], [-np.inf] * 4, [np.nan, 1, 2, 3]], np.float32)
        yield Case(cls(), (x, np.array([1], np.int64)), (1,), label="odd")


# --------------------------------------------------------------------------------------- planes of images
def plane_layout(site: Site, *, narrow: bool = False) -> Layout:
    """An image's own blocks if it arrives in blocks and is of f32, or with ``narrow`` of 16 bits; else row-major.  For
    input and output."""
    x = site.input(0)
    computed = x.dtype is F32 or (narrow and x.dtype in NARROW)
    if x.layout.block == 1 or x.rank not in (3, 4) or not computed:
        return ROW_MAJOR
    return Layout(x.layout.block, ((0, 0),) * (x.rank - 2))


def _plane(site: Site, combine: str, map: Epilogue, finish: Epilogue) -> Step:
    x, y = Image.of(site.input(0)), Image.of(site.output)
    return Step(kernels.plane(x, y, combine, map, finish, site.machine), (Input(0), Output()))


@dataclass(frozen=True)
class GlobalPool(Operator):
    """Reduce [N, C, spatial...] to [N, C, 1...]."""

    combine: ClassVar[str] = "add"

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x = typed(inputs)[0]
        if x.rank < 3:
            raise ShapeError(f"{self.name}: input {list(x.dims)} has no spatial axes")
        return (TensorType(x.dtype, (*x.dims[:2], *(1,) * (x.rank - 2))),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        spatial = range(2, node.type(0).rank)
        node.with_masked(0, spatial, neutral(node.type(0).dtype, greatest=False))
        return node.same([*node.extents(0)[:2], *[1] * len(spatial)])

    def supported(self, site: Site) -> str:
        dtype = site.input(0).dtype
        floats = dtype.is_float or dtype is DType.BF16
        return "" if floats else f"element type {dtype}: convert the model to float32"

    def layouts(self, site: Site) -> Layouts:
        layout = plane_layout(site, narrow=self.narrow_images)
        return Layouts((layout,), (layout,))

    def finish(self, count: int) -> Epilogue:
        return identity

    def lower(self, site: Site) -> list[Step]:
        x = site.input(0)
        finish = self.finish(math.prod(x.dims[2:]))
        if x.layout.image:
            return [_plane(site, self.combine, identity, finish)]
        reduced = tuple(i >= 2 for i in range(x.rank))
        spec = kernels.Reduction(self.name.lower(), x.dims, reduced, self.combine, x.dtype, identity, finish)
        return [Step(kernels.reduction(spec, site.machine), (Input(0), Output()))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        for shape in ((2, 19, 3, 5), (1, 16, 7, 7), (1, 5, 9), (1, 3, 2, 3, 4)):
            yield Case(cls(), (shape,), low=-2, high=-1, label="x".join(map(str, shape)))
            yield Case(
                cls(), (shape,), (), ROUNDED, -2, -1, label="bf16_" + "x".join(map(str, shape)), dtypes=(DType.BF16,)
            )


@register
@dataclass(frozen=True)
class GlobalAveragePool(GlobalPool):
    narrow_images: ClassVar[bool] = True

    def finish(self, count: int) -> Epilogue:
        return ReduceFunction("over", count)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        if node.changing(0) and max(node.changing(0)) >= 2:
            axes = node.ints(*range(2, node.type(0).rank))
            return [node.add("ReduceMean", node.input(0), axes, keepdims=1)]
        return super().at_run_time(node)

    def reference(self, x: Array) -> Any:
        sums = np.float64 if x.dtype == np.float64 else np.float32
        return np.asarray(_mean(x, tuple(range(2, x.ndim)), True, sums)).astype(x.dtype)


@register
@dataclass(frozen=True)
class GlobalMaxPool(GlobalPool):
    selects: ClassVar[bool] = True
    combine: ClassVar[str] = "max"
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def supported(self, site: Site) -> str:
        return ""

    def reference(self, x: Array) -> Any:
        return x.max(axis=tuple(range(2, x.ndim)), keepdims=True, initial=_lowest(x.dtype))
