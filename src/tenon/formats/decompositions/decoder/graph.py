"""The graph of a decoder with a cache that grows.

Ports are ``tokens`` i64 [1, length], caches ``past_key_values.N.key`` and ``.value`` f32 [1, key heads, past, depth]
with ``present.N.key`` and ``.value`` after them, and ``logits`` f32 [1, 1, vocabulary] of the last token.  ``length``
and ``past`` are dimensions that every run chooses.

With a number of ``sequences`` a run has tokens of several: caches are [sequences, key heads, room, depth], ``slots``
and ``positions`` i64 [length] say where each token belongs.  ``rows`` i64 [answers] are the tokens whose logits are
given, [1, answers, vocabulary]; ``answers`` is a dimension, too.

A decoder that reads images has an input ``image_features`` f32 [1, length, hidden]: its rows are the embeddings of the
tokens behind the vocabulary.  Where the rows of an image see one another, ``seen`` i64 [length] says how many tokens
each token sees, from the first one on.
"""

from __future__ import annotations

from collections.abc import Mapping

from tenon.formats.decompositions.decoder.config import DecoderConfig, Rope
from tenon.formats.decompositions.decoder.experts import ExpertLayers
from tenon.formats.decompositions.decoder.layers import Pooling
from tenon.formats.decompositions.decoder.weights import DecoderWeights
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.size_range import Size
from tenon.network.graph.text_model import ImageText
from tenon.network.graph.text_shapes import CHUNK, CONTEXT
from tenon.network.graph.types import F32, I64, TensorType

TOKENS, LOGITS, LENGTH, PAST = "tokens", "logits", "length", "past"
"""Names of inputs, outputs and dimensions."""

IMAGES, SEEN = "image_features", "seen"
"""The inputs of decoders that read images: the embeddings of tokens behind the vocabulary, and what each token sees."""

PORTS = {name: name for name in (TOKENS, LOGITS, LENGTH, PAST)}
"""Names of inputs, outputs and sizes by their roles (``graph.text_model``)."""

SEQUENCES, SLOTS, POSITIONS, ROWS, ANSWERS = "sequences", "slots", "positions", "rows", "answers"
"""Names of inputs and dimensions where a run has tokens of several sequences."""

EMBEDDING, EMBEDDED = "embedding", 512
"""The output of a decoder that embeds texts, and the most tokens of a text where nothing else is said."""

EMBEDDING_PORTS = {name: name for name in (TOKENS, EMBEDDING)}


def decoder_graph(
    builder: GraphBuilder, config: DecoderConfig, weights: DecoderWeights, image: ImageText | None = None
) -> Graph:
    """The graph of a decoder, which reads images as ``image`` says.  Raises as ``GraphBuilder.finish`` does."""
    caches = [f"{i}.{part}" for i in range(len(config.layers)) for part in ("key", "value")]
    given = {LENGTH, PAST} & set(builder.shapes)
    together = image.together if image is not None else 0
    builder.shapes.update(_default_sizes(builder.shapes, config.context, together))
    several, cache = {}, TensorType(F32, (1, config.key_heads, PAST, config.depth))
    if SEQUENCES in builder.shapes:
        room, count = room_of(builder.shapes, config.context), _most(builder.shapes.pop(SEQUENCES))
        cache = TensorType(F32, (count, config.key_heads, room, config.depth))
        several = {name: TensorType(I64, (LENGTH,)) for name in (SLOTS, POSITIONS)}
        several[ROWS] = TensorType(I64, (ANSWERS,))
        builder.shapes.pop(PAST)
    types = {TOKENS: TensorType(I64, (1, LENGTH)), **several, **{f"past_key_values.{name}": cache for name in caches}}
    if image is not None:
        types[IMAGES] = TensorType(F32, (1, LENGTH, config.hidden))
    if together:
        types[SEEN] = TensorType(I64, (LENGTH,))
    builder.inputs(types)
    model = _Decoder(builder, config, weights)
    model.build()
    graph = builder.finish([LOGITS, *(f"present.{name}" for name in caches)])
    graph.default_sizes = not given and {LENGTH, PAST} <= set(builder.shapes)
    return graph


