"""Convolutions in work groups: results, proofs, and what is chosen."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from check_kernels import FaultError, check
from interpret import interpret
from loop_operations import KernelError
from lowered import MACHINES, Ask, make_site, run_lowered, run_site
from mutants import mutants
from operator_cases import LOWERED
from tenon.errors import InternalError
from tenon.machine.algorithms import registry
from tenon.machine.algorithms.base import Limits
from tenon.machine.algorithms.registry import best, candidates
from tenon.machine.algorithms.tiled import Tiled
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.spaces import SHARED, Launch, MemorySpace
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.group_rows import plane_groups, softmax_groups
from tenon.machine.kernels.group_tiles import GroupTile, pack, sums_shape
from tenon.machine.kernels.image import Image, identity
from tenon.machine.kernels.separable_tiled import separable_tiled
from tenon.machine.kernels.tiled import joined_parts, tiled
from tenon.machine.kernels.vector_product import VectorBlock, vector_product
from tenon.machine.proofs.bounds import OutOfRangeError, prove
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType
from tenon.network.ops.conv import Conv as Operator

GPU = replace(MACHINES["lanes1"], launch=Launch(), spaces=(SHARED,), threads=4096)


def convolution(
    channels: tuple[int, int], size: tuple[int, int], kernel: int, stride: int = 1, pad: int = 0, n: int = 1
) -> Conv:
    h, w = ((extent + 2 * pad - kernel) // stride + 1 for extent in size)
    x = Image(n, channels[0], *size, 1 if channels[0] <= 4 else 4)
    return Conv(x, Image(n, channels[1], h, w, 4), (kernel, kernel), (stride, stride), top=pad, left=pad)


SMALL = {
    "pointwise": (convolution((8, 8), (5, 6), 1), GroupTile(16, 8, 8, 2, 4)),
    "3x3": (convolution((5, 8), (3, 5), 3, pad=1), GroupTile(16, 8, 8, 2, 4)),
    "batch": (convolution((5, 7), (3, 4), 3, 2, 1, n=2), GroupTile(4, 8, 8, 2, 4)),
    "first layer": (convolution((3, 8), (9, 8), 3, 2, 1), GroupTile(16, 8, 9, 4, 4)),
    "parts": (convolution((16, 8), (5, 6), 1), GroupTile(16, 8, 8, 2, 4, 2)),
    "wide parts": (convolution((8, 9), (2, 3), 3, pad=1), GroupTile(8, 8, 8, 2, 8, 3)),
}
LARGE = {
    "first layer of ResNet": (convolution((3, 64), (224, 224), 7, 2, 3), GroupTile(128, 64, 7, 8, 8)),
    "56x56": (convolution((64, 64), (56, 56), 3, pad=1), GroupTile(64, 64, 16, 8, 4)),
    "14x14 in parts": (convolution((256, 256), (14, 14), 3, pad=1), GroupTile(64, 64, 16, 8, 8, 4)),
    "7x7 in parts": (convolution((512, 512), (7, 7), 3, pad=1), GroupTile(64, 32, 16, 4, 4, 8)),
    "few channels": (convolution((96, 24), (56, 56), 1), GroupTile(64, 32, 16, 4, 4)),
}


def blocked(image: Image, values: Array) -> Array:
    n, c, h, w = values.shape
    whole = np.zeros((n, image.blocks * image.block, h, w), np.float32)
    whole[:, :c] = values
    return np.ascontiguousarray(whole.reshape(n, -1, image.block, h, w).transpose(0, 1, 3, 4, 2))


@pytest.mark.parametrize("name", SMALL)
def test_results(name: str) -> None:
    s, tile = SMALL[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((s.x.n, s.x.channels, s.x.h, s.x.w)).astype(np.float32)
    weights = rng.standard_normal((s.y.channels, s.x.channels, *s.kernel)).astype(np.float32)
    bias = rng.standard_normal(s.padded).astype(np.float32)
    bias[s.y.channels :] = 0
    expected = Operator(pads=(s.top, s.left) * 2, strides=s.stride).reference(x, weights, bias[: s.y.channels])
    operands = [blocked(s.x, x).reshape(-1), pack(weights, s, tile).reshape(-1)]
    y = np.zeros(math.prod(s.y.shape), np.float32)
    if tile.splits == 1:
        interpret(tiled(s, tile), [*operands, bias, y])
    else:
        sums = np.full(math.prod(sums_shape(s, tile)), np.nan, np.float32)
        interpret(tiled(s, tile), [*operands, sums])
        interpret(joined_parts(s, tile), [sums, bias, y])
    np.testing.assert_allclose(y, blocked(s.y, expected).reshape(-1), atol=3e-5)


@pytest.mark.parametrize("name", [*SMALL, *LARGE])
def test_kernels_are_proved(name: str) -> None:
    s, tile = {**SMALL, **LARGE}[name]
    kernel = tiled(s, tile)
    groups = work_groups(kernel)
    assert groups is not None
    assert (groups.size, groups.shared_bytes) == (tile.threads, tile.shared)
    assert prove(kernel) > 0
    if tile.splits > 1:
        assert prove(joined_parts(s, tile)) > 0


def test_a_tile_without_its_barrier_is_refused() -> None:
    text = show(tiled(*SMALL["3x3"]))
    assert text.count("barrier") == 1
    with pytest.raises(OutOfRangeError, match="two threads may write and read one element of"):
        prove(parse(text.replace("barrier\n", "")))
    for stage in ("(s % 2)", "(s + 1 % 2)"):
        with pytest.raises(OutOfRangeError):
            prove(parse(text.replace("xs[(s % 2)", f"xs[{stage}", 1).replace("= load xs[(s % 2)", "= load xs[0")))


@pytest.mark.parametrize("name", SMALL)
def test_kernels_pass_the_second_check(name: str) -> None:
    assert check(show(tiled(*SMALL[name]))) > 0


SEPARABLE = (
    Conv(Image(1, 16, 4, 6, 4), Image(1, 16, 4, 6, 4), (3, 3), top=1, left=1, groups=16, bias=False),
    Conv(Image(1, 16, 4, 6, 4), Image(1, 8, 4, 6, 4), bias=False),
)
MUTATED: dict[str, Callable[[], Kernel]] = {
    "tiles": lambda: tiled(*SMALL["3x3"]),
    "parts": lambda: tiled(*SMALL["parts"]),
    "softmax": lambda: softmax_groups(2, 37, False, GPU),
    "plane": lambda: plane_groups(Image(1, 8, 3, 5, 4), Image(1, 8, 1, 1, 4), "add", identity, identity, GPU),
    "depthwise and 1x1": lambda: separable_tiled(*SEPARABLE, GroupTile(16, 8, 8, 2, 4), 2),
    "vector": lambda: vector_product(Conv(Image(1, 19, 1, 1, 4), Image(1, 13, 1, 1, 4)), VectorBlock(8, 4)),
}
SERIOUS = ("is read before it is written", "dimension", "negative", "touched by two threads", "never reach")


@pytest.mark.parametrize("name", MUTATED)
def test_faults_in_work_groups_are_refused(name: str) -> None:
    """A mutant that a proof accepts does nothing that is undefined."""
    kernel = MUTATED[name]()
    every = [mutant for mutant in mutants(show(kernel)) if mutant[0] != "lanes"]
    chosen = random.Random(1).sample(every, 16) + [mutant for mutant in every if mutant[0] == "barrier"][:3]
    rng, refused = np.random.default_rng(0), 0
    for what, text in chosen:
        proved, checked = verdicts(text)
        refused += not proved
        if not (proved or checked):
            continue
        faulty = parse(text)
        shapes = [math.prod(extent.const for extent in buffer.shape) for buffer in faulty.params]
        try:
            interpret(faulty, [rng.standard_normal(n).astype(np.float32) for n in shapes])
        except KernelError as error:
            if any(words in str(error) for words in SERIOUS):
                pytest.fail(f"accepted: {what}, {error} in\n{text}")
    assert refused > len(chosen) / 3


def verdicts(text: str) -> tuple[bool, bool]:
    """Whether the proofs and the second check accept a kernel."""
    accepted = []
    checks: list[Callable[[], int]] = [lambda: prove(parse(text)), lambda: check(text)]
    for accept in checks:
        try:
            accept()
            accepted.append(True)
        except (InternalError, FaultError):
            accepted.append(False)
    return accepted[0], accepted[1]


def test_the_machine_decides() -> None:
    """A machine without work groups has no tiles, one with little shared memory small ones."""
    s = LARGE["56x56"][0]
    assert not Tiled.applies((s,), replace(GPU, launch=None))
    assert isinstance(candidates((s,), GPU, Limits())[0], Tiled)
    assert isinstance(best((s,), GPU), Tiled)
    small = replace(GPU, spaces=(MemorySpace("shared", 4096),))
    assert all(t.tile.shared <= 4096 for t in Tiled.candidates((s,), small, Limits(), 100))
    for machine, most in ((GPU, 256), (replace(GPU, launch=Launch(group=64)), 64)):
        assert max(t.tile.threads for t in Tiled.candidates((s,), machine, Limits(), 10000)) == most


def test_tiles_of_numbers_that_are_converted_are_those_of_f32() -> None:
    """Half as many bytes of memory arrive, but each number is converted on its way to shared memory."""
    for s, *_ in LARGE.values():
        halves = replace(s, x=replace(s.x, dtype=DType.F16), weights=DType.F16)
        assert Tiled.candidates((halves,), GPU, Limits(), 8) == Tiled.candidates((s,), GPU, Limits(), 8)


@pytest.mark.parametrize(
    "name",
    [
        "Conv::one_in_one_out",
        "Conv::bf16_one_in",
        "ConvTranspose::holes",
        "Gemm::many_columns",
        "MatMul::crossed_batches",
    ],
)
def test_operators_in_work_groups(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowered operators give the results of their references, in layouts without halos."""
    monkeypatch.setattr("tenon.machine.algorithms.tiled.DEVICE_CYCLES", 1e9)  # even where direct sums take less time
    registry._sorted.cache_clear()
    operator, _, label = name.partition("::")
    case = next(c for c in LOWERED.values() if (c.op.name, c.label) == (operator, label))
    launches: list[int] = []

    def execute(kernel: Kernel, arrays: list[Array]) -> None:
        launches.extend([1] * (work_groups(kernel) is not None))
        interpret(kernel, arrays)

    (got,) = run_lowered(case.op, case.arrays(), GPU, case.constant, Ask(blocked=True), execute)
    registry._sorted.cache_clear()
    assert launches
    got, expected = (a.astype(np.float32) for a in (got, *case.op.evaluate(case.arrays())))
    tolerance = max(case.tolerance, 1e-5)
    np.testing.assert_allclose(got, expected, atol=tolerance * float(np.abs(expected).max()))


