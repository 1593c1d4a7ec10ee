"""Products by weights in blocks in bf16, by tiles in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import ml_dtypes
import numpy as np
import pytest

import tenon
import tenon.machine.kernels.block_tiles_bf16 as kernels
from clipped_kernels import ProvedClipped
from clipped_kernels import results as of_site
from ggml_models import in_blocks
from gguf_models import DecoderFile, gguf
from lowered import make_site, run_lowered
from tenon.machine.algorithms.block_products import in_bf16
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_items import linearise
from tenon.machine.kernels.block_formats import FORMATS, GROUP, dequantised
from tenon.machine.kernels.block_sums import BlockProduct
from tenon.machine.kernels.block_tiles_bf16 import block_tiles_bf16, rows_of
from tenon.machine.kernels.machine import Machine, for_precision
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.network.graph.dtype import Array
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.types import F32, I64, DType, TensorType
from tenon.network.ops.activation import Gelu, Swish
from tenon.network.ops.block_product import BlockMatMul, BlockQuantize, random_blocks
from tenon.network.ops.clipped import NeededExtent, NeededPositions
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.normalize import RMSNormalization
from tenon.network.ops.pointwise import Mul
from tenon.network.ops.reach import Reach
from tenon.network.ops.rounded_product import RoundedGate, RoundedMatMul, RoundedNormalization, RoundRows
from tenon.network.passes import rounded_products as passes
from tenon.network.passes.rounded_products import rounded_products

BF16 = DType.BF16
MACHINE = for_precision(find("x86-64-amx").machine, "bf16")
CASES = {
    "q8_0": (37, 35, 96),
    "q4_0": (64, 32, 576),
    "q4_1": (33, 16, 32),
    "q5_0": (48, 70, 224),
    "q5_1": (49, 20, 64),
    "q4_k": (40, 18, 512),
    "q5_k": (33, 48, 256),
    "q6_k": (65, 16, 256),
    "q3_k": (36, 32, 256),
    "q2_k": (34, 18, 512),
    "iq4_nl": (33, 32, 64),
    "n4_32": (33, 16, 64),
    "n4_64_zeros": (34, 33, 128),
    "n8_128": (35, 16, 128),
}
"""Rows, outputs and columns: blocks that are not full, of rows and of outputs."""


def bf16(values: Array) -> Array:
    """Rounded, as f32."""
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def away(values: Array) -> Array:
    """Rounded with halves away from zero, as f32."""
    return ((values.astype(np.float32).view(np.int32) + 0x8000) & -0x10000).view(np.float32)


def operands(rows: int, outputs: int, columns: int, format: str) -> tuple[Array, Array]:
    """Activations, and weights in blocks."""
    x = np.random.default_rng(rows).normal(size=(1, rows, columns)).astype(np.float32)
    return x, random_blocks(outputs, columns, FORMATS[format])


def reference(format: str, x: Array, blocks: Array, groups: int) -> Array:
    """The sums of the unit: in a group of 32, of even and of odd products in order, of ``groups`` groups from zero."""
    left, w = bf16(x[0]), away(dequantised(FORMATS[format], blocks))
    y = np.zeros((len(left), len(w)), np.float32)
    for start in range(0, left.shape[1], 32 * groups):
        part = np.zeros_like(y)
        for group in range(start, min(start + 32 * groups, left.shape[1]), 32):
            sums = np.zeros((2, *y.shape), np.float32)
            for i in range(32):
                sums[i % 2] += left[:, None, group + i] * w[None, :, group + i]
            part += sums[0] + sums[1]
        y = part if start == 0 else y + part
    return y


def results(format: str, x: Array, blocks: Array, machine: Machine = MACHINE) -> Array:
    (rounded,) = run_lowered(RoundRows(), (x,), machine)
    np.testing.assert_array_equal(rounded, RoundRows().reference(x))
    (y,) = run_lowered(RoundedMatMul(format, x.shape[:-1]), (rounded, blocks), machine, (1,))
    first: Array = y[0]
    return first


@pytest.mark.parametrize("format", CASES)
def test_bits_are_those_of_the_unit(format: str) -> None:
    rows, outputs, columns = CASES[format]
    x, blocks = operands(rows, outputs, columns, format)
    op = RoundedMatMul(format, (1, rows))
    (step,) = op.lower(make_site(op, (RoundRows().reference(x), blocks), MACHINE, (1,)))
    prove(step.kernel)
    np.testing.assert_array_equal(results(format, x, blocks), reference(format, x, blocks, columns // 32))


@pytest.mark.parametrize("format", ["q8_0", "q4_k"])
def test_long_rows_are_multiplied_in_parts(format: str) -> None:
    """At most 96 groups are unpacked at a time; sums of parts are added to the results."""
    x, blocks = operands(20, 18, 32 * 128, format)
    np.testing.assert_array_equal(results(format, x, blocks), reference(format, x, blocks, 64))
    sizes = BlockProduct(format, 512, 32 * 128, 4096)
    assert rows_of(sizes, 1) == 256
    prove(block_tiles_bf16(replace(sizes, outputs=4104), MACHINE))


@pytest.mark.parametrize("format", ["q8_0", "q4_0", "q4_k", "q6_k"])
def test_error_is_that_of_rounding_to_bf16(format: str) -> None:
    """Both factors are rounded once: relative to the exact result less than 2**-8 of the sum of magnitudes."""
    x, blocks = operands(64, 32, 512, format)
    exact, weights = x[0].astype(np.float64), dequantised(FORMATS[format], blocks).astype(np.float64)
    bound = np.abs(exact) @ np.abs(weights.T) / 256
    assert np.all(np.abs(results(format, x, blocks) - exact @ weights.T) <= bound)


def test_rows_are_split_where_there_are_few_panels() -> None:
    machine = replace(MACHINE, threads=16)
    x, blocks = operands(128, 64, 64, "q4_0")
    sizes = BlockProduct("q4_0", 128, 64, 64)
    assert [rows_of(sizes, threads) for threads in (1, 2, 16)] == [128, 64, 16]
    op = RoundedMatMul("q4_0", (1, 128))
    step = op.lower(make_site(op, (RoundRows().reference(x), blocks), machine, (1,)))[-1]
    items = linearise(step.kernel)
    assert items is not None
    assert items.length == 2 * 8
    expected = results("q4_0", x, blocks)
    np.testing.assert_array_equal(results("q4_0", x, blocks, machine), expected)
    wide = BlockProduct("q4_0", 512, 576, 576)
    assert [rows_of(wide, threads) for threads in (1, 4, 16)] == [512, 256, 64]


def test_bf16_is_chosen_where_it_is_asked_for_and_rows_are_many() -> None:
    def chosen(rows: int, machine: Machine = MACHINE) -> bool:
        return in_bf16("q4_0", rows, 2048, 2048, machine)

    assert [chosen(rows) for rows in (1, 32, 33, 128)] == [False, False, True, True]
    assert not chosen(128, find("x86-64-amx").machine)
    assert not chosen(128, for_precision(find("x86-64-avx512-bf16").machine, "bf16"))


@pytest.mark.parametrize("columns", [64, 1024])
def test_products_are_added_to_an_operand(columns: int) -> None:
    """To the sums of the first groups, before those of others are."""
    x, blocks = operands(33, 20, columns, "q4_0")
    before = np.random.default_rng(7).normal(size=(1, 33, 20)).astype(np.float32)
    op, arrays = RoundedMatMul("q4_0", (1, 33)), (RoundRows().reference(x), blocks, before)
    (step,) = op.lower(make_site(op, arrays, MACHINE, (1,)))
    assert prove(step.kernel) > 0
    (got,) = run_lowered(op, arrays, MACHINE, (1,))
    np.testing.assert_allclose(got[0], before[0] + results("q4_0", x, blocks), rtol=0, atol=1e-5 * np.abs(got).max())
    np.testing.assert_allclose(got, op.reference(*arrays), rtol=0, atol=1e-4 * np.abs(got).max())


@pytest.mark.parametrize("shape", [(1, 32, 96), (48, 576), (1, 16, 32)])
def test_normalisation_rounds_its_results(shape: tuple[int, ...]) -> None:
    """To the bits of both operators one after the other."""
    rng = np.random.default_rng(3)
    x, scale = (rng.normal(size=size).astype(np.float32) for size in (shape, shape[-1:]))
    op = RoundedNormalization(1e-3)
    (step,) = op.lower(make_site(op, (x, scale), MACHINE, (1,)))
    assert prove(step.kernel) > 0
    (normalised,) = run_lowered(RMSNormalization(-1, 1e-3), (x, scale), MACHINE, (1,))
    (expected,) = run_lowered(RoundRows(), (normalised,), MACHINE)
    for constant in ((1,), ()):
        (got,) = run_lowered(op, (x, scale), MACHINE, constant)
        np.testing.assert_array_equal(got, expected)


GATES = [(32, 64, 64, 1, 1), (32, 32, 128, 1, 1), (64, 96, 192, 16, 4), (96, 32, 64, 1, 3)]
"""Rows, outputs, columns, threads, and parts of the rows by ``small_parts``; groups are in one part, two and three."""


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two groups are unpacked at a time, for at most 32 rows of them."""
    cached = kernels.block_tiles_bf16, kernels.gated_tiles_bf16
    monkeypatch.setattr(kernels, "_GROUPS", 2)
    monkeypatch.setattr(kernels, "_MOST", 32 * 2 * GROUP * 2)
    for each in cached:
        each.cache_clear()
    yield
    for each in cached:
        each.cache_clear()


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("sizes", GATES)
@pytest.mark.parametrize("activation", [Swish(), Gelu("tanh")])
def test_gates_are_products_their_activation_and_rounding(
    sizes: tuple[int, int, int, int, int], activation: Pointwise
) -> None:
    rows, outputs, columns, threads, parts = sizes
    machine = replace(MACHINE, threads=threads)
    x, gate = operands(rows, outputs, columns, "q4_0")
    up = np.roll(gate, 7, axis=0)
    (rounded,) = run_lowered(RoundRows(), (x,), machine)
    op = RoundedGate("q4_0", activation)
    (step,) = op.lower(make_site(op, (rounded, gate, up), machine, (1, 2)))
    assert prove(step.kernel) > 0
    text = show(step.kernel)
    assert ("scratch t: f32" in text) == (columns > 64)  # sums of parts of the groups
    assert (f"for parallel q < {parts}" in text) == (parts > 1)
    (got,) = run_lowered(op, (rounded, gate, up), machine, (1, 2))
    products = [results("q4_0", x, weights)[None] for weights in (gate, up)]
    (activated,) = run_lowered(activation, products[:1], MACHINE)
    (expected,) = run_lowered(RoundRows(), (activated * products[1],), MACHINE)
    np.testing.assert_array_equal(got, expected)


