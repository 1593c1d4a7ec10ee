"""The constant region while programs are planned."""

from __future__ import annotations

import hashlib

import numpy as np

from tenon.machine.plan.program import ALIGNMENT, StoredConstant
from tenon.network.graph.graph import Array


def aligned(n: int) -> int:
    """The next multiple of the alignment of tensors, in bytes."""
    return -(-n // ALIGNMENT) * ALIGNMENT


class Weighed:
    """The constant region: arrays by content, each once."""

    def __init__(self) -> None:
        self.size = 0
        self.offsets: dict[bytes, int] = {}
        self.constants: list[StoredConstant] = []

    def offset(self, data: Array) -> int:
        data = np.ascontiguousarray(data)
        key = hashlib.sha256(data.reshape(-1).view(np.uint8).data).digest()
        if key not in self.offsets:
            self.offsets[key] = self.size
            self.constants.append(StoredConstant(self.size, data))
            self.size = aligned(self.size + data.nbytes)
        return self.offsets[key]
