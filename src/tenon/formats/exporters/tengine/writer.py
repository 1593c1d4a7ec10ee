"""A graph as nodes and tensors of a tmfile.

A tensor of a tmfile is of integers with a scale and a zero point, or of floats: the QuantizeLinear and DequantizeLinear
between two operators become the type of the tensor between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tenon.errors import ModelError, Problem, UnsupportedError
from tenon.formats.exporters.tengine.file import (
    CONST_NODE,
    CONSTANT,
    INPUT,
    INPUT_NODE,
    TmfileNetwork,
    TmfileNode,
    Word,
)
from tenon.formats.exporters.tengine.file import TmfileTensor as TensorToWrite
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import DType, Quant
from tenon.network.ops.quantised_values import bounds, dequantised, integers_of, scalar_grid
from tenon.network.ops.quantize import DequantizeLinear, QuantizeLinear
from tenon.network.ops.softmax import Softmax

BYTES = (DType.I8, DType.U8)
"""Types of quantised tensors."""


class NotInTengineError(Exception):
    """An operator that Tengine does not have; ``what`` and ``remedy`` go to the user."""

    def __init__(self, what: str, remedy: str = "exclude the layer or write ONNX or TFLite instead") -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


class TmfileWriter:
    """Writes one graph."""

    def __init__(self, graph: Graph, layers: Mapping[str, Callable[[TmfileWriter, Node], None]]) -> None:
        self.graph, self.layers = graph, layers
        self.network = TmfileNetwork()
        self.problems: list[Problem] = []
        self.numbers: dict[Value, int] = {}
        self.done: set[Node] = set()

    def write(self) -> bytes:
        """The file.  Raises UnsupportedError listing every operator that Tengine has not, and ModelError."""
        source = self.graph.source or self.graph.name
        for value in self.graph.inputs:
            if value.type.dtype is not DType.F32:
                raise ModelError(f"{source}: input '{value.name}' of {value.type.dtype}: tmfiles here have f32 inputs")
            i = self.tensor(value)
            self.network.tensors[i].kind = INPUT
            self.network.inputs.append(len(self.network.nodes))
            self.network.nodes.append(TmfileNode(value.name, INPUT_NODE, (), (), (i,)))
        for node in self.graph:
            if node not in self.done:
                self._layer(node)
        if self.problems:
            raise UnsupportedError(source, self.problems)
        made = {i: n for n, node in enumerate(self.network.nodes) for i in node.outputs}
        for value in self.graph.outputs:
            i = self.numbers[value]
            self.network.tensors[i].name = value.name
            self.network.outputs.append(made[i])
        return self.network.serialised(self.graph.name or "graph")

    def _layer(self, node: Node) -> None:
        try:
            if isinstance(node.op, QuantizeLinear):
                self._requantised(node)
            elif isinstance(node.op, DequantizeLinear):
                if integers_of(node.output) is None:
                    self.numbers[node.output] = self.numbers[node.input(0)]
            elif node.op.name not in self.layers:
                raise NotInTengineError(f"Tengine has no operator {node.op.name}")
            else:
                self.layers[node.op.name](self, node)
        except NotInTengineError as error:
            where = str(node.origin) if node.origin.layer else f"{node.output.name} ({node.op.name})"
            self.problems.append(Problem(where, error.what, error.remedy))
            for value in node.outputs:  # what follows can still be looked at
                self.tensor(value)

    def _requantised(self, node: Node) -> None:
        """A QuantizeLinear that no operator before it took: of integers with the same scale, or refused."""
        grid, i = scalar_grid(node, BYTES), self.numbers[node.input(0)]
        tensor = self.network.tensors[i]
        if grid is None or (grid[0].scale, grid[0].zero_point, grid[1]) != (tensor.scales, tensor.zeros, tensor.dtype):
            raise NotInTengineError("tmfiles have no operator that only quantises")
        self.numbers[node.output] = i

    # ---------------------------------------------------------------------------------------- tensors
    def tensor(self, value: Value) -> int:
        """A new tensor that holds a value: integers, if a QuantizeLinear is all that reads it, after bounds at most,
        which then work on integers of the same scale."""
        last = value
        reader = self._only_reader(last)
        while reader is not None and bounds(reader) is not None:
            last = reader.output
            reader = self._only_reader(last)
        grid = scalar_grid(reader, BYTES) if reader is not None and isinstance(reader.op, QuantizeLinear) else None
        i = len(self.network.tensors)
        if grid is None:
            self.network.tensors.append(TensorToWrite(value.name, value.type.dims, DType.F32))
        else:
            scales, zeros = grid[0].scale, grid[0].zero_point
            self.network.tensors.append(TensorToWrite(value.name, value.type.dims, grid[1], scales=scales, zeros=zeros))
            if last is value and reader is not None:
                self.done.add(reader)
                self.numbers[reader.output] = i
        self.numbers[value] = i
        return i

    def _only_reader(self, value: Value) -> Node | None:
        return value.uses[0] if len(value.uses) == 1 and not self.graph.is_output(value) else None

    def constant(self, name: str, data: Array, quant: Quant | None = None) -> int:
        """A new constant."""
        i = len(self.network.tensors)
        scales, zeros = (quant.scale, quant.zero_point) if quant is not None else ((), ())
        dtype = DType.of(data.dtype)
        self.network.tensors.append(TensorToWrite(name, data.shape, dtype, CONSTANT, scales, zeros, data))
        self.network.nodes.append(TmfileNode(name, CONST_NODE, (), (), (i,)))
        return i

    def operand(self, value: Value) -> int:
        """The tensor that holds a value."""
        if value in self.numbers:
            return self.numbers[value]
        stored = integers_of(value)
        if stored is not None and stored.scale.size == 1 and DType.of(stored.data.dtype) in BYTES:
            quant = Quant((float(stored.scale.reshape(())),), (int(stored.zero.reshape(())),))
            self.numbers[value] = self.constant(value.name, stored.data, quant)
        elif value.data is not None or stored is not None:
            self.numbers[value] = self.constant(value.name, dequantised(value))
        else:
            raise NotInTengineError(f"it reads '{value.name}', which could not be written")
        return self.numbers[value]

    def quantised(self, value: Value) -> TensorToWrite | None:
        """The tensor that holds a value, if it is one of integers."""
        tensor = self.network.tensors[self.operand(value)]
        return tensor if tensor.scales else None

    # ---------------------------------------------------------------------------------------- nodes
    def add(
        self,
        node: Node,
        type: int,
        parameters: Sequence[Word],
        inputs: Sequence[int],
        value: Value | None = None,
        alike: bool = False,
    ) -> None:
        """A node that computes ``value`` (the node's result); ``alike`` says that integers keep their scale."""
        y = node.output if value is None else value
        i = self.tensor(y)
        tensor, first = self.network.tensors[i], self.network.tensors[inputs[0]]
        if alike and not tensor.scales and first.scales:
            tensor.dtype, tensor.scales, tensor.zeros = first.dtype, first.scales, first.zeros
        elif bool(tensor.scales) != bool(first.scales) and not (isinstance(node.op, Softmax) and not node.op.log):
            where = "quantised" if tensor.scales else "in float"
            raise NotInTengineError(f"its result is {where}, its input is not: Tengine has no operators of both")
        name = str(node.origin.layer) or y.name
        self.network.nodes.append(TmfileNode(name, type, parameters, tuple(inputs), (i,)))

    def intermediate(self, node: Node, what: str, type: int, x: int) -> int:
        """A float tensor of x's shape, which a Tengine operator of one operand computes for ``node``."""
        i, name = len(self.network.tensors), f"{node.output.name}_{what}"
        self.network.tensors.append(TensorToWrite(name, self.network.tensors[x].dims, DType.F32))
        self.network.nodes.append(TmfileNode(name, type, (), (x,), (i,)))
        return i

    def activated(self, node: Node) -> tuple[Value, int]:
        """The result after an activation that a convolution computes itself, and the number of that one."""
        y = node.output
        reader = y.uses[0] if len(y.uses) == 1 and not self.graph.is_output(y) else None
        limits = bounds(reader) if reader is not None else None
        number = {(0.0, math.inf): 0, (0.0, 6.0): 6}.get(limits, -1) if limits is not None else -1
        if number < 0 or reader is None:
            return y, -1
        self.done.add(reader)
        return reader.output, number


def weights(w: TmfileWriter, node: Node, axis: int, perm: Sequence[int]) -> list[int]:
    """Weights, turned by ``perm`` to output channels first, and bias of a product."""
    name, x = node.output.name, w.quantised(node.input(0))
    stored, bias = integers_of(node.input(1)), node.inputs[2] if len(node.inputs) > 2 else None
    if x is None or stored is None:
        tensors = [w.constant(f"{name}_weights", np.ascontiguousarray(dequantised(node.input(1)).transpose(perm)))]
        return tensors if bias is None else [*tensors, w.constant(f"{name}_bias", dequantised(bias).reshape(-1))]
    full = (1,) * (stored.data.ndim - stored.scale.ndim) + stored.scale.shape
    if any(n > 1 and i != axis for i, n in enumerate(full)) or DType.of(stored.data.dtype) not in BYTES:
        raise NotInTengineError("Tengine has weights of 8 bits with a scale for all or for each output channel")
    scale, zero = stored.scale.reshape(-1).astype(np.float32), int(stored.zero.reshape(-1)[0])
    quant = Quant(tuple(map(float, scale)), (zero,) * scale.size)
    tensors = [w.constant(f"{name}_weights", np.ascontiguousarray(stored.data.transpose(perm)), quant)]
    if bias is None:
        return tensors
    steps = np.float32(x.scales[0]) * scale
    whole = integers_of(bias)
    if whole is None or not np.allclose(whole.scale.reshape(-1), steps, rtol=1e-5):
        data = np.clip(np.rint(dequantised(bias).reshape(-1) / steps), -(2**31), 2**31 - 1).astype(np.int32)
    else:
        data = whole.data.reshape(-1).astype(np.int32)
    return [*tensors, w.constant(f"{name}_bias", data, Quant(tuple(map(float, steps)), (0,) * steps.size))]
