"""Darknet's two files: the .cfg, sections of options, and the .weights, a header and floats in the order of the layers.

Read as Darknet reads them (pjreddie/darknet and AlexeyAB/darknet, src/parser.c and src/option_list.c): blanks anywhere
in a line mean nothing, numbers are the leading part of a value that is one, unknown options are ignored.
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass, field

import numpy as np

from tenon.errors import FormatError
from tenon.network.graph.graph import Array

_HEADS = ("[net]", "[network]")
_COMMENTS = ("#", ";", "\0")
_MAX_CHARACTERS = 1 << 22
"""Characters of a .cfg; the longest known has 20 thousand."""


@dataclass
class CfgSection:
    """One layer: its type and its options.  Raises FormatError for a value that should be a number and is not."""

    type: str
    line: int
    options: dict[str, str] = field(default_factory=dict)

    def text(self, key: str, default: str = "") -> str:
        return self.options.get(key, default)

    def integer(self, key: str, default: int = 0) -> int:
        return int(self.number(key, default))

    def number(self, key: str, default: float = 0.0) -> float:
        return self._number(key, self.options[key]) if key in self.options else default

    def numbers(self, key: str) -> list[float]:
        return [self._number(key, part) for part in self.text(key).split("#")[0].split(",") if part]

    def _number(self, key: str, text: str) -> float:
        match = re.match(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE)
        value = float(match.group()) if match else math.nan
        if not abs(value) < 2**40:
            raise FormatError(f"line {self.line}: [{self.type}] has {key}={text[:40]}, which is not a usable number")
        return value


def is_cfg(data: bytes) -> bool:
    """Whether the first line with content is ``[net]`` or ``[network]``."""
    for line in data[:4096].split(b"\n"):
        stripped = b"".join(line.split())
        if stripped and chr(stripped[0]) not in _COMMENTS:
            return stripped.decode("latin-1") in _HEADS
    return False


def sections(data: bytes) -> list[CfgSection]:
    """The sections of a .cfg, ``[net]`` first.  Raises FormatError."""
    if len(data) > _MAX_CHARACTERS:
        raise FormatError(f"{len(data)} bytes are too many for a Darknet .cfg")
    parsed: list[CfgSection] = []
    for number, raw in enumerate(data.decode("latin-1").split("\n"), 1):
        line = "".join(raw.split())
        if not line or line[0] in _COMMENTS:
            continue
        if line[0] == "[":
            parsed.append(CfgSection(line.strip("[]"), number))
            continue
        key, equals, value = line.partition("=")
        if not equals or not parsed:
            raise FormatError(f"line {number}: '{line[:60]}' is neither a [section] nor an option=value")
        parsed[-1].options.setdefault(key, value)
    if not parsed or f"[{parsed[0].type}]" not in _HEADS:
        raise FormatError("it does not begin with [net]; the file is truncated or damaged")
    return parsed


class DarknetWeights:
    """The floats of a .weights file, taken one layer after the other; without a file everything is zero."""

    def __init__(self, data: bytes | None) -> None:
        self.given = data is not None
        self.revision = 0
        self.transposed = False
        self._floats = np.zeros(0, np.float32)
        self._at = 0
        if data is not None:
            self._read(data)

    def _read(self, data: bytes) -> None:
        """The header: version, then images seen in training, 8 bytes since version 0.2."""
        if len(data) < 16:
            raise FormatError("the weights end within their header; the file is truncated")
        major, minor, self.revision = struct.unpack_from("<3i", data)
        self.transposed = major > 1000 or minor > 1000
        begin = 20 if major * 10 + minor >= 2 else 16
        count = max(0, len(data) - begin) // 4
        self._floats = np.frombuffer(data, "<f4", count, begin).astype(np.float32, copy=False)

    @property
    def alexey(self) -> bool:
        """Whether AlexeyAB/darknet wrote the file: it counts revisions, the original always writes 0."""
        return self.revision > 0

    def take(self, *shape: int) -> Array:
        """The next floats.  Raises FormatError when there are no more."""
        size = math.prod(shape)
        if min(shape) < 1 or size >= 2**40:
            raise FormatError(f"weights of the shape {list(shape)} are impossible")
        if not self.given:
            return np.broadcast_to(np.float32(0), shape)
        end = self._at + size
        if end > self._floats.size:
            self.given, self._at = False, self._floats.size  # reported once, for the first layer that lacks them
            raise FormatError(
                f"the weights hold {self._floats.size} numbers, too few for this .cfg; "
                "the two files do not belong together, or the weights are truncated"
            )
        self._at, begin = end, self._at
        return self._floats[begin:end].reshape(shape)

    def finish(self) -> None:
        """Raise FormatError if floats are left."""
        left = self._floats.size - self._at
        if left:
            raise FormatError(
                f"{left} of the {self._floats.size} numbers in the weights are not used by this .cfg; "
                "the two files do not belong together"
            )
