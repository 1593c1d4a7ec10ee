"""Products by weights in blocks in bf16, by tiles in registers."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import ml_dtypes
import numpy as np
import pytest

import tenon
from clipped_kernels import ProvedClipped
from clipped_kernels import results as of_site
from ggml_models import in_blocks
from gguf_models import DecoderFile, gguf
from lowered import make_site, run_lowered
from tenon.machine.algorithms.block_products import in_bf16
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_items import linearise
from tenon.machine.kernels.block_formats import FORMATS, dequantised
from tenon.machine.kernels.block_sums import BlockProduct
from tenon.machine.kernels.block_tiles_bf16 import block_tiles_bf16, rows_of
from tenon.machine.kernels.machine import Machine, for_precision
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.network.graph.dtype import Array
from tenon.network.graph.graph import Value
from tenon.network.graph.types import F32, I64, DType, TensorType
from tenon.network.ops.block_product import random_blocks
from tenon.network.ops.clipped import NeededExtent, NeededPositions
from tenon.network.ops.reach import Reach
from tenon.network.ops.rounded_product import RoundedMatMul, RoundRows

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
        assert any(name.startswith(wanted) for name in many)
        assert (
            sum(name.startswith("rounded_rows") for name in many) == (4 if precision == "bf16" else 0) * decoder.layers
        )
        assert not any(name.startswith("block_tiles") for name in one)


@pytest.mark.parametrize(("precision", "threads", "tokens"), [("fp32", 1, 128), ("bf16", 1, 256), ("bf16", 16, 512)])
def test_runs_have_more_tokens_where_weights_are_unpacked_to_bf16(
    precision: Literal["fp32", "bf16"], threads: int, tokens: int
) -> None:
    file = DecoderFile("llama").file()
    bundle = tenon.compile(file, target="x86-64-amx", context=1024, precision=precision, threads=threads)
    (given,) = (port for port in bundle.more[0].inputs if port.name == "tokens")
    assert given.type.dims == (1, tokens)
