"""Attention of several heads as one operator, for machines that compute it without a tensor of all scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.algorithms.attention import attends
from tenon.machine.kernels.head_sizes import HeadSizes, MaskSizes
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I64, DType, TensorType
from tenon.network.ops.attention_steps import attention_steps
from tenon.network.ops.base import (
    ROUNDED,
    Case,
    ErrorBound,
    Input,
    Operator,
    Site,
    Step,
    register,
    typed,
    widened,
)
from tenon.network.ops.reach import CountedRead, Operands, Reach, Reaches

_MASK, _LENGTH, _PAST = 3, 4, 5


@register
@dataclass(frozen=True)
class HeadAttention(Operator):
    """Softmax(scale * Q K' + mask) V.  Tenon's own, not ONNX's.

    Inputs: queries [batch..., heads, L, d], keys [batch..., shared, N, d] and values [batch..., shared, N, c], of which
    heads / shared neighbouring heads use the same; a mask [batch..., heads, N, L], of which axes may be 1 or missing
    in front; how many keys there are, i64 of rank 0; the keys before the first query, i64 of rank 0.  A mask of floats
    is added to the scores; where one of bools is false, the score is ``fill``.

    With ``softcap`` c > 0 scores are c * tanh(score / c).  ``causal``: query i sees the keys up to number i and the
    past, of these only the last ``window`` if that is not 0.  The result is [batch..., heads, L, c]; ``merged``: the
    axis of the heads stands behind L.
    """

    scale: float = 1.0
    merged: bool = False
    causal: bool = False
    window: int = 0
    softcap: float = 0.0
    fill: float = -math.inf
    arity: ClassVar[tuple[int, int]] = (3, 6)
    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        q, k, v = typed(inputs[:3])
        rank, least = q.rank, 3 if self.merged else 2
        heads, shared = (t.dims[-3] if rank > 2 else 1 for t in (q, k))
        fits = rank == k.rank == v.rank >= least and q.dims[-1] == k.dims[-1] and k.dims[:-1] == v.dims[:-1]
        if not fits or q.dims[:-3] != k.dims[:-3] or heads % max(1, shared):
            raise ShapeError(f"HeadAttention: {list(q.dims)}, {list(k.dims)} and {list(v.dims)} do not fit")
        for value in inputs[_LENGTH:]:
            if value is not None and (value.type.dtype is not I64 or value.type.rank):
                raise ShapeError(f"HeadAttention: a number of keys must be an i64 scalar, not {value.type}")
        *batch, queries, _ = q.dims
        outer = (*batch[:-1], queries, batch[-1]) if self.merged else (*batch, queries)
        return (TensorType(q.dtype, (*outer, v.dims[-1])),)

    def reference(
        self,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None = None,
        length: Array | None = None,
        past: Array | None = None,
    ) -> Array:
        narrow, (queries, keys, values) = q.dtype, map(np.asarray, widened(q, k, v))
        if q.ndim > 2:
            group = q.shape[-3] // k.shape[-3]
            keys, values = (np.repeat(a, group, -3) for a in (keys, values))
        scores = queries @ np.swapaxes(keys, -1, -2) * np.float32(self.scale)
        if self.softcap:
            scores = np.tanh(scores / np.float32(self.softcap)) * np.float32(self.softcap)
        if mask is not None:
            turned = np.swapaxes(mask, -1, -2)
            scores = np.where(turned, scores, np.float32(self.fill)) if mask.dtype == bool else scores + turned
        own, key = np.arange(q.shape[-2])[:, None] + int(past or 0), np.arange(k.shape[-2])
        count = k.shape[-2] if length is None else min(max(int(length), 0), k.shape[-2])
        seen = key < count
        if self.causal:
            seen = seen & (key <= own) & (key > own - (self.window or own.max() + 2))
        scores = np.where(seen, scores, np.float32(-np.inf))
        terms = np.exp(scores - scores.max(-1, keepdims=True))
        result = terms / terms.sum(-1, keepdims=True) @ np.where((key < count)[:, None], values, 0)
        return np.asarray(np.swapaxes(result, -2, -3) if self.merged else result).astype(narrow)

    def heads(self, types: Sequence[TensorType | None]) -> HeadSizes:
        """The sizes of a kernel for inputs of these types."""
        q, k, v = types[:3]
        assert q is not None
        assert k is not None
        assert v is not None
        *batch, queries, depth = q.dims
        heads, shared = (t.dims[-3] if t.rank > 2 else 1 for t in (q, k))
        mask, length, past = (*types[3:], None, None, None)[:3]
        return HeadSizes(
            heads,
            queries,
            k.dims[-2],
            depth,
            self.scale,
            q.dtype,
            self.merged,
            math.prod(batch[:-1]),
            v.dims[-1],
            heads // shared,
            self.causal,
            self.window,
            self.softcap,
            None if mask is None else _mask_sizes(mask, q),
            self.fill,
            length is not None,
            past is not None,
        )

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        rank = outputs[0].rank
        q, k, _ = typed(inputs[:3])
        axis = {rank - 3: rank - 2, rank - 2: rank - 3}.get(axis, axis) if self.merged else axis
        rest: Reaches = (None,) * (len(inputs) - 3)
        if axis == rank - 1:
            return (None, None, Reach(axis), *rest)
        own = Reach(axis) if axis != rank - 2 and q.dims[axis] == k.dims[axis] else None
        mask = inputs[_MASK] if len(inputs) > _MASK else None
        if mask is not None:
            place = mask.type.rank - rank + (rank - 1 if axis == rank - 2 else axis)
            wide = place >= 0 and mask.type.dims[place] > 1
            rest = (Reach(place) if wide else None, *rest[1:])
        return (Reach(axis), own, own, *rest)

    def counted_reads(self, inputs: Operands) -> tuple[CountedRead, ...]:
        if len(inputs) <= _LENGTH or inputs[_LENGTH] is None:
            return ()
        present = [(i, v.type.dims) for i, v in enumerate(inputs[:_LENGTH]) if v is not None]
        longer = [(i, dims) for i, dims in present if i and len(dims) > 1 and (i < _MASK or dims[-2] > 1)]
        return tuple(CountedRead(i, len(dims) - 2, _LENGTH) for i, dims in longer)

    def supported(self, site: Site) -> str:
        able = attends(self.heads(site.inputs), site.machine)
        return "" if able else "this machine does not compute attention of these sizes in one kernel"

    def lower(self, site: Site) -> list[Step]:
        present = [Input(i) for i in range(len(site.inputs)) if site.has(i)]
        return attention_steps(self.heads(site.inputs), present, site.machine)

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        s = self.heads(inputs)
        return s.batch * s.count * s.queries * s.keys * (s.depth + s.channels)

    @classmethod
    def cases(cls) -> Iterable[Case]:
        f16, bf16 = (DType.F16,) * 3, (DType.BF16,) * 3
        yield Case(cls(0.25), ((2, 18, 32), (2, 20, 32), (2, 20, 32)), (), 2 * ROUNDED, label="f16", dtypes=f16)
        yield Case(cls(0.25, True), ((1, 2, 5, 32),) * 3, (), 2 * ROUNDED, label="merged", dtypes=bf16)
        pairs = ((2, 2, 37, 16), (2, 1, 53, 16), (2, 1, 53, 48))
        yield Case(cls(0.25), pairs, (), 2 * ROUNDED, label="bf16", dtypes=bf16)
        yield Case(
            cls(0.25, causal=True),
            ((1, 2, 40, 8), (1, 2, 40, 8), (1, 2, 40, 16)),
            (),
            2 * ROUNDED,
            label="causal",
            dtypes=bf16,
        )
        heads = ((1, 2, 19, 12), (1, 2, 21, 12), (1, 2, 21, 16))
        yield Case(cls(0.3), ((5, 7), (133, 7), (133, 3)), label="blocks_of_keys")
        yield Case(cls(0.3, merged=True), heads, label="f32")
        rng = np.random.default_rng(0)
        yield Case(cls(0.3, softcap=2.0), (*heads, (1, 21, 19)), label="mask")
        kept = rng.random((2, 21, 19)) < 0.7
        yield Case(cls(0.3, fill=-1e9), (*heads, kept), label="bools")
        numbers = np.array(17, np.int64), np.array(6, np.int64)
        shared = ((2, 4, 11, 8), (2, 2, 21, 8), (2, 2, 21, 8))
        yield Case(cls(0.4, causal=True), (*shared, (21, 1), *numbers), label="cache")
        yield Case(cls(0.4, causal=True, window=5), (*shared, None, *numbers), label="window")
        yield Case(cls(0.4), ((4, 1, 8), (2, 530, 8), (2, 530, 11), (530, 1), np.array(401, np.int64)), label="row")


def _mask_sizes(mask: TensorType, q: TensorType) -> MaskSizes:
    """The mask as four axes.  Raises ShapeError for one that broadcasts along some axes of the batch only."""
    dims = (1,) * (max(4, q.rank) - mask.rank) + mask.dims
    *batch, heads, keys, queries = dims
    whole = q.dims[:-3]
    if math.prod(batch) not in (1, math.prod(whole)) or mask.rank > q.rank:
        raise ShapeError(f"HeadAttention: a mask {list(mask.dims)} for queries {list(q.dims)}")
    return MaskSizes(math.prod(batch), heads, keys, queries, mask.dtype)
