"""Inputs and outputs in the formats of the caller: another order of axes, another element type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tenon.errors import InputError
from tenon.network import ops
from tenon.network.graph.graph import Graph, Node, Origin, Value
from tenon.network.graph.preprocessing import planes
from tenon.network.graph.types import DType, Quant, TensorType
from tenon.network.graph.writer import Names
from tenon.network.passes.quantised_ports import give_integers, take_integers
from tenon.options import DataFormat, DataType

_TO_FRONT, _TO_BACK = (0, 3, 1, 2), (0, 2, 3, 1)
_TYPES: dict[str, DType] = {str(t.numpy): t for t in (DType.F32, DType.F16, DType.I32, DType.I64, DType.I8, DType.U8)}


def adapted(graph: Graph, formats: Mapping[str, DataFormat], types: Mapping[str, DataType]) -> Graph:
    """The graph, or a copy whose inputs and outputs have these formats and types, by name; "" stands for all images.

    NHWC and NCHW transpose images that the model has in the other order; NONE changes nothing.  Elements are converted
    as by Cast; "quantized" leaves out the QuantizeLinear of an input or the DequantizeLinear of an output, of all that
    have one if it is the type of "".  The shapes must be bound.  Raises InputError for a name that is no input or
    output, for a format of what is no image, and for "quantized" of what the model does not quantise.
    """
    ports = {v.name: v for v in (*graph.inputs, *graph.outputs)}
    if unknown := [name for name in (*formats, *types) if name and name not in ports]:
        raise InputError(f"no input or output is called '{unknown[0]}'; the model has {', '.join(ports)}")
    if not formats and not types:
        return graph
    new = graph.copy()
    _Ports(new, formats, types).adapt()
    return new


def data_format(value: Value) -> DataFormat:
    """The axis order of an image: from its first reader or its producer, else from the only possible channel axis."""
    makers = [value.producer] if value.producer is not None else []
    turned = {getattr(node.op, "perm", ()) for node in value.uses} | {getattr(n.op, "perm", ()) for n in makers}
    if (_TO_BACK if makers else _TO_FRONT) in turned:
        return "NHWC"
    image = planes(value.type.dims)
    return "NHWC" if image is not None and image[3] else "NCHW"


class _Ports:
    def __init__(self, graph: Graph, formats: Mapping[str, DataFormat], types: Mapping[str, DataType]) -> None:
        self.graph, self.formats, self.types, self.names = graph, formats, types, Names(graph)
        self.held = {holder for extents in graph.extents.values() for _, holder in extents}

    def adapt(self) -> None:
        for name, kind in self.types.items():
            if kind == "quantized":
                self.quantized(name)
        for at, value in enumerate(self.graph.inputs):
            perm, dtype = self.requested(value)
            if perm or dtype is not value.type.dtype:
                name = value.name
                self.graph.inputs[at] = self.input(value, perm, dtype)
                self.move_extents(name, perm)
        for at, value in enumerate(self.graph.outputs):
            perm, dtype = self.requested(value)
            if perm or dtype is not value.type.dtype:
                name = value.name
                self.graph.outputs[at] = self.output(value, perm, dtype)
                self.move_extents(name, perm)

    def move_extents(self, name: str, perm: tuple[int, ...]) -> None:
        """Let extents that only a run knows follow their axes."""
        if perm and name in self.graph.extents:
            moved = ((perm.index(axis), holder) for axis, holder in self.graph.extents[name])
            self.graph.extents[name] = tuple(sorted(moved))

    def requested(self, value: Value) -> tuple[tuple[int, ...], DType]:
        """The permutation from the model's format to the requested one (() for none), and the requested type."""
        name = value.name
        dtype = _TYPES.get(self.types.get(name, ""), value.type.dtype)
        if dtype is not value.type.dtype and name in self.held:
            raise InputError(f"'{name}' holds the extent of another input or output: it is i64")
        form = self.formats.get(name, self.formats.get("", "NONE") if value.type.rank == 4 else "NONE")
        if form == "NONE" or form == data_format(value):
            return (), dtype
        if value.type.rank != 4:
            raise InputError(f"'{name}' is {value.type}, no image: its format can only be NONE")
        return (_TO_BACK if form == "NHWC" else _TO_FRONT), dtype

    def quantized(self, name: str) -> None:
        """Let an input be the result of its QuantizeLinear, or an output the operand of its DequantizeLinear; ""
        stands for all that the model quantises."""
        changed = [
            change(self.graph, value.name, self.names)
            for values, change in ((self.graph.inputs, take_integers), (self.graph.outputs, give_integers))
            for value in list(values)
            if name in (value.name, "") and (name or value.name not in self.types)
        ]
        if name and not all(changed):
            kind = "input" if any(value.name == name for value in self.graph.inputs) else "output"
            verb = "quantised" if kind == "input" else "dequantised"
            raise InputError(f"{kind} '{name}' is not {verb} by the model: it cannot be of type quantized")
        if not any(changed):
            raise InputError("the model quantises no input and dequantises no output: leave out --io integer")

    def input(self, old: Value, perm: Sequence[int], dtype: DType) -> Value:
        """A new input with the old one's name, and its conversion to what the model reads."""
        first = next(iter(self.graph), None)
        dims = old.type.dims
        new = Value(
            old.name, TensorType(dtype, tuple(dims[i] for i in perm) if perm else dims, quant=_kept(old, dtype))
        )
        initial = self.graph.initial.get(old.name, ())
        if perm and len(initial) > 1:
            turned = np.array(initial).reshape(dims).transpose(perm)
            self.graph.initial[old.name] = tuple(turned.ravel().tolist())
        old.name = self.names.fresh(f"{old.name}_given")
        x = new
        if dtype is not old.type.dtype:
            x = self.add("Cast", x, first, to=str(old.type.dtype))
        if perm:
            x = self.add("Transpose", x, first, perm=_TO_FRONT if perm == _TO_BACK else _TO_BACK)
        self.graph.replace(old, x)
        return new

    def output(self, old: Value, perm: Sequence[int], dtype: DType) -> Value:
        x, name = old, old.name
        old.name = self.names.fresh(f"{name}_made")
        if perm:
            x = self.add("Transpose", x, None, perm=tuple(perm))
        if dtype is not old.type.dtype:
            x = self.add("Cast", x, None, to=str(dtype))
        x.name, x.type = name, replace(x.type, quant=_kept(old, dtype))
        return x

    def add(self, type: str, x: Value, before: Node | None, **attributes: object) -> Value:
        name = self.names.fresh(f"{x.name}_{type.lower()}")
        operator = ops.registry()[type](**attributes)
        return self.graph.add(operator, [x], [name], Origin(layer=x.name, type=type), before=before).output


def _kept(value: Value, dtype: DType) -> Quant | None:
    """The quantisation that the elements of a tensor keep, in any order; as another type they are plain numbers."""
    quant = value.type.quant
    return quant if dtype is value.type.dtype and quant is not None and quant.axis is None else None
