"""TensorFlow Lite Micro's signal operators: from audio samples to the features that a speech network reads.

All of them count in integers, and so does what stands here: every number is the one that TFLM's kernels give.
Source: TFLM's directory signal/src, the kernels' options signal/micro/kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tenon.formats.decompositions.integer_arithmetic import Integers
from tenon.formats.decompositions.onnx_operator import decomposed
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.tflite.fourier import real_inverse, real_transform
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.formats.wire.flatbuffer import flex_map
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType, TensorType

MAX_PRODUCTS = 1 << 20
"""Most channels times energies of a filter bank."""


def options(node: TfliteNode, *names: str) -> list[int]:
    given: dict[str, Any] = flex_map(node.operation.custom)
    missing = [name for name in names if name not in given]
    if missing:
        raise RefusedError(f"its options lack {', '.join(missing)}")
    return [int(given[name]) for name in names]


def _shift(node: TfliteNode, name: str) -> int:
    (bits,) = options(node, name)
    if not 0 <= bits < 32:
        raise RefusedError(f"it shifts by {bits} bits")
    return bits


def operand(node: TfliteNode, k: int, dtype: DType) -> Integers:
    """Operand ``k``, which is stored in this type."""
    value = node.stored(k)
    if node.builder.type(value).dtype is not dtype:
        raise RefusedError(f"input {k} is of type {node.builder.type(value).dtype}; it must be {dtype}")
    return Integers(node.builder, value)


class State:
    """The state of an operator between runs: an input of the network, zeros at first, and an output."""

    def __init__(self, node: TfliteNode, name: str, dtype: DType, dims: Sequence[int]) -> None:
        self._layer, self._name, number = node, name, 2
        while self._name in node.builder:  # an earlier operator has the same state
            self._name, number = f"{name}_{number}", number + 1
        self.before = Integers(node.builder, node.builder.input(self._name, TensorType(dtype, tuple(dims))))

    def keep(self, after: Integers) -> None:
        name = f"{self._name}_out"
        self._layer.builder[name] = after.value
        self._layer.importer.kept.append(name)
        self._layer.builder.states[self._name] = name


# ----------------------------------------------------------------------------------------------- the spectrum
def _window(node: TfliteNode) -> Outputs:
    """Samples times weights, without the weights' fraction, limited to 16 bits."""
    shift = _shift(node, "shift")
    x, weights = (operand(node, k, DType.I16).to(DType.I32) for k in (0, 1))
    (size,) = weights.dims
    framed = x.reshape(*x.dims[:-1], -1, size) * weights >> shift
    return framed.maximum(-(1 << 15)).minimum((1 << 15) - 1).to(DType.I16).reshape(*x.dims).value


def _fft_auto_scale(node: TfliteNode) -> Outputs:
    """Samples moved up until the largest fills 16 bits, and by how many bits; silence stays where it is.

    -32768 counts as larger than 32767; TFLM's search for the largest forgets all that came before one.
    """
    x = operand(node, 0, DType.I16).to(DType.I32)
    largest = x.node("Abs").node("ReduceMax", keepdims=0)
    room = (largest.like(15) - largest.bits(16)).maximum(0).where(largest.above(0), 0)
    return (x << room).to(DType.I16).value, room.value


