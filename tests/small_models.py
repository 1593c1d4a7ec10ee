"""Builds small model files of many formats by the formats' definitions."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence

import numpy as np

from tenon.network.graph.graph import Array
from wire import field, message

Option = int | float | str | Sequence[int] | Sequence[float]


# ------------------------------------------------------------------------------------------------ ncnn
def ncnn_net(*lines: str, shape: str = "0=6 1=5 2=3") -> bytes:
    layers = [f"Input in 0 1 data {shape}", *lines]
    return "\n".join(["7767517", f"{len(layers)} 9", *layers, ""]).encode()


# -------------------------------------------------------------------------------------------- Tengine
class TmfileWriter:
    """Tables appended to a file; each returns its offset."""

    def __init__(self) -> None:
        self.data = bytearray(struct.pack("<4H2I", 2, 0, 0, 0, 0, 0))

    def put(self, data: bytes) -> int:
        at = len(self.data)
        self.data += data + bytes(-len(data) % 4)
        return at

    def words(self, *values: int | float) -> int:
        return self.put(b"".join(struct.pack("<f" if isinstance(v, float) else "<i", v) for v in values))

    def vector(self, values: Sequence[int | float]) -> int:
        return self.words(len(values), *values)

    def rows(self, values: Sequence[int | float] | Array) -> int:
        """A count, followed by that many numbers or rows of numbers."""
        flat = values.ravel().tolist() if isinstance(values, np.ndarray) else values
        return self.words(len(values), *flat)

    def text(self, text: str) -> int:
        return self.words(len(text), self.put(text.encode() + b"\0"))


Words = Sequence[int | float | Sequence[int | float] | Array]
"""Parameters of a tmfile's operator; lists and rows of an array are written elsewhere and pointed at."""


def tmfile(
    type: int, parameters: Words, *weights: Array, shape: Sequence[int] = (1, 4, 6, 5), outputs: int = 1
) -> bytes:
    """A file of one operator on an input and weights. Of several outputs, the first is the graph's."""
    w = TmfileWriter()
    tensors: list[int] = []
    buffers: list[int] = []
    nodes: list[int] = []

    def tensor(name: str, dims: Sequence[int], kind: int, buffer: int = 0, data_type: int = 0, quant: int = 0) -> None:
        tensors.append(w.words(len(tensors), buffer, w.vector(dims), w.text(name), quant, 0, kind, data_type))

    def node(name: str, type: int, parameters: int, ins: Sequence[int], outs: Sequence[int]) -> None:
        operator = w.words(1, type, parameters)
        nodes.append(w.words(len(nodes), w.vector(ins), w.vector(outs), operator, w.text(name), 0, 0))

    tensor("data", shape, 3)
    node("data", 12, 0, [], [0])
    for i, array in enumerate(weights):
        quant = w.vector([w.words(3, 0.5, 8)]) if array.dtype == np.int8 else 0
        buffers.append(w.words(array.nbytes, w.put(array.tobytes())))
        kind = {np.dtype(np.int8): 2, np.dtype(np.int32): 4}.get(array.dtype, 0)
        tensor(f"w{i}", array.shape, 2, i, kind, quant)
        node(f"w{i}", 4, 0, [], [i + 1])
    first = len(tensors)
    for i in range(outputs):
        tensor(f"y{i}" if i else "y", [], 1)
    words = [p if isinstance(p, int | float) else w.rows(p) for p in parameters]
    node("layer", type, w.words(*words) if words else 0, range(first), range(first, first + outputs))
    graph = w.words(
        0,
        0,
        0,
        w.vector([0]),
        w.vector([len(nodes) - 1]),
        w.vector(nodes),
        w.vector(tensors),
        w.vector(buffers),
        w.text("graph"),
        0,
    )
    root = w.words(0, 0, w.vector([graph]), w.text("model"))
    w.data[8:12] = struct.pack("<I", root)
    return bytes(w.data)


