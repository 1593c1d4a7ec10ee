"""Random TFLite operators that move quantised integers, and fill in what is not there."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tenon.network.graph.types import DType

if TYPE_CHECKING:
    from fuzzing.quantised_tflite import Tensor, TfliteNet

Shape = tuple[int, ...]
Move = tuple[Shape, list[int], dict[str, object]]
"""The shape of a result, constant operands, and options."""

MOST_ELEMENTS = 4000
MOVES = (
    "DEPTH_TO_SPACE",
    "GATHER",
    "MIRROR_PAD",
    "PAD",
    "PAD",
    "PADV2",
    "RESHAPE",
    "REVERSE_V2",
    "SPACE_TO_DEPTH",
    "STRIDED_SLICE",
    "TILE",
    "TRANSPOSE",
)


def moved(net: TfliteNet) -> None:
    x, type = net.image(), net.pick(MOVES)
    made = _paddings(net, x, type) if "PAD" in type else _rearranged(net, x, type)
    if made is not None and prod(made[0]) <= MOST_ELEMENTS:
        shape, extra, options = made
        net.add(type, [x.index, *extra], _result(net, shape, x), **options)


def _result(net: TfliteNet, shape: Shape, x: Tensor) -> Tensor:
    """The result of a move: of the same scale and zero point, or of another, to which integers are requantised."""
    return net.tensor(shape, x.scale, x.zero) if net.chance(0.75) else net.tensor(shape)


def _paddings(net: TfliteNet, x: Tensor, type: str) -> Move:
    """With zeros, with a number that is not zero, or mirrored."""
    mirrored, reach = type == "MIRROR_PAD", 3
    most = min(x.shape[1:3]) if mirrored else reach
    pads = np.zeros((4, 2), np.int32)
    pads[1:3] = net.rng.integers(0, min(reach, most), (2, 2))
    shape = tuple(int(n + a + b) for n, (a, b) in zip(x.shape, pads, strict=True))
    extra = [net.model.constant(f"c{len(net.model.tensors)}", pads)]
    if type == "PADV2":
        value = np.array([net.rng.integers(net.range[0], net.range[1] + 1)], DType(net.dtype).numpy)
        grid = {"scale": [x.scale], "zero": [x.zero]}
        extra.append(net.model.constant(f"c{len(net.model.tensors)}", value, **grid))
    return shape, extra, {"mode": net.pick((0, 1))} if mirrored else {}


def _rearranged(net: TfliteNet, x: Tensor, type: str) -> Move | None:
    n, h, w, c = x.shape
    if type == "RESHAPE":
        shape = net.pick(((n, h * w, c), (n, w, h, c), (n, h * w * c)))
        return shape, [net.ints(*shape)], {"shape": shape}
    if type == "TRANSPOSE":
        perm = net.pick(((0, 2, 1, 3), (0, 3, 1, 2), (0, 1, 3, 2)))
        return tuple(x.shape[p] for p in perm), [net.ints(*perm)], {}
    if type == "STRIDED_SLICE":
        ends = (n, max(1, h - 1), w, max(1, c - 1))
        bounds = [net.ints(0, 0, 0, 0), net.ints(*ends), net.ints(1, 1, 2, 1)]
        return (n, ends[1], -(-w // 2), ends[3]), bounds, {}
    if type == "TILE":
        return (n, 2 * h, w, c), [net.ints(1, 2, 1, 1)], {}
    if type == "REVERSE_V2":
        return x.shape, [net.ints(net.pick((1, 2)))], {}
    if type == "GATHER":
        rows = [int(net.rng.integers(h)) for _ in range(3)]
        return (n, 3, w, c), [net.ints(*rows)], {"axis": 1}
    if type == "DEPTH_TO_SPACE":
        return None if c % 4 else ((n, 2 * h, 2 * w, c // 4), [], {"block_size": 2})
    return None if h % 2 or w % 2 else ((n, h // 2, w // 2, 4 * c), [], {"block_size": 2})


def blocks(net: TfliteNet) -> None:
    """A dilated convolution as TensorFlow writes it: on blocks of the padded image, put together again."""
    x, block = net.image(), (net.pick((1, 2, 3)), net.pick((2, 2, 3)))
    n, h, w, c = x.shape
    pads = [[int(net.rng.integers(0, 3)), 0] for _ in block]
    for pair, size, b in zip(pads, (h, w), block, strict=True):
        pair[1] = -(size + pair[0]) % b + b * int(net.rng.integers(0, 2))
    small = [(size + sum(pair)) // b for size, pair, b in zip((h, w), pads, block, strict=True)]
    count = n * prod(block)
    if count * prod(small) * c > MOST_ELEMENTS:
        return
    table = net.model.constant(f"c{len(net.model.tensors)}", np.array(pads, np.int32))
    y = net.add("SPACE_TO_BATCH_ND", [x.index, net.ints(*block), table], _result(net, (count, *small, c), x))
    if net.chance(0.6):
        _whole_again(net, y, n, block, pads)


def _whole_again(net: TfliteNet, y: Tensor, images: int, block: Shape, crops: list[list[int]]) -> None:
    sizes = [size * b - sum(pair) for size, b, pair in zip(y.shape[1:3], block, crops, strict=True)]
    table = net.model.constant(f"c{len(net.model.tensors)}", np.array(crops, np.int32))
    whole = _result(net, (images, *sizes, y.shape[3]), y)
    net.add("BATCH_TO_SPACE_ND", [y.index, net.ints(*block), table], whole)


def multiplied(net: TfliteNet) -> None:
    """Products along an axis, rarely: they are computed in float."""
    if net.chance(0.6):
        return
    x, axis = net.image(), net.pick((1, 2, 3))
    shape = tuple(n for i, n in enumerate(x.shape) if i != axis)
    y = net.tensor(shape, min(1e6, max(1e-6, (x.scale * 40) ** x.shape[axis] / 20)))
    net.add("REDUCE_PROD", [x.index, net.ints(axis)], y, keep_dims=False)
