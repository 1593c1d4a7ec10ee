"""LLaVA, SmolVLM and Gemma 3 in safetensors and GGUF files: texts about images beside the library transformers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import tenon
from damage import COUNT, survive
from gguf_models import ARRAY, F32, STRING, U32
from installed import succeeds
from installed import tenon as command
from tenon.errors import FormatError, InputError, UnsupportedError
from tenon.formats import importers
from tenon.formats.model_files.model_file import ModelFile
from tenon.runtime.generation.image_reader import ImageReader
from tenon.speech import ImageGenerator
from tenon.tools.server.app import application
from vision_models import (
    AROUND,
    END,
    GEMMA3,
    LINE,
    LINES,
    LLAVA,
    MODELS,
    PARTS,
    ROW,
    SIDE,
    SMOLVLM,
    START,
    WHOLE,
    SeeingModel,
    photo,
)

SPLIT = {
    "do_image_splitting": True,
    "size": {"longest_edge": 2 * SIDE},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
SIZES = {"llava": (SIDE, SIDE), "smolvlm": (40, 64), "gemma3": (SIDE, SIDE)}
TEXT = "bacdef{}ghijklmn"
BEFORE, BEHIND = [1, 0, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11, 12, 13]
FOUR = [ROW] * 4
EXPANDED = {
    "llava": [ROW] * 16,
    "smolvlm": [
        *(AROUND, PARTS, *FOUR, AROUND, PARTS + 1, *FOUR, LINE),
        *(AROUND, PARTS + 2, *FOUR, AROUND, PARTS + 3, *FOUR, LINES),
        *(AROUND, WHOLE, *FOUR, AROUND),
    ],
    "gemma3": [LINES, START, *[ROW] * 16, END, LINE, LINE],
}
GREEDY = {
    "llava": "8 18 8 57 8 33 61 58 24 19 60 11 48 63 19 60 0 61 42 3 34 0 28 36 10 0 28 24 19 8 30 13 18 57 28 "
    "24 9 3 0 61 23 28 24 48 36 4 57 59 18 8 27 30 24 19 60 17 0 19 30 24 19 3 8 27",
    "smolvlm": "4 10 46 38 0 19 17 30 27 60 28 60 29 1 57 1 54 40 27 8 0 17 15 4 21 40 46 7 47 8 50 54 42 27 16 "
    "18 51 7 20 19 0 0 0 14 3 29 28 46 8 19 9 19 30 24 19 30 30 30 30 19 0 19 8 57",
    "gemma3": "30 12 12 33 12 10 32 8 35 30 12 33 27 32 33 27 30 12 33 21 32 33 21 12 33 21 12 50 45 26 18 35 "
    "26 63 32 33 44 42 30 18 35 26 63 33 44 40 51 33 44 33 44 33 44 33 44 24 33 24 33 24 33 24 33 24",
}
"""The 64 tokens that transformers 4.57 chooses in f64 without a cache, SmolVLM's positions of patches counted from 0:
each time the best logit leads by more than 0.2 % of the largest."""


@pytest.fixture(scope="module", params=[(n, form) for n in MODELS for form in ("safetensors", "gguf")], ids="-".join)
def generator(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageGenerator]:
    name, form = request.param
    model, folder = MODELS[name], tmp_path_factory.mktemp(f"{name}-{form}")
    if form == "gguf":
        source, second = written(model, folder)
    else:
        source, second = model.write(folder, **(SPLIT if model is SMOLVLM else {})), None
    with opened(source, second) as both:
        yield both


@contextmanager
def opened(source: Path, second: Path | None) -> Iterator[ImageGenerator]:
    """The generator of a model with its tower."""
    with (
        tenon.open(tenon.compile(source, outputs=["image_features"], weights=second, no_tuning=True)) as tower,
        tenon.open(tenon.compile(source, weights=second, no_tuning=True, context=128)) as engine,
        ImageGenerator(engine, tower) as generator,
    ):
        yield generator


def written(model: SeeingModel, folder: Path) -> tuple[Path, Path]:
    """The model's two GGUF files."""
    (folder / "model.gguf").write_bytes(model.decoder_file())
    (folder / "mmproj.gguf").write_bytes(model.tower_file(exchanged=model is LLAVA))
    return folder / "model.gguf", folder / "mmproj.gguf"


