"""Images of three channels on devices: stored in blocks of 16-bit floats or of bytes, and read so by convolutions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from interpret import interpret
from lowered import MACHINES, Ask, make_site
from tenon.machine.isa.tensor_cores import MMA_BF16_K16, MMA_F16_K16
from tenon.machine.kernel_ir.spaces import SHARED, Launch
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.narrow_image import narrow_image, reads_blocks
from tenon.machine.kernels.quantize import quantize_words
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.types import F32, DType
from tenon.network.ops.conv import Conv
from tenon.network.ops.convert import Cast
from tenon.network.ops.quantize import QuantizeLinear

BLOCKS = replace(
    MACHINES["lanes1"],
    block=4,
    products=(MMA_F16_K16, MMA_BF16_K16),
    launch=Launch(copies=True),
    spaces=(SHARED,),
    threads=4096,
    own_memory=False,
)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
@pytest.mark.parametrize(("channels", "width", "halo"), [(3, 7, 0), (4, 7, 0), (3, 8, 0), (3, 6, 1), (3, 5, 1)])
def test_planes_become_blocks(dtype: DType, channels: int, width: int, halo: int) -> None:
    """Four positions of an item at a time, where rows have so many; zeros in the halo."""
    x = Image(2, channels, 5, width)
    y = Image(2, channels, 5, width, 4, halo, halo, halo, halo, dtype=dtype)
    values = np.random.default_rng(0).standard_normal((2, channels, 5, width)).astype(np.float32)
    around = np.pad(values, ((0, 0), (0, 0), (halo, halo), (halo, halo)))
    result = np.full(around.size // channels * 4, 7, dtype.numpy)
    kernel = narrow_image(x, y)
    interpret(kernel, [values.reshape(-1), result if dtype is DType.F16 else result.view(np.uint16)])
    expected = np.zeros((*around.transpose(0, 2, 3, 1).shape[:3], 4), dtype.numpy)
    expected[..., :channels] = around.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(result.reshape(expected.shape).astype(np.float32), expected.astype(np.float32))
    assert prove(kernel) > 0


@pytest.mark.parametrize(("dtype", "zero"), [(DType.I8, -7), (DType.U8, 0)])
@pytest.mark.parametrize("width", [7, 8])
@pytest.mark.parametrize("halo", [False, True])
def test_planes_become_words(width: int, halo: bool, dtype: DType, zero: int) -> None:
    """The halo holds the zero point, a zero of each channel that there is."""
    sides = (2, 1, 3, 2) if halo else (0, 0, 0, 0)
    top, bottom, left, right = sides
    x, y = Image(2, 3, 5, width), Image(2, 3, 5, width, 4, *sides, dtype=dtype)
    values = np.random.default_rng(0).standard_normal((2, 3, 5, width)).astype(np.float32)
    step, point = np.array([0.02], np.float32), np.array([zero], dtype.numpy)
    extents = 2, top + 5 + bottom, left + width + right, 4
    result = np.full(math.prod(extents) // 4, 7, np.int32)
    kernel = quantize_words(x, y, True, QuantizeLinear(dtype.value).scalar, around=True)
    interpret(kernel, [values.reshape(-1), step, point, result])
    expected = np.zeros(extents, dtype.numpy)
    around = np.pad(values, ((0, 0), (0, 0), (top, bottom), (left, right)))
    expected[..., :3] = QuantizeLinear(dtype.value).reference(around, step, point).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(result.view(dtype.numpy).reshape(expected.shape), expected)
    assert prove(kernel) > 0


MACHINES_THAT_READ_PLANES = {
    "blocks of one": replace(BLOCKS, block=1),
    "no asynchronous copies": replace(BLOCKS, launch=Launch()),
    "no matrix unit": replace(BLOCKS, products=()),
}


@pytest.mark.parametrize("machine", MACHINES_THAT_READ_PLANES.values(), ids=MACHINES_THAT_READ_PLANES)
def test_others_read_planes(machine: Machine) -> None:
    assert reads_blocks(BLOCKS, DType.F16, 3)
    assert not reads_blocks(machine, DType.F16, 3)
    assert not reads_blocks(BLOCKS, F32, 3)
    assert not reads_blocks(BLOCKS, DType.F16, 1)  # three of four would be padding


def test_a_cast_stores_what_a_first_convolution_reads() -> None:
    rng = np.random.default_rng(1)
    image = rng.standard_normal((1, 3, 12, 12)).astype(np.float32)
    cast = Cast("f16")
    site = make_site(cast, [image], BLOCKS)
    (kernel,) = (step.kernel for step in cast.lower(site))
    assert site.output.layout.block == 4
    assert kernel.name.startswith("narrow")
    weights = rng.standard_normal((8, 3, 3, 3)).astype(np.float16)
    conv = Conv(pads=(1, 1, 1, 1))
    first = make_site(conv, [image.astype(np.float16), weights], BLOCKS, (1,), Ask(blocked=True))
    assert not conv.is_first(first)
    assert conv.problem(first).x.channels == 4
    assert first.input(0).layout.block == 4
    stage = conv.stage(first)
    np.testing.assert_array_equal(stage.constant[:, :3], weights)
    assert not stage.constant[:, 3].any()
    assert {step.kernel.name.partition("_")[0] for step in conv.lower(first)} == {"tensor"}
