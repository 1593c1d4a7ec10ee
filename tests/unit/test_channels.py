"""Channels of integer networks that no result depends on are removed, and only those."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.types import DType, Quant, TensorType
from tenon.network.graph.verify import verify
from tenon.network.ops.integer_arithmetic import IntegerAdd
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_gemm import IntegerGemm
from tenon.network.ops.integer_lookup import Lookup
from tenon.network.ops.integer_pool import IntegerAveragePool
from tenon.network.ops.pool import MaxPool
from tenon.network.ops.requantize import quantized_multiplier, quantized_multipliers
from tenon.network.passes import optimize
from tenon.network.passes.base import run
from tenon.network.passes.channels import CHANNELS, WHOLE

ZERO = -5
"""The zero point of every activation."""


class Network:
    """A chain of integer operators, of which some channels are constants."""

    def __init__(self, seed: int, channels: int = 3, size: int = 5) -> None:
        self.count = 0
        self.rng, self.graph = np.random.default_rng(seed), Graph("net")
        self.x = self.graph.add_input(
            "x", TensorType(DType.I8, (1, channels, size, size), quant=Quant((0.5,), (ZERO,)))
        )

    def add(self, op: object, *inputs: Value) -> Value:
        name = f"v{len(self.graph.nodes)}"
        y = self.graph.add(op, inputs, [name], Origin("", name, type(op).__name__)).output  # type: ignore[arg-type]
        y.type = replace(y.type, quant=Quant((0.5,), (ZERO,)))
        return y

    def constants(self, *arrays: Array) -> list[Value]:
        self.count += len(arrays)
        return [self.graph.constant(f"c{self.count - i}", a) for i, a in enumerate(arrays)]

    def factors(self, count: int, inputs: int) -> tuple[Array, Array]:
        return quantized_multipliers((self.rng.uniform(0.5, 2, count) / (60 * np.sqrt(inputs))).tolist())

    def conv(
        self,
        x: Value,
        outs: int,
        dead: Array | None = None,
        value: int = ZERO,
        *,
        kernel: int = 1,
        pad: int = 0,
        depthwise: bool = False,
        low: int = -128,
    ) -> Value:
        """A convolution whose ``dead`` channels are ``value``: they have no weights."""
        channels = x.type.dims[1]
        weights = self.rng.integers(-127, 128, (outs, 1 if depthwise else channels, kernel, kernel)).astype(np.int8)
        multipliers, shifts = self.factors(outs, channels * kernel * kernel)
        bias = self.rng.integers(-3000, 3000, outs).astype(np.int32)
        if dead is not None:
            weights[dead] = 0
            multipliers[dead], shifts[dead] = 1 << 30, 1  # a factor of one
            bias[dead] = value - ZERO
        op = IntegerConv(
            "double", ZERO, zero=ZERO, low=low, group=channels if depthwise else 1, pads=(pad,) * 4, scale=0.5
        )
        return self.add(op, x, *self.constants(weights, bias, multipliers, shifts))

    def gemm(self, x: Value, outs: int) -> Value:
        deep = int(np.prod(x.type.dims[1:]))
        weights = self.rng.integers(-127, 128, (outs, deep)).astype(np.int8)
        bias = self.rng.integers(-3000, 3000, outs).astype(np.int32)
        op = IntegerGemm("double", ZERO, zero=ZERO, scale=0.5)
        return self.add(op, x, *self.constants(weights, bias, *self.factors(outs, deep)))

    def checked(self, *results: Value) -> list[list[int]]:
        """The channels of all results of the graph without removed ones, whose answers are those of the given one."""
        self.graph.outputs = list(results)
        verify(self.graph)
        smaller = self.graph.copy()
        run(smaller, CHANNELS, verify=True)
        verify(smaller)
        for _ in range(3):
            feeds = {"x": self.rng.integers(-128, 128, self.x.type.dims).astype(np.int8)}
            expected, got = evaluate(self.graph, feeds), evaluate(smaller, feeds)
            assert list(expected) == list(got)
            for name, array in expected.items():
                np.testing.assert_array_equal(got[name], array)
        return [[node.output.type.dims[1]] for node in smaller]


def dead(count: int, *channels: int) -> Array:
    mask = np.zeros(count, bool)
    mask[list(channels)] = True
    return mask


def widths(shapes: list[list[int]]) -> list[int]:
    return [width for (width,) in shapes]


@pytest.mark.parametrize(("value", "pad", "left"), [(ZERO, 1, 8), (ZERO, 0, 8), (17, 0, 8), (17, 1, 12)])
def test_constants_move_into_the_bias(value: int, pad: int, left: int) -> None:
    """With padding, the border sees the zero point: other constants stay."""
    net = Network(1)
    y = net.conv(net.x, 12, dead(12, 0, 2, 5, 11), value)
    assert widths(net.checked(net.conv(y, 4, kernel=3, pad=pad))) == [left, 4]


@pytest.mark.parametrize(("value", "low", "left"), [(ZERO, -128, 8), (17, -128, 12), (17, 120, 8)])
def test_depthwise_convolutions_lose_constants_that_reach_the_border(value: int, low: int, left: int) -> None:
    """A constant other than the zero point gives other sums at the border, unless they are clamped to one result."""
    net = Network(2)
    y = net.conv(net.x, 12, dead(12, 1, 2, 3, 4), value)
    y = net.conv(y, 12, kernel=3, pad=1, depthwise=True, low=low)
    channels = widths(net.checked(net.conv(y, 4)))
    assert channels[:2] == [left, left] if low == -128 else channels[0] <= left


def test_channels_that_nothing_reads_are_removed() -> None:
    """All weights of the reader are zero for them, also through a depthwise convolution and a table."""
    net = Network(3)
    y = net.conv(net.x, 12)
    y = net.conv(y, 12, kernel=3, pad=1, depthwise=True)
    y = net.add(Lookup(0.5, ZERO), y, *net.constants(net.rng.permutation(np.arange(-128, 128)).astype(np.int8)))
    z = net.conv(y, 4)
    z.producer.input(1).array[:, 4:8] = 0  # type: ignore[union-attr]
    assert widths(net.checked(z)) == [8, 8, 8, 4]


def test_a_sum_loses_what_both_operands_lose() -> None:
    same = quantized_multiplier(0.5)
    factors = (same, same, quantized_multiplier(2.0**-19))
    add = IntegerAdd("double", (ZERO, ZERO, ZERO), factors=factors, scales=(0.5, 0.5, 0.5))
    net = Network(4)
    a, b = net.conv(net.x, 12, dead(12, *range(8))), net.conv(net.x, 12, dead(12, *range(4, 12)))
    assert widths(net.checked(net.conv(net.add(add, a, b), 4))) == [8, 8, 8, 4]


def test_results_of_the_network_and_their_order_stay() -> None:
    net = Network(5)
    y = net.conv(net.x, 8, dead(8, *range(8)))
    assert widths(net.checked(y, net.conv(y, 4))) == [8, 4]
    net = Network(6)
    y = net.conv(net.x, 8, dead(8, *range(8)))
    assert widths(net.checked(net.conv(y, 4))) == [WHOLE, 4]


def test_products_of_images_and_of_rows() -> None:
    net = Network(7)
    y = net.conv(net.x, 8, dead(8, 0, 1, 2, 3), 50)
    assert widths(net.checked(net.gemm(y, 3))) == [4, 3]
    net = Network(8)
    y = net.add(
        IntegerAveragePool("away", (5, 5), x_zero=ZERO, zero=ZERO, scale=0.5),
        net.conv(net.x, 8, dead(8, 0, 1, 2, 3), 50),
    )
    assert widths(net.checked(net.gemm(y, 3))) == [4, 4, 3]


def test_pipeline_removes_them() -> None:
    net = Network(9)
    y = net.conv(net.x, 8, dead(8, 0, 1, 2, 3))
    net.graph.outputs = [net.conv(y, 4)]
    optimize(net.graph)
    assert [node.output.type.dims[1] for node in net.graph] == [4, 4]


def random_network(seed: int) -> tuple[Network, Value]:
    net = Network(seed, size=6)
    rng, y, wide = net.rng, net.x, int(net.rng.choice([4, 6, 8, 12]))
    y = net.conv(y, wide, rng.random(wide) < 0.5, int(rng.choice([ZERO, 20])))
    for _ in range(rng.integers(2, 6)):
        value, low = int(rng.choice([ZERO, ZERO, 20, -100])), int(rng.choice([-128, ZERO, 40]))
        match rng.integers(0, 6):
            case 0:
                y = (
                    net.conv(y, wide, rng.random(wide) < 0.4, value, kernel=3, pad=int(rng.integers(0, 2)), low=low)
                    if y.type.dims[2] > 3
                    else y
                )
            case 1:
                y = net.conv(y, wide, rng.random(wide) < 0.3, value, kernel=3, pad=1, depthwise=True, low=low)
            case 2:
                y = net.conv(y, wide, rng.random(wide) < 0.4, value, low=low)
            case 3:
                z = net.conv(y, wide, rng.random(wide) < 0.6, value, low=low)
                y = net.add(IntegerAdd("float", (ZERO, ZERO, ZERO), scales=(0.5, 0.5, 0.5)), y, z)
            case 4:
                y = net.add(Lookup(0.5, ZERO), y, *net.constants(rng.integers(-128, 128, 256).astype(np.int8)))
            case _:
                kind = (
                    IntegerAveragePool("away", (3, 3), (1,) * 4, x_zero=ZERO, zero=ZERO, scale=0.5)
                    if rng.random() < 0.5
                    else None
                )
                y = net.add(kind or MaxPool(kernel_shape=(3, 3), pads=(1,) * 4), y)
    return net, net.gemm(y, 3)


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 2000), marks=pytest.mark.slow)], ids=["", "all"])
def test_random_networks_give_the_same_answers(seeds: range) -> None:
    smaller = 0
    for seed in seeds:
        net, y = random_network(seed)
        before = [node.output.type.dims[1] for node in net.graph]
        smaller += sum(widths(net.checked(y))) < sum(before)
    assert smaller > len(seeds) // 4
