"""Text that comes in pieces: characters that are cut, and strings that end it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns bytes of tokens into text as far as it is certain.

    A character whose bytes are not complete is held back, and so is an end of the text that may become one of
    ``stop``; ``stopped`` is set once one of these has occurred, and neither it nor anything behind it is given.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stop = tuple(text for text in stop if text)
        self.stopped = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def add(self, data: bytes) -> str:
        """The text that is certain after more bytes."""
        return "" if self.stopped else self._certain(self._decoder.decode(data))

    def finish(self) -> str:
        """The bytes that were held back, at the end of the text; a character that is not complete becomes U+FFFD."""
        if self.stopped:
            return ""
        text = self._certain(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _certain(self, text: str) -> str:
        whole = self._held + text
        ends = [at for at in (whole.find(stop) for stop in self.stop) if at >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return whole[: min(ends)]
        keep = max((_overlap(whole, stop) for stop in self.stop), default=0)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that is a beginning of ``stop``, shorter than it."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)
