"""How a folder of the library sentence-transformers makes the embedding of a text of states."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenon.errors import FormatError, Problem, UnsupportedError
from tenon.formats.decompositions.decoder.layers import Pooling
from tenon.input_file import is_regular, read_regular

_FILE, _POOLING = "modules.json", "1_Pooling/config.json"
_MODES: Mapping[str, Pooling] = {
    "lasttoken": "last",
    "mean_tokens": "mean",
    "mean": "mean",
    "cls_token": "first",
    "cls": "first",
}
"""Names of ``pooling_mode``, some of which have a key of their own, ``pooling_mode_NAME``."""
_IGNORED = ("Transformer", "Normalize")
"""Modules that are the network itself, and that embeddings of length 1 need not."""


def pooling_of(folder: Path) -> Pooling | None:
    """The pooling that a folder states, in its list of modules or, without one, in the file of that module; else None.

    Raises FormatError for damaged files, UnsupportedError for modules and modes that are not known.
    """
    if not is_regular(folder / _FILE):
        return _mode(folder / _POOLING) if is_regular(folder / _POOLING) else None
    modules = _read(folder / _FILE)
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        raise FormatError(f"{folder / _FILE}: it is no list of modules")
    pooling: Pooling | None = None
    for module in modules:
        kind, place = str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))
        if kind == "Pooling" and re.fullmatch(r"[\w-]{1,40}", place):
            pooling = _mode(folder / place / "config.json")
        elif kind not in _IGNORED:
            raise _unsupported(folder / _FILE, f"has a module {kind:.40}, which is not known")
    return pooling


def _mode(path: Path) -> Pooling:
    content = _read(path)
    if not isinstance(content, dict):
        raise FormatError(f"{path}: the settings of a module are a JSON object")
    keys = [
        key.removeprefix("pooling_mode_") for key, value in content.items() if value is True and "pooling_mode_" in key
    ]
    stated = content.get("pooling_mode")
    modes = [stated] if isinstance(stated, str) else keys
    if len(modes) != 1 or modes[0] not in _MODES:
        raise _unsupported(path, f"pools states by {', '.join(modes) or 'nothing'}")
    return _MODES[modes[0]]


def _read(path: Path) -> Any:
    try:
        return json.loads(read_regular(path))
    except ValueError as error:
        raise FormatError(f"{path}: it is no JSON: {error}") from error


def _unsupported(path: Path, what: str) -> UnsupportedError:
    known = "the last token, the first one or the mean of all"
    return UnsupportedError(str(path), [Problem("the embedding of a text", what, f"known are {known}")])
