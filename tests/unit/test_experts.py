"""Decoders with experts: greedy tokens beside transformers, in both file formats."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from damage import COUNT, survive
from decoder_runs import SIZES, TOKENS
from expert_models import MODELS, NAMES, NEIGHBOURS, in_gguf, in_neighbours, named, settings
from lowered import make_site, run_lowered
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.machine.kernel_ir.text import show
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.expert_product import ExpertBlockMatMul
from transformer_models import safetensors

GREEDY: Mapping[str, tuple[int, str]] = {
    "mixtral": (
        2,
        "3 30 15 27 13 26 13 21 38 0 36 36 21 21 8 6 7 21 8 18 13 30 33 19 35 6 36 36 21 8 26 35 6 "
        "26 39 38 7 21 21 36 35 6 36 21 21 21 21 21 21 21 21 1 6 30 30 30 18 30 29 10 4 4 4 4",
    ),
    "qwen2_moe": (
        2,
        "10 5 10 29 9 10 20 20 20 20 20 20 20 20 20 20 20 20 20 10 17 14 15 18 18 20 15 18 9 20 10 19 1 "
        "36 36 18 36 20 36 36 9 20 9 20 36 20 15 9 20 20 20 10 20 10 9 20 20 20 20 20 20 20 20 20",
    ),
    "qwen3_moe": (
        2,
        "24 20 20 20 20 23 23 21 7 15 20 24 2 19 26 19 37 24 39 5 16 5 16 16 1 1 1 1 1 1 1 1 1 "
        "16 16 16 16 16 16 16 16 16 16 16 16 16 16 24 16 24 16 24 16 24 16 24 16 24 16 24 16 24 16 24",
    ),
    "olmoe": (
        2,
        "39 9 9 39 28 28 28 28 39 28 24 28 28 6 28 6 28 10 39 7 24 5 6 5 7 6 6 27 13 7 14 35 7 "
        "14 35 30 28 13 7 7 7 7 7 14 30 7 14 30 34 11 5 7 9 5 30 36 5 30 36 5 30 36 5 16",
    ),
    "granitemoe": (
        2,
        "16 21 10 16 18 36 38 34 26 36 21 36 21 36 21 4 36 21 36 21 36 21 36 21 36 4 1 27 11 10 5 1 21 "
        "4 19 6 30 34 21 23 30 27 6 27 39 21 29 21 4 19 6 3 36 21 4 19 6 27 21 5 1 21 4 19",
    ),
    "granitemoeshared": (
        3,
        "10 13 39 6 39 6 39 4 27 30 4 29 6 4 27 30 17 25 27 30 22 27 30 20 26 39 4 22 22 22 27 9 25 "
        "27 9 4 29 6 28 33 37 27 9 25 10 0 20 10 10 10 10 10 10 10 10 10 10 10 3 2 39 14 20 32",
    ),
}
"""Seeds, and the 64 tokens that transformers 4.57 chooses after five in f64: each time the best logit leads by at least
0.3 % of the largest."""


def written(name: str, form: str, folder: Path, seed: int) -> Path:
    """The model as a file of either format."""
    model, names, others = MODELS[name]
    weights = model.weights(seed)
    if form == "gguf":
        path = folder / "net.gguf"
        in_order = in_neighbours(model, weights) if model.architecture in NEIGHBOURS else weights
        path.write_bytes(in_gguf(model, in_order))
        return path
    (folder / "config.json").write_text(json.dumps(settings(name, model, **others)))
    (folder / "model.safetensors").write_bytes(safetensors(named(weights, {**NAMES, **names})))
    return folder


def tokens_of(engine: tenon.Engine, prompt: list[int], count: int) -> list[int]:
    """Greedy tokens after a prompt."""
    given, chosen = prompt, list[int]()
    for _ in range(count):
        chosen.append(int(engine.run({"tokens": np.array([given])})["logits"][0, -1].argmax()))
        given = chosen[-1:]
    return chosen


@pytest.mark.parametrize("form", ["safetensors", "gguf"])
@pytest.mark.parametrize("name", GREEDY)
def test_greedy_tokens_are_those_of_transformers(name: str, form: str, tmp_path: Path) -> None:
    seed, right = GREEDY[name]
    source = written(name, form, tmp_path, seed)
    with tenon.open(tenon.compile(source, name="net", no_tuning=True)) as engine:
        assert tokens_of(engine, TOKENS[:5], 64) == [int(token) for token in right.split()]


def test_16_bit_experts_are_as_in_the_file(tmp_path: Path) -> None:
    """Weights of bf16 and f16 are multiplied as they are: results are those of the same numbers in f32."""
    model, names, others = MODELS["mixtral"]
    (tmp_path / "config.json").write_text(json.dumps(settings("mixtral", model, **others)))
    narrow, wide = dict[str, Array](), dict[str, Array]()
    for name, data in named(model.weights(2), {**NAMES, **names}).items():
        dtype = DType.BF16 if "w1" in name else DType.F16
        rounded = data.astype(dtype.numpy)
        narrow[name], wide[name] = (rounded, rounded.astype(np.float32)) if "experts" in name else (data, data)
    results = []
    for weights in (narrow, wide):
        types = {key: {np.dtype("f2"): "F16", np.dtype("f4"): "F32"}.get(a.dtype, "BF16") for key, a in weights.items()}
        (tmp_path / "model.safetensors").write_bytes(safetensors(weights, types))
        with tenon.open(tenon.compile(tmp_path, name="net", no_tuning=True)) as engine:
            results.append([engine.run({"tokens": np.array([TOKENS[i:j]])})["logits"] for i, j in ((0, 9), (9, 10))])
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


@pytest.mark.parametrize("name", ["mixtral", "granitemoeshared"])
def test_blocks_threads_and_sequences(name: str, tmp_path: Path) -> None:
    """Weights that are rounded to blocks give the same bits with one thread and two, in pieces of any length, and as
    several sequences that are read together."""
    source = written(name, "gguf", tmp_path, 1)
    logits = []
    for threads, pieces in ((1, [0, 14]), (2, [0, 5, 14]), (1, list(range(15)))):
        program = tenon.compile(source, name="net", no_tuning=True, weight_format="q8_0", threads=threads)
        with tenon.open(program, threads=threads) as engine:
            for i, j in pairwise(pieces):
                result = engine.run({"tokens": np.array([TOKENS[i:j]])})["logits"]
        logits.append(result)
    program = tenon.compile(source, name="net", no_tuning=True, weight_format="q8_0", sequences=2)
    with tenon.open(program) as engine:
        places = np.arange(28) // 2
        feeds = {"tokens": np.repeat(TOKENS, 2)[None], "slots": np.arange(28) % 2, "positions": places}
        result = engine.run({**feeds, "rows": np.array([26, 27])})["logits"]
    logits += [result[:, i : i + 1] for i in (0, 1)]
    for other in logits[1:]:
        np.testing.assert_allclose(other, logits[0], atol=1e-5 * np.abs(logits[0]).max())


def test_damaged_files_are_refused() -> None:
    """Importers raise ModelError only: settings and tensors are damaged in the part of the file before the weights."""
    model = replace(MODELS["qwen2_moe"][0], layers=1)
    data = in_gguf(model, model.weights(0))
    end = data.index(b"blk.0.ffn_gate_inp.weight")
    survive("experts", data[:end], lambda damaged: importers.load(damaged + data[end:], SIZES), min(COUNT, 60))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_experts_per_tok": 9}, "takes 9 of 5 experts"),
        ({"clip_qkv": 8.0}, "clip_qkv"),
        ({"experts.3.w1": None}, "for 5 experts"),
        ({"experts.3.w1": (2, 64)}, "different shapes"),
    ],
)
def test_what_is_refused(change: Mapping[str, Any], words: str, tmp_path: Path) -> None:
    model, names, others = MODELS["mixtral"]
    weights = named(model.weights(0), {**NAMES, **names})
    for name in list(weights):
        for key, shape in change.items():
            if key in name:
                weights[name] = np.zeros(shape or 0, np.float32)
                if shape is None:
                    del weights[name]
    (tmp_path / "config.json").write_text(json.dumps(settings("mixtral", model, **others, **change)))
    (tmp_path / "model.safetensors").write_bytes(safetensors(weights))
    with pytest.raises(UnsupportedError, match=words):
        importers.load(tmp_path, SIZES)


@pytest.mark.parametrize("target", ["x86-64-avx2", "aarch64-i8mm", "aarch64"])
def test_bits_on_other_machines(target: str) -> None:
    """Products of several rows and of one, in blocks of two by two where a machine has them, are those of the
    reference, and their kernels are proved."""
    machine = find(target).machine
    for case in ExpertBlockMatMul.cases():
        arrays = case.arrays()
        for step in case.op.lower(make_site(case.op, arrays, machine, case.constant)):
            prove(step.kernel)
        (right,) = case.op.evaluate(arrays)
        np.testing.assert_array_equal(run_lowered(case.op, arrays, machine, case.constant)[0], right)


def test_one_token_reads_the_matrices_that_it_chose() -> None:
    """The kernel has no loop over experts: the number is bound from data, once for each choice and tile of outputs."""
    case = next(iter(ExpertBlockMatMul.cases()))
    (step,) = case.op.lower(make_site(case.op, case.arrays(), find("x86-64-avx2").machine, case.constant))
    text = show(step.kernel)
    assert "bind e < 5 = " in text
    assert not re.search(r"for (\w+ )?\w+ < 5\b", text)
