"""The constant region while programs are planned."""

from __future__ import annotations

import hashlib

import numpy as np

from tenon.atomic_write import spooled
from tenon.machine.plan.program import ALIGNMENT, StoredConstant
from tenon.network.graph.graph import Array

IN_MEMORY = 64 << 20
"""Bytes of constants that are kept in memory; of larger regions, arrays that are added then lie in temporary files."""

_SPOOLED = 16 << 20
"""Bytes of arrays that are put into one file, so that there are not too many files."""


def aligned(n: int) -> int:
    """The next multiple of the alignment of tensors, in bytes."""
    return -(-n // ALIGNMENT) * ALIGNMENT


class Weighed:
    """The constant region: arrays by content, each once."""

    def __init__(self) -> None:
        self.size = 0
        self.offsets: dict[bytes, int] = {}
        self.constants: list[StoredConstant] = []
        self._kept, self._pending = 0, list[int]()  # bytes in memory, and the constants that these are of

    def offset(self, data: Array) -> int:
        data = np.ascontiguousarray(data)
        key = hashlib.sha256(data.reshape(-1).view(np.uint8).data).digest()
        if key not in self.offsets:
            self.offsets[key] = self.size
            self._pending.append(len(self.constants))
            self.constants.append(StoredConstant(self.size, data))
            self.size = aligned(self.size + data.nbytes)
            self._kept += data.nbytes
            if self.size > IN_MEMORY and self._kept > _SPOOLED:
                self._spool()
        return self.offsets[key]

    def _spool(self) -> None:
        """Put the arrays that are in memory into a file."""
        arrays = [self.constants[number].data for number in self._pending]
        content = spooled(array.reshape(-1).view(np.uint8).data for array in arrays)
        at = 0
        for number, array in zip(self._pending, arrays, strict=True):
            stored = np.frombuffer(content[at : at + array.nbytes], array.dtype).reshape(array.shape)
            self.constants[number] = StoredConstant(self.constants[number].offset, stored)
            at += array.nbytes
        self._kept, self._pending = 0, []
