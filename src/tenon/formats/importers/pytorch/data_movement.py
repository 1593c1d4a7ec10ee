"""ATen's operators that only move elements: views, slices, gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import MAX_PARTS
from tenon.formats.importers.pytorch.node import PytorchNode
from tenon.network.graph.graph import Array, Value

_END = 2**31 - 1
_I64 = np.dtype(np.int64)


# ------------------------------------------------------------------------------------ whole tensors
def view(node: PytorchNode) -> Value:
    """Any change of shape that keeps the order of the elements: the result's shape is given by torch."""
    return node.reshape(node.x, *node.shape) if node.shape else node.add("Reshape", node.x, np.zeros(0, np.int64))


def permute(node: PytorchNode) -> Value:
    return node.add("Transpose", node.x, perm=[node.axis(int(d), node.x_rank) for d in node.get("dims")])


def transpose(node: PytorchNode) -> Value:
    order = list(range(node.x_rank))
    if len(order) < 2:
        return node.x
    a, b = (0, 1) if node.name == "t" else (node.dim("dim0"), node.dim("dim1"))
    order[a], order[b] = b, a
    return node.add("Transpose", node.x, perm=order)


def expand(node: PytorchNode) -> Value:
    return node.add("Expand", node.x, node.ints(*node.shape))


def copied(node: PytorchNode) -> Value:
    """The elements of another tensor, in the shape of this one."""
    return node.add("Expand", node.cast(node.get("src")), node.ints(*node.shape))


def repeat(node: PytorchNode) -> Value:
    times = [int(n) for n in node.get("repeats")]
    x = node.reshape(node.x, *(1,) * (len(times) - node.x_rank), *node.dims)
    return node.add("Tile", x, node.ints(*times))


def flip(node: PytorchNode) -> Value:
    axes = node.axes("dims") if node.get("dims") else []
    return node.slice(node.x, [-1] * len(axes), [-_END] * len(axes), axes, [-1] * len(axes)) if axes else node.x


def roll(node: PytorchNode) -> Value:
    shifts = node.per_axis("shifts", 1)
    axes = node.per_axis("dims", 1) if node.get("dims") else []
    x = node.x
    if not axes:
        x, axes = node.reshape(x, -1), [0]
    for shift, dim in zip(shifts, axes, strict=True):
        size = node.builder.dims(x)[dim]
        at = -shift % size if size else 0
        if at:
            x = node.add("Concat", node.slice(x, [at], [_END], [dim]), node.slice(x, [0], [at], [dim]), axis=dim)
    return node.reshape(x, *node.shape)


