"""The checked values of the keys of a GGUF file: numbers, texts and lists of the model's architecture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenon.errors import FormatError

LARGEST = 1 << 24
"""The largest size that a file may state."""


@dataclass(frozen=True)
class Metadata:
    """The pairs of a file; keys without a dot at their beginning are those of the ``architecture``."""

    pairs: Mapping[str, Any]
    architecture: str

    @classmethod
    def of(cls, pairs: Mapping[str, Any]) -> Metadata:
        """Raises FormatError if the architecture is not stated."""
        architecture = pairs.get("general.architecture")
        if not isinstance(architecture, str) or not architecture:
            raise FormatError("does not say its architecture (general.architecture)")
        return cls(pairs, architecture)

    def get(self, key: str) -> Any:
        """The value of a key of the architecture; None if there is none."""
        return self.pairs.get(f"{self.architecture}.{key}")

    def size(self, key: str, default: int | None = None) -> int:
        """A size above zero.  Raises FormatError for another value, or none where there is no default."""
        value = self.get(key)
        if isinstance(value, np.ndarray) and value.size and (value == value.flat[0]).all():
            value = value.flat[0].item()
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < LARGEST:
            raise FormatError(f"{self.architecture}.{key} is {value!r}, which is no size")
        return value

    def number(self, key: str, default: float) -> float:
        """A finite number."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise FormatError(f"{self.architecture}.{key} is {value!r}, which is no number")
        return float(value)

    def text(self, key: str, default: str = "") -> str:
        """A text."""
        value = self.get(key)
        return value if isinstance(value, str) else default
