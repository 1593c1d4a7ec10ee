"""The rows of images, as tokens behind the vocabulary and as embeddings of these."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from threading import Lock
from weakref import ref

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array

_KEPT = 32
"""Images whose rows are kept, at least."""


class _PromptTokens(list[int]):
    """The tokens of a prompt, which may be referred to weakly."""


class ImageRows:
    """The rows f32 [n, ``width``] of images; each row is a token behind the ``vocabulary``.

    The same image has the same tokens, so that what a prompt has in common with the one before is known by its tokens.
    Threads may add images while another reads rows.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        self._vocabulary, self._width, self._next = vocabulary, width, vocabulary
        self._images, self._lock = OrderedDict[bytes, tuple[int, Array]](), Lock()
        self._prompts = list[ref[_PromptTokens]]()

    def add(self, rows: Array) -> range:
        """The tokens of an image.  Raises InputError for rows of another width."""
        rows = np.ascontiguousarray(rows, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self._width:
            raise InputError(f"the rows of an image are f32[n,{self._width}], not {list(rows.shape)}")
        digest = sha256(rows.tobytes()).digest()
        with self._lock:
            if digest not in self._images:
                self._images[digest] = self._next, rows
                self._next += len(rows)
            self._images.move_to_end(digest)
            first = self._images[digest][0]
        return range(first, first + len(rows))

    def held(self, tokens: Sequence[int]) -> list[int]:
        """The tokens, whose images are kept as long as this list is; the oldest of other images are forgotten."""
        prompt = _PromptTokens(tokens)
        with self._lock:
            self._prompts = [each for each in self._prompts if each() is not None] + [ref(prompt)]
            if len(self._images) <= _KEPT:
                return prompt
            used = {token for each in self._prompts for token in each() or () if self.is_row(token)}
            for digest, (first, rows) in list(self._images.items()):
                if len(self._images) <= _KEPT:
                    break
                if used.isdisjoint(range(first, first + len(rows))):
                    del self._images[digest]
        return prompt

    def is_row(self, token: int) -> bool:
        """Whether a token is a row of an image."""
        return token >= self._vocabulary

    def embeddings(self, tokens: Sequence[int]) -> Array:
        """The embeddings f32 [1, n, width] of tokens; those of the vocabulary have zeros."""
        result = np.zeros((1, len(tokens), self._width), np.float32)
        for i, token in enumerate(tokens):
            if self.is_row(token):
                result[0, i] = self._row(token)
        return result

    def _row(self, token: int) -> Array:
        with self._lock:
            for first, rows in reversed(self._images.values()):
                if first <= token < first + len(rows):
                    return np.asarray(rows[token - first])
        raise InputError(f"the token {token} is a row of no image that was given")

    def block(self, token: int, size: int) -> int:
        """The number of the block of ``size`` rows that a token belongs to; -1 for one of the vocabulary."""
        return (token - self._vocabulary) // size if self.is_row(token) else -1


def whole(images: ImageRows | None, tokens: Sequence[int], end: int, size: int) -> int:
    """``end``, or where the block of ``size`` rows of images begins that it is within."""
    if images is None or not size or end >= len(tokens):
        return end
    block = images.block(tokens[end], size)
    while end and block >= 0 and images.block(tokens[end - 1], size) == block:
        end -= 1
    return end


def sights(images: ImageRows | None, tokens: Sequence[int], past: int, size: int) -> Array:
    """How many tokens each token behind ``past`` others sees, i64 [n]: of a block of ``size`` rows of images, all."""
    seen = np.arange(past + 1, past + 1 + len(tokens), dtype=np.int64)
    blocks = [images.block(token, size) for token in tokens] if images is not None and size else []
    for i in range(len(blocks) - 2, -1, -1):
        if blocks[i] >= 0 and blocks[i] == blocks[i + 1]:
            seen[i] = seen[i + 1]
    return seen
