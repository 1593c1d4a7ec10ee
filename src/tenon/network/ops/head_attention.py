"""Attention of several heads as one operator, for machines that compute it in one launch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels.attention import HeadSizes, attention, supported
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.base import (
    ROUNDED,
    Case,
    ErrorBound,
    Input,
    Operator,
    Output,
    Site,
    Step,
    register,
    typed,
    widened,
)


@register
@dataclass(frozen=True)
class HeadAttention(Operator):
    """Softmax(scale * Q K') V of queries [batch..., L, d], keys and values [batch..., N, d].  Tenon's own, not ONNX's.

    The result is [batch..., L, d]; ``merged``: the last batch axis, of the heads, stands behind L.
    """

    scale: float = 1.0
    merged: bool = False
    arity: ClassVar[tuple[int, int]] = (3, 3)
    internal: ClassVar[bool] = True
    accuracy: ClassVar[ErrorBound] = ErrorBound.PARTS

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        q, k, v = typed(inputs)
        fits = q.rank == k.rank >= 2 and q.dims[:-2] == k.dims[:-2] and q.dims[-1] == k.dims[-1] and k.dims == v.dims
        if not fits or (self.merged and q.rank < 3):
            raise ShapeError(f"HeadAttention: {list(q.dims)}, {list(k.dims)} and {list(v.dims)} do not fit")
        *batch, queries, depth = q.dims
        dims = (*batch[:-1], queries, batch[-1], depth) if self.merged else q.dims
        return (TensorType(q.dtype, dims),)

    def reference(self, q: Array, k: Array, v: Array) -> Array:
        narrow, (queries, keys, values) = q.dtype, map(np.asarray, widened(q, k, v))
        products = queries @ np.swapaxes(keys, -1, -2) * np.float32(self.scale)
        terms = np.exp(products - products.max(-1, keepdims=True))
        result = terms / terms.sum(-1, keepdims=True) @ values
        return np.asarray(np.swapaxes(result, -2, -3) if self.merged else result).astype(narrow)

    def heads(self, q: TensorType, k: TensorType) -> HeadSizes:
        """The sizes of a kernel for queries and keys."""
        *batch, queries, depth = q.dims
        return HeadSizes(math.prod(batch), queries, k.dims[-2], depth, self.scale, q.dtype, self.merged)

    def supported(self, site: Site) -> str:
        able = supported(self.heads(site.input(0), site.input(1)), site.machine)
        return "" if able else "this machine does not compute attention of these sizes in one launch"

    def lower(self, site: Site) -> list[Step]:
        kernel = attention(self.heads(site.input(0), site.input(1)))
        return [Step(kernel, (Input(0), Input(1), Input(2), Output()))]

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        q, k, _ = inputs
        assert q is not None
        assert k is not None
        return 2 * q.size * k.dims[-2]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        f16, bf16 = (DType.F16,) * 3, (DType.BF16,) * 3
        yield Case(cls(0.25), ((2, 18, 32), (2, 20, 32), (2, 20, 32)), (), 2 * ROUNDED, label="f16", dtypes=f16)
        yield Case(cls(0.25, True), ((1, 2, 5, 32),) * 3, (), 2 * ROUNDED, label="merged", dtypes=bf16)
