"""Files and folders that hold models for speech to text."""

from __future__ import annotations

import json
from pathlib import Path

from tenon.formats.wire.ggml import MAGIC
from tenon.input_file import is_regular, open_regular, read_regular

SETTINGS = "config.json"
_MODELS = ("whisper", "moonshine")


def is_speech_model(path: Path) -> bool:
    """Whether a file is one of whisper.cpp, or a folder, or that of a file, holds a model for speech to text."""
    if is_regular(path):
        with open_regular(path) as file:
            if file.read(len(MAGIC)) == MAGIC:
                return True
    folder = path if path.is_dir() else path.parent
    if not is_regular(folder / SETTINGS):
        return False
    try:
        content = json.loads(read_regular(folder / SETTINGS))
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("model_type") in _MODELS
