"""ATen's operators in ONNX operators: one function per operator, and ``OPERATORS``.

Definitions: the core ATen operators of the PyTorch documentation, and those above them that keep their shape here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tenon.frontends.emit import Emitter, Operand
from tenon.frontends.net import Net
from tenon.frontends.refused import RefusedError
from tenon.ir.graph import Value

_END = 2**31 - 1


class Context(Emitter):
    """The operator about to be made: its arguments by name, the shape and the element type of its result."""

    def __init__(self, net: Net, name: str, arguments: dict[str, Any], result: tuple[tuple[int, ...], str]) -> None:
        super().__init__(net)
        self.name, self.arguments = name, arguments
        self.shape, self.kind = result

    def get(self, name: str, default: Any = None) -> Any:
        found = self.arguments.get(name, default)
        return default if found is None else found

    @property
    def x(self) -> Value:
        for name in ("self", "input", "x"):
            if isinstance(self.arguments.get(name), Value):
                found: Value = self.arguments[name]
                return found
        raise RefusedError("its operand is not a tensor")

    @property
    def dims(self) -> tuple[int, ...]:
        return self.net.dims(self.x)

    def operand(self, name: str) -> Value:
        """A tensor, or a number of the result's element type."""
        found = self.arguments.get(name)
        if isinstance(found, Value):
            return self.cast(found)
        value = self.value(np.array(found, self.numpy))
        assert value is not None
        return value

    @property
    def numpy(self) -> np.dtype[Any]:
        kind = self.kind
        if kind == "bool" and isinstance(self.arguments.get("self"), Value):
            return self.net.type(self.x).dtype.numpy
        if kind not in _TYPES:
            raise RefusedError(f"elements of type {kind} are not supported")
        return np.dtype(kind)

    def cast(self, x: Value) -> Value:
        """``x`` in the element type that the operator computes in."""
        wanted = _TYPES[str(self.numpy)]
        return x if self.net.type(x).dtype == wanted else self.add("Cast", x, to=wanted)


_TYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "int64": "i64", "int32": "i32", "int16": "i16",
          "int8": "i8", "uint8": "u8", "bool": "bool"}  # fmt: skip

Result = Value | Sequence[Value]


def simple(type: str, **attributes: Any) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.x, **attributes)


def _spread(value: Any, count: int) -> list[int]:
    """One number per spatial axis; torch takes a single one for all."""
    numbers = [int(v) for v in value] if isinstance(value, list | tuple) else [int(value)]
    return numbers * count if len(numbers) == 1 else numbers


# ---------------------------------------------------------------------------------------- with weights
def convolution(c: Context) -> Value:
    """All of torch's convolutions; padding may be the word "same" or "valid"."""
    weights, bias = c.get("weight"), c.get("bias")
    rank = len(c.net.dims(weights)) - 2
    transposed = bool(c.get("transposed", "transpose" in c.name))
    window: dict[str, Any] = {"strides": _spread(c.get("stride", 1), rank), "group": int(c.get("groups", 1)),
                              "dilations": _spread(c.get("dilation", 1), rank)}  # fmt: skip
    padding = c.get("padding", 0)
    if isinstance(padding, str):
        window["auto_pad"] = "SAME_UPPER" if padding == "same" else "VALID"
    else:
        window["pads"] = _spread(padding, rank) * 2
    x = c.x
    single = len(c.dims) == rank + 1
    x = c.add("Unsqueeze", x, c.ints(0)) if single else x
    if transposed:
        y = c.add("ConvTranspose", x, weights, bias, output_padding=_spread(c.get("output_padding", 0), rank), **window)
    else:
        y = c.add("Conv", x, weights, bias, **window)
    return c.add("Squeeze", y, c.ints(0)) if single else y


def linear(c: Context) -> Value:
    weights, bias = c.get("weight"), c.get("bias")
    if len(c.dims) == 2:
        return c.add("Gemm", c.x, weights, bias, transB=1)
    y = c.add("MatMul", c.x, c.add("Transpose", weights, perm=(1, 0)))
    return y if bias is None else c.add("Add", y, bias)


def addmm(c: Context) -> Value:
    return c.add("Gemm", c.get("mat1"), c.get("mat2"), c.get("self"), alpha=float(c.get("alpha", 1)),
                 beta=float(c.get("beta", 1)))  # fmt: skip


def product(c: Context) -> Value:
    return c.add("MatMul", c.x, c.get("mat2", c.get("other", c.get("vec"))))


