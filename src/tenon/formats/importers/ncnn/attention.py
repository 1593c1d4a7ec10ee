"""ncnn's layers of transformers and matrices: attention, products, embeddings.

Definitions: src/layer/{multiheadattention,sdpa,rotaryembed,gemm,einsum,embed,rmsnorm}.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.ncnn.node import NcnnLayer
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I64

_VOCABULARY = 1 << 20
_PER_BLOCK = 4
"""From this on, ``quantize_term`` means weights in blocks of less than eight bits."""


def _rows(layer: NcnnLayer, rows: int, columns: int) -> Array:
    return layer.weights.array(rows * columns).reshape(rows, columns)


def _refuse_blocks(layer: NcnnLayer) -> None:
    if layer.integer(18) >= _PER_BLOCK:
        raise RefusedError("weights in blocks of 4 or 6 bits are not supported")


def multi_head_attention(layer: NcnnLayer) -> Outputs:
    """Queries, keys and values (one blob may be two or all of them), a mask, and keys and values of before."""
    size, heads = layer.integer(0), layer.integer(1, 1)
    keys, values, total = layer.integer(3, size), layer.integer(4, size), layer.integer(2)
    _refuse_blocks(layer)
    if min(size, heads, keys, values, total) < 1 or size % heads or total % size or size > _VOCABULARY:
        raise RefusedError(f"{total} weights do not make {heads} heads of {size} numbers")
    inner = total // size
    stored: list[list[Array]] = [
        [_rows(layer, rows, columns), layer.weights.floats(rows)]
        for rows, columns in ((size, inner), (size, keys), (size, values), (inner, size))
    ]
    if layer.integer(18):
        for i, count in enumerate((size, size, size, 1)):
            stored[i][0] = layer.scaled(stored[i][0], layer.weights.floats(count))
    blobs = list(layer.inputs)
    past = [blobs.pop() for _ in range(2)][::-1] if layer.integer(7) else []
    mask = blobs.pop() if layer.integer(5) and len(blobs) > 1 else None
    if not 1 <= len(blobs) <= 3:
        raise RefusedError(f"it has {len(layer.inputs)} inputs")
    sources = [blobs[0], blobs[min(1, len(blobs) - 1)], blobs[-1]]
    q, k, v = (_affine(layer, x, *weights) for x, weights in zip(sources, stored[:3], strict=True))
    q = layer.add("Mul", q, layer.number(6, 1 / math.sqrt(size // heads)))
    q, k, v = (_split(layer, x, heads) for x in (q, k, v))
    if past:
        k, v = (_continued(layer, new, old, len(blobs) == 1) for new, old in zip((k, v), past, strict=True))
    y = _attended(layer, q, k, v, mask)
    y = layer.reshape(layer.add("Transpose", y, perm=(0, 2, 1, 3)), 1, -1, size)
    result = _affine(layer, y, *stored[3])
    kept = (
        (k, v)
        if past and len(layer.builder.dims(past[0])) == 4
        else [layer.reshape(layer.transpose_last(x), 1, size, -1) for x in (k, v)]
    )
    return [result, *kept][: max(1, len(layer.record.tops))]


def _affine(layer: NcnnLayer, x: Value, weights: Array, bias: Array) -> Value:
    return layer.add("Add", layer.add("MatMul", x, np.ascontiguousarray(weights.T)), bias)


def _split(layer: NcnnLayer, x: Value, heads: int) -> Value:
    """[1, T, heads * n] as [1, heads, T, n]."""
    _, steps, size = layer.builder.dims(x)
    return layer.add("Transpose", layer.reshape(x, 1, steps, heads, size // heads), perm=(0, 2, 1, 3))


def _continued(layer: NcnnLayer, new: Value, old: Value, own: bool) -> Value:
    """Keys or values of before: those of the same sequence go on, others are used as they are.

    They are [1, heads, T, n], or in older files [1, heads * n, T].
    """
    dims, (_, heads, _, size) = layer.builder.dims(old), layer.builder.dims(new)
    if not math.prod(dims):
        return new
    before = old if len(dims) == 4 else layer.transpose_last(layer.reshape(old, 1, heads, size, dims[2]))
    return layer.add("Concat", before, new, axis=2) if own else before


def _attended(layer: NcnnLayer, q: Value, k: Value, v: Value, mask: Value | None) -> Value:
    scores = layer.add("MatMul", q, layer.transpose_last(k))
    if mask is not None:
        dims = layer.builder.dims(mask)
        scores = layer.add("Add", scores, mask if len(dims) == 4 else layer.reshape(mask, 1, 1, *dims[-2:]))
    return layer.add("MatMul", layer.add("Softmax", scores, axis=3), v)


def scaled_attention(layer: NcnnLayer) -> Outputs:
    """SDPA: heads of queries share the groups of keys and values."""
    blobs = list(layer.inputs)
    past = [blobs.pop() for _ in range(2)][::-1] if layer.integer(7) and len(blobs) >= 5 else []
    if len(blobs) != 3 + bool(layer.integer(5)):
        raise RefusedError(f"it has {len(layer.inputs)} inputs")
    q, k, v = blobs[:3]
    if past and layer.builder.dims(past[0])[2]:
        k, v = (layer.add("Concat", old, new, axis=2) for old, new in zip(past, (k, v), strict=True))
    cached, heads, groups = [k, v], layer.builder.dims(q)[1], layer.builder.dims(k)[1]
    if heads % groups:
        raise RefusedError(f"{heads} heads do not share {groups} groups")
    if heads != groups:
        order = np.arange(heads, dtype=np.int64) // (heads // groups)
        k, v = (layer.add("Gather", x, order, axis=1) for x in (k, v))
    q = layer.add("Mul", q, layer.number(6) or 1 / math.sqrt(layer.builder.dims(q)[-1]))
    result = _attended(layer, q, k, v, blobs[3] if layer.integer(5) else None)
    return [result, *cached][: max(1, len(layer.record.tops))]


def rotary(layer: NcnnLayer) -> Value:
    """Rotary embedding: pairs of elements (halves of a vector or neighbours) rotated by angles, whose cosines and
    sines are the other inputs."""
    if len(layer.inputs) != 3:
        raise RefusedError(f"it has {len(layer.inputs)} inputs instead of 3")
    dims = layer.dims
    half = dims[-1] // 2
    cosine, sine = (_angles(layer, table, half, bool(layer.integer(0))) for table in layer.inputs[1:])
    if layer.integer(0):
        pairs = layer.reshape(layer.x, *dims[:-1], half, 2)
        a, b = (layer.reshape(part, *dims[:-1], half) for part in layer.split(pairs, len(dims), [1, 1]))
    else:
        a, b = layer.split(layer.x, len(dims) - 1, [half, half])
    first = layer.add("Sub", layer.add("Mul", a, cosine[0]), layer.add("Mul", b, sine[0]))
    second = layer.add("Add", layer.add("Mul", a, sine[1]), layer.add("Mul", b, cosine[1]))
    if layer.integer(0):
        return layer.reshape(layer.stack([first, second], len(dims)), *dims)
    return layer.add("Concat", first, second, axis=len(dims) - 1)


def _angles(layer: NcnnLayer, table: Value, half: int, interleaved: bool) -> Sequence[Value]:
    """For the first and for the second of every pair: [1, T, half], or two such beside each other."""
    width = layer.builder.dims(table)[-1]
    if width == half:
        return [table, table]
    if interleaved and width > half:
        return [layer.slice(table, [0], [half], [-1])] * 2
    if width != 2 * half:
        raise RefusedError(f"tables of {width} angles do not fit {half} pairs")
    return layer.split(table, len(layer.builder.dims(table)) - 1, [half, half])


# -------------------------------------------------------------------------------------------- matrices
def gemm(layer: NcnnLayer) -> Value:
    """alpha (A B + beta C); each may be stored, and C lies along the rows, the columns or both."""
    rows, columns, terms = (layer.integer(id) for id in (7, 8, 9))
    blobs = list(layer.inputs)
    _refuse_blocks(layer)
    fixed = [bool(layer.integer(id)) for id in (4, 5, 6)]
    transposed = [bool(layer.integer(id)) for id in (2, 3)]
    if len(blobs) not in (2 - sum(fixed[:2]), 3 - sum(fixed[:2])) or (fixed[2] and len(blobs) > 2 - sum(fixed[:2])):
        raise RefusedError(f"it has {len(blobs)} inputs")
    shapes = [
        (terms, rows) if transposed[0] else (rows, terms),
        (columns, terms) if transposed[1] else (terms, columns),
    ]
    stored = [_rows(layer, *shape) if here else None for shape, here in zip(shapes, fixed[:2], strict=True)]
    kind = layer.integer(10)
    added = _added(layer, kind, rows, columns) if fixed[2] and kind != -1 else None
    if layer.integer(18):
        scales = [layer.weights.floats(n) if here else None for n, here in zip((rows, 1), fixed[:2], strict=True)]
        if stored[0] is not None and scales[0] is not None:
            stored[0] = layer.scaled(stored[0].T, scales[0]).T if transposed[0] else layer.scaled(stored[0], scales[0])
        if stored[1] is not None and scales[1] is not None:
            stored[1] = layer.scaled(stored[1], scales[1])
    a, b = (
        layer.transpose_last(
            _matrix(layer, blobs.pop(0)) if m is None else layer.builder.constant(np.ascontiguousarray(m), "matrix"),
            turn,
        )
        for m, turn in zip(stored, transposed, strict=True)
    )
    x = layer.add("MatMul", a, b)
    high, wide = layer.builder.dims(x)[-2:]
    if blobs:
        added = _fitted(layer, blobs[0], high, wide)
    if added is not None:
        x = layer.add("Add", x, layer.add("Mul", added, layer.number(1, 1.0)))
    x = layer.add("Mul", x, layer.number(0, 1.0)) if layer.number(0, 1.0) != 1 else x
    x = layer.transpose_last(x, bool(layer.integer(14)))
    high, wide = layer.builder.dims(x)[-2:]
    return layer.reshape(x, 1, high, 1, wide) if layer.integer(11) else layer.reshape(x, 1, high, wide)


def _matrix(layer: NcnnLayer, x: Value) -> Value:
    dims = layer.builder.dims(x)
    return layer.reshape(x, dims[1] if len(dims) > 2 else 1, -1)


def _added(layer: NcnnLayer, kind: int, rows: int, columns: int) -> Value:
    shapes = {0: (1, 1), 1: (rows, 1), 2: (rows, 1), 3: (rows, columns), 4: (1, columns)}
    if kind not in shapes:
        raise RefusedError(f"constant_broadcast_type_C {kind} is unknown")
    return layer.builder.constant(_rows(layer, *shapes[kind]), "added")


def _fitted(layer: NcnnLayer, x: Value, high: int, wide: int) -> Value:
    """A vector lies along the columns if it fits, else along the rows."""
    dims = layer.builder.dims(x)[1:]
    if len(dims) == 1:
        return layer.reshape(x, 1, wide) if dims[0] == wide else layer.reshape(x, -1, 1)
    return layer.reshape(x, *dims[-2:])


def einsum(layer: NcnnLayer) -> Value:
    """The equation is a list of characters."""
    text = "".join(chr(n) for n in layer.integers(0) if 0 < n < 128)
    blobs = [layer.reshape(x, *layer.builder.dims(x)[1:]) for x in layer.inputs]
    result = layer.add("Einsum", *blobs, equation=text)
    return layer.reshape(result, 1, *(layer.builder.dims(result) or (1,)))


def embed(layer: NcnnLayer) -> Value:
    """Embedding: rows of a table by index, indices clamped to the table."""
    size, vocabulary = layer.integer(0), layer.integer(1)
    if min(size, vocabulary) < 1 or size * vocabulary != layer.integer(3):
        raise RefusedError(f"{layer.integer(3)} weights do not make {vocabulary} rows of {size}")
    table = _rows(layer, vocabulary, size)
    offset = layer.weights.floats(size) if layer.integer(2) else None
    if layer.integer(18):
        table = layer.scaled(table, layer.weights.floats(1))
    numbers = layer.add("Cast", layer.add("Clip", layer.x, 0.0, float(vocabulary - 1)), to=str(I64))
    x = layer.add("Gather", table, layer.reshape(numbers, 1, -1), axis=0)
    return x if offset is None else layer.add("Add", x, offset)


def rms_norm(layer: NcnnLayer) -> Value:
    axes, shape = layer.inner_axes(layer.integer(0))
    factors = layer.weights.floats(layer.integer(0)).reshape(shape) if layer.integer(2, 1) else None
    mean = layer.add("ReduceMean", layer.square(layer.x), layer.ints(*axes), keepdims=1)
    x = layer.add("Div", layer.x, layer.add("Sqrt", layer.add("Add", mean, layer.number(1, 0.001))))
    return x if factors is None else layer.add("Mul", x, factors)


ATTENTION: dict[str, Callable[[NcnnLayer], Outputs]] = {
    "MultiHeadAttention": multi_head_attention,
    "SDPA": scaled_attention,
    "RotaryEmbed": rotary,
    "Gemm": gemm,
    "Einsum": einsum,
    "Embed": embed,
    "RMSNorm": rms_norm,
}
