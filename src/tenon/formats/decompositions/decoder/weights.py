"""DecoderWeights of a decoder by name, as floats or in blocks.

Names are those of ``graph``: "embedding", "output", "output_norm", and for layer N "N.attention_norm", "N.q", "N.k",
"N.v" or "N.qkv", "N.q_norm", "N.k_norm", "N.attention_output", "N.attention_post_norm", "N.ffn_norm", "N.gate" and
"N.up" or "N.gate_up", "N.down", "N.ffn_post_norm"; each may have a bias besides.  Layers of experts have "N.router",
and "N.gate_experts" and "N.up_experts" or "N.gate_up_experts", "N.down_experts"; those with an expert that all tokens
take "N.shared_gate" and "N.shared_up" or "N.shared_gate_up", "N.shared_down", and "N.shared_router" if it is weighted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tenon.machine.kernels.block_formats import FORMATS
from tenon.network.graph.graph import Array


@dataclass(frozen=True, eq=False)
class Weight:
    """A matrix [outputs, inputs] or a vector of floats; with a ``format``, rows of blocks u8 [outputs, bytes].

    Matrices of experts lie one behind the other, [experts, outputs, ...].
    """

    data: Array
    format: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in elements."""
        if not self.format:
            return tuple(self.data.shape)
        return *self.data.shape[:-1], FORMATS[self.format].columns(self.data.shape[-1])

    @property
    def vector(self) -> Array:
        """The elements of a vector as f32."""
        return np.ascontiguousarray(self.data.reshape(-1), np.float32)

    def rows(self, sizes: Sequence[int]) -> list[Weight]:
        """The matrix, or that of each expert, cut into parts of so many rows."""
        ends, rows = np.cumsum(sizes), self.data.ndim - 2
        cuts = [(slice(None),) * rows + (slice(end - n, end),) for n, end in zip(sizes, ends, strict=True)]
        return [Weight(self.data[cut], self.format) for cut in cuts]


class DecoderWeights(Protocol):
    """Where a decoder's weights come from."""

    def weight(self, name: str) -> Weight | None:
        """A weight by its name; None if the model has none.  Raises RefusedError for one that cannot be read."""
        ...

    def place(self, name: str) -> str:
        """The name that a weight has in the file."""
        ...

    def bias(self, name: str) -> Weight | None:
        """The bias beside a weight; None if there is none."""
        ...
