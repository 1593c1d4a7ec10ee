"""Sizes and kinds of attention of several heads, which kernels of processors and of devices compute."""

from __future__ import annotations

from dataclasses import dataclass

from tenon.network.graph.types import F32, DType


@dataclass(frozen=True)
class MaskSizes:
    """A mask [batch, heads, keys, queries] of which an axis may have one element for all; the keys stand before the
    queries.  Of floats it is added to the scores; where one of bools is false, the score is ``HeadSizes.fill``."""

    batch: int
    heads: int
    keys: int
    queries: int
    dtype: DType = F32


@dataclass(frozen=True)
class HeadSizes:
    """``count`` heads in each of ``batch`` parts, with ``queries`` and ``keys`` of ``depth`` elements, values of
    ``channels``.

    Scores are products times ``scale``, with ``softcap`` c > 0 then c * tanh(score / c).  ``group`` neighbouring heads
    share keys and values.  Where ``causal``, query i sees the keys up to number i (plus the past of a run), of these
    only the last ``window`` if that is not 0.  Keys and values of i8 have a scale each, f32.  Results are [batch,
    count, queries, channels], or [batch, queries, count, channels] where ``merged``.
    """

    count: int
    queries: int
    keys: int
    depth: int
    scale: float
    dtype: DType = F32
    merged: bool = False
    batch: int = 1
    values: int = 0
    group: int = 1
    causal: bool = False
    window: int = 0
    softcap: float = 0.0
    mask: MaskSizes | None = None
    fill: float = 0.0
    length: bool = False
    past: bool = False
    rows_first: bool = False  # queries are [batch, queries, count, depth]
    most_past: int | None = None  # keys of the past that count at most; all keys where nothing else is said
    slots: int = 0  # tables of keys and values, of which each of ``batch`` names one, with a past of its own
    ring: bool = False  # the key of position p is at p modulo ``keys``; needs ``past`` and ``window``
    cache: DType | None = None  # the type of keys and values where it is another than ``dtype``
    factors: DType | None = None  # what queries, keys, values and exponentials are rounded to, where not to ``dtype``

    @property
    def channels(self) -> int:
        """Elements of a value: those of a key where nothing else is said."""
        return self.values or self.depth

    @property
    def stored(self) -> DType:
        """The type of keys and values in memory."""
        return self.dtype if self.cache is None else self.cache

    @property
    def scaled(self) -> bool:
        """Whether each key and each value has a scale."""
        return self.stored is DType.I8

    @property
    def plain(self) -> bool:
        """Whether all queries see all keys, each head has its own, and keys and values are of one length."""
        special = (
            self.rows_first or self.causal or self.softcap or self.mask or self.length or self.group > 1 or self.cache
        )
        return not special and self.channels == self.depth

    @property
    def pasts(self) -> int:
        """How many numbers of keys of the past there are."""
        return (self.keys if self.most_past is None else self.most_past) + 1

    @property
    def asked(self) -> tuple[int, int, int, int]:
        """The extents of the queries."""
        middle = (self.queries, self.count) if self.rows_first else (self.count, self.queries)
        return (self.batch, *middle, self.depth)

    @property
    def result(self) -> tuple[int, int, int, int]:
        """The extents of the result."""
        middle = (self.queries, self.count) if self.merged else (self.count, self.queries)
        return (self.batch, *middle, self.channels)