def _rfft(node: TfliteNode) -> Outputs:
    """The spectrum of the last axis, filled up with zeros; that of integers is divided by its length."""
    builder, x = node.builder, node.stored(0)
    (length,) = options(node, "fft_length")
    *outer, size = builder.dims(x)
    if size > length:
        raise RefusedError(f"{size} samples do not fit a transform of {length}")
    if builder.type(x).dtype is DType.F32:
        rows = builder.reshape(x, (-1, size, 1))
        (y,) = decomposed(builder, "DFT", [rows, builder.ints(length), builder.ints(1)], onesided=1)
        return builder.reshape(y, (*outer, length // 2 * 2 + 2))
    rows = _integers(node, x)
    rows = builder.pad(rows, np.array([[0, 0], [0, length - size]])) if size < length else rows
    return real_transform(Integers(builder, rows)).reshape(*outer, length + 2).value


def _irfft(node: TfliteNode) -> Outputs:
    """The signal whose spectrum lies along the last axis."""
    builder, x = node.builder, node.stored(0)
    (length,) = options(node, "fft_length")
    *outer, size = builder.dims(x)
    if size != length // 2 * 2 + 2:
        raise RefusedError(f"{size} numbers are no spectrum of {length}")
    if builder.type(x).dtype is DType.F32:
        rows = builder.reshape(x, (-1, size // 2, 2))
        (y,) = decomposed(builder, "DFT", [rows, builder.ints(length), builder.ints(1)], onesided=1, inverse=1)
        return builder.reshape(y, (*outer, length))
    return real_inverse(Integers(builder, _integers(node, x))).reshape(*outer, length).value


def _integers(node: TfliteNode, x: Value) -> Value:
    """Rows of integers of 16 or 32 bits."""
    dtype = node.builder.type(x).dtype
    if dtype not in (DType.I16, DType.I32):
        raise RefusedError(f"a transform of {dtype} is not supported")
    return node.builder.reshape(x, (-1, node.builder.dims(x)[-1]))


def _energy(node: TfliteNode) -> Outputs:
    """Squared magnitudes from one index to another; the others are 0 (TFLM leaves them undefined)."""
    start, end = options(node, "start_index", "end_index")
    x = operand(node, 0, DType.I16).to(DType.I32).reshape(-1, 2)
    if not 0 <= start < end <= x.dims[0]:
        raise RefusedError(f"it takes the energies from {start} to {end} of {x.dims[0]}")
    part = Integers(node.builder, node.builder.slice(x.value, [start], [end], [0]))
    sums = (part * part).to(DType.U32).sum(1)
    return node.builder.pad(sums.value, np.array([[start, x.dims[0] - end]]))


# -------------------------------------------------------------------------------------------- the filter bank
def _filter_bank(node: TfliteNode) -> Outputs:
    """Energies summed into channels that overlap.

    Each band of frequencies adds to the channel before it (unweights) and to the one after it (weights); the
    first band has no channel before it.
    """
    (channels,) = options(node, "num_channels")
    x = operand(node, 0, DType.U32).to(DType.I64)
    weights, unweights, *tables = (node.constant_input(k).astype(np.int64).ravel() for k in range(1, 6))
    if not 0 < channels < min(map(len, tables)) or channels * x.dims[0] > MAX_PRODUCTS:
        raise RefusedError(f"its tables do not describe {channels} channels of {x.dims[0]} energies")
    stretches = list(zip(*(table[: channels + 1].tolist() for table in tables), strict=True))
    for frequency, weight, width in stretches:
        known = min(len(weights), len(unweights)) - weight
        if min(frequency, weight, width) < 0 or width > min(known, x.dims[0] - frequency):
            raise RefusedError("its tables point outside of the spectrum or of the weights")
    rows = []
    for before, after in pairwise(stretches):
        sides = (before, unweights), (after, weights)
        rows.append([(f + i, by[w + i]) for (f, w, width), by in sides for i in range(width) if by[w + i]])
    return _weighted(x, rows).to(DType.U64).value


def _weighted(x: Integers, rows: Sequence[Sequence[tuple[int, int]]]) -> Integers:
    """Sums of elements by their numbers, times weights; shorter rows are filled with elements of weight 0."""
    widest = max(1, *map(len, rows))
    table = np.array([[*row, *[(0, 0)] * (widest - len(row))] for row in rows], np.int64).reshape(-1, widest, 2)
    return (x.take(table[:, :, 0]) * table[:, :, 1]).sum(1)


def _square_root(node: TfliteNode) -> Outputs:
    """The nearest integer to the root, limited to as many bits as half of its bits; moved down.

    One step of Newton's method from an estimate in f32 is the root rounded down, or one more.
    """
    x = operand(node, 0, DType.U64)
    real = node.builder.add("Sqrt", node.builder.add("Cast", x.value, to="f32"))
    guess = Integers(node.builder, node.builder.add("Cast", real, to="u64")).maximum(1)
    root = ((guess + x // guess) >> 1).minimum((1 << 32) - 1)
    root = root - (root * root).above(x)
    root = root + (x - root * root).above(root)
    limit = x.like((1 << 32) - 1).where(x.above((1 << 32) - 1), (1 << 16) - 1)
    shift = operand(node, 1, DType.I32).to(DType.U64)
    return (root.minimum(limit) >> shift).to(DType.U32).value


def _spectral_subtraction(node: TfliteNode) -> Outputs:
    """Channels less the noise in them, which is a running mean; its weights differ for even and odd channels.

    The mean is the network's input ``noise_estimate``, and its output ``noise_estimate_out`` the next one.
    """
    bits, fraction, clamping, floor, count = options(
        node, "smoothing_bits", "spectral_subtraction_bits", "clamping", "min_signal_remaining", "num_channels"
    )
    even, odd = ("smoothing", "one_minus_smoothing"), ("alternate_smoothing", "alternate_one_minus_smoothing")
    x = operand(node, 0, DType.U32)
    if x.dims != [count] or not (0 <= bits < 32 and 0 <= fraction < 64):
        raise RefusedError(f"{x.dims} numbers, {bits} and {fraction} bits are impossible for {count} channels")
    odds = np.arange(count) % 2
    fresh, old = (
        np.where(odds, *options(node, other, unary)).astype(np.uint32).astype(np.uint64)
        for unary, other in zip(even, odd, strict=True)
    )
    state = State(node, "noise_estimate", DType.U32, [count])
    scaled = x << bits
    noise = ((scaled.to(DType.U64) * fresh + state.before.to(DType.U64) * old) >> fraction).to(DType.U32)
    bounded = noise.minimum(scaled)
    remaining = ((x.to(DType.U64) * floor) >> fraction).to(DType.U32)
    noise = bounded if clamping else noise
    state.keep(noise)
    return ((scaled - bounded) >> bits).maximum(remaining).value, noise.value


# ------------------------------------------------------------------------------------------------- loudness
def _pcan(node: TfliteNode) -> Outputs:
    """Automatic gain: channels times a function of their noise, then squared where they are small.

    The function is a table: values for 0, 1 and 2, then a parabola for each number of bits, in three numbers of four.
    """
    shift = _shift(node, "snr_shift")
    x = operand(node, 0, DType.U32)
    noise = operand(node, 1, DType.U32).to(DType.I64)
    table = operand(node, 2, DType.I16)
    if table.dims != [125]:
        raise RefusedError(f"its table has {table.dims} numbers; it must have 125")
    bits, small = noise.bits(32), noise.below(3)
    at = noise.where(small, bits * 4 - 6)
    level, slope, curve = (table.take(at + i).to(DType.I64) for i in range(3))
    fraction = noise.like(0).where(small, (noise << 11) >> bits & 0x3FF)
    change = ((curve * fraction >> 5) + (slope << 5)) * fraction
    gain = ((change + (1 << 14) >> 15) + level).to(DType.I16).to(DType.U32)
    ratio = ((x.to(DType.U64) * gain.to(DType.U64)) >> shift).to(DType.U32)
    return (ratio * ratio >> 20).where(ratio.below(2 << 12), (ratio >> 6) - (1 << 6)).value


def _log(node: TfliteNode) -> Outputs:
    """Logarithms by a table of how far log2(1 + t) lies above t, at 128 points with linear interpolation."""
    (scale,) = options(node, "output_scale")
    x = (operand(node, 0, DType.U32) << _shift(node, "input_correction_bits")).to(DType.I64)
    table = x.like(np.array([round(65536 * (math.log2(1 + i / 128) - i / 128)) for i in range(129)]))
    whole = x.maximum(1).bits(32) - 1
    t = ((x.maximum(1) << 16) >> whole) - (1 << 16)
    at = t >> 9
    left, right = table.take(at), table.take(at + 1)
    log2 = (whole << 16) + t + left + ((right - left) * (t - (at << 9)) >> 16)
    scaled = (log2 * round(65536 * math.log(2)) + (1 << 15) >> 16) * scale + (1 << 15)
    y = ((scaled & (1 << 32) - 1) >> 16).minimum((1 << 15) - 1)
    return y.where(x.above(1), 0).to(DType.I16).value


SIGNAL: dict[str, Callable[[TfliteNode], Outputs]] = {
    "SignalEnergy": _energy,
    "SignalFftAutoScale": _fft_auto_scale,
    "SignalFilterBank": _filter_bank,
    "SignalFilterBankLog": _log,
    "SignalFilterBankSpectralSubtraction": _spectral_subtraction,
    "SignalFilterBankSquareRoot": _square_root,
    "SignalIrfft": _irfft,
    "SignalPCAN": _pcan,
    "SignalRfft": _rfft,
    "SignalWindow": _window,
}
