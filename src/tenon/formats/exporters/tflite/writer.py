"""A graph as tensors and operators of TFLite, which keeps images channels-last and integers with their scale.

A value of the graph has one or several *forms* in the file: the integers that stand for it or its floats, each with its
axes in some order.  Operators ask for the form that they need; the conversions in between (TRANSPOSE, DEQUANTIZE) are
written once for each value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenon.errors import ModelError, Problem, UnsupportedError
from tenon.formats.exporters.tflite.file import LARGEST_FILE, ModelRecord, OperatorRecord, TensorRecord
from tenon.formats.importers.tflite.schema import ACTIVATIONS
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import DType, Quant
from tenon.network.ops.base import Operator
from tenon.network.ops.quantised_values import bounds, dequantised, integers_of, scalar_grid
from tenon.network.ops.quantize import QuantizeLinear
from tenon.network.ops.requantize import limits

Axes = tuple[int, ...]

INTEGERS = (DType.I8, DType.U8, DType.I16)
"""Types of quantised activations."""


class UnwritableError(Exception):
    """An operator that TFLite does not have; ``what`` and ``remedy`` go to the user."""

    def __init__(self, what: str, remedy: str = "exclude the layer or write ONNX instead") -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


@dataclass(frozen=True)
class TensorForm:
    """A tensor of the file that holds a value: axis k of the tensor is axis ``axes[k]`` of the value."""

    tensor: int
    axes: Axes


@dataclass(frozen=True)
class Result:
    """Where an operator's result goes: ``value``, for integers their ``quant`` and type, the bounds that it gets as
    integers, and the fused activation that stands for those, if there is one."""

    value: Value
    quant: Quant | None = None
    dtype: DType = DType.F32
    activation: str = "NONE"
    limits: tuple[int, int] | None = None
    covers: tuple[Node, ...] = ()
    """Activations and the QuantizeLinear that are part of it."""

    @property
    def quantised(self) -> bool:
        return self.quant is not None


def channels_last(rank: int) -> Axes:
    """The order of axes of an image [N, C, ...] that ends in its channels."""
    return (0, *range(2, rank), 1)


def as_is(rank: int) -> Axes:
    return tuple(range(rank))


class TfliteWriter:
    """Writes one graph."""

    def __init__(self, graph: Graph, operators: Mapping[str, Write]) -> None:
        self.graph, self.operators = graph, operators
        self.model = ModelRecord(graph.name or "main")
        self.problems: list[Problem] = []
        self.forms: dict[Value, list[TensorForm]] = {}
        self.done: set[int] = set()
        self._taken = {v.name for v in (*graph.inputs, *graph.outputs)}

    def write(self) -> bytes:
        """The file.  Raises UnsupportedError listing every operator that TFLite has not, and ModelError."""
        for value in self.graph.inputs:
            if value.type.dtype not in (DType.F32, DType.I32, DType.I64, DType.BOOL, *INTEGERS):
                raise ModelError(f"{self._source}: input '{value.name}' of {value.type.dtype} cannot be written")
            self.forms[value] = [TensorForm(len(self.model.tensors), as_is(value.type.rank))]
            self.model.inputs.append(len(self.model.tensors))
            record = TensorRecord(value.name, value.type.dims, value.type.dtype, value.type.quant)
            self.model.tensors.append(record)
        for node in self.graph:
            if id(node) not in self.done:
                self._node(node)
        if not self.problems:
            self.model.outputs = [self._output(value) for value in self.graph.outputs]
        if self.problems:
            raise UnsupportedError(self._source, self.problems)
        data = self.model.serialised()
        if len(data) > LARGEST_FILE:
            raise ModelError(
                f"{self._source}: the TFLite file would have {len(data)} bytes; it may have less than 2 GB"
            )
        return data

    @property
    def _source(self) -> str:
        return self.graph.source or self.graph.name

    def _node(self, node: Node) -> None:
        function = self.operators.get(node.op.name)
        try:
            if function is None:
                raise UnwritableError(f"TFLite has no operator {node.op.name}")
            function(self, node)
        except UnwritableError as error:
            where = str(node.origin) if node.origin.layer else f"{node.output.name} ({node.op.name})"
            self.problems.append(Problem(where, error.what, error.remedy))
            for value in node.outputs:  # what follows can still be looked at
                i = self.tensor(value.name, value.type.dims, DType.F32)
                self.forms[value] = [TensorForm(i, as_is(value.type.rank))]

    def _output(self, value: Value) -> int:
        """The tensor of an output, under its name; one that is something else already is copied."""
        integers = value.type.dtype is not DType.F32
        i = self.operand(value, integers=integers)
        record = self.model.tensors[i]
        if i in self.model.inputs or i in self.model.outputs or record.data is not None:
            copied = self.tensor(value.name, record.dims, record.dtype, record.quant)
            self.emit("RESHAPE", [i, self.integers(record.dims)], [copied], shape=record.dims)
            i = copied
        self.model.tensors[i].name = value.name
        return i

    # ---------------------------------------------------------------------------------------- tensors
    def _fresh(self, stem: str) -> str:
        name, n = stem or "tensor", 0
        while name in self._taken:
            n += 1
            name = f"{stem}_{n}"
        self._taken.add(name)
        return name

    def tensor(self, name: str, dims: Sequence[int], dtype: DType, quant: Quant | None = None) -> int:
        """A new tensor that is computed."""
        self.model.tensors.append(TensorRecord(self._fresh(name), tuple(dims), dtype, quant))
        return len(self.model.tensors) - 1

    def constant(self, name: str, data: Array, quant: Quant | None = None, dtype: DType | None = None) -> int:
        """A new constant."""
        data = np.asarray(data)
        record = TensorRecord(self._fresh(name), data.shape, dtype or DType.of(data.dtype), quant, data)
        self.model.tensors.append(record)
        return len(self.model.tensors) - 1

    def integers(self, numbers: Sequence[int]) -> int:
        """A constant list of i32, as operators have shapes and axes."""
        return self.constant("numbers", np.array(numbers, np.int32))

    def emit(self, type: str, inputs: Sequence[int], outputs: Sequence[int], **options: Any) -> None:
        """An operator."""
        self.model.operators.append(OperatorRecord(type, tuple(inputs), tuple(outputs), options))

    def like(self, i: int, name: str, dims: Sequence[int]) -> int:
        """A new tensor of the type and quantisation of another."""
        return self.tensor(name, dims, self.model.tensors[i].dtype, self.model.tensors[i].quant)

    # ---------------------------------------------------------------------------------------- operands
    def quant_of(self, value: Value) -> tuple[Quant, DType] | None:
        """The quantisation and type of the integers that stand for a value, if there are any."""
        stored = integers_of(value)
        if value not in self.forms and stored is not None:
            if stored.scale.size > 1 or stored.data.dtype.kind not in "iu":
                return None
            quant = Quant((float(stored.scale.reshape(())),), (int(stored.zero.reshape(-1)[0]),))
            return quant, DType.of(stored.data.dtype)
        for form in self.forms.get(value, []):
            record = self.model.tensors[form.tensor]
            if record.quant is not None and record.quant.scalar and record.dtype in INTEGERS:
                return record.quant, record.dtype
        return None

    def order(self, value: Value) -> Axes:
        """The order of axes that a value has in the file already."""
        forms = self.forms.get(value)
        return forms[-1].axes if forms else as_is(value.type.rank)

    def operand(self, value: Value, axes: Axes | None = None, *, integers: bool) -> int:
        """The tensor that holds a value, with its axes in this order, as integers or as floats."""
        axes = as_is(value.type.rank) if axes is None else axes
        if value not in self.forms:
            self._constant(value, integers=integers)
        forms = [f for f in self.forms[value] if self._fits(f, value, integers=integers)]
        if not forms:
            forms = [self._dequantized(value, axes)]
        for form in forms:
            if form.axes == axes:
                return form.tensor
        turned = TensorForm(self._turned(forms[0], axes, value.name), axes)
        self.forms[value].insert(0, turned)
        return turned.tensor

    def _fits(self, form: TensorForm, value: Value, *, integers: bool) -> bool:
        if value.type.dtype is not DType.F32:
            return True
        return (self.model.tensors[form.tensor].dtype is not DType.F32) == integers

    def _constant(self, value: Value, *, integers: bool) -> None:
        stored = integers_of(value)
        if value.data is None and stored is None:
            raise UnwritableError(f"it reads '{value.name}', which could not be written")
        given = self.quant_of(value)
        if integers and stored is not None and given is not None:
            i = self.constant(value.name, stored.data, given[0])
        else:
            i = self.constant(value.name, value.data if value.data is not None else dequantised(value))
        self.forms[value] = [TensorForm(i, as_is(value.type.rank))]

    def _dequantized(self, value: Value, axes: Axes) -> TensorForm:
        forms = self.forms[value]
        if self.model.tensors[forms[0].tensor].data is not None:  # a constant that others read as integers
            form = TensorForm(self.constant(value.name, dequantised(value)), as_is(value.type.rank))
        else:
            source = self.operand(value, axes, integers=True)
            i = self.tensor(value.name, self.model.tensors[source].dims, DType.F32)
            self.emit("DEQUANTIZE", [source], [i])
            form = TensorForm(i, axes)
        forms.insert(0, form)
        return form

    def _turned(self, form: TensorForm, axes: Axes, name: str) -> int:
        record = self.model.tensors[form.tensor]
        perm = [form.axes.index(a) for a in axes]
        dims = [record.dims[a] for a in perm]
        if record.data is not None:
            return self.constant(name, np.ascontiguousarray(record.data.transpose(perm)), record.quant, record.dtype)
        i = self.like(form.tensor, name, dims)
        if moves_nothing(record.dims, perm):
            self.emit("RESHAPE", [form.tensor, self.integers(dims)], [i], shape=dims)
        else:
            self.emit("TRANSPOSE", [form.tensor, self.integers(perm)], [i])
        return i

    # ---------------------------------------------------------------------------------------- results
    def ends(self, value: Value) -> bool:
        """Whether a value only goes to outputs, its elements moved at most."""
        moved = (r for r in value.uses if isinstance(r.op, Operator) and r.op.moves and len(r.outputs) == 1)
        readers = list(moved)
        return len(readers) == len(value.uses) and all(self.ends(reader.output) for reader in readers)

    def result(self, node: Node) -> Result:
        """Where the result of a node goes: through activations to a QuantizeLinear, if nothing else reads it."""
        value, low, high, passed = node.output, -math.inf, math.inf, list[Node]()
        while len(value.uses) == 1 and not self.graph.is_output(value):
            reader = value.uses[0]
            limits = bounds(reader) if reader.inputs[0] is value else None
            if limits is None:
                grid = quantisation(reader) if isinstance(reader.op, QuantizeLinear) else None
                if grid is None:
                    break
                return Result(reader.output, *grid, *fused(low, high, *grid), covers=(*passed, reader))
            low, high = min(max(low, limits[0]), high), max(min(high, limits[1]), low)
            passed.append(reader)
            value = reader.output
        return Result(node.output)

    def put(
        self,
        result: Result,
        type: str,
        inputs: Sequence[int],
        dims: Sequence[int],
        axes: Axes,
        *,
        activates: bool = False,
        **options: Any,
    ) -> None:
        """An operator that computes a result, whose ``dims`` have this order of axes, and what it does not do itself:
        activations, unless it ``activates``."""
        self.done.update(map(id, result.covers))
        i = self.tensor(result.value.name, dims, result.dtype, result.quant)
        if activates:
            options["activation"] = ACTIVATIONS.index(result.activation)
        self.emit(type, inputs, [i], **options)
        if result.limits is not None and not (activates and result.activation != "NONE"):
            i = self._clamped(i, result.limits)
        self.forms[result.value] = [TensorForm(i, axes)]

    def put_alike(
        self, result: Result, x: int, type: str, inputs: Sequence[int], dims: Sequence[int], axes: Axes, **options: Any
    ) -> None:
        """An operator whose integers have the quantisation of its input ``x``, and their requantisation."""
        record = self.model.tensors[x]
        if (record.quant, record.dtype) == (result.quant, result.dtype) or record.quant is None:
            return self.put(result, type, inputs, dims, axes, **options)
        i = self.like(x, result.value.name, dims)
        self.emit(type, inputs, [i], **options)
        if result.quantised:
            return self.put(result, "QUANTIZE", [i], dims, axes)
        self.forms[result.value] = [TensorForm(i, axes)]
        return None

    def _clamped(self, i: int, limits: tuple[int, int]) -> int:
        record = self.model.tensors[i]
        for kind, limit in zip(("MAXIMUM", "MINIMUM"), limits, strict=True):
            bound = self.constant("limit", np.array(limit, record.dtype.numpy), record.quant)
            y = self.like(i, record.name, record.dims)
            self.emit(kind, [i, bound], [y])
            i = y
        return i


Write = Callable[[TfliteWriter, Node], None]
"""Writes a node.  Raises UnwritableError."""


def attributes(node: Node) -> Any:
    """The operator of a node, whose attributes are those of its class."""
    return node.op


def quantisation(node: Node) -> tuple[Quant, DType] | None:
    """The quantisation of a QuantizeLinear or DequantizeLinear, None if TFLite has none like it."""
    return scalar_grid(node, INTEGERS)


_FUSED = {"RELU": (0.0, math.inf), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0)}


def fused(low: float, high: float, quant: Quant, dtype: DType) -> tuple[str, tuple[int, int] | None]:
    """The activation that bounds integers like these real numbers ("NONE" if there is none), and the bounds as
    integers (None if they are those of the type)."""
    wanted = _on_grid(low, high, quant, dtype)
    if wanted == limits(dtype):
        return "NONE", None
    names = (name for name, pair in _FUSED.items() if _on_grid(*pair, quant, dtype) == wanted)
    return next(names, "NONE"), wanted


def _on_grid(low: float, high: float, quant: Quant, dtype: DType) -> tuple[int, int]:
    """Bounds as integers, ties away from zero."""
    least, most = limits(dtype)

    def integer(bound: float) -> int:
        steps = float(np.float32(bound) / np.float32(quant.scale[0]))
        whole = math.copysign(math.floor(abs(steps) + 0.5), steps)
        return int(min(max(whole + quant.zero_point[0], least), most))

    first = least if low == -math.inf else integer(low)
    return first, max(first, most if high == math.inf else integer(high))


def moves_nothing(dims: Sequence[int], perm: Sequence[int]) -> bool:
    """Whether a transposition only moves axes of one element."""
    moved = [a for a in perm if dims[a] != 1]
    return moved == sorted(moved)
