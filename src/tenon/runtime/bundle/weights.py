"""The constant region as C text, to ``#include`` on machines without a file system."""

from __future__ import annotations

import numpy as np

TEXT_LIMIT = 16 << 20
"""Bytes.  Larger weights are written in binary only: the text is five times as large, and machines without a file
system have less memory."""

_PER_LINE = 20


def weights_text(weights: bytes) -> bytes:
    """``<name>.weights.txt``: comma-separated hexadecimal bytes in lines."""
    hex_bytes = np.array([list(f"0x{value:02x},".encode()) for value in range(256)], np.uint8)
    text = hex_bytes[np.frombuffer(weights, np.uint8)].reshape(-1)
    width = _PER_LINE * hex_bytes.shape[1]
    whole = len(text) // width
    lines = np.full((whole, width + 1), ord("\n"), np.uint8)
    lines[:, :width] = text[: whole * width].reshape(whole, width)
    rest = text[whole * width :].tobytes()
    return lines.tobytes() + (rest + b"\n" if rest else b"")
