"""The sizes and variants of a decoder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.network.graph.graph import Array


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary position embedding: pairs of the first ``dimensions`` elements of a head are turned by angles.

    ``factors`` divide the frequencies of pairs, ``linear`` divides positions, and ``magnitude`` multiplies cosines and
    sines.  ``interleaved``: pairs are neighbours, else element i and i + half.
    """

    dimensions: int
    base: float = 10000.0
    factors: Array | None = None
    linear: float = 1.0
    magnitude: float = 1.0
    interleaved: bool = False

    def tables(self, positions: int) -> tuple[Array, Array]:
        """Cosines and sines, f32 [positions, dimensions / 2]."""
        frequencies = self.base ** (-np.arange(0, self.dimensions, 2, dtype=np.float64) / self.dimensions)
        if self.factors is not None:
            frequencies = frequencies / self.factors.astype(np.float64)
        angles = np.arange(positions, dtype=np.float64)[:, None] * (frequencies / self.linear)
        return tuple((f(angles) * self.magnitude).astype(np.float32) for f in (np.cos, np.sin))  # type: ignore[return-value]


@dataclass(frozen=True)
class Layer:
    """The settings of one layer: its rotary embedding, and how many tokens it looks back at (0: all)."""

    rope: Rope | None
    window: int = 0


@dataclass(frozen=True)
class ExpertChoice:
    """Layers of experts, of which a token takes the ``chosen`` with the greatest scores.  The results of these are
    multiplied by the softmax of their scores, ``normalised`` over the chosen ones alone, else over all."""

    chosen: int
    normalised: bool = True


@dataclass(frozen=True)
class DecoderConfig:
    """``norm`` is "rms" or "layer"; ``activation`` "silu", "gelu" or "gelu_tanh".

    ``scale`` multiplies scores of attention, ``embedding_scale`` embeddings and ``residual_scale`` what layers add;
    logits are multiplied by ``logit_scale``.  A ``softcap`` c, 0 for none, stands for c * tanh(x / c).
    """

    architecture: str
    hidden: int
    heads: int
    key_heads: int
    depth: int
    context: int
    layers: Sequence[Layer] = field(default=())
    mixture: ExpertChoice | None = None
    norm: str = "rms"
    epsilon: float = 1e-5
    activation: str = "silu"
    scale: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0

    @property
    def score_scale(self) -> float:
        """The factor of scores: 1 / sqrt(depth) where none is stated."""
        return self.scale or 1 / math.sqrt(self.depth)
