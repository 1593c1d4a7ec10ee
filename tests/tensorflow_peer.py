"""Keras models and comparisons with TensorFlow; importing this module skips the test file if TensorFlow is not
installed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluate import difference, evaluate
from tenon.formats import importers
from tenon.network.graph.graph import Array

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf: Any = pytest.importorskip("tensorflow", reason="TensorFlow is not installed")
keras: Any = tf.keras
L: Any = keras.layers

Shape = tuple[int, ...]
IMAGE = (1, 7, 8, 4)

RNG = np.random.default_rng(7)


def some(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def agree(path: Path, inputs: Sequence[Array], expected: Sequence[Array], most: float = 1e-5) -> None:
    """Compare the imported file's outputs with ``expected``; inputs and outputs are matched by order."""
    graph = importers.load(path, shapes={})
    actual = evaluate(graph, {v.name: x for v, x in zip(graph.inputs, inputs, strict=True)})
    for ours, theirs in zip(actual.values(), expected, strict=True):
        assert ours.shape == theirs.shape
        assert difference(ours, theirs) < most


def arrays(values: Any) -> list[Array]:
    """The tensors of a result, however it is nested."""
    return [np.asarray(v) for v in tf.nest.flatten(values)]


def w(*shape: int) -> Any:
    return tf.constant(some(*shape))


def with_random_weights(model: Any) -> Any:
    """The model with random weights instead of the initial ones."""
    for variable in model.weights:
        if "seed" in variable.path:
            continue
        positive = "variance" in variable.path or "gamma" in variable.path
        scale = 1 / max(1.0, float(np.sqrt(np.prod(variable.shape[:-1]) or 1)))
        value = (
            RNG.uniform(0.5, 1.5, variable.shape) if positive else RNG.uniform(-1, 1, variable.shape) * max(scale, 0.1)
        )
        variable.assign(value.astype(np.float32))
    return model


def frozen(function: Callable[..., Any], shapes: Sequence[Shape]) -> tuple[Any, list[str]]:
    """The function with constants for its variables, and the names of its outputs."""
    module = importlib.import_module("tensorflow.python.framework.convert_to_constants")

    concrete = tf.function(function).get_concrete_function(
        *(tf.TensorSpec(s, tf.float32, name=f"x{i}") for i, s in enumerate(shapes))
    )
    constant = module.convert_variables_to_constants_v2(concrete)
    return constant, [tensor.name for tensor in constant.outputs]


# models
def nested() -> Any:
    inner = keras.Sequential(
        [keras.Input((6, 6, 3)), L.Conv2D(4, 3, padding="same"), L.BatchNormalization(), L.ReLU()], name="inner"
    )
    x = keras.Input((6, 6, 3), batch_size=1)
    return keras.Model(x, L.Dense(3)(L.GlobalAveragePooling2D()(inner(x))))


def shared() -> Any:
    a, b = keras.Input((8,), batch_size=1), keras.Input((8,), batch_size=1)
    dense, tower = L.Dense(5, activation="tanh"), keras.Sequential([keras.Input((5,)), L.Dense(4), L.Dense(3)])
    p, q = tower(dense(a)), tower(dense(b))
    return keras.Model([a, b], [L.Subtract()([p, q]), L.Dot(1, normalize=True)([p, q])])


def twice_nested() -> Any:
    def block(n: int) -> Any:
        x = keras.Input((8,))
        return keras.Model(x, L.Add()([x, L.Dense(8, activation="relu")(L.Dense(n)(x))]))

    x = keras.Input((8,))
    middle = keras.Model(x, block(4)(block(5)(x)))
    y = keras.Input((8,), batch_size=1)
    return keras.Model(y, L.Dense(2)(middle(middle(y))))


def encoder_decoder() -> Any:
    source, target = keras.Input((7, 5), batch_size=1), keras.Input((4, 6), batch_size=1)
    _, h, c = L.LSTM(8, return_state=True)(source)
    y = L.LSTM(8, return_sequences=True)(target, initial_state=[h, c])
    return keras.Model([source, target], L.Dense(6, activation="softmax")(y))


def gru_state() -> Any:
    source, target = keras.Input((7, 5), batch_size=1), keras.Input((4, 6), batch_size=1)
    y, h = L.GRU(8, return_state=True, return_sequences=True)(source)
    return keras.Model([source, target], [y, L.GRU(8, return_sequences=True)(target, initial_state=h)])


def transformer() -> Any:
    x = keras.Input((6, 8), batch_size=1)
    y = L.LayerNormalization()(L.Add()([x, L.MultiHeadAttention(2, 4)(x, x)]))
    y = L.MultiHeadAttention(2, 4, value_dim=3, use_bias=False)(y, y, use_causal_mask=True)
    return keras.Model(x, L.Dense(3)(y))


def cross_attention() -> Any:
    x, y = keras.Input((6, 8), batch_size=1), keras.Input((5, 7), batch_size=1)
    return keras.Model([x, y], L.MultiHeadAttention(2, 4, output_shape=9)(x, y))


def causal_attention() -> Any:
    x = keras.Input((6, 8), batch_size=1)
    return keras.Model(x, L.Attention()([x, x], use_causal_mask=True))


def functions() -> Any:
    ops, x = keras.ops, keras.Input((6, 6, 4), batch_size=1)
    y = L.Conv2D(4, 1)(x) + x
    z = ops.softmax(ops.reshape(ops.transpose(ops.concatenate([y, x], 1), (0, 3, 1, 2)), (1, 8, -1)))
    return keras.Model(x, [y * 2.0, 3.0 - ops.relu(y), ops.mean(y / 3.0, axis=[1, 2], keepdims=True), z, ops.gelu(-y)])


def dictionary() -> Any:
    a, b = keras.Input((4,), batch_size=1, name="a"), keras.Input((3,), batch_size=1, name="b")
    return keras.Model({"b": b, "a": a}, {"z": L.Dense(2)(a), "y": L.Concatenate()([b, a])})


def two_alike() -> Any:
    x = keras.Input((4,), batch_size=1)
    return keras.Model(x, [x, L.Dense(2)(x), x])


def sequential() -> Any:
    model = keras.Sequential([L.Conv2D(3, 3), L.Flatten(), L.Dense(4), L.Dense(4, activation="softmax")])
    model.build((1, 6, 6, 2))
    return model


def with_rnn() -> Any:
    x = keras.Input((6, 5), batch_size=1)
    return keras.Model(x, L.LSTM(4)(L.GRU(4, return_sequences=True)(x)))


def with_convolutions() -> Any:
    x = keras.Input((12, 12, 3), batch_size=1)
    y = L.ReLU(6.0)(L.BatchNormalization()(L.Conv2D(8, 3, 2, "same", use_bias=False)(x)))
    y = L.Conv2DTranspose(4, 3, 2, "same")(L.DepthwiseConv2D(3, padding="same", dilation_rate=2)(y))
    return keras.Model(x, [L.GlobalAveragePooling2D()(y), L.UpSampling2D(2, interpolation="bilinear")(y)])
