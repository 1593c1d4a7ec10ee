"""ncnn's layers of transformers and matrices: attention, products, embeddings.

Definitions: src/layer/{multiheadattention,sdpa,rotaryembed,gemm,einsum,embed,rmsnorm}.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.graph_builder.errors import RefusedError
from tenon.graph_builder.node_context import Made
from tenon.importers.ncnn.pointwise import Context
from tenon.ir.graph import Array, Value
from tenon.ir.types import I64

_WORDS = 1 << 20
_PER_BLOCK = 4
"""From this on, ``quantize_term`` means weights in blocks of less than eight bits."""


def _rows(c: Context, rows: int, columns: int) -> Array:
    return c.weights.array(rows * columns).reshape(rows, columns)


def _refuse_blocks(c: Context) -> None:
    if c.integer(18) >= _PER_BLOCK:
        raise RefusedError("weights in blocks of 4 or 6 bits are not supported")


def multi_head_attention(c: Context) -> Made:
    """Queries, keys and values (one blob may be two or all of them), a mask, and keys and values of before."""
    size, heads = c.integer(0), c.integer(1, 1)
    keys, values, total = c.integer(3, size), c.integer(4, size), c.integer(2)
    _refuse_blocks(c)
    if min(size, heads, keys, values, total) < 1 or size % heads or total % size or size > _WORDS:
        raise RefusedError(f"{total} weights do not make {heads} heads of {size} numbers")
    inner = total // size
    stored: list[list[Array]] = [
        [_rows(c, rows, columns), c.weights.floats(rows)]
        for rows, columns in ((size, inner), (size, keys), (size, values), (inner, size))
    ]
    if c.integer(18):
        for i, count in enumerate((size, size, size, 1)):
            stored[i][0] = c.scaled(stored[i][0], c.weights.floats(count))
    blobs = list(c.inputs)
    past = [blobs.pop() for _ in range(2)][::-1] if c.integer(7) else []
    mask = blobs.pop() if c.integer(5) and len(blobs) > 1 else None
    if not 1 <= len(blobs) <= 3:
        raise RefusedError(f"it has {len(c.inputs)} inputs")
    sources = [blobs[0], blobs[min(1, len(blobs) - 1)], blobs[-1]]
    q, k, v = (_affine(c, x, *weights) for x, weights in zip(sources, stored[:3], strict=True))
    q = c.add("Mul", q, c.number(6, 1 / math.sqrt(size // heads)))
    q, k, v = (_split(c, x, heads) for x in (q, k, v))
    if past:
        k, v = (_continued(c, new, old, len(blobs) == 1) for new, old in zip((k, v), past, strict=True))
    y = _attended(c, q, k, v, mask)
    y = c.reshape(c.add("Transpose", y, perm=(0, 2, 1, 3)), 1, -1, size)
    made = _affine(c, y, *stored[3])
    kept = (k, v) if past and len(c.dims(past[0])) == 4 else [c.reshape(c.swapped(x), 1, size, -1) for x in (k, v)]
    return [made, *kept][: max(1, len(c.layer.tops))]


def _affine(c: Context, x: Value, weights: Array, bias: Array) -> Value:
    return c.add("Add", c.add("MatMul", x, np.ascontiguousarray(weights.T)), bias)


def _split(c: Context, x: Value, heads: int) -> Value:
    """[1, T, heads * n] as [1, heads, T, n]."""
    _, steps, size = c.dims(x)
    return c.add("Transpose", c.reshape(x, 1, steps, heads, size // heads), perm=(0, 2, 1, 3))


def _continued(c: Context, new: Value, old: Value, own: bool) -> Value:
    """Keys or values of before: those of the same sequence go on, others are used as they are.

    They are [1, heads, T, n], or in older files [1, heads * n, T].
    """
    dims, (_, heads, _, size) = c.dims(old), c.dims(new)
    if not math.prod(dims):
        return new
    before = old if len(dims) == 4 else c.swapped(c.reshape(old, 1, heads, size, dims[2]))
    return c.add("Concat", before, new, axis=2) if own else before


def _attended(c: Context, q: Value, k: Value, v: Value, mask: Value | None) -> Value:
    scores = c.add("MatMul", q, c.swapped(k))
    if mask is not None:
        dims = c.dims(mask)
        scores = c.add("Add", scores, mask if len(dims) == 4 else c.reshape(mask, 1, 1, *dims[-2:]))
    return c.add("MatMul", c.add("Softmax", scores, axis=3), v)


def scaled_attention(c: Context) -> Made:
    """SDPA: heads of queries share the groups of keys and values."""
    blobs = list(c.inputs)
    past = [blobs.pop() for _ in range(2)][::-1] if c.integer(7) and len(blobs) >= 5 else []
    if len(blobs) != 3 + bool(c.integer(5)):
        raise RefusedError(f"it has {len(c.inputs)} inputs")
    q, k, v = blobs[:3]
    if past and c.dims(past[0])[2]:
        k, v = (c.add("Concat", old, new, axis=2) for old, new in zip(past, (k, v), strict=True))
    cached, heads, groups = [k, v], c.dims(q)[1], c.dims(k)[1]
    if heads % groups:
        raise RefusedError(f"{heads} heads do not share {groups} groups")
    if heads != groups:
        order = np.arange(heads, dtype=np.int64) // (heads // groups)
        k, v = (c.add("Gather", x, order, axis=1) for x in (k, v))
    q = c.add("Mul", q, c.number(6) or 1 / math.sqrt(c.dims(q)[-1]))
    made = _attended(c, q, k, v, blobs[3] if c.integer(5) else None)
    return [made, *cached][: max(1, len(c.layer.tops))]


def rotary(c: Context) -> Value:
    """Pairs of numbers, of halves or of neighbours, turned by angles: their cosines and sines are the other inputs."""
    if len(c.inputs) != 3:
        raise RefusedError(f"it has {len(c.inputs)} inputs instead of 3")
    dims = c.dims()
    half = dims[-1] // 2
    cosine, sine = (_angles(c, table, half, bool(c.integer(0))) for table in c.inputs[1:])
    if c.integer(0):
        pairs = c.reshape(c.x, *dims[:-1], half, 2)
        a, b = (c.reshape(part, *dims[:-1], half) for part in c.split(pairs, len(dims), [1, 1]))
    else:
        a, b = c.split(c.x, len(dims) - 1, [half, half])
    first = c.add("Sub", c.add("Mul", a, cosine[0]), c.add("Mul", b, sine[0]))
    second = c.add("Add", c.add("Mul", a, sine[1]), c.add("Mul", b, cosine[1]))
    if c.integer(0):
        return c.reshape(c.stacked([first, second], len(dims)), *dims)
    return c.add("Concat", first, second, axis=len(dims) - 1)


def _angles(c: Context, table: Value, half: int, interleaved: bool) -> Sequence[Value]:
    """For the first and for the second of every pair: [1, T, half], or two such beside each other."""
    width = c.dims(table)[-1]
    if width == half:
        return [table, table]
    if interleaved and width > half:
        return [c.slice(table, [0], [half], [-1])] * 2
    if width != 2 * half:
        raise RefusedError(f"tables of {width} angles do not fit {half} pairs")
    return c.split(table, len(c.dims(table)) - 1, [half, half])


# -------------------------------------------------------------------------------------------- matrices
def gemm(c: Context) -> Value:
    """alpha (A B + beta C); each may be stored, and C lies along the rows, the columns or both."""
    rows, columns, terms = (c.integer(id) for id in (7, 8, 9))
    blobs = list(c.inputs)
    _refuse_blocks(c)
    fixed = [bool(c.integer(id)) for id in (4, 5, 6)]
    turned = [bool(c.integer(id)) for id in (2, 3)]
    if len(blobs) not in (2 - sum(fixed[:2]), 3 - sum(fixed[:2])) or (fixed[2] and len(blobs) > 2 - sum(fixed[:2])):
        raise RefusedError(f"it has {len(blobs)} inputs")
    shapes = [(terms, rows) if turned[0] else (rows, terms), (columns, terms) if turned[1] else (terms, columns)]
    stored = [_rows(c, *shape) if here else None for shape, here in zip(shapes, fixed[:2], strict=True)]
    kind = c.integer(10)
    added = _added(c, kind, rows, columns) if fixed[2] and kind != -1 else None
    if c.integer(18):
        scales = [c.weights.floats(n) if here else None for n, here in zip((rows, 1), fixed[:2], strict=True)]
        if stored[0] is not None and scales[0] is not None:
            stored[0] = c.scaled(stored[0].T, scales[0]).T if turned[0] else c.scaled(stored[0], scales[0])
        if stored[1] is not None and scales[1] is not None:
            stored[1] = c.scaled(stored[1], scales[1])
    a, b = (
        c.swapped(
            _matrix(c, blobs.pop(0)) if m is None else c.builder.constant(np.ascontiguousarray(m), "matrix"), turn
        )
        for m, turn in zip(stored, turned, strict=True)
    )
    x = c.add("MatMul", a, b)
    high, wide = c.dims(x)[-2:]
    if blobs:
        added = _fitted(c, blobs[0], high, wide)
    if added is not None:
        x = c.add("Add", x, c.add("Mul", added, c.number(1, 1.0)))
    x = c.add("Mul", x, c.number(0, 1.0)) if c.number(0, 1.0) != 1 else x
    x = c.swapped(x, bool(c.integer(14)))
    high, wide = c.dims(x)[-2:]
    return c.reshape(x, 1, high, 1, wide) if c.integer(11) else c.reshape(x, 1, high, wide)


def _matrix(c: Context, x: Value) -> Value:
    dims = c.dims(x)
    return c.reshape(x, dims[1] if len(dims) > 2 else 1, -1)


def _added(c: Context, kind: int, rows: int, columns: int) -> Value:
    shapes = {0: (1, 1), 1: (rows, 1), 2: (rows, 1), 3: (rows, columns), 4: (1, columns)}
    if kind not in shapes:
        raise RefusedError(f"constant_broadcast_type_C {kind} is unknown")
    return c.builder.constant(_rows(c, *shapes[kind]), "added")


def _fitted(c: Context, x: Value, high: int, wide: int) -> Value:
    """A vector lies along the columns if it fits, else along the rows."""
    dims = c.dims(x)[1:]
    if len(dims) == 1:
        return c.reshape(x, 1, wide) if dims[0] == wide else c.reshape(x, -1, 1)
    return c.reshape(x, *dims[-2:])


def einsum(c: Context) -> Value:
    """The equation is a list of characters."""
    text = "".join(chr(n) for n in c.layer.integers(0) if 0 < n < 128)
    blobs = [c.reshape(x, *c.dims(x)[1:]) for x in c.inputs]
    made = c.add("Einsum", *blobs, equation=text)
    return c.reshape(made, 1, *(c.dims(made) or (1,)))


def embed(c: Context) -> Value:
    """Rows of a table by their numbers, those outside pushed to the ends."""
    size, words = c.integer(0), c.integer(1)
    if min(size, words) < 1 or size * words != c.integer(3):
        raise RefusedError(f"{c.integer(3)} weights do not make {words} rows of {size}")
    table = _rows(c, words, size)
    offset = c.weights.floats(size) if c.integer(2) else None
    if c.integer(18):
        table = c.scaled(table, c.weights.floats(1))
    numbers = c.add("Cast", c.add("Clip", c.x, 0.0, float(words - 1)), to=str(I64))
    x = c.add("Gather", table, c.reshape(numbers, 1, -1), axis=0)
    return x if offset is None else c.add("Add", x, offset)


def rms_norm(c: Context) -> Value:
    axes, shape = c.inner_axes(c.integer(0))
    factors = c.weights.floats(c.integer(0)).reshape(shape) if c.integer(2, 1) else None
    mean = c.add("ReduceMean", c.square(c.x), c.ints(*axes), keepdims=1)
    x = c.add("Div", c.x, c.add("Sqrt", c.add("Add", mean, c.number(1, 0.001))))
    return x if factors is None else c.add("Mul", x, factors)


ATTENTION: dict[str, Callable[[Context], Made]] = {
    "MultiHeadAttention": multi_head_attention,
    "SDPA": scaled_attention,
    "RotaryEmbed": rotary,
    "Gemm": gemm,
    "Einsum": einsum,
    "Embed": embed,
    "RMSNorm": rms_norm,
}
