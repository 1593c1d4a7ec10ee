"""MACE's operators of speech models, which come from Kaldi: frames are the last but one axis, numbers the last.

Definitions: mace/ops of XiaoMi/mace, and the components of the same names in Kaldi's nnet3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.mace.node import MaceNode
from tenon.network.graph.graph import Value

MAX_FRAMES = 4096
"""Frames that a recurrent layer may be unrolled to."""


def _frames(node: MaceNode, x: Value, numbers: Sequence[int]) -> Value:
    """Frames by index."""
    count = node.builder.dims(x)[-2]
    if not numbers or not all(0 <= i < count for i in numbers):
        raise RefusedError(f"needs the frames {list(numbers)} of {count}")
    return node.add("Gather", x, np.array(numbers, np.int64), axis=-2)


def subsample(node: MaceNode) -> Value:
    return _frames(node, node.x, node.integers("forward_indexes"))


def if_defined(node: MaceNode) -> Value:
    """Frames by a list of indices; where that is negative those of the second input, or zeros."""
    numbers, before = node.integers("forward_indexes"), node.integers("cache_forward_indexes")
    missing = sum(i < 0 for i in numbers)
    *outer, count, width = node.dims
    if any(i >= 0 for i in numbers[:missing]) or len(numbers) > count:
        raise RefusedError(f"the frames {numbers} of {count} are not supported")
    parts = [_frames(node, node.input(1), before[:missing])] if len(node.inputs) > 1 and before else []
    filled = len(before[:missing]) if parts else 0
    blank = np.zeros((*outer, missing - filled, width), np.float32)
    rest = [_frames(node, node.x, numbers[missing:])] if numbers[missing:] else []
    tail = np.zeros((*outer, count - len(numbers), width), np.float32)
    pieces = [*parts, *([node.value(blank)] if blank.size else []), *rest, *([node.value(tail)] if tail.size else [])]
    return node.add("Concat", *pieces, axis=-2)


def splice(node: MaceNode) -> Value:
    """Splice: each frame concatenated with its neighbours; the constant part of a frame is appended once, at the
    end."""
    around, fixed = len(node.integers("context")), node.integer("const_component_dim")
    numbers, width = node.integers("forward_indexes"), node.dims[-1]
    if not around or len(numbers) % around or not 0 <= fixed < width:
        raise RefusedError(f"{len(numbers)} frames do not make windows of {around}")
    moving = node.slice(node.x, [0], [width - fixed], [-1]) if fixed else node.x
    count = len(numbers) // around
    x = node.reshape(_frames(node, moving, numbers), *node.dims[:-2], count, around * (width - fixed))
    if not fixed:
        return x
    still = _frames(node, node.slice(node.x, [width - fixed], [width], [-1]), node.integers("forward_const_indexes"))
    return node.add("Concat", x, still, axis=-1)


def pad_context(node: MaceNode) -> Value:
    """The first and the last frame repeated."""
    widths = [0] * (2 * len(node.dims))
    widths[len(node.dims) - 2], widths[-2] = node.integer("left_context"), node.integer("right_context")
    return node.add("Pad", node.x, node.ints(*widths), mode="edge")


def group_lengths(node: MaceNode) -> Value:
    """PNorm: the length of every group of numbers by the norm p."""
    p, groups = node.integer("p", 2), node.integer("output_dim")
    if p not in (0, 1, 2) or groups < 1 or node.dims[-1] % groups:
        raise RefusedError(f"{groups} groups of {node.dims[-1]} by the norm {p} are not supported")
    x = node.reshape(node.x, *node.dims[:-1], groups, node.dims[-1] // groups)
    if p:
        return node.add("ReduceL1" if p == 1 else "ReduceL2", x, node.ints(-1), keepdims=0)
    there = node.add("Cast", node.add("Greater", node.add("Abs", x), float(np.finfo(np.float32).eps)), to="f32")
    return node.add("ReduceSum", there, node.ints(-1), keepdims=0)


def target_rms(node: MaceNode) -> Value:
    """Blocks scaled to a root mean square; its logarithm may follow each."""
    target, width = node.number("target_rms", 1.0), node.dims[-1]
    block = node.integer("block_dim") or width
    if block < 1 or width % block or target <= 0:
        raise RefusedError(f"blocks of {block} of {width} scaled to {target:g} are not supported")
    x = node.reshape(node.x, *node.dims[:-1], width // block, block)
    share = node.add("Mul", node.add("ReduceSumSquare", x, node.ints(-1), keepdims=1), 1 / (block * target * target))
    root = node.add("Sqrt", node.add("Max", share, 1e-6))
    y = node.add("Div", x, root)
    if node.integer("add_log_stddev"):
        y = node.add("Concat", y, node.add("Add", node.add("Log", root), math.log(target)), axis=-1)
    return node.reshape(y, *node.dims[:-1], -1)


def batch_norm(node: MaceNode) -> Value:
    """Kaldi's batch normalisation: blocks scaled and shifted, by stored or by own statistics."""
    width = node.dims[-1]
    block = node.integer("block_dim", -1)
    block = width if block == -1 else block
    if block < 1 or width % block:
        raise RefusedError(f"blocks of {block} of {width} are impossible")
    x = node.reshape(node.x, -1, block)
    if node.integer("test_mode"):
        return node.reshape(node.add("Add", node.add("Mul", x, node.input(1)), node.input(2)), *node.dims)
    x = node.add("Sub", x, node.add("ReduceMean", x, node.ints(0), keepdims=1))
    variance = node.add("ReduceMean", node.add("Mul", x, x), node.ints(0), keepdims=1)
    deviation = node.add("Sqrt", node.add("Add", variance, node.number("epsilon", 1e-3)))
    return node.reshape(node.add("Mul", node.add("Div", x, deviation), node.number("target_rms", 1.0)), *node.dims)


