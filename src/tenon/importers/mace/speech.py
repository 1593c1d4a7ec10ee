"""MACE's operators of speech models, which come from Kaldi: frames are the last but one axis, numbers the last.

Definitions: mace/ops of XiaoMi/mace, and the components of the same names in Kaldi's nnet3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tenon.graph_builder.errors import RefusedError
from tenon.importers.mace.context import Context
from tenon.ir.graph import Value

LONGEST = 4096
"""Frames that a recurrent layer is unrolled to."""


def _frames(c: Context, x: Value, numbers: Sequence[int]) -> Value:
    """Those frames, in that order."""
    count = c.builder.dims(x)[-2]
    if not numbers or not all(0 <= i < count for i in numbers):
        raise RefusedError(f"needs the frames {list(numbers)} of {count}")
    return c.add("Gather", x, np.array(numbers, np.int64), axis=-2)


def subsample(c: Context) -> Value:
    return _frames(c, c.x, c.integers("forward_indexes"))


def if_defined(c: Context) -> Value:
    """Frames as the list says; where that is negative those of the second input, or zeros."""
    numbers, before = c.integers("forward_indexes"), c.integers("cache_forward_indexes")
    missing = sum(i < 0 for i in numbers)
    *outer, count, width = c.dims
    if any(i >= 0 for i in numbers[:missing]) or len(numbers) > count:
        raise RefusedError(f"the frames {numbers} of {count} are not supported")
    parts = [_frames(c, c.input(1), before[:missing])] if len(c.inputs) > 1 and before else []
    filled = len(before[:missing]) if parts else 0
    blank = np.zeros((*outer, missing - filled, width), np.float32)
    rest = [_frames(c, c.x, numbers[missing:])] if numbers[missing:] else []
    tail = np.zeros((*outer, count - len(numbers), width), np.float32)
    pieces = [*parts, *([c.value(blank)] if blank.size else []), *rest, *([c.value(tail)] if tail.size else [])]
    return c.add("Concat", *pieces, axis=-2)


def splice(c: Context) -> Value:
    """Each frame with its neighbours side by side; the last numbers of it are constant and stand once, at the end."""
    around, fixed = len(c.integers("context")), c.integer("const_component_dim")
    numbers, width = c.integers("forward_indexes"), c.dims[-1]
    if not around or len(numbers) % around or not 0 <= fixed < width:
        raise RefusedError(f"{len(numbers)} frames do not make windows of {around}")
    moving = c.slice(c.x, [0], [width - fixed], [-1]) if fixed else c.x
    count = len(numbers) // around
    x = c.reshape(_frames(c, moving, numbers), *c.dims[:-2], count, around * (width - fixed))
    if not fixed:
        return x
    still = _frames(c, c.slice(c.x, [width - fixed], [width], [-1]), c.integers("forward_const_indexes"))
    return c.add("Concat", x, still, axis=-1)


def pad_context(c: Context) -> Value:
    """The first and the last frame as often again."""
    widths = [0] * (2 * len(c.dims))
    widths[len(c.dims) - 2], widths[-2] = c.integer("left_context"), c.integer("right_context")
    return c.add("Pad", c.x, c.ints(*widths), mode="edge")


def group_lengths(c: Context) -> Value:
    """PNorm: the length of every group of numbers by the norm p."""
    p, groups = c.integer("p", 2), c.integer("output_dim")
    if p not in (0, 1, 2) or groups < 1 or c.dims[-1] % groups:
        raise RefusedError(f"{groups} groups of {c.dims[-1]} by the norm {p} are not supported")
    x = c.reshape(c.x, *c.dims[:-1], groups, c.dims[-1] // groups)
    if p:
        return c.add("ReduceL1" if p == 1 else "ReduceL2", x, c.ints(-1), keepdims=0)
    there = c.add("Cast", c.add("Greater", c.add("Abs", x), float(np.finfo(np.float32).eps)), to="f32")
    return c.add("ReduceSum", there, c.ints(-1), keepdims=0)


def target_rms(c: Context) -> Value:
    """Blocks of numbers scaled to a root mean square; the logarithm of what it was may follow each."""
    target, width = c.number("target_rms", 1.0), c.dims[-1]
    block = c.integer("block_dim") or width
    if block < 1 or width % block or target <= 0:
        raise RefusedError(f"blocks of {block} of {width} scaled to {target:g} are not supported")
    x = c.reshape(c.x, *c.dims[:-1], width // block, block)
    share = c.add("Mul", c.add("ReduceSumSquare", x, c.ints(-1), keepdims=1), 1 / (block * target * target))
    root = c.add("Sqrt", c.add("Max", share, 1e-6))
    y = c.add("Div", x, root)
    if c.integer("add_log_stddev"):
        y = c.add("Concat", y, c.add("Add", c.add("Log", root), math.log(target)), axis=-1)
    return c.reshape(y, *c.dims[:-1], -1)


def batch_norm(c: Context) -> Value:
    """Kaldi's: blocks of numbers scaled and moved, by what is stored or by what they are themselves."""
    width = c.dims[-1]
    block = c.integer("block_dim", -1)
    block = width if block == -1 else block
    if block < 1 or width % block:
        raise RefusedError(f"blocks of {block} of {width} are impossible")
    x = c.reshape(c.x, -1, block)
    if c.integer("test_mode"):
        return c.reshape(c.add("Add", c.add("Mul", x, c.input(1)), c.input(2)), *c.dims)
    x = c.add("Sub", x, c.add("ReduceMean", x, c.ints(0), keepdims=1))
    variance = c.add("ReduceMean", c.add("Mul", x, x), c.ints(0), keepdims=1)
    deviation = c.add("Sqrt", c.add("Add", variance, c.number("epsilon", 1e-3)))
    return c.reshape(c.add("Mul", c.add("Div", x, deviation), c.number("target_rms", 1.0)), *c.dims)


