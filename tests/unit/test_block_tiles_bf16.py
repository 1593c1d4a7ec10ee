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
from tenon.machine.kernels.block_tiles import part_of
from tenon.machine.kernels.machine import Machine, for_precision
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.network.graph.dtype import Array
from tenon.network.graph.types import I64, TensorType
from tenon.network.ops.block_product import BlockMatMul, quantised_case
from tenon.network.ops.clipped import NeededExtent, NeededPositions

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


def reference(format: str, arrays: tuple[Array, ...], groups: int) -> Array:
    """The sums of the unit: in a group of 32, of even and of odd products in order, of ``groups`` groups from zero."""
    codes, scales, _, blocks = arrays
    x = bf16(codes.astype(np.float32) * np.repeat(scales, 32, axis=1))
    w = bf16(dequantised(FORMATS[format], blocks))
    y = np.zeros((len(x), len(w)), np.float32)
    for start in range(0, x.shape[1], 32 * groups):
        part = np.zeros_like(y)
        for group in range(start, min(start + 32 * groups, x.shape[1]), 32):
            sums = np.zeros((2, *y.shape), np.float32)
            for i in range(32):
                sums[i % 2] += x[:, None, group + i] * w[None, :, group + i]
            part += sums[0] + sums[1]
        y = part if start == 0 else y + part
    return y


def results(format: str, arrays: tuple[Array, ...], machine: Machine = MACHINE) -> Array:
    y: Array = run_lowered(BlockMatMul(format), arrays, machine, (3,))[0]
    return y


@pytest.mark.parametrize("format", CASES)
def test_bits_are_those_of_the_unit(format: str) -> None:
    rows, outputs, columns = CASES[format]
    arrays = quantised_case(rows, columns, outputs, FORMATS[format])
    op = BlockMatMul(format)
    steps = op.lower(make_site(op, arrays, MACHINE, (3,)))
    assert [step.kernel.name.startswith("block_tiles_bf16") for step in steps] == [False, True]
    for step in steps:
        prove(step.kernel)
    each = FORMATS[format].span // 32
    groups = max(n for n in range(1, 17) if n % each == 0 and columns // 32 % n == 0)
    np.testing.assert_array_equal(results(format, arrays), reference(format, arrays, groups))


@pytest.mark.parametrize("format", ["q8_0", "q4_0", "q4_k", "q6_k"])
def test_error_is_that_of_rounding_to_bf16(format: str) -> None:
    """Both factors are rounded once: relative to the exact result less than 2**-8 of the sum of magnitudes."""
    arrays = quantised_case(64, 512, 32, FORMATS[format])
    exact = arrays[0] * np.repeat(arrays[1].astype(np.float64), 32, axis=1)
    weights = dequantised(FORMATS[format], arrays[3]).astype(np.float64)
    bound = np.abs(exact) @ np.abs(weights.T) / 256
    assert np.all(np.abs(results(format, arrays) - exact @ weights.T) <= bound)


def test_rows_are_split_where_there_are_few_panels() -> None:
    machine = replace(MACHINE, threads=16)
    arrays = quantised_case(128, 64, 64, FORMATS["q4_0"])
    sizes = BlockProduct("q4_0", 128, 64, 64)
    assert [part_of(sizes, threads, 2, 4.0) for threads in (1, 2, 16)] == [256, 128, 16]
    op = BlockMatMul("q4_0")
    step = op.lower(make_site(op, arrays, machine, (3,)))[-1]
    items = linearise(step.kernel)
    assert items is not None
    assert items.length == 2 * 8
    np.testing.assert_array_equal(results("q4_0", arrays, machine), results("q4_0", arrays))


def test_bf16_is_chosen_where_it_is_asked_for_and_rows_are_many() -> None:
    def chosen(rows: int, machine: Machine = MACHINE) -> bool:
        return in_bf16(BlockProduct("q4_0", rows, 2048, 2048), machine)

    assert [chosen(rows) for rows in (1, 32, 33, 128)] == [False, False, True, True]
    assert not chosen(128, find("x86-64-amx").machine)
    assert not chosen(128, for_precision(find("x86-64-avx512-bf16").machine, "bf16"))


def test_rows_that_are_not_needed_are_left_out() -> None:
    """The loop over pairs of tiles of rows ends behind those that a run has."""
    op, arrays = BlockMatMul("q4_0"), quantised_case(128, 64, 64, FORMATS["q4_0"])
    site = make_site(op, arrays, MACHINE, (3,))
    expected = results("q4_0", arrays)
    for count in (0, 1, 17, 64, 128):
        cut = ProvedClipped(op, 4, (NeededPositions(0, 0, (NeededExtent(0),)),))
        own = replace(site, inputs=(*site.inputs, TensorType(I64, ())), constants=(*site.constants, None))
        got = of_site(cut, own, [*arrays, np.array(count)])
        np.testing.assert_array_equal(got[:count], expected[:count])
        assert "< min(4, (needed + 31 // 32))" in show(cut.lower(own)[-1].kernel)


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
        assert not any(name.startswith("block_tiles") for name in one)
