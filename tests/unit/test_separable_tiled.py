"""Depthwise and 1x1 convolutions in one launch: results, proofs, planted faults, and what is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from check_kernels import FaultError, check
from lowered import MACHINES, Ask, make_site, run_site
from tenon.machine.algorithms import registry
from tenon.machine.algorithms.base import Limits, Problem
from tenon.machine.algorithms.depthwise_items import DepthwiseItems
from tenon.machine.algorithms.in_turn import InTurn
from tenon.machine.algorithms.registry import candidates
from tenon.machine.algorithms.separable_tiled import SeparableStaged, SeparableTiled
from tenon.machine.algorithms.tiled import Tiled
from tenon.machine.codegen.backend import find
from tenon.machine.isa.tensor_cores import MMA_BF16_K16, MMA_F16_K16
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.spaces import SHARED, Launch
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.depthwise import DepthwiseTile
from tenon.machine.kernels.group_tiles import GroupTile
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.separable_tiled import separable_staged, separable_tiled
from tenon.machine.kernels.tensor_staged import StagedTile
from tenon.machine.proofs.bounds import OutOfRangeError, prove
from tenon.network import passes
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32, DType, tensor
from tenon.network.ops.activation import HardSwish, Relu
from tenon.network.ops.conv import Conv as Operator
from tenon.network.ops.elementwise import Apply
from tenon.network.ops.fused import Fused
from tenon.network.ops.pointwise import Add
from tenon.network.ops.separable import SeparableConv
from tenon.network.passes.separable import separable

GPU = replace(
    MACHINES["lanes1"],
    products=(MMA_F16_K16, MMA_BF16_K16),
    launch=Launch(copies=True),
    spaces=(SHARED,),
    threads=4096,
    own_memory=False,
)


def pair(channels: tuple[int, int], size: tuple[int, int], kernel: int = 3, stride: int = 1, n: int = 1) -> Problem:
    """A depthwise convolution of f32 and the 1x1 convolution of its result."""
    h, w = ((extent + 2 * (kernel // 2) - kernel) // stride + 1 for extent in size)
    x, between, y = (
        Image(n, c, *extents, 4) for c, extents in zip((channels[0], *channels), (size, (h, w), (h, w)), strict=True)
    )
    window = {"kernel": (kernel, kernel), "stride": (stride, stride), "top": kernel // 2, "left": kernel // 2}
    return Conv(x, between, groups=channels[0], **window), Conv(between, y)  # type: ignore[arg-type]


def stored_as(problem: Problem, dtype: DType) -> Problem:
    return tuple(replace(s, x=replace(s.x, dtype=dtype), y=replace(s.y, dtype=dtype), weights=dtype) for s in problem)


SMALL = {
    "rows of two": SeparableTiled(GroupTile(16, 8, 8, 2, 4), 2),
    "single": SeparableTiled(GroupTile(16, 16, 16, 4, 4), 1),
    "rows of four": SeparableTiled(GroupTile(32, 16, 8, 4, 4), 4),
    "staged": SeparableStaged(StagedTile(32, 16, 16, 16, 16, 1, 3), 2),
    "staged in one step": SeparableStaged(StagedTile(32, 32, 32, 16, 16, 1, 2), 4),
}
CASES = [
    ("rows of two", (3, 3), 1, np.float32),
    ("single", (5, 5), 2, np.float32),
    ("rows of four", (3, 5), 1, np.float32),
    ("single", (1, 35), 1, np.float32),
    ("staged", (3, 3), 2, np.float16),
    ("staged in one step", (3, 5), 1, np.float16),
]


@pytest.mark.parametrize(("name", "kernel", "stride", "dtype"), CASES)
def test_results(name: str, kernel: tuple[int, int], stride: int, dtype: type) -> None:
    """There are two images with halos, and operations behind both convolutions."""
    first = Operator(group=20, pads=(kernel[0] // 2, kernel[1] // 2) * 2, strides=(stride, 1))
    op = SeparableConv(Fused(first, 3, (Apply(HardSwish(), (0,)),)), Fused(Operator(), 3, (Apply(Add(), (0, 1)),)), 3)
    rows = (5 - 1) // stride + 1
    shapes = (2, 20, 5, 8), (20, 1, *kernel), (20,), (12, 20, 1, 1), (12,), (2, 12, rows, 8)
    rng = np.random.default_rng(0)
    arrays: list[Array] = [(rng.standard_normal(shape) / 4).astype(dtype) for shape in shapes]
    ask = Ask(blocked=True, surplus=1)
    site = make_site(op, arrays, GPU, (1, 2, 3, 4), ask)
    site = replace(site, algorithm=SMALL[name])
    (step,) = op.lower(site)
    assert prove(step.kernel) > 0
    groups = work_groups(step.kernel)
    assert groups is not None
    assert groups.size == SMALL[name].tile.threads
    assert groups.shared_bytes <= SMALL[name].tile.shared
    (result,), (expected,) = run_site(op, site, arrays, ask), op.evaluate(arrays)
    atol = (3e-5 if dtype is np.float32 else 2e-3) * float(np.abs(expected.astype(np.float32)).max())
    np.testing.assert_allclose(result.astype(np.float32), expected.astype(np.float32), atol=atol)


def test_two_launches_give_the_same() -> None:
    """Each by its own algorithm, the second with its products in two parts."""
    first = Fused(Operator(group=48, pads=(1, 1, 1, 1)), 3, (Apply(Relu(), (0,)),))
    op = SeparableConv(first, Fused(Operator(), 3, (Apply(Add(), (0, 1)),)), 3)
    shapes = (1, 48, 4, 4), (48, 1, 3, 3), (48,), (8, 48, 1, 1), (8,), (1, 8, 4, 4)
    rng = np.random.default_rng(0)
    arrays: list[Array] = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    site = make_site(op, arrays, GPU, (1, 2, 3, 4), Ask(blocked=True))
    assert {type(each) for each in op.candidates(site)} == {InTurn, SeparableTiled}
    parts = InTurn(DepthwiseItems(DepthwiseTile(1, 2)), Tiled(GroupTile(16, 16, 8, 2, 4, 2)))
    assert registry.parse(parts.key) == parts
    for algorithm in (parts, next(each for each in op.candidates(site) if isinstance(each, InTurn))):
        (result,), (expected,) = run_site(op, replace(site, algorithm=algorithm), arrays), op.evaluate(arrays)
        np.testing.assert_allclose(result, expected, atol=1e-5 * float(np.abs(expected).max()))
    with pytest.raises(ValueError, match="is no algorithm"):
        registry.parse(parts.key.replace("tiled.m", "tiles.m"))


TILED = pair((24, 8), (4, 6))
STAGED = stored_as(pair((48, 12), (3, 4)), DType.BF16)
KERNELS: dict[str, Callable[[], Kernel]] = {
    "tiled": lambda: separable_tiled(*TILED, GroupTile(16, 8, 8, 2, 4), 2),
    "staged": lambda: separable_staged(*STAGED, StagedTile(32, 16, 16, 32, 16, 1, 2), 1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_pass_the_second_check(name: str) -> None:
    assert check(show(KERNELS[name]())) > 0


FAULTS = {
    "no barrier": ("tiled", "barrier\n", ""),
    "stage that is read": ("tiled", "xs[(s % 2)", "xs[(s + 1 % 2)"),
    "staged: no barrier": ("staged", "barrier\n", ""),
    "staged: barrier before the wait": ("staged", "wait 0\n", ""),
    "staged: one stage": ("staged", "xs[(s % 2)", "xs[0"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_refused(name: str) -> None:
    """By the proof and by the second check."""
    kind, before, after = FAULTS[name]
    text = show(KERNELS[kind]())
    faulty = text.replace(before, after, 1)
    assert faulty != text
    with pytest.raises(OutOfRangeError):
        prove(parse(faulty))
    with pytest.raises(FaultError):
        check(faulty)


def test_languages_print_it() -> None:
    for name in ("cuda", "opencl", "vulkan"):
        text = find(name).kernel(KERNELS["staged"]())
        assert ("mma_bf16_k16(" in text) == ("cp.async" in text) == (name == "cuda")


def test_the_machine_and_the_estimate_decide() -> None:
    """One launch where a block has all output channels; two where many blocks would compute the image between."""
    few, many = pair((32, 16), (112, 112)), pair((512, 512), (14, 14))
    assert isinstance(candidates(few, GPU, Limits())[0], SeparableTiled)
    assert isinstance(candidates(stored_as(few, DType.F16), GPU, Limits())[0], SeparableStaged)
    for problem in (many, stored_as(many, DType.F16)):
        assert isinstance(candidates(problem, GPU, Limits())[0], InTurn)
    assert not candidates(few, replace(GPU, launch=None), Limits())
    assert not SeparableStaged.applies(few, GPU)
    assert not SeparableTiled.applies((replace(few[0], clear=True), few[1]), GPU)
    tiles = SeparableTiled.candidates(pair((32, 16), (14, 14)), GPU, Limits(), 10000)
    assert {each.run for each in tiles} == {1, 2}


def test_the_pass_joins_every_pair_on_a_device() -> None:
    graph = Graph("pair")
    x = graph.add_input("x", tensor(F32, 1, 20, 7, 7))
    k, w = (graph.constant(name, np.ones(s, np.float32)) for name, s in (("k", (20, 1, 3, 3)), ("w", (90, 20, 1, 1))))
    a = graph.add(Operator(group=20, pads=(1, 1, 1, 1)), [x, k], ["a"]).output
    b = graph.add(Relu(), [a], ["b"]).output
    graph.outputs = [graph.add(Operator(), [b, w], ["c"]).output]
    for machine, joined in ((GPU, True), (MACHINES["lanes4"], False)):
        own = graph.copy()
        passes.optimize(own, pairs=separable(machine))
        assert any(isinstance(node.op, SeparableConv) for node in own) == joined
