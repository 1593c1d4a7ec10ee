"""RoiAlign for regions of any size and position, compared with direct sampling."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lowered import MACHINES, run_lowered
from tenon.errors import ShapeError
from tenon.machine.codegen.c import BACKEND
from tenon.machine.plan.lower import plan
from tenon.machine.plan.lowering_context import Setting
from tenon.machine.targets import find
from tenon.machine.toolchain.compiler import BASE_FLAGS
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.types import F32, I64, TensorType
from tenon.network.ops.region import BinSamples, RoiAlign

BATCH = np.array([0])
REGIONS = [[-90.3, -31.2, 140.1, 61.7], [2.3, -131.4, 4.6, 1.1], [50.2, 1.3, 99.7, 2.4], [1.2, 0.3, 0.2, 2.7]]


def reference_and_kernel(op: RoiAlign, x: Array, region: list[float]) -> Array:
    """The result of the reference, which the kernel must match."""
    operands = [x, np.array([region], np.float32), BATCH]
    (actual,) = run_lowered(op, operands, MACHINES["lanes8"])
    np.testing.assert_allclose(actual, op.reference(*operands), rtol=1e-4)
    return actual


def sampled(image: Array, start: float, size: float, count: int, extent: int) -> Array:
    """The average over every sample along the last axis, by interpolation."""
    at = start + (np.arange(count) + 0.5) * size / max(1, count)
    at = at[(at >= -1) & (at <= extent)]
    return np.stack([np.interp(at, np.arange(extent), line).sum() for line in image]) / max(1, count)


@pytest.mark.parametrize("region", REGIONS)
def test_matches_direct_sampling(region: list[float]) -> None:
    image = np.random.default_rng(0).uniform(1, 2, (5, 7)).astype(np.float32)
    op = RoiAlign(output_height=2, output_width=3)
    actual = reference_and_kernel(op, image[None, None], region)
    left, top, right, bottom = (np.array(region, np.float32) - np.float32(0.5)).astype(np.float64)
    height, width = (bottom - top) / 2, (right - left) / 3
    counts = max(0, int(np.ceil(height))), max(0, int(np.ceil(width)))
    for i, j in np.ndindex(2, 3):
        along = sampled(image, left + j * width, width, counts[1], 7)
        expected = sampled(along[None], top + i * height, height, counts[0], 5)
        np.testing.assert_allclose(actual[0, 0, i, j], expected[0], rtol=1e-4)


def test_no_more_samples_than_elements() -> None:
    """Seven bins of three elements have three samples each: 21 / 7 must not be rounded up."""
    x = np.random.default_rng(0).uniform(1, 2, (1, 1, 1, 23)).astype(np.float32)
    actual, given = (reference_and_kernel(RoiAlign(output_width=7, sampling_ratio=n), x, [0, 0, 21, 1]) for n in (0, 3))
    np.testing.assert_allclose(actual, given, rtol=1e-6)


def test_only_samples_near_the_image_are_evaluated() -> None:
    far = BinSamples(-1e15, 2e15, 2 * 10**15, 4)
    assert far.positions().size == 6 - 1  # from -0.5 to 3.5, by ones
    assert BinSamples(1e9, 1e9, 10**9, 4).positions().size == 0


@pytest.mark.parametrize("region", [[np.nan] * 4, [0, 0, np.inf, 1], [-np.inf, np.inf, np.inf, np.inf]])
def test_regions_that_are_not_finite_are_zero(region: list[float]) -> None:
    assert not reference_and_kernel(RoiAlign(), np.ones((1, 1, 3, 3), np.float32), region).any()


def test_empty_images_are_rejected() -> None:
    types = TensorType(F32, (1, 2, 0, 3)), TensorType(F32, (1, 4)), TensorType(I64, (1,))
    with pytest.raises(ShapeError, match="no elements"):
        RoiAlign().infer([Value(f"x{i}", type) for i, type in enumerate(types)])


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_generated_c_compiles_without_warnings(mode: str, ratio: int, tmp_path: Path) -> None:
    graph = Graph("regions")
    types = TensorType(F32, (1, 2, 5, 7)), TensorType(F32, (3, 4)), TensorType(I64, (3,))
    inputs = [graph.add_input(f"x{i}", type) for i, type in enumerate(types)]
    graph.outputs = list(graph.add(RoiAlign(mode=mode, sampling_ratio=ratio), inputs, ["y"], Origin("", "y")).outputs)
    program = plan(graph, Setting(find("x86-64").machine), "regions")
    (tmp_path / "regions.c").write_text(BACKEND.program([program], "stdint.h").files[0].text)
    subprocess.run(["gcc", *BASE_FLAGS, "-fsyntax-only", "regions.c"], cwd=tmp_path, check=True)