def pad(node: PytorchNode) -> Value:
    """Pairs of before and after, the last axis first."""
    widths, rank = [int(n) for n in node.get("pad", node.get("padding"))], node.x_rank
    before, after = [0] * rank, [0] * rank
    for i in range(len(widths) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = widths[2 * i], widths[2 * i + 1]
    mode = "reflect" if "reflection" in node.name else "edge" if "replication" in node.name else "constant"
    mode = {"circular": "wrap", "replicate": "edge"}.get(str(node.get("mode")), str(node.get("mode") or mode))
    value = node.full(node.get("value", 0)) if mode == "constant" else None
    return node.add("Pad", node.x, node.ints(*before, *after), value, mode=mode)


def triangle(upper: int) -> Callable[[PytorchNode], Value]:
    def import_node(node: PytorchNode) -> Value:
        rows, columns = node.dims[-2:]
        cut = np.triu if upper else np.tril
        kept = cut(np.ones((rows, columns), bool), node.integer("diagonal"))
        return node.add("Where", kept, node.x, node.full(0))

    return import_node


# ------------------------------------------------------------------------------------ cut and joined
def slices(node: PytorchNode) -> Value:
    start, end = node.integer("start"), min(node.integer("end", _END), _END)
    return node.slice(node.x, [start], [end], [node.dim()], [node.integer("step", 1)])


def select(node: PytorchNode) -> Value:
    index, dim = node.integer("index"), node.dim()
    return node.add("Squeeze", node.slice(node.x, [index], [index + 1 or _END], [dim]), node.ints(dim))


def split(node: PytorchNode) -> Sequence[Value]:
    dim = node.dim()
    size = node.dims[dim]
    sizes = node.get("split_sizes", node.get("split_size"))
    if not isinstance(sizes, list):
        chunks = node.integer("chunks")
        part = -(-size // chunks) if chunks else int(sizes)
        if size > MAX_PARTS * part:
            raise RefusedError(f"{size} cannot be cut into parts of {part}")
        sizes = [min(part, size - at) for at in range(0, size, part)]
    return node.split(node.x, dim, sizes)


def unbind(node: PytorchNode) -> Sequence[Value]:
    dim = node.dim()
    if node.dims[dim] > MAX_PARTS:
        raise RefusedError(f"{node.dims[dim]} cannot be taken apart one by one")
    parts = node.split(node.x, dim, [1] * node.dims[dim])
    return [node.add("Squeeze", part, node.ints(dim)) for part in parts]


def concat(node: PytorchNode) -> Value:
    """Legacy torch: an empty vector joins anything."""
    parts = [v for v in node.get("tensors") if node.builder.dims(v) != (0,)]
    dim = node.integer("dim") % max(1, len(node.shape))
    return node.add("Concat", *map(node.cast, parts), axis=dim) if parts else node.cast(node.get("tensors")[0])


def stack(node: PytorchNode) -> Value:
    dim = node.integer("dim") % len(node.shape)
    return node.add(
        "Concat", *(node.add("Unsqueeze", node.cast(v), node.ints(dim)) for v in node.get("tensors")), axis=dim
    )


# ----------------------------------------------------------------------------------- by place, known
def strided(node: PytorchNode) -> Value:
    """Any strides and offset over the elements in their order."""
    offset = node.integer("storage_offset")
    strides = [int(n) for n in node.get("stride")]
    return _picked(node, _indices(node.shape, strides, offset))


def diagonal(node: PytorchNode) -> Value:
    """The diagonal of two axes, as the last axis."""
    first, second = node.dim("dim1", 0), node.dim("dim2", 1)
    positions = np.arange(int(np.prod(node.dims))).reshape(node.dims)
    return _picked(node, np.diagonal(positions, node.integer("offset"), first, second))


def unfold(node: PytorchNode) -> Value:
    """Sliding windows of an axis; the elements of a window are the last axis."""
    dim = node.dim("dimension")
    positions = np.arange(int(np.prod(node.dims))).reshape(node.dims)
    windows = np.lib.stride_tricks.sliding_window_view(positions, node.integer("size", 1), axis=dim)
    return _picked(node, windows.take(range(0, windows.shape[dim], node.integer("step", 1)), axis=dim))


def _indices(shape: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    grids = np.indices(tuple(shape), np.int64)
    return np.asarray(sum((g * s for g, s in zip(grids, strides, strict=True)), np.full(tuple(shape), offset)))


def _picked(node: PytorchNode, positions: Array) -> Value:
    return node.add("Gather", node.reshape(node.x, -1), np.ascontiguousarray(positions, np.int64), axis=0)


# --------------------------------------------------------------------------- by place, of other tensors
def index_select(node: PytorchNode) -> Value:
    y = node.add(
        "Gather", node.x if node.dims else node.reshape(node.x, 1), node.cast(node.get("index"), _I64), axis=node.dim()
    )
    return node.reshape(y, *node.shape) if node.shape else node.add("Squeeze", y)


def gather(node: PytorchNode) -> Value:
    if not node.dims:
        return node.reshape(node.x, *node.shape) if node.shape else node.x
    return node.add("GatherElements", node.x, node.cast(node.get("index"), _I64), axis=node.dim())


def scatter(node: PytorchNode) -> Value:
    """Numbers or a tensor written to the positions of ``index`` along an axis, or combined with the elements there."""
    names = {"add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min", "mean": "add"}
    how = "add" if node.name == "scatter_add" else str(node.get("reduce", "none"))
    if how not in (*names, "none"):
        raise RefusedError(f"scattering with '{how}' is not supported")
    index = node.cast(node.get("index"), _I64)
    positions = node.builder.dims(index)
    source = node.attributes.get("src")
    if isinstance(source, Value):
        fits = zip(node.builder.dims(source), positions, strict=True)
        extra = [i for i, (n, m) in enumerate(fits) if n != m]
        source = node.slice(source, [0] * len(extra), [positions[i] for i in extra], extra) if extra else source
    else:
        source = node.add("Expand", node.full(node.get("value", 0)), node.ints(*positions))
    x, options = node.x, {"axis": node.dim(), "reduction": names.get(how, "none")}
    if not node.dims:
        x, index, source = (node.reshape(v, 1) for v in (node.x, index, source))
    own = node.flag("include_self", True) or how == "none"
    start = x if own else _written(node, x, index, _NEUTRAL[names[how]])
    y = node.add("ScatterElements", start, index, source, **options)
    if how == "mean":
        y = _mean(node, x, y, index, own=own)
    return y if node.dims else node.add("Squeeze", y)


_NEUTRAL = {"add": 0.0, "mul": 1.0, "max": -math.inf, "min": math.inf}
"""Neutral elements of the reductions."""


def _written(node: PytorchNode, x: Value, index: Value, number: float) -> Value:
    """``x`` with a number at the positions of ``index``; instead of infinity the limit of the element type."""
    dtype = node.numpy
    if dtype.kind in "iu" and math.isinf(number):
        number = float(np.iinfo(dtype).min if number < 0 else np.iinfo(dtype).max)
    value = node.add("Expand", np.array(number).astype(dtype), node.ints(*node.builder.dims(index)))
    return node.add("ScatterElements", x, index, value, axis=node.dim())


def _mean(node: PytorchNode, x: Value, total: Value, index: Value, *, own: bool) -> Value:
    """Sums divided by how many elements each one has; ``own``: with the element that was there."""
    if node.numpy.kind in "iu":
        raise RefusedError("means of integers are not supported")
    counts = node.constant(np.full(node.builder.dims(x), float(own), node.numpy), "counts")
    ones = node.constant(np.ones(node.builder.dims(index), node.numpy), "ones")
    counts = node.add("ScatterElements", counts, index, ones, axis=node.dim(), reduction="add")
    return node.add("Div", total, node.add("Max", counts, node.full(1)))


def slice_scatter(node: PytorchNode) -> Value:
    """A copy in which a slice is replaced by another tensor."""
    dim = node.dim()
    size, step = node.dims[dim], node.integer("step", 1)
    positions = np.arange(size)[slice(node.get("start"), min(node.integer("end", _END), _END), step)]
    return _replaced(node, dim, positions, node.get("src"))


def select_scatter(node: PytorchNode) -> Value:
    dim = node.dim()
    positions = np.array([node.integer("index") % node.dims[dim]])
    return _replaced(node, dim, positions, node.add("Unsqueeze", node.get("src"), node.ints(dim)))


def _replaced(node: PytorchNode, dim: int, positions: Array, source: Value) -> Value:
    source = node.cast(source)
    if not positions.size:
        return node.x
    if positions.size == node.dims[dim]:
        return source
    first, last = int(positions[0]), int(positions[-1]) + 1
    if last - first == positions.size:
        ends = [node.slice(node.x, [a], [b], [dim]) for a, b in ((0, first), (last, node.dims[dim])) if a < b]
        return node.add("Concat", *(ends[:1] if first else []), source, *(ends[bool(first) :]), axis=dim)
    shape = [1] * node.x_rank
    shape[dim] = positions.size
    index = np.broadcast_to(positions.reshape(shape), node.builder.dims(source)).astype(np.int64)
    return node.add("ScatterElements", node.x, np.ascontiguousarray(index), source, axis=dim)


def index(node: PytorchNode) -> Value:
    """NumPy's indexing by tensors: the indexed axes in front, a gather, and the remaining axes moved back."""
    picked = _Indices(node)
    if len(picked.axes) == 1:
        return node.add("Gather", node.x, picked.tensors[0], axis=picked.axes[0])
    front = node.add("Transpose", node.x, perm=picked.order)
    y = node.add("GatherND", front, picked.joined())
    return node.add("Transpose", y, perm=picked.back(picked.rank))


def index_put(node: PytorchNode) -> Value:
    masked = _masked(node)
    if masked is not None:
        return masked
    picked = _Indices(node)
    front = node.add("Transpose", node.x, perm=picked.order)
    positions = picked.joined()
    values = node.cast(node.get("values"))
    rest = [node.dims[a] for a in picked.order[len(picked.axes) :]]
    where = list(node.builder.dims(positions)[:-1])
    # values broadcast against the result of indexing, whose indexed axes may stand behind others
    order = picked.back(len(where))
    full = [(where + rest)[i] for i in order]
    spread = node.add("Transpose", node.add("Expand", values, node.ints(*full)), perm=list(np.argsort(order)))
    mode = "add" if node.flag("accumulate") else "none"
    y = node.add("ScatterND", front, positions, spread, reduction=mode)
    return node.add("Transpose", y, perm=list(np.argsort(picked.order)))


def _masked(node: PytorchNode) -> Value | None:
    """A number written where a mask over the first axes is true."""
    given, values = node.get("indices"), node.get("values")
    mask = given[0]
    if (
        len(given) > 1
        or node.builder.type(mask).dtype != "bool"
        or node.builder.type(values).size != 1
        or node.flag("accumulate")
    ):
        return None
    dims = node.builder.dims(mask)
    spread = node.reshape(mask, *dims, *(1,) * (node.x_rank - len(dims)))
    number = node.add("Reshape", node.cast(values), np.zeros(0, np.int64))
    return node.add("Where", spread, number, node.x)


class _Indices:
    """The tensors that index some axes of ``x``, broadcast against each other."""

    def __init__(self, node: PytorchNode) -> None:
        self.c = node
        given = dict(enumerate(node.get("indices")))
        self.axes = [a for a, v in given.items() if v is not None]
        if any(node.builder.type(given[a]).dtype == "bool" for a in self.axes):
            raise RefusedError("indexing by a mask is not supported", "its result has no fixed shape; use torch.where")
        self.tensors = [node.cast(given[a], _I64) for a in self.axes]
        self.order = [*self.axes, *(a for a in range(node.x_rank) if a not in self.axes)]
        self.shape = np.broadcast_shapes(*(node.builder.dims(t) for t in self.tensors))
        self.rank = len(self.shape)

    def joined(self) -> Value:
        """Where each element lies: [..., indexed axes]."""
        c = self.c
        spread = [c.add("Expand", t, c.ints(*self.shape)) if self.shape else t for t in self.tensors]
        return c.add("Concat", *(c.add("Unsqueeze", t, c.ints(-1)) for t in spread), axis=-1)

    def back(self, rank: int) -> list[int]:
        """The order of axes in which the ``rank`` axes of the indices stand where the first indexed axis was; at the
        front when the indexed axes are not neighbours."""
        ahead = self.axes[0] if self.axes == list(range(self.axes[0], self.axes[-1] + 1)) else 0
        rest = len(self.c.dims) - len(self.axes)
        return [*range(rank, rank + ahead), *range(rank), *range(rank + ahead, rank + rest)]
