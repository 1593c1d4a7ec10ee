"""``tenon run MODEL --image photo.jpg --prompt TEXT``: text about an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tenon.cli.input_files import InputFiles, read_feeds
from tenon.cli.language_models import print_completion
from tenon.cli.model_source import ModelArgument, Threads, open_engine
from tenon.errors import InputError
from tenon.network.graph.dtype import Array
from tenon.runtime.generation.image_generator import MARK, ImageGenerator

FEATURES = "image_features"
"""The output of the tower of images, and the input of the language model."""


def complete_image(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    prompt: str,
    files: InputFiles,
    how: Mapping[str, Any],
    *,
    as_json: bool,
) -> None:
    """Print what a model answers about an image: with a chat template as in a conversation, unless the prompt says
    where the image stands."""
    files.check()
    if source.bundle:
        raise InputError(f"{source.name}: a bundle has the tower of images or the language model: give the model")
    with open_engine(source, options, threads) as engine, ImageGenerator(engine) as generator:
        generator.look(_features(source, options, threads, files))
        content = [{"type": "image"}, {"type": "text", "text": prompt}]
        chats = generator.text.chat_template and MARK not in prompt
        given = [{"role": "user", "content": content}] if chats else prompt
        print_completion(generator, given, how, as_json=as_json)


def _features(source: ModelArgument, options: Mapping[str, Any], threads: Threads, files: InputFiles) -> Array:
    """The rows f32 [n, width] of the image."""
    changed = {**options, "preprocess": files.preprocess, "context": None}
    with open_engine(replace(source, outputs=(FEATURES,)), changed, threads) as engine:
        feeds, _ = read_feeds(engine, files, apply_changes=False)
        return np.array(engine.run(feeds)[FEATURES], np.float32)
