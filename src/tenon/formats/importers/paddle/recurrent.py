"""Paddle's operator rnn: layers of LSTM, GRU or plain cells over [T, N, I].

Definition: paddle/phi/kernels/cpu/rnn_kernel.cc; the list of weights has those of the input and of the state of every
layer and direction, then the biases in the same order.  Gates stand as in cuDNN.
"""

from __future__ import annotations

from tenon.formats.decompositions.recurrent_layers import CUDNN, Direction, run
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.paddle.node import PaddleNode
from tenon.network.graph.graph import Value

_KINDS = {"LSTM": "LSTM", "GRU": "GRU", "RNN_TANH": "RNN", "RNN_RELU": "RNN"}


def rnn(node: PaddleNode) -> Value:
    mode, depth = str(node.attributes.get("mode", "")), node.integer("num_layers", 1)
    sides = 2 if node.attributes.get("is_bidirec") else 1
    weights = node.slots.get("WeightList", [])
    if mode not in _KINDS or len(weights) != 4 * depth * sides:
        raise RefusedError(f"{len(weights)} weights for {depth} layers of the kind '{mode}' are not supported")
    if node.slots.get("SequenceLength"):
        raise RefusedError("lengths of sequences are not supported")
    half = len(weights) // 2
    each = [Direction(weights[i], weights[i + 1], weights[half + i], weights[half + i + 1]) for i in range(0, half, 2)]
    layers = [each[i : i + sides] for i in range(0, len(each), sides)]
    options = {"activations": ("Relu",) * sides} if mode == "RNN_RELU" else {}
    kind = _KINDS[mode]
    result = run(node, kind, node.x, layers, CUDNN[kind], node.slots.get("PreState", []), **options)
    for name, state in zip(node.outputs.get("State", ()), result.states, strict=False):
        node.builder[name] = state
    return result.outputs