@pytest.mark.parametrize("name", ["Gemm::all_variable", "MatMul::weights", "MatMul::row"])
def test_products_offer_candidates(name: str) -> None:
    """``tenon tune`` measures them; each gives the result."""
    operator, _, label = name.partition("::")
    case = next(c for c in LOWERED.values() if (c.op.name, c.label) == (operator, label))
    arrays, (expected,) = case.arrays(), case.op.evaluate(case.arrays())
    site = make_site(case.op, arrays, GPU, case.constant)
    offered = case.op.candidates(site)
    assert len(offered) > 2
    assert len({type(each) for each in offered}) > 1
    assert offered[0] == min(offered, key=lambda each: case.op.cost(replace(site, algorithm=each)).time)
    for each in (offered[0], offered[-1]):
        (got,) = run_site(case.op, replace(site, algorithm=each), arrays)
        np.testing.assert_allclose(got, expected, atol=1e-5 * float(np.abs(expected).max()))
    assert not case.op.candidates(replace(site, machine=MACHINES["lanes1"]))


@pytest.mark.parametrize("name", ["Gemm::one_row", "MatMul::row"])
def test_products_of_vectors(name: str) -> None:
    operator, _, label = name.partition("::")
    case = next(c for c in LOWERED.values() if (c.op.name, c.label) == (operator, label))
    chosen: list[str] = []

    def execute(kernel: Kernel, arrays: list[Array]) -> None:
        chosen.append(kernel.name)
        assert prove(kernel) > 0
        interpret(kernel, arrays)

    (got,) = run_lowered(case.op, case.arrays(), GPU, case.constant, Ask(), execute)
    (expected,) = case.op.evaluate(case.arrays())
    assert any(kernel.startswith("vector_product") for kernel in chosen) == (operator == "Gemm")
    np.testing.assert_allclose(
        got.astype(np.float32), expected.astype(np.float32), atol=case.tolerance * float(np.abs(expected).max())
    )


@pytest.mark.parametrize(
    "label",
    ["depthwise", "depthwise_s2", "depthwise_5x5", "depthwise_dilated", "depthwise_17x17", "one_axis_depthwise"],
)
def test_depthwise_by_items(label: str) -> None:
    case = next(c for c in LOWERED.values() if (c.op.name, c.label) == ("Conv", label))
    chosen: list[str] = []

    def execute(kernel: Kernel, arrays: list[Array]) -> None:
        chosen.append(kernel.about)
        assert prove(kernel) > 0
        interpret(kernel, arrays)

    (got,) = run_lowered(case.op, case.arrays(), GPU, case.constant, Ask(blocked=True, surplus=1), execute)
    (expected,) = case.op.evaluate(case.arrays())
    assert any(about.endswith("of a channel in an item") for about in chosen)
    np.testing.assert_allclose(got, expected, atol=1e-5 * float(np.abs(expected).max()))