def sum_group(node: MaceNode) -> Value:
    counts = [int(n) for n in node.input(1).array.ravel()]
    rest = node.dims[-1] - sum(counts)
    parts = node.split(node.x, len(node.dims) - 1, [*counts, *([rest] if rest else [])])[: len(counts)]
    return node.add("Concat", *(node.add("ReduceSum", part, node.ints(-1), keepdims=1) for part in parts), axis=-1)


def statistics(node: MaceNode) -> Value:
    """ExtractPooling: the mean (and deviation) of the frames of every window, behind the logarithms of their counts."""
    bounds, counts = node.integers("forward_indexes"), node.numbers("counts")
    if not counts or len(bounds) != 2 * len(counts) or len(counts) > MAX_FRAMES:
        raise RefusedError(f"{len(bounds)} bounds do not make {len(counts)} windows")
    rows = []
    for i, (a, b) in enumerate(zip(bounds[::2], bounds[1::2], strict=True)):
        x = node.slice(node.x, [a], [b], [-2])
        mean = node.add("ReduceMean", x, node.ints(-2), keepdims=1)
        logs = np.full((*node.dims[:-2], 1, node.integer("num_log_count")), math.log(counts[i]), np.float32)
        row = [node.value(logs), mean] if logs.size else [mean]
        if node.integer("include_variance"):
            apart = node.add("Sub", x, mean)
            variance = node.add("ReduceMean", node.add("Mul", apart, apart), node.ints(-2), keepdims=1)
            row.append(node.add("Sqrt", node.add("Max", variance, node.number("variance_floor", 1e-10))))
        rows.append(node.add("Concat", *row, axis=-1) if len(row) > 1 else mean)
    return node.add("Concat", *rows, axis=-2)


def _cell(node: MaceNode, gates: Value, memory: Value, peepholes: Value, scales: Value | None) -> tuple[Value, Value]:
    """Kaldi's LSTM: gates [.., 4 C] input, forget, cell, output; the previous cell state, [.., C]; three peepholes,
    [3, C]; factors of input, forget and output [.., 3].  Gives the memory and the cell's output."""
    axis, size = len(node.builder.dims(gates)) - 1, node.builder.dims(memory)[-1]
    i, f, g, o = node.split(gates, axis, [size] * 4)
    peeps = [node.add("Gather", peepholes, np.array(k, np.int64), axis=0) for k in range(3)]
    factors = node.split(scales, axis, [1, 1, 1]) if scales is not None else (None,) * 3

    def gate(own: Value, seen: Value, k: int) -> Value:
        opened = node.add("Sigmoid", node.add("Add", own, node.add("Mul", seen, peeps[k])))
        factor = factors[k]
        return opened if factor is None else node.add("Mul", opened, factor)

    memory_by_delay, new = (
        node.add("Mul", gate(f, memory, 1), memory),
        node.add("Mul", gate(i, memory, 0), node.add("Tanh", g)),
    )
    after = node.add("Add", memory_by_delay, new)
    return after, node.add("Mul", gate(o, after, 2), node.add("Tanh", after))


