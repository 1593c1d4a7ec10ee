"""Bundles for GPUs: operators on whatever device there is, compared with their references; whole networks; errors."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from byte_products import operands, products
from compiled import lowered_steps
from documented import check_page, shell
from gpu_devices import capability, needs_compiler, why_not
from installed import environment, tenon_script
from interpret import interpret
from launched_kernels import ASK, Launched, assert_close, can_run, keep_after, program_of, recorded, result
from lowered import Ask
from onnx_models import model, node, random
from operator_cases import LOWERED, ON_DEVICES
from patched_networks import FLOATS, INTEGERS, network
from programs import PATH
from real import DIGITS, ROOT, held_out_digits
from tenon.compilation import resolved
from tenon.errors import InputError, ToolchainError
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.codegen.gpu.unit import kernel_key
from tenon.machine.codegen.vulkan import spirv as spirv_modules
from tenon.machine.codegen.vulkan.dialect import Glsl
from tenon.machine.codegen.vulkan.modules import modules, shared_bytes, uses_16_bits
from tenon.machine.codegen.vulkan.shared_arrays import shared_in_fours
from tenon.machine.codegen.vulkan.spirv import spirv, with_16_bits, with_matrices, with_subgroups
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.kernels.attention import attention
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.flash_attention import FlashTile, flash_attention
from tenon.machine.kernels.group_attention import group_attention
from tenon.machine.kernels.group_rows import softmax_groups
from tenon.machine.kernels.group_tiles import GroupTile
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.integer_conv import IntegerConv
from tenon.machine.kernels.integer_separable import integer_separable
from tenon.machine.kernels.integer_staged import WordTile
from tenon.machine.kernels.integer_warpgroups import WordGroupTile, integer_warpgroups
from tenon.machine.kernels.matrix_tiled import MatrixTile, matrix_tiled
from tenon.machine.kernels.requantize import Requantize
from tenon.machine.kernels.separable_tiled import separable_staged, separable_tiled
from tenon.machine.kernels.tensor_staged import StagedTile, tensor_staged
from tenon.machine.kernels.tensor_tiled import WarpTile, tensor_tiled
from tenon.machine.kernels.tensor_warpgroups import WarpgroupTile, tensor_warpgroups
from tenon.machine.kernels.tiled import tiled
from tenon.machine.plan.program import Call, Memory, Place, Program, Region, Repeat
from tenon.machine.proofs.bounds import prove
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.head_attention import HeadAttention
from tenon.options import Options
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine import open_bundle

LANGUAGES = ("opencl", "cuda", "vulkan")
SHARE = 24
"""One case in so many runs by default (a driver compiles a kernel in about half a second); with -m slow, all."""


@pytest.fixture(params=LANGUAGES, scope="module")
def language(request: pytest.FixtureRequest) -> str:
    """Each language whose compiler is installed."""
    needs_compiler(request.param)
    return str(request.param)


@pytest.fixture(params=LANGUAGES, scope="module")
def device(request: pytest.FixtureRequest) -> str:
    """Each language for which there is a device."""
    if reason := why_not(request.param):
        pytest.skip(reason)
    needs_compiler(request.param)
    return str(request.param)


# ------------------------------------------------------------------------------------------ operators
def launch(calls: Sequence[Launched], target: str, start: int = 0) -> None:
    """Run the kernels in one program, with operands from ``start`` on; gives every call its operands after."""
    program, before = program_of(calls, start)
    machine = find(target).machine
    program = replace(program, spaces=machine.spaces, launch=machine.launch)
    with open_bundle(Bundle.of(program, resolved(Options(target=target), find(target)))) as engine:
        keep_after(calls, program, engine.run({"memory": np.frombuffer(before, np.uint8)})["memory"])


def test_operands_that_are_not_aligned(language: str) -> None:
    """Several elements are then copied one by one."""
    s = Conv(Image(1, 8, 3, 5, 4), Image(1, 8, 3, 5, 4), bias=False).flattened()
    kernel = tiled(s, GroupTile(16, 8, 8, 2, 4))
    for offset, vectors in ((0, True), (16, True), (8, False)):
        places = tuple(Place(Region.ACTIVATIONS, 4096 * i + offset) for i in range(len(kernel.params)))
        call = Call(kernel, places, "call", "Conv")
        program = Program("cases", (), (), (call,), (), Memory(0, 0, 1 << 16, 0))
        text = find_backend(language).program([program], "cases.h").files[1].text
        assert bool(re.search(r"\*\([\w ]*float4 \*\)|activation_quads\[\(", text)) == vectors
        assert language == "vulkan" or ("all_four" in text) != vectors


def test_shared_memory_is_vectors_of_four_where_places_are_known() -> None:
    """Vulkan's GLSL has no pointers to vectors: neighbouring elements are those of one vector."""
    s = Conv(Image(1, 8, 3, 5, 4), Image(1, 8, 3, 5, 4), bias=False).flattened()
    kernel = tiled(s, GroupTile(16, 8, 8, 2, 4))
    assert {b.name for b in shared_in_fours(kernel)} == {"xs", "ws"}
    text = Glsl()
    text.kernel(kernel)
    assert text.shared == ["shared vec4 shared_xs[64];", "shared vec4 shared_ws[32];"]
    assert re.search(r"= shared_ws\[\(ws_\w+ >> 2\)\]\.w;", text.listing([]))
    assert not re.search(r"whole\.|shared_\ws\[\w+\]", text.listing([]).partition("{")[2])
    k = Builder("copy")
    with k.loop("block", 1, kind="block"):
        shared = k.local("shared", 8, space="shared")
        out = k.param("out", 8, out=True)
        with k.loop("thread", 8, kind="thread") as thread:
            shared[thread] = 1.0
            out[thread] = shared[thread]
    assert not shared_in_fours(k.done())


