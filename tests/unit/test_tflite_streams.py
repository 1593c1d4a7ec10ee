"""TFLM's streaming operators: graphs and compiled code compared with definitions by queues, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array, Graph
from tflite_models import Model

PIECES = 9

Outputs = list[Array | None]
"""None where TFLM leaves what lies in memory."""
Step = Callable[[Array], Outputs]


@dataclass(frozen=True)
class Stream:
    """An operator, the shape of its input blocks, and its definition."""

    type: str
    shape: tuple[int, ...]
    options: dict[str, int]
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    define: Callable[[], Step]
    dtype: str = "i16"

    def bytes(self) -> bytes:
        model = Model()
        x = model.tensor("x", self.shape, self.dtype)
        made = [model.tensor(f"y{i}", shape, dtype) for i, (shape, dtype) in enumerate(self.outputs)]
        model.add(self.type, [x], made, **self.options)
        return model.bytes([x], made)


def by_rows(step: Callable[[int], Callable[[Array], Outputs]], rows: int) -> Step:
    """A definition of one row for several."""
    each = [step(r) for r in range(rows)]

    def run(x: Array) -> Outputs:
        output = [one(row) for one, row in zip(each, x.reshape(rows, -1), strict=True)]
        first = [f[0] for f in output]
        return [None if any(f is None for f in first) else np.array(first), *output[0][1:]]

    return run


def delay(length: int) -> Step:
    def make(_: int) -> Step:
        queue = [0] * length

        def step(x: Array) -> Outputs:
            queue.extend(x.tolist())
            out, queue[:] = queue[: len(x)], queue[len(x) :]
            return [np.array(out)]

        return step

    return by_rows(make, 2)


def framer(size: int, distance: int, prefill: bool) -> Step:
    def make(_: int) -> Step:
        queue = [0] * (size - distance if prefill else 0)

        def step(x: Array) -> Outputs:
            frames, valid = [], True
            for i in range(0, len(x), distance):
                queue.extend(x[i : i + distance].tolist())
                if len(queue) < size:
                    valid = False
                    continue
                frames.append(queue[:size])
                del queue[:distance]
            return [np.array(frames) if valid else None, np.array(valid)]

        return step

    return by_rows(make, 2)


def stacker(left: int, right: int, distance: int) -> Step:
    queue: list[list[int]] = []
    begun = [False]

    def step(x: Array) -> Outputs:
        queue.extend([x.tolist()] * (1 if begun[0] else 1 + left))
        begun[0] = True
        if len(queue) < left + right + 1:
            return [None, np.array(False)]
        out = np.ravel(queue)
        del queue[:distance]
        return [out, np.array(True)]

    return step


def overlap_add(distance: int, size: int, limit: float) -> Step:
    def make(_: int) -> Step:
        kept = np.zeros(size)

        def step(x: Array) -> Outputs:
            made = []
            for frame in x.reshape(-1, size):
                total = np.clip(kept + frame, -limit - 1, limit)
                made += total[:distance].tolist()
                kept[:] = [*total[distance:], *[0] * distance]
            return [np.array(made)]

        return step

    return by_rows(make, 2)


def frames(size: int, distance: int, prefill: int, length: int) -> Stream:
    count = length // distance
    options = {"frame_size": size, "frame_step": distance, "prefill": prefill}
    outputs = (((2, count, size), "i16"), ((), "bool"))
    return Stream("SignalFramer", (2, length), options, outputs, lambda: framer(size, distance, bool(prefill)))


def stacks(left: int, right: int, distance: int) -> Stream:
    options = {
        "num_channels": 3,
        "stacker_left_context": left,
        "stacker_right_context": right,
        "stacker_step": distance,
    }
    outputs = (((3 * (left + right + 1),), "i16"), ((), "bool"))
    return Stream("SignalStacker", (3,), options, outputs, lambda: stacker(left, right, distance))


def sums(distance: int, dtype: str) -> Stream:
    limit = 32767 if dtype == "i16" else float("inf")
    outputs = (((2, 3 * distance), dtype),)
    options = {"T": 7, "frame_step": distance}
    return Stream("SignalOverlapAdd", (2, 3, 5), options, outputs, lambda: overlap_add(distance, 5, limit), dtype)


def delays(length: int) -> Stream:
    return Stream("SignalDelay", (2, 4), {"delay_length": length}, (((2, 4), "i16"),), lambda: delay(length))


STREAMS = {
    "delay 0": delays(0),
    "delay 3": delays(3),
    "delay 9": delays(9),
    "frames 5 by 2": frames(5, 2, 0, 4),
    "frames 5 by 2 after silence": frames(5, 2, 1, 4),
    "frames 6 by 2": frames(6, 2, 0, 2),
    "frames that touch": frames(2, 2, 0, 6),
    "frames 9 by 1": frames(9, 1, 0, 3),
    "stacks": stacks(1, 0, 1),
    "stacks of 4 by 2": stacks(1, 2, 2),
    "stacks of 3 by 3": stacks(0, 2, 3),
    "stacks of 1": stacks(0, 0, 1),
    "sums": sums(2, "i16"),
    "sums of floats": sums(3, "f32"),
    "sums that touch": sums(5, "i16"),
}


def blocks(stream: Stream) -> Iterator[Array]:
    """Input blocks with amplitudes that saturate sums."""
    rng = np.random.default_rng(11)
    for _ in range(PIECES):
        x = rng.integers(-30000, 30000, stream.shape)
        yield (x / 1000).astype(np.float32) if stream.dtype == "f32" else x.astype(np.int16)


def check(stream: Stream, graph: Graph, run: Callable[[dict[str, Array]], dict[str, Array]]) -> int:
    """Run all blocks, feeding states back; returns the number of outputs compared."""
    step, compared = stream.define(), 0
    states = {v.name: np.zeros(v.type.dims, v.type.dtype.numpy) for v in graph.inputs if v.name != "x"}
    for x in blocks(stream):
        output = run({"x": x, **states})
        states = {name: output[f"{name}_out"] for name in states}
        for i, expected in enumerate(step(x)):
            if expected is not None:
                compared += 1
                np.testing.assert_allclose(output[f"y{i}"], expected.reshape(output[f"y{i}"].shape), rtol=1e-6)
    return compared


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name: str) -> None:
    stream = STREAMS[name]
    graph = importers.load(stream.bytes())
    assert check(stream, graph, lambda feeds: evaluate(graph, feeds)) > PIECES // 2
    with tenon.open(tenon.compile(graph)) as engine:  # which keeps the states
        check(stream, graph, lambda feeds: engine.run({"x": feeds["x"]}))


def test_states_have_distinct_names() -> None:
    model = Model()
    x, y, z = (model.tensor(name, (2, 4), "i16") for name in "xyz")
    model.add("SignalDelay", [x], [y], delay_length=1)
    model.add("SignalDelay", [y], [z], delay_length=2)
    graph = importers.load(model.bytes([x], [z]))
    assert [v.name for v in graph.inputs] == ["x", "delay", "delay_2"]
    assert [v.name for v in graph.outputs] == ["z", "delay_out", "delay_2_out"]


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("delay 3", {"delay_length": -1}, "by -1"),
        ("frames 6 by 2", {"frame_step": 3}, "do not come from 2"),
        ("frames 6 by 2", {"frame_step": 0}, "0 apart"),
        ("stacks", {"num_channels": 4}, "times 4"),
        ("stacks", {"stacker_step": 3}, "3 apart"),
        ("sums", {"frame_step": 6}, "6 apart"),
    ],
)
def test_unsupported_forms_are_rejected(name: str, change: dict[str, int], match: str) -> None:
    stream = STREAMS[name]
    stream = Stream(stream.type, stream.shape, stream.options | change, stream.outputs, stream.define)
    with pytest.raises(UnsupportedError, match=match):
        importers.load(stream.bytes())
