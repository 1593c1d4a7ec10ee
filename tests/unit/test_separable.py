"""Depthwise and 1x1 convolution as one kernel: every blocking, and when the pass fuses the two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluate import difference, evaluate, random_inputs
from lowered import MACHINES, make_site, run_site
from tenon.machine.algorithms.separable import Separable
from tenon.machine.kernels.conv import OutputTile
from tenon.machine.kernels.strassen import StrassenBlocking
from tenon.machine.plan.lowering_context import Setting
from tenon.machine.proofs.bounds import prove
from tenon.network import passes
from tenon.network.graph.graph import Graph
from tenon.network.graph.types import F32, tensor
from tenon.network.ops.activation import Relu
from tenon.network.ops.conv import Conv
from tenon.network.ops.elementwise import Apply
from tenon.network.ops.fused import Fused
from tenon.network.ops.pointwise import Add
from tenon.network.ops.separable import SeparableConv
from tenon.tools.tune.search import jobs


@pytest.mark.parametrize("name", ["lanes4", "lanes1"])
@pytest.mark.parametrize(
    "blocking",
    [
        StrassenBlocking(0, 1, 2, 1, OutputTile(1, 2, 1)),
        StrassenBlocking(0, 4, 2, 2, OutputTile(2, 1, 2)),
        StrassenBlocking(1, 2, 2, 1, OutputTile(1, 2, 1)),
        StrassenBlocking(2, 4, 2, 1, OutputTile(1, 1, 1)),
    ],
)
def test_every_blocking(name: str, blocking: StrassenBlocking) -> None:
    relu, add = (Apply(Relu(), (0,)),), (Apply(Add(), (0, 1)),)
    first = Fused(Conv(group=16, pads=(1, 0, 1, 1), strides=(1, 2)), 3, relu)
    op = SeparableConv(first, Fused(Conv(), 3, add), 3)
    shapes = (1, 16, 4, 4), (16, 1, 3, 3), (16,), (16, 16, 1, 1), (16,), (1, 16, 4, 2)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    site = replace(make_site(op, arrays, MACHINES[name], (1, 2, 3, 4)), algorithm=Separable(blocking))
    for step in op.lower(site):
        prove(step.kernel)
    (result,) = run_site(op, site, arrays)
    truth = op.reference(*(a.astype(np.float64) for a in arrays))
    assert np.abs(result - truth).max() < 1e-5 * np.abs(truth).max()


def _pair(channels: int = 32, outs: int = 16, size: int = 50, *, shared: bool = False) -> Graph:
    """Relu (depthwise Conv (x)), then a 1x1 Conv and Relu of it."""
    graph, rng = Graph("pair"), np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        return rng.standard_normal(shape).astype(np.float32)

    x = graph.add_input("x", tensor(F32, 1, channels, size, size))
    kernel, sums = graph.constant("k", weights(channels, 1, 3, 3)), graph.constant("w", weights(outs, channels, 1, 1))
    a = graph.add(Conv(group=channels, pads=(1, 1, 1, 1)), [x, kernel], ["a"]).output
    b = graph.add(Relu(), [a], ["b"]).output
    c = graph.add(Conv(), [b, sums], ["c"]).output
    d = graph.add(Relu(), [c], ["d"]).output
    graph.outputs = [d, b] if shared else [d]
    return graph


def _joined(graph: Graph) -> bool:
    return any(isinstance(node.op, SeparableConv) for node in graph)


def test_pass_fuses_large_images_of_few_channels() -> None:
    graph = _pair()
    before = graph.copy()
    passes.optimize(graph, verify=True)
    assert _joined(graph)
    assert len(graph.nodes) == 1
    inputs = random_inputs(before)
    assert difference(evaluate(graph, inputs)["d"], evaluate(before, inputs)["d"]) < 1e-5


def test_it_has_candidates_before_layouts_are_known() -> None:
    """As for ``tenon tune`` and a budget of weights, which choose before planning."""
    graph = _pair()
    passes.optimize(graph)
    (job,) = jobs(graph, Setting(MACHINES["lanes4"]))
    assert len(job.candidates) > 1
    assert all(isinstance(each, Separable) for each in job.candidates)


@pytest.mark.parametrize("size", [51, 61])
def test_blocks_divide_images_of_odd_size(size: int) -> None:
    """No depthwise result lies below the image, where nothing can be read."""
    graph = _pair(size=size)
    passes.optimize(graph)
    (job,) = jobs(graph, Setting(MACHINES["lanes4"]))
    rows = [each.blocking.rows for each in job.candidates if isinstance(each, Separable)]
    assert rows
    assert all(size % each == 0 for each in rows)


@pytest.mark.parametrize(
    "graph",
    [_pair(outs=80), _pair(size=20), _pair(channels=24), _pair(shared=True)],
    ids=["many_channels", "small_image", "odd_channels", "read_twice"],
)
def test_pass_does_not_fuse_others(graph: Graph) -> None:
    passes.optimize(graph)
    assert not _joined(graph)
