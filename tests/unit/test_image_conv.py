"""Images that a convolution of bytes quantises when it reads them: one operator on devices, the same bits as two."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evaluate import evaluate
from interpret import interpret
from lowered import GPU, MACHINES, make_site, run_lowered, run_site
from operator_cases import NAMED
from tenon.errors import ShapeError
from tenon.machine.algorithms import registry
from tenon.machine.algorithms.base import Limits
from tenon.machine.algorithms.integer_patches import IntegerPatches
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.spaces import Launch
from tenon.machine.kernels.integer_patches import ImagePatch, PatchTile, paired
from tenon.machine.kernels.machine import Machine
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import F32, tensor
from tenon.network.ops.image_conv import IntegerImageConv
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.quantize import QuantizeLinear
from tenon.network.passes.base import run as run_pass
from tenon.network.passes.separable import separable

NAMES = [name for name in NAMED if name.startswith("IntegerImageConv-")]
TILES = [PatchTile(2, 1, 16), PatchTile(4, 1, 32), PatchTile(4, 2, 16), PatchTile(8, 4, 16), PatchTile(16, 2, 16)]


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}-{tile.own}-{tile.n}")
@pytest.mark.parametrize("name", NAMES)
def test_every_tile_gives_the_same_bits(name: str, tile: PatchTile) -> None:
    """Blocks of several rows that reach past the last one, and of more channels than there are."""
    case = NAMED[name]

    def execute(kernel: Kernel, operands: list[Array]) -> None:
        assert prove(kernel) > 0
        interpret(kernel, operands)

    site = replace(make_site(case.op, case.arrays(), GPU, case.constant), algorithm=IntegerPatches(tile))
    (got,) = run_site(case.op, site, case.arrays(), execute=execute)
    np.testing.assert_array_equal(got, case.op.evaluate(case.arrays())[0])
    assert registry.parse(IntegerPatches(tile).key) == IntegerPatches(tile)


@pytest.mark.parametrize("name", NAMES)
def test_tiles_are_chosen_by_their_time(name: str) -> None:
    """Blocks of as many threads as the machine runs, whose patch and weights fit into shared memory."""
    case = NAMED[name]
    site = make_site(case.op, case.arrays(), GPU, case.constant)
    assert isinstance(case.op, IntegerImageConv)
    problem, space = case.op.problem(site), GPU.space("shared")
    assert problem is not None
    assert space is not None
    listed = IntegerPatches.candidates((problem,), GPU, Limits(), registry.EVERY)
    assert len(listed) > 4
    for each in listed:
        assert ImagePatch.of(paired(problem), each.tile).shared(each.tile) <= space.bytes
        assert 64 <= each.tile.threads <= 256
    times = [each.cost((problem,), GPU).time for each in listed]
    assert times == sorted(times)
    assert registry.candidates((problem,), GPU, Limits())[0] == listed[0]
    assert not IntegerPatches.applies((replace(problem, image_scale=0.0),), GPU)


def network(zero: int = -128, ties: str = "even", point: int = -128) -> tuple[Graph, Array]:
    """QuantizeLinear of an image, and a convolution of it that takes ``point`` for the zero point."""
    rng, graph = np.random.default_rng(3), Graph("net")
    x = graph.add_input("x", tensor(F32, 1, 3, 14, 18))
    numbers = [graph.constant("scale", np.array(0.03, np.float32)), graph.constant("zero", np.array(zero, np.int8))]
    image = graph.add(QuantizeLinear("i8", ties=ties), [x, *numbers], ["image"]).output
    arrays = {
        "w": rng.integers(-127, 128, (8, 3, 3, 3), np.int8),
        "b": rng.integers(-999, 999, 8, np.int32),
        "factors": rng.uniform(0.001, 0.002, 8).astype(np.float32),
    }
    op = IntegerConv("float", x_zero=point, scale=0.5, pads=(1,) * 4, strides=(2, 2))
    given = [image, *(graph.constant(name, array) for name, array in arrays.items())]
    graph.outputs = [graph.add(op, given, ["y"]).output]
    return graph, rng.standard_normal((1, 3, 14, 18)).astype(np.float32) * 3


def test_a_pass_makes_one_operator_for_devices() -> None:
    graph, x = network()
    expected = evaluate(graph, {"x": x})["y"]
    assert run_pass(graph, separable(GPU), verify=True) == 1
    (node,) = graph
    assert isinstance(node.op, IntegerImageConv)
    assert node.op.image_scale == float(np.float32(0.03))
    np.testing.assert_array_equal(evaluate(graph, {"x": x})["y"], expected)
    values = [None if v is None else v.data if v.constant else x for v in node.inputs]
    (got,) = run_lowered(node.op, values, GPU, (1, 2, 3))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "machine",
    [MACHINES["lanes8"], replace(GPU, launch=Launch()), replace(GPU, products=())],
    ids=["processor", "no asynchronous copies", "no matrix unit"],
)
def test_others_keep_two(machine: Machine) -> None:
    graph, _ = network()
    assert run_pass(graph, separable(machine)) == 0


def test_what_is_rounded_otherwise_stays_apart() -> None:
    for graph, _ in (network(ties="away"), network(point=-127)):
        assert run_pass(graph, separable(GPU)) == 0


def test_an_image_that_is_read_again_stays_in_memory() -> None:
    graph, _ = network()
    graph.outputs = [*graph.outputs, next(iter(graph)).output]
    assert run_pass(graph, separable(GPU)) == 0


def test_integers_are_no_image_to_quantise() -> None:
    case = NAMED[NAMES[0]]
    x, *rest = case.arrays()
    assert x is not None
    with pytest.raises(ShapeError, match="not an image of f32"):
        make_site(case.op, [x.astype(np.int8), *rest], GPU, case.constant)
