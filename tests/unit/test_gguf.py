"""GGUF files: decoders of every architecture, weights in blocks, settings of texts, and damaged files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tenon
from damage import COUNT, survive
from decoder_runs import SIZES, TOKENS, last_logits
from gguf_models import (
    ARRAY,
    BOOL,
    DEPTH,
    F32,
    HIDDEN,
    STRING,
    U32,
    VOCABULARY,
    DecoderFile,
    Variant,
    gguf,
    logits,
)
from tenon.errors import FormatError, UnsupportedError
from tenon.formats import importers
from tenon.formats.model_files import model_file
from tenon.formats.wire.gguf import parse
from tenon.machine.kernels.block_formats import FORMATS, dequantised
from tenon.machine.plan import weights
from tenon.network.graph.dtype import DType
from tenon.network.graph.graph import Array
from tenon.runtime.bundle import writer

pytestmark = pytest.mark.quick(importer="gguf")

BOTH = ("attn_norm", "ffn_norm")
QK = (*BOTH, "attn_q_norm", "attn_k_norm")
POST = (*BOTH, "post_attention_norm", "post_ffw_norm")
AFTER = (*POST[2:], *QK[2:])
ROOT = HIDDEN**0.5
MULTIPLIED = Variant(neighbours=True, embedding=6.0, scores=0.125, residual=0.5, logits=0.25)
GRANITE: Mapping[str, tuple[int, float]] = {
    "embedding_scale": (F32, 6.0),
    "attention.scale": (F32, 0.125),
    "residual_scale": (F32, 0.5),
    "logit_scale": (F32, 4.0),
}
WINDOW: Mapping[str, tuple[int, int]] = {"attention.sliding_window": (U32, 5)}
NEAR, FAR = 10000.0, 50000.0

LLAMA = DecoderFile("llama"), Variant(neighbours=True)
CASES: Mapping[str, tuple[DecoderFile, Variant]] = {
    "llama": LLAMA,
    "tied": (DecoderFile("llama", key_heads=4, tied=True), Variant(neighbours=True)),
    "smollm3": (DecoderFile("smollm3", 4), Variant(neighbours=True, bases=(NEAR, NEAR, NEAR, 0))),
    "qwen2": (DecoderFile("qwen2", biases=True), Variant()),
    "qwen3": (DecoderFile("qwen3", norms=QK), Variant()),
    "phi3": (DecoderFile("phi3", joined=True), Variant()),
    "gemma": (DecoderFile("gemma", tied=True), Variant(gelu=True, embedding=ROOT)),
    "gemma2": (
        DecoderFile("gemma2", tied=True, norms=POST, pairs=WINDOW),
        Variant(gelu=True, embedding=ROOT, windows=(5, 0), softcaps=(50.0, 30.0)),
    ),
    "gemma3": (
        DecoderFile("gemma3", 6, norms=(*POST, *QK[2:]), pairs={**WINDOW, "rope.freq_base": (F32, FAR)}),
        Variant(gelu=True, embedding=ROOT, windows=(5,) * 5 + (0,), bases=(NEAR,) * 5 + (FAR,)),
    ),
    "olmo2": (DecoderFile("olmo2", norms=AFTER, together=True), Variant()),
    "olmo3": (DecoderFile("olmo2", 4, norms=AFTER, together=True, pairs=WINDOW), Variant(windows=(5, 5, 5, 0))),
    "granite": (DecoderFile("granite", pairs=GRANITE), MULTIPLIED),
    "granite without positions": (
        DecoderFile("granite", pairs={**GRANITE, "rope.scaling.finetuned": (BOOL, False)}),
        replace(MULTIPLIED, bases=(0, 0)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_of_every_architecture(name: str) -> None:
    model, variant = CASES[name]
    graph = importers.load(model.file(), SIZES)
    right = logits(model, variant, TOKENS)
    np.testing.assert_allclose(last_logits(graph, TOKENS), right, atol=2e-4 * np.abs(right).max())


# ------------------------------------------------------------------------------------------ weights in blocks
def rounded(data: Array, kind: str) -> tuple[bytes, Array]:
    """A matrix in blocks of q8_0 or q4_0, rounded to nearest, and the numbers that these stand for."""
    blocks = data.reshape(len(data), -1, 32)
    most = 127 if kind == "q8_0" else 7
    scale = (np.abs(blocks).max(-1, keepdims=True) / most).astype("<f2")
    codes = np.rint(blocks / np.maximum(scale.astype(np.float32), 1e-8)).astype(np.int8)
    if kind == "q8_0":
        packed = codes.view(np.uint8)
    else:
        packed = (codes[..., :16] + 8).astype(np.uint8) | (codes[..., 16:] + 8).astype(np.uint8) << 4
    stored = np.concatenate([scale.view(np.uint8), packed], axis=-1).reshape(len(data), -1)
    return stored.tobytes(), dequantised(FORMATS[kind], stored)


@cache
def in_blocks(kind: str) -> tuple[bytes, DecoderFile, dict[str, Array]]:
    """A file whose matrices are in blocks, and its weights as these round them."""
    model = LLAMA[0]
    tensors, weights = {}, {}
    for name, data in model.weights().items():
        kept = data.ndim == 1
        content, weights[name] = (data.tobytes(), data) if kept else rounded(data, kind)
        tensors[name] = ("f32" if kept else kind, data.shape, content)
    return gguf(model.keys(), tensors), model, weights


@pytest.mark.parametrize(("kind", "loose"), [("q8_0", 0.04), ("q4_0", 0.04)])
def test_weights_in_blocks(kind: str, loose: float) -> None:
    """Only activations are rounded in addition to weights: the logits differ by what these 8 bits cost."""
    data, model, weights = in_blocks(kind)
    graph = importers.load(data, SIZES)
    assert {node.op.name for node in graph if node.op.name.startswith("Block")} == {
        "BlockQuantize",
        "BlockMatMul",
        "BlockGather",
    }

    class Rounded(DecoderFile):
        def weights(self, seed: int = 0) -> dict[str, Array]:
            return weights

    right = logits(Rounded(model.architecture), LLAMA[1], TOKENS)
    np.testing.assert_allclose(last_logits(graph, TOKENS), right, atol=loose * np.abs(right).max())


def test_compiled_decoder(tmp_path: Path) -> None:
    """The default entry points in C: a prompt at once and then token by token give the logits of the references."""
    data = in_blocks("q4_0")[0]
    graph = importers.load(data, SIZES)
    with tenon.open(tenon.compile(data, name="net", no_tuning=True)) as engine:
        assert [binding.entry for binding in engine.manifest.every_binding()] == ["net", "net_2"]
        for _ in range(2):
            given = TOKENS[:6]
            for count in range(6, 9):
                row = engine.run({"tokens": np.array([given])})["logits"][0, -1]
                right = last_logits(graph, TOKENS[:count])
                np.testing.assert_allclose(row, right, atol=2e-5 * np.abs(right).max())
                given = TOKENS[count : count + 1]
            engine.reset()
        tables = 2 * 4 * 256 * DEPTH // 2
        assert engine.manifest.memory.constant < 1.1 * len(data) + tables


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_weights_of_16_bits_take_16_bits(kind: str) -> None:
    """The logits are those of the same numbers in f32, in half of the memory."""
    dtype = {"f16": np.dtype("<f2"), "bf16": DType.BF16.numpy}[kind]
    model, files, sizes = LLAMA[0], dict[str, bytes](), dict[str, int]()
    for name in ("f32", kind):
        tensors = {}
        for key, data in model.weights().items():
            stored = data.astype(dtype)
            narrow = name != "f32" and data.ndim == 2
            content = stored if narrow else stored.astype(np.float32) if data.ndim == 2 else data
            tensors[key] = (name if narrow else "f32", data.shape, content.tobytes())
        files[name] = gguf(model.keys(), tensors)
    rows = dict[str, Array]()
    for name, file in files.items():
        bundle = tenon.compile(file, name="net", weight_format="fp32", no_tuning=True)
        sizes[name] = bundle.program.memory.constant
        with tenon.open(bundle) as engine:
            rows[name] = engine.run({"tokens": np.array([TOKENS[:6]])})["logits"]
    np.testing.assert_allclose(rows[kind], rows["f32"], atol=1e-5 * np.abs(rows["f32"]).max())
    matrices = sum(data.size for data in model.weights().values() if data.ndim == 2)
    gathered = VOCABULARY * HIDDEN
    assert sizes["f32"] - sizes[kind] in range(2 * gathered + 1)  # products of both are in 16 bits, embeddings of one
    assert sizes[kind] < 2.2 * matrices + 2 * 4 * 256 * DEPTH // 2


def test_large_files_are_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle is the same, byte for byte, and files are read into memory once."""
    data = in_blocks("q8_0")[0]
    (tmp_path / "net.gguf").write_bytes(data)
    small = tenon.compile(tmp_path / "net.gguf", no_tuning=True).save(tmp_path / "small.tenon").read_bytes()
    for module, name in ((model_file, "_LARGE"), (weights, "IN_MEMORY"), (weights, "_SPOOLED"), (writer, "IN_MEMORY")):
        monkeypatch.setattr(module, name, 1 << 12)
    first, second = (model_file.read(tmp_path / "net.gguf") for _ in range(2))
    assert first.data is second.data
    assert type(first.data).__name__ == "MappedFile"
    large = tenon.compile(tmp_path / "net.gguf", no_tuning=True)
    assert any(not constant.data.flags.owndata for constant in large.program.constants)
    assert large.save(tmp_path / "large.tenon").read_bytes() == small


