"""OneFlow's saved graphs: a job as the text of MLIR, and one folder per variable (``model.a/out`` and ``meta``).

The job stands in a file ``model.mlir`` as operations ``%x = "oneflow.name"(%a, %b) {attributes} : types``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import FormatError
from tenon.frontends.emit import Emitter, simple
from tenon.frontends.net import MISSING_WEIGHTS, Net
from tenon.frontends.refused import RefusedError
from tenon.frontends.source import ModelFile
from tenon.ir.bind import Shapes
from tenon.ir.graph import Array, Graph, Value
from tenon.ir.types import DType, TensorType
from tenon.ir.writer import is_known

_LONGEST = 1 << 26
"""Characters of a file."""

_DTYPES = {
    "f32": DType.F32, "f16": DType.F16, "f64": DType.F64, "si64": DType.I64, "i64": DType.I64, "si32": DType.I32,
    "i32": DType.I32, "si8": DType.I8, "i8": DType.I8, "ui8": DType.U8, "i1": DType.BOOL,
}  # fmt: skip
_STORED = {"kFloat": "<f4", "kDouble": "<f8", "kInt8": "<i1", "kInt32": "<i4", "kInt64": "<i8", "kUInt8": "<u1",
           "kFloat16": "<f2", "kBool": "?"}  # fmt: skip


def recognise(file: ModelFile) -> bool:
    return b"oneflow.job" in file.data[:65536]


@dataclass(frozen=True)
class Operation:
    """One operation of the job."""

    results: tuple[str, ...]
    type: str
    operands: tuple[str, ...]
    attributes: dict[str, Any]
    types: tuple[TensorType, ...]

    @property
    def name(self) -> str:
        return str(self.attributes.get("op_name", "")) or (self.results[0] if self.results else self.type)


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """See ``frontends.load`` for errors.  Inputs and outputs bear the names of their operations."""
    try:
        found, returned = parse(file.data)
    except FormatError as error:
        raise FormatError(f"{file.name}: {error}") from error
    net = Net(file, file.stem, shapes, inputs, outputs, 1 << 24)
    folder = file.weights.folder if file.weights is not None and file.weights.is_folder else file.folder
    return _Job(net, folder).load(found, returned)


# ------------------------------------------------------------------------------------------------ text
_OPERATION = re.compile(r'^\s*(?:(%[\w:, %]+?)\s*=\s*)?"oneflow\.(\w+)"\(([^)]*)\)\s*')
_RETURN = re.compile(r"^\s*oneflow\.return\s+([^:]*):")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|#\w[\w.]*<[^{}"]*?>(?=\s*[,}])|[{}\[\]=,:]|[^\s{}\[\]=,:"]+')


def parse(data: bytes) -> tuple[list[Operation], list[str]]:
    """The operations of a job and what it returns.  Raises FormatError."""
    if len(data) > _LONGEST:
        raise FormatError(f"{len(data)} bytes are too many")
    found: list[Operation] = []
    returned: list[str] = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        match = _OPERATION.match(line)
        if match:
            try:
                found.append(_operation(match, line[match.end() :]))
            except (ValueError, IndexError, KeyError) as error:
                raise FormatError(f"line {number} is not an operation; the file is damaged ({error})") from None
        elif match := _RETURN.match(line):
            returned = [name.strip() for name in match[1].split(",") if name.strip()]
    if not found:
        raise FormatError("it has no operations; the file is truncated or damaged")
    return found, returned


def _operation(match: re.Match[str], rest: str) -> Operation:
    tokens = _TOKEN.findall(rest)
    attributes: dict[str, Any] = {}
    at = 0
    if tokens and tokens[0] == "{":
        at = 1
        while tokens[at] != "}":
            attributes[tokens[at]], at = _value(tokens, at + 2) if tokens[at + 1] == "=" else (True, at + 1)
            at += tokens[at] == ","
    tail = rest[rest.rindex("->") :] if "->" in rest else ""
    types = tuple(_type(text) for text in re.findall(r"tensor<([^>]*)>", tail))
    results = tuple(name.strip() for name in (match[1] or "").split(",") if name.strip())
    operands = tuple(name.strip() for name in match[3].split(",") if name.strip())
    return Operation(results, match[2], operands, attributes, types)


def _value(tokens: Sequence[str], at: int) -> tuple[Any, int]:
    """A string, number, flag or list, its type left out, and where it ends."""
    token = tokens[at]
    if token == "[":
        items, at = [], at + 1
        while tokens[at] != "]":
            item, at = _scalar(tokens, at)
            items.append(item)
            at += tokens[at] == ","
        return items, at + 1
    return _scalar(tokens, at)


def _scalar(tokens: Sequence[str], at: int) -> tuple[Any, int]:
    token = tokens[at]
    end = at + 3 if tokens[at + 1] == ":" else at + 1
    if token.startswith('"'):
        return token[1:-1], end
    if token in ("true", "false"):
        return token == "true", end
    if re.fullmatch(r"[-+]?\d+", token):
        return int(token), end
    if re.fullmatch(r"[-+]?\d*\.?\d+(\.\d*)?([eE][-+]?\d+)?", token):
        return float(token), end
    return token, end


def _type(text: str) -> TensorType:
    *dims, kind = text.split("x")
    if kind not in _DTYPES or not all(d.isdigit() for d in dims) or any(len(d) > 10 for d in dims):
        raise ValueError(f"tensor<{text}> is not supported")
    return TensorType(_DTYPES[kind], tuple(int(d) for d in dims))


# ------------------------------------------------------------------------------------------------- job
class Context(Emitter):
    """The operation about to be made."""

    def __init__(self, net: Net, operation: Operation, inputs: Sequence[Value]) -> None:
        super().__init__(net)
        self.operation, self.inputs, self.attributes = operation, inputs, operation.attributes

    @property
    def x(self) -> Value:
        if not self.inputs:
            raise RefusedError("it has no operands")
        return self.inputs[0]

    @property
    def dims(self) -> tuple[int, ...]:
        return self.net.dims(self.x)

    def number(self, name: str, default: float = 0.0) -> float:
        value = self.attributes.get(name, default)
        return float(value) if isinstance(value, int | float) else default

    def numbers(self, name: str) -> list[int]:
        value = self.attributes.get(name, [])
        return [int(v) for v in value] if isinstance(value, list) else [int(value)]

    def flag(self, name: str) -> bool:
        return bool(self.attributes.get(name, False))


class _Job:
    """The walk over the operations."""

    def __init__(self, net: Net, folder: Path | None) -> None:
        self.net, self.folder = net, folder
        self.names: dict[str, str] = {}

    def load(self, operations: Sequence[Operation], returned: Sequence[str]) -> Graph:
        for operation in operations:
            self.names |= {r: operation.name if i == 0 else f"{operation.name}_{i}"
                           for i, r in enumerate(operation.results)}  # fmt: skip
            if operation.type == "input" and operation.types:
                self.net.input(operation.name, operation.types[0])
                continue
            with self.net.layer(operation.name, operation.type, *(self.names[r] for r in operation.results)):
                self.operation(operation)
        return self.net.finish([self.names.get(name, name) for name in returned])

    def operation(self, operation: Operation) -> None:
        if operation.type == "variable" and operation.types and operation.results:
            self.net[operation.name] = self.variable(operation)
            return
        inputs = [self.net[self.names.get(name, name)] for name in operation.operands]
        if operation.type not in OPERATORS:
            raise RefusedError("this operation is not supported", "those that are stand in the documentation")
        if all(is_known(v) for v in inputs):
            made = OPERATORS[operation.type](Context(self.net, operation, inputs))
            for result, value in zip(operation.results, [made] if isinstance(made, Value) else made, strict=False):
                self.net[self.names[result]] = value

    def variable(self, operation: Operation) -> Value:
        """The variable's folder beside the job, or zeros."""
        type = operation.types[0]
        path = self.folder / operation.name / "out" if self.folder is not None and _plain(operation.name) else None
        if path is None or not path.is_file() or path.is_symlink():
            self.net.graph.incomplete = MISSING_WEIGHTS
            return self.net.placeholder(type.dims, type.dtype)
        return self.net.constant(_stored(path, type), "data")


