"""Class names that exporters write into the metadata of ONNX models."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

_MOST = 1 << 20
"""Classes; a larger number in a dictionary is no class."""


def stated_labels(model: ModelProto) -> tuple[str, ...]:
    """The names that the metadata states: ``names``, a dictionary from numbers as text (Ultralytics), or ``character``,
    one character per line (PaddleOCR); () if there are none, or if they are not of this form."""
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    if "names" in metadata:
        return _numbered(metadata["names"])
    return tuple(metadata.get("character", "").splitlines())


def _numbered(text: str) -> tuple[str, ...]:
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return tuple(names)
    if not isinstance(names, Mapping) or not names:
        return ()
    fits = all(type(i) is int and 0 <= i < _MOST and isinstance(name, str) for i, name in names.items())
    return tuple(names.get(i, str(i)) for i in range(max(names) + 1)) if fits else ()
