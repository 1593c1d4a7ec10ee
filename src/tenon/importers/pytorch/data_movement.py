"""ATen's operators that only move elements: views, slices, gathers and scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import MOST_PARTS
from tenon.importers.pytorch.context import Context
from tenon.ir.graph import Array, Value

_END = 2**31 - 1
_I64 = np.dtype(np.int64)


# ------------------------------------------------------------------------------------ whole tensors
def view(c: Context) -> Value:
    """Any change of shape that keeps the order of the elements: torch has told the result's shape."""
    return c.reshape(c.x, *c.shape) if c.shape else c.add("Reshape", c.x, np.zeros(0, np.int64))


def permute(c: Context) -> Value:
    return c.add("Transpose", c.x, perm=[c.axis(int(d), len(c.dims)) for d in c.get("dims")])


def transpose(c: Context) -> Value:
    order = list(range(len(c.dims)))
    if len(order) < 2:
        return c.x
    a, b = (0, 1) if c.name == "t" else (c.dim("dim0"), c.dim("dim1"))
    order[a], order[b] = b, a
    return c.add("Transpose", c.x, perm=order)


def expand(c: Context) -> Value:
    return c.add("Expand", c.x, c.ints(*c.shape))


def copied(c: Context) -> Value:
    """Another tensor's elements in the place of one's own."""
    return c.add("Expand", c.cast(c.get("src")), c.ints(*c.shape))


def repeat(c: Context) -> Value:
    times = [int(n) for n in c.get("repeats")]
    x = c.reshape(c.x, *(1,) * (len(times) - len(c.dims)), *c.dims)
    return c.add("Tile", x, c.ints(*times))


def flip(c: Context) -> Value:
    axes = c.axes("dims") if c.get("dims") else []
    return c.slice(c.x, [-1] * len(axes), [-_END] * len(axes), axes, [-1] * len(axes)) if axes else c.x


def roll(c: Context) -> Value:
    shifts, axes, x = c.per_axis("shifts", 1), c.per_axis("dims", 1) if c.get("dims") else [], c.x
    if not axes:
        x, axes = c.reshape(x, -1), [0]
    for shift, dim in zip(shifts, axes, strict=True):
        size = c.builder.dims(x)[dim]
        at = -shift % size if size else 0
        if at:
            x = c.add("Concat", c.slice(x, [at], [_END], [dim]), c.slice(x, [0], [at], [dim]), axis=dim)
    return c.reshape(x, *c.shape)


