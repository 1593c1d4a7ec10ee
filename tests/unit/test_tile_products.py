"""Products by tiles in registers of the processor: results, proofs, and what the assembly computes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from check_kernels import check
from command_line import run_main
from interpret import interpret
from lowered import make_site, run_site, settle
from onnx_models import model, node, random
from tenon.cli import main
from tenon.formats import importers
from tenon.machine.algorithms import tile_splits
from tenon.machine.algorithms.base import Limits
from tenon.machine.algorithms.registry import candidates
from tenon.machine.algorithms.tile_matrices import TileMatrices
from tenon.machine.algorithms.tile_patches import TilePatches
from tenon.machine.algorithms.tile_products import TileProducts
from tenon.machine.algorithms.tile_splits import TileSplits
from tenon.machine.codegen.spread import independent
from tenon.machine.isa import assembly
from tenon.machine.isa.amx import BEGIN, REGISTERS, TILE_BF16, TILE_I8, TILE_U8, TileBlock
from tenon.machine.isa.base import ProductUnit
from tenon.machine.kernel_ir.loops import BLOCKS, Instruction, Kernel, Stmt
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_items import linearise
from tenon.machine.kernels import tile_patches as tile_patches_kernel
from tenon.machine.kernels.conv import Conv, OutputTile, conv
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.tile_blocks import RegisterTiles, pitch
from tenon.machine.kernels.tile_patches import patch_bytes, tile_patches
from tenon.machine.kernels.tile_products import pack, tile_products
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import Target, find, host_cpu
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, DType
from tenon.network.ops.base import Case
from tenon.network.ops.conv import Conv as Operator
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.matmul import MatMul
from tenon.network.ops.requantize import quantized_multipliers
from tenon.options import Options
from tenon.runtime.engine import peak
from tenon.tools.quantization.by_ranges import profiled, quantize_by_ranges
from tenon.tools.tune import probe

NAME = "x86-64-amx"
ROW = find(NAME)
MACHINE = replace(ROW.machine, block=32)
BF16 = DType.BF16


def convolution(
    channels: tuple[int, int], size: tuple[int, int], kernel: int = 1, stride: int = 1, halo: int = 0
) -> Conv:
    """With an input whose halo has the padding, and a result with a halo."""
    pad = kernel // 2
    h, w = ((extent + 2 * pad - kernel) // stride + 1 for extent in size)
    x = Image(1, channels[0], *size, 32, pad, pad, pad, pad, dtype=BF16)
    y = Image(1, channels[1], h, w, 32, halo, halo, halo, halo, dtype=BF16)
    return Conv(x, y, (kernel, kernel), (stride, stride), top=pad, left=pad, weights=BF16)


ROWS = replace(
    convolution((64, 48), (1, 5)), x=Image(1, 64, 1, 5, 64, dtype=BF16), y=Image(1, 48, 1, 5, 48, dtype=BF16)
)
CASES = {
    "pointwise": (convolution((40, 24), (3, 5)), RegisterTiles(5, 2, 2)),
    "3x3": (convolution((32, 64), (4, 3), 3), RegisterTiles(3, 3, 1)),
    "flat": (convolution((32, 33), (4, 3), 3), RegisterTiles(13, 1, 1, 1)),
    "stride": (convolution((32, 64), (5, 5), 3, 2, 1), RegisterTiles(2, 2, 2)),
    "six_tiles": (convolution((32, 32), (7, 2)), RegisterTiles(2, 6, 1)),
    "matrix": (ROWS, RegisterTiles(3, 2, 2)),
    "a_tile_of_zeros": (convolution((40, 16), (3, 5)), RegisterTiles(5, 2, 1)),
    "zeros_behind_others": (convolution((32, 72), (3, 5)), RegisterTiles(5, 2, 1)),
    "zeros_behind_pairs": (convolution((32, 72), (3, 5)), RegisterTiles(5, 1, 2)),
    "part_of_a_tile": (
        replace(ROWS, x=Image(1, 40, 1, 5, 40, dtype=BF16), y=Image(1, 39, 1, 5, 39, dtype=BF16)),
        RegisterTiles(5, 1, 2),
    ),
    "less_than_a_tile": (
        replace(ROWS, x=Image(1, 6, 1, 5, 6, dtype=BF16), y=Image(1, 7, 1, 5, 7, dtype=BF16)),
        RegisterTiles(5, 1, 1),
    ),
}


def stored(image: Image, values: Array) -> Array:
    n, c, h, w = values.shape
    whole = np.zeros((n, image.blocks * image.block, h, w), np.float32)
    whole[:, :c] = values
    lying = whole.reshape(n, -1, image.block, h, w).transpose(0, 1, 3, 4, 2)
    halo = ((0, 0), (0, 0), (image.top, image.bottom), (image.left, image.right), (0, 0))
    return np.ascontiguousarray(np.pad(lying, halo)).astype(image.dtype.numpy, order="C")


def of_type(s: Conv, dtype: DType) -> Conv:
    return replace(s, x=replace(s.x, dtype=dtype), y=replace(s.y, dtype=dtype), weights=dtype)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, BF16) for name in CASES), *((name, DType.F16) for name in ("3x3", "part_of_a_tile", "a_tile_of_zeros"))],
)
def test_results(name: str, dtype: DType) -> None:
    (s, tile), machine = CASES[name], replace(find("x86-64-amx-fp16").machine, block=32)
    s, rng = of_type(s, dtype), np.random.default_rng(0)
    x = rng.standard_normal((1, s.x.channels, s.x.h, s.x.w)).astype(dtype.numpy).astype(np.float32)
    weights = (rng.standard_normal((s.y.channels, s.x.channels, *s.kernel)) / 16).astype(dtype.numpy)
    bias = np.pad(rng.standard_normal(s.y.channels).astype(np.float32), (0, s.padded - s.y.channels))
    operator = Operator(pads=(s.top, s.left) * 2, strides=s.stride)
    expected = operator.reference(x, weights.astype(np.float32), bias[: s.y.channels])
    kernel, y = tile_products(s, machine, tile), np.full(s.y.shape, 0 if s.y.top else np.nan, dtype.numpy)
    packed = [each.reshape(-1) for each in pack(weights, s, tile)]
    result = (y.view(np.uint16) if dtype is BF16 else y).reshape(-1)
    interpret(kernel, [stored(s.x, x).view(np.int32).reshape(-1), *packed, bias, result])
    wanted = stored(replace(s.y, dtype=F32), expected)
    rtol, atol = (1e-2, 1e-3) if dtype is BF16 else (1e-3, 2e-4)
    np.testing.assert_allclose(y.astype(np.float32), wanted, rtol=rtol, atol=atol)
    assert prove(kernel) > 0


def test_the_second_check_accepts_what_is_proved() -> None:
    s, tile = CASES["flat"]
    assert check(show(tile_products(s, MACHINE, tile))) > 0


def test_blocks_fit_the_registers_and_tiles_their_lines() -> None:
    s = convolution((64, 64), (14, 14), 3)
    offered = TileProducts.candidates((s,), MACHINE, Limits(), 1 << 16)
    for each in offered:
        block = TileBlock(each.tile.rows, each.tile.down, each.tile.across, 16)
        assert len(block.shapes) <= REGISTERS
        assert all(rows <= 16 and width <= 64 for rows, width in block.shapes)
        assert each.tile.rows <= (s.extent[0] - 1) * pitch(s) + s.extent[1]
    assert isinstance(candidates((s,), MACHINE, Limits())[0], TileProducts)


FIRST_IMAGE = Image(1, 2, 4, 6, 1, 1, 1, 0, 1, dtype=BF16)
FIRST: dict[str, tuple[Conv, RegisterTiles, int]] = {
    "7x7": (
        Conv(
            Image(1, 3, 9, 8, 1, 3, 3, 3, 4, dtype=BF16),
            Image(1, 32, 5, 4, 32, dtype=BF16),
            (7, 7),
            (2, 2),
            top=3,
            left=3,
            weights=BF16,
        ),
        RegisterTiles(3, 2, 1),
        5,
    ),
    "3x2": (
        Conv(FIRST_IMAGE, Image(1, 32, 4, 5, 32, dtype=BF16), (3, 2), top=1, weights=BF16),
        RegisterTiles(5, 2, 2),
        2,
    ),
}


@pytest.mark.parametrize("name", FIRST)
def test_first_layers_in_patches(name: str) -> None:
    s, tile, band = FIRST[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, s.x.channels, s.x.h, s.x.w)).astype(BF16.numpy).astype(np.float32)
    weights = (rng.standard_normal((s.y.channels, s.x.channels, *s.kernel)) / 8).astype(BF16.numpy)
    bias = rng.standard_normal(s.y.channels).astype(np.float32)
    around = [s.top, s.left, (s.y.h - 1) * s.stride[0] + s.kernel[0] - s.top - s.x.h]
    around.append((s.y.w - 1) * s.stride[1] + s.kernel[1] - s.left - s.x.w)
    operator = Operator(pads=tuple(around), strides=s.stride)
    expected = operator.reference(x, weights.astype(np.float32), bias)
    kernel, y = tile_patches(s, MACHINE, tile, band), np.zeros(s.y.shape, BF16.numpy)
    patches = np.full(patch_bytes(s, band) // 2, np.nan, BF16.numpy).view(np.uint16)
    packed = [each.reshape(-1) for each in tile_patches_kernel.pack(weights, s, tile)]
    image = stored(s.x, x).view(np.uint16).reshape(-1)
    interpret(kernel, [image, *packed, patches, bias, y.view(np.uint16).reshape(-1)])
    np.testing.assert_allclose(y.astype(np.float32), stored(replace(s.y, dtype=F32), expected), rtol=1e-2, atol=1e-2)
    assert prove(kernel) > 0


INTEGERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((1, 70, 3, 5), (33, 70, 1, 1), {}),
    "3x3": ((1, 17, 4, 4), (16, 17, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    "1d": ((1, 20, 9), (20, 20, 3), {"pads": (1, 1)}),
    "first": ((1, 3, 9, 7), (16, 3, 7, 7), {"pads": (3, 3, 3, 3), "strides": (2, 2)}),
}


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("name", INTEGERS)
def test_bytes_are_exact(name: str, dtype: type[np.integer[Any]]) -> None:
    """Bytes of both kinds are, although another unit of the machine takes those without sign only."""
    x, w, more = INTEGERS[name]
    rng, least = np.random.default_rng(3), int(np.iinfo(dtype).min)
    data, weights = rng.integers(least, least + 256, x).astype(dtype), rng.integers(-128, 128, w).astype(np.int8)
    real = rng.uniform(0.5, 2, w[0]) / (np.sqrt(np.prod(w[1:])) * 60)
    bias = rng.integers(-9000, 9000, w[0]).astype(np.int32)
    arrays: list[Array] = [data, weights, bias, *quantized_multipliers(real.tolist())]
    bounds: dict[str, Any] = {"low": least, "high": least + 255, "zero": least + 120, "to": DType.of(data.dtype).value}
    op = IntegerConv("double", least + 125, scale=0.25, **more, **bounds)
    site = make_site(op, arrays, ROW.machine, (1, 2, 3, 4))
    algorithm = next(each for each in op.candidates(site) if isinstance(each, TileProducts | TilePatches))
    site = settle(op, replace(site, algorithm=algorithm))
    assert site.input(0).layout.block == {70: 64, 17: 32, 20: 32, 3: 4}[x[1]]
    (result,) = run_site(op, site, arrays)
    np.testing.assert_array_equal(result, op.reference(*arrays))


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3, 9, 7), (2, 3, 7, 5)), ((5, 64), (64, 48)), ((3, 1, 17, 42), (2, 42, 33)), ((20, 1), (4, 1, 18))],
)
def test_products_of_two_matrices(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """The matrices have odd sizes, batches on either side, and an operand that is added."""
    rng = np.random.default_rng(5)
    operator = MatMul()
    arrays: list[Array] = [rng.standard_normal(shape).astype(BF16.numpy) for shape in (left, right)]
    site = make_site(operator, arrays, MACHINE)
    algorithm = operator.product(site).algorithm(site)
    tiles = TileMatrices.candidates((operator.product(site).problem(site),), MACHINE, Limits(), 1)[0]
    assert isinstance(algorithm, TileMatrices) == (right[-2] > 1)  # one product each is no work for tiles
    (result,) = run_site(operator, replace(site, algorithm=tiles), arrays)
    (expected,) = operator.evaluate(arrays)
    atol = 2e-2 * float(np.abs(expected.astype(np.float32)).max())
    np.testing.assert_allclose(result.astype(np.float32), expected.astype(np.float32), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("x", "w", "more"),
    [
        ((1, 48, 5, 6), (40, 48, 3, 3), {"pads": (1, 1, 1, 1)}),
        ((2, 32, 3, 4), (16, 32, 1, 1), {}),
        ((1, 20, 7, 7), (33, 20, 3, 3), {"strides": (2, 2)}),
    ],
)
def test_three_products_of_bf16_are_within_the_stated_error(
    x: tuple[int, ...], w: tuple[int, ...], more: dict[str, Any]
) -> None:
    """One product's error is far larger, which is why three are made; only where they are asked for."""
    rng, op = np.random.default_rng(9), Operator(**more)
    arrays: list[Array] = [rng.standard_normal(shape).astype(np.float32) for shape in (x, w, w[:1])]
    site = make_site(op, arrays, ROW.machine, (1, 2))
    assert not any(isinstance(each, TileSplits) for each in op.candidates(site))
    site = replace(site, limits=Limits(bf16x3=True))
    algorithm = next(each for each in op.candidates(site) if isinstance(each, TileSplits))
    (result,) = run_site(op, settle(op, replace(site, algorithm=algorithm), surplus=1), arrays)
    expected = op.reference(*(each.astype(np.float64) for each in arrays))
    rms = np.sqrt(np.square(expected - arrays[2].reshape(1, -1, 1, 1)).mean((0, 2, 3), keepdims=True))
    worst = float((np.abs(result - expected) / rms).max())
    assert 1e-7 < worst < tile_splits.ERROR


