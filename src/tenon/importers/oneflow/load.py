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

from tenon.decompositions.layers import adaptive_pool, group_norm, sampled, unfolded
from tenon.errors import FormatError
from tenon.graph_builder.builder import MISSING_WEIGHTS, GraphBuilder
from tenon.graph_builder.errors import RefusedError, unknown
from tenon.graph_builder.node_context import Emitter, Made, same, simple
from tenon.ir.bind import Shapes
from tenon.ir.graph import Array, Graph, Value
from tenon.ir.types import DType, TensorType
from tenon.ir.writer import is_known
from tenon.model_files.model_file import ModelFile

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
    """See ``importers.load`` for errors.  Inputs and outputs bear the names of their operations."""
    try:
        found, returned = parse(file.data)
    except FormatError as error:
        raise FormatError(f"{file.name}: {error}") from error
    builder = GraphBuilder(file, file.stem, shapes, inputs, outputs, 1 << 24)
    folder = file.weights.folder if file.weights is not None and file.weights.is_folder else file.folder
    return _Job(builder, folder).load(found, returned)


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

    def __init__(self, builder: GraphBuilder, operation: Operation, inputs: Sequence[Value]) -> None:
        super().__init__(builder)
        self.operation, self.inputs, self.attributes = operation, inputs, operation.attributes

    @property
    def x(self) -> Value:
        if not self.inputs:
            raise RefusedError("it has no operands")
        return self.inputs[0]

    @property
    def dims(self) -> tuple[int, ...]:
        return self.builder.dims(self.x)

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

    def __init__(self, builder: GraphBuilder, folder: Path | None) -> None:
        self.builder, self.folder = builder, folder
        self.names: dict[str, str] = {}

    def load(self, operations: Sequence[Operation], returned: Sequence[str]) -> Graph:
        for operation in operations:
            self.names |= {
                r: operation.name if i == 0 else f"{operation.name}_{i}" for i, r in enumerate(operation.results)
            }
            if operation.type == "input" and operation.types:
                self.builder.input(operation.name, operation.types[0])
                continue
            with self.builder.layer(operation.name, operation.type, *(self.names[r] for r in operation.results)):
                self.operation(operation)
        return self.builder.finish([self.names.get(name, name) for name in returned])

    def operation(self, operation: Operation) -> None:
        if operation.type == "variable" and operation.types and operation.results:
            self.builder[operation.name] = self.variable(operation)
            return
        inputs = [self.builder[self.names.get(name, name)] for name in operation.operands]
        if operation.type not in OPERATORS:
            raise unknown(operation.type, OPERATORS, "operation")
        if all(is_known(v) for v in inputs):
            made = OPERATORS[operation.type](Context(self.builder, operation, inputs))
            for result, value in zip(operation.results, [made] if isinstance(made, Value) else made, strict=False):
                self.builder[self.names[result]] = value

    def variable(self, operation: Operation) -> Value:
        """The variable's folder beside the job, or zeros."""
        type = operation.types[0]
        path = self.folder / operation.name / "out" if self.folder is not None and _plain(operation.name) else None
        if path is None or not path.is_file() or path.is_symlink():
            self.builder.graph.incomplete = MISSING_WEIGHTS
            return self.builder.placeholder(type.dims, type.dtype)
        return self.builder.constant(_stored(path, type), "data")


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


def compared(type: str) -> Callable[[Context], Value]:
    """Whether something holds for pairs, or for each and a number, in the type that the result has."""
    return lambda c: _told(c, c.add(type, c.x, c.inputs[1] if len(c.inputs) > 1 else _operand(c)))


def _told(c: Context, x: Value) -> Value:
    types = c.operation.types
    return c.add("Cast", x, to=str(types[0].dtype)) if types and types[0].dtype is not DType.BOOL else x


def scalar(type: str, *, turned: bool = False) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        pair = (c.x, _operand(c))
        return c.add(type, *(pair[::-1] if turned else pair))

    return made


