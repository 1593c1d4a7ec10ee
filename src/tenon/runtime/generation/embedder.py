"""Embeddings of texts by a network that takes tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from tenon.errors import InputError, LengthError
from tenon.network.graph.dtype import Array
from tenon.network.graph.text_model import TextModel, no_text
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
        text, inputs = engine.text, {tensor.name: tensor for tensor in engine.manifest.needed_inputs}
        if text is None or text.kind != "encoder" or text.ports.get("tokens") not in inputs:
            raise InputError(
                f"'{engine.name}' is no network that embeds texts: give one like MiniLM, with its tokenizer.json"
            )
        self.engine, self._tokens = engine, text.ports["tokens"]
        self.longest = inputs[self._tokens].shape[-1]
        """The most tokens of a text."""
        needed = [name for name, tensor in inputs.items() if name != self._tokens and tensor.size is None]
        self._others = {name: _other(engine.name, name, text) for name in needed}
        outputs = {tensor.name: len(tensor.shape) for tensor in engine.manifest.outputs}
        named = (text.ports.get("embedding", ""), *_EMBEDDINGS, *outputs)
        self._output = next((name for name in named if outputs.get(name) in (2, 3)), "")
        if not self._output:
            raise InputError(f"'{engine.name}' has no output with embeddings or states")
        self.tokenizer = TextTokenizer.of(text)

    def embed(self, texts: Iterable[str]) -> Iterator[Array]:
        """The embedding f32 [n] of each text.  Raises InputError for a text without tokens, LengthError for one that is
        longer than the network takes."""
        for text in texts:
            tokens = self.tokenizer.encode(text)
            if not tokens:
                raise InputError(
                    f"the text {text[:40]!r} has no tokens: it is empty, or the tokenizer does not know it"
                )
            yield self.embed_tokens(tokens)

    def embed_tokens(self, tokens: list[int]) -> Array:
        """The embedding f32 [n] of a text by its tokens.  Raises InputError for none, LengthError for more than the
        network takes."""
        if not tokens:
            raise InputError("a text has no tokens")
        if len(tokens) > self.longest:
            raise LengthError(
                f"a text has {len(tokens)} tokens, and the network takes {self.longest} at most: shorten it, or "
                "compile the network for more with --shape"
            )
        others = {name: values(len(tokens)) for name, values in self._others.items()}
        results = self.engine.run({self._tokens: np.array([tokens], np.int64), **others})
        vector = np.asarray(results[self._output][0], np.float32)
        vector = vector.mean(0) if vector.ndim > 1 else vector
        return np.asarray(vector / np.linalg.norm(vector), np.float32)


def _other(network: str, name: str, text: TextModel) -> Callable[[int], Array]:
    values = next((make for part, make in _OTHERS.items() if part in name), None)
    if values is None:
        raise InputError(no_text(network, name, text))
    return values
