"""Attention of a decoder's newest tokens over its cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.algorithms.attention import rounded
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode
from tenon.network.graph.types import F32, I64, DType, TensorType
from tenon.network.ops.attention_steps import attention_steps
from tenon.network.ops.base import Case, ErrorBound, Input, Operator, Site, Step, register, typed
from tenon.network.ops.reach import Operands, Reach, Reaches

STORED = (F32, DType.F16, DType.BF16, DType.I8)
"""Types of keys and values."""


@register
@dataclass(frozen=True)
class CachedAttention(Operator):
    """Inputs: queries f32 [1, length, heads, depth], keys and values [1, key heads, room, depth], ``past``, an i64: the
    tokens before the first query, and for keys and values of i8 the scales of both, f32 [1, key heads, room, 1].
    Tenon's own, not ONNX's.

    Keys and values are of f32, f16, bf16 or i8; all arithmetic is in f32.

    Query i looks at the keys up to position past + i, at the last ``window`` of these where that is not 0.  Scores are
    multiplied by ``scale``; ``softcap``: c for c * tanh(score / c).  The result is as the queries.  ``past`` counts as
    the nearest number for which the room suffices.

    With ``positions`` the cache is a ring with room for ``window`` and length tokens at least: the key of position p,
    which is below ``positions``, lies at p modulo room, and what lies there of tokens before the window is not seen.

    Input 6, if there is one, is the slot of each query, i64 [length]: keys, values and scales are then those of several
    sequences, [slots, key heads, room, depth], and ``past`` has the number of tokens before each query, i64 [length].
    Input 7, which only queries with slots have, is how many of the keys each query sees, i64 [length], in place of
    those up to its own position: queries of an image see those behind them, too.  Each sees one
    at least.
    """

    scale: float = 1.0
    window: int = 0
    softcap: float = 0.0
    positions: int = 0
    arity: ClassVar[tuple[int, int]] = (4, 8)
    internal: ClassVar[bool] = True
    widens: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        q, k, v, past, *scales = typed([x for x in inputs[:6] if x is not None])
        slots = inputs[6] if len(inputs) > 6 else None
        one = q.dims[0] == 1 and (k.dims[0] == 1 or slots is not None)
        fits = q.rank == k.rank == 4 and k.dims == v.dims and one and q.dims[3] == k.dims[3]
        if not fits or not k.dims[1] or q.dims[2] % k.dims[1] or q.dtype is not F32:
            raise ShapeError(f"CachedAttention: {list(q.dims)}, {list(k.dims)} and {list(v.dims)} do not fit")
        wanted = TensorType(F32, (*k.dims[:3], 1))
        if k.dtype is not v.dtype or scales != [wanted] * (2 if k.dtype is DType.I8 else 0) or k.dtype not in STORED:
            raise ShapeError(f"CachedAttention: keys {k} and values {v} with {len(scales)} scales cannot be read")
        rows = TensorType(I64, (q.dims[1],))
        single = past.dtype is I64 and past.size == 1 and q.dims[1] <= k.dims[2]
        if not single if slots is None else (past, slots.type) != (rows, rows):
            raise ShapeError(f"CachedAttention: {q.dims[1]} queries with {past} tokens before them do not fit {k}")
        seen = inputs[7] if len(inputs) > 7 else None
        if seen is not None and (slots is None or self.positions or seen.type != rows):
            raise ShapeError(f"CachedAttention: {q.dims[1]} queries do not see as many keys as {seen.type} says")
        if self.positions and not 0 < self.window <= k.dims[2] - q.dims[1] + 1 <= self.positions - q.dims[1] + 1:
            raise ShapeError(f"CachedAttention: a window of {self.window} and {q.dims[1]} queries do not fit {k}")
        return (TensorType(F32, q.dims),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        return node.same(node.extents(0))

    def reference(self, q: Array, k: Array, v: Array, past: Array, *others: Array | None) -> Array:
        scales = [a for a in others[:2] if a is not None]
        if len(others) > 2 and (slots := others[2]) is not None:
            rows, seen = [], others[3] if len(others) > 3 else None
            for i, number in enumerate(np.clip(slots, 0, len(k) - 1)):
                own = [a[number : number + 1] for a in (k, v)]
                queries, these = q[:, i : i + 1], [a[number : number + 1] for a in scales]
                rows.append(self._row(queries, own, past[i], these, None if seen is None else int(seen[i])))
            return np.concatenate(rows, axis=1)
        return self._row(q, (k, v), past, scales)

    def _row(
        self, q: Array, caches: Sequence[Array], past: Array, scales: Sequence[Array], seen: int | None = None
    ) -> Array:
        """The result for queries of one sequence, which see ``seen`` keys or those up to their own positions."""
        _, length, heads, _ = q.shape
        k, v = (a.astype(np.float32) for a in caches)
        if scales:
            k, v = k * scales[0], v * scales[1]
        start = min(max(int(past.item()), 0), (self.positions or k.shape[2]) - length)
        if self.positions:
            places = np.arange(start + length) % k.shape[2]
            k, v = k[:, :, places], v[:, :, places]
        y, group = np.zeros_like(q), heads // k.shape[1]
        for i in range(length):
            end = start + i + 1
            first = max(0, end - self.window) if self.window else 0
            end = end if seen is None else min(max(seen, 0), k.shape[2])
            if end <= first:
                continue
            keys, values = (np.repeat(a[0, :, first:end], group, axis=0) for a in (k, v))
            scores = np.einsum("hd,htd->ht", q[0, i], keys) * np.float32(self.scale)
            if self.softcap:
                scores = np.tanh(scores / np.float32(self.softcap)) * np.float32(self.softcap)
            terms = np.exp(scores - scores.max(-1, keepdims=True))
            y[0, i] = np.einsum("ht,htd->hd", terms / terms.sum(-1, keepdims=True), values)
        return y

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        rows = Reach(0) if len(inputs) > 6 else None
        return (Reach(1), *(rows if i in (3, 6, 7) else None for i in range(1, len(inputs)))) if axis == 1 else None

    def lower(self, site: Site) -> list[Step]:
        (_, length, heads, depth), (_, shared, room, _) = site.input(0).dims, site.input(1).dims
        several = len(site.inputs) > 6
        s = HeadSizes(
            heads,
            1 if several else length,
            room,
            depth,
            self.scale,
            merged=True,
            batch=length if several else 1,
            slots=site.input(1).dims[0] if several else 0,
            group=heads // shared,
            causal=len(site.inputs) <= 7,
            length=len(site.inputs) > 7,
            window=self.window,
            softcap=self.softcap,
            past=True,
            rows_first=True,
            most_past=(self.positions or room) - (1 if several else length),
            ring=self.positions > 0,
            cache=None if site.input(1).dtype is F32 else site.input(1).dtype,
        )
        s = rounded(s, site.machine)
        order = [0, 1, 2, 7, *range(3, 7)]
        operands = [Input(i) for i in order if i < len(site.inputs) and site.inputs[i] is not None]
        return attention_steps(s, operands, site.machine) if site.output.size else []

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[1] is not None
        return 2 * outputs[0].size * inputs[1].dims[2]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        caches = ((1, 2, 21, 12), (1, 2, 21, 12))
        yield Case(cls(0.3), ((1, 1, 4, 12), *caches, np.array(17)), label="one_token")
        yield Case(cls(0.3), ((1, 3, 2, 12), *caches, np.array(0)), label="begin")
        yield Case(cls(0.3, 5), ((1, 4, 4, 12), *caches, np.array(3)), label="window")
        yield Case(cls(1.0, 0, 2.0), ((1, 2, 6, 12), *caches, np.array([30])), label="softcap")
        for past, length in ((2, 1), (58, 1), (3, 4), (30, 9), (87, 9)):
            case = ((1, length, 4, 12), *caches, np.array(past))
            yield Case(cls(0.3, 13, 0.0, 96), case, label=f"ring_{past}_{length}")
        rng = np.random.default_rng(0)
        for past, length in ((17, 1), (9, 3)):
            codes = [rng.integers(-127, 128, (1, 2, 21, 12)).astype(np.int8) for _ in "kv"]
            scales = [rng.uniform(0.5, 2, (1, 2, 21, 1)).astype(np.float32) / 127 for _ in "kv"]
            queries, before = (1, length, 6, 12), np.array(past)
            yield Case(cls(0.3), (queries, *codes, before, *scales), label=f"bytes_{length}")
            for dtype in (DType.F16, DType.BF16):
                narrow = (DType.F32, dtype, dtype)
                yield Case(cls(0.3), (queries, *caches, before), label=f"{dtype}_{length}", dtypes=narrow)
        pasts, slots = np.array([17, 3, 0, 20, 4]), np.array([2, 0, 1, 0, 0])
        queries, tables = (1, 5, 6, 12), ((3, 2, 21, 12), (3, 2, 21, 12))
        yield Case(cls(0.3), (queries, *tables, pasts, None, None, slots), label="slots")
        ringed = np.array([70, 3, 0, 94, 21])
        yield Case(cls(0.3, 13, 0.0, 96), (queries, *tables, ringed, None, None, slots), label="slots_ring")
        seen = (pasts, None, None, slots, np.array([19, 4, 3, 21, 9]))
        yield Case(cls(0.3), (queries, *tables, *seen), label="seen")
        yield Case(cls(0.3, 5), (queries, *tables, *seen), label="seen_window")
        codes = [rng.integers(-127, 128, (3, 2, 21, 12)).astype(np.int8) for _ in "kv"]
        scales = [rng.uniform(0.5, 2, (3, 2, 21, 1)).astype(np.float32) / 127 for _ in "kv"]
        yield Case(cls(0.3), (queries, *codes, pasts, *scales, slots), label="slots_bytes")
