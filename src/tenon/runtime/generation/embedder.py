"""Embeddings of texts by a network that takes tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.engine import Engine
from tenon.runtime.text.tokenizer import TextTokenizer


class Embedder:
    """Vectors of texts, of length 1, so that their products are the cosines of the angles between them.

    Raises InputError for a network that embeds no texts, and as ``TextTokenizer.of`` does.
    """

    def __init__(self, engine: Engine) -> None:
        if engine.text is None or engine.text.kind != "encoder":
            raise InputError(f"'{engine.name}' is no network that embeds texts")
        self.engine, self.ports = engine, engine.text.ports
        self.tokenizer = TextTokenizer.of(engine.text)

    def embed(self, texts: Iterable[str]) -> Iterator[Array]:
        """The embedding f32 [n] of each text.  Raises InputError for a text that is longer than the network takes."""
        for text in texts:
            yield self.embed_tokens(self.tokenizer.encode(text))

    def embed_tokens(self, tokens: list[int]) -> Array:
        """The embedding f32 [n] of a text by its tokens."""
        results = self.engine.run({self.ports["tokens"]: np.array([tokens], np.int64)})
        return np.array(results[self.ports["embedding"]][0], np.float32)
