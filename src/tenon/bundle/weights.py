"""The constant region as text: an initialiser to ``#include`` where there is no file system."""

from __future__ import annotations

from collections.abc import Iterator

TEXT_LIMIT = 16 << 20
"""Bytes.  Weights larger than this are written in binary only: their text would take five times as much, and
no machine without files holds them."""

_PER_LINE = 20


def weights_text(weights: bytes) -> Iterator[str]:
    """The lines of ``<name>.weights.txt``: comma-separated hexadecimal bytes."""
    for start in range(0, len(weights), _PER_LINE):
        row = weights[start : start + _PER_LINE]
        yield "0x" + row.hex(",").replace(",", ",0x") + ",\n"