def _operand(c: Context) -> Array:
    number = c.number("float_operand") if c.flag("has_float_operand") else c.number("int_operand")
    return np.array(number, c.builder.type(c.x).dtype.numpy)


def matmul(c: Context) -> Value:
    flags = (c.flag(name) for name in ("transpose_a", "transpose_b"))
    x = c.add("MatMul", *(c.swapped(value, flag) for value, flag in zip(c.inputs, flags, strict=False)))
    return x if c.number("alpha", 1.0) == 1 else c.add("Mul", x, c.number("alpha", 1.0))


def perceptron(c: Context) -> Value:
    """x, then all weights, then all biases; ReLU between the layers."""
    count, x = len(c.inputs) // 2, c.x
    for i in range(1, count + 1):
        x = c.add("Add", c.add("MatMul", x, c.swapped(c.inputs[i])), c.inputs[count + i])
        x = c.add("Relu", x) if i < count or not c.flag("skip_final_activation") else x
    return x


def convolution(c: Context) -> Value:
    _first_channels(c)
    return c.add(
        "Conv",
        *c.inputs[:3],
        group=int(c.number("groups", 1)),
        strides=c.numbers("strides"),
        dilations=c.numbers("dilation_rate"),
        pads=c.numbers("padding_before") * 2,
    )


def deconvolution(c: Context) -> Value:
    _first_channels(c)
    return c.add(
        "ConvTranspose",
        *c.inputs[:3],
        group=int(c.number("groups", 1)),
        strides=c.numbers("strides"),
        dilations=c.numbers("dilation_rate"),
        pads=c.numbers("padding_before") * 2,
        output_padding=c.numbers("output_padding") or [0] * (len(c.dims) - 2),
    )


def _first_channels(c: Context) -> None:
    if c.attributes.get("data_format", "channels_first") not in ("channels_first", "NCHW", "NCW", "NCDHW"):
        raise RefusedError(f"data_format {c.attributes['data_format']} is not supported")


