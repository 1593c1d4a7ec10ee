"""An operator of a TFLite file as the functions that import it see it, and the loop over all of them."""

from __future__ import annotations

import copy
import itertools
from collections import ChainMap
from collections.abc import Callable, Container, Mapping, MutableMapping, Sequence
from dataclasses import replace

import numpy as np

from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.formats.graph_builder.errors import RefusedError, unknown
from tenon.formats.importers.shared.tensorflow_family import TensorflowFamilyNode
from tenon.formats.importers.tflite.content import TfliteGraph, TfliteOperation, TfliteTensor
from tenon.formats.importers.tflite.row_updates import row_updates
from tenon.formats.importers.tflite.variables import Argument, Complex, Handle, Variables
from tenon.network.graph.graph import Array, Graph, Stored, Value
from tenon.network.graph.types import WHOLE, DType, Quant, TensorType

MAX_DEPTH = 32
"""Sub-graphs that call each other."""


class TfliteImporter:
    """The import of one file.  ``content`` is the sub-graph being imported: the main one, or one that is called."""

    def __init__(
        self,
        builder: ChannelsLast,
        graphs: Sequence[TfliteGraph],
        operators: Mapping[str, OperatorFunction],
        movers: Container[str],
    ) -> None:
        self.builder = builder
        self.graphs = graphs
        self.content = content = graphs[0]
        self.operators = operators
        self.movers = movers
        self.builder.remember()
        self.names = _unique([t.name for t in content.tensors])
        self.reals: MutableMapping[Value, Value] = {}
        self.counts: MutableMapping[Value, Value] = {}
        self.stepped: set[Value] = set()
        """Values in steps of the scale of the tensor that they become."""
        self.tables: dict[str, Value] = {}
        """Constants that operators share, by what they hold."""
        self.kept: list[str] = []
        """Outputs that are the next run's states."""
        self.variables = Variables(graphs)
        self.handles: dict[int, str] = {}
        """Variables by the tensors of this sub-graph that refer to them."""
        self.complex: dict[int, Complex] = {}
        """Tensors of this sub-graph that hold complex numbers."""
        self.calls = itertools.count()
        self.updates = row_updates(content)
        self.depth = 0
        self.callers: tuple[TfliteGraph, ...] = (content,)
        """The sub-graphs that are being imported, one within the other."""

    def run(self) -> Graph:
        """Raises ModelError listing every problem."""
        builder, content = self.builder, self.content
        builder.inputs({self.names[i]: content.tensors[i].type for i in dict.fromkeys(content.inputs)})
        self.operations()
        self.kept += self.variables.finish(builder)
        for i in content.outputs:
            if self.names[i] not in builder and content.tensors[i].data is not None:
                with builder.layer(self.names[i], "constant", self.names[i]):
                    builder[self.names[i]] = self.raw(i)
        return builder.finish([*(self.names[i] for i in content.outputs), *self.kept])

    def operations(self) -> None:
        """Import the operators of the sub-graph."""
        for operation in self.content.operations:
            tops = [self.names[i] for i in operation.outputs if i >= 0]
            with self.builder.layer(tops[0] if tops else operation.type, operation.type, *tops):
                self.operation(operation)

    def operation(self, operation: TfliteOperation) -> None:
        function = self.operators.get(operation.type)
        for name in (self.names[i] for i in operation.inputs if i >= 0):
            if name in self.builder:
                self.builder[name]  # the builder records that it is read, even if the operator is refused
        if self.row_update(operation):
            return
        try:
            if function is None:
                raise unknown(operation.type, self.operators)
            moves = operation.type in self.movers and not operation.options.get("activation")
            layer = TfliteNode(self, operation, moves and self.same_quantisation(operation))
            outputs = self.moved_parts(layer, function) if moves else _listed(function(layer))
            if len(outputs) < len(operation.outputs):
                raise RefusedError(f"it has {len(outputs)} outputs, and the file asks for {len(operation.outputs)}")
        except RefusedError:
            for i in operation.outputs:
                if i >= 0:  # what follows can still be looked at
                    self.builder[self.names[i]] = Value(self.names[i], self.content.tensors[i].type)
            raise
        for i, value in zip(operation.outputs, outputs, strict=False):
            if i >= 0 and isinstance(value, Value):
                self.store(i, value)
            else:
                self.set_argument(i, value)

    def row_update(self, operation: TfliteOperation) -> bool:
        """Import an operator that is part of the update of a row whose number is not known; False if it is none."""
        for result, update in self.updates.items():
            index = self.builder.scope.get(self.names[update.index])
            if index is None or index.constant:
                continue
            if operation.outputs[0] in update.slices:
                return True
            if operation.outputs[0] == result:
                number = self.builder.reshape(self.builder.add("Cast", index, to="i64"), (1, 1))
                whole, row = self.raw(update.whole), self.raw(update.row)
                self.store(result, self.builder.add("ScatterND", whole, number, row))
                return True
        return False

    def moved_parts(self, node: TfliteNode, function: OperatorFunction) -> list[Argument]:
        """The results of an operator that only moves elements; both parts of complex numbers are moved alike."""
        numbers = [i for i in node.operation.inputs if i in self.complex]
        if not numbers:
            return _listed(function(node))
        results = []
        for k in (0, 1):
            node.parts = {i: self.complex[i].parts[k] for i in numbers}
            results.append([v for v in _listed(function(node)) if isinstance(v, Value)])
        return [Complex(*pair) for pair in zip(*results, strict=True)]

    def call(self, number: int, arguments: Sequence[Argument], *, apart: bool = False) -> list[Argument]:
        """The results of another sub-graph, whose operators become part of this graph.  Raises RefusedError.

        ``apart``: they become part of a body, so nothing outside may share what they compute.
        """
        if not 0 < number < len(self.graphs):
            raise RefusedError(f"it calls sub-graph {number}, which does not exist")
        if any(graph is self.graphs[number] for graph in self.callers):
            raise RefusedError(f"sub-graph {number} calls itself")
        if self.depth >= MAX_DEPTH:
            raise RefusedError(f"sub-graphs call each other more than {MAX_DEPTH} deep")
        inner = copy.copy(self)
        inner.content, inner.handles, inner.complex = self.graphs[number], {}, {}
        inner.updates = row_updates(inner.content)
        inner.depth, inner.callers = self.depth + 1, (*self.callers, inner.content)
        if apart:
            inner.reals, inner.counts = ChainMap({}, self.reals), ChainMap({}, self.counts)
        inner.names = _unique([f"{inner.content.name}/{next(self.calls)}/{t.name}" for t in inner.content.tensors])
        if len(arguments) != len(inner.content.inputs):
            raise RefusedError(f"sub-graph {number} has {len(inner.content.inputs)} inputs, not {len(arguments)}")
        for i, argument in zip(inner.content.inputs, arguments, strict=True):
            inner.set_argument(i, argument)
        inner.operations()
        return [inner.argument(i) for i in inner.content.outputs]

    def set_argument(self, i: int, argument: Argument) -> None:
        """Make ``argument`` tensor ``i`` of this sub-graph."""
        if isinstance(argument, Handle):
            self.handles[i] = argument.variable
        elif isinstance(argument, Complex):
            self.complex[i] = argument
        else:
            self.builder.scope[self.names[i]] = argument

    def argument(self, i: int) -> Argument:
        """Tensor ``i`` as it is stored, its complex numbers, or the variable that it refers to."""
        if i in self.handles:
            return Handle(self.handles[i])
        return self.complex[i] if i in self.complex else self.raw(i)

    def same_quantisation(self, operation: TfliteOperation) -> bool:
        """Whether all quantised operands share one quantisation, so that integers may be moved as they are."""
        tensors = [self.content.tensors[i] for i in (*operation.inputs, *operation.outputs) if i >= 0]
        quants = {(t.dtype, t.quant) for t in tensors if t.quant is not None and t.dtype is not DType.I32}
        return len(quants) <= 1

    def store(self, i: int, value: Value) -> None:
        """Make ``value`` tensor ``i``, quantised if that is what the tensor is."""
        tensor, builder = self.content.tensors[i], self.builder
        dtype = builder.type(value).dtype
        if tensor.broken:
            raise RefusedError(f"its output: {tensor.broken}")
        if tensor.quant is not None and dtype.is_float and not tensor.dtype.is_float:
            scale, zero = self.grid(tensor)
            scale = builder.scalar(1.0) if value in self.stepped else scale
            value = builder.add("QuantizeLinear", value, scale, zero, to=tensor.dtype.value)
        elif dtype is not tensor.dtype:
            value = builder.add("Cast", value, to=tensor.dtype.value)
        builder[self.names[i]] = value
        if tensor.quant is not None and not value.constant and not tensor.dtype.is_float:
            value.type = replace(value.type, quant=tensor.quant)

    def grid(self, tensor: TfliteTensor) -> tuple[Value, Value]:
        """A tensor's scale and zero point, as operands."""
        quant = tensor.quant
        assert quant is not None
        if len(quant.scale) > 1:
            raise RefusedError("quantisation per channel of a tensor computed at run time is not supported")
        info = np.iinfo(tensor.dtype.numpy.name)
        if not info.min <= quant.zero_point[0] <= info.max or quant.scale[0] <= 0:
            raise RefusedError(f"the quantisation of '{tensor.name}' is impossible")
        zero = np.array(quant.zero_point[0], tensor.dtype.numpy)
        return self.builder.scalar(quant.scale[0]), self.builder.constant(zero, "zero_point")

    def raw(self, i: int) -> Value:
        """Tensor ``i`` as it is stored."""
        tensor, name = self.content.tensors[i], self.names[i]
        if tensor.broken:
            raise RefusedError(f"tensor '{tensor.name}': {tensor.broken}")
        if name not in self.builder and tensor.data is not None:
            return self.builder.quantized(tensor.data, name, tensor.quant)
        return self.builder[name]

    def real(self, i: int) -> Value:
        """Tensor ``i`` as the numbers that it stands for."""
        tensor = self.content.tensors[i]
        if tensor.quant is None or tensor.dtype.is_float:
            return self.raw(i)
        if self.names[i] not in self.builder and tensor.data is not None and not tensor.broken:
            real = dequantized(tensor.data, tensor.quant)
            constant = self.builder.quantized(real, f"{self.names[i]}_real", tensor.quant)
            if tensor.data.ndim == 1 and tensor.dtype in (DType.I32, DType.I64):  # a bias, which f32 may not hold
                points = np.array(tensor.quant.zero_point, np.int64)
                constant.stored = Stored(tensor.data, np.array(tensor.quant.scale, np.float32), points)
            return constant
        value = self.raw(i)
        if value not in self.reals:
            scale, zero = self.grid(tensor)
            counted = self.counts.get(value)
            self.reals[value] = (
                self.builder.add("DequantizeLinear", value, scale, zero)
                if counted is None
                else self.builder.add("Mul", counted, scale)
            )
        return self.reals[value]

    def counted(self, i: int) -> Value:
        """Tensor ``i``, which is quantised, as f32 numbers of steps from its zero point."""
        tensor = self.content.tensors[i]
        assert tensor.quant is not None
        if tensor.data is not None:
            quant = Quant((1.0,) * len(tensor.quant.scale), tensor.quant.zero_point, tensor.quant.axis)
            known = replace(tensor.quant, steps=True)
            return self.builder.quantized(dequantized(tensor.data, quant), f"{self.names[i]}_steps", known)
        value = self.raw(i)
        if value not in self.counts:
            _, zero = self.grid(tensor)
            self.counts[value] = self.builder.add("DequantizeLinear", value, self.builder.scalar(1.0), zero)
        return self.counts[value]