# -------------------------------------------------------------------------------------------------- text
PIECES = [f"piece {i}" for i in range(VOCABULARY)]
TEXT = {
    "tokenizer.ggml.model": (STRING, "llama"),
    "tokenizer.ggml.tokens": (ARRAY, (STRING, PIECES)),
    "tokenizer.ggml.scores": (ARRAY, (F32, [-float(i) for i in range(VOCABULARY)])),
    "tokenizer.ggml.bos_token_id": (U32, 1),
    "tokenizer.ggml.eos_token_id": (U32, 2),
    "tokenizer.ggml.eot_token_id": (U32, 3),
    "tokenizer.ggml.add_eos_token": (BOOL, False),
    "tokenizer.chat_template": (STRING, "{{ messages }}"),
    "general.sampling.temp": (F32, 0.5),
}


def test_settings_of_texts_reach_the_bundle(tmp_path: Path) -> None:
    data = replace(LLAMA[0], layers=1, pairs=TEXT).file()
    bundle = tenon.compile(data, name="net", shapes={"length": 1, "past": "0..7"}, no_tuning=True)
    with tenon.open(bundle.save(tmp_path / "net.tenon")) as engine:
        text = engine.text
        assert text is not None
        assert (text.kind, text.architecture, text.context) == ("decoder", "llama", 256)
        assert (text.bos, text.eos, text.pad, text.add_bos, text.add_eos) == (1, (2, 3), None, True, False)
        assert text.chat_template == "{{ messages }}"
        assert text.generation == {"temperature": 0.5}
        assert text.ports["tokens"] in {tensor.name for tensor in engine.manifest.inputs}
        assert text.ports["logits"] in {tensor.name for tensor in engine.manifest.outputs}
        assert text.tokenizer is not None
        assert text.tokenizer.form == "gguf"
        tokenizer = json.loads(text.tokenizer.content)
        assert (tokenizer["model"], tokenizer["tokens"], tokenizer["scores"][3]) == ("llama", PIECES, -3.0)


