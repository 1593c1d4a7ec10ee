"""Embeddings of texts by a network that takes tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.engine import Engine
from tenon.runtime.text.tokenizer import TextTokenizer

_OTHERS: Mapping[str, Callable[[int], Array]] = {
    "mask": lambda count: np.ones((1, count), np.int64),
    "type": lambda count: np.zeros((1, count), np.int64),
    "position": lambda count: np.arange(count, dtype=np.int64)[None],
}
"""The values that inputs beside the tokens get for so many of them, by a part of their names."""

_EMBEDDINGS = ("embedding", "sentence_embedding", "text_embeds")


class Embedder:
    """Vectors of texts, of length 1, so that their products are the cosines of the angles between them.

    A network without an output for the embedding of a text gives the mean of its last states.  Raises InputError for a
    network that embeds no texts, and as ``TextTokenizer.of`` does.
    """

    def __init__(self, engine: Engine) -> None:
        if engine.text is None or engine.text.kind != "encoder":
            raise InputError(f"'{engine.name}' is no network that embeds texts")
        self.engine, self._tokens = engine, engine.text.ports["tokens"]
        needed = [t.name for t in engine.manifest.needed_inputs if t.name != self._tokens and t.size is None]
        self._others = {name: _other(engine, name) for name in needed}
        outputs = {tensor.name: len(tensor.shape) for tensor in engine.manifest.outputs}
        named = (engine.text.ports.get("embedding", ""), *_EMBEDDINGS, *outputs)
        self._output = next((name for name in named if outputs.get(name) in (2, 3)), "")
        if not self._output:
            raise InputError(f"'{engine.name}' has no output with embeddings or states")
        self.tokenizer = TextTokenizer.of(engine.text)

    def embed(self, texts: Iterable[str]) -> Iterator[Array]:
        """The embedding f32 [n] of each text.  Raises InputError for a text that is longer than the network takes."""
        for text in texts:
            yield self.embed_tokens(self.tokenizer.encode(text))

    def embed_tokens(self, tokens: list[int]) -> Array:
        """The embedding f32 [n] of a text by its tokens."""
        others = {name: values(len(tokens)) for name, values in self._others.items()}
        results = self.engine.run({self._tokens: np.array([tokens], np.int64), **others})
        vector = np.asarray(results[self._output][0], np.float32)
        vector = vector.mean(0) if vector.ndim > 1 else vector
        return np.asarray(vector / np.linalg.norm(vector), np.float32)


def _other(engine: Engine, name: str) -> Callable[[int], Array]:
    values = next((make for part, make in _OTHERS.items() if part in name), None)
    if values is None:
        raise InputError(f"'{engine.name}' has an input '{name}', which a text does not give")
    return values