# ---------------------------------------------------------------------------------------------- MXNet
Node = tuple[str, str, dict[str, str], Sequence[int]]
"""Operator, name, options, inputs."""


def mxnet_symbol(*nodes: Node, key: str = "attrs") -> bytes:
    """The last node is the head."""
    listed = [
        {"op": op, "name": name, key: options, "inputs": [[i, 0, 0] for i in inputs]}
        for op, name, options, inputs in nodes
    ]
    return json.dumps({"nodes": listed, "arg_nodes": [], "heads": [[len(listed) - 1, 0, 0]]}).encode()


def mxnet_array(data: Array, version: int) -> bytes:
    kind = {np.dtype("f4"): 0, np.dtype("f2"): 2}[data.dtype]
    if version == 0:
        head = struct.pack(f"<I{data.ndim}I", data.ndim, *data.shape)
    else:
        head = struct.pack("<I", 0xF993FAC7 + version) + (struct.pack("<i", 0) if version > 1 else b"")
        head += struct.pack(f"<I{data.ndim}q", data.ndim, *data.shape)
    return head + struct.pack("<iii", 1, 0, kind) + data.tobytes()


def mxnet_parameters(arrays: dict[str, Array] | None = None, version: int = 2) -> bytes:
    arrays = arrays or {}
    names = b"".join(struct.pack("<Q", len(f"arg:{n}")) + f"arg:{n}".encode() for n in arrays)
    body = b"".join(mxnet_array(a, version) for a in arrays.values())
    return struct.pack("<3Q", 0x112, 0, len(arrays)) + body + struct.pack("<Q", len(arrays)) + names


MXNET: list[Node] = [
    ("null", "data", {}, ()),
    ("null", "c_weight", {}, ()),
    ("null", "c_bias", {}, ()),
    ("Convolution", "c", {"kernel": "(1, 1)", "num_filter": "3"}, (0, 1, 2)),
    ("null", "b_gamma", {}, ()),
    ("null", "b_beta", {}, ()),
    ("null", "b_moving_mean", {}, ()),
    ("null", "b_moving_var", {}, ()),
    ("BatchNorm", "b", {"eps": "0.001"}, (3, 4, 5, 6, 7)),
    ("Activation", "r", {"act_type": "relu"}, (8,)),
    ("Pooling", "p", {"pool_type": "avg", "global_pool": "True", "kernel": "(1, 1)"}, (9,)),
    ("Flatten", "f", {}, (10,)),
    ("null", "softmax_label", {}, ()),
    ("SoftmaxOutput", "softmax", {}, (11, 12)),
]


def mxnet_stored() -> dict[str, Array]:
    return {
        "c_weight": np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4, 1, 1),
        "c_bias": np.array([1, -1, 0], "f4"),
        "b_gamma": np.array([9, 9, 9], "f4"),
        "b_beta": np.array([0.1, 0.2, 0.3], "f4"),
        "b_moving_mean": np.array([0.5, 0, -0.5], "f4"),
        "b_moving_var": np.array([1, 2, 3], "f4"),
    }


# ----------------------------------------------------------------------------------------------- MACE
MaceOptions = dict[str, int | float | str | Sequence[int] | Sequence[float]]


def mace_argument(name: str, value: int | float | str | Sequence[int] | Sequence[float]) -> bytes:
    if isinstance(value, int | float | str):
        return message((1, name), (3 if isinstance(value, int) else 2 if isinstance(value, float) else 4, value))
    if all(isinstance(v, int) for v in value):
        return field(1, name) + b"".join(field(6, int(v)) for v in value)
    return field(1, name) + field(5, [float(v) for v in value])


