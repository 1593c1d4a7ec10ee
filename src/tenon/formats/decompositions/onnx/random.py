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

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import DType

_MAX_NUMBERS = 2**26
"""Numbers that a node may draw; they are constants of the bundle."""


def uniform(node: OnnxNode, shape: Sequence[int]) -> Array:
    """Numbers from 0 up to but not including 1, f64."""
    count = math.prod(shape)
    if count > _MAX_NUMBERS:
        raise RefusedError(f"it draws {count} numbers; {_MAX_NUMBERS} are the most", "make them an input")
    seed = node.attributes.get("seed")
    text = f"{node.type} {node.origin.layer}".encode()
    key = zlib.crc32(text) + (1 << 32) if seed is None else int(np.float32(seed).view(np.uint32))
    raw = np.random.Philox(key=key).random_raw(count) if count else np.zeros(0, np.uint64)
    return ((np.asarray(raw, np.uint64) >> np.uint64(11)) * 2.0**-53).reshape(tuple(shape))


def normal(node: OnnxNode, shape: Sequence[int]) -> Array:
    """Numbers of mean 0 and variance 1, f64."""
    u, v = uniform(node, (2, *shape))
    return np.asarray(np.sqrt(-2 * np.log1p(-u)) * np.cos(2 * np.pi * v))


def _drawn(node: OnnxNode, numbers: Array, dtype: DType) -> Sequence[Value]:
    drawn = node.constant(np.asarray(numbers).astype(dtype.numpy), "drawn")
    return [node.builder.sized_like(drawn, node.input(0)) if node.type.endswith("Like") else drawn]


def _dtype(node: OnnxNode) -> DType:
    """The element type that is asked for, else that of the first input."""
    number = node.attributes.get("dtype")
    return node.element_type(number) if number else node.input(0).type.dtype


def _shape(node: OnnxNode) -> Sequence[int]:
    return node.dims_of(0) if node.type.endswith("Like") else tuple(node.attributes.get("shape", ()))


def random_uniform(node: OnnxNode) -> Sequence[Value]:
    low, high = (float(node.attributes[name]) for name in ("low", "high"))
    return _drawn(node, low + (high - low) * uniform(node, _shape(node)), _dtype(node))


def random_normal(node: OnnxNode) -> Sequence[Value]:
    mean, scale = (float(node.attributes[name]) for name in ("mean", "scale"))
    return _drawn(node, mean + scale * normal(node, _shape(node)), _dtype(node))


def bernoulli(node: OnnxNode) -> Sequence[Value]:
    """True with the probability given by each element."""
    x = node.input(0)
    drawn = node.constant(uniform(node, node.dims_of(0)).astype(x.type.dtype.numpy), "drawn")
    return [node.add("Cast", node.add("Less", drawn, x), to=_dtype(node).value)]


def multinomial(node: OnnxNode) -> Sequence[Value]:
    """Classes [batch, samples] by their logarithmic weights: how many cumulative probabilities a number exceeds."""
    batch, classes = node.dims_of(0)
    samples = int(node.attributes.get("sample_size", 1))
    chances = node.add("Softmax", node.input(0), axis=-1)
    limits = node.add("CumSum", chances, node.constant(np.array(1), "axis"))
    limits = node.add("Unsqueeze", limits, node.int_constant("samples", [1]))
    drawn = uniform(node, (batch, samples, 1)).astype(node.input(0).type.dtype.numpy)
    above = node.add("Cast", node.add("LessOrEqual", limits, node.constant(drawn, "drawn")), to="i32")
    sampled = node.add("ReduceSum", above, node.int_constant("classes", [2]), keepdims=0)
    last = node.constant(np.array(classes - 1, np.int32), "last")  # the sum of all may round to less than 1
    return [node.add("Cast", node.add("Min", sampled, last), to=_dtype(node).value)]