def operator_cases() -> Iterator[Case]:
    """The cases of convolutions: of floats, with operands of bf16, and of integers."""
    for case in Operator.cases():
        yield replace(case, inputs=tuple(case.arrays()), label=f"float_{case.label}")
    for case in IntegerConv.cases():
        yield case


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.label, marks=() if i % 16 == 1 else pytest.mark.slow)
        for i, case in enumerate(operator_cases())
    ],
)
def test_operator_cases(case: Case) -> None:
    """With halos that are wider than needed."""
    floats, arrays = case.label.startswith("float_"), case.arrays()
    if floats:
        arrays = [a.astype(BF16.numpy) if i < 2 and a is not None else a for i, a in enumerate(arrays)]
    if floats and arrays[0] is not None and arrays[0].ndim > 4:
        pytest.skip("three spatial axes are not compiled")
    site = make_site(case.op, arrays, MACHINE if floats else ROW.machine, case.constant)
    kinds = {type(each): each for each in reversed(case.op.candidates(site))}
    for kind in (TileProducts, TilePatches):
        if kind in kinds:
            settled = settle(case.op, replace(site, algorithm=kinds[kind]), surplus=1)
            (result,) = run_site(case.op, settled, arrays)
            (expected,) = case.op.evaluate(arrays)
            largest = float(np.abs(expected.astype(np.float32)).max())
            atol = 2e-2 * largest if floats else 0
            np.testing.assert_allclose(result.astype(np.float32), expected.astype(np.float32), rtol=0, atol=atol)


