"""A network with caches that predicts tokens, run on pieces of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.text_model import TextModel
from tenon.runtime.bundle.manifest import Binding, BundleTensor, counts_of_states, size_ranges
from tenon.runtime.engine import Engine
from tenon.runtime.generation.image_rows import ImageRows, sights, whole
from tenon.runtime.text.tokenizer import common_prefix

_POSITIONS, _MASKS = ("position_ids",), ("attention_mask",)


class _EntryPoint(NamedTuple):
    """The sizes of one binding: up to ``length`` tokens behind up to ``past`` others."""

    length: int
    past: int


class Decoder:
    """The network of a language model.

    ``tokens`` are those whose keys and values its caches hold, ``room`` is the number that they can hold; ``images``
    are the rows of images, for networks that read them.  Raises InputError for a network without caches, or with inputs
    that are not known.
    """

    def __init__(self, engine: Engine, text: TextModel) -> None:
        inputs = {tensor.name: tensor for tensor in engine.manifest.own_inputs}
        self.engine = engine
        self._tokens, self._logits = (text.ports.get(role, role) for role in ("tokens", "logits"))
        self._past = _past(engine, inputs)
        self._image, self._seen = (text.ports.get(role, "") for role in ("image", "seen"))
        self._together = text.image.together if text.image is not None else 0
        self.images: ImageRows | None = None
        self._only_caches = all(
            not tensor.state or name == self._past or self._past in dict(tensor.extents).values()
            for name, tensor in inputs.items()
        )
        self._extra = self._other_inputs(engine, inputs)
        self._entries = [self._entry(binding) for binding in engine.manifest.every_binding()]
        self.room = max(entry.past + entry.length for entry in self._entries)
        self.tokens = list[int]()
        self._rewind = text.rewind
        self._reached = 0
        self.reset()

    def _other_inputs(self, engine: Engine, inputs: dict[str, BundleTensor]) -> list[str]:
        """The inputs beside tokens that are given in every run."""
        if self._tokens not in inputs:
            raise InputError(f"'{engine.name}' has no input '{self._tokens}' for tokens")
        if self._logits not in {tensor.name for tensor in engine.manifest.outputs}:
            raise InputError(f"'{engine.name}' has no output '{self._logits}' with logits")
        needed = [t.name for t in engine.manifest.needed_inputs if t.name != self._tokens and t.size is None]
        needed = [name for name in needed if name not in (self._image, self._seen)]
        if unknown := [name for name in needed if name not in _POSITIONS + _MASKS]:
            raise InputError(f"'{engine.name}' has an input '{unknown[0]}', which a text does not give")
        return needed

    def _entry(self, binding: Binding) -> _EntryPoint:
        ranges = size_ranges(binding.inputs)
        tensor = next(tensor for tensor in binding.inputs if tensor.name == self._tokens)
        sizes = dict(tensor.extents)
        length = ranges[sizes[1]].most if 1 in sizes else tensor.shape[1]
        return _EntryPoint(length, ranges[self._past].most)

    @property
    def vocabulary(self) -> int:
        """The number of logits."""
        logits = next(t for t in self.engine.manifest.outputs if t.name == self._logits)
        return logits.shape[-1]

    def read_images(self, images: ImageRows) -> None:
        """Take the rows of images that tokens behind the vocabulary stand for."""
        self.images = images

    def reset(self) -> None:
        """Forget all tokens."""
        if self._only_caches:
            self.engine.inputs[self._past][...] = 0  # what lies behind so many tokens is never read
        else:
            self.engine.reset()
        self.tokens, self._reached = [], 0

    def keep(self, tokens: Sequence[int]) -> int:
        """Forget the tokens behind the part that ``tokens`` begins with too; the number that stay.

        At least one of ``tokens`` is left for the next run.  Rings (``TextModel.rewind``) that have lost what is before
        the part forget all.
        """
        count = max(0, min(common_prefix(self.tokens, tokens), len(tokens) - 1))
        count = whole(self.images, tokens, count, self._together)
        if self._rewind is not None and count < self._reached - self._rewind:
            count = self._reached = 0
        self.engine.inputs[self._past][...] = count  # also after a run that was interrupted
        del self.tokens[count:]
        return count

    def run(self, tokens: Sequence[int]) -> Array:
        """Add tokens behind those in the caches; the logits f32[vocabulary] of the last one.

        Raises InputError if the caches have no room for them.
        """
        if len(self.tokens) + len(tokens) > self.room:
            raise InputError(f"the caches of '{self.engine.name}' have room for {self.room} tokens: use a shorter text")
        at, logits = 0, np.empty(0, np.float32)
        while at < len(tokens):
            piece = tokens[at : self._end(tokens, at)]
            logits = self._step(piece)
            self.tokens += piece
            self._reached = max(self._reached, len(self.tokens))
            at += len(piece)
        return logits

    def _end(self, tokens: Sequence[int], at: int) -> int:
        """Where the next run ends: not among rows of an image that see one another."""
        end = whole(self.images, tokens, at + self._fitting(len(tokens) - at), self._together)
        if end <= at:
            raise InputError(
                f"the {self._together} rows of an image belong to one run of '{self.engine.name}', which has fewer: "
                f"compile the model for longer ones (--shape length=1..{self._together})"
            )
        return end

    def _fitting(self, count: int) -> int:
        """The number of tokens of the next run: of ``count``, as many as an entry point takes behind those before."""
        past = len(self.tokens)
        return max(min(count, entry.length) for entry in self._entries if past <= entry.past)

    def _step(self, tokens: Sequence[int]) -> Array:
        past, count = len(self.tokens), len(tokens)
        feeds: dict[str, Array] = {self._tokens: np.array([tokens], np.int64)}
        if self._image:
            feeds[self._image] = self._embeddings(tokens)
        if self._seen:
            feeds[self._seen] = sights(self.images, tokens, past, self._together)
        for name in self._extra:
            if name in _POSITIONS:
                feeds[name] = np.arange(past, past + count, dtype=np.int64)[None]
            else:
                feeds[name] = np.ones((1, past + count), np.int64)
        logits = self.engine.run(feeds, copy=False)[self._logits]
        return np.array(logits[0, -1], np.float32)

    def _embeddings(self, tokens: Sequence[int]) -> Array:
        """The rows of images among tokens, f32 [1, n, width]."""
        if self.images is not None:
            return self.images.embeddings(tokens)
        return np.zeros((1, len(tokens), self.engine.inputs[self._image].shape[-1]), np.float32)


def _past(engine: Engine, inputs: dict[str, BundleTensor]) -> str:
    """The size that counts the tokens in the caches."""
    sizes = counts_of_states(inputs.values())
    if len(sizes) != 1:
        raise InputError(
            f"'{engine.name}' has no caches that grow: compile the model with a range for their extent (--shape)"
        )
    return sizes.pop()