def _plain(name: str) -> bool:
    """Whether a variable's name is that of a folder right here."""
    return bool(name) and not set(name) & set("/\\\0") and name not in (".", "..")


def _stored(path: Path, type: TensorType) -> Array:
    """The numbers of a variable, checked against what its ``meta`` says.  Raises FormatError."""
    meta = path.with_name("meta")
    text = meta.read_text("utf-8", "replace") if meta.is_file() else ""
    kind = re.search(r"data_type:\s*(\w+)", text)
    dims = tuple(int(d) for d in re.findall(r"dim:\s*(\d{1,10})\b", text))
    dtype = np.dtype(_STORED.get(kind[1], "V1") if kind else type.dtype.numpy)
    data = path.read_bytes()
    if (text and dims != type.dims) or dtype.kind == "V" or len(data) != math.prod(type.dims) * dtype.itemsize:
        raise FormatError(f"'{path.parent.name}/out' does not hold a tensor of shape {list(type.dims)}")
    return np.frombuffer(data, dtype).reshape(type.dims).astype(type.dtype.numpy)


# ------------------------------------------------------------------------------------------- operations
def binary(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add(type, *c.inputs)


def scalar(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        number = c.number("float_operand") if c.flag("has_float_operand") else c.number("int_operand")
        return c.add(type, c.x, np.array(number, c.net.type(c.x).dtype.numpy))

    return made


def matmul(c: Context) -> Value:
    flags = (c.flag(name) for name in ("transpose_a", "transpose_b"))
    x = c.add("MatMul", *(c.swapped(value, flag) for value, flag in zip(c.inputs, flags, strict=False)))
    return x if c.number("alpha", 1.0) == 1 else c.add("Mul", x, c.number("alpha", 1.0))


def convolution(c: Context) -> Value:
    pads = c.numbers("padding_before")
    return c.add("Conv", *c.inputs[:3], group=int(c.number("groups", 1)), strides=c.numbers("strides"),
                 dilations=c.numbers("dilation_rate"), pads=pads * 2)  # fmt: skip


def pooling(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        include = {"count_include_pad": int(c.attributes.get("count_include_pad", True))} if type[0] == "A" else {}
        return c.add(type, c.x, kernel_shape=c.numbers("kernel_size"), strides=c.numbers("stride"),
                     pads=c.numbers("padding") * 2, ceil_mode=int(c.flag("ceil_mode")), **include)  # fmt: skip

    return made


def normalization(c: Context) -> Value:
    """Operands x, moving mean, moving variance, gamma, beta."""
    if len(c.inputs) != 5 or c.number("axis", 1) != 1:
        raise RefusedError(f"{len(c.inputs)} operands on axis {c.number('axis', 1):g} are not supported")
    x, mean, variance, gamma, beta = c.inputs
    return c.add("BatchNormalization", x, gamma, beta, mean, variance, epsilon=c.number("epsilon", 1e-5))


def reduce(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.x, c.ints(*c.numbers("axis")), keepdims=int(c.flag("keepdims")))


def flatten(c: Context) -> Value:
    dims = c.dims
    first, last = (
        c.axis(int(c.number(name, default)), len(dims)) for name, default in (("start_dim", 0), ("end_dim", -1))
    )
    return c.reshape(c.x, *dims[:first], math.prod(dims[first : last + 1]), *dims[last + 1 :])


def adaptive(c: Context) -> Value:
    if c.numbers("output_size") != [1, 1]:
        raise RefusedError(f"pooling to {c.numbers('output_size')} is not supported")
    return c.add("GlobalAveragePool", c.x)


OPERATORS: dict[str, Callable[[Context], Value | Sequence[Value]]] = {
    "output": lambda c: c.x, "identity": lambda c: c.x, "dropout": lambda c: c.x, "matmul": matmul,
    "batch_matmul": matmul, "broadcast_matmul": matmul, "conv2d": convolution, "normalization": normalization,
    "normalization_infer": normalization, "max_pool_2d": pooling("MaxPool"), "avg_pool_2d": pooling("AveragePool"),
    "adaptive_avg_pool2d": adaptive, "flatten": flatten, "add_n2": binary("Add"),
    **{f"broadcast_{name}": binary(type) for name, type in (
        ("add", "Add"), ("sub", "Sub"), ("mul", "Mul"), ("div", "Div"), ("maximum", "Max"), ("minimum", "Min"),
        ("pow", "Pow"))},
    **{f"scalar_{name}": scalar(type) for name, type in (
        ("add", "Add"), ("mul", "Mul"), ("div", "Div"), ("pow", "Pow"))},
    **{name: simple(type) for name, type in (
        ("relu", "Relu"), ("sigmoid", "Sigmoid"), ("tanh", "Tanh"), ("gelu", "Gelu"), ("silu", "Swish"),
        ("mish", "Mish"), ("exp", "Exp"), ("log", "Log"), ("sqrt", "Sqrt"), ("abs", "Abs"), ("negative", "Neg"),
        ("softplus", "Softplus"), ("hardswish", "HardSwish"))},
    "leaky_relu": lambda c: c.add("LeakyRelu", c.x, alpha=c.number("alpha", 0.01)),
    "softmax": lambda c: c.add("Softmax", c.x, axis=-1), "log_softmax": lambda c: c.add("LogSoftmax", c.x, axis=-1),
    "bias_add": lambda c: c.add("Add", c.x, c.channels(c.inputs[1], c.x, int(c.number("axis", 1)))),
    "reshape": lambda c: c.reshape(c.x, *c.numbers("shape")),
    "transpose": lambda c: c.add("Transpose", c.x, perm=c.numbers("perm")),
    "concat": lambda c: c.add("Concat", *c.inputs, axis=int(c.number("axis"))), "cat": lambda c: c.add(
        "Concat", *c.inputs, axis=int(c.number("axis"))),
    "reduce_mean": reduce("ReduceMean"), "reduce_sum": reduce("ReduceSum"), "reduce_max": reduce("ReduceMax"),
    "expand_dims": lambda c: c.add("Unsqueeze", c.x, c.ints(int(c.number("axis")))),
    "squeeze": lambda c: c.add("Squeeze", c.x, c.ints(*c.numbers("axes"))),
}  # fmt: skip
