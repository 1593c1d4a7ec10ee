"""The predicted speed-up of several threads: work items, calls that one thread runs, barriers, and weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tenon
import tenon.cli
from command_line import run_main
from onnx_models import model, node
from tenon.machine.codegen.threads import Sharing
from tenon.machine.kernels.parallel import parts_of_groups
from tenon.network.graph.graph import Array
from tenon.pipeline import inspect


def speed_up(text: bytes, threads: int) -> dict[int, float]:
    description, _ = inspect(text, threads=threads, target="x86-64-avx2", no_tuning=True)
    assert description.speed_up is not None
    return dict(description.speed_up)


def convolution(channels: int, extent: int) -> bytes:
    weights = np.ones((channels, channels, 1, 1), np.float32)
    x = [1, channels, extent, extent]
    return bytes(model([node("Conv", ["x", "w"], ["y"])], {"x": x}, ["y"], {"w": weights}).SerializeToString())


def test_much_work_is_divided_evenly() -> None:
    factors = speed_up(convolution(256, 64), 16)
    assert list(factors) == [1, 2, 4, 8, 16]
    assert factors[1] == 1.0
    assert all(0.8 * n < factor <= n for n, factor in factors.items())


def test_data_of_other_processors_takes_time() -> None:
    """Fewer products for each element that threads exchange, and more threads to meet, gain less."""
    fewer, more = (speed_up(convolution(channels, 64), 16) for channels in (64, 256))
    assert all(fewer[n] < more[n] for n in (2, 4, 8, 16))
    assert fewer[16] < 12 < 13 < more[16]


@pytest.mark.parametrize(
    ("image", "weights", "parts"),
    [
        (1 << 20, 1 << 10, 1),  # every thread reads all weights and its part of the image
        (1 << 10, 1 << 18, 8),  # the other way round
        (1 << 20, 1 << 19, 2),
        (1 << 30, 1 << 22, 8),  # of weights that do not stay in the cache, each reads its own
    ],
)
def test_threads_share_what_is_larger(image: int, weights: int, parts: int) -> None:
    assert parts_of_groups(8, image, weights, 16, 5.0) == parts
    assert parts_of_groups(8, image, weights, 1, 5.0) == 8


def test_other_numbers_of_threads_come_last() -> None:
    assert list(speed_up(convolution(128, 64), 6)) == [1, 2, 4, 6]


def test_small_kernels_gain_nothing() -> None:
    assert set(speed_up(convolution(8, 4), 8).values()) == {1.0}


def test_weights_arrive_no_faster_than_memory_gives_them() -> None:
    weights = np.ones((4096, 4096), np.float32)
    text = model([node("MatMul", ["x", "w"], ["y"])], {"x": [1, 4096]}, ["y"], {"w": weights}).SerializeToString()
    factors = speed_up(bytes(text), 16)
    assert 1 < factors[16] < 8


def test_threads_share_the_blocks_of_attention() -> None:
    """The queries of one case do not fill the last block."""
    nodes = [
        node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "t"], ["s"]),
        node("Softmax", ["s"], ["p"]),
        node("MatMul", ["p", "v"], ["y"]),
    ]
    text = bytes(model(nodes, {key: [1, 12, 197, 64] for key in "qkv"}, ["y"], {}).SerializeToString())
    calls = tenon.compile(text, target="x86-64-avx2").program.calls
    (attention,) = (call for call in calls if call.kernel.name.startswith("attention"))
    slices = Sharing(4).part(attention).slices
    assert slices is not None
    assert slices.length == 12 * 13


def test_what_one_thread_runs_limits_the_others() -> None:
    """A sum over time is a chain that no threads can share."""
    nodes = [node("CumSum", ["x", "axis"], ["s"]), node("Conv", ["s", "w"], ["y"])]
    constants: dict[str, Array] = {"axis": np.array(1, np.int64), "w": np.ones((64, 64, 1), np.float32)}
    alone = model(nodes[:1], {"x": [1, 64, 4096]}, ["s"], {"axis": constants["axis"]}).SerializeToString()
    both = model(nodes, {"x": [1, 64, 4096]}, ["y"], constants).SerializeToString()
    parts, whole = (speed_up(bytes(text), 16)[16] for text in (alone, both))
    assert parts <= whole < 16


def test_loops_count_all_their_iterations() -> None:
    """The recurrent product is too small for threads, and is all of the time in a long sequence."""
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=(1, 128, 32)).astype(np.float32), "r": np.ones((1, 128, 32), np.float32)}
    text = model([node("LSTM", ["x", "w", "r"], ["y"], hidden_size=32)], {"x": [200, 1, 32]}, ["y"], constants)
    assert speed_up(bytes(text.SerializeToString()), 8)[8] < 2


def test_the_command_prints_a_row_for_each_number(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (file := tmp_path / "net.onnx").write_bytes(convolution(128, 64))
    assert run_main(tenon.cli.main, ["inspect", str(file), "--threads", "4", "--target", "x86-64-avx2"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in lines[lines.index(["threads", "predicted", "speed-up"]) + 1 :][:3]] == ["1", "2", "4"]
    assert run_main(tenon.cli.main, ["inspect", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["speed_up"] is None
