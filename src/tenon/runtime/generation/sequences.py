"""A network whose caches hold several sequences, and texts that it goes on with at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.network.graph.text_model import TextModel
from tenon.runtime.bundle.manifest import Binding, size_ranges
from tenon.runtime.engine import Engine
from tenon.runtime.generation.image_rows import ImageRows, sights, whole
from tenon.runtime.text.tokenizer import common_prefix

SLOTS = "slots"
"""The input that says to which sequence a token belongs."""


def has_sequences(engine: Engine) -> bool:
    """Whether a network's caches hold several sequences."""
    return any(tensor.name == SLOTS for tensor in engine.manifest.own_inputs)


class SequenceDecoder:
    """The network of a language model compiled with ``sequences``.

    ``tokens`` are, for each slot, those whose keys and values the caches hold; ``room`` is the number of tokens that a
    slot can hold; ``images`` are the rows of images, for networks that read them.  What two sequences begin with is
    computed once and copied, as long as caches that are rings (``TextModel.rewind``) have what is before the rest.
    """

    def __init__(self, engine: Engine, text: TextModel) -> None:
        self.engine, self._name = engine, text.ports.get("logits", "logits")
        self._caches = [tensor for tensor in engine.manifest.own_inputs if tensor.state]
        self.count = self._caches[0].shape[0]
        self.room = text.room or self._caches[0].shape[2]
        self._rewind = self.room if text.rewind is None else text.rewind
        self.most = max(_tokens_of(binding) for binding in engine.manifest.every_binding())
        self._image, self._seen = (text.ports.get(role, "") for role in ("image", "seen"))
        self._together = text.image.together if text.image is not None else 0
        self.images: ImageRows | None = None
        self.tokens = [list[int]() for _ in range(self.count)]
        self._reached = [0] * self.count
        engine.reset()

    @property
    def vocabulary(self) -> int:
        """The number of logits."""
        return next(t for t in self.engine.manifest.outputs if t.name == self._name).shape[-1]

    def _kept(self, slot: int, tokens: Sequence[int]) -> int:
        """How many of ``tokens`` a slot holds at the beginning; at least one is left for the next run.  None where
        rings have lost what is before the rest."""
        count = max(0, min(common_prefix(self.tokens[slot], tokens), len(tokens) - 1))
        count = whole(self.images, tokens, count, self._together)
        return count if self._reached[slot] - count <= self._rewind else 0

    def place(self, tokens: Sequence[int], free: Sequence[int]) -> tuple[int, int]:
        """One of the free slots for a sequence, and how many of its tokens are there then.

        Where another slot holds more of its beginning, this is copied.
        """
        slot = max(free, key=lambda number: (self._kept(number, tokens), -len(self.tokens[number])))
        source = max(range(self.count), key=lambda number: self._kept(number, tokens))
        count = self._kept(source, tokens)
        if count > self._kept(slot, tokens):
            for tensor in self._caches:
                cache = self.engine.inputs[tensor.name]
                rows = count if tensor.shape[2] == self.room else tensor.shape[2]
                cache[slot, :, :rows] = cache[source, :, :rows]
            self._reached[slot] = self._reached[source]
        self.tokens[slot] = list(tokens[:count])
        self._reached[slot] = self._reached[slot] if count else 0
        return slot, count

    def read_images(self, images: ImageRows) -> None:
        """Take the rows of images that tokens behind the vocabulary stand for.

        Raises InputError where no run has room for the rows that see one another and a token of each other text.
        """
        if self._together and self._together + self.count - 1 > self.most:
            raise InputError(
                f"the {self._together} rows of an image and a token of each other text belong to one run of "
                f"'{self.engine.name}', which has {self.most}: compile the model with more context (--context)"
            )
        self.images = images

    def fitting(self, tokens: list[int], left: int) -> list[int]:
        """As many of the tokens that follow as a run takes that has room for ``left``: not some of the rows of an image
        that see one another."""
        return tokens[: whole(self.images, tokens, min(left, len(tokens)), self._together)]

    def run(self, given: Mapping[int, Sequence[int]]) -> dict[int, Array]:
        """Add tokens behind those of slots, at most ``most`` in all; the logits f32[vocabulary] of each one's last.

        Raises InputError if a slot has no room for them.
        """
        tokens, slots, positions, rows = list[int](), list[int](), list[int](), list[int]()
        for slot, own in given.items():
            first = len(self.tokens[slot])
            if first + len(own) > self.room:
                raise InputError(f"the caches of '{self.engine.name}' have room for {self.room} tokens")
            tokens += own
            slots += [slot] * len(own)
            positions += range(first, first + len(own))
            self._reached[slot] = max(self._reached[slot], first + len(own))
            rows.append(len(tokens) - 1)
        feeds = {"slots": slots, "positions": positions, "rows": rows}
        arrays = {name: np.array(numbers, np.int64) for name, numbers in feeds.items()}
        if self._image:
            width = self.engine.inputs[self._image].shape[-1]
            none = np.zeros((1, len(tokens), width), np.float32)
            arrays[self._image] = none if self.images is None else self.images.embeddings(tokens)
        if self._seen:
            arrays[self._seen] = np.concatenate(
                [sights(self.images, own, len(self.tokens[slot]), self._together) for slot, own in given.items()]
            )
        logits = self.engine.run({"tokens": np.array([tokens], np.int64), **arrays}, copy=False)[self._name][0]
        for slot, own in given.items():
            self.tokens[slot] += own
        return {slot: np.array(row, np.float32) for slot, row in zip(given, logits, strict=True)}


def _tokens_of(binding: Binding) -> int:
    """The most tokens of a run of an entry point."""
    tensor = next(tensor for tensor in binding.inputs if tensor.name == "tokens")
    sizes = dict(tensor.extents)
    return size_ranges(binding.inputs)[sizes[1]].most if 1 in sizes else tensor.shape[1]
