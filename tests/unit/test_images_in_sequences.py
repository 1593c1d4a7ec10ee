"""Texts about images beside other texts, by models that are compiled for several sequences."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tenon
from http_server import serving
from installed import succeeds
from tenon.errors import InputError
from tenon.runtime.generation.image_rows import ImageRows
from tenon.speech import ImageGenerator
from tenon.tools.server.app import application
from vision_models import GEMMA3, LLAVA, MODELS, SIDE, SMOLVLM, SeeingModel, photo

PROMPTS = ("bacdef{}ghijklmn", "abc", "{}ab", "bacdef{}gh", "fedcba", "bacdef")
"""Prompts that begin alike, before an image, with it, and within what is behind it."""


@contextmanager
def opened(source: Path, sequences: int, context: int = 128) -> Iterator[ImageGenerator]:
    """The generator of a model with its tower."""
    with (
        tenon.open(tenon.compile(source, outputs=["image_features"], no_tuning=True)) as tower,
        tenon.open(tenon.compile(source, no_tuning=True, context=context, sequences=sequences)) as engine,
        ImageGenerator(engine, tower) as generator,
    ):
        yield generator


def folder(model: SeeingModel, path: Path) -> Path:
    """A folder of safetensors."""
    return model.write(path, **({"do_image_splitting": False} if model is SMOLVLM else {}))


@pytest.mark.parametrize("name", MODELS)
def test_texts_about_an_image_beside_others_are_those_alone(name: str, tmp_path: Path) -> None:
    """Some wait for a place, and begin while others are being generated; then each runs alone."""
    source = folder(MODELS[name], tmp_path)
    given = Image.fromarray(photo())
    with opened(source, 1) as alone, opened(source, 3) as several:
        prompts = [text.format(alone.mark) for text in PROMPTS]
        right = []
        for prompt in prompts:
            alone.read(*[given] * prompt.count(alone.mark))
            right.append(alone.generate(prompt, max_tokens=24).tokens)
        streams = []
        for prompt in prompts:
            several.read(*[given] * prompt.count(several.mark))
            streams.append(several.stream(prompt, max_tokens=24))
        left = list(streams)
        while left:
            for stream in left[:3]:
                if next(stream, None) is None:
                    left.remove(stream)
        assert [stream.completion.tokens for stream in streams] == right
        assert sum(stream.completion.reused_tokens > 4 for stream in streams) >= 2
        several.read(given)
        assert several.generate(prompts[0], max_tokens=24).tokens == right[0]


def test_rows_that_see_one_another_need_room_in_a_run(tmp_path: Path) -> None:
    """Gemma 3's 16 rows and a token of each of the other texts."""
    source = folder(GEMMA3, tmp_path)
    refusal = "16 rows of an image and a token of each other text .* more context"
    with pytest.raises(InputError, match=refusal), opened(source, 4, context=36):
        pass
    with opened(source, 4, context=38) as generator:
        generator.read(Image.fromarray(photo()))
        streams = [generator.stream("ab", max_tokens=3) for _ in range(4)]
        assert len({"".join(stream) for stream in streams}) == 1


def test_requests_about_images_beside_others(tmp_path: Path) -> None:
    """Eight requests at a time, of which every second one has an image."""
    source = folder(LLAVA, tmp_path)
    content = BytesIO()
    Image.fromarray(photo()).save(content, "png")
    part = {"url": "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()}
    with opened(source, 3) as generator:
        generator.text = replace(generator.text, chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")

        def asked(port: int, number: int) -> str:
            parts: list[dict[str, object]] = [{"type": "text", "text": "abcdef"[: 1 + number // 2]}]
            parts += [{"type": "image_url", "image_url": part}] if number % 2 else []
            body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 12}
            connection = HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("POST", "/v1/chat/completions", json.dumps(body).encode())
            answer = json.loads(connection.getresponse().read())
            connection.close()
            return str(answer["choices"][0]["message"]["content"])

        with serving(application(generator, "llava")) as port, ThreadPoolExecutor(8) as pool:
            one_by_one = [asked(port, number) for number in range(8)]
            assert list(pool.map(partial(asked, port), range(8))) == one_by_one
    assert len(set(one_by_one)) > 4


def test_sequences_on_the_command_line(tmp_path: Path) -> None:
    source = folder(LLAVA, tmp_path)
    Image.fromarray(photo(SIDE, SIDE)).save(tmp_path / "photo.png")
    words = ("run", source, "--prompt", "ab<image>cd", "--image", "photo.png", "--max-tokens", "9", "--context", "128")
    assert succeeds(*words, "--sequences", "2", cwd=tmp_path) == succeeds(*words, cwd=tmp_path)


def test_images_of_prompts_are_kept() -> None:
    """More images than are kept otherwise, as long as prompts have them."""
    images, rng = ImageRows(64, 8), np.random.default_rng(2)
    prompts = [images.held([1, *images.add(rng.normal(size=(4, 8)))]) for _ in range(40)]
    assert all(np.any(images.embeddings(prompt)[0, 1:], axis=1).all() for prompt in prompts)
    first = list(prompts[0])
    del prompts[:20]
    images.held([])
    with pytest.raises(InputError, match="is a row of no image"):
        images.embeddings(first)
    assert all(np.any(images.embeddings(prompt)[0, 1:], axis=1).all() for prompt in prompts)