# ------------------------------------------------------------------------------------------- files and faults
def test_parts_of_a_model_are_found(tmp_path: Path) -> None:
    model = LLAMA[0]
    stored = {name: ("f32", data.shape, data.tobytes()) for name, data in model.weights().items()}
    first = {name: tensor for name, tensor in stored.items() if not name.startswith("blk.1.")}
    rest = {name: tensor for name, tensor in stored.items() if name not in first}
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(gguf(model.keys(), first))
    with pytest.raises(FormatError, match=r"is in 2 files, and m-00002-of-00002\.gguf is not beside it"):
        importers.load(tmp_path / "m-00001-of-00002.gguf", SIZES)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(gguf({}, rest))
    whole = last_logits(importers.load(model.file(), SIZES), TOKENS[:3])
    for number in (1, 2):
        graph = importers.load(tmp_path / f"m-0000{number}-of-00002.gguf", SIZES)
        np.testing.assert_array_equal(last_logits(graph, TOKENS[:3]), whole)


def test_what_cannot_be_used_is_said() -> None:
    unknown = DecoderFile("mamba")
    with pytest.raises(UnsupportedError, match=r"mamba: this architecture is not supported \(llama, smollm3"):
        importers.load(unknown.file(), SIZES)
    sigmoid = {"expert_count": (U32, 4), "expert_used_count": (U32, 2), "expert_gating_func": (U32, 2)}
    with pytest.raises(UnsupportedError, match="experts chosen by other factors than a softmax"):
        importers.load(replace(LLAMA[0], pairs=sigmoid).file(), SIZES)
    with pytest.raises(UnsupportedError, match="scaled by 'other' are not supported"):
        importers.load(replace(LLAMA[0], pairs={"rope.scaling.type": (STRING, "other")}).file(), SIZES)
    with pytest.raises(UnsupportedError, match=r"has no weight 'token_embd\.weight'"):
        importers.load(gguf(LLAMA[0].keys(), {}), SIZES)
    with pytest.raises(FormatError, match=r"llama\.attention\.head_count is 0, which is no size"):
        importers.load(replace(LLAMA[0], pairs={"attention.head_count": (U32, 0)}).file(), SIZES)


def test_damaged_files_raise_model_errors() -> None:
    """Damage within the header; what follows it are weights."""
    data = replace(LLAMA[0], layers=1, pairs=TEXT).file()
    end = data.index(b"blk.0.ffn_down.weight")
    survive("gguf", data[:end], lambda damaged: importers.load(damaged + data[end:], SIZES), min(COUNT, 60))
    with pytest.raises(
        FormatError, match=rf"cut short: it has {end + 400} bytes, and its last tensor begins at byte \d+"
    ):
        importers.load(data[: end + 400], SIZES)
    for cut in (3, 7, 30, 200, end, len(data) - 40):
        with pytest.raises((FormatError, UnsupportedError)):
            importers.load(data[:cut], SIZES)


HEAD = gguf(TEXT, {})


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 24))
def test_parser_of_any_bytes(tail: bytes, kept: int) -> None:
    """Bytes behind the beginning of a valid file: what is read lies within them, or FormatError is raised."""
    try:
        parsed = parse(HEAD[:kept] + tail)
    except FormatError:
        return
    assert all(tensor.size < 1 << 40 for tensor in parsed.tensors.values())