class TfliteNode(TensorflowFamilyNode):
    """An operator of the file as the functions of ``tflite.ops`` see it.

    ``raw`` says that integers are moved as they are: then ``input`` gives what is stored, not what it stands for.
    """

    def __init__(self, importer: TfliteImporter, operation: TfliteOperation, raw: bool) -> None:
        super().__init__(importer.builder, attributes=operation.options)
        self.importer = importer
        self.operation = operation
        self.raw = raw
        self.parts: dict[int, Value] = {}
        """One of the two parts of operands that are complex numbers."""

    @property
    def count(self) -> int:
        return len(self.operation.inputs)

    def has(self, i: int) -> bool:
        return i < self.count and self.operation.inputs[i] >= 0

    def index(self, k: int) -> int:
        if not self.has(k):
            raise RefusedError(f"input {k} is missing")
        return self.operation.inputs[k]

    def input(self, i: int = 0) -> Value:
        """Operand ``i``.  Raises RefusedError if it is absent or its type is not known."""
        if self.index(i) in self.parts:
            return self.parts[self.index(i)]
        value = self.importer.raw(self.index(i)) if self.raw else self.importer.real(self.index(i))
        self.builder.type(value)
        return value

    def factors(self, x: int, w: int, bias: int, axis: int) -> tuple[Value, Value, Value | None, Array | None]:
        """Operands of a product, and what one step of the result stands for.

        Of 8-bit numbers these are the integers themselves, whose sums are exact in f32 (below 2**24) in any order, as
        LiteRT has them; of others they are the real numbers, and the step is None.  ``axis`` is that of the weights
        which is the channels of the result.
        """
        tensors = self.importer.content.tensors
        left, right = (tensors[self.index(k)] for k in (x, w))
        added = tensors[self.index(bias)] if self.has(bias) else None
        small = left.dtype in (DType.I8, DType.U8) and right.dtype in (DType.I4, DType.I8, DType.U8)
        small = small and not left.broken and not right.broken
        plain = added is None or (added.data is not None and added.dtype is DType.I32 and not added.broken)
        if (
            not small
            or not plain
            or left.quant is None
            or right.quant is None
            or left.data is not None
            or right.data is None
            or len(left.quant.scale) > 1
            or right.quant.axis not in (None, axis)
        ):
            return self.input(x), self.input(w), self.optional(bias), None
        unit = np.float32(left.quant.scale[0]) * np.array(right.quant.scale, np.float32)
        whole = None if added is None or added.data is None else self.whole(added.data)
        unit = unit if len(unit) > 1 else unit.reshape(())
        return self.importer.counted(self.index(x)), self.importer.counted(self.index(w)), whole, unit

    def whole(self, bias: Array) -> Value:
        """A bias that counts the steps of sums, as f32; one that f32 does not hold keeps its integers beside it."""
        if np.abs(bias.astype(np.int64)).max(initial=0) < 1 << 24:
            return self.builder.quantized(bias.astype(np.float32), "bias", WHOLE)
        stored = self.builder.constant(bias, "bias")
        return self.builder.add("DequantizeLinear", stored, self.builder.scalar(1.0))

    def stored(self, k: int) -> Value:
        return self.importer.raw(self.index(k))

    def complex_input(self, k: int = 0) -> Complex:
        """Operand ``k``, which is complex.  Raises RefusedError if it is computed by an operator that is refused."""
        if self.index(k) not in self.importer.complex:
            raise RefusedError(f"input {k} is not computed from real numbers by RFFT2D")
        return self.importer.complex[self.index(k)]

    def variable(self, k: int) -> str:
        """The variable that operand ``k`` refers to."""
        if self.index(k) not in self.importer.handles:
            raise RefusedError(f"input {k} does not refer to a variable")
        return self.importer.handles[self.index(k)]

    def state(self, k: int) -> Value:
        """A variable that is kept between runs, as an input of the graph in f32."""
        i = self.index(k)
        name, tensor = self.importer.names[i], self.importer.content.tensors[i]
        if tensor.broken:
            raise RefusedError(f"tensor '{tensor.name}': {tensor.broken}")
        return (
            self.builder[name]
            if name in self.builder
            else self.builder.input(name, TensorType(DType.F32, tensor.shape))
        )

    def stored_state(self, k: int) -> Value:
        """A variable that is kept between runs, as an input of the graph in the type that it is stored in."""
        i = self.index(k)
        name, tensor = self.importer.names[i], self.importer.content.tensors[i]
        if tensor.broken:
            raise RefusedError(f"tensor '{tensor.name}': {tensor.broken}")
        if name in self.builder:
            return self.builder[name]
        if tensor.quant is not None and tensor.dtype is DType.I8 and (zero := tensor.quant.zero_point[0]):
            self.builder.graph.initial[name] = (zero,)
        return self.builder.input(name, tensor.type)

    def keep(self, k: int, value: Value) -> None:
        """The variable's content after this run, as an output of the graph."""
        i = self.index(k)
        name, tensor = f"{self.importer.names[i]}_out", self.importer.content.tensors[i]
        self.builder[name] = value
        if tensor.quant is not None and self.builder.type(value).dtype is tensor.dtype and not value.constant:
            value.type = replace(value.type, quant=tensor.quant)
        self.importer.kept.append(name)
        self.builder.states[self.importer.names[i]] = name

    def output(self, k: int = 0) -> TfliteTensor:
        outputs = self.operation.outputs
        if k >= len(outputs) or outputs[k] < 0:
            raise RefusedError(f"output {k} is missing")
        return self.importer.content.tensors[outputs[k]]

    def intermediate(self, k: int) -> TfliteTensor:
        """A tensor that only gives the quantisation of numbers within the operator."""
        numbers = self.operation.intermediates
        if k >= len(numbers) or numbers[k] < 0 or self.importer.content.tensors[numbers[k]].quant is None:
            raise RefusedError(f"its intermediate tensor {k} has no quantisation")
        return self.importer.content.tensors[numbers[k]]

    def zero(self, like: Value) -> Value | None:
        """The stored number that stands for 0, where integers are padded."""
        quant = self.output().quant
        return self.builder.number(quant.zero_point[0], like) if self.raw and quant is not None else None


OperatorFunction = Callable[[TfliteNode], Value | Sequence[Argument]]


def _listed(result: Value | Sequence[Argument]) -> list[Argument]:
    return [result] if isinstance(result, Value) else list(result)


def dequantized(data: Array, quant: Quant) -> Array:
    """The real numbers that the integers represent, in f32."""
    scale, zero = np.array(quant.scale, np.float32), np.array(quant.zero_point, np.int64)
    if quant.axis is not None:
        shape = [-1 if i == quant.axis else 1 for i in range(data.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    with np.errstate(over="ignore"):
        result: Array = ((data.astype(np.int64) - zero).astype(np.float32) * scale).astype(np.float32)
    return result.reshape(data.shape)


def _unique(names: Sequence[str]) -> list[str]:
    """Names made unique by a number where the file repeats one."""
    seen: dict[str, int] = {}
    unique = []
    taken = set(names)
    for name in names:
        n = seen.get(name, 0)
        seen[name] = n + 1
        fresh = name
        while n and fresh in taken:
            fresh, n = f"{name}_{n}", n + 1
        taken.add(fresh)
        unique.append(fresh)
    return unique
