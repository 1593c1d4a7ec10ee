"""Small networks whose extents a run decides, beside ONNX Runtime: as graphs and as C, at several sizes."""

from __future__ import annotations

import numpy as np
import pytest

import sized_networks
import tenon
from onnx_models import model, node, random
from sized_models import as_c, check, loaded
from tenon.errors import InputError, ShapeError
from tenon.machine.kernel_ir.loops import Bind, Loop
from tenon.network.graph.graph import Array
from tenon.network.graph.size_range import Size


def test_encoder() -> None:
    rng = np.random.default_rng(5)
    runs: list[tuple[dict[str, Array], dict[str, int]]] = []
    for n in (1, 5, 32):
        mask = (np.arange(n) < max(1, n - 2)).astype(np.int64).reshape(1, -1)
        runs.append(({"ids": rng.integers(0, 50, (1, n)), "mask": mask}, {"L": n}))
    graph = check(sized_networks.encoder(), {"L": Size("L", 1, 32)}, runs)
    assert not {"Shape", "Where", "Concat"} & {node.op.name for node in graph}  # nothing is left of shape arithmetic


def test_detector() -> None:
    rng = np.random.default_rng(5)
    runs = [
        ({"x": rng.uniform(-spread, spread, (1, 3, h, w)).astype(np.float32)}, {"H": h, "W": w})
        for h, w, spread in ((32, 32, 2), (96, 64, 0.5), (64, 96, 4))
    ]
    check(sized_networks.detector(), {"H": Size("H", 32, 96, 32), "W": Size("W", 32, 96, 32)}, runs)


def test_cascade() -> None:
    rng = np.random.default_rng(5)
    runs: list[tuple[dict[str, Array], dict[str, int]]] = [
        ({"x": rng.uniform(-k, k, (1, 3, 26, 22)).astype(np.float32)}, {}) for k in (0.2, 1, 4)
    ]
    check(sized_networks.cascade(), {}, runs)


def test_speech() -> None:
    """The number of frames follows from the durations that the network finds for its symbols."""
    rng = np.random.default_rng(5)
    runs = [({"ids": rng.integers(0, 30, (1, n)), "length": np.array([n])}, {"L": n}) for n in (1, 3, 9, 16)]
    check(sized_networks.speech(), {"L": Size("L", 1, 16)}, runs, max={"frames": 60})


def test_unbounded_frames() -> None:
    """Without a largest number of frames the model is refused, and a run that has more of them ends with an error."""
    model = sized_networks.speech()
    with pytest.raises(ShapeError, match=r"--max frames=N"):
        loaded(model, {"L": Size("L", 1, 16)})
    graph = loaded(model, {"L": Size("L", 1, 16)}, max={"frames": 3})
    rng = np.random.default_rng(5)
    with pytest.raises(InputError, match="--max"):
        as_c(graph, [({"ids": rng.integers(0, 30, (1, 16)), "length": np.array([16])}, {"L": 16})])


@pytest.mark.parametrize(
    ("kernel", "pad", "channels", "algorithm"),
    [(3, 1, 32, "winograd"), (3, 0, 32, "winograd"), (5, 2, 32, "winograd"), (1, 0, 256, "strassen")],
)
def test_what_lies_beyond_the_extents_of_images(kernel: int, pad: int, channels: int, algorithm: str) -> None:
    """Tiles of Winograd's algorithm reach beyond the extents, and so do blocks of Strassen's: what they add there and
    subtract again must be finite."""
    around = [pad] * 4
    weights = {f"w{i}": random(channels, channels, kernel, kernel, seed=i) / channels for i in range(2)}
    nodes = [node("Conv", ["x", "w0"], ["a"], pads=around), node("Conv", ["a", "w1"], ["y"], pads=around)]
    net = model(nodes, {"x": [1, channels, "H", "W"]}, ["y"], weights)
    shapes = {"H": Size("H", 5, 20), "W": Size("W", 5, 40)}
    bundle = tenon.compile(loaded(net, shapes), no_tuning=True)
    assert sum(algorithm in call.kernel.name for call in bundle.program.calls) >= 2
    runs = [({"x": random(1, channels, h, w)}, {"H": h, "W": w}) for h, w in ((7, 13), (6, 33), (5, 21))]
    check(net, shapes, runs)


@pytest.mark.parametrize("most", [1216, 1218])
def test_tiles_of_signals_end_at_extents(most: int) -> None:
    """The last tile of four positions may be a part of one."""
    weights = {f"w{i}": random(64, 64, 1, 3, seed=i) / 64 for i in range(2)}
    nodes = [node("Conv", ["x", "w0"], ["a"], pads=[0, 1] * 2), node("Conv", ["a", "w1"], ["y"], pads=[0, 1] * 2)]
    net = model(nodes, {"x": [1, 64, 1, "N"]}, ["y"], weights)
    shapes = {"N": Size("N", 1, most)}
    bundle = tenon.compile(loaded(net, shapes), no_tuning=True)
    kernels = [call.kernel for call in bundle.program.calls if "winograd" in call.kernel.name]
    assert len(kernels) == 2
    for kernel in kernels:
        (bound,) = kernel.body
        assert isinstance(bound, Bind)
        (blocks,) = bound.body
        assert isinstance(blocks, Loop)
        assert len(blocks.var.below) == 2
    check(net, shapes, [({"x": random(1, 64, 1, n)}, {"N": n}) for n in (1, 7, most - 1, most)])


def test_residual_blocks_copy_nothing() -> None:
    """The sum at the end of a block reads what a Mask has filled for the block's first convolution; strides too."""
    kernels = {"w0": (1, 1), "w1": (1, 1), "w2": (3, 3), "w3": (3, 3), "w4": (1, 1)}
    weights = {name: random(128, 128, *kernel, seed=i) / 64 for i, (name, kernel) in enumerate(kernels.items())}
    nodes = [
        node("Conv", ["x", "w0"], ["start"]),
        node("Conv", ["start", "w1"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w2"], ["c"], pads=[1] * 4),
        node("Add", ["c", "start"], ["d"]),
        node("Relu", ["d"], ["e"]),
        node("Conv", ["e", "w3"], ["f"], pads=[1] * 4, strides=[2, 2]),
        node("Conv", ["e", "w4"], ["g"], strides=[2, 2]),
        node("Add", ["f", "g"], ["y"]),
    ]
    net = model(nodes, {"x": [1, 128, "H", "W"]}, ["y"], weights)
    shapes = {"H": Size("H", 2, 32, step=2), "W": Size("W", 2, 24, step=2)}
    bundle = tenon.compile(loaded(net, shapes), no_tuning=True)
    names = [call.kernel.name for call in bundle.program.calls]
    assert names.count("reorder") <= 3  # of the input and the output
    runs = [({"x": random(1, 128, h, w)}, {"H": h, "W": w}) for h, w in ((2, 24), (10, 8), (26, 22), (32, 4))]
    check(net, shapes, runs)