def batch_norm(c: Context) -> Result:
    channels = c.dims[1]
    ones = np.ones(channels, np.float32)
    weight, bias = c.get("weight", ones), c.get("bias", 0 * ones)
    mean, variance = c.get("running_mean"), c.get("running_var")
    if mean is None or variance is None or c.get("training", False):
        raise RefusedError("statistics of the batch are not supported", "call eval() on the module before exporting")
    epsilon = float(c.get("eps", 1e-5))
    y = c.add("BatchNormalization", c.x, weight, bias, mean, variance, epsilon=epsilon)
    return y if c.name == "batch_norm" else [y]


def layer_norm(c: Context) -> Result:
    shape = tuple(int(d) for d in c.get("normalized_shape"))
    weight = c.get("weight", np.ones(shape, np.float32))
    y = c.add("LayerNormalization", c.x, weight, c.get("bias"), axis=-len(shape), epsilon=float(c.get("eps", 1e-5)))
    return y if c.name == "layer_norm" else [y]


def group_norm(c: Context) -> Result:
    groups, dims = int(c.get("num_groups", c.get("group", 1))), c.dims
    ones = np.ones(groups, np.float32)
    x = c.add("InstanceNormalization", c.reshape(c.x, dims[0], groups, -1), ones, 0 * ones,
              epsilon=float(c.get("eps", 1e-5)))  # fmt: skip
    x = c.reshape(x, *dims)
    for type, name in (("Mul", "weight"), ("Add", "bias")):
        if c.get(name) is not None:
            x = c.add(type, x, c.channels(c.get(name), x))
    return x if c.name == "group_norm" else [x]


def instance_norm(c: Context) -> Value:
    ones = np.ones(c.dims[1], np.float32)
    if not c.get("use_input_stats", True):
        raise RefusedError("stored statistics are not supported")
    return c.add("InstanceNormalization", c.x, c.get("weight", ones), c.get("bias", 0 * ones),
                 epsilon=float(c.get("eps", 1e-5)))  # fmt: skip


def embedding(c: Context) -> Value:
    return c.add("Gather", c.get("weight"), c.add("Cast", c.get("indices"), to="i64"), axis=0)


def attention(c: Context) -> Value:
    query, key, mask = c.get("query"), c.get("key"), c.get("attn_mask")
    if c.get("is_causal", False) or c.get("dropout_p", 0.0) or c.get("enable_gqa", False):
        raise RefusedError("causal and grouped attention are not supported", "give the mask as a tensor")
    rank, width = len(c.net.dims(key)), c.net.dims(query)[-1]
    factor = float(c.get("scale", 1 / math.sqrt(width)))
    swapped = c.add("Transpose", key, perm=(*range(rank - 2), rank - 1, rank - 2))
    scores = c.add("Mul", c.add("MatMul", query, swapped), factor)
    if mask is not None:
        if c.net.type(mask).dtype == "bool":
            mask = c.add("Where", mask, 0.0, -3.4e38)
        scores = c.add("Add", scores, mask)
    return c.add("MatMul", c.add("Softmax", scores, axis=-1), c.get("value"))


# --------------------------------------------------------------------------------------------- pooling
def pooling(type: str) -> Callable[[Context], Result]:
    def made(c: Context) -> Result:
        kernel = c.get("kernel_size")
        rank = 1 if "1d" in c.name else 3 if "3d" in c.name else 2
        window = {
            "kernel_shape": _spread(kernel, rank),
            "strides": _spread(c.get("stride") or kernel, rank),
            "pads": _spread(c.get("padding", 0), rank) * 2,
            "ceil_mode": int(c.get("ceil_mode", False)),
        }
        if type == "AveragePool":
            if c.get("divisor_override"):
                raise RefusedError("divisor_override is not supported")
            return c.add(type, c.x, count_include_pad=int(c.get("count_include_pad", True)), **window)
        y = c.add(type, c.x, dilations=_spread(c.get("dilation", 1), rank), **window)
        return [y] if "indices" in c.name else y

    return made


