"""Language models that read an image: rows of the tower and logits beside NumPy, texts, and wrong settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tenon
from damage import COUNT, survive
from gguf_models import VOCABULARY
from image_decoder_models import (
    AROUND,
    FACTOR,
    IMAGE,
    ROWS,
    TOWER,
    WHOLE,
    WORDS,
    expected,
    features,
    weights,
    write,
)
from image_decoder_models import settings as all_settings
from installed import succeeds
from installed import tenon as command
from tenon.errors import FormatError, InputError, UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array, Graph
from tenon.runtime.generation.image_generator import ImageGenerator

SIDE = TOWER.image_size


def photo() -> Array:
    """Bytes [size, size, 3]."""
    return np.random.default_rng(8).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


def rows() -> Array:
    return features((photo().transpose(2, 0, 1) - 127.5) / 127.5)


def greedy(tokens: list[int], count: int, seen: Array) -> list[int]:
    """The likeliest token after each other."""
    made = list[int]()
    while len(made) < count:
        made.append(int(expected([*tokens, *made], seen).argmax()))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write(tmp_path_factory.mktemp("images"))
    Image.fromarray(photo()).save(path / "photo.png")
    return path


@pytest.fixture(scope="module")
def generator(folder: Path) -> Iterator[ImageGenerator]:
    with tenon.open(tenon.compile(folder)) as engine, ImageGenerator(engine) as opened:
        yield opened


def test_rows_of_an_image(folder: Path) -> None:
    with tenon.open(tenon.compile(folder, outputs=["image_features"])) as tower:
        given = ((photo().transpose(2, 0, 1)[None] - 127.5) / 127.5).astype(np.float32)
        np.testing.assert_allclose(tower.run({"image": given})["image_features"], rows(), atol=1e-4)


def test_the_prompt_has_the_rows_of_the_image(generator: ImageGenerator) -> None:
    generator.look(rows().astype(np.float32))
    first = generator.tokens_of("ad<image>af")[3]
    behind = list(range(first, first + ROWS))
    assert first >= VOCABULARY
    assert generator.tokens_of("ad<image>af") == [3, AROUND, WHOLE, *behind, AROUND, 5]
    assert generator.tokens_of("af") == [AROUND, WHOLE, *behind, AROUND, 5]
    with pytest.raises(InputError, match="the prompt has 2 images, and 1 are given"):
        generator.tokens_of("<image>af<image>")


def test_64_tokens_about_images(generator: ImageGenerator) -> None:
    """Another image behind the first one: nothing of the first is left in the caches."""
    for seen in (rows(), rows()[::-1].copy()):
        generator.look(seen.astype(np.float32))
        text = generator.generate("ad<image>af", max_tokens=64)
        tokens = generator.tokens_of("ad<image>af")
        first = tokens[3]
        own = [VOCABULARY + token - first if token >= first else token for token in tokens]
        assert list(text.tokens) == greedy(own, 64, seen)


def test_a_text_about_an_image_on_the_command_line(folder: Path) -> None:
    words = ("run", folder, "--prompt", "ad<image>af", "--image", folder / "photo.png", "--max-tokens", "12")
    listed = json.loads(succeeds(*words, "--json", cwd=folder))
    tokens = [3, AROUND, WHOLE, *range(VOCABULARY, VOCABULARY + ROWS), AROUND, 5]
    assert listed["tokens"] == greedy(tokens, 12, rows())
    assert succeeds(*words, cwd=folder).strip() == listed["text"].strip()
    assert listed["text"] == "".join(WORDS[token] for token in listed["tokens"] if token < WHOLE)


def test_what_cannot_be_asked_is_refused(folder: Path) -> None:
    done = command("run", folder, "--prompt", "ab", "--image", "photo.png", "--top", "3", cwd=folder)
    assert (done.returncode, "--top: no effect" in " ".join(done.stderr.split())) == (2, True), done.stderr
    done = command("run", folder, "--prompt", "ab", "--image", "none.png", cwd=folder)
    assert (done.returncode, "none.png" in done.stderr) == (2, True), done.stderr


def load(**others: object) -> Graph:
    return importers.load(weights(), {"length": 2, "past": 3}, weights=json.dumps(all_settings(**others)).encode())


def test_wrong_settings_are_named() -> None:
    assert load().text is not None
    with pytest.raises(FormatError, match=r"'scale_factor' is 3, and divides 4 patches"):
        load(scale_factor=3)
    with pytest.raises(FormatError, match="'vision_config' is missing"):
        load(vision_config=None)
    with pytest.raises(UnsupportedError, match="decoders of type 'bert' behind an image"):
        load(text_config={**all_settings()["text_config"], "model_type": "bert"})


def test_damaged_settings_are_errors() -> None:
    content, tensors = json.dumps(all_settings(scale_factor=FACTOR)).encode(), weights()
    for outputs in (None, ["image_features"]):
        shapes = None if outputs else {"length": 2, "past": 3}

        def sizes(data: bytes, outputs: list[str] | None = outputs, shapes: object = shapes) -> Graph:
            return importers.load(tensors, shapes, outputs=outputs, weights=data or b"0")  # type: ignore[arg-type]

        survive(f"settings {outputs}", content, sizes, COUNT // 6)
    assert IMAGE == VOCABULARY - 1