def test_64_tokens_about_an_image_are_those_of_transformers(generator: ImageGenerator) -> None:
    """Read twice: the second time what is in the caches is not computed again, except from the rows of an image on."""
    name = {"llama": "llava"}.get(generator.text.architecture, generator.text.architecture)
    if generator.text.image is not None and generator.text.image.longest:
        name = "smolvlm"
    generator.read(Image.fromarray(photo(*SIZES[name])))
    prompt = TEXT.format(generator.mark)
    tokens = generator.tokens_of(prompt)
    assert [min(token, ROW) if token >= 64 else token for token in tokens] == [*BEFORE, *EXPANDED[name], *BEHIND]
    first, second = (generator.generate(prompt, max_tokens=64) for _ in range(2))
    assert " ".join(map(str, first.tokens)) == GREEDY[name]
    assert (second.tokens, second.reused_tokens) == (first.tokens, len(tokens) - 1)


def test_images_in_messages(tmp_path: Path) -> None:
    """Two images, in messages of parts and as data: URLs, by a template that has contents of texts only."""
    source, second = written(LLAVA, tmp_path)
    template = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
    source.write_bytes(LLAVA.decoder_file(**{"tokenizer.chat_template": (STRING, template)}))
    other, content = Image.fromarray(photo()[::-1]), BytesIO()
    other.save(content, "png")
    url = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
    with opened(source, second) as generator:
        pieces: list[dict[str, object]]
        pieces = [{"type": "image", "image": Image.fromarray(photo())}, {"type": "text", "text": "ab"}]
        pieces.append({"type": "image_url", "image_url": {"url": url}})
        tokens = generator.tokens_of([{"role": "user", "content": pieces}])
        assert [token if token < 64 else ROW for token in tokens] == [20, *[ROW] * 16, LINE, *[ROW] * 16, LINE, 0, 1]
        own = [token for token in tokens if token >= 64]
        assert own == list(range(own[0], own[0] + 32))
        assert generator.tokens_of([{"role": "user", "content": pieces}]) == tokens
        with pytest.raises(InputError, match="the prompt has 2 images, and 0 are given"):
            generator.tokens_of("<image>a<image>")
        for bad, why in (
            ("https://example.com/a.png", "not fetched"),
            ("data:image/png;base64,AAAA", "cannot be read: it is no JPEG, PNG"),
            (url[: len(url) // 8 * 4], "cannot be read: "),
        ):
            part = {"type": "image_url", "image_url": {"url": bad}}
            with pytest.raises(InputError, match=why):
                generator.tokens_of([{"role": "user", "content": [part]}])
        with pytest.raises(InputError, match="is no tower of images"):
            ImageReader(generator.engine)


def test_a_tower_of_its_own_and_bundles(tmp_path: Path) -> None:
    """The command line with both files and with bundles of both."""
    source, second = written(LLAVA, tmp_path)
    Image.fromarray(photo()).save(tmp_path / "photo.png")
    text = ("--prompt", TEXT.format("<image>"), "--image", "photo.png", "--max-tokens", "8", "--json")
    wanted = [int(token) for token in GREEDY["llava"].split()[:8]]
    listed = succeeds("run", source, "--mmproj", second, *text, "--no-tuning", cwd=tmp_path)
    assert json.loads(listed)["tokens"] == wanted
    succeeds("compile", source, "--mmproj", second, "-o", "words", "--no-tuning", cwd=tmp_path)
    succeeds("compile", second, "-o", "tower", "--no-tuning", cwd=tmp_path)
    assert json.loads(succeeds("run", "words", "--mmproj", "tower", *text, cwd=tmp_path))["tokens"] == wanted
    done = command("run", "words", *text, cwd=tmp_path)
    assert (done.returncode, "--mmproj" in done.stderr) == (2, True), done.stderr


def load(model: SeeingModel, tower: bytes) -> object:
    file = ModelFile("model.gguf", model.decoder_file(), weights=ModelFile("mmproj.gguf", tower))
    return importers.load(file.data, {"length": 2, "past": 3}, weights=tower)


def test_wrong_towers_are_named() -> None:
    assert load(LLAVA, LLAVA.tower_file("f16"))
    with pytest.raises(FormatError, match="it has no tower of images"):
        load(LLAVA, LLAVA.decoder_file())
    with pytest.raises(UnsupportedError, match="the projector 'resampler' is not supported"):
        load(LLAVA, LLAVA.tower_file(projector_type=(STRING, "resampler")))
    with pytest.raises(FormatError, match="in patches of 5"):
        load(GEMMA3, GEMMA3.tower_file(vision__patch_size=(U32, 5)))
    with pytest.raises(FormatError, match="divides 8 patches"):
        load(GEMMA3, GEMMA3.tower_file(vision__projector__scale_factor=(U32, 3)))
    with pytest.raises(FormatError, match="a number for each colour"):
        load(SMOLVLM, SMOLVLM.tower_file(vision__image_mean=(ARRAY, (F32, [0.5]))))
    with pytest.raises(UnsupportedError, match="states of several layers"):
        load(LLAVA, LLAVA.tower_file(vision__feature_layer=(ARRAY, (U32, [1, 2]))))


@pytest.mark.parametrize("name", MODELS)
def test_damaged_towers_are_errors(name: str) -> None:
    """The keys and the table of tensors of mmproj files, alone and beside a language model."""
    data = MODELS[name].tower_file()
    end = data.index(b"v.patch_embd") + 400

    def alone(damaged: bytes) -> object:
        return importers.load(damaged + data[end:])

    survive(f"mmproj {name}", data[:end], alone, COUNT // 6)
    survive(f"mmproj beside {name}", data[:end], lambda d: load(MODELS[name], d + data[end:]), COUNT // 12)


def test_rows_stay_the_same_with_16_bits(tmp_path: Path) -> None:
    file = tmp_path / "mmproj.gguf"
    rows, pixels = [], np.random.default_rng(0).normal(size=(1, 3, SIDE, SIDE)).astype(np.float32)
    for kind in ("f32", "f16"):
        file.write_bytes(SMOLVLM.tower_file(kind))
        with tenon.open(tenon.compile(file, no_tuning=True)) as tower:
            rows.append(np.array(tower.run({"image": pixels})["image_features"]))
    np.testing.assert_allclose(rows[1], rows[0], atol=5e-3 * np.abs(rows[0]).max())


def test_images_over_http(tmp_path: Path) -> None:
    """Messages of OpenAI's API with images as data: URLs; other addresses and sounds are refused."""
    source, second = written(LLAVA, tmp_path)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    source.write_bytes(LLAVA.decoder_file(**{"tokenizer.chat_template": (STRING, template)}))
    content = BytesIO()
    Image.fromarray(photo()).save(content, "png")
    url = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
    with opened(source, second) as generator:
        client = TestClient(application(generator, "llava"))

        def asked(part: dict[str, object]) -> tuple[int, str]:
            parts = [part, {"type": "text", "text": "abc"}]
            body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 8}
            answer = client.post("/v1/chat/completions", json=body)
            if answer.status_code != 200:
                return answer.status_code, str(answer.json()["error"]["message"])
            return 200, str(answer.json()["choices"][0]["message"]["content"])

        generator.read(Image.fromarray(photo()))
        right = generator.generate(f"{generator.mark}\nabc", max_tokens=8).text
        assert asked({"type": "image_url", "image_url": {"url": url}}) == (200, right)
        status, message = asked({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}})
        assert (status, "not fetched" in message) == (400, True), message
        status, message = asked({"type": "input_audio"})
        assert (status, "only text and images" in message) == (400, True), message