def test_operands_of_work_items_that_are_not_aligned(language: str) -> None:
    """Kernels whose loops are made parallel read such operands, too."""
    k = Builder("copy")
    x, y = k.param("x", 64), k.param("y", 64, out=True)
    with k.loop("i", 16) as i:
        y.vec(4)[i] = x.vec(4)[i]
    kernel = k.done()
    for offset, vectors in ((16, True), (8, False)):
        call = Call(kernel, tuple(Place(Region.ACTIVATIONS, 512 * i + offset) for i in range(2)), "call", "Copy")
        program = Program("cases", (), (), (call,), (), Memory(0, 0, 1024, 0))
        unit = find_backend(language).program([program], "cases.h")
        assert unit.steps[0][0].work_items is not None
        text = unit.files[1].text
        assert bool(re.search(r"\*\([\w ]*float4 \*\)|activation_quads\[\(", text)) == vectors


def test_unaligned_operands_give_the_same(device: str) -> None:
    calls = recorded(next(c for c in LOWERED.values() if (c.op.name, c.label) == ("Conv", "pointwise")), device)
    assert any(work_groups(call.kernel) is not None for call in calls)
    launch(calls, device)
    aligned = [[view.copy() for view in call.after] for call in calls]
    for call in calls:
        call.after.clear()
    launch(calls, device, start=8)
    for call, before in zip(calls, aligned, strict=True):
        for a, b in zip(call.after, before, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["sample", "every"])
@pytest.mark.parametrize("part", range(4))
def test_operators_give_what_their_references_do(device: str, part: int, every: bool) -> None:
    cases = [case for case in list(LOWERED.values())[part :: 4 if every else 4 * SHARE] if can_run(case, device)]
    assert len(cases) > 15
    for start in range(0, len(cases), 40):
        batch = [(case, recorded(case, device)) for case in cases[start : start + 40]]
        launch([call for _, calls in batch for call in calls], device)
        for case, calls in batch:
            for call in calls:
                call.check_integers()
            for a, b in zip(result(case, calls, device), case.op.evaluate(case.arrays()), strict=True):
                assert_close(a, b, case)