def test_rows_of_gates_that_are_not_needed_are_left_out() -> None:
    x, gate = operands(128, 64, 64, "q4_0")
    (rounded,) = run_lowered(RoundRows(), (x,), MACHINE)
    op = RoundedGate("q4_0")
    (expected,) = run_lowered(op, (rounded, gate, gate), MACHINE, (1, 2))
    site = make_site(op, (rounded, gate, gate), MACHINE, (1, 2))
    for count in (0, 1, 3, 8):
        cut = ProvedClipped(op, 3, (NeededPositions(0, 0, (NeededExtent(0),)),))
        own = replace(site, inputs=(*site.inputs, TensorType(I64, ())), constants=(*site.constants, None))
        got = of_site(cut, own, [rounded, gate, gate, np.array(count)])
        np.testing.assert_array_equal(got.reshape(expected.shape)[:count], expected[:count])
        assert "needed" in show(cut.lower(own)[-1].kernel)
    value = Value("x", rounded_type := TensorType(BF16, (8, 2, 16, 32)))
    assert op.reach([value, None, None], [rounded_type], 0) == (Reach(0), None, None)
    assert op.reach([value, None, None], [rounded_type], 1) is None


def gated_layer(rows: int, up: str = "q4_0", *, normalised: bool = False, several: bool = False) -> Graph:
    """A gated layer of [1, rows, 64] behind a normalisation, whose second weights have the format ``up``; with
    ``normalised`` and ``several`` the normalised rows and the activation are outputs, too."""
    graph, rng = Graph("gated"), np.random.default_rng(5)

    def product(x: Value, outputs: int, format: str) -> Value:
        quantised = graph.add(BlockQuantize(), [x], [f"{x.name}{i}{len(graph)}" for i in range(3)]).outputs
        weights = graph.constant("w", random_blocks(outputs, x.type.dims[-1], FORMATS[format]))
        return graph.add(BlockMatMul(format), [*quantised, weights], [f"product{len(graph)}"]).output

    scale = graph.constant("scale", rng.normal(size=64).astype(np.float32))
    x = graph.add(RMSNormalization(), [graph.add_input("x", TensorType(F32, (1, rows, 64))), scale], ["n"]).output
    gate = graph.add(Swish(), [product(x, 96, "q4_0")], ["activated"]).output
    gated = graph.add(Mul(), [gate, product(x, 96, up)], ["gated"]).output
    graph.outputs += [product(gated, 64, "q4_0"), *([x] if normalised else []), *([gate] if several else [])]
    return graph


