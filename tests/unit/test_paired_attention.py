"""Attention of bf16 on processors, by tiles in registers and by pairs in vectors: results, proofs, where it is used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

import tenon
from check_kernels import check
from gguf_models import VOCABULARY, DecoderFile, Variant, logits
from interpret import interpret
from lowered import make_site, run_site
from onnx_models import model, node
from tenon.machine.algorithms.attention import attends
from tenon.machine.isa.bf16 import DOT2
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels import attention_words
from tenon.machine.kernels.attention_words import key_words, key_words_shape, value_words, value_words_shapes
from tenon.machine.kernels.head_sizes import HeadSizes, MaskSizes
from tenon.machine.kernels.machine import for_precision, with_product
from tenon.machine.kernels.paired_attention import key_numbers, paired_attention, paired_scratch, supported
from tenon.machine.proofs.bounds import OutOfRangeError, prove
from tenon.machine.targets import find, host_cpu
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.cached_attention import CachedAttention
from tenon.network.ops.head_attention import HeadAttention

BF16 = DType.BF16
MACHINES = {
    "tiles": find("x86-64-amx").machine,
    "pairs": with_product(find("x86-64-avx512-bf16").machine, DOT2),
}
ASKED = for_precision(MACHINES["tiles"], "bf16")
BASE = HeadSizes(2, 21, 39, 6, 0.3, BF16, values=16)
CASES = {
    "plain": BASE,
    "half_a_group": replace(BASE, keys=16, queries=33, merged=True),
    "steps_and_runs": replace(BASE, depth=72, values=48, batch=2, group=2),
    "blocks": replace(BASE, keys=107, queries=35),
    "rows_first": replace(BASE, keys=64, rows_first=True),
    "causal": replace(BASE, keys=70, queries=70, causal=True),
    "window": replace(BASE, keys=97, queries=97, causal=True, window=9),
    "added": replace(BASE, keys=48, mask=MaskSizes(1, 2, 48, 1)),
    "chosen": replace(BASE, keys=80, mask=MaskSizes(1, 1, 80, 1, DType.BOOL), fill=-1e9),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several blocks of keys in few of them."""
    for name, count in (("_BLOCK", 64), ("_CAUSAL_BLOCK", 32), ("_WHOLE", 32)):
        monkeypatch.setattr(attention_words, name, count)
    paired_attention.cache_clear()
    yield
    paired_attention.cache_clear()


