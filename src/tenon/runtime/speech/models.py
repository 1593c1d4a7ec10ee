"""The parts of models for speech to text, and how they are cut out of a model file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenon.formats.decompositions.transformers.caches import CROSS
from tenon.input_file import is_regular, read_regular

SETTINGS = "config.json"
_MODELS = ("whisper", "moonshine")

ENCODER: Mapping[str, Any] = {"outputs": (CROSS,), "shapes": {}}
"""The arguments of ``tenon.compile`` for the part that hears."""

DECODER: Mapping[str, Any] = {"inputs": (CROSS,), "shapes": {"length": 1}}
"""Those for the part that writes, a token in a run."""


def is_speech_model(path: Path) -> bool:
    """Whether a folder, or the folder of a file, holds a model for speech to text."""
    folder = path if path.is_dir() else path.parent
    if not is_regular(folder / SETTINGS):
        return False
    try:
        content = json.loads(read_regular(folder / SETTINGS))
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("model_type") in _MODELS
