"""The perplexity of a small language model, against the definition of its network in NumPy."""

from __future__ import annotations

import json
import string
from pathlib import Path

import numpy as np
import pytest

import tenon
from gguf_models import ARRAY, BOOL, F32, I32, STRING, U32, VOCABULARY, DecoderFile, Pair, Variant, logits
from installed import tenon as command
from tenon.errors import InputError
from tenon.metrics import perplexity

pytest.importorskip("tokenizers")

TOKENS = ["<unk>", "<s>", "</s>", "\u2581", *string.ascii_letters[: VOCABULARY - 4]]
KEYS: dict[str, Pair] = {
    "tokenizer.ggml.model": (STRING, "llama"),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, TOKENS)),
    "tokenizer.ggml.scores": (ARRAY, (F32, [0.0] * VOCABULARY)),
    "tokenizer.ggml.token_type": (ARRAY, (I32, [2, 3, 3, *[1] * (VOCABULARY - 3)])),
    "tokenizer.ggml.bos_token_id": (U32, 1),
    "tokenizer.ggml.eos_token_id": (U32, 2),
    "tokenizer.ggml.add_space_prefix": (BOOL, False),
}
MODEL = DecoderFile("llama", pairs=KEYS)
TEXT = "fishes swim in a lake"
WINDOW = 9


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("story") / "story.gguf"
    path.write_bytes(MODEL.file())
    (path.parent / "story.txt").write_text(TEXT)
    return path


def expected(window: int) -> tuple[int, float]:
    """The number of predicted tokens, and their perplexity, by the definition."""
    numbers = [TOKENS.index("\u2581" if c == " " else c) for c in TEXT]
    losses = list[float]()
    for start in range(0, len(numbers), window - 1):
        piece = [1, *numbers[start : start + window - 1]]
        for count in range(1, len(piece)):
            row = logits(MODEL, Variant(neighbours=True, bases=(10000.0, 10000.0)), piece[:count])
            losses.append(float(np.log(np.exp(row).sum()) - row[piece[count]]))
    return len(losses), float(np.exp(np.mean(losses)))


def test_perplexity_is_that_of_the_definition(file: Path) -> None:
    with tenon.open(tenon.compile(file, context=32)) as engine:
        for window in (WINDOW, 512):
            count, value = expected(min(window, 32))
            result = perplexity(engine, TEXT, window=window)
            assert result.tokens == count == len(TEXT)
            assert result.perplexity == pytest.approx(value, rel=1e-4)
        assert perplexity(engine, TEXT, tokens=5).tokens == 5
        assert result.reference is None


def test_a_model_is_no_distance_from_itself_and_some_from_its_rounded_weights(file: Path) -> None:
    exact, rounded = tenon.compile(file, context=32), tenon.compile(file, context=32, weight_format="q4_0")
    same = perplexity(exact, TEXT, reference=exact)
    assert (same.divergence, same.agreement, same.reference) == (0.0, 1.0, same.perplexity)
    other = perplexity(rounded, TEXT, reference=exact)
    assert other.reference == same.perplexity
    assert other.divergence is not None
    assert 1e-4 < other.divergence < 1.0
    assert other.perplexity != same.perplexity


def test_what_cannot_be_predicted_is_refused(file: Path, tmp_path: Path) -> None:
    with tenon.open(tenon.compile(file, context=32)) as engine:
        with pytest.raises(InputError, match="no token that could be predicted"):
            perplexity(engine, "")
        with pytest.raises(InputError, match="window=1"):
            perplexity(engine, TEXT, window=1)


def test_the_command_compares_rounded_weights_with_the_model_itself(file: Path) -> None:
    common = ("evaluate", "story.gguf", "--data", "story.txt", "--metric", "perplexity", "--context", "32")
    done = command(*common, "--weight-format", "q8_0", "--json", cwd=file.parent)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["reference"] == pytest.approx(expected(32)[1], rel=1e-4)
    assert 0 < result["divergence"] < 0.01
    refused = command(*common, "--ground-truth", "story.txt", cwd=file.parent)
    assert refused.returncode == 2
    assert "--ground-truth" in refused.stderr