def mace_net(
    type: str,
    options: MaceOptions,
    weights: Sequence[Array] = (),
    *,
    old: bool = False,
    data_format: int = 1,
    dims: Sequence[int] = (1, 6, 5, 4),
    outputs: Sequence[str] = (),
) -> bytes:
    """A network of one operator; its weights are consecutive in the .data file. ``outputs`` are further outputs, after
    ``y``.
    """
    options = {"T": 1, "data_format": 1000, **options}
    names = ["x", *(f"w{i}" for i in range(len(weights)))]
    operator = b"".join(field(1, name) for name in names) + b"".join(field(2, name) for name in ("y", *outputs))
    operator += message((3, "layer"), (4, type))
    operator += b"".join(field(5 if old else 6, mace_argument(k, v)) for k, v in options.items())
    body, at = field(2 if old else 1, operator), 0
    for name, w in zip(names[1:], weights, strict=True):
        kind = {"float32": 1, "float16": 3, "int32": 4, "uint8": 2}[str(w.dtype)]
        tensor = b"".join(field(1, d) for d in w.shape) + message((2, kind), (5, name), (6, at), (7, w.size))
        tensor += message((8, 0.5), (9, 3), (12, 1)) if kind == 2 else b""
        body, at = body + field(5 if old else 3, tensor), at + w.nbytes
    shape = b"".join(field(3, d) for d in dims)
    body += field(100, message((1, "x")) + shape + message((6, data_format)))
    return body + b"".join(field(101, message((1, name))) for name in ("y", *outputs))


# --------------------------------------------------------------------------------------------- Caffe2
def caffe2_operator(type: str, ins: Sequence[str], outs: Sequence[str], **options: Option | Array | bytes) -> bytes:
    body = b"".join(field(1, n) for n in ins) + b"".join(field(2, n) for n in outs) + field(4, type)
    for name, value in options.items():
        if isinstance(value, np.ndarray):
            argument = field(5, value.ravel().tolist())
        elif isinstance(value, int | float | str | bytes):
            argument = field(3 if isinstance(value, int) else 2 if isinstance(value, float) else 4, value)
        else:
            argument = b"".join(field(6, v) for v in value)
        body += field(5, field(1, name) + argument)
    return body


def caffe2_net(operators: Sequence[bytes], ins: Sequence[str] = (), outs: Sequence[str] = ()) -> bytes:
    body = field(1, "net") + b"".join(field(2, op) for op in operators)
    return body + b"".join(field(7, n) for n in ins) + b"".join(field(8, n) for n in outs)


def caffe2_fill(name: str, data: Array) -> bytes:
    return caffe2_operator("GivenTensorFill", [], [name], shape=data.shape, values=data)


# --------------------------------------------------------------------------------------------- Paddle
def paddle_operator(type: str, ins: dict[str, str | list[str]], outs: dict[str, str], **options: Option) -> bytes:
    slots = {slot: [names] if isinstance(names, str) else names for slot, names in ins.items()}
    body = b"".join(field(1, message((1, slot), *((2, name) for name in names))) for slot, names in slots.items())
    body += b"".join(field(2, message((1, slot), (2, name))) for slot, name in outs.items()) + field(3, type)
    for name, value in options.items():
        kind, number = {int: (0, 3), float: (1, 4), str: (2, 5)}.get(value.__class__, (3, 6))
        values = [value] if isinstance(value, int | float | str) else value
        if any(isinstance(v, float) for v in values) and kind == 3:
            body += field(4, message((1, name), (2, 4)) + field(7, [float(v) for v in values]))
            continue
        body += field(4, message((1, name), (2, kind)) + b"".join(field(number, v) for v in values))
    return body


def paddle_variable(name: str, dims: Sequence[int], kept: bool) -> bytes:
    tensor = field(1, 5) + b"".join(field(2, d) for d in dims)
    return message((1, name), (2, message((1, 7), (3, field(1, tensor)))), (3, int(kept)))


def paddle_tensor(data: Array) -> bytes:
    desc = field(1, 5) + b"".join(field(2, d) for d in data.shape)
    return struct.pack("<IQIi", 0, 0, 0, len(desc)) + desc + data.tobytes()


PADDLE: dict[str, Sequence[int]] = {"w": (3, 4, 1, 1), "b": (3,)}


