"""Moonshine in files of ONNX and of ONNX Runtime, with the tokens in tokenizer.bin: text and logits of ONNX Runtime."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tenon
from exact_onnxruntime import session
from installed import succeeds
from onnx_models import random
from optimum_models import merged_decoder, sound_encoder
from ort_models import ort_file
from tenon.errors import FormatError, InputError
from tenon.formats import importers
from tenon.formats.importers.onnx.masks import drop_mask
from tenon.formats.wire.token_list import token_list
from tenon.network.graph.graph import Array
from tenon.runtime.speech.model_folder import speech_model
from tenon.speech import DECODER, ENCODER, Recognizer, write_wav
from transformer_models import SMALL_WHISPER, whisper_tensors

BYTES = [bytes([value]) for value in range(256)]
WORDS = [f"\u2581w{i}".encode() for i in range(40)]
TOKENS = [b"<unk>", b"<s>", b"</s>", *BYTES, b"", b"<<ST_0>>", "\u2581ä".encode() * 60, *WORDS]
CONFIG = replace(SMALL_WHISPER, vocab_size=len(TOKENS), max_target_positions=32)


def listed(tokens: list[bytes]) -> bytes:
    """A file tokenizer.bin."""
    sizes = [len(token) for token in tokens]
    heads = [bytes([size]) if size < 128 else bytes([size % 128 + 128, size // 128]) for size in sizes]
    return b"".join(head + token for head, token in zip(heads, tokens, strict=True))


@pytest.fixture(scope="module", params=["onnx", "ort"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(request.param)
    (place / "tokenizer.bin").write_bytes(listed(TOKENS))
    (place / "config.json").write_text(json.dumps({"max_position_embeddings": CONFIG.max_target_positions}))
    files = {
        "encoder_model": sound_encoder(CONFIG),
        "decoder_model_merged": merged_decoder(CONFIG, whisper_tensors(CONFIG)),
    }
    for name, data in files.items():
        if request.param == "onnx":
            (place / f"{name}.onnx").write_bytes(data)
        else:
            ort_file(onnx.load_from_string(data), place / f"{name}.ort", optimised=True)
    return place


def sound(count: int) -> Array:
    return np.random.default_rng(count).normal(0, 0.1, count).astype(np.float32)


def greedy(folder: Path, samples: Array, most: int) -> tuple[list[int], list[Array]]:
    """The tokens that ONNX Runtime writes down, and their logits."""
    ending = "onnx" if (folder / "encoder_model.onnx").exists() else "ort"
    hearing, writing = (session(folder / f"{name}.{ending}") for name in ("encoder_model", "decoder_model_merged"))
    given = {"input_values": samples[None], "attention_mask": np.ones((1, len(samples)), np.int64)}
    (states,) = hearing.run(None, given)
    heads, size = CONFIG.decoder_attention_heads, CONFIG.d_model // CONFIG.decoder_attention_heads
    ports = [port.name for port in writing.get_inputs()]
    past = {name: np.zeros((1, heads, 0, size), np.float32) for name in ports if name.startswith("past")}
    results = [port.name for port in writing.get_outputs()]
    tokens, logits = [1], list[Array]()
    while len(logits) < most and tokens[-1] != 2:
        feeds = {"input_ids": np.array([tokens[-1:]]), "encoder_hidden_states": states, **past}
        got = dict(
            zip(results, writing.run(None, {**feeds, "use_cache_branch": np.array([bool(logits)])}), strict=True)
        )
        for name in past:
            if not logits or ".decoder." in name:
                past[name] = got[name.replace("past_key_values", "present")]
        logits.append(got["logits"][0, -1])
        allowed = np.array(logits[-1])
        allowed[[0, 1, TOKENS.index(b"<<ST_0>>")]] = -np.inf
        tokens.append(int(allowed.argmax()))
    return tokens[1:], logits


def test_tokens_and_logits(folder: Path) -> None:
    """One bundle of each part for sounds of several lengths."""
    model = speech_model(folder)
    assert model
    with (
        tenon.open(tenon.compile(model, **ENCODER)) as hearing,
        tenon.open(tenon.compile(model, **DECODER)) as writing,
    ):
        recognizer = Recognizer(hearing, writing)
        for count in (1024, 5000, 16001):
            tokens, logits = greedy(folder, sound(count), 12)
            assert recognizer.tokens(sound(count), 12) == [token for token in tokens if token != 2]
            writing.reset()
            writing.inputs["tokens"][...] = 1
            np.testing.assert_allclose(writing.run()["logits"][0, 0], logits[0], atol=1e-3)


def test_the_command_writes_the_text(folder: Path) -> None:
    write_wav(folder / "x.wav", sound(9000), 16000)
    samples = np.rint(sound(9000) * 32767).astype(np.float32) / 2**15
    tokens, _ = greedy(folder, samples, CONFIG.max_target_positions - 1)
    data = b"".join(TOKENS[token] for token in tokens if token != 2)
    expected = data.decode("utf-8", "replace").replace("\u2581", " ").strip()
    assert json.loads(succeeds("run", folder, "x.wav", "--json", cwd=folder))["text"] == expected


def test_where_the_files_are(folder: Path) -> None:
    main = next(folder.glob("encoder_model.*"))
    assert speech_model(folder) == main
    assert speech_model(main) == main
    assert speech_model(next(folder.glob("decoder_model_merged.*"))) == main
    text = importers.read(main, DECODER["shapes"], inputs=DECODER["inputs"]).graph.text
    assert text
    assert text.architecture == "moonshine"


def test_an_unknown_dimension(folder: Path) -> None:
    with pytest.raises(InputError, match="no dimension is called 'batch'; there are samples, sound_length"):
        importers.load(next(folder.glob("encoder_model.*")), {"batch": 1}, outputs=["cross.*"])


# ------------------------------------------------------------------------------------------------- tokens
def test_token_lists() -> None:
    assert token_list(listed(TOKENS), "t") == TOKENS
    with pytest.raises(FormatError, match="t: it holds no tokens"):
        token_list(b"", "t")
    with pytest.raises(FormatError, match="t: its last token has no length"):
        token_list(listed(TOKENS) + b"\x80", "t")
    with pytest.raises(FormatError, match="t: token 0 does not fit the file"):
        token_list(b"\x05abc", "t")


# -------------------------------------------------------------------------------------------------- masks
HEAD = '<ir_version: 8, opset_import: ["" : 18]>'
SCORES = "s = MatMul(x, x) a = Add({0}) p = Softmax <axis = -1> (a) y = MatMul(p, x)"


def masked(text: str) -> onnx.ModelProto:
    made: onnx.ModelProto = onnx.parser.parse_model(
        HEAD + f"g (float[4,4] x, float[4,4] mask, bool c) => (float[4,4] y) {{ {text} }}"
    )
    return made


@pytest.mark.parametrize("order", ["s, z", "z, s"])
def test_a_mask_of_ones_is_left_out(order: str) -> None:
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    text = "z = Sub(one, mask) " + SCORES.format(order)
    plain, model = masked(text), masked(text)
    for each in (plain, model):
        each.graph.initializer.append(one)
    assert drop_mask(model, "mask")
    assert [value.name for value in model.graph.input] == ["x", "c"]
    x = random(4, 4)
    onnx.checker.check_model(model)
    np.testing.assert_array_equal(run(model, x), run(plain, x))


def test_a_mask_in_branches_is_left_out() -> None:
    body = SCORES.replace("y =", "r =").format("s, mask")
    model = masked(
        f"y = If (c) <then_branch = t () => (float[4,4] r) {{ {body} }}, "
        "else_branch = e () => (float[4,4] r) { r = Neg(x) }>"
    )
    assert drop_mask(model, "mask")
    assert "mask" not in {name for node in model.graph.node for name in node.input}


@pytest.mark.parametrize(
    "text",
    [
        "y = Mul(x, mask)",
        "z = Add(x, mask) y = Relu(z)",
        "y = If (c) <then_branch = t () => (float[4,4] r) { r = Mul(x, mask) }, "
        "else_branch = e () => (float[4,4] r) { r = Neg(x) }>",
    ],
)
def test_a_mask_that_does_more_is_kept(text: str) -> None:
    model = masked(text)
    assert not drop_mask(model, "mask")
    assert model == masked(text)


def run(model: onnx.ModelProto, x: Array) -> Any:
    peer = session(model.SerializeToString())
    feeds = {"x": x, "mask": np.ones((4, 4), np.float32), "c": np.array(True)}
    return peer.run(None, {port.name: feeds[port.name] for port in peer.get_inputs()})[0]
