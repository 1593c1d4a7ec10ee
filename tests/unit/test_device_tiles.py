"""Tiles that estimates choose on devices, where measured layers decided."""

from __future__ import annotations

from dataclasses import replace

from lowered import MACHINES
from tenon.machine.algorithms.base import Limits
from tenon.machine.algorithms.depthwise_items import ranked
from tenon.machine.algorithms.registry import candidates
from tenon.machine.algorithms.tensor_warpgroups import TensorWarpgroups
from tenon.machine.isa.warpgroups import WGMMA_F16
from tenon.machine.kernel_ir.spaces import Launch, MemorySpace
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.image import Image
from tenon.machine.targets import find
from tenon.network.graph.types import DType

LAUNCH = Launch(group=1024, units=132, resident=2048, copies=True)


def test_positions_of_neighbouring_items_lie_near_each_other() -> None:
    """Loads of items of four columns and stride 2 would be eight columns apart."""
    for dtype in (DType.I8, DType.F16):
        x, y = (Image(32, 64, size, size, 4, dtype=dtype) for size in (112, 56))
        s = Conv(x, y, (3, 3), (2, 2), (1, 1), 1, 1, 64, weights=dtype)
        assert ranked(s, LAUNCH, 4)[0].cols <= 2


def test_blocks_that_store_more_than_they_multiply_share_a_unit() -> None:
    """1x1 convolutions of 64 channels by tensor cores of groups of warps: two blocks of 128 channels."""
    spaces = (MemorySpace("shared", 227 << 10),)
    machine = replace(MACHINES["lanes1"], block=4, products=(WGMMA_F16,), launch=LAUNCH, spaces=spaces)
    widest = {}
    for channels in (64, 128):
        x, y = (Image(32, c, 56, 56, 4, dtype=DType.F16) for c in (channels, 256))
        s = Conv(x, y, weights=DType.F16)
        listed = TensorWarpgroups.candidates((s,), machine, Limits(), 10000)
        widest[channels] = max(each.tile.n for each in listed)
    assert widest == {64: 128, 128: 256}


def test_bytes_of_many_images_take_groups_of_warps() -> None:
    """Copies of words take longer there than products: of one image, tiles of a warp are faster."""
    machine = find("cuda-sm90a").machine
    chosen = {}
    for count in (1, 32):
        image = Image(count, 256, 14, 14, 4, dtype=DType.U8)
        s = Conv(image, image, (3, 3), top=1, left=1, weights=DType.I8)
        chosen[count] = candidates((s,), machine, Limits())[0].name
    assert chosen == {1: "integer-staged", 32: "integer-warpgroups"}