def pad(c: Context) -> Value:
    """Pairs of before and after, the last axis first."""
    widths, rank = [int(n) for n in c.get("pad", c.get("padding"))], len(c.dims)
    before, after = [0] * rank, [0] * rank
    for i in range(len(widths) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = widths[2 * i], widths[2 * i + 1]
    mode = "reflect" if "reflection" in c.name else "edge" if "replication" in c.name else "constant"
    mode = {"circular": "wrap", "replicate": "edge"}.get(str(c.get("mode")), str(c.get("mode") or mode))
    value = c.full(c.get("value", 0)) if mode == "constant" else None
    return c.add("Pad", c.x, c.ints(*before, *after), value, mode=mode)


def triangle(upper: int) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        rows, columns = c.dims[-2:]
        cut = np.triu if upper else np.tril
        kept = cut(np.ones((rows, columns), bool), c.integer("diagonal"))
        return c.add("Where", kept, c.x, c.full(0))

    return made


# ------------------------------------------------------------------------------------ cut and joined
def slices(c: Context) -> Value:
    start, end = c.integer("start"), min(c.integer("end", _END), _END)
    return c.slice(c.x, [start], [end], [c.dim()], [c.integer("step", 1)])


def select(c: Context) -> Value:
    index, dim = c.integer("index"), c.dim()
    return c.add("Squeeze", c.slice(c.x, [index], [index + 1 or _END], [dim]), c.ints(dim))


def split(c: Context) -> Sequence[Value]:
    dim = c.dim()
    size = c.dims[dim]
    sizes = c.get("split_sizes", c.get("split_size"))
    if not isinstance(sizes, list):
        chunks = c.integer("chunks")
        part = -(-size // chunks) if chunks else int(sizes)
        if size > MOST_PARTS * part:
            raise RefusedError(f"{size} cannot be cut into parts of {part}")
        sizes = [min(part, size - at) for at in range(0, size, part)]
    return c.split(c.x, dim, sizes)


def unbind(c: Context) -> Sequence[Value]:
    dim = c.dim()
    if c.dims[dim] > MOST_PARTS:
        raise RefusedError(f"{c.dims[dim]} cannot be taken apart one by one")
    parts = c.split(c.x, dim, [1] * c.dims[dim])
    return [c.add("Squeeze", part, c.ints(dim)) for part in parts]


def concat(c: Context) -> Value:
    """Legacy torch: an empty vector joins anything."""
    parts = [v for v in c.get("tensors") if c.builder.dims(v) != (0,)]
    dim = c.integer("dim") % max(1, len(c.shape))
    return c.add("Concat", *map(c.cast, parts), axis=dim) if parts else c.cast(c.get("tensors")[0])


def stack(c: Context) -> Value:
    dim = c.integer("dim") % len(c.shape)
    return c.add("Concat", *(c.add("Unsqueeze", c.cast(v), c.ints(dim)) for v in c.get("tensors")), axis=dim)


# ----------------------------------------------------------------------------------- by place, known
def strided(c: Context) -> Value:
    """Any strides and offset over the elements in their order."""
    offset = c.integer("storage_offset")
    strides = [int(n) for n in c.get("stride")]
    return _picked(c, _places(c.shape, strides, offset))


def diagonal(c: Context) -> Value:
    """The diagonal of two axes, as the last axis."""
    first, second = c.dim("dim1", 0), c.dim("dim2", 1)
    places = np.arange(int(np.prod(c.dims))).reshape(c.dims)
    return _picked(c, np.diagonal(places, c.integer("offset"), first, second))


def unfold(c: Context) -> Value:
    """Windows of an axis; what a window holds becomes the last axis."""
    dim = c.dim("dimension")
    places = np.arange(int(np.prod(c.dims))).reshape(c.dims)
    windows = np.lib.stride_tricks.sliding_window_view(places, c.integer("size", 1), axis=dim)
    return _picked(c, windows.take(range(0, windows.shape[dim], c.integer("step", 1)), axis=dim))


def _places(shape: Sequence[int], strides: Sequence[int], offset: int) -> Array:
    grids = np.indices(tuple(shape), np.int64)
    return np.asarray(sum((g * s for g, s in zip(grids, strides, strict=True)), np.full(tuple(shape), offset)))


def _picked(c: Context, places: Array) -> Value:
    return c.add("Gather", c.reshape(c.x, -1), np.ascontiguousarray(places, np.int64), axis=0)


# --------------------------------------------------------------------------- by place, of other tensors
def index_select(c: Context) -> Value:
    y = c.add("Gather", c.x if c.dims else c.reshape(c.x, 1), c.cast(c.get("index"), _I64), axis=c.dim())
    return c.reshape(y, *c.shape) if c.shape else c.add("Squeeze", y)


def gather(c: Context) -> Value:
    if not c.dims:
        return c.reshape(c.x, *c.shape) if c.shape else c.x
    return c.add("GatherElements", c.x, c.cast(c.get("index"), _I64), axis=c.dim())


def scatter(c: Context) -> Value:
    """Numbers or a tensor put to the places of ``index`` along an axis, or combined with what is there."""
    names = {"add": "add", "sum": "add", "multiply": "mul", "prod": "mul", "amax": "max", "amin": "min"}
    how = "add" if c.name == "scatter_add" else str(c.get("reduce", "none"))
    if how not in (*names, "none") or (how != "none" and not c.flag("include_self", True)):
        raise RefusedError(f"scattering with '{how}' is not supported")
    index = c.cast(c.get("index"), _I64)
    places = c.builder.dims(index)
    source = c.arguments.get("src")
    if isinstance(source, Value):
        fits = zip(c.builder.dims(source), places, strict=True)
        extra = [i for i, (n, m) in enumerate(fits) if n != m]
        source = c.slice(source, [0] * len(extra), [places[i] for i in extra], extra) if extra else source
    else:
        source = c.add("Expand", c.full(c.get("value", 0)), c.ints(*places))
    options = {"axis": c.dim(), "reduction": names.get(how, "none")}
    if not c.dims:
        flat = [c.reshape(v, 1) for v in (c.x, index, source)]
        return c.add("Squeeze", c.add("ScatterElements", *flat, **options))
    return c.add("ScatterElements", c.x, index, source, **options)


def slice_scatter(c: Context) -> Value:
    """A copy in which a slice is another tensor."""
    dim = c.dim()
    size, step = c.dims[dim], c.integer("step", 1)
    places = np.arange(size)[slice(c.get("start"), min(c.integer("end", _END), _END), step)]
    return _replaced(c, dim, places, c.get("src"))


def select_scatter(c: Context) -> Value:
    dim = c.dim()
    places = np.array([c.integer("index") % c.dims[dim]])
    return _replaced(c, dim, places, c.add("Unsqueeze", c.get("src"), c.ints(dim)))


def _replaced(c: Context, dim: int, places: Array, source: Value) -> Value:
    source = c.cast(source)
    if not places.size:
        return c.x
    if places.size == c.dims[dim]:
        return source
    first, last = int(places[0]), int(places[-1]) + 1
    if last - first == places.size:
        ends = [c.slice(c.x, [a], [b], [dim]) for a, b in ((0, first), (last, c.dims[dim])) if a < b]
        return c.add("Concat", *(ends[:1] if first else []), source, *(ends[bool(first) :]), axis=dim)
    shape = [1] * len(c.dims)
    shape[dim] = places.size
    index = np.broadcast_to(places.reshape(shape), c.builder.dims(source)).astype(np.int64)
    return c.add("ScatterElements", c.x, np.ascontiguousarray(index), source, axis=dim)


def index(c: Context) -> Value:
    """NumPy's indexing by tensors: the indexed axes in front, a gather, and the rest put back to where it stood."""
    picked = _Indices(c)
    if len(picked.axes) == 1:
        return c.add("Gather", c.x, picked.tensors[0], axis=picked.axes[0])
    front = c.add("Transpose", c.x, perm=picked.order)
    y = c.add("GatherND", front, picked.joined())
    return c.add("Transpose", y, perm=picked.back(picked.rank))


def index_put(c: Context) -> Value:
    masked = _masked(c)
    if masked is not None:
        return masked
    picked = _Indices(c)
    front = c.add("Transpose", c.x, perm=picked.order)
    places = picked.joined()
    values = c.cast(c.get("values"))
    rest = [c.dims[a] for a in picked.order[len(picked.axes) :]]
    where = list(c.builder.dims(places)[:-1])
    # values broadcast against the result of indexing, whose indexed axes may stand behind others
    order = picked.back(len(where))
    full = [(where + rest)[i] for i in order]
    spread = c.add("Transpose", c.add("Expand", values, c.ints(*full)), perm=list(np.argsort(order)))
    mode = "add" if c.flag("accumulate") else "none"
    y = c.add("ScatterND", front, places, spread, reduction=mode)
    return c.add("Transpose", y, perm=list(np.argsort(picked.order)))


def _masked(c: Context) -> Value | None:
    """One number put where a mask over the first axes holds."""
    given, values = c.get("indices"), c.get("values")
    mask = given[0]
    if (
        len(given) > 1
        or c.builder.type(mask).dtype != "bool"
        or c.builder.type(values).size != 1
        or c.flag("accumulate")
    ):
        return None
    dims = c.builder.dims(mask)
    spread = c.reshape(mask, *dims, *(1,) * (len(c.dims) - len(dims)))
    number = c.add("Reshape", c.cast(values), np.zeros(0, np.int64))
    return c.add("Where", spread, number, c.x)


class _Indices:
    """The tensors that index some axes of ``x``, broadcast against each other."""

    def __init__(self, c: Context) -> None:
        self.c = c
        given = dict(enumerate(c.get("indices")))
        self.axes = [a for a, v in given.items() if v is not None]
        if any(c.builder.type(given[a]).dtype == "bool" for a in self.axes):
            raise RefusedError("indexing by a mask is not supported", "its result has no fixed shape; use torch.where")
        self.tensors = [c.cast(given[a], _I64) for a in self.axes]
        self.order = [*self.axes, *(a for a in range(len(c.dims)) if a not in self.axes)]
        self.shape = np.broadcast_shapes(*(c.builder.dims(t) for t in self.tensors))
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