def paddle(
    *operators: bytes, shape: Sequence[int] = (-1, 4, 6, 5), parameters: Mapping[str, Sequence[int]] = PADDLE
) -> bytes:
    """A program from ``x`` to ``y``."""
    feed = paddle_operator("feed", {"X": "feed"}, {"Out": "x"}, col=0)
    fetch = paddle_operator("fetch", {"X": "y"}, {"Out": "fetch"}, col=0)
    block = message((1, 0), (2, -1)) + field(3, paddle_variable("x", shape, False))
    block += b"".join(field(3, paddle_variable(name, dims, True)) for name, dims in parameters.items())
    return field(1, block + b"".join(field(4, op) for op in (feed, *operators, fetch)))


def pir_operator(type: str, ins: Sequence[int], outs: Sequence[int], **options: object) -> dict[str, object]:
    """An operator of Paddle 3; values are numbers."""
    kinds = {bool: "0.a_bool", int: "0.a_i32", float: "0.a_f32", str: "0.a_str"}

    def kept(value: object) -> dict[str, object]:
        if isinstance(value, list):
            return {"#": "0.a_array", "D": [kept(item) for item in value]}
        return {"#": kinds[value.__class__], "D": value}

    made = [{"%": i, "TT": pir_tensor((-1,))} for i in outs]
    attributes = [
        {"N": name, "AT": {"#": "1.a_dtype", "D": value} if name == "dtype" else kept(value)}
        for name, value in options.items()
    ]
    return {"#": type, "A": attributes, "I": [{"%": i} for i in ins], "O": made, "OA": []}


def pir_tensor(dims: Sequence[int]) -> dict[str, object]:
    return {"#": "0.t_dtensor", "D": [{"#": "0.t_f32"}, [*dims], "NCHW", [], 0]}


def pir(
    *operators: dict[str, object],
    shape: Sequence[int] = (-1, 4, 6, 5),
    parameters: Mapping[str, Sequence[int]] = PADDLE,
    results: Sequence[int] = (9,),
) -> bytes:
    """A program of Paddle 3: ``x`` is value 1, the parameters are those from 2 on."""
    data = pir_operator("1.data", (), (1,), name="x")
    data["O"] = [{"%": 1, "TT": pir_tensor(shape)}]
    stored = [
        {"#": "p", "A": [0, 1, 1, name], "DA": [], "O": {"%": i, "TT": pir_tensor(dims)}, "OA": [1, 0, 1]}
        for i, (name, dims) in enumerate(parameters.items(), 2)
    ]
    fetch = [pir_operator("1.fetch", (value,), (100 + i,), name=f"y{i}", col=i) for i, value in enumerate(results)]
    block = {"#": "block_0", "args": [], "ops": [*stored, data, *operators, *fetch]}
    program = {"regions": [{"#": "region_0", "blocks": [block]}]}
    return json.dumps({"base_code": {"magic": "pir", "trainable": True, "version": 4}, "program": program}).encode()


# -------------------------------------------------------------------------------------------- OneFlow
ONEFLOW_JOB = """module  {
  oneflow.job @G(%arg0: tensor<1x4xf32>) -> tensor<1x2xf32> {
    %x = "oneflow.input"(%arg0) {op_name = "x", shape = [1 : si64, 4 : si64]} : (tensor<1x4xf32>) -> tensor<1x4xf32>
    %w = "oneflow.variable"() {op_name = "w", parallel = #sbp.parallel<[] -> [#sbp.B]>} : () -> tensor<2x4xf32>
    %0 = "oneflow.matmul"(%x, %w) {alpha = 2.0 : f64, op_name = "m", transpose_a = false, transpose_b = true} : (a) -> tensor<1x2xf32>
    %1 = "oneflow.KIND"(%0) {op_name = "r"} : (tensor<1x2xf32>) -> tensor<1x2xf32>
    %o = "oneflow.output"(%1) {op_name = "o"} : (tensor<1x2xf32>) -> tensor<1x2xf32>
    oneflow.return %o : tensor<1x2xf32>
  }
}
"""  # noqa: E501 (one operation is one line)