def sum_group(c: Context) -> Value:
    counts = [int(n) for n in c.input(1).array.ravel()]
    rest = c.dims[-1] - sum(counts)
    parts = c.split(c.x, len(c.dims) - 1, [*counts, *([rest] if rest else [])])[: len(counts)]
    return c.add("Concat", *(c.add("ReduceSum", part, c.ints(-1), keepdims=1) for part in parts), axis=-1)


def statistics(c: Context) -> Value:
    """ExtractPooling: the mean (and deviation) of the frames of every window, behind the logarithms of their counts."""
    bounds, counts = c.integers("forward_indexes"), c.numbers("counts")
    if not counts or len(bounds) != 2 * len(counts) or len(counts) > LONGEST:
        raise RefusedError(f"{len(bounds)} bounds do not make {len(counts)} windows")
    rows = []
    for i, (a, b) in enumerate(zip(bounds[::2], bounds[1::2], strict=True)):
        x = c.slice(c.x, [a], [b], [-2])
        mean = c.add("ReduceMean", x, c.ints(-2), keepdims=1)
        logs = np.full((*c.dims[:-2], 1, c.integer("num_log_count")), math.log(counts[i]), np.float32)
        row = [c.value(logs), mean] if logs.size else [mean]
        if c.integer("include_variance"):
            apart = c.add("Sub", x, mean)
            variance = c.add("ReduceMean", c.add("Mul", apart, apart), c.ints(-2), keepdims=1)
            row.append(c.add("Sqrt", c.add("Max", variance, c.number("variance_floor", 1e-10))))
        rows.append(c.add("Concat", *row, axis=-1) if len(row) > 1 else mean)
    return c.add("Concat", *rows, axis=-2)


def _cell(c: Context, gates: Value, memory: Value, peepholes: Value, scales: Value | None) -> tuple[Value, Value]:
    """Kaldi's LSTM: gates [.., 4 C] input, forget, cell, output; the memory before, [.., C]; three peepholes, [3, C];
    factors of input, forget and output [.., 3].  Gives the memory and what the cell says."""
    axis, size = len(c.builder.dims(gates)) - 1, c.builder.dims(memory)[-1]
    i, f, g, o = c.split(gates, axis, [size] * 4)
    peeps = [c.add("Gather", peepholes, np.array(k, np.int64), axis=0) for k in range(3)]
    factors = c.split(scales, axis, [1, 1, 1]) if scales is not None else (None,) * 3

    def gate(own: Value, seen: Value, k: int) -> Value:
        opened = c.add("Sigmoid", c.add("Add", own, c.add("Mul", seen, peeps[k])))
        factor = factors[k]
        return opened if factor is None else c.add("Mul", opened, factor)

    kept, new = c.add("Mul", gate(f, memory, 1), memory), c.add("Mul", gate(i, memory, 0), c.add("Tanh", g))
    after = c.add("Add", kept, new)
    return after, c.add("Mul", gate(o, after, 2), c.add("Tanh", after))


