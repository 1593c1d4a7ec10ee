"""Tengine's tmfiles, version 2.

A tensor of 8 bits with a scale is read as floats between QuantizeLinear and DequantizeLinear, inputs and outputs of the
graph stay floats; constants are dequantised and keep their integers beside them.

The benchmark files of Tengine hold no weights; they can be inspected, not compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenon.errors import FormatError
from tenon.formats.graph_builder.builder import GraphBuilder, required_input
from tenon.formats.graph_builder.errors import RefusedError, unknown
from tenon.formats.importers.tengine.file import DTYPES, NodeRecord, TengineNetwork, TengineTensor, is_tmfile, read
from tenon.formats.importers.tengine.node import TengineNode
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Graph, Value
from tenon.network.graph.types import F32, I32, Dim, DType, TensorType

_CONST, _CONVOLUTION, _INPUT = 4, 5, 12


def recognise(file: ModelFile) -> bool:
    """Version 2.0, or the ending."""
    return file.suffix == ".tmfile" or is_tmfile(file.data)


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """See ``importers.load`` for errors."""
    if not is_tmfile(file.data):
        version = ".".join(str(n) for n in file.data[:6:2]) if len(file.data) >= 6 else "?"
        raise FormatError(f"{file.name}: not a tmfile of version 2.0 (it says {version}), or damaged")
    try:
        network = read(file.data)
    except FormatError as error:
        raise FormatError(f"{file.name}: {error}") from error
    if network.layout != 0:
        raise FormatError(f"{file.name}: its tensors are NHWC; only NCHW is supported (convert the model again)")
    return _build(GraphBuilder(file, file.stem, shapes, inputs, outputs), network)


def _build(builder: GraphBuilder, network: TengineNetwork) -> Graph:
    values: dict[int, Value] = {}
    for node in network.nodes:
        if node.type == _INPUT:
            for i in node.outputs:
                name = _at(network, i).name
                values[i] = _input(builder, network, i)
                with builder.layer(name, "InputOp"):
                    values[i] = builder.scope[name] = _requantised(builder, _at(network, i), values[i])
        elif node.type == _CONST:
            continue
        else:
            _layer(builder, network, node, values)
    return builder.finish([_at(network, i).name for n in network.outputs for i in _node(network, n).outputs])


def _input(builder: GraphBuilder, network: TengineNetwork, i: int) -> Value:
    """Raises ShapeError when the shape is neither in the file nor given."""
    tensor = _at(network, i)
    dims: tuple[Dim, ...] = tensor.dims
    if len(dims) < 2:
        dims = (1, _channels(network, i) or f"{tensor.name}_c", f"{tensor.name}_h", f"{tensor.name}_w")
    named = tuple(d if not isinstance(d, int) or d > 0 else f"{tensor.name}_{axis}" for axis, d in enumerate(dims))
    return required_input(builder, tensor.name, TensorType(I32 if tensor.data_type == 4 else F32, named))


def _requantised(builder: GraphBuilder, tensor: TengineTensor, value: Value) -> Value:
    """Floats rounded to the integers that a tensor of 8 bits stores."""
    if tensor.quant is None or not value.typed or not value.type.dtype.is_float:
        return value
    low, high = (-128, 127) if tensor.dtype is DType.I8 else (0, 255)
    if not low <= tensor.quant.zero_point[0] <= high:
        raise RefusedError(f"the zero point {tensor.quant.zero_point[0]} of '{tensor.name}' is impossible")
    scale = builder.scalar(tensor.quant.scale[0])
    zero = builder.constant(np.array(tensor.quant.zero_point[0], tensor.dtype.numpy), "zero_point")
    stored = builder.add("QuantizeLinear", value, scale, zero, to=tensor.dtype.value)
    return builder.add("DequantizeLinear", stored, scale, zero)


def _channels(network: TengineNetwork, i: int) -> int:
    """The channels that the first node to read a tensor expects, if it is a convolution; else 0."""
    first = next((node for node in network.nodes if i in node.inputs), None)
    if first is None or first.type != _CONVOLUTION or len(first.inputs) < 2:
        return 0
    weights = _at(network, first.inputs[1]).dims
    return weights[1] if len(weights) == 4 else 0


def _layer(builder: GraphBuilder, network: TengineNetwork, node: NodeRecord, values: dict[int, Value]) -> None:
    from tenon.formats.importers.tengine.layers import LAYERS

    name, fields, function = LAYERS.get(node.type, (f"operator {node.type}", "", None))
    tops = [_at(network, i).name for i in node.outputs]
    with builder.layer(node.name, name, *tops):
        inputs = [_read(builder, network, i, values) for i in node.inputs]
        if function is None:
            raise unknown(name, [])
        if not inputs:
            raise RefusedError("it has no inputs")
        if all(value.typed for value in inputs):
            outputs = function(TengineNode(builder, network.reader, node, inputs, fields))
            results = [outputs] if isinstance(outputs, Value) else outputs
            for i, top, value in zip(node.outputs, tops, results, strict=False):
                builder[top] = _requantised(builder, _at(network, i), value)
    for i, top in zip(node.outputs, tops, strict=True):
        values[i] = builder.scope[top]


def _read(builder: GraphBuilder, network: TengineNetwork, i: int, values: dict[int, Value]) -> Value:
    """A tensor of the file as a value: a constant when its node is one."""
    tensor = _at(network, i)
    if tensor.constant and i not in values:
        if tensor.data is not None:
            values[i] = builder.constant(tensor.data, "weights")
            values[i].stored = tensor.stored
        else:
            if any(d < 0 for d in tensor.dims) or tensor.data_type not in DTYPES:
                raise RefusedError(f"weights of the shape {list(tensor.dims)} are impossible")
            values[i] = builder.placeholder(tensor.dims)
    if tensor.name in builder:
        return builder[tensor.name]
    if i not in values:
        raise RefusedError(f"reads '{tensor.name}', which no earlier node computes")
    return values[i]


def _at(network: TengineNetwork, i: int) -> TengineTensor:
    if not 0 <= i < len(network.tensors):
        raise FormatError(f"tensor {i} of {len(network.tensors)}; the file is damaged")
    return network.tensors[i]


def _node(network: TengineNetwork, i: int) -> NodeRecord:
    if not 0 <= i < len(network.nodes):
        raise FormatError(f"node {i} of {len(network.nodes)}; the file is damaged")
    return network.nodes[i]