def test_tiles_that_the_system_refuses_are_not_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The measured time of one unit holds for all, rounded to a power of two; what vectors take instead is slower than
    direct sums.  A unit that a neighbour slows down is not known to be slower."""
    s = convolution((64, 64), (14, 14), 3)
    for figure, kept, chosen in ((40.0, 43.0, True), (130.0, 43.0, True), (900.0, 1024.0, False)):
        monkeypatch.setattr(probe, "measured", lambda *_, figure=figure: figure)
        machine = probe.probed(ROW, Options(cache=tmp_path / str(figure))).machine
        times = {unit.operation: unit.time for unit in machine.products}
        assert [times[name] for name in ("tile_bf16", "tile_i8", "tile_u8")] == [kept] * 3
        assert times["dot4"] == 1
        best = candidates((s,), replace(machine, block=32), Limits())[0]
        assert isinstance(best, TileProducts) == chosen


@pytest.mark.parametrize("unit", [TILE_BF16, TILE_I8, TILE_U8], ids=lambda unit: unit.operation)
def test_the_probe_times_a_kernel_of_tiles(unit: ProductUnit, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is proved, and its sums are those of ones."""
    timed: list[Array] = []

    def seconds(kernel: Kernel, data: Array, target: Target) -> float:
        if kernel.name == "peak_tiles":
            assert prove(kernel) > 0
            x, w, _ = kernel.params
            results = np.zeros(16, np.float32)
            ones = [np.resize(data, math.prod(extent.const for extent in p.shape)) for p in (x, w)]
            interpret(kernel, [*ones, results])
            timed.append(results)
            return 1.0
        return 0.01

    monkeypatch.setattr(peak, "_seconds", seconds)
    monkeypatch.setattr(peak, "_TILE_ROUNDS", 1)
    monkeypatch.setattr(peak, "_TILE_STEPS", 2)
    assert peak.tiles_time(ROW, unit) > 0
    np.testing.assert_array_equal(timed[0], np.full(16, 2 * unit.shape[2], np.float32))