def operands(s: HeadSizes) -> list[Any]:
    """Inputs of the operator, of bf16; the queries lie as the kernel reads them where ``rows_first``."""
    rng = np.random.default_rng(0)
    heads = ((s.count, s.queries, s.depth), *((s.count // s.group, s.keys, n) for n in (s.depth, s.channels)))
    inputs: list[Any] = [rng.standard_normal((s.batch, *dims)).astype(BF16.numpy) for dims in heads]
    if s.mask is not None:
        mask = rng.standard_normal((s.mask.batch, s.mask.heads, s.mask.keys, 1)).astype(np.float32)
        inputs.append(mask > 0 if s.mask.dtype is DType.BOOL else mask)
    return inputs


def words(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.int32).reshape(-1)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", MACHINES)
def test_results(name: str, kind: str) -> None:
    s, machine = CASES[name], MACHINES[kind]
    assert supported(s, machine)
    q, k, v, *mask = operands(s)
    expected = HeadAttention(s.scale, s.merged, s.causal, s.window, fill=s.fill).reference(q, k, v, *mask)
    lying = q.transpose(0, 2, 1, 3) if s.rows_first else q
    turned = np.full(key_words_shape(s), -1, np.int32)
    interpret(key_words(s, machine), [words(k), turned])
    packed = [np.full(shape, -1, np.int32) for shape in value_words_shapes(s)]
    for number, each in enumerate(packed):
        kernel = value_words(s, machine, number)
        interpret(kernel, [np.ascontiguousarray(v).view(np.uint16).reshape(-1), each])
        assert prove(kernel) > 0
    numbers = [np.arange(key_numbers(s), dtype=np.int32)] if key_numbers(s) else []
    room = [
        np.full(shape, -1 if name == "terms" else np.nan, np.int32 if name == "terms" else np.float32)
        for name, shape in paired_scratch(s, machine)
    ]
    y = np.zeros(s.result, np.uint16)
    kernel = paired_attention(s, machine)
    interpret(kernel, [words(lying), turned, *packed, *mask, *numbers, *room, y])
    wanted = expected.astype(np.float32)
    np.testing.assert_allclose(y.view(BF16.numpy).astype(np.float32), wanted, atol=1e-2 * float(np.abs(wanted).max()))
    assert prove(kernel) > 0


@pytest.mark.parametrize("kind", MACHINES)
def test_the_second_check_accepts_what_is_proved(kind: str) -> None:
    for kernel in (paired_attention(CASES["causal"], MACHINES[kind]), key_words(BASE, MACHINES[kind])):
        assert check(show(kernel)) > 0


@pytest.mark.parametrize("keys", [32, 39, 107])
def test_threads_share_the_keys_of_one_head(keys: int) -> None:
    """Whole groups and the rest are loops of their own."""
    s, machine = replace(BASE, count=1, keys=keys), replace(MACHINES["tiles"], threads=4)
    assert prove(key_words(s, machine)) > 0
    k = operands(s)[1]
    results = [np.full(key_words_shape(each), -1, np.int32) for each in (s, s)]
    interpret(key_words(s, machine), [words(k), results[0]])
    interpret(key_words(s, MACHINES["tiles"]), [words(k), results[1]])
    np.testing.assert_array_equal(results[0], results[1])
    assert (results[0] != -1).all()


def test_a_read_past_the_keys_is_refused() -> None:
    """The planted fault: keys of one group less than the loops read."""
    text = show(paired_attention(BASE, MACHINES["tiles"]))
    faulty = text.replace("const k: b2[4, ", "const k: b2[3, ")
    assert faulty != text
    with pytest.raises(OutOfRangeError, match="of k"):
        prove(parse(faulty))


CACHED = {
    "part_of_the_room": (33, 4, 2, 70, 16, 9, 0),
    "blocks": (37, 6, 2, 160, 32, 77, 0),
    "room_that_is_no_group": (35, 3, 1, 107, 64, 70, 0),
    "begin": (40, 4, 4, 96, 16, 0, 0),
    "all_of_the_room": (34, 4, 1, 64, 48, 30, 0),
    "window": (38, 4, 2, 70, 16, 31, 13),
}
"""Queries, heads, those of keys, room, depth, past and window."""


def _bf16(values: Array) -> Array:
    """Rounded to bf16, halves away from zero."""
    return ((values.view(np.int32) + 0x8000) & -0x10000).view(np.float32)


@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("cache", [np.float32, np.float16, BF16.numpy])
def test_queries_of_f32_over_a_cache_in_bf16(name: str, cache: Any) -> None:
    """The result is that of queries, keys and values that are rounded, but for the rounding of exponentials."""
    length, heads, shared, room, depth, past, window = CACHED[name]
    rng, dims = np.random.default_rng(2), (1, shared, room, depth)
    queries = rng.standard_normal((1, length, heads, depth)).astype(np.float32)
    arrays = [queries, *(rng.standard_normal(dims).astype(cache) for _ in "kv"), np.array(past)]
    operator = CachedAttention(0.3, window)
    site, plain = (make_site(operator, arrays, machine) for machine in (ASKED, MACHINES["tiles"]))
    kernels = [step.kernel for step in operator.lower(site)]
    assert [kernel.name.split("_")[0] for kernel in kernels] == ["rounded", "paired"]
    assert all(prove(kernel) > 0 and check(show(kernel)) > 0 for kernel in kernels)
    assert not any("paired" in step.kernel.name for step in operator.lower(plain))
    (got,) = run_site(operator, site, arrays)
    factor = np.float32(0.3 * math.log2(math.e))  # the queries are multiplied by it before they are rounded
    inner = [_bf16(a.astype(np.float32)) for a in (queries * factor, *arrays[1:3])]
    (expected,) = operator.evaluate([inner[0] / factor, *inner[1:], arrays[3]])
    np.testing.assert_allclose(got, expected, rtol=0, atol=3e-3 * float(np.abs(expected).max()))


def test_few_queries_and_caches_of_bytes_stay_in_f32() -> None:
    operator = CachedAttention(0.3)
    few = [np.zeros((1, 32, 2, 16), np.float32), *np.zeros((2, 1, 2, 80, 16), np.float32), np.array(3)]
    scales = np.zeros((2, 1, 2, 80, 1), np.float32)
    coded = [np.zeros((1, 40, 2, 16), np.float32), *np.zeros((2, 1, 2, 80, 16), np.int8), np.array(3), *scales]
    for arrays in (few, coded):
        steps = operator.lower(make_site(operator, arrays, ASKED))
        assert [step.kernel.name.split("_")[0] for step in steps] == ["attention"]


def test_other_sizes_stay_with_other_kernels() -> None:
    machine = MACHINES["tiles"]
    assert attends(BASE, machine)
    others: list[dict[str, Any]] = [
        {"queries": 1},
        {"depth": 7},
        {"values": 12},
        {"length": True},
        {"softcap": 2.0},
        {"dtype": DType.F16},
        {"mask": MaskSizes(1, 1, 39, 21)},
        {"causal": True, "queries": 50},
    ]
    assert not any(attends(replace(BASE, **changes), machine) for changes in others)
    assert not attends(BASE, find("x86-64-avx512-bf16").machine)  # whose products of pairs are as slow as four of f32
    assert not attends(BASE, find("x86-64-avx512").machine)


TARGETS = {"x86-64-amx": None, "x86-64-avx512-bf16": 1.0}
"""Targets, and how long a product of pairs takes."""
_AMX = {"amx_tile", "amx_bf16", "amx_int8"}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("causal", [False, True])
def test_networks_in_bf16_use_it(target: str, causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system refuses tiles, by the bodies of their instructions."""
    host, length = find(target).host, 200
    assert host is not None
    if not host_cpu.flags() | _AMX >= host.features:
        pytest.skip("this processor lacks the vectors of the target")
    monkeypatch.setattr(host_cpu, "flags", lambda: host.features)
    constants = {"scale": np.array(0.125, np.float32)}
    nodes = [
        node("Transpose", ["k"], ["turned"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "turned"], ["products"]),
        node("Mul", ["products", "scale"], ["scores"]),
        node("Softmax", ["masked" if causal else "scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["y"]),
    ]
    if causal:
        constants["mask"] = np.where(np.tri(length, dtype=bool), 0, np.finfo(np.float32).min).astype(np.float32)
        nodes.insert(3, node("Add", ["scores", "mask"], ["masked"]))
    file = model(nodes, {n: [1, 2, length, 64] for n in "qkv"}, ["y"], constants).SerializeToString()
    rng = np.random.default_rng(1)
    feeds = {n: rng.standard_normal((1, 2, length, 64)).astype(np.float32) for n in "qkv"}
    bundle = tenon.compile(file, target=target, precision="bf16", dot2=TARGETS[target])
    assert any(call.kernel.name.startswith("paired_attention") for call in bundle.program.calls)
    with tenon.open(bundle) as engine:
        result = engine.run(feeds)["y"]
    with tenon.open(tenon.compile(file)) as engine:
        expected = engine.run(feeds)["y"]
    np.testing.assert_allclose(result, expected, atol=1e-2 * float(np.abs(expected).max()))


@pytest.mark.parametrize("threads", [1, 2])
def test_decoders_use_it_for_prompts(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a prompt, shorter ones than the code is for, too, and then a token; beside the definition in f64."""
    host = find("x86-64-amx").host
    assert host is not None
    if not host_cpu.flags() | _AMX >= host.features:
        pytest.skip("this processor lacks the vectors of the target")
    monkeypatch.setattr(host_cpu, "flags", lambda: host.features)
    decoder = DecoderFile("llama", key_heads=2)
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 141)
    sizes = [{"length": f"1..{n}", "past": f"0..{200 - n}"} for n in (1, 70)]
    choices: list[Literal["fp32", "bf16"]] = ["fp32", "bf16"]
    plain, asked = (
        tenon.compile(decoder.file(), name="net", target="x86-64-amx", shapes=sizes, precision=each, threads=threads)
        for each in choices
    )
    assert "paired_attention" in asked.source
    assert "paired_attention" not in plain.source
    right = logits(decoder, Variant(neighbours=True), tokens.tolist())
    with tenon.open(asked) as engine:
        for start, end in ((0, 70), (70, 103), (103, 140), (140, 141)):
            row = engine.run({"tokens": tokens[None, start:end]})["logits"][0, -1]
    np.testing.assert_allclose(row, right, rtol=0, atol=4e-2 * float(np.abs(right).max()))


def test_products_of_two_tensors_can_end_in_f32() -> None:
    """A network whose result is a product of tensors in bf16, by tiles."""
    file = model([node("MatMul", ["a", "b"], ["y"])], {"a": [2, 20, 32], "b": [2, 32, 24]}, ["y"], {})
    bundle = tenon.compile(file.SerializeToString(), target="x86-64-amx", precision="bf16")
    assert any(call.kernel.name.startswith("tiles") for call in bundle.program.calls)
