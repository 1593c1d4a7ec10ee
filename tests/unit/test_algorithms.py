"""The interface of algorithms: keys identify them completely, packed weights depend on the packing key only, and an
algorithm is added by one class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lowered import MACHINES, make_site, run_site, settle
from tenon.machine.algorithms import registry
from tenon.machine.algorithms.base import Algorithm, Limits, Problem, Step, Weights
from tenon.machine.algorithms.direct import Direct, best_tiles
from tenon.machine.algorithms.estimate import step_time
from tenon.machine.algorithms.integers import IntegerDirect
from tenon.machine.algorithms.registry import ALGORITHMS, EVERY, candidates, packed_alike, parse
from tenon.machine.algorithms.winograd import ERROR, Winograd
from tenon.machine.isa.amx import TILE_BF16
from tenon.machine.isa.byte_products import DOT4, DOT4_SIGNED
from tenon.machine.isa.cooperative_matrices import MATRIX_F16
from tenon.machine.isa.dsp import DOT2_I16
from tenon.machine.isa.helium import DOT16
from tenon.machine.isa.i8mm import MMLA, MMLA_SIGNED
from tenon.machine.isa.short_products import MADD_I16
from tenon.machine.isa.sme import OUTER_F32, OUTER_I8
from tenon.machine.isa.tensor_cores import MMA_F16, MMA_F16_K16, MMA_I8_K32
from tenon.machine.isa.thumb import MUL
from tenon.machine.isa.warpgroups import WGMMA_F16, WGMMA_I8
from tenon.machine.kernel_ir.spaces import SHARED, Launch
from tenon.machine.kernels.conv import Conv, OutputTile
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.winograd import in_phases
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, DType
from tenon.network.ops import conv as operator
from tenon.network.ops.base import Operator, Site
from tenon.network.ops.integer_conv import IntegerConv

MACHINE = MACHINES["lanes4"]
TAPS = ((1, 1), (3, 3), (5, 5), (1, 7), (3, 1))


def convolution(
    blocks: tuple[int, int], extent: tuple[int, int], kernel: tuple[int, int] = (3, 3), dtype: DType = F32
) -> Conv:
    x, y = (Image(1, n * MACHINE.block, *extent, MACHINE.block) for n in blocks)
    return Conv(x, y, kernel, top=kernel[0] // 2, left=kernel[1] // 2, weights=dtype)


def halves(blocks: tuple[int, int], extent: tuple[int, int]) -> Conv:
    s = convolution(blocks, extent, dtype=DType.F16)
    return replace(s, x=replace(s.x, dtype=DType.F16))


def patches() -> Conv:
    x, y = Image(1, 3, 16, 16, dtype=DType.BF16), Image(1, 32, 8, 8, 32, dtype=DType.BF16)
    return Conv(x, y, (7, 7), (2, 2), top=3, left=3, weights=DType.BF16)


def planes() -> Conv:
    """An image of f32 that the convolution quantises."""
    x, y = Image(1, 3, 16, 16, 4, dtype=DType.I8), Image(1, 32, 8, 8, 4, dtype=DType.I8)
    return Conv(x, y, (7, 7), (2, 2), top=3, left=3, weights=DType.I8, image_scale=0.1)


def tiles() -> Conv:
    x, y = (Image(1, n, 7, 5, 32, dtype=DType.BF16) for n in (64, 96))
    return Conv(x, y, (3, 3), top=1, left=1, weights=DType.BF16)


def blocks_of_vectors() -> Conv:
    x, y = (Image(1, n, 5, 5, 16) for n in (48, 32))
    return Conv(x, y, (3, 3), top=1, left=1)


def matrices(dtype: DType = DType.BF16) -> Conv:
    """Two matrices that a run computes."""
    x, y = (Image(2, n, 1, 9, n, dtype=dtype) for n in (14, 20))
    return Conv(x, y, bias=False, packed=False, weights=dtype)


def rows() -> Conv:
    x, y = (Image(1, n, 1, 5, n, dtype=DType.I8) for n in (24, 32))
    return Conv(x, y, weights=DType.I8)


def separable(channels: int = 16, size: int = 12, dtype: DType = F32) -> Problem:
    image = Image(1, channels, size, size, MACHINE.block, dtype=dtype)
    depthwise = Conv(image, image, (3, 3), top=1, left=1, groups=channels, weights=dtype)
    return depthwise, Conv(image, image, weights=dtype)


def depthwise(channels: int = 16, size: int = 12) -> Problem:
    return separable(channels, size)[:1]


def integers(extent: tuple[int, int], *, kernel: int = 3, paired: bool = False, depthwise: bool = False) -> Problem:
    blocks = (3, 3) if depthwise else (3, 5)
    x, y = (Image(1, n * MACHINE.block, *extent, MACHINE.block, dtype=DType.I8) for n in blocks)
    groups = x.channels if depthwise else 1
    pad = kernel // 2
    return (Conv(x, y, (kernel, kernel), top=pad, left=pad, groups=groups, weights=DType.I8, paired=paired),)


PROBLEMS: dict[str, Problem] = {
    **dict.fromkeys(("tensor-tiled", "tensor-staged", "tensor-warpgroups", "matrix-tiled"), (halves((3, 5), (7, 5)),)),
    "tile-products": (tiles(),),
    "tile-patches": (patches(),),
    "tile-matrices": (matrices(),),
    "tile-bf16x3": (blocks_of_vectors(),),
    "direct": (convolution((3, 5), (7, 5)),),
    "tiled": (convolution((3, 5), (7, 5)),),
    "vector": (convolution((3, 5), (1, 1), (1, 1)),),
    **dict.fromkeys(("depthwise", "depthwise-items"), depthwise()),
    "winograd": (convolution((4, 4), (12, 12)),),
    "strassen": (convolution((8, 8), (8, 8), (1, 1)),),
    **dict.fromkeys(("separable", "separable-tiled", "in-turn"), separable()),
    "separable-staged": separable(dtype=DType.F16),
    "integer-separable": separable(32, 56, DType.I8),
    "integer": integers((6, 6)),
    **dict.fromkeys(("product-blocks", "integer-widened", "integer-winograd"), integers((6, 6))),
    "integer-inner-products": integers((6, 6)),
    "outer-products": integers((6, 6)),
    "outer-matrices": (rows(),),
    "outer-factors": (matrices(F32),),
    **dict.fromkeys(("integer-tiled", "integer-staged", "integer-warpgroups"), integers((6, 6))),
    "integer-patches": (planes(),),
    "integer-vector": integers((1, 1), kernel=1),
    **dict.fromkeys(("integer-depthwise", "integer-depthwise-items"), integers((6, 6), depthwise=True)),
    **dict.fromkeys(("dots", "pairs", "pairs-winograd", "scalar"), integers((6, 6), paired=True)),
    **dict.fromkeys(
        ("dots-depthwise", "pairs-depthwise", "scalar-depthwise"), integers((6, 6), paired=True, depthwise=True)
    ),
}
"""A problem to which the algorithm of that name applies."""
UNITS = {
    "tensor-tiled": (MMA_F16,),
    **dict.fromkeys(("tile-products", "tile-patches", "tile-matrices", "tile-bf16x3"), (TILE_BF16,)),
    "tensor-warpgroups": (WGMMA_F16,),
    **dict.fromkeys(("tensor-staged", "separable-staged"), (MMA_F16_K16,)),
    "integer-warpgroups": (DOT4, DOT4_SIGNED, WGMMA_I8),
    **dict.fromkeys(("integer-staged", "integer-separable", "integer-patches"), (DOT4, DOT4_SIGNED, MMA_I8_K32)),
    "matrix-tiled": (MATRIX_F16,),
    **dict.fromkeys(("integer-tiled", "integer-vector"), (DOT4, DOT4_SIGNED)),
    "product-blocks": (*MACHINE.products, MMLA, MMLA_SIGNED),
    **dict.fromkeys(("outer-products", "outer-matrices"), (*MACHINE.products, OUTER_I8)),
    "outer-factors": (*MACHINE.products, OUTER_F32),
    **dict.fromkeys(("integer-widened", "integer-inner-products", "integer-winograd"), (DOT4, DOT4_SIGNED, MADD_I16)),
    **dict.fromkeys(("dots", "dots-depthwise"), (DOT2_I16, DOT16)),
    **dict.fromkeys(("pairs", "pairs-depthwise", "pairs-winograd"), (DOT2_I16,)),
    **dict.fromkeys(("scalar", "scalar-depthwise"), (MUL,)),
}
"""The products of a machine that it applies to, besides those of ``MACHINE``."""


LAUNCHES: dict[str, Any] = {"launch": Launch(copies=True), "spaces": (SHARED,)}
"""The rows of a machine with work groups."""


def every(kind: type[Algorithm], problem: Problem, machine: Machine = MACHINE) -> Sequence[Algorithm]:
    limits = Limits(bf16x3=True)
    return kind.candidates(problem, machine, limits, EVERY) if kind.applies(problem, machine) else ()


@pytest.mark.parametrize("kind", ALGORITHMS, ids=lambda kind: kind.name)
def test_keys_round_trip(kind: type[Algorithm]) -> None:
    machine = replace(MACHINE, products=UNITS.get(kind.name, MACHINE.products), **LAUNCHES)
    algorithms = every(kind, PROBLEMS[kind.name], machine)
    assert algorithms
    assert len({each.key for each in algorithms}) == len(set(algorithms)) == len(algorithms)
    for each in algorithms:
        assert parse(each.key) == each
        assert each.key.split()[0] == kind.name


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from(TAPS),
    st.sampled_from([F32, DType.F16]),
    st.sampled_from([1, 2, 5]),
)
def test_keys_of_random_problems_round_trip(
    blocks: tuple[int, int], extent: tuple[int, int], kernel: tuple[int, int], dtype: DType, threads: int
) -> None:
    machine, problem = replace(MACHINE, threads=threads), (convolution(blocks, extent, kernel, dtype),)
    algorithms = candidates(problem, machine, Limits())
    assert algorithms
    assert [parse(each.key) for each in algorithms] == list(algorithms)
    times = [each.compared(problem, machine) for each in algorithms]
    assert times == sorted(times)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "direct",
        "direct rows=1 cols=2",
        "direct rows=1 cols=2 vecs=x",
        "direct cols=2 rows=1 vecs=1",
        "fourier n=1",
        "direct rows=1 cols=2 vecs=1 more=1",
        "direct rows=01 cols=2 vecs=1",
    ],
)
def test_invalid_keys_are_rejected(key: str) -> None:
    with pytest.raises(ValueError, match=f"'{key}' is no algorithm; there are direct, depthwise, winograd"):
        parse(key)


def lowered(op: Operator, site: Site, algorithm: Algorithm) -> list[Step]:
    return op.lower(settle(op, replace(site, algorithm=algorithm)))


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_equal_packings_give_equal_weights(kernel: tuple[int, int]) -> None:
    """Layers of several input shapes can therefore share packed weights."""
    op = operator.Conv(pads=(kernel[0] // 2, kernel[1] // 2) * 2)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((1, 32, 8, 8), (32, 32, *kernel))]
    site = make_site(op, arrays, MACHINE, (1,))
    seen: dict[tuple[str | int, ...], list[bytes]] = {}
    repeated = 0
    for each in op.candidates(site):
        packed = [a.data.tobytes() for s in lowered(op, site, each) for a in s.args if isinstance(a, Weights)]
        repeated += each.packing in seen
        assert seen.setdefault(each.packing, packed) == packed, each.key
    assert repeated
    assert len({tuple(packed) for packed in seen.values()}) == len(seen) > 2


def test_packed_alike_gives_the_same_packing_for_another_shape() -> None:
    large, small = (convolution((8, 8), (28, 28)),), (convolution((8, 8), (10, 6)),)
    for each in candidates(large, MACHINE, Limits()):
        other = packed_alike(small, MACHINE, each)
        if other is not None:
            assert other.packing == each.packing
    assert all(packed_alike(large, MACHINE, each) is not None for each in candidates(large, MACHINE, Limits()))
    (turned,) = large
    assert packed_alike(depthwise(), MACHINE, Direct.candidates((turned,), MACHINE, Limits(), 1)[0]) is None


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize(("channels", "size"), [(256, 14), (512, 7)])
def test_threads_share_large_weights(channels: int, size: int, threads: int) -> None:
    """In blocks of tiles of its own each thread would read all of them."""
    machine = replace(find("x86-64-avx512").machine, threads=threads)
    x = Image(1, channels, size, size, 16, 1, 3, 1, 3)
    s = Conv(x, Image(1, channels, size, size, 16), (3, 3), top=1, left=1)
    listed = candidates((s,), machine, Limits())
    best = listed[0]
    assert isinstance(best, Winograd)
    assert in_phases(s, best.blocking)
    apart = [each for each in every(Winograd, (s,), machine) if isinstance(each, Winograd)]
    times = [each.cost((s,), machine).time for each in apart if not in_phases(s, each.blocking)]
    assert 1.15 * best.cost((s,), machine).time < min(times)


@pytest.mark.parametrize("most", [1e-6, 1e-5, 1e-3])
def test_candidates_respect_limits(most: float) -> None:
    for kernel in TAPS:
        problem = (convolution((4, 4), (12, 12), kernel),)
        algorithms = candidates(problem, MACHINE, Limits(max_winograd_error=most, strassen=0))
        assert {each.name for each in algorithms} <= {"direct", "winograd"}
        assert all(each.error(problem, None) <= most for each in algorithms)
        sizes = {m for m, e in ERROR.get((min(kernel), max(kernel)), {}).items() if e <= most}
        assert ({"winograd"} <= {each.name for each in algorithms}) == bool(sizes)
    without = candidates(PROBLEMS["winograd"], MACHINE, Limits(winograd=0, strassen=0))
    assert {each.name for each in without} == {"direct"}


def test_every_tile_of_integers_gives_the_bits_of_the_reference() -> None:
    rng = np.random.default_rng(1)
    op = IntegerConv("float", 3, zero=-5, scale=0.5, pads=(1, 1, 1, 1))
    weights = rng.integers(-127, 128, (24, 10, 3, 3)).astype(np.int8)
    factors = np.full(24, 2e-4, np.float32)
    x = rng.integers(-128, 128, (1, 10, 5, 6)).astype(np.int8)
    arrays: list[Array] = [x, weights, np.zeros(24, np.int32), factors]
    (expected,) = op.evaluate(arrays)
    assert len(np.unique(expected)) > 50
    site = make_site(op, arrays, MACHINE, (1, 2, 3))
    algorithms = op.candidates(site)
    assert {each.name for each in algorithms} == {"integer"}
    assert len({each.packing for each in algorithms}) > 1
    for each in algorithms:
        assert parse(each.key) == each
        (got,) = run_site(op, settle(op, replace(site, algorithm=each)), arrays)
        np.testing.assert_array_equal(got, expected, err_msg=each.key)


def test_no_algorithm_of_floats_takes_integers_nor_the_other_way() -> None:
    for threads in (1, 2):
        machine = replace(MACHINE, threads=threads)
        assert {each.name for each in candidates(integers((12, 12)), machine, Limits())} == {"integer"}
        (s,) = PROBLEMS["winograd"]
        bf16 = replace(s, x=replace(s.x, dtype=DType.BF16), y=replace(s.y, dtype=DType.BF16), weights=DType.BF16)
        for floats in (s, bf16):
            assert {"direct"} <= {each.name for each in candidates((floats,), machine, Limits())} - {"integer"}
            assert not IntegerDirect.applies((floats,), machine)


@dataclass(frozen=True)
class FreeDirect(Direct):
    """Direct convolution under another name, with an estimate of zero time."""

    name: ClassVar[str] = "reversed"

    def compared(self, problem: Problem, machine: Machine) -> float:
        return -1.0


def test_new_algorithm_class_is_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once registered, it is a candidate, can be selected by its key and computes convolutions."""
    monkeypatch.setattr(registry, "ALGORITHMS", (*ALGORITHMS, FreeDirect))
    op = operator.Conv()
    arrays = [np.ones(shape, np.float32) for shape in ((1, 8, 3, 5), (12, 8, 1, 1))]
    registry._sorted.cache_clear()
    try:
        algorithms = op.candidates(make_site(op, arrays, MACHINE, (1,)))
        assert isinstance(algorithms[0], FreeDirect)
        assert parse(algorithms[0].key) == algorithms[0]
        assert op.lower(make_site(op, arrays, MACHINE, (1,)))[0].kernel.name.startswith("conv1x1")
    finally:
        registry._sorted.cache_clear()


def test_tiles_of_floats_hide_latency_in_16_registers() -> None:
    """With AVX2 twelve sums, two weights and a value: a multiply-add of eight sums waits for the one before."""
    row = Image(1, 192, 1, 192, 192)
    s = Conv(row, replace(row, channels=768, block=768))
    machine = find("x86-64-avx2").machine
    assert best_tiles(s, machine, 1) == [OutputTile(1, 6, 2)]
    assert best_tiles(s, replace(machine, fused=False), 1)[0] != OutputTile(1, 6, 2)
    of_eight, of_twelve = (step_time(n, 2, machine) / (2 * n) for n in (4, 6))
    assert 1.1 < of_eight / of_twelve < 1.15