WHOLE = ["RoundedNormalization", "RoundedGate", "RoundedMatMul"]


@pytest.mark.parametrize(
    ("graph", "wanted"),
    [
        (gated_layer(48), WHOLE),
        (gated_layer(40), ["RMSNormalization", "RoundRows", *["RoundedMatMul"] * 2, "Swish", "Mul", "RoundRows"]),
        (gated_layer(48, "q8_0"), [WHOLE[0], *["RoundedMatMul"] * 2, "Swish", "Mul", "RoundRows"]),
        (gated_layer(48, normalised=True), ["RMSNormalization", "RoundRows", "RoundedGate"]),
        (gated_layer(48, several=True), [WHOLE[0], *["RoundedMatMul"] * 2, "Swish", "Mul", "RoundRows"]),
    ],
)
def test_what_makes_rows_rounds_them_where_nothing_else_reads_them(
    graph: Graph, wanted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = graph.inputs[0].type.dims[1]
    feeds = {"x": np.random.default_rng(1).normal(size=(1, rows, 64)).astype(np.float32)}
    apart = graph.copy()
    assert rounded_products(lambda *_: True).run(graph, lambda line: None) == 3
    assert sorted(node.op.name for node in graph) == sorted([*wanted, *["RoundedMatMul"] * (wanted != WHOLE)])
    monkeypatch.setattr(passes, "_whole", lambda *_: None)
    rounded_products(lambda *_: True).run(apart, lambda line: None)
    assert sum(isinstance(node.op, RoundRows) for node in apart) == 2
    after = evaluate(graph, feeds)
    for name, values in evaluate(apart, feeds).items():
        np.testing.assert_array_equal(after[name], values)


def test_rows_that_are_not_needed_are_left_out() -> None:
    """The loop over pairs of tiles of rows ends behind those that a run has."""
    x, blocks = operands(128, 64, 64, "q4_0")
    rounded = RoundRows().reference(x)
    expected = results("q4_0", x, blocks)
    op = RoundedMatMul("q4_0", (1, 128))
    site = make_site(op, (rounded, blocks), MACHINE, (1,))
    for count in (0, 1, 17, 64, 128):
        cut = ProvedClipped(op, 2, (NeededPositions(0, 1, (NeededExtent(0),)),))
        own = replace(site, inputs=(*site.inputs, TensorType(I64, ())), constants=(*site.constants, None))
        got = of_site(cut, own, [rounded, blocks, np.array(count)])
        np.testing.assert_array_equal(got.reshape(128, 64)[:count], expected[:count])
        assert "< min(4, (needed + 31 // 32))" in show(cut.lower(own)[-1].kernel)
    left = ProvedClipped(RoundRows(), 1, (NeededPositions(0, 0, (NeededExtent(0),)),))
    own = make_site(RoundRows(), (x,), MACHINE)
    own = replace(own, inputs=(*own.inputs, TensorType(I64, ())), constants=(*own.constants, None))
    for count in (0, 3, 8):
        got = of_site(left, own, [x, np.array(count)])
        np.testing.assert_array_equal(got.reshape(rounded.shape)[:count], rounded[:count])


def test_what_a_run_needs_of_rows_are_whole_tiles() -> None:
    x = Value("x", TensorType(F32, (1, 128, 64)))
    rounded = Value("rounded", TensorType(BF16, (8, 2, 16, 32)))
    (of_tiles, weights) = (
        RoundedMatMul("q4_0", (1, 128)).reach([rounded, None], [TensorType(F32, (1, 128, 64))], 1) or ()
    )
    assert (of_tiles, weights) == (Reach(0, divisor=16), None)
    assert RoundRows().reach([x], [rounded.type], 0) == (Reach(1, 16, -15),)
    assert RoundedMatMul("q4_0", (2, 64)).reach([rounded, None], [TensorType(F32, (2, 64, 64))], 1) is None


def test_language_models_read_prompts_in_bf16_where_that_is_asked_for() -> None:
    decoder = DecoderFile("llama")
    tensors = dict[str, tuple[str, tuple[int, ...], bytes]]()
    for name, data in decoder.weights().items():
        kind, content = ("f32", data.tobytes()) if data.ndim == 1 else ("q4_0", in_blocks(data, "q4_0")[0])
        tensors[name] = (kind, data.shape, content)
    file = gguf(decoder.keys(), tensors)
    choices: list[tuple[Literal["fp32", "bf16"], str]]
    choices = [("fp32", "block_tiles_q4_0"), ("bf16", "block_tiles_bf16_q4_0")]
    for precision, wanted in choices:
        bundle = tenon.compile(file, target="x86-64-amx", context=128, precision=precision)
        one, many = ([call.kernel.name for call in each.calls] for each in (bundle.program, *bundle.more))
        masks = [call for call in (*bundle.program.calls, *bundle.more[0].calls) if call.op == "Mask"]
        assert not any(call.layer.startswith("layer.") for call in masks)  # rows of caches are counted
        gates = {call.kernel for call in bundle.more[0].calls if call.kernel.name.startswith("gated_tiles")}
        assert len(gates) == (precision == "bf16")  # those of all layers need as many rows
        assert any(name.startswith(wanted) for name in many)
        kinds = {"rounded_rows": 1, "normalize": 2, "gated_tiles": 1, "block_tiles_bf16": 5}
        for kind, count in kinds.items() if precision == "bf16" else []:
            assert sum(name.startswith(kind) for name in many) == count * decoder.layers + (kind == "normalize")
        assert not any(name.startswith("block_tiles") for name in one)


@pytest.mark.parametrize(("precision", "threads", "tokens"), [("fp32", 1, 128), ("bf16", 1, 256), ("bf16", 16, 512)])
def test_runs_have_more_tokens_where_weights_are_unpacked_to_bf16(
    precision: Literal["fp32", "bf16"], threads: int, tokens: int
) -> None:
    file = DecoderFile("llama").file()
    bundle = tenon.compile(file, target="x86-64-amx", context=1024, precision=precision, threads=threads)
    (given,) = (port for port in bundle.more[0].inputs if port.name == "tokens")
    assert given.type.dims == (1, tokens)
