"""Texts that are generated at the same time: one run of the network adds a token to each of them."""

from __future__ import annotations

from collections.abc import Generator
from threading import RLock
from typing import Protocol
from weakref import ref

from tenon.network.graph.dtype import Array
from tenon.runtime.generation.sequences import SequenceDecoder


class BatchedText(Protocol):
    """A text that is being generated."""

    @property
    def prompt(self) -> list[int]: ...

    @property
    def ended(self) -> bool: ...

    def begin(self, kept: int) -> None:
        """``kept`` tokens of the prompt are in the caches already."""

    def receive(self, logits: Array, used: int, room: int) -> list[int]:
        """The next token by its logits, in a list; none if the text has ended.  ``used`` tokens are in the caches."""

    def taken(self) -> str:
        """The text generated since this was last asked."""


class TextBatch:
    """The texts of a network, which any thread may ask for pieces: the one that does so runs the network for all.

    Texts wait for a slot, and their prompts are read one after the other, beside the tokens of texts that have begun:
    what a prompt has in common with others is copied and not computed again.
    """

    def __init__(self, decoder: SequenceDecoder) -> None:
        self.decoder, self._lock = decoder, RLock()  # a text may be collected, and leave, while another runs
        self._waiting = list[ref[BatchedText]]()
        self._active = dict[int, ref[BatchedText]]()
        self._given = dict[int, list[int]]()

    def pieces(self, text: BatchedText) -> Generator[str]:
        """The pieces of a text."""
        with self._lock:
            self._waiting.append(ref(text))
        try:
            while True:
                with self._lock:
                    piece = text.taken()
                    if not piece and not text.ended:
                        self._step()
                        piece = text.taken()
                    ended = text.ended
                if piece:
                    yield piece
                if ended and not piece:
                    return
        finally:
            with self._lock:
                self._leave(text)

    def _leave(self, text: BatchedText) -> None:
        """Forget a text, whose slot is free then, and those that nobody asks for any more."""
        self._waiting = [each for each in self._waiting if each() not in (None, text)]
        for slot, each in list(self._active.items()):
            if each() in (None, text):
                del self._active[slot], self._given[slot]

    def _step(self) -> None:
        """A run of the network: a token of each text that has begun, and as much of a prompt as fits beside these."""
        decoder = self.decoder
        self._admit()
        given, left = dict[int, list[int]](), decoder.most
        for slot, tokens in sorted(self._given.items(), key=lambda item: len(item[1])):
            given[slot] = decoder.fitting(tokens, left)
            left -= len(given[slot])
        given = {slot: tokens for slot, tokens in given.items() if tokens}
        for slot, logits in decoder.run(given).items():
            if slot not in self._given:
                continue
            self._given[slot] = self._given[slot][len(given[slot]) :]
            text = self._active[slot]()
            if self._given[slot]:
                continue
            following = [] if text is None else text.receive(logits, len(decoder.tokens[slot]), decoder.room)
            self._given[slot] = following
            if not following:
                del self._active[slot], self._given[slot]

    def _admit(self) -> None:
        """Give slots to waiting texts, as long as no other prompt is being read."""
        while self._waiting and len(self._active) < self.decoder.count:
            if any(len(tokens) > 1 for tokens in list(self._given.values())):
                return
            text = self._waiting.pop(0)()
            if text is not None:
                free = [slot for slot in range(self.decoder.count) if slot not in self._active]
                slot, kept = self.decoder.place(text.prompt, free)
                self._active[slot], self._given[slot] = ref(text), text.prompt[kept:]
                text.begin(kept)
