"""A checksum that is faster than reading weights from disk: detects damage, not forgery.

The content is split into rows of 65,536 bytes, each 8,192 little-endian words w of 64 bits; zeros complete the last
word.  The rows are folded into one, h = h P + w modulo 2^64 for each word's column, P being odd: whatever changes in a
single row changes h.  The words of h are mixed, m = (h xor h / 2^32) P (2 i + 1) and m xor m / 2^32 for the column i,
which loses nothing of a word and differs between columns, and 128 rows of 64 of them added.  The checksum is BLAKE2b,
of 8 bytes, of these sums and, as one more word, the size.
"""

from __future__ import annotations

import numpy as np

from tenon.network.graph.dtype import Array

try:
    from _blake2 import blake2b  # hashlib's implementation without loading OpenSSL, for fast opening of bundles
except ImportError:
    from hashlib import blake2b

_WORDS, _SUMS = 8192, 64
_FACTOR, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)


def checksum(content: bytes | memoryview | Array) -> str:
    """16 hexadecimal digits."""
    data, whole, folded = _folded(content)
    tail = np.zeros(-(-(data.size - whole) // 8), "<u8")
    tail.view(np.uint8)[: data.size - whole] = data[whole:]
    folded[: tail.size] = folded[: tail.size] * _FACTOR + tail
    mixed = (folded ^ folded >> _HALF) * (np.arange(1, 2 * _WORDS, 2, dtype=np.uint64) * _FACTOR)
    sums = (mixed ^ mixed >> _HALF).reshape(-1, _SUMS).sum(0, np.uint64)
    return blake2b(np.append(sums, np.uint64(data.size)).astype("<u8").data, digest_size=8).hexdigest()


def _folded(content: bytes | memoryview | Array) -> tuple[Array, int, Array]:
    """The bytes, how many of them complete rows have, and these folded to one."""
    data = np.frombuffer(content, np.uint8)
    whole = data.size // (8 * _WORDS) * 8 * _WORDS
    folded = np.zeros(_WORDS, np.uint64)
    for row in data[:whole].view("<u8").reshape(-1, _WORDS):
        np.multiply(folded, _FACTOR, out=folded)
        np.add(folded, row, out=folded)
    return data, whole, folded