def embedding_graph(builder: GraphBuilder, config: DecoderConfig, weights: DecoderWeights, pooling: Pooling) -> Graph:
    """The graph of a decoder that embeds a text: ``tokens`` i64 [1, length] to ``embedding`` f32 [1, hidden], the
    normalised state of its last token or first token, or their mean, of length 1.  Raises as ``GraphBuilder.finish``
    does."""
    if TOKENS not in builder.shapes:
        builder.shapes.setdefault(LENGTH, Size(LENGTH, 1, min(EMBEDDED, config.context)))
    builder.inputs({TOKENS: TensorType(I64, (1, LENGTH))})
    model = _Decoder(builder, config, weights)
    states = model.states()
    with builder.layer("pooling", "pooling", EMBEDDING):
        builder[EMBEDDING] = model.layers.pooled(states, pooling)
    return builder.finish([EMBEDDING])


def image_ports(image: ImageText) -> Mapping[str, str]:
    """The names of inputs, outputs and sizes by their roles, of a decoder that reads images."""
    return {**PORTS, "image": IMAGES, **({"seen": SEEN} if image.together else {})}


def room_of(shapes: Shapes, context: int) -> int:
    """The most tokens of a cache, by the user's sizes or by default, of a model that was trained for ``context``."""
    sizes = {**_default_sizes(shapes, context), **shapes}
    return sum(_most(sizes.get(name, 0)) for name in (LENGTH, PAST))


def _most(size: object) -> int:
    return size.most if isinstance(size, Size) else size if isinstance(size, int) else 0


def _default_sizes(shapes: Shapes, context: int, together: int = 0) -> Mapping[str, Size]:
    """Ranges of the sizes that the user says nothing of; a run has room for ``together`` tokens."""
    if any(name == TOKENS or name.startswith("past_key_values.") for name in shapes):
        return {}
    most = _most(shapes.get(LENGTH, min(max(CHUNK, together), context)))
    sizes = {LENGTH: Size(LENGTH, 1, max(1, most)), PAST: Size(PAST, 0, max(0, min(CONTEXT, context) - most))}
    return {name: size for name, size in sizes.items() if name not in shapes}


class _Decoder:
    """The layers of a decoder, one after the other."""

    def __init__(self, builder: GraphBuilder, config: DecoderConfig, weights: DecoderWeights) -> None:
        self.builder, self.config, self.weights = builder, config, weights
        self.layers = ExpertLayers(builder, config, weights)

    def build(self) -> None:
        states = self.states()
        with self.builder.layer("output", "output", LOGITS):
            self.builder[LOGITS] = self.layers.logits(states)

    def states(self) -> Value:
        """The states behind the last layer, [1, length, hidden]."""
        builder, config = self.builder, self.config
        with builder.layer("embedding", "embedding", "x"):
            builder["x"] = self.layers.embedding(builder[TOKENS], builder.scope.get(IMAGES))
        turns = self._turns()
        for i, layer in enumerate(config.layers):
            cached = self.layers.cached
            caches = [f"present.{i}.{part}" for part in ("key", "value")] if cached else []
            with builder.layer(f"layer.{i}", "decoder layer", f"x.{i}", *caches):
                x = builder["x" if i == 0 else f"x.{i - 1}"]
                past = [builder[f"past_key_values.{i}.{part}"] for part in ("key", "value") if cached]
                added, present = self.layers.attention(i, x, past, turns[layer.rope], layer.window)
                for name, value in zip(caches, present, strict=cached):
                    builder[name] = value
                builder[f"x.{i}"] = self.layers.feed_forward(i, added)
        return builder[f"x.{len(config.layers) - 1}"]

    def _turns(self) -> Mapping[Rope | None, tuple[Value, Value] | None]:
        """Cosines and sines of the positions of a run, for every rotary embedding."""
        ropes = dict.fromkeys(layer.rope for layer in self.config.layers)
        turns: dict[Rope | None, tuple[Value, Value] | None] = {None: None}
        for number, rope in enumerate(rope for rope in ropes if rope is not None):
            names = [f"rope.{number}.{part}" for part in ("cosine", "sine")]
            with self.builder.layer(f"rope.{number}", "rotary embedding", *names):
                for name, value in zip(names, self.layers.turn(rope), strict=True):
                    self.builder[name] = value
            turns[rope] = self.builder.scope[names[0]], self.builder.scope[names[1]]
        return turns
