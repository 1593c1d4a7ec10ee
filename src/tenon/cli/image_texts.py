"""``tenon run MODEL --image photo.jpg --prompt TEXT`` and conversations about images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tenon.cli.input_files import InputFiles
from tenon.cli.language_models import print_completion
from tenon.cli.model_source import ModelArgument, Threads, open_engine
from tenon.errors import InputError
from tenon.runtime.engine.image import open_photo, part_of
from tenon.runtime.generation.image_generator import ImageGenerator
from tenon.runtime.generation.image_reader import FEATURES

if TYPE_CHECKING:
    from tenon.runtime.engine import Engine


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
    assert files.image is not None
    crop = files.live.part()
    with opened_with_images(source, {**options, "preprocess": files.preprocess}, threads) as generator:
        photo = open_photo(files.image)
        generator.read(photo if crop is None else part_of(photo, crop))
        content = [{"type": "image"}, {"type": "text", "text": prompt}]
        chats = generator.text.chat_template and generator.mark not in prompt
        given = [{"role": "user", "content": content}] if chats else prompt
        print_completion(generator, given, how, as_json=as_json)


@contextmanager
def opened_with_images(source: ModelArgument, options: Mapping[str, Any], threads: Threads) -> Iterator[ImageGenerator]:
    """The generator of a model that reads images, with its tower.

    The tower is of the second file (``--mmproj``), which may be a bundle, else of the model's own files.  Raises
    InputError for a bundle of a language model without the tower.
    """
    own = {name: value for name, value in options.items() if name != "preprocess"}
    with open_engine(without_tower(source), own, threads) as engine:
        if engine.text is None or engine.text.image is None:
            raise InputError(
                f"'{engine.name}' is no language model that reads images; if its tower of images is a file of its own, "
                "give that, too (--mmproj)"
            )
        with opened_tower(source, options, threads) as tower, ImageGenerator(engine, tower) as generator:
            yield generator


def without_tower(source: ModelArgument) -> ModelArgument:
    """The language model alone, of a bundle and its tower."""
    return replace(source, weights=None) if source.bundle else source


def has_tower(source: ModelArgument) -> bool:
    """Whether the tower is given, or lies in the model's own files."""
    return source.weights is not None or not source.bundle


@contextmanager
def opened_tower(source: ModelArgument, options: Mapping[str, Any], threads: Threads) -> Iterator[Engine]:
    """The tower of images of a model.  Raises InputError for a bundle without one."""
    changed = {name: value for name, value in options.items() if name not in ("context", "cache_type", "sequences")}
    if source.weights is not None and (source.bundle or source.model.lower().endswith(".gguf")):
        tower = ModelArgument(source.weights)
        own = {"preprocess": options.get("preprocess")} if tower.bundle else changed
        with open_engine(tower, own, threads) as engine:
            yield engine
        return
    if source.bundle:
        raise InputError(f"{source.name}: a bundle of a language model: give its tower of images, too (--mmproj)")
    with open_engine(replace(source, outputs=(FEATURES,)), changed, threads) as engine:
        yield engine