# ------------------------------------------------------------------------------------------------- the assembly
def instructions(body: tuple[Stmt, ...]) -> Iterator[Instruction]:
    for s in body:
        if isinstance(s, Instruction):
            yield s
        elif isinstance(s, BLOCKS):
            yield from instructions(s.body)


class Tiles:
    """The registers of the unit, and bytes of memory that their instructions read and write."""

    def __init__(self, shapes: bytes, memory: Mapping[str, Array]) -> None:
        assert shapes[0] == 1
        widths, rows = shapes[16:32:2], shapes[48:56]
        assert not any((*shapes[1:16], *shapes[17:32:2], *shapes[32:48], *shapes[56:]))
        self.shapes = list(zip(rows, widths, strict=True))
        self.memory = memory
        self.registers: dict[int, Array] = {}

    def run(self, line: str, names: Mapping[str, tuple[str, int]]) -> None:
        """One line; ``names`` are where operands point to, (array, bytes), or ("", number)."""
        word, *operands = re.split(r"[ ,]+(?![^(]*\))", line)
        numbers = [int(operand.removeprefix("%%tmm")) for operand in operands if operand.startswith("%%tmm")]
        place = re.search(r"(\d*)\(%\[(\w+)\],%\[(\w+)\],1\)", line)
        rows, width = self.shapes[numbers[-1] if word != "tilestored" else numbers[0]]
        if word == "tilezero":
            self.registers[numbers[0]] = np.zeros((rows, width), np.uint8)
        elif place is not None:
            array, start = names[place[2]]
            at = (start + int(place[1] or 0) + np.arange(rows) * names[place[3]][1])[:, None] + np.arange(width)
            if word in ("tileloadd", "tileloaddt1"):
                self.registers[numbers[0]] = self.memory[array][at]
            else:
                assert word == "tilestored"
                self.memory[array][at] = self.registers[numbers[0]]
        else:
            right, left, into = (self.registers[number] for number in numbers)
            self.registers[numbers[2]] = product(word, left, right, into)