def adaptive(type: str, whole: str) -> Callable[[Context], Result]:
    def made(c: Context) -> Result:
        rank = 1 if "1d" in c.name else 2
        sizes, wanted = c.dims[-rank:], c.shape[-rank:]
        if all(n == 1 for n in wanted):
            y = c.add(whole, c.x)
        elif any(n % k for n, k in zip(sizes, wanted, strict=True)):
            raise RefusedError(f"{list(sizes)} cannot be pooled evenly to {list(wanted)}")
        else:
            window = [n // k for n, k in zip(sizes, wanted, strict=True)]
            y = c.add(type, c.x, kernel_shape=window, strides=window)
        return [y] if "max" in c.name else y

    return made


def upsample(mode: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        centre = "asymmetric" if mode == "nearest" else "align_corners" if c.get("align_corners") else "half_pixel"
        return c.resized(c.x, c.shape[2], c.shape[3], mode, centre)

    return made


# ------------------------------------------------------------------------------------------ arithmetic
def binary(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        a, b, factor = c.operand("self"), c.operand("other"), c.get("alpha", 1)
        b = b if factor == 1 else c.add("Mul", b, np.array(factor, c.numpy))
        return c.add(type, a, b)

    return made


def reverse_subtraction(c: Context) -> Value:
    return c.add("Sub", c.operand("other"), c.operand("self"))


def division(c: Context) -> Value:
    y = c.add("Div", c.operand("self"), c.operand("other"))
    mode = c.get("rounding_mode")
    if mode not in (None, "floor"):
        raise RefusedError(f"rounding_mode {mode} is not supported")
    return c.add("Floor", y) if mode == "floor" else y


def power(c: Context) -> Value:
    base, exponent = c.arguments.get("self"), c.arguments.get("exponent")
    if exponent == 2 and isinstance(base, Value):
        return c.add("Mul", base, base)
    return c.add("Pow", *(v if isinstance(v, Value) else np.array(v, c.numpy) for v in (base, exponent)))


def prelu(c: Context) -> Value:
    """One slope, or one per channel."""
    slope = c.reshape(c.get("weight"), -1)
    return c.add("PRelu", c.x, c.channels(slope, c.x) if c.net.dims(slope)[0] > 1 else slope)


def compare(type: str, negated: bool = False) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        other = c.arguments.get("other")
        y = c.add(type, c.x, other if isinstance(other, Value) else np.array(other, c.net.type(c.x).dtype.numpy))
        return c.add("Not", y) if negated else y

    return made


def clamp(c: Context) -> Value:
    low, high = (c.get(a, c.get(b)) for a, b in (("min", "min_val"), ("max", "max_val")))
    if c.name == "hardtanh":
        low, high = c.get("min_val", -1), c.get("max_val", 1)
    bounds: list[Operand] = [v if v is None or isinstance(v, Value) else np.array(v, c.numpy) for v in (low, high)]
    return c.add("Clip", c.x, *bounds)


def reduce(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        dim = c.get("dim", [])
        axes = [int(d) for d in dim] if isinstance(dim, list) else [int(dim)]
        chosen = [a % max(1, len(c.dims)) for a in axes] or range(len(c.dims))
        return c.add(type, c.cast(c.x), c.ints(*chosen), keepdims=int(c.get("keepdim", False)))

    return made


def any_of(c: Context) -> Value:
    dim = c.get("dim")
    axes = list(range(len(c.dims))) if dim is None else _spread(dim, 1)
    counted = c.add("ReduceMax", c.add("Cast", c.x, to="i32"), c.ints(*axes), keepdims=int(c.get("keepdim", False)))
    return c.add("Cast", counted, to="bool")


def variance(c: Context) -> Value:
    axes = [int(d) % len(c.dims) for d in c.get("dim", [])] or list(range(len(c.dims)))
    count = math.prod(c.dims[a] for a in axes)
    gap = c.add("Sub", c.x, c.add("ReduceMean", c.x, c.ints(*axes), keepdims=1))
    total = c.add("ReduceSum", c.add("Mul", gap, gap), c.ints(*axes), keepdims=int(c.get("keepdim", False)))
    return c.add("Mul", total, 1 / max(1, count - int(c.get("correction", 1))))


def softmax(type: str) -> Callable[[Context], Value]:
    return lambda c: c.add(type, c.x, axis=int(c.get("dim", -1)))


def arg(type: str) -> Callable[[Context], Value]:
    def made(c: Context) -> Value:
        dim = c.get("dim")
        x, axis = (c.reshape(c.x, -1), 0) if dim is None else (c.x, int(dim))
        return c.add(type, x, axis=axis, keepdims=int(c.get("keepdim", False)))

    return made


# -------------------------------------------------------------------------------------------- movement
def view(c: Context) -> Value:
    """Any change of shape that keeps the order of the elements: torch has told the result's shape."""
    return c.reshape(c.x, *c.shape) if c.shape else c.add("Reshape", c.x, np.zeros(0, np.int64))


def permute(c: Context) -> Value:
    return c.add("Transpose", c.x, perm=[int(d) % len(c.dims) for d in c.get("dims")])


def transpose(c: Context) -> Value:
    order = list(range(len(c.dims)))
    if len(order) < 2:
        return c.x
    a, b = (0, 1) if c.name == "t" else (int(c.get(name)) % len(order) for name in ("dim0", "dim1"))
    order[a], order[b] = b, a
    return c.add("Transpose", c.x, perm=order)


def slices(c: Context) -> Value:
    start, end = c.get("start", 0), c.get("end", _END)
    return c.slice(c.x, [int(start)], [min(int(end), _END)], [int(c.get("dim", 0))], [int(c.get("step", 1))])


def select(c: Context) -> Value:
    index, dim = int(c.get("index")), int(c.get("dim"))
    x = c.slice(c.x, [index], [index + 1 or _END], [dim])
    return c.add("Squeeze", x, c.ints(dim))


def split(c: Context) -> Sequence[Value]:
    dim = int(c.get("dim", 0)) % len(c.dims)
    sizes = c.get("split_sizes", c.get("split_size"))
    if not isinstance(sizes, list):
        chunks = int(c.get("chunks", 0))
        size = -(-c.dims[dim] // chunks) if chunks else int(sizes)
        sizes = [min(size, c.dims[dim] - at) for at in range(0, c.dims[dim], max(1, size))]
    return c.split(c.x, dim, sizes)


def concat(c: Context) -> Value:
    return c.add("Concat", *(c.cast(v) for v in c.get("tensors")), axis=int(c.get("dim", 0)))


def stack(c: Context) -> Value:
    dim = int(c.get("dim", 0))
    return c.add("Concat", *(c.add("Unsqueeze", v, c.ints(dim)) for v in c.get("tensors")), axis=dim)


def expand(c: Context) -> Value:
    return c.add("Expand", c.x, c.ints(*c.shape))


def repeat(c: Context) -> Value:
    times = [int(n) for n in c.get("repeats")]
    x = c.reshape(c.x, *(1,) * (len(times) - len(c.dims)), *c.dims)
    return c.add("Tile", x, c.ints(*times))


def pad(c: Context) -> Value:
    """Pairs of before and after, the last axis first."""
    widths, rank = [int(n) for n in c.get("pad", c.get("padding"))], len(c.dims)
    before, after = [0] * rank, [0] * rank
    for i in range(len(widths) // 2):
        before[rank - 1 - i], after[rank - 1 - i] = widths[2 * i], widths[2 * i + 1]
    mode = "reflect" if "reflection" in c.name else "edge" if "replication" in c.name else "constant"
    value = np.array(c.get("value", 0), c.numpy) if mode == "constant" else None
    return c.add("Pad", c.x, c.ints(*before, *after), value, mode=mode)


def index_select(c: Context) -> Value:
    return c.add("Gather", c.x, c.add("Cast", c.get("index"), to="i64"), axis=int(c.get("dim")))


def where(c: Context) -> Value:
    return c.add("Where", c.get("condition"), c.cast(c.get("self")), c.cast(c.get("other")))


def masked_fill(c: Context) -> Value:
    value = c.get("value")
    value = value if isinstance(value, Value) else np.array(value, c.numpy)
    return c.add("Where", c.get("mask"), value, c.x)


def converted(c: Context) -> Value:
    return c.cast(c.x)


def filled(c: Context) -> Value:
    number = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1}.get(c.name)
    number = c.get("fill_value", c.get("s", 0)) if number is None else number
    data = np.broadcast_to(np.array(number, np.dtype(c.kind)), c.shape)
    return c.net.constant(data, "filled")


def arange(c: Context) -> Value:
    start, end, step = c.get("start", 0), c.get("end"), c.get("step", 1)
    return c.net.constant(np.arange(start, end, step).astype(c.kind), "range")


def same(c: Context) -> Value:
    return c.x


OPERATORS: dict[str, Callable[[Context], Result]] = {
    **dict.fromkeys(("convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d"), convolution),
    "linear": linear, "addmm": addmm, **dict.fromkeys(("mm", "bmm", "matmul", "mv"), product), "embedding": embedding,
    **dict.fromkeys(("batch_norm", "_native_batch_norm_legit_no_training"), batch_norm),
    **dict.fromkeys(("layer_norm", "native_layer_norm"), layer_norm),
    **dict.fromkeys(("group_norm",), group_norm), "instance_norm": instance_norm,
    "scaled_dot_product_attention": attention,
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool2d_with_indices", "max_pool3d"), pooling("MaxPool")),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), pooling("AveragePool")),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d"),
                    adaptive("AveragePool", "GlobalAveragePool")),
    "adaptive_max_pool2d": adaptive("MaxPool", "GlobalMaxPool"), "upsample_nearest2d": upsample("nearest"),
    "upsample_bilinear2d": upsample("linear"), "upsample_bicubic2d": upsample("cubic"),
    **{name: simple(type) for name, type in (
        ("relu", "Relu"), ("sigmoid", "Sigmoid"), ("tanh", "Tanh"), ("silu", "Swish"), ("mish", "Mish"),
        ("hardswish", "HardSwish"), ("exp", "Exp"), ("log", "Log"), ("sqrt", "Sqrt"), ("abs", "Abs"), ("neg", "Neg"),
        ("erf", "Erf"), ("sin", "Sin"), ("cos", "Cos"), ("floor", "Floor"), ("ceil", "Ceil"), ("round", "Round"),
        ("reciprocal", "Reciprocal"), ("softsign", "Softsign"), ("logical_not", "Not"), ("sign", "Sign"))},
    "relu_": simple("Relu"), "hardswish_": simple("HardSwish"), "silu_": simple("Swish"), "hardtanh_": clamp,
    "rsqrt": lambda c: c.chain(c.x, "Sqrt", "Reciprocal"),
    "hardsigmoid": simple("HardSigmoid", alpha=1 / 6, beta=0.5), "relu6": lambda c: c.add("Clip", c.x, 0.0, 6.0),
    "gelu": lambda c: c.add("Gelu", c.x, approximate=str(c.get("approximate", "none"))),
    "leaky_relu": lambda c: c.add("LeakyRelu", c.x, alpha=float(c.get("negative_slope", 0.01))),
    "elu": lambda c: c.add("Elu", c.x, alpha=float(c.get("alpha", 1.0))),
    "selu": simple("Selu"), "celu": lambda c: c.add("Celu", c.x, alpha=float(c.get("alpha", 1.0))),
    "prelu": prelu, "_prelu_kernel": prelu,
    "clamp": clamp, "hardtanh": clamp, "clamp_min": clamp, "add": binary("Add"), "sub": binary("Sub"),
    "mul": binary("Mul"), "add_": binary("Add"), "mul_": binary("Mul"), "rsub": reverse_subtraction, "div": division,
    "maximum": binary("Max"), "minimum": binary("Min"), "pow": power, "eq": compare("Equal"),
    "ne": compare("Equal", True), "gt": compare("Greater"), "ge": compare("GreaterOrEqual"), "lt": compare("Less"),
    "le": compare("LessOrEqual"), "logical_and": binary("And"), "logical_or": binary("Or"),
    "bitwise_not": simple("Not"), "mean": reduce("ReduceMean"), "sum": reduce("ReduceSum"), "amax": reduce("ReduceMax"),
    "amin": reduce("ReduceMin"), "prod": reduce("ReduceProd"), "any": any_of, "var": variance,
    **dict.fromkeys(("softmax", "_softmax"), softmax("Softmax")),
    **dict.fromkeys(("log_softmax", "_log_softmax"), softmax("LogSoftmax")), "argmax": arg("ArgMax"),
    "argmin": arg("ArgMin"),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze"), view),
    "permute": permute, "transpose": transpose, "t": transpose, "slice": slices, "select": select,
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), split), "cat": concat, "stack": stack, "expand": expand,
    "repeat": repeat, **dict.fromkeys(("constant_pad_nd", "reflection_pad2d", "replication_pad2d"), pad),
    "pixel_shuffle": lambda c: c.add("DepthToSpace", c.x, blocksize=int(c.get("upscale_factor")), mode="CRD"),
    "channel_shuffle": lambda c: c.shuffled(c.x, int(c.get("groups"))), "index_select": index_select, "where": where,
    "masked_fill": masked_fill, **dict.fromkeys(("_to_copy", "to", "type_as", "_to_dtype"), converted),
    **dict.fromkeys(("full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "scalar_tensor"), filled),
    "arange": arange,
    **dict.fromkeys(("clone", "alias", "detach", "detach_", "contiguous", "lift_fresh_copy", "dropout",
                     "feature_dropout", "alpha_dropout", "_assert_tensor_metadata"), same),
}  # fmt: skip