def lstm_nonlinear(node: MaceNode) -> Value:
    """One row of an LSTM's sums and memory, and of its output."""
    size, axis = node.dims[-1] // 5, len(node.dims) - 1
    more = node.dims[-1] - 5 * size
    if more not in (0, 3):
        raise RefusedError(f"{node.dims[-1]} numbers are not five parts")
    gates, memory, *scales = node.split(node.x, axis, [4 * size, size, *([3] if more else [])])
    return node.add("Concat", *_cell(node, gates, memory, node.input(1), scales[0] if scales else None), axis=axis)


def dynamic_lstm(node: MaceNode) -> Sequence[Value]:
    """An LSTM between two affine layers, frame by frame; every so many frames share a memory (the delays).

    Gives the outputs, and the last outputs and memories as the next run's inputs.
    """
    x = node.x
    numbers = node.integers("forward_indexes")
    factor = node.number("scale", 1.0)
    step = node.integer("subsample_factor", 1) or 1
    delays = [abs(node.integer(f"prev_{what}_delay")) // step for what in ("out", "cell")]
    optional = iter(node.inputs[6:])
    first, second = (next(optional, None) if node.integer(f"bias_{k}", 1) else None for k in "ab")
    if min(delays) < 1 or max(*delays, len(numbers)) > MAX_FRAMES:
        raise RefusedError(f"{len(numbers)} frames with delays of {delays} are not supported")
    frames = _frames(node, node.reshape(x, -1, *node.dims[-2:]), numbers)
    outputs_before, memory_by_delay = (
        [
            node.add("Squeeze", part, node.ints(1))
            for part in node.split(node.reshape(v, -1, n, node.builder.dims(v)[-1]), 1, [1] * n)
        ]
        for v, n in zip(node.inputs[1:3], delays, strict=True)
    )
    offset, size = node.integer("prev_out_offset"), node.integer("prev_out_dim")
    outputs, recurrent_outputs, memories = [], [], []
    for i, frame in enumerate(node.split(frames, 1, [1] * len(numbers))):
        joined = node.add("Concat", node.add("Squeeze", frame, node.ints(1)), outputs_before[i % delays[0]], axis=1)
        gates = node.add("Gemm", joined, node.input(3), first, transB=1)
        memory, cell = _cell(node, gates, memory_by_delay[i % delays[1]], node.input(4), None)
        output = node.add("Gemm", cell, node.input(5), second, transB=1)
        recurrent = node.slice(output, [offset], [offset + size], [1])
        if factor != 1:
            memory, recurrent = node.add("Mul", memory, factor), node.add("Mul", recurrent, factor)
        outputs_before[i % delays[0]], memory_by_delay[i % delays[1]] = recurrent, memory
        outputs.append(output)
        recurrent_outputs.append(recurrent)
        memories.append(memory)
    caches = [
        [listed[k] for k in node.integers(f"{name}_cache_indexes")]
        for name, listed in (("out", recurrent_outputs), ("cell", memories))
    ]
    return [_stacked(node, part) for part in (outputs, *caches) if part]


def _stacked(node: MaceNode, rows: Sequence[Value]) -> Value:
    whole = node.add("Concat", *(node.add("Unsqueeze", row, node.ints(1)) for row in rows), axis=1)
    return node.reshape(whole, *node.dims[:-2], len(rows), node.builder.dims(rows[0])[-1])


SPEECH: dict[str, Callable[[MaceNode], Value | Sequence[Value]]] = {
    "DynamicLSTM": dynamic_lstm,
    "ExtractPooling": statistics,
    "IfDefined": if_defined,
    "KaldiBatchNorm": batch_norm,
    "LSTMNonlinear": lstm_nonlinear,
    "LstmNonlinear": lstm_nonlinear,
    "PadContext": pad_context,
    "PNorm": group_lengths,
    "ReplaceIndex": subsample,
    "Splice": splice,
    "Subsample": subsample,
    "SumGroup": sum_group,
    "TargetRMSNorm": target_rms,
}
