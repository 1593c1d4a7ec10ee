"""Functions of keras.ops between the layers of a model.  Source: the documentation of keras.ops."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import Outputs
from tenon.formats.importers.keras.importer import KerasLayer, LayerFunction
from tenon.network.graph.graph import Value


def _operands(layer: KerasLayer) -> list[Value]:
    """The tensors and numbers of a call in order."""
    if any(value is not None for value in layer.get("kwargs", {}).values()):
        raise RefusedError("arguments by name are not supported")
    tensors, operands = iter(layer.inputs), list[Value]()
    for given in layer.get("args", []):
        tensor = next(tensors, None) if isinstance(given, dict) else None
        if tensor is not None:
            operands.append(tensor)
        elif isinstance(given, int | float) and (layer.builder.type(layer.x).dtype.is_float or isinstance(given, int)):
            operands.append(layer.builder.number(given, layer.x))
        else:
            raise RefusedError(f"the argument {given} is not supported")
    return operands


def _same_as(op: str, count: int, **attributes: object) -> LayerFunction:
    def function(layer: KerasLayer) -> Outputs:
        operands, settings = _operands(layer), set(layer.config) - {"name", "args", "kwargs", "dtype"}
        if len(operands) != count or settings:
            raise RefusedError(f"{len(operands)} arguments and the settings {sorted(settings)} are not supported")
        return layer.builder.add(op, *operands, **attributes)

    return function


def _axes(layer: KerasLayer) -> Sequence[int]:
    axis = layer.get("axis")
    return list(range(layer.rank)) if axis is None else [int(a) for a in (axis if isinstance(axis, list) else [axis])]


def _reduced(op: str) -> LayerFunction:
    return lambda layer: layer.builder.reduce(op, layer.x, _axes(layer), bool(layer.get("keepdims", False)))


def _gelu(layer: KerasLayer) -> Outputs:
    return layer.builder.add("Gelu", layer.x, approximate="tanh" if layer.get("approximate", True) else "none")


def _softmax(layer: KerasLayer) -> Outputs:
    return layer.builder.add("Softmax", layer.x, axis=int(layer.get("axis", -1)))


def _transposed(layer: KerasLayer) -> Outputs:
    return layer.builder.transpose(layer.x, [int(a) for a in layer.get("axes", range(layer.rank)[::-1])])


_ONE = (
    "Absolute:Abs Abs:Abs Ceil:Ceil Cos:Cos Erf:Erf Exp:Exp Floor:Floor Log:Log Negative:Neg Reciprocal:Reciprocal"
    " Relu:Relu Sigmoid:Sigmoid Silu:Swish Sin:Sin Softplus:Softplus Softsign:Softsign Sqrt:Sqrt Tanh:Tanh"
)
_TWO = "Add:Add Divide:Div Maximum:Max Minimum:Min Multiply:Mul Power:Pow Subtract:Sub TrueDivide:Div"

FUNCTIONS: dict[str, LayerFunction] = {
    **{f"ops.{name}": _same_as(op, 1) for name, _, op in (pair.partition(":") for pair in _ONE.split())},
    **{f"ops.{name}": _same_as(op, 2) for name, _, op in (pair.partition(":") for pair in _TWO.split())},
    **{f"ops.{name}": _reduced(name) for name in ("Max", "Mean", "Min", "Prod", "Sum")},
    "ops.Concatenate": lambda layer: layer.builder.add("Concat", *layer.inputs, axis=int(layer.get("axis", -1))),
    "ops.Gelu": _gelu,
    "ops.Relu6": lambda layer: layer.builder.clip(layer.x, 0, 6),
    "ops.Reshape": lambda layer: layer.builder.reshape(
        layer.x, [1 if n is None else n for n in layer.get("newshape", [])]
    ),
    "ops.Softmax": _softmax,
    "ops.Square": lambda layer: layer.builder.square(layer.x),
    "ops.Transpose": _transposed,
}
