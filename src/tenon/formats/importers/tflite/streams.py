"""TensorFlow Lite Micro's operators that keep parts of a stream: delays, frames, stacks and sums that overlap.

Source: TFLM's directory signal/micro/kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tenon.formats.decompositions.integer_arithmetic import Integers, joined, stacked
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.formats.importers.tflite.signal import State, operand, options
from tenon.network.graph.types import DType

MAX_LENGTH = 1 << 20
"""Elements of one axis that are kept."""
MAX_SAMPLES = 1 << 24
"""Numbers of all frames of one run."""
MAX_FRAMES = 1 << 10
"""Frames that are added one after the other."""


def _rows(node: TfliteNode) -> Integers:
    x = operand(node, 0, DType.I16)
    return x.reshape(math.prod(x.dims[:-1]), x.dims[-1])


def _cut(x: Integers, start: int, end: int) -> Integers:
    """Columns of a matrix."""
    return Integers(x.builder, x.builder.slice(x.value, [start], [end], [1]))


def _delay(node: TfliteNode) -> Outputs:
    """Samples of the last axis, later."""
    (length,) = options(node, "delay_length")
    x, dims = _rows(node), node.builder.dims(node.stored(0))
    if not 0 <= length <= MAX_LENGTH:
        raise RefusedError(f"it delays by {length} samples")
    if not length:
        return x.reshape(*dims).value
    state = State(node, "delay", DType.I16, [x.dims[0], length])
    stream = joined([state.before, x], 1)
    state.keep(_cut(stream, x.dims[1], x.dims[1] + length))
    return _cut(stream, 0, x.dims[1]).reshape(*dims).value


def _framer(node: TfliteNode) -> Outputs:
    """Frames that overlap, and whether all of them hold samples only.

    With ``prefill`` zeros count as samples.  Without it frames begin at a multiple of their distance, so where that
    does not divide their length they are as many samples late.
    """
    size, step, prefill = options(node, "frame_size", "frame_step", "prefill")
    x, (*outer, length) = _rows(node), node.builder.dims(node.stored(0))
    if not 0 < step <= size <= MAX_LENGTH or length % step or length // step * size > MAX_SAMPLES:
        raise RefusedError(f"frames of {size} samples, {step} apart, do not come from {length}")
    count, kept = length // step, size - step if prefill else (-(-size // step) - 1) * step
    true = node.builder.constant(np.array(True), "valid")
    stream = x
    if kept:
        state = State(node, "framer", DType.I16, [x.dims[0], kept])
        stream = joined([state.before, x], 1)
        state.keep(_cut(stream, length, length + kept))
    frames = stream.take(np.arange(count)[:, None] * step + np.arange(size), axis=1).reshape(*outer, count, size)
    if prefill or not kept:
        return frames.value, true
    seen = State(node, "framer_count", DType.I32, [])
    seen.keep((seen.before + count).minimum(kept // step))
    return frames.value, seen.before.above(kept // step - 1).value


def _stacker(node: TfliteNode) -> Outputs:
    """The last few features together, every ``stacker_step`` of them, and whether it is time for that.

    The first ones ever stand for those to their left too.  The state ``stacker_count`` is 0 before any came, else one
    more than the features that wait.
    """
    names = ("num_channels", "stacker_left_context", "stacker_right_context", "stacker_step")
    channels, left, right, step = options(node, *names)
    x, size = operand(node, 0, DType.I16), left + right + 1
    if x.dims != [channels] or min(left, right) < 0 or not 0 < step <= size <= MAX_LENGTH // max(1, channels):
        raise RefusedError(f"{x.dims} numbers do not make stacks of {size} times {channels}, {step} apart")
    count = State(node, "stacker_count", DType.I32, [])
    first = count.before.below(1)
    waiting = count.before.like(left + 1).where(first, count.before)
    row = x.reshape(1, channels)
    stream = row.node("Expand", Integers(node.builder, node.builder.ints(size, channels)))
    if size > 1:
        state = State(node, "stacker", DType.I16, [size - 1, channels])
        stream = stream.where(first, joined([state.before, row], 0))
        state.keep(Integers(node.builder, node.builder.slice(stream.value, [1], [size], [0])))
    ready = waiting.above(size - 1)
    count.keep((waiting - step).where(ready, waiting) + 1)
    return stream.reshape(size * channels).value, ready.value


def _overlap_add(node: TfliteNode) -> Outputs:
    """Frames added where they overlap; sums of integers saturate at 16 bits."""
    (step,) = options(node, "frame_step")
    builder, x = node.builder, node.stored(0)
    dtype, (*outer, count, size) = builder.type(x).dtype, builder.dims(x)
    if dtype not in (DType.I16, DType.F32):
        raise RefusedError(f"sums of {dtype} are not supported")
    if not 0 < step <= size or count > MAX_FRAMES:
        raise RefusedError(f"{count} frames of {size} samples cannot be added {step} apart")
    frames = Integers(builder, x).reshape(math.prod(outer), count, size).parts(1)
    if size == step:
        return builder.reshape(stacked(frames, 1).value, (*outer, count * step))
    state = State(node, "overlap_add", dtype, [math.prod(outer), size - step])
    kept, outputs = state.before, []
    for frame in frames:
        silence = frame.like(np.zeros((math.prod(outer), step)))
        total = _limited_sum(frame, joined([kept, silence], 1))
        kept = _cut(total, step, size)
        outputs.append(_cut(total, 0, step))
    state.keep(kept)
    return builder.reshape(joined(outputs, 1).value, (*outer, count * step))


def _limited_sum(a: Integers, b: Integers) -> Integers:
    if a.dtype is DType.F32:
        return a + b
    total = a.to(DType.I32) + b.to(DType.I32)
    return total.maximum(-(1 << 15)).minimum((1 << 15) - 1).to(DType.I16)


STREAMS: dict[str, Callable[[TfliteNode], Outputs]] = {
    "SignalDelay": _delay,
    "SignalFramer": _framer,
    "SignalOverlapAdd": _overlap_add,
    "SignalStacker": _stacker,
}