def product(word: str, left: Array, right: Array, into: Array) -> Array:
    """The sums of a product of tiles."""
    assert left.shape[1] == 4 * right.shape[0]
    if word in ("tdpbf16ps", "tdpfp16ps"):
        kind = BF16.numpy if word == "tdpbf16ps" else np.float16
        a = left.view(np.uint16).view(kind).astype(np.float32)
        b = right.view(np.uint16).view(kind).astype(np.float32).reshape(len(right), -1, 2)
        parts = np.zeros((2, len(left), into.shape[1] // 4), np.float32)
        for k, half in np.ndindex(len(right), 2):
            parts[half] += np.outer(a[:, 2 * k + half], b[k, :, half])
        total: Array = into.view(np.float32) + (parts[0] + parts[1])
    else:
        fours = left.view(np.int8 if word == "tdpbssd" else np.uint8).astype(np.int32).reshape(len(left), -1, 4)
        weights = right.view(np.int8).astype(np.int32).reshape(len(right), -1, 4)
        total = into.view(np.int32) + np.einsum("mkg,kng->mn", fours, weights).astype(np.int32)
    return total.view(np.uint8)


def emulate(name: str, block: TileBlock, weights: Array, lefts: list[Array]) -> Array:
    """The sums that the text of an instruction for a block computes, as bytes."""
    begin, text = assembly(BEGIN), assembly(name)
    assert begin is not None
    assert text is not None
    (table,) = re.findall(r"\{([\d, ]+)\}", "\n".join(begin.text("", "", [], block.shape)))
    sums = np.zeros(block.down * block.rows * block.across * 64, np.uint8)
    memory = {"W": weights, "S": sums, **{f"X{i}": left for i, left in enumerate(lefts)}}
    tiles = Tiles(bytes(map(int, table.split(","))), memory)
    further = [f"X{i}" for i in range(1, len(lefts))]
    printed = text.text("W", "X0", [*further, "S", *(["N"] if block.fetched else [])], block.numbers)
    counts = [int(n) for n in re.findall(r"for \(long tile_\w = 0; tile_\w < (\d+); ", "\n".join(printed))]
    (place,) = re.findall(r"tile_at = (.*);", "\n".join(printed))
    steps = [int(step) for step in re.findall(r"\* (\d+)", place)]
    (advance,) = re.findall(r"tile_w \+= (\d+);", "\n".join(printed))
    clear, step, store = re.findall(r'volatile\("(.*?)" : : (.*?) : "memory"', "\n".join(printed))

    assert step[0].count("prefetcht0") == (block.across * block.words if block.ahead else 0)  # a line for each word
    assert step[0].count("prefetcht1") == block.fetched

    def run(lines: tuple[str, str], w: int = 0, at: int = 0) -> None:
        names = {"w": ("W", w), "s": ("S", 0), **{f"x{i}": (f"X{i}", at) for i in range(len(lefts))}}
        names |= {name: ("", int(number)) for name, number in re.findall(r'\[(\w+)\] "r"\((\d+)L\)', lines[1])}
        for line in lines[0].split("\\n"):
            if not line.startswith("prefetch"):
                tiles.run(line, names)

    run(clear)
    for turn, index in enumerate(np.ndindex(*counts)):
        run(step, turn * int(advance), sum(i * n for i, n in zip(index, steps, strict=True)))
    run(store)
    return sums


@pytest.mark.parametrize("name", ["tile_bf16", "tile_f16", "tile_i8", "tile_u8"])
@pytest.mark.parametrize(("rows", "down", "across"), [(5, 2, 2), (16, 1, 2), (3, 6, 1), (7, 3, 1), (4, 2, 3)])
def test_the_assembly_computes_what_its_body_means(name: str, rows: int, down: int, across: int) -> None:
    """Every register and address of it, on a model of the unit."""
    rng = np.random.default_rng(1)
    block = TileBlock(rows, down, across, 16, 128, 8192 * (down > 2), 3 * (down < 3), ((2, 4096), (1, 64), (3, 64)))
    block = replace(block, passing=across > 1)
    floats = name in ("tile_bf16", "tile_f16")
    numbers = rng.standard_normal if floats else lambda n: rng.integers(-128, 128, n)
    kind: Any = {"tile_bf16": BF16.numpy, "tile_f16": np.float16}.get(name, np.int8)
    each = 2 if floats else 1
    lefts = [np.ascontiguousarray(numbers(8192 // each)).astype(kind).view(np.uint8) for _ in range(down)]
    weights = np.ascontiguousarray(numbers(6 * across * 1024 // each)).astype(kind)
    sums = emulate(name, block, weights.view(np.uint8), lefts).view(np.float32 if floats else np.int32)
    groups = 4 // each
    right = weights.reshape(6, across, 16, 16, groups).astype(np.float64)
    left_kind = np.uint8 if name == "tile_u8" else kind
    wanted = np.zeros((down, rows, across, 16))
    for step, (c, tap) in enumerate(np.ndindex(2, 3)):
        start = c * 4096 + tap * 64
        for i, r in np.ndindex(down, rows):
            line = lefts[i][start + r * 128 :][:64].view(left_kind).astype(np.float64).reshape(16, groups)
            wanted[i, r] += np.einsum("kg,vkng->vn", line, right[step])
    np.testing.assert_allclose(sums.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-3 if floats else 0)


NEEDED = ROW.host.features - {"amx_tile", "amx_bf16", "amx_int8"} if ROW.host else frozenset()


@pytest.mark.skipif(not host_cpu.flags() >= NEEDED, reason="this processor lacks the vectors of the target")
def test_a_bundle_runs_where_the_system_refuses_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the bodies of the instructions: on a processor without tiles, and by these on one that has them."""
    monkeypatch.setattr(host_cpu, "flags", lambda: NEEDED | {"amx_tile", "amx_bf16", "amx_int8"})
    weights = {"f": random(64, 3, 7, 7), "w": random(48, 64, 3, 3)}
    nodes = [
        node("Conv", ["x", "f"], ["h"], strides=[2, 2], pads=[3, 3, 3, 3]),
        node("Conv", ["h", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    file, image = model(nodes, {"x": [1, 3, 30, 30]}, ["y"], weights).SerializeToString(), random(1, 3, 30, 30)
    bundle = tenon.compile(file, target=NAME, precision="bf16")
    names = [call.kernel.name for call in bundle.program.calls]
    assert sum(name.startswith("tile") for name in names) == 2
    with tenon.open(bundle) as engine:
        result = engine.run({"x": image})["y"]
    expected = evaluate(importers.load(file), {"x": image})["y"]
    np.testing.assert_allclose(result, expected, atol=1e-2 * float(np.abs(expected).max()))


def test_producers_store_the_blocks_of_tiles() -> None:
    """A depthwise convolution stores what a product by tiles reads, and reads what that stores; a result that is added
    later is stored in wide blocks, too."""
    weights = {"f": random(64, 3, 3, 3), "d": random(64, 1, 3, 3), "p": random(64, 64, 1, 1), "q": random(64, 64, 1, 1)}
    nodes = [
        node("Conv", ["x", "f"], ["a"], pads=[1, 1, 1, 1]),
        node("Conv", ["a", "d"], ["b"], pads=[1, 1, 1, 1], group=64),
        node("Conv", ["b", "p"], ["c"]),
        node("Conv", ["c", "q"], ["e"]),
        node("Add", ["c", "e"], ["g"]),
        node("Conv", ["g", "p"], ["y"]),
    ]
    graph = importers.load(model(nodes, {"x": [1, 3, 12, 12]}, ["y"], weights).SerializeToString())
    tensors = (value.name for value in profiled(graph).values())
    integers = quantize_by_ranges(graph, dict.fromkeys(tensors, (-4.0, 4.0)))
    names = [call.kernel.name for call in tenon.compile(integers, target=NAME).program.calls]
    assert sum(name.startswith("integer_tiles") for name in names) == 3
    between = names[names.index(next(name for name in names if name.startswith("integer_depthwise"))) :]
    tiles = [name for name in between if name.startswith(("integer", "reorder"))]
    assert [name.partition("_1x1")[0] for name in tiles[1:4]] == ["integer_tiles"] * 3


def test_averages_of_images_of_bf16_are_made_of_their_blocks() -> None:
    """Squeeze and excitation reads the blocks of a depthwise convolution, without another copy of them."""
    weights = {"f": random(64, 3, 3, 3), "d": random(64, 1, 3, 3), "p": random(64, 64, 1, 1)}
    nodes = [
        node("Conv", ["x", "f"], ["a"], pads=[1, 1, 1, 1]),
        node("Conv", ["a", "d"], ["b"], pads=[1, 1, 1, 1], group=64),
        node("GlobalAveragePool", ["b"], ["m"]),
        node("Conv", ["m", "p"], ["s"]),
        node("Sigmoid", ["s"], ["t"]),
        node("Mul", ["b", "t"], ["c"]),
        node("Conv", ["c", "p"], ["y"]),
    ]
    file = model(nodes, {"x": [1, 3, 12, 12]}, ["y"], weights).SerializeToString()
    names = [call.kernel.name for call in tenon.compile(file, target=NAME, precision="bf16").program.calls]
    between = names[names.index(next(name for name in names if name.startswith("depthwise"))) :]
    assert any(name.startswith("add_plane") for name in between)
    assert not any(name.startswith("reorder") for name in between[:-2])


@pytest.mark.skipif(not host_cpu.flags() >= NEEDED, reason="this processor lacks the vectors of the target")
@pytest.mark.parametrize(("channels", "block"), [(16, 16), (9, 16), (24, 32)])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_images_that_only_pooling_reads_are_no_wider_than_their_channels(
    monkeypatch: pytest.MonkeyPatch, channels: int, block: int, pool: str
) -> None:
    """Half a block of 32 would be zeros, which were stored and read; a product by tiles still reads whole blocks."""
    monkeypatch.setattr(host_cpu, "flags", lambda: NEEDED | {"amx_tile", "amx_bf16", "amx_int8"})
    weights = {"f": random(channels, 3, 3, 3), "c": random(channels), "w": random(40, channels, 3, 3)}
    nodes = [
        node("Conv", ["x", "f", "c"], ["h"], pads=[1, 1, 1, 1]),
        node("LeakyRelu", ["h"], ["r"], alpha=0.1),
        node(pool, ["r"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Conv", ["p", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    file, image = model(nodes, {"x": [1, 3, 20, 26]}, ["y"], weights).SerializeToString(), random(1, 3, 20, 26)
    bundle = tenon.compile(file, target=NAME, precision="bf16")
    kernels = {call.kernel.name.partition("_")[0]: call.kernel for call in bundle.program.calls}
    pooling = kernels["max" if pool == "MaxPool" else "average"]
    images = kernels["tile"].params[-1], pooling.params[0], pooling.params[-1]
    assert [str(image.shape[-1]) for image in images] == [str(block), str(block), "32"]
    with tenon.open(bundle) as engine:
        result = engine.run({"x": image})["y"]
    expected = evaluate(importers.load(file), {"x": image})["y"]
    np.testing.assert_allclose(result, expected, atol=1e-2 * float(np.abs(expected).max()))


def test_three_products_are_asked_for_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is stated, and the manifest says what was asked for."""
    weights = {"w": random(64, 64, 1, 1), "v": random(64, 64, 1, 1)}
    nodes = [node("Conv", ["x", "w"], ["h"]), node("Relu", ["h"], ["r"]), node("Conv", ["r", "v"], ["y"])]
    file = model(nodes, {"x": [1, 64, 14, 14]}, ["y"], weights).SerializeToString()
    plain, asked = (tenon.compile(file, target=NAME, bf16x3=allowed).program for allowed in (False, True))
    assert not any(call.kernel.name.startswith("split") for call in plain.calls)
    assert sum(call.kernel.name.startswith("split") for call in asked.calls) == 2
    assert plain.error < tile_splits.ERROR <= asked.error
    (tmp_path / "net.onnx").write_bytes(file)
    command = ["compile", str(tmp_path / "net.onnx"), "--target", NAME, "--bf16x3", "--emit", "manifest"]
    assert run_main(main, [*command, "-o", str(tmp_path / "made")]) == 0
    capsys.readouterr()
    stated = json.loads((tmp_path / "made" / "manifest.json").read_text())
    assert "bf16x3" in json.dumps(stated)
    assert stated["error"] >= tile_splits.ERROR


def test_vectors_that_share_a_block_are_divided_among_threads() -> None:
    """Blocks of bf16 have two vectors: what tiles decline is shared all the same."""
    s = replace(convolution((672, 168), (1, 1)), weights=F32)
    for threads in (8, 16):
        kernel = conv(s, replace(MACHINE, threads=threads), OutputTile(1, 1, 1))
        assert independent(kernel, ())
        items = linearise(kernel)
        assert items is not None
        assert items.length == 12