@pytest.mark.slow
def test_products_by_cooperative_matrices() -> None:
    """On a device without them, by the bodies of the instructions; with parts of products, and a residual."""
    if reason := why_not("vulkan"):
        pytest.skip(reason)
    needs_compiler("vulkan")
    weights = {f"w{i}": random(64, 64, k, k, seed=i) / (8 * k) for i, k in enumerate((3, 1))}
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        node("Conv", ["a", "w1"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("Relu", ["c"], ["y"]),
    ]
    content = model(nodes, {"x": [1, 64, 28, 28]}, ["y"], weights).SerializeToString()
    bundle = tenon.compile(content, target="vulkan-matrix", precision="fp16", no_tuning=True)
    assert any(call.kernel.name.startswith("matrix") for call in bundle.program.calls)
    x = random(1, 64, 28, 28, seed=9)
    with open_bundle(bundle) as engine, open_bundle(tenon.compile(content, no_tuning=True)) as usual:
        a, b = (each.run(x)["y"] for each in (engine, usual))
    np.testing.assert_allclose(a, b, atol=4e-3 * np.abs(b).max())
    assert np.abs(a - b).max() > 0


def test_subgroups_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads exchange values within subgroups, where the device has such, or through shared memory."""
    if reason := why_not("vulkan"):
        pytest.skip(reason)
    needs_compiler("vulkan")
    nodes = [
        node("Softmax", ["x"], ["a"]),
        node("LayerNormalization", ["a", "scale"], ["b"]),
        node("ReduceMax", ["b", "axes"], ["y"]),
    ]
    weights = {"scale": random(300), "axes": np.array([1], np.int64)}
    content = model(nodes, {"x": [3, 300]}, ["b", "y"], weights).SerializeToString()
    answers = []
    for has_subgroups in (True, False):
        if not has_subgroups:
            monkeypatch.setattr(spirv_modules, "with_subgroups", lambda *_: {})
        bundle = tenon.compile(content, target="vulkan", no_tuning=True)
        assert ("shader_of_subgroups_0[]" in bundle.unit.files[0].text) == has_subgroups
        with open_bundle(bundle) as engine:
            answers.append({name: each.copy() for name, each in engine.run(random(3, 300, seed=1)).items()})
    for name, each in answers[0].items():
        np.testing.assert_array_equal(each, answers[1][name])


def test_floats_of_16_bits_are_read_from_images() -> None:
    """Weights and activations, for which these have a second buffer."""
    if reason := why_not("opencl"):
        pytest.skip(reason)
    weights = {"w0": random(16, 8, 1, 1) / 3, "w1": random(16, 1, 3, 3, seed=1) / 3, "w2": random(8, 16, 3, 3, seed=2)}
    nodes = [
        node("Conv", ["x", "w0"], ["a"]),
        node("Conv", ["a", "w1"], ["b"], pads=[1, 1, 1, 1], group=16),
        node("Conv", ["b", "w2"], ["y"]),
    ]
    content = model(nodes, {"x": [1, 8, 9, 9]}, ["y"], weights).SerializeToString()
    bundle = tenon.compile(content, target="opencl", precision="fp16", no_tuning=True)
    text = bundle.unit.files[1].text
    for word in ("WEIGHT_WORDS(", "WEIGHT_HALVES(", "TENSOR_WORDS(", "TENSOR_HALVES(", "(other_activations"):
        assert word in text.replace("#define", "")
    answers = []
    for images in ("off", "all"):
        with tenon.open(bundle, gpu={"images": images}) as engine:
            answers.append(engine.run(random(1, 8, 9, 9, seed=3))["y"].copy())
    np.testing.assert_array_equal(answers[0], answers[1])


def test_products_of_bytes(device: str) -> None:
    """The languages have texts of their own for them; of two matrices."""
    label = "sums_3x7x33_int8_int8"
    case = next(c for c in LOWERED.values() if (c.op.name, c.label) == ("IntegerMatMul", label))
    matrices = recorded(case, device)
    calls = [Launched(name, products(name, 1), list(operands(name)), []) for name in ("dot4", "dot4_signed")]
    launch([*calls, *matrices], device)
    for call in calls:
        interpret(call.kernel, call.before)
        np.testing.assert_array_equal(call.after[2], call.before[2])
    for call in matrices:
        call.check_integers()
    (ours,), (expected,) = result(case, matrices, device), case.op.evaluate(case.arrays())
    np.testing.assert_array_equal(ours, expected)


def by_warps(generate: Callable[[Conv, Any], Kernel], tile: WarpTile) -> Launched:
    """A product by tiles of a matrix unit, which languages without one compute by the instruction's body."""
    s = Conv(Image(1, 32, 1, 30, 4, dtype=DType.F16), Image(1, 24, 1, 30, 4), bias=False, weights=DType.F16)
    kernel, rng = generate(s, tile), np.random.default_rng(0)
    shapes = [[extent.const for extent in buffer.shape] for buffer in kernel.params]
    x, w = (rng.standard_normal(np.prod(shape)).astype(np.float16) for shape in shapes[:2])
    call = Launched("tiles of a matrix unit", kernel, [x, w, np.zeros(np.prod(shapes[2]), np.float32)], [])
    call.expected[:] = [view.copy() for view in call.before]
    interpret(kernel, call.expected)
    return call


def of_rows(dtype: DType) -> Launched:
    """A softmax by blocks of threads."""
    kernel = softmax_groups(2, 40, False, find("vulkan").machine, dtype)
    return Launched("rows", kernel, [np.zeros(80, dtype.numpy) for _ in kernel.params], [])


def in_stages(tile: StagedTile, dtype: DType, taps: int = 1) -> Launched:
    """The same with copies in stages: of images of 1 and 9 taps, and with the sums of a cluster."""
    x = Image(1, 64, 6, 7, 4, dtype=dtype)
    s = Conv(x, Image(1, 24, 6, 7, 4), (taps, taps), top=taps // 2, left=taps // 2, bias=False, weights=dtype)
    generate: Any = tensor_warpgroups if isinstance(tile, WarpgroupTile) else tensor_staged
    kernel, rng = generate(s.flattened(), tile), np.random.default_rng(0)
    shapes = [[extent.const for extent in buffer.shape] for buffer in kernel.params]
    views = [rng.standard_normal(np.prod(shape)).astype(dtype.numpy) for shape in shapes[:2]]
    bits = [view if dtype is DType.F16 else view.view(np.uint16) for view in views]
    call = Launched("copies in stages", kernel, [*bits, np.zeros(np.prod(shapes[2]), np.float32)], [])
    call.expected[:] = [view.copy() for view in call.before]
    interpret(kernel, call.expected)
    return call


def bytes_in_groups(tile: WordGroupTile, dtype: DType, taps: int = 1) -> Launched:
    """Products of bytes by groups of four warps, of an image whose zero point is not 0."""
    x, y = Image(2, 40, 6, 7, 4, dtype=dtype), Image(2, 24, 6, 7, 4, dtype=DType.I32)
    s = Conv(x, y, (taps, taps), top=taps // 2, left=taps // 2, weights=DType.I8)
    sums = Requantize("none", 0, 0, 0, DType.I32, ())
    kernel = integer_warpgroups(IntegerConv(s.flattened(), sums, (), (), narrow=True, fill=-3), tile)
    rng = np.random.default_rng(0)
    counts = [np.prod([extent.const for extent in buffer.shape]) for buffer in kernel.params]
    words = [rng.integers(-(1 << 31), 1 << 31, count).astype(np.int32) for count in counts]
    words[-1][:] = 0
    call = Launched("bytes by groups of warps", kernel, words, [])
    call.expected[:] = [view.copy() for view in call.before]
    interpret(kernel, call.expected)
    return call


def in_one_launch(dtype: DType, kernel: int, stride: int, tile: GroupTile, run: int) -> Launched:
    """A depthwise convolution and the 1x1 convolution of its result."""
    window = {"kernel": (kernel, kernel), "stride": (stride, stride), "top": kernel // 2, "left": kernel // 2}
    sizes = ((20, 8), (20, 8 // stride), (12, 8 // stride))
    x, between, y = (Image(1, channels, side // 2, side, 4, dtype=dtype) for channels, side in sizes)
    first = Conv(x, between, groups=20, weights=dtype, **window)  # type: ignore[arg-type]
    generate: Any = separable_staged if isinstance(tile, StagedTile) else separable_tiled
    made, rng = generate(first, Conv(between, y, weights=dtype), tile, run), np.random.default_rng(0)
    arrays = [
        (rng.standard_normal(np.prod([extent.const for extent in b.shape])) / 2).astype(b.type.dtype.carrier.numpy)
        for b in made.params
    ]
    call = Launched("depthwise and 1x1", made, arrays, [])
    call.expected[:] = [view.copy() for view in call.before]
    interpret(made, call.expected)
    return call


def bytes_in_one_launch(tile: WordTile, run: int) -> Launched:
    """The same of bytes whose zero point is not 0."""
    x, y = (Image(1, channels, 6, 8, 4, dtype=DType.I8) for channels in (20, 12))
    window = {"kernel": (3, 3), "top": 1, "left": 1, "groups": 20}
    kernel = Requantize("float", -5, -128, 127, DType.I8, ("factor",))
    first, second = (
        IntegerConv(replace(s, bias=True, weights=DType.I8), kernel, (DType.F32,), (False,), narrow=True, fill=-7)
        for s in (Conv(x, x, **window), Conv(x, y))  # type: ignore[arg-type]
    )
    made, rng = integer_separable(first, second, tile, run), np.random.default_rng(0)
    arrays = list[np.ndarray]()
    for b in made.params:
        count = np.prod([extent.const for extent in b.shape])
        words = rng.integers(-(1 << 31), 1 << 31, count).astype(np.int32)
        words >>= 16 * (b.shape[0].const in (12, 20))  # of a bias
        arrays.append(rng.uniform(0.001, 0.002, count).astype(np.float32) if b.type.dtype is DType.F32 else words)
    call = Launched("depthwise and 1x1 of bytes", made, arrays, [])
    call.expected[:] = [view.copy() for view in call.before]
    interpret(made, call.expected)
    return call


def test_depthwise_and_1x1_convolutions_of_bytes_in_one_launch() -> None:
    if reason := why_not("cuda"):
        pytest.skip(reason)
    calls = [
        bytes_in_one_launch(WordTile(32, 16, 8, 16, 16, 1, 2), 2),
        bytes_in_one_launch(WordTile(32, 32, 16, 16, 16, 1, 2), 4),
    ]
    launch(calls, "cuda")
    for call in calls:
        np.testing.assert_array_equal(call.after[-1], call.expected[-1])
        assert len(np.unique(call.after[-1])) > 10


def test_depthwise_and_1x1_convolutions_in_one_launch(device: str) -> None:
    """In each language; by tensor cores, too, where there are any."""
    calls = [
        in_one_launch(DType.F32, 3, 1, GroupTile(16, 16, 8, 2, 4), 2),
        in_one_launch(DType.F16, 5, 2, GroupTile(16, 16, 16, 4, 4), 4),
    ]
    if device == "cuda":
        calls += [
            in_one_launch(DType.F16, 3, 1, StagedTile(32, 16, 16, 16, 16, 1, 3), 2),
            in_one_launch(DType.F16, 5, 2, StagedTile(32, 32, 32, 16, 16, 1, 2), 1),
        ]
    launch(calls, device)
    for call in calls:
        a, b = (view[-1].astype(np.float32) for view in (call.after, call.expected))
        narrow = call.after[-1].dtype == np.float16
        np.testing.assert_allclose(a, b, atol=(3e-3 if narrow else 1e-5) * float(np.abs(b).max()))


def of_heads(s: HeadSizes, kernel: Kernel) -> Launched:
    """Attention in one launch, with the results of the reference."""
    rng = np.random.default_rng(0)
    shared = s.count // s.group
    heads = (s.count, s.queries, s.depth), (shared, s.keys, s.depth), (shared, s.keys, s.channels)
    shapes = [(s.batch, *dims) for dims in heads]
    arrays = [rng.standard_normal(shape).astype(s.dtype.numpy) for shape in shapes]
    expected = HeadAttention(s.scale, s.merged, s.causal, s.window).reference(*arrays)
    narrow = s.dtype is DType.BF16
    bits = [a.reshape(-1).view(np.uint16) if narrow else a.reshape(-1) for a in (*arrays, 0 * expected)]
    call = Launched("attention", kernel, bits, [])
    call.expected[:] = [*bits[:3], expected.astype(np.float32).reshape(-1)]
    return call


def test_attention_of_floats_in_one_launch(device: str) -> None:
    """In each language: whole blocks and parts of them, heads that share keys, causal windows."""
    machine = find(device).machine
    sizes = [
        HeadSizes(2, 40, 70, 8, 0.2, values=32),
        HeadSizes(4, 33, 64, 64, 0.125, merged=True, batch=2, group=2, causal=True, window=20),
    ]
    calls = [of_heads(s, group_attention(s, machine)) for s in sizes]
    launch(calls, device)
    for call in calls:
        np.testing.assert_allclose(call.after[3], call.expected[3], atol=2e-6)


def test_attention_in_one_launch() -> None:
    if reason := why_not("cuda"):
        pytest.skip(reason)
    sizes = [
        HeadSizes(3, 197, 197, 64, 0.125, DType.F16),
        HeadSizes(2, 18, 70, 32, 0.2, DType.F16, merged=True, batch=2),
        HeadSizes(1, 49, 50, 64, 0.125, DType.BF16, merged=True),
    ]
    long = {
        HeadSizes(2, 197, 300, 64, 0.125, DType.F16): FlashTile(4, 1, 64),
        HeadSizes(2, 198, 320, 64, 0.125, DType.F16): FlashTile(2, 2, 32, ahead=True),
        HeadSizes(2, 197, 300, 64, 0.125, DType.F16, causal=True): FlashTile(4, 1, 32),
        HeadSizes(4, 65, 70, 32, 0.2, DType.BF16, merged=True, batch=2, values=64, group=2): FlashTile(2, 1, 64),
        HeadSizes(1, 64, 129, 128, 0.1, DType.F16): FlashTile(2, 1, 32),
    }
    calls = [
        *(of_heads(s, attention(s)) for s in sizes),
        *(of_heads(s, flash_attention(s, tile)) for s, tile in long.items()),
    ]
    launch(calls, "cuda")
    for s, call in zip([*sizes, *long], calls, strict=True):
        result = call.after[3].view(s.dtype.numpy).astype(np.float32)
        np.testing.assert_allclose(result, call.expected[3], atol=3e-3 if s.dtype is DType.F16 else 3e-2)


@pytest.mark.parametrize("target", ["cuda", "cuda-sm90", "cuda-sm90a"])
def test_copies_in_stages(target: str) -> None:
    """On tensor cores, the sums of the blocks of a cluster, and products beside the threads of four warps."""
    if reason := why_not("cuda"):
        pytest.skip(reason)
    if target == "cuda-sm90" and capability() < 90:
        pytest.skip("this device has no clusters")
    if target == "cuda-sm90a" and capability() != 90:
        pytest.skip("this device is no Hopper GPU")
    cluster, groups = int(target == "cuda-sm90"), int(target == "cuda-sm90a")
    calls = [
        in_stages(StagedTile(32, 32, 32, 16, 16, 1, 2), DType.F16),
        in_stages(StagedTile(32, 32, 32, 16, 32, 1, 3), DType.F16, 3),
        in_stages(StagedTile(64, 16, 16, 32, 16, 1, 4), DType.BF16, 3),
        *([in_stages(StagedTile(64, 32, 16, 32, 16, 4, 2, 1), DType.F16, 3)] * cluster),
        *([in_stages(WarpgroupTile(64, 32, 32, 16, 32, 1, 2), DType.F16, 3)] * groups),
        *([in_stages(WarpgroupTile(128, 64, 16, 16, 64, 1, 4), DType.BF16)] * groups),
    ]
    tiles = [WordGroupTile(64, 32, 8, 16, 32, 1, 3), WordGroupTile(128, 64, 16, 16, 64, 1, 2)]
    whole = [bytes_in_groups(tile, dtype, 3) for tile in tiles[:1] for dtype in (DType.I8, DType.U8)] * groups
    whole += [bytes_in_groups(replace(tiles[0], splits=2), DType.I8), bytes_in_groups(tiles[1], DType.U8)] * groups
    launch([*calls, *whole], target)
    for call in calls:
        np.testing.assert_allclose(call.after[2], call.expected[2], atol=2e-3)
    for call in whole:
        np.testing.assert_array_equal(call.after[-1], call.expected[-1])
        assert np.any(call.after[-1])


def test_images_of_16_bits(device: str) -> None:
    """Four of their elements are loaded, converted and stored at once."""
    tiles = [by_warps(tensor_tiled, WarpTile(32, 32, 32, 16, 16))]
    tiles.append(by_warps(matrix_tiled, MatrixTile(32, 32, 32, 16, 16)))
    names = (("Conv", "f16_3x3"), ("Conv", "bf16_pointwise"), ("Conv", "f16_first_layer_s2"), ("Gemm", "f16"))
    cases = [next(c for c in LOWERED.values() if c.op.name == op and c.label == label) for op, label in names]
    batch = [(case, recorded(case, device)) for case in cases]
    assert all(any(work_groups(call.kernel) is not None for call in calls) for _, calls in batch)
    launch([*tiles, *(call for _, calls in batch for call in calls)], device)
    for call in tiles:
        np.testing.assert_allclose(call.after[2], call.expected[2], atol=1e-3)
    for case, calls in batch:
        for a, b in zip(result(case, calls, device), case.op.evaluate(case.arrays()), strict=True):
            assert_close(a, b, case)


def test_all_operators_can_run(language: str) -> None:
    """Every kernel of every case is expressed in the language."""
    refused = {case.op.name for case in ON_DEVICES.values() if not can_run(case, language)}
    assert not refused


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["sample", "every"])
def test_kernels_in_work_groups_are_proved(language: str, every: bool) -> None:
    """Other kernels that are not proved to have independent iterations run on one thread, these cannot."""
    machine, count = find(language).machine, 0
    few = [case for case in LOWERED.values() if case.op.name in ("Conv", "Softmax", "GlobalMaxPool")]
    for case in ON_DEVICES.values() if every else few[::6]:
        for kernel in (step.kernel for ask in (Ask(), ASK) for step in lowered_steps(case, machine, ask)):
            if work_groups(kernel) is not None:
                assert prove(kernel, spaces=machine.spaces) > 0
                count += 1
    assert count > (100 if every else 2)


# ------------------------------------------------------------------------------------------- networks
@lru_cache(maxsize=2)
def digits(target: str) -> Bundle:
    return tenon.compile(DIGITS / "digits.onnx", target=target, no_tuning=True)


def test_a_network_runs_as_on_the_processor(device: str, tmp_path: Path) -> None:
    images, _ = held_out_digits()
    usual = tenon.compile(DIGITS / "digits.onnx", target="x86-64", no_tuning=True)
    folder = digits(device).save(tmp_path / "out")
    with open_bundle(folder) as engine, open_bundle(usual) as other:
        for image in images[:8]:
            a, b = (each.run(image)["probabilities"] for each in (engine, other))
            np.testing.assert_allclose(a, b, atol=1e-6)
    with open_bundle(folder) as engine, engine.fork() as twin:
        a, b = (each.run(images[0])["probabilities"] for each in (engine, twin))
        np.testing.assert_array_equal(a, b)


def test_activations_of_16_bits(device: str) -> None:
    """``--precision fp16``: each tensor is rounded once, to 11 bits; sums are f32."""
    images, _ = held_out_digits()
    bundle = tenon.compile(DIGITS / "digits.onnx", target=device, no_tuning=True, precision="fp16")
    first, second, *_ = (call.kernel for call in bundle.program.calls if "conv" in call.kernel.name)
    assert first.params[-1].type.dtype is second.params[0].type.dtype is DType.F16
    assert bundle.program.memory.activations < digits(device).program.memory.activations
    with open_bundle(bundle) as engine, open_bundle(digits(device)) as usual:
        for image in images[:8]:
            a, b = (each.run(image)["probabilities"] for each in (engine, usual))
            np.testing.assert_allclose(a, b, atol=2e-3)
            assert np.abs(a - b).max() > 0


def test_global_pools_of_16_bits(device: str) -> None:
    """They read the blocks of channels that convolutions write."""
    end = "const %w5: f32[4,6,1,1] = random(6)\n  %i: f32[1,4,1,1] = Conv() %h, %w5\n  output %i"
    text = FLOATS.replace("output %h", end)
    bundle = tenon.compile(network(text), target=device, no_tuning=True, precision="fp16")
    (pool,) = [call.kernel for call in bundle.program.calls if call.op == "GlobalAveragePool"]
    assert pool.params[0].type.dtype is DType.F16
    assert len(pool.params[0].shape) == 5
    operators = [call.op for call in bundle.program.calls]
    assert "Reorder" not in operators[operators.index("Conv") :]
    x = random(1, 11, 9, 3)
    with open_bundle(bundle) as engine, tenon.open(tenon.compile(network(text), no_tuning=True)) as usual:
        a, b = (each.run(x)["i"] for each in (engine, usual))
        np.testing.assert_allclose(a, b, atol=4e-3 * np.abs(b).max())


def test_bytes_give_the_same_bits_as_on_the_processor(device: str) -> None:
    """In OpenCL also where words of them are read from images."""
    x = np.random.default_rng(0).integers(-128, 128, (1, 4, 13, 6)).astype(np.int8)
    with open_bundle(tenon.compile(network(INTEGERS), target="x86-64", no_tuning=True)) as engine:
        expected = engine.run(x)["e"]
    bundle = tenon.compile(network(INTEGERS), target=device, no_tuning=True)
    assert device != "opencl" or "WEIGHT_INTS(ints_" in bundle.unit.files[1].text
    for gpu in ({}, {"images": "all"}) if device == "opencl" else ({},):
        with tenon.open(bundle, gpu=gpu) as engine:
            np.testing.assert_array_equal(engine.run(x)["e"], expected)


def test_the_entry_point_of_all_bundles_works_alone(device: str, tmp_path: Path) -> None:
    """``int digits(constantWeight, mutableWeight, activations)``, for programs that know no device queue."""
    images, _ = held_out_digits()
    bundle = digits(device)
    folder, memory = bundle.save(tmp_path / "out"), bundle.program.memory
    library = ctypes.CDLL(str(folder / "libdigits.so"))
    weights, tensors = np.frombuffer(bundle.weights, np.uint8), np.zeros(memory.mutable, np.uint8)
    tensors[: images[0].nbytes] = images[0].astype(np.float32).reshape(-1).view(np.uint8)
    assert library.digits(weights.ctypes.data_as(ctypes.c_void_p), tensors.ctypes.data_as(ctypes.c_void_p), None) == 0
    with open_bundle(folder) as engine:
        expected = engine.run(images[0])["probabilities"]
    offset = bundle.program.outputs[0].offset
    np.testing.assert_array_equal(tensors[offset : offset + 40].view(np.float32), expected.reshape(-1))


def test_bindings_share_weights(device: str) -> None:
    """Each binding has its own steps, over one copy of the weights."""
    shapes = [{"image": (1, 1, 8, 8)}, {"image": (2, 1, 8, 8)}]
    images, _ = held_out_digits()
    batch = np.concatenate(images[:2])
    with open_bundle(tenon.compile(DIGITS / "digits.onnx", target=device, no_tuning=True, shapes=shapes)) as engine:
        both = engine.run(batch)["probabilities"]
        each = [engine.run(image)["probabilities"] for image in images[:2]]
    np.testing.assert_allclose(both, np.concatenate(each), atol=1e-6)


def test_commands_of_the_page(update_golden: bool) -> None:
    if reason := why_not("vulkan"):
        pytest.skip(reason)
    needs_compiler("vulkan")
    env = environment(PATH=os.pathsep.join((str(tenon_script().parent), PATH)), TENON_NO_TUNING="1")
    page = ROOT / "docs" / "reference" / "gpu.md"
    check_page(page, lambda line: shell(line, ROOT, env), update=update_golden, test="tests/e2e/test_gpu.py")


# -------------------------------------------------------------------------------------- without a device
def test_a_bundle_has_host_code_and_kernels(language: str, tmp_path: Path) -> None:
    bundle, suffix = digits(language), {"opencl": ".cl", "cuda": ".cu", "vulkan": ".comp"}[language]
    files = {file.name: file for file in bundle.unit.files}
    assert {name: (file.language, file.compiler) for name, file in files.items()} == {
        "digits.c": ("c", "c"),
        f"digits{suffix}": (language, ""),
    }
    kernel = re.compile(r"^(?:__kernel|extern \"C\" __global__) void |^void run_\d+\(", re.MULTILINE)
    kernels = len(kernel.findall(files[f"digits{suffix}"].text))
    assert kernels == len(bundle.program.calls) if suffix != ".comp" else 4 < kernels <= len(bundle.program.calls)
    entries = bundle.unit.entry_points[0]
    ends = ["", "_create", "_create_with_options", "_run", "_timed_run", "_device", "_destroy", "_message"]
    ends += ["_queue_run", "_wait", "_tensors"] if language == "cuda" else []
    assert [entry.name for entry in entries] == [f"digits{end}" for end in ends]
    for entry in entries:
        assert f"{entry.prototype};\n" in bundle.header
        assert f"{entry.prototype} {{\n" in bundle.source
    folder = bundle.save(tmp_path / "out", ("c", "header"))
    assert {path.name for path in folder.iterdir()} == {"digits.c", f"digits{suffix}", "digits.h", "manifest.json"}


def test_every_step_is_a_launch_of_its_work_items(language: str) -> None:
    bundle = digits(language)
    (steps,) = bundle.unit.steps
    assert all(step.work_items or step.groups for step in steps[:-1])  # softmax of one row has one item
    assert any(step.groups for step in steps)
    for i, step in enumerate(steps):
        if (groups := step.groups) is not None:
            launch = f"{groups.count * groups.size}, {groups.size}"
        else:
            launch = f"{step.work_items.length if step.work_items else 1}, 0"
        assert f'{{"digits_step_{i}", {launch}, 0, "{kernel_key(step)}", 0x' in bundle.source


def test_names_of_the_model_can_be_left_out(language: str) -> None:
    hidden = tenon.compile(DIGITS / "digits.onnx", target=language, no_tuning=True, obfuscate="all", name="net")
    host = [path.read_text() for path in (ROOT / "src" / "tenon" / "runtime" / "c").glob(f"{language}_*.c")]
    for file in hidden.unit.files:
        own = file.text
        for text in host:  # the same for all networks
            own = own.replace(text, "")
        assert not re.search(r"\bimage\b|probabilities|conv3x3|digits", own)


def test_words_of_the_language_can_be_names(language: str) -> None:
    """``half`` is a value of DetectionPostProcess, ``constant`` the kernel of Range."""
    for operator in ("DetectionPostProcess", "Range"):
        find_backend(language).program([recorded_program([operator])], "cases.h")
    for operator, word in (("DetectionPostProcess", "half"), ("Range", "constant")):
        text = find_backend("opencl").program([recorded_program([operator])], "cases.h").files[1].text
        assert text.index(f"\n#define {word} {word}_\n") < text.index("__kernel")


def test_recurrent_layers_stay_loops(device: str) -> None:
    """An LSTM of 40 steps, which is a loop, on the device as on the processor."""
    weights = {"w": random(1, 20, 3), "r": random(1, 20, 5), "b": random(1, 40)}
    layer = node("LSTM", ["x", *weights], ["y", "last"], hidden_size=5)
    content = model([layer], {"x": [40, 2, 3]}, ["y", "last"], weights).SerializeToString()
    x = random(40, 2, 3, seed=1)
    bundles = [tenon.compile(content, target=target, no_tuning=True) for target in (device, "x86-64")]
    assert any(isinstance(item, Repeat) for item in bundles[0].program.items)
    results = []
    for bundle in bundles:
        with open_bundle(bundle) as engine:
            results.append(engine.run(x))
            if engine.on_device:  # the launches of a call in the loop count together
                assert len(engine.device_times()) == 2 + len(engine.manifest.nodes)
    for name in results[0]:
        np.testing.assert_allclose(results[0][name], results[1][name], atol=1e-5)


def recorded_program(operators: Sequence[str]) -> Program:
    """A program of the first case of each operator."""
    calls = []
    for i, operator in enumerate(operators):
        first = next(case for case in LOWERED.values() if case.op.name == operator)
        launched = recorded(first)[0]
        places = tuple(Place(Region.ACTIVATIONS, 4096 * j) for j in range(len(launched.kernel.params)))
        calls.append(Call(launched.kernel, places, f"call{i}", operator))
    return Program("cases", (), (), tuple(calls), (), Memory(0, 0, 1 << 16, 0))


def test_networks_beyond_its_indices_are_refused(language: str) -> None:
    program = replace(recorded_program(["Relu"]), memory=Memory(0, 0, 1 << 31, 0))
    with pytest.raises(InputError, match=r"cases needs 2,147,483,648 bytes of activations"):
        find_backend(language).program([program], "cases.h")


def test_what_is_not_there_yet_is_refused(language: str) -> None:
    with pytest.raises(InputError, match=f"kernels for target {language} are not in C: leave out c99=strict"):
        tenon.compile(DIGITS / "digits.onnx", target=language, c99="strict")
    with pytest.raises(InputError, match=f"target {language} has no threads"):
        tenon.compile(DIGITS / "digits.onnx", target=language, threads=2)


def test_an_executable_finds_the_driver_itself(device: str, tmp_path: Path) -> None:
    folder = digits(device).save(tmp_path / "out", ("exe",))
    done = subprocess.run([folder / "digits", DIGITS / "seven.pgm"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ *7 +0\.994", done.stdout, re.MULTILINE), done.stdout


def test_a_machine_without_driver_says_so(tmp_path: Path) -> None:
    """CUDA's library comes with the driver of a GPU."""
    needs_compiler("cuda")
    if not why_not("cuda"):
        pytest.skip("this machine has a CUDA device")
    folder = digits("cuda").save(tmp_path / "out")
    assert "'digits' cannot run: there is no CUDA" in output_of(f"import tenon; tenon.open({str(folder)!r}).run()")


def test_a_machine_without_device_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some loaders find drivers in the folder that an environment variable names, instead of /etc."""
    if reason := why_not("opencl"):
        pytest.skip(reason)
    folder = digits("opencl").save(tmp_path / "out")
    for name in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    count = (
        "import ctypes; print(ctypes.CDLL('libOpenCL.so.1').clGetPlatformIDs(0, None, ctypes.byref(ctypes.c_uint())))"
    )
    if output_of(count).strip() == "0":
        pytest.skip("this loader finds drivers whatever the environment says")
    message = output_of(f"import tenon; tenon.open({str(folder)!r}).run()")
    assert "'digits' cannot run: there is no OpenCL device: install the driver of one" in message


def test_a_machine_without_vulkan_driver_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := why_not("vulkan"):
        pytest.skip(reason)
    needs_compiler("vulkan")
    folder = digits("vulkan").save(tmp_path / "out")
    for name in ("VK_ICD_FILENAMES", "VK_DRIVER_FILES"):
        monkeypatch.setenv(name, str(tmp_path / "none.json"))
    message = output_of(f"import tenon; tenon.open({str(folder)!r}).run()")
    assert "'digits' cannot run: there is no Vulkan driver: install that of the device" in message


def test_a_missing_compiler_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ToolchainError, match=r"the GLSL compiler is not installed: .*apt install glslang-tools"):
        find_backend("vulkan").program([recorded_program(["Relu", "Neg"])], "cases.h")


def test_modules_compute_what_is_written() -> None:
    """Each kernel has a module of its own with the threads of its work groups; no arithmetic is reordered."""
    needs_compiler("vulkan")
    operators = ["Sigmoid", "Mul", "Softplus"]
    unit = find_backend("vulkan").program([recorded_program(operators)], "cases.h")
    made = list(modules(spirv(unit.files[1].text), (64, 64, 32)))
    assert len(made) == len(operators)
    for words, group in zip(made, (64, 64, 32), strict=True):
        code = [(words[at] & 0xFFFF, words[at:]) for at in starts(words)]
        (entry,), (mode, nans, denorms) = ([w for c, w in code if c == kind] for kind in (15, 16))
        assert (entry[3:5], mode[1:6]) == ((0x6E69616D, 0), (entry[2], 17, group, 1, 1))
        assert (nans[1:4], denorms[1:4]) == ((entry[2], 4461, 32), (entry[2], 4459, 32))  # both are kept
        exact = {w[1] for c, w in code if c == 71 and w[2] == 42}
        assert exact == {w[2] for c, w in code if c in (127, 129, 131, 133, 136)} != set()


def test_modules_are_valid(tmp_path: Path) -> None:
    needs_compiler("vulkan")
    validator = shutil.which("spirv-val")
    if validator is None:
        pytest.skip("spirv-val (Debian's spirv-tools) is not installed")
    unit = find_backend("vulkan").program([recorded_program(["Conv", "Exp", "Softmax", "TopK", "Cast"])], "cases.h")
    made = [("vulkan1.0", words) for words in modules(spirv(unit.files[1].text), [64] * 5)]
    rows = program_of([of_rows(dtype) for dtype in (DType.F32, DType.F16)])[0]
    of_subgroups = with_subgroups(find_backend("vulkan").program([rows], "cases.h").files[1].text, [64] * 2)
    made += [("vulkan1.1", words) for words in of_subgroups.values()]
    assert [uses_16_bits(words) for words in of_subgroups.values()] == [False, True]
    half = program_of(recorded(next(case for case in LOWERED.values() if case.label == "f16_pointwise"), "vulkan"))[0]
    text = find_backend("vulkan").program([half], "cases.h").files[1].text
    (words16,) = with_16_bits(text, [64]).values()
    matrices = program_of([by_warps(matrix_tiled, MatrixTile(32, 32, 32, 32, 32))])[0]
    text = find_backend("vulkan").program([matrices], "cases.h").files[1].text
    (words_of_matrices,) = with_matrices(text, [32]).values()
    for i, (version, words) in enumerate([*made, ("vulkan1.2", words16), ("vulkan1.2", words_of_matrices)]):
        path = tmp_path / f"{i}.spv"
        path.write_bytes(np.array(words, "<u4").tobytes())
        command = [validator, "--target-env", version, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_modules_of_16_bits_store_single_halves() -> None:
    """Others change a part of a word, which takes an atomic operation (OpAtomicXor)."""
    needs_compiler("vulkan")
    bundle = tenon.compile(DIGITS / "digits.onnx", target="vulkan", no_tuning=True, precision="fp16")
    text, groups = (
        bundle.unit.files[1].text,
        [64] * len(set(re.findall(r"^void run_\d+", bundle.unit.files[1].text, re.M))),
    )
    usual, made16 = list(modules(spirv(text), groups)), with_16_bits(text, groups)
    atomic = {i for i, words in enumerate(usual) if any(words[at] & 0xFFFF == 242 for at in starts(words))}
    assert atomic
    assert atomic <= made16.keys()
    assert not any(words[at] & 0xFFFF == 242 for words in made16.values() for at in starts(words))


def test_modules_have_nothing_of_other_kernels() -> None:
    """Whatever numbers a kernel has as literals: shared memory of others would count as its own."""
    needs_compiler("vulkan")
    entries = "".join(
        f"shared uint shared_{i}[64];\n"
        f"void run_{i}() {{\n"
        f"  shared_{i}[gl_LocalInvocationID.x] = gl_WorkGroupID.x;\n  barrier();\n"
        f"  words[{i}] = {' ^ '.join(f'(shared_{i}[{j}] * {j}u)' for j in range(64))};\n}}\n"
        for i in range(3)
    )
    calls = " ".join(f"run_{i}();" for i in range(3))
    program = "#version 450\nlayout(std430, binding = 0) buffer Words { uint words[]; };\n"
    for words in modules(spirv(f"{program}{entries}void main() {{ {calls} }}\n"), [64] * 3):
        code = [(words[at] & 0xFFFF, words[at:]) for at in starts(words)]
        assert [w[3] for c, w in code if c == 59].count(4) == 1
        assert [c for c, _ in code].count(54) == 1
        assert shared_bytes(words) == 256


COPY = """
#include "digits.c"
int main(int count, char **arguments) {
  static uint32_t words[1 << 16];
  const char *keeps = arguments[1];
  const VulkanFloats floats = {.keeps32 = keeps[0] == '1', .keeps64 = keeps[1] == '1', .denorms32 = keeps[2] == '1'};
  return fwrite(words, 1, vulkan_copied(words, &device_shaders->usual, &floats), stdout) == 0;
}
"""


def test_modules_ask_only_for_what_the_device_promises(tmp_path: Path) -> None:
    """Whether NaNs are kept in floats of 32 bits, and in those of 64, and numbers below the normal ones in 32."""
    needs_compiler("vulkan")
    digits("vulkan").save(tmp_path, ("c", "header"))
    (tmp_path / "copy.c").write_text(COPY)
    subprocess.run(["gcc", "-o", str(tmp_path / "copy"), str(tmp_path / "copy.c")], check=True)
    wanted = {
        "110": (True, False, True, [4461]),
        "101": (True, True, True, [4461, 4459]),
        "010": (True, False, True, []),
        "001": (False, True, True, [4459]),
        "000": (False, False, False, []),
    }
    for keeps, expected in wanted.items():
        made = subprocess.run([tmp_path / "copy", keeps], capture_output=True, check=True).stdout
        words = np.frombuffer(made, "<u4").tolist()
        code = [tuple(words[at : at + (words[at] >> 16)]) for at in starts(words)]
        extension = b"SPV_KHR_float_controls" in made
        capabilities = [(2 << 16 | 17, capability) in code for capability in (4466, 4464)]
        modes = [i[2] for i in code if i[0] & 0xFFFF == 16 and i[2] > 4000]
        assert (*capabilities, extension, modes) == expected


def starts(words: Sequence[int]) -> Iterator[int]:
    """The places of the instructions of a SPIR-V module."""
    at = 5
    while at < len(words):
        yield at
        at += words[at] >> 16


def test_kernels_that_the_driver_refuses_are_reported(device: str, tmp_path: Path) -> None:
    """The message has the report of the driver's compiler."""
    if device == "vulkan":
        pytest.skip("drivers take no text, and need not check SPIR-V")
    folder = digits(device).save(tmp_path / "out", ("c", "header"))
    text, start = (folder / "digits.c").read_text(), {"opencl": "device_text[] = {", "cuda": '  ".address_size 64\\n",'}
    (folder / "digits.c").write_text(text.replace(start[device], f'{start[device]}\n  "nonsense here\\n",', 1))
    assert b"nonsense" in refusal(folder)


def test_groups_that_share_more_than_the_device_has_are_refused(tmp_path: Path) -> None:
    if reason := why_not("vulkan"):
        pytest.skip(reason)
    needs_compiler("vulkan")
    folder = digits("vulkan").save(tmp_path / "out", ("c", "header"))
    text, count = re.subn(r"(\{\{shader_0, .*\}), \d+\}", r"\1, 1000000000}", (folder / "digits.c").read_text())
    assert count == 1
    (folder / "digits.c").write_text(text)
    assert re.search(
        rb"groups of the Vulkan device .+ share \d+ bytes, and the network needs 1000000000", refusal(folder)
    )


def refusal(folder: Path) -> bytes:
    """The message of a bundle's C that cannot make the network."""
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "lib.so", folder / "digits.c"], check=True)
    library, status = ctypes.CDLL(str(folder / "lib.so")), ctypes.c_int()
    library.digits_create.restype, library.digits_message.restype = ctypes.c_void_p, ctypes.c_char_p
    weights = np.zeros(1 << 20, np.uint8)
    assert library.digits_create(weights.ctypes.data_as(ctypes.c_void_p), ctypes.byref(status)) is None
    assert status.value
    return bytes(library.digits_message())


def output_of(code: str) -> str:
    """The text that a program in Python prints."""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return process.stdout + process.stderr


class Exchanged:
    """An array that only DLPack can read."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_arrays_are_exchanged_by_dlpack(device: str) -> None:
    """Outputs that are not copied stay what the engine writes to."""
    images, _ = held_out_digits()
    with open_bundle(digits(device)) as engine:
        expected = engine.run(images[0])["probabilities"]
        shared = np.from_dlpack(Exchanged(engine.run(Exchanged(images[1]), copy=False)["probabilities"]))
        assert not np.array_equal(shared, expected)
        engine.run(Exchanged(images[0]), copy=False)
        np.testing.assert_array_equal(shared, expected)
