"""Keras's recurrent layers as ONNX's LSTM, GRU and RNN, which are unrolled over time.

Keras keeps [input, gates], ONNX [gates, input]; Keras's LSTM has its gates as input, forget, cell, output, ONNX's as
input, output, forget, cell; both have GRU's as update, reset, hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.keras.importer import KerasLayer
from tenon.formats.importers.keras.weights import KerasWeights
from tenon.network.graph.graph import Array, Value

_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (0, 1, 2), "SimpleRNN": (0,)}
_OPS = {"LSTM": "LSTM", "GRU": "GRU", "SimpleRNN": "RNN"}
_FUNCTIONS = {
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "hard_sigmoid": "HardSigmoid",
    "linear": "Affine",
    "elu": "Elu",
    "softplus": "Softplus",
    "softsign": "Softsign",
}
_PLAIN = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "SimpleRNN": ("Tanh",)}
_OLD = {"CuDNNLSTM": "LSTM", "CuDNNGRU": "GRU"}


def _kind(layer: KerasLayer) -> str:
    return _OLD.get(layer.kind, layer.kind)


def _functions(layer: KerasLayer) -> dict[str, Any]:
    """The attributes that say which activations are used, where they are not ONNX's own choice."""
    kind = _kind(layer)
    names = [str(layer.get("activation", "tanh"))]
    names = names if kind == "SimpleRNN" else [str(layer.get("recurrent_activation", "sigmoid")), *names]
    names = [*names, names[-1]] if kind == "LSTM" else names
    unknown = [name for name in names if name not in _FUNCTIONS]
    if unknown:
        raise RefusedError(f"the activation '{unknown[0]}' of a recurrent layer is not supported")
    functions = tuple(_FUNCTIONS[name] for name in names)
    if functions == _PLAIN[kind]:
        return {}
    alphas = {"HardSigmoid": 1 / 6 if layer.importer.version >= 3 else 0.2, "Affine": 1.0, "Elu": 1.0}
    betas = {"HardSigmoid": 0.5, "Affine": 0.0}
    return {
        "activations": functions,
        "activation_alpha": [alphas[name] for name in functions if name in alphas],
        "activation_beta": [betas[name] for name in functions if name in betas],
    }


def _weights(layer: KerasLayer, weights: KerasWeights) -> list[Array]:
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


def _check(layer: KerasLayer) -> None:
    if layer.get("time_major", False):
        raise RefusedError("time before the batch is not supported")


def _attributes(layer: KerasLayer, units: int) -> dict[str, Any]:
    attributes: dict[str, Any] = {"hidden_size": units, **_functions(layer)}
    if _kind(layer) == "GRU":
        attributes["linear_before_reset"] = int(bool(layer.get("reset_after", layer.kind == "CuDNNGRU")))
    return attributes


def _passed(layer: KerasLayer, weights: KerasWeights, x: Value, states: Sequence[Value]) -> tuple[Value, list[Value]]:
    """The outputs of the layer, in the order in which it reads the steps, and its last states."""
    _check(layer)
    builder, kind = layer.builder, _kind(layer)
    if kind not in _GATES:
        raise RefusedError(f"the layer {layer.kind} is not one that can be run over steps here")
    x = builder.reverse(x, [1]) if layer.get("go_backwards", False) else x
    arrays = _weights(layer, weights)
    constants = [builder.constant(np.ascontiguousarray(a, np.float32), "weights") for a in arrays]
    parts, size = ("h", "c") if kind == "LSTM" else ("h",), (builder.dims(x)[0], arrays[1].shape[2])
    kept = [layer.state(part, *size) for part in parts] if layer.get("stateful", False) and not states else []
    initial = [builder.reshape(s, (1, *builder.dims(s))) for s in kept or states]
    attributes = _attributes(layer, arrays[1].shape[2])
    y, *last = builder.recurrent(
        _OPS[kind], [builder.transpose(x, (1, 0, 2)), *constants, None, *initial], **attributes
    )
    steps, _, n, units = builder.dims(y)
    last = [builder.reshape(v, (n, units)) for v in last[: len(parts)]]
    for before, after in zip(kept, last, strict=False):
        layer.next_state(before, after)
    if not layer.get("return_sequences", False):
        return last[0], last
    return builder.transpose(builder.reshape(y, (steps, n, units)), (1, 0, 2)), last


def _recurrent(layer: KerasLayer) -> list[Value]:
    x, *states = layer.inputs
    result, last = _passed(layer, layer.weights, x, states)
    if not layer.get("return_state", False):
        return [result]
    return [result, *(layer.builder.add("Identity", v) if v is result else v for v in last)]


def _of_cell(layer: KerasLayer) -> list[Value]:
    """A cell that is run over the steps is the layer of its name."""
    cell = layer.get("cell")
    kind = str(cell.get("class_name", "")) if isinstance(cell, dict) else "a stack of cells"
    if kind.removesuffix("Cell") not in _GATES or not kind.endswith("Cell"):
        raise RefusedError(f"{kind} run over steps is not supported")
    config = {**layer.config, **cell["config"]}
    entry = {"class_name": kind.removesuffix("Cell"), "config": config}
    return _recurrent(layer.inner(entry, layer.weights, layer.inputs))


def _bidirectional(layer: KerasLayer) -> list[Value]:
    """One layer over the steps and another against them; the outputs joined by the layer's merge mode."""
    builder, entry = layer.builder, layer.get("layer")
    backward = {**entry, "config": {**entry["config"], "go_backwards": not entry["config"].get("go_backwards", False)}}
    entries = {"forward": entry, "backward": layer.get("backward_layer", backward)}
    x, *states = layer.inputs
    half, directions, last = len(states) // 2, list[Value](), list[Value]()
    for side, given in zip(entries, (states[:half], states[half:]), strict=True):
        weights = layer.weights.part(side, str(entries[side]["config"].get("name", side)))
        result, ends = _passed(inner := layer.inner(entries[side], weights, [x]), weights, x, given)
        if side == "backward" and inner.get("return_sequences", False):
            result = builder.reverse(result, [1])
        directions.append(result)
        last += [builder.add("Identity", v) if v is result else v for v in ends]
    joined = _joined(layer, directions)
    return [*joined, *last] if layer.inner(entry, layer.weights, []).get("return_state", False) else joined


def _joined(layer: KerasLayer, directions: list[Value]) -> list[Value]:
    mode = layer.config.get("merge_mode", "concat")
    if mode is None:
        return directions
    if mode == "concat":
        return [layer.builder.add("Concat", *directions, axis=-1)]
    if mode not in ("sum", "mul", "ave"):
        raise RefusedError(f"the merge mode {mode} is not supported")
    return [layer.builder.add({"sum": "Add", "mul": "Mul", "ave": "Mean"}[mode], *directions)]


RECURRENT: dict[str, Callable[[KerasLayer], list[Value]]] = {
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN", "CuDNNLSTM", "CuDNNGRU"), _recurrent),
    "Bidirectional": _bidirectional,
    "RNN": _of_cell,
}
