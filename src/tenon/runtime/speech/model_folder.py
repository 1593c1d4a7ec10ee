"""Files and folders that hold models for speech to text."""

from __future__ import annotations

import json
from pathlib import Path

from tenon.formats.wire.ggml import MAGIC
from tenon.formats.wire.token_list import TOKEN_LIST
from tenon.input_file import is_regular, open_regular, read_regular

SETTINGS = "config.json"
_MODELS = ("whisper", "moonshine")
_KINDS = ("", "_fp16", "_quantized", "_int8", "_uint8")
_ENCODERS = tuple(f"encoder_model{kind}{ending}" for ending in (".onnx", ".ort") for kind in _KINDS)
_PARTS = ("encoder_model", "decoder_model", "decoder_with_past_model")


def speech_model(path: Path) -> Path | None:
    """The file or folder of a model for speech to text that a path names; None for what is none.

    It is a file of whisper.cpp, a folder with ``config.json`` and weights, any file in it, or an ONNX file of optimum,
    also where the folder has these in another one called "onnx".  Files of Moonshine have ``tokenizer.bin`` beside
    them, and no settings.
    """
    if is_regular(path):
        with open_regular(path) as file:
            if file.read(len(MAGIC)) == MAGIC:
                return path
    folder = path if path.is_dir() else path.parent
    own = path.suffix in (".onnx", ".ort") and path.name.startswith(_PARTS)
    if is_regular(folder / TOKEN_LIST) and (own or path.is_dir()):
        return next((place for name in _ENCODERS if is_regular(place := folder / name)), None)
    if not any(_is_speech(place / SETTINGS) for place in (folder, *([folder.resolve().parent] if own else []))):
        return None
    if own or not path.is_dir() or any(path.glob("*.safetensors")):
        return path
    places = (place / name for place in (folder, folder / "onnx") for name in _ENCODERS)
    return next((place for place in places if is_regular(place)), path)


def _is_speech(settings: Path) -> bool:
    """Whether the settings in a file are those of such a model."""
    if not is_regular(settings):
        return False
    try:
        content = json.loads(read_regular(settings))
    except ValueError:
        return False
    return isinstance(content, dict) and content.get("model_type") in _MODELS