def lstm_nonlinear(c: Context) -> Value:
    """One row of an LSTM's sums and memory, and of what it says."""
    size, axis = c.dims[-1] // 5, len(c.dims) - 1
    more = c.dims[-1] - 5 * size
    if more not in (0, 3):
        raise RefusedError(f"{c.dims[-1]} numbers are not five parts")
    gates, memory, *scales = c.split(c.x, axis, [4 * size, size, *([3] if more else [])])
    return c.add("Concat", *_cell(c, gates, memory, c.input(1), scales[0] if scales else None), axis=axis)


def dynamic_lstm(c: Context) -> Sequence[Value]:
    """An LSTM between two affine layers, frame by frame; every so many frames share a memory (the delays).

    Gives the outputs, and the last outputs and memories as the next run's inputs.
    """
    x, numbers, factor = c.x, c.integers("forward_indexes"), c.number("scale", 1.0)
    step = c.integer("subsample_factor", 1) or 1
    delays = [abs(c.integer(f"prev_{what}_delay")) // step for what in ("out", "cell")]
    optional = iter(c.inputs[6:])
    first, second = (next(optional, None) if c.integer(f"bias_{k}", 1) else None for k in "ab")
    if min(delays) < 1 or max(*delays, len(numbers)) > LONGEST:
        raise RefusedError(f"{len(numbers)} frames with delays of {delays} are not supported")
    frames = _frames(c, c.reshape(x, -1, *c.dims[-2:]), numbers)
    said, kept = (
        [c.add("Squeeze", part, c.ints(1)) for part in c.split(c.reshape(v, -1, n, c.builder.dims(v)[-1]), 1, [1] * n)]
        for v, n in zip(c.inputs[1:3], delays, strict=True)
    )
    offset, size = c.integer("prev_out_offset"), c.integer("prev_out_dim")
    outputs, echoes, memories = [], [], []
    for i, frame in enumerate(c.split(frames, 1, [1] * len(numbers))):
        joined = c.add("Concat", c.add("Squeeze", frame, c.ints(1)), said[i % delays[0]], axis=1)
        gates = c.add("Gemm", joined, c.input(3), first, transB=1)
        memory, cell = _cell(c, gates, kept[i % delays[1]], c.input(4), None)
        output = c.add("Gemm", cell, c.input(5), second, transB=1)
        echo = c.slice(output, [offset], [offset + size], [1])
        if factor != 1:
            memory, echo = c.add("Mul", memory, factor), c.add("Mul", echo, factor)
        said[i % delays[0]], kept[i % delays[1]] = echo, memory
        outputs.append(output)
        echoes.append(echo)
        memories.append(memory)
    caches = [
        [listed[k] for k in c.integers(f"{name}_cache_indexes")]
        for name, listed in (("out", echoes), ("cell", memories))
    ]
    return [_stacked(c, part) for part in (outputs, *caches) if part]


def _stacked(c: Context, rows: Sequence[Value]) -> Value:
    whole = c.add("Concat", *(c.add("Unsqueeze", row, c.ints(1)) for row in rows), axis=1)
    return c.reshape(whole, *c.dims[:-2], len(rows), c.builder.dims(rows[0])[-1])


SPEECH: dict[str, Callable[[Context], Value | Sequence[Value]]] = {
    "DynamicLSTM": dynamic_lstm, "ExtractPooling": statistics, "IfDefined": if_defined, "KaldiBatchNorm": batch_norm,
    "LSTMNonlinear": lstm_nonlinear, "LstmNonlinear": lstm_nonlinear, "PadContext": pad_context, "PNorm": group_lengths,
    "ReplaceIndex": subsample, "Splice": splice, "Subsample": subsample, "SumGroup": sum_group,
    "TargetRMSNorm": target_rms,
}  # fmt: skip