def pooling(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        _first_channels(c)
        include = {"count_include_pad": int(c.attributes.get("count_include_pad", True))} if type[0] == "A" else {}
        if c.number("divisor_override"):
            raise RefusedError("a divisor of its own is not supported")
        rest = {"dilations": c.numbers("dilation")} if type[0] == "M" and c.numbers("dilation") else {}
        return c.add(
            type,
            c.x,
            kernel_shape=c.numbers("kernel_size"),
            strides=c.numbers("stride"),
            pads=c.numbers("padding") * 2,
            ceil_mode=int(c.flag("ceil_mode")),
            **include,
            **rest,
        )

    return made


def adaptive(average: bool) -> Callable[[Context], Value]:
    return lambda c: adaptive_pool(c, c.x, c.numbers("output_size"), average=average)


def normalization(c: Context) -> Value:
    """Operands x, moving mean, moving variance, gamma, beta, and with a residual what is added before ReLU."""
    if len(c.inputs) not in (5, 6) or c.number("axis", 1) != 1 or c.flag("training"):
        raise RefusedError(f"{len(c.inputs)} operands on axis {c.number('axis', 1):g} are not supported")
    x, mean, variance, gamma, beta = c.inputs[:5]
    x = c.add("BatchNormalization", x, gamma, beta, mean, variance, epsilon=c.number("epsilon", 1e-5))
    return c.add("Add", x, c.inputs[5]) if len(c.inputs) == 6 else x


def layer_norm(c: Context) -> Value:
    """Operands x, beta and gamma, those that there are."""
    first = c.axis(int(c.number("begin_norm_axis", 1)), len(c.dims))
    rest = list(c.inputs[1:])
    beta = rest.pop(0) if c.flag("center") and rest else None
    gamma = rest.pop(0) if c.flag("scale") and rest else None
    ones = np.ones(c.dims[first:], np.float32)
    return c.add(
        "LayerNormalization", c.x, ones if gamma is None else gamma, beta, axis=first, epsilon=c.number("epsilon", 1e-5)
    )


def grouped(c: Context) -> Value:
    beta, gamma = (c.inputs[1], c.inputs[2]) if c.flag("affine") and len(c.inputs) == 3 else (None, None)
    x = group_norm(c, c.x, int(c.number("num_groups")), gamma, beta, c.number("epsilon", 1e-5))
    return c.add("Swish", x) if c.attributes.get("activation") == "silu" else x


def rms_norm(c: Context) -> Value:
    """Over as many of the last axes as the weights have, or as are named."""
    count = len(c.numbers("normalized_shape")) or (len(c.builder.dims(c.inputs[1])) if len(c.inputs) > 1 else 1)
    mean = c.add("ReduceMean", c.square(c.x), c.ints(*range(-count, 0)), keepdims=1)
    x = c.add("Div", c.x, c.add("Sqrt", c.add("Add", mean, c.number("epsilon", 1e-6))))
    return c.add("Mul", x, c.inputs[1]) if len(c.inputs) > 1 else x


def reduce(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.x, c.ints(*c.numbers("axis")), keepdims=int(c.flag("keepdims")))


def variance(c: Context) -> Value:
    axes = c.numbers("dim") or list(range(len(c.dims)))
    count = math.prod(c.dims[a] for a in axes)
    away = c.add("Sub", c.x, c.add("ReduceMean", c.x, c.ints(*axes), keepdims=1))
    total = c.add("ReduceSumSquare", away, c.ints(*axes), keepdims=int(c.flag("keepdim")))
    return c.add("Mul", total, 1 / max(1, count - c.flag("unbiased")))


def flatten(c: Context) -> Value:
    dims = c.dims
    first, last = (
        c.axis(int(c.number(name, default)), len(dims)) for name, default in (("start_dim", 0), ("end_dim", -1))
    )
    return c.reshape(c.x, *dims[:first], math.prod(dims[first : last + 1]), *dims[last + 1 :])


def resized(mode: str) -> Callable[[Context], Value]:
    """By factors of the last axes, or to a size."""

    def made(c: Context) -> Value:
        _first_channels(c)
        axes, size = len(c.dims) - 2, c.numbers("output_size")
        names = ("scale_factor",) if axes == 1 else ("depth_scale", "height_scale", "width_scale")[3 - axes :]
        size = size or [int(n * c.number(name, 1.0)) for n, name in zip(c.dims[2:], names, strict=True)]
        centre = "asymmetric" if mode == "nearest" else "align_corners" if c.flag("align_corners") else "half_pixel"
        options = {"coordinate_transformation_mode": centre, "nearest_mode": "floor", "cubic_coeff_a": -0.75}
        return c.add("Resize", c.x, None, None, c.ints(*c.dims[:2], *size), mode=mode, **options)

    return made


def pad(c: Context) -> Value:
    before, after = c.numbers("padding_before"), c.numbers("padding_after")
    return c.add(
        "Pad", c.x, c.ints(*before, *after), c.number("floating_constant_value") or c.number("integral_constant_value")
    )


def pad_ends(mode: str) -> Callable[[Context], Value]:
    """Numbers before and after each axis, the last axis first."""

    def made(c: Context) -> Value:
        given = c.numbers("padding")
        free = [0] * (len(c.dims) - len(given) // 2)
        value = c.number("floating_value") or c.number("integral_value")
        pads = c.ints(*free, *given[::2][::-1], *free, *given[1::2][::-1])
        return c.add("Pad", c.x, pads, value if mode == "constant" else None, mode=mode)

    return made


def narrow(c: Context) -> Value:
    start = int(c.number("start"))
    return c.slice(c.x, [start], [start + int(c.number("length"))], [int(c.number("dim"))])


def sliced(c: Context) -> Value:
    starts, stops, steps = (c.numbers(name) for name in ("start", "stop", "step"))
    return c.slice(c.x, starts, stops, range(len(starts)), steps)


def bounded(c: Context) -> Value:
    """Between what is named, numbers of integers or of floats."""
    whole = c.builder.type(c.x).dtype is not DType.F32
    low, high = (c.attributes.get(f"{'integral' if whole else 'floating'}_{end}") for end in ("min", "max"))
    kind = c.operation.type.removeprefix("clip_by_scalar")
    ends = (None if kind == "_max" else low, None if kind == "_min" else high)
    numbers = (None if end is None else np.array(end, c.builder.type(c.x).dtype.numpy) for end in ends)
    return c.add("Clip", c.x, *numbers)


def filled(c: Context) -> Value:
    """A constant, or a row of numbers, in the type of the result."""
    if not c.operation.types:
        raise RefusedError("its type is not known")
    type = c.operation.types[0]
    if math.prod(type.dims) > _LONGEST:
        raise RefusedError(f"{list(type.dims)} is too large for a constant")
    if c.operation.type == "arange":
        names = ("float_start", "float_delta") if type.dtype is DType.F32 else ("integer_start", "integer_delta")
        data = c.number(names[0]) + np.arange(math.prod(type.dims)) * c.number(names[1], 1)
    else:
        value = c.number("floating_value") if c.flag("is_floating_value") else c.number("integer_value")
        data = np.full(type.dims, value)
    return c.builder.constant(data.astype(type.dtype.numpy), "constant")


def expanded(c: Context) -> Value:
    """To the shape that the result has."""
    if not c.operation.types:
        raise RefusedError("its type is not known")
    new = c.numbers("broadcast_axes")
    dims = c.operation.types[0].dims
    x = c.add("Unsqueeze", c.x, c.ints(*new)) if new and len(c.dims) + len(new) == len(dims) else c.x
    return c.add("Expand", x, c.ints(*dims))


def cast(c: Context) -> Value:
    return c.add("Cast", c.x, to=str(c.operation.types[0].dtype)) if c.operation.types else c.x


def top(c: Context) -> Value:
    """The numbers of the greatest along the last axis."""
    values = c.builder.adds("TopK", 2, c.x, c.ints(int(c.number("k", 1))), axis=len(c.dims) - 1)
    return c.add("Cast", values[1], to="i64")


def argmax(c: Context) -> Value:
    return c.add("ArgMax", c.x, axis=len(c.dims) - 1, keepdims=0)


def masked(c: Context) -> Value:
    """Where the mask holds, a number."""
    value = c.number("float_operand") if c.flag("has_float_operand") else c.number("int_operand")
    mask = c.add("Cast", c.inputs[1], to="bool")
    return c.add("Where", mask, np.array(value, c.builder.type(c.x).dtype.numpy), c.x)


def triangle(c: Context) -> Value:
    """Below or above a diagonal; the rest is one number."""
    lower, first = c.operation.type == "tril", int(c.number("diagonal"))
    places = np.ones(c.dims[-2:], bool)
    fill = c.number("floating_fill_value") if c.flag("is_floating_fill_value") else c.number("integer_fill_value")
    kept = np.tril(places, first) if lower else np.triu(places, first)
    return c.add("Where", kept, c.x, np.array(fill, c.builder.type(c.x).dtype.numpy))


def grid_sample(c: Context) -> Value:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(str(c.attributes.get("interpolation_mode")), "nearest")
    padding = str(c.attributes.get("padding_mode", "zeros"))
    return sampled(c, c.x, c.inputs[1], mode, padding, corners=c.flag("align_corners"))


def windows(c: Context) -> Value:
    pads = c.numbers("padding") * 2
    return unfolded(c, c.x, c.numbers("kernel_size"), c.numbers("strides"), pads, c.numbers("dilation_rate"))


def quick_gelu(c: Context) -> Value:
    return c.add("Mul", c.x, c.add("Sigmoid", c.add("Mul", c.x, 1.702)))


def biased(type: str) -> Callable[[Context], Value]:
    """A bias along an axis, then perhaps something else."""

    def made(c: Context) -> Value:
        x = c.add("Add", c.x, c.channels(c.inputs[1], c.x, int(c.number("axis", 1))))
        return c.add(type, x) if type else x

    return made


def flipped(c: Context) -> Value:
    axes = c.numbers("dims")
    return c.slice(c.x, [-1] * len(axes), [-(1 << 31)] * len(axes), axes, [-1] * len(axes))


def joined(c: Context) -> Value:
    return c.add("Concat", *c.inputs, axis=int(c.number("axis")))


_SINGLES = {
    "relu": "Relu", "sigmoid": "Sigmoid", "sigmoid_v2": "Sigmoid", "tanh": "Tanh", "gelu": "Gelu", "silu": "Swish",
    "mish": "Mish", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "abs": "Abs", "negative": "Neg", "sign": "Sign",
    "softplus": "Softplus", "softsign": "Softsign", "hardswish": "HardSwish", "selu": "Selu", "erf": "Erf",
    "floor": "Floor", "ceil": "Ceil", "round": "Round", "reciprocal": "Reciprocal", "sin": "Sin", "cos": "Cos",
    "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh",
    "acosh": "Acosh", "atanh": "Atanh",
}  # fmt: skip
_PAIRS = {
    **{
        f"broadcast_{name}": type
        for name, type in (
            ("add", "Add"),
            ("sub", "Sub"),
            ("mul", "Mul"),
            ("div", "Div"),
            ("maximum", "Max"),
            ("minimum", "Min"),
            ("pow", "Pow"),
        )
    },
    "add_n2": "Add",
    "add_n": "Sum",
    "multiply": "Mul",
    "elementwise_maximum": "Max",
    "elementwise_minimum": "Min",
    "scalar_add_by_tensor": "Add",
    "scalar_sub_by_tensor": "Sub",
    "scalar_mul_by_tensor": "Mul",
    "scalar_div_by_tensor": "Div",
}
_COMPARED = {"equal": "Equal", "greater": "Greater", "greater_equal": "GreaterOrEqual", "less": "Less",
             "less_equal": "LessOrEqual"}  # fmt: skip

OPERATORS: dict[str, Callable[[Context], Made]] = {
    **dict.fromkeys(("output", "identity", "dropout", "amp_white_identity", "amp_black_identity"), same),
    **{name: simple(type) for name, type in _SINGLES.items()},
    **{name: binary(type) for name, type in _PAIRS.items()},
    **{f"broadcast_{name}": compared(type) for name, type in _COMPARED.items()},
    **{f"scalar_logical_{name}": compared(type) for name, type in _COMPARED.items()},
    "broadcast_not_equal": lambda c: _told(c, c.chain(c.add("Equal", *c.inputs), "Not")),
    **{
        f"scalar_{name}": scalar(type)
        for name, type in (("add", "Add"), ("sub", "Sub"), ("mul", "Mul"), ("div", "Div"), ("pow", "Pow"))
    },
    "scalar_reverse_pow": scalar("Pow", turned=True),
    "square": lambda c: c.square(c.x),
    "rsqrt": lambda c: c.chain(c.x, "Sqrt", "Reciprocal"),
    "log1p": lambda c: c.add("Log", c.add("Add", c.x, 1.0)),
    "expm1": lambda c: c.add("Sub", c.add("Exp", c.x), 1.0),
    "quick_gelu": quick_gelu,
    "fast_gelu": simple("Gelu", approximate="tanh"),
    "hardsigmoid": simple("HardSigmoid", alpha=1 / 6),
    "logsigmoid": lambda c: c.add("Neg", c.chain(c.x, "Neg", "Softplus")),
    "leaky_relu": lambda c: c.add("LeakyRelu", c.x, alpha=c.number("alpha", 0.01)),
    "elu": lambda c: c.add("Elu", c.x, alpha=c.number("alpha", 1.0)),
    "celu": lambda c: c.add("Celu", c.x, alpha=c.number("alpha", 1.0)),
    "prelu": lambda c: c.add("PRelu", c.x, c.channels(c.inputs[1], c.x)),
    "hardtanh": lambda c: c.add("Clip", c.x, c.number("min_val", -1.0), c.number("max_val", 1.0)),
    **dict.fromkeys(("clip_by_scalar", "clip_by_scalar_min", "clip_by_scalar_max"), bounded),
    **dict.fromkeys(("matmul", "batch_matmul", "broadcast_matmul"), matmul),
    "cublas_fused_mlp": perceptron,
    "fused_matmul_bias": lambda c: c.add("Add", c.add("MatMul", c.x, c.swapped(c.inputs[1])), c.inputs[2]),
    "bias_add": biased(""),
    "fused_bias_add_gelu": biased("Gelu"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), convolution),
    **dict.fromkeys(("deconv1d", "deconv2d", "deconv3d"), deconvolution),
    **{
        f"{kind}{gap}pool_{n}d": pooling(type)
        for kind, type in (("max", "MaxPool"), ("avg", "AveragePool"))
        for gap in ("", "_")
        for n in (1, 2, 3)
    },
    **{f"adaptive_{kind}_pool{n}d": adaptive(kind == "avg") for kind in ("avg", "max") for n in (1, 2, 3)},
    **dict.fromkeys(("normalization", "normalization_infer"), normalization),
    "normalization_add_relu": lambda c: c.add("Relu", normalization(c)),
    "layer_norm": layer_norm,
    "group_norm": grouped,
    "rms_norm": rms_norm,
    "softmax": simple("Softmax", axis=-1),
    "log_softmax": simple("LogSoftmax", axis=-1),
    **{f"reduce_{kind}": reduce(f"Reduce{kind.title()}") for kind in ("mean", "sum", "max", "min", "prod")},
    "var": variance,
    "argmax": argmax,
    "top_k": top,
    **{
        f"upsample_{name}": resized(mode)
        for name, mode in (
            ("nearest_1d", "nearest"),
            ("nearest_2d", "nearest"),
            ("nearest_3d", "nearest"),
            ("linear_1d", "linear"),
            ("bilinear_2d", "linear"),
            ("bicubic_2d", "cubic"),
            ("trilinear_3d", "linear"),
        )
    },
    "pad": pad,
    "constant_pad": pad_ends("constant"),
    **{
        f"{kind}_pad{n}d": pad_ends(mode)
        for kind, mode, most in (("reflection", "reflect", 2), ("replication", "edge", 3), ("constant", "constant", 3))
        for n in range(1, most + 1)
    },
    "grid_sample": grid_sample,
    "unfold": windows,
    "flatten": flatten,
    "concat": joined,
    "cat": joined,
    "stack": lambda c: c.stacked(c.inputs, int(c.number("axis"))),
    "slice": sliced,
    "narrow": narrow,
    "flip": flipped,
    "reshape": lambda c: c.reshape(c.x, *c.numbers("shape")),
    "cast": cast,
    "constant": filled,
    "arange": filled,
    "transpose": lambda c: c.add("Transpose", c.x, perm=c.numbers("perm")),
    "expand": expanded,
    "broadcast_like": expanded,
    "reshape_like": lambda c: c.reshape(c.x, *c.builder.dims(c.inputs[1])),
    "expand_dims": lambda c: c.add("Unsqueeze", c.x, c.ints(int(c.number("axis")))),
    "squeeze": lambda c: c.add("Squeeze", c.x, c.ints(*c.numbers("axes"))),
    "where": lambda c: c.add("Where", c.add("Cast", c.x, to="bool"), *c.inputs[1:]),
    "masked_fill": masked,
    "gather": lambda c: c.add("Gather", *c.inputs, axis=int(c.number("axis"))),
    "dim_gather": lambda c: c.add("GatherElements", *c.inputs, axis=int(c.number("dim"))),
    "gather_nd": binary("GatherND"),
    "embedding": lambda c: c.add("Gather", *c.inputs, axis=0),
    "cumsum": lambda c: c.add("CumSum", c.x, c.ints(int(c.number("dim")))),
    "tril": triangle,
    "triu": triangle,
}
