"""Keras's recurrent layers as ONNX's LSTM, GRU and RNN, which are unrolled over time.

Keras keeps [input, gates], ONNX [gates, input]; Keras's LSTM has its gates as input, forget, cell, output, ONNX's as
input, output, forget, cell; both have GRU's as update, reset, hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.frontends.keras.importer import Layer
from tenon.frontends.keras.weights import Weights
from tenon.frontends.refused import RefusedError
from tenon.ir.graph import Array, Value

_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (0, 1, 2), "SimpleRNN": (0,)}
_OPS = {"LSTM": "LSTM", "GRU": "GRU", "SimpleRNN": "RNN"}
_FUNCTIONS = {"tanh": "Tanh", "sigmoid": "Sigmoid", "relu": "Relu", "hard_sigmoid": "HardSigmoid", "linear": "Affine"}
_PLAIN = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "SimpleRNN": ("Tanh",)}
_OLD = {"CuDNNLSTM": "LSTM", "CuDNNGRU": "GRU"}


def _kind(layer: Layer) -> str:
    return _OLD.get(layer.kind, layer.kind)


def _functions(layer: Layer) -> dict[str, Any]:
    """The attributes that say which activations are used, where they are not ONNX's own choice."""
    kind = _kind(layer)
    names = [str(layer.get("activation", "tanh"))]
    names = names if kind == "SimpleRNN" else [str(layer.get("recurrent_activation", "sigmoid")), *names]
    names = [*names, names[-1]] if kind == "LSTM" else names
    unknown = [name for name in names if name not in _FUNCTIONS]
    if unknown:
        raise RefusedError(f"the activation '{unknown[0]}' of a recurrent layer is not supported")
    found = tuple(_FUNCTIONS[name] for name in names)
    if found == _PLAIN[kind]:
        return {}
    settings = {"HardSigmoid": (1 / 6 if layer.importer.version >= 3 else 0.2, 0.5), "Affine": (1.0, 0.0)}
    both = [settings[name] for name in found if name in settings]
    return {
        "activations": found,
        "activation_alpha": [alpha for alpha, _ in both],
        "activation_beta": [beta for _, beta in both],
    }


def _weights(layer: Layer, weights: Weights) -> list[Array]:
    """W, R and B of one direction."""
    biased = bool(layer.get("use_bias", True))
    roles = ("kernel", "recurrent_kernel", "bias") if biased else ("kernel", "recurrent_kernel")
    kernel, recurrent, *bias = weights.arrays(roles)
    gates, units = _GATES[_kind(layer)], recurrent.shape[0]
    both = bias[0] if bias else np.zeros(len(gates) * units, np.float32)
    both = both if both.ndim == 2 else np.stack([both, np.zeros_like(both)])

    def ordered(matrix: Array) -> Array:
        return np.concatenate([matrix[:, g * units : (g + 1) * units] for g in gates], axis=1)

    return [ordered(kernel).T[None], ordered(recurrent).T[None], ordered(both).reshape(1, -1)]


def _check(layer: Layer) -> None:
    for name, what in (("stateful", "state kept between runs"), ("time_major", "time before the batch")):
        if layer.get(name, False):
            raise RefusedError(f"{what} is not supported")


def _attributes(layer: Layer, units: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"hidden_size": units, **_functions(layer)}
    if _kind(layer) == "GRU":
        attributes["linear_before_reset"] = int(bool(layer.get("reset_after", layer.kind == "CuDNNGRU")))
    return attributes


def _run(layer: Layer, weights: Sequence[Array], states: Sequence[Value], direction: str) -> list[Value]:
    """[all outputs as time, direction, batch, unit; the last states] of the operator."""
    net, kind = layer.net, _kind(layer)
    x = net.transpose(layer.x, (1, 0, 2))
    constants = [net.constant(np.ascontiguousarray(a, np.float32), "weights") for a in weights]
    initial = [net.reshape(s, (1, *net.dims(s))) for s in states]
    attributes = _attributes(layer, weights[1].shape[2])
    if direction == "bidirectional":
        for name in ("activations", "activation_alpha", "activation_beta"):
            attributes[name] = [*attributes.get(name, ()), *attributes.get(name, ())]
    return net.recurrent(_OPS[kind], [x, *constants, None, *initial], direction=direction, **attributes)


def _recurrent(layer: Layer) -> list[Value]:
    _check(layer)
    net, back = layer.net, bool(layer.get("go_backwards", False))
    x, *states = layer.inputs
    layer.inputs = [net.reverse(x, [1])] if back else [x]
    y, *last = _run(layer, _weights(layer, layer.weights), states, "forward")
    n, units = net.dims(layer.x)[0], net.dims(y)[-1]
    last = [net.reshape(v, (n, units)) for v in last]
    made = last[0]
    if layer.get("return_sequences", False):
        made = net.transpose(net.reshape(y, (net.dims(y)[0], n, units)), (1, 0, 2))
    return [made, *last] if layer.get("return_state", False) else [made]


def _bidirectional(layer: Layer) -> list[Value]:
    """Both directions in one operator; the outputs joined as the layer says."""
    net, entry = layer.net, layer.get("layer")
    inner = layer.inner(entry, layer.weights, layer.inputs[:1])
    _check(inner)
    if inner.kind not in _GATES or inner.get("return_state", False) or len(layer.inputs) > 1:
        raise RefusedError(f"{inner.kind} with these settings in two directions is not supported")
    sides = [_weights(inner, layer.weights.part(side)) for side in ("forward", "backward")]
    both = [np.concatenate(pair) for pair in zip(*sides, strict=True)]
    y, last, *_ = _run(inner, both, [], "bidirectional")
    n, units = net.dims(y)[2:]
    if inner.get("return_sequences", False):
        halves = [net.transpose(net.squeeze(v, [1]), (1, 0, 2)) for v in net.split(y, [1, 1], 1)]
    else:
        halves = [net.reshape(v, (n, units)) for v in net.split(last, [1, 1], 0)]
    mode = layer.get("merge_mode", "concat")
    if mode == "concat":
        return [net.add("Concat", *halves, axis=-1)]
    if mode not in ("sum", "mul", "ave"):
        raise RefusedError(f"the merge mode {mode} is not supported")
    op = {"sum": "Add", "mul": "Mul", "ave": "Mean"}[mode]
    return [net.add(op, *halves)]


RECURRENT: dict[str, Callable[[Layer], list[Value]]] = {
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN", "CuDNNLSTM", "CuDNNGRU"), _recurrent),
    "Bidirectional": _bidirectional,
}
