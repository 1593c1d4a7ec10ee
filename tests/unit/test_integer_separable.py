"""Depthwise and 1x1 convolutions of bytes in one launch: exact results, proofs, and what is joined."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from check_kernels import check
from lowered import GPU, MACHINES, Ask, make_site, run_site
from tenon.machine.algorithms.base import Limits
from tenon.machine.algorithms.integer_separable import IntegerSeparable
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.kernels.integer_staged import WordTile
from tenon.machine.proofs.bounds import prove
from tenon.network import passes
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import DType, tensor
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.integer_conv_cases import conv_case, with_added
from tenon.network.ops.separable import SeparableConv
from tenon.network.passes.separable import separable


def pair(
    kernel: tuple[int, int] = (3, 3),
    stride: int = 1,
    rounding: Any = "double",
    *,
    channels: tuple[int, int] = (20, 12),
    size: tuple[int, int, int] = (2, 5, 8),
    added: bool = False,
) -> tuple[SeparableConv, list[Array | None]]:
    """The operator and its operands, random ones whose results span the whole range."""
    rng, (between, last), (n, h, w) = np.random.default_rng(7), channels, size
    window = {"group": between, "pads": (kernel[0] // 2, kernel[1] // 2) * 2, "strides": (stride, stride)}
    first = conv_case(IntegerConv, rng, "d", (n, between, h, w), (between, 1, *kernel), window, rounding, np.int8)
    rows, cols = ((extent - 1) // stride + 1 for extent in (h, w))
    image = (n, between, rows, cols)
    second = conv_case(IntegerConv, rng, "p", image, (last, between, 1, 1), {}, rounding, np.int8)
    second = with_added(second, rng) if added else second
    op = SeparableConv(first.op, second.op, len(first.inputs))
    return op, [*first.inputs, *second.inputs[1:]]  # type: ignore[list-item]


TILES = {
    "in steps": IntegerSeparable(WordTile(32, 16, 8, 16, 16, 1, 2), 2),
    "rows of four": IntegerSeparable(WordTile(64, 16, 8, 32, 16, 1, 3), 4),
    "in one step": IntegerSeparable(WordTile(32, 32, 16, 16, 16, 1, 2), 1),
}


@pytest.mark.parametrize(
    ("name", "kernel", "stride", "rounding", "added"),
    [
        ("in steps", (3, 3), 1, "double", False),
        ("in one step", (5, 5), 2, "float", False),
        pytest.param("rows of four", (3, 3), 1, "single", False, marks=pytest.mark.slow),
        ("rows of four", (3, 5), 1, "float", True),
    ],
)
def test_results_are_exact(name: str, kernel: tuple[int, int], stride: int, rounding: str, added: bool) -> None:
    """Both images have halos; a tensor may be added to the sums of the second."""
    op, arrays = pair(kernel, stride, rounding, added=added)
    ask, other = Ask(blocked=True, surplus=1), len(arrays) - 2
    constant = tuple(i for i, a in enumerate(arrays) if i and a is not None and not (added and i == other))
    site = replace(make_site(op, arrays, GPU, constant, ask), algorithm=TILES[name])
    (step,) = op.lower(site)
    assert prove(step.kernel) > 0
    groups = work_groups(step.kernel)
    assert groups is not None
    assert groups.size == TILES[name].tile.threads
    (result,), (expected,) = run_site(op, site, arrays, ask), op.evaluate(arrays)
    assert len(np.unique(expected)) > 50
    np.testing.assert_array_equal(result, expected)


def test_the_second_check_accepts_what_is_proved() -> None:
    """It evaluates every iteration, so that it is for small kernels."""
    op, arrays = pair(channels=(8, 8), size=(1, 4, 8))
    site = make_site(op, arrays, GPU, tuple(range(1, len(arrays))), Ask(blocked=True))
    (step,) = op.lower(replace(site, algorithm=TILES["in steps"]))
    assert check(show(step.kernel)) > 0


def joined(channels: tuple[int, int], size: int, machine: Any = GPU, **changes: object) -> bool:
    """Whether the pass makes one operator of a pair."""
    op, (x, *arrays) = pair(channels=channels, size=(1, size, size))
    first, second, graph = op.first, replace(op.second, **changes), Graph("pair")
    assert x is not None
    case = graph.add_input("x", tensor(DType.I8, *x.shape))
    values = [None if a is None else graph.constant(f"c{i}", a) for i, a in enumerate(arrays)]
    between = graph.add(first, [case, *values[: op.count - 1]], ["a"]).output
    graph.outputs = [graph.add(second, [between, *values[op.count - 1 :]], ["b"]).output]
    passes.optimize(graph, pairs=separable(machine))
    return any(isinstance(node.op, SeparableConv) for node in graph)


def test_the_pass_joins_pairs_that_take_less_time_in_one_launch() -> None:
    assert joined((32, 64), 112)
    assert not joined((512, 512), 14)  # blocks of other output channels compute the same again
    assert not joined((32, 64), 112, MACHINES["lanes4"])
    assert not joined((32, 64), 112, replace(GPU, launch=Launch()))  # without asynchronous copies
    assert not joined((32, 64), 112, w_zero=1)


def test_estimates_decide() -> None:
    op, arrays = pair(channels=(32, 64), size=(1, 112, 112))
    site = make_site(op, arrays, GPU, tuple(range(1, len(arrays))), Ask(blocked=True))
    problem = op.problem(site)
    listed = IntegerSeparable.candidates(problem, GPU, Limits(), 8)
    times = [each.cost(problem, GPU).time for each in listed]
    assert times
    assert times == sorted(times)
    assert not IntegerSeparable.applies(problem[:1], GPU)
