"""ONNX's random operators: numbers drawn when compiling, by a generator that counts (Philox 4x64).

A bundle keeps nothing from one run to the next, so it has the same numbers in each.  They follow from ``seed``; without
one from the node's name, so that nodes differ and two compilations do not.  Source: J. K. Salmon et al., "Parallel
Random Numbers: As Easy as 1, 2, 3"; normal numbers are those of Box and Muller.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from tenon.decompositions.onnx.node import OnnxNode
from tenon.graph_builder.errors import RefusedError
from tenon.ir.graph import Array, Value
from tenon.ir.types import DType

_MOST = 2**26
"""Numbers that a node may draw; they are constants of the bundle."""


def uniform(layer: OnnxNode, shape: Sequence[int]) -> Array:
    """Numbers from 0 up to but not including 1, f64."""
    count = math.prod(shape)
    if count > _MOST:
        raise RefusedError(f"it draws {count} numbers; {_MOST} are the most", "make them an input")
    seed = layer.attributes.get("seed")
    text = f"{layer.type} {layer.origin.layer}".encode()
    key = zlib.crc32(text) + (1 << 32) if seed is None else int(np.float32(seed).view(np.uint32))
    raw = np.random.Philox(key=key).random_raw(count) if count else np.zeros(0, np.uint64)
    return ((np.asarray(raw, np.uint64) >> np.uint64(11)) * 2.0**-53).reshape(tuple(shape))


def normal(layer: OnnxNode, shape: Sequence[int]) -> Array:
    """Numbers of mean 0 and variance 1, f64."""
    u, v = uniform(layer, (2, *shape))
    return np.asarray(np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v))


def _drawn(layer: OnnxNode, numbers: Array, dtype: DType) -> Sequence[Value]:
    return [layer.constant("drawn", np.asarray(numbers).astype(dtype.numpy))]


def _dtype(layer: OnnxNode) -> DType:
    """The element type that is asked for, else that of the first input."""
    number = layer.attributes.get("dtype")
    return layer.element(number) if number else layer.input(0).type.dtype


def _shape(layer: OnnxNode) -> Sequence[int]:
    return layer.dims(0) if layer.type.endswith("Like") else tuple(layer.attributes.get("shape", ()))


def random_uniform(layer: OnnxNode) -> Sequence[Value]:
    low, high = (float(layer.attributes[name]) for name in ("low", "high"))
    return _drawn(layer, low + (high - low) * uniform(layer, _shape(layer)), _dtype(layer))


def random_normal(layer: OnnxNode) -> Sequence[Value]:
    mean, scale = (float(layer.attributes[name]) for name in ("mean", "scale"))
    return _drawn(layer, mean + scale * normal(layer, _shape(layer)), _dtype(layer))


def bernoulli(layer: OnnxNode) -> Sequence[Value]:
    """True with the probability that each element says."""
    x = layer.input(0)
    drawn = layer.constant("drawn", uniform(layer, layer.dims(0)).astype(x.type.dtype.numpy))
    return [layer.emit("Cast", layer.emit("Less", drawn, x), to=_dtype(layer).value)]


def multinomial(layer: OnnxNode) -> Sequence[Value]:
    """Classes [batch, samples] by their logarithmic weights: how many cumulative probabilities a number exceeds."""
    batch, classes = layer.dims(0)
    samples = int(layer.attributes.get("sample_size", 1))
    chances = layer.emit("Softmax", layer.input(0), axis=-1)
    limits = layer.emit("CumSum", chances, layer.constant("axis", np.array(1)))
    limits = layer.emit("Unsqueeze", limits, layer.ints("samples", [1]))
    drawn = uniform(layer, (batch, samples, 1)).astype(layer.input(0).type.dtype.numpy)
    above = layer.emit("Cast", layer.emit("LessOrEqual", limits, layer.constant("drawn", drawn)), to="i32")
    found = layer.emit("ReduceSum", above, layer.ints("classes", [2]), keepdims=0)
    last = layer.constant("last", np.array(classes - 1, np.int32))  # the sum of all may round to less than 1
    return [layer.emit("Cast", layer.emit("Min", found, last), to=_dtype(layer).value)]
