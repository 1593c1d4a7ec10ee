"""Builds small TensorFlow graphs as protobuf bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tenon.formats.importers.tensorflow.schema import DTYPES
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType

NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def part(number: int, data: bytes | str) -> bytes:
    """A field of bytes, text or a message."""
    data = data.encode() if isinstance(data, str) else data
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def shape(dims: Sequence[int]) -> bytes:
    return b"".join(part(2, number(1, d)) for d in dims)


def tensor(data: Array) -> bytes:
    return number(1, NUMBERS[DType.of(data.dtype)]) + part(2, shape(data.shape)) + part(4, data.tobytes())


def attribute(value: Any) -> bytes:
    """An AttrValue by the Python type of ``value``."""
    if isinstance(value, bool):
        return number(5, value)
    if isinstance(value, int):
        return number(3, value)
    if isinstance(value, float):
        return varint(4 << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, DType):  # a str, too
        return number(6, NUMBERS[value])
    if isinstance(value, str):
        return part(2, value)
    if isinstance(value, np.ndarray):
        return part(8, tensor(value))
    if isinstance(value, tuple):  # a shape
        return part(7, shape(value))
    if isinstance(value, Function):
        return part(10, part(1, value.name))
    if value and isinstance(value[0], tuple):
        return part(1, b"".join(part(7, shape(s)) for s in value))
    if value and isinstance(value[0], str) and not isinstance(value[0], DType):
        return part(1, b"".join(part(2, v) for v in value))
    if value and isinstance(value[0], float):
        return part(1, part(4, struct.pack(f"<{len(value)}f", *value)))
    if value and isinstance(value[0], DType):
        return part(1, part(6, b"".join(varint(NUMBERS[d]) for d in value)))
    return part(1, part(3, b"".join(varint(v) for v in value)))


class Function:
    """A library function: named inputs, nodes, and the sources of the outputs."""

    def __init__(self, name: str, inputs: Sequence[str], outputs: Mapping[str, str], *nodes: bytes) -> None:
        self.name, self.inputs, self.outputs, self.nodes = name, inputs, outputs, nodes

    def bytes(self) -> bytes:
        arguments = b"".join(part(2, part(1, n)) for n in self.inputs)
        results = b"".join(part(3, part(1, n)) for n in self.outputs)
        signature = part(1, self.name) + arguments + results
        returned = b"".join(part(4, part(1, k) + part(2, v)) for k, v in self.outputs.items())
        return part(1, signature) + b"".join(part(3, n) for n in self.nodes) + returned


def node(name: str, op: str, *inputs: str, **attributes: Any) -> bytes:
    attrs = b"".join(part(5, part(1, k) + part(2, attribute(v))) for k, v in attributes.items())
    return part(1, name) + part(2, op) + b"".join(part(3, i) for i in inputs) + attrs


def const(name: str, data: Any, dtype: str = "f32", control: str = "") -> bytes:
    """A constant; ``control`` is a control input, as in "^pivot"."""
    array = np.asarray(data, DType(dtype).numpy)
    return node(name, "Const", *([control] if control else []), dtype=DType(dtype), value=array)


def strings(name: str, *texts: bytes) -> bytes:
    """A constant of strings."""
    value = number(1, 7) + part(2, shape([len(texts)])) + b"".join(part(8, text) for text in texts)
    return part(1, name) + part(2, "Const") + part(5, part(1, "value") + part(2, part(8, value)))


def placeholder(name: str, *dims: int, dtype: str = "f32") -> bytes:
    return node(name, "Placeholder", dtype=DType(dtype), shape=dims)


def graph(*nodes: bytes, functions: Sequence[Function] = ()) -> bytes:
    library = part(2, b"".join(part(1, f.bytes()) for f in functions)) if functions else b""
    return b"".join(part(1, n) for n in nodes) + library


# ------------------------------------------------------------------------------------------------ SavedModel
def saved_model(folder: Path, graph_def: bytes, outputs: Mapping[str, str], variables: Mapping[str, Array]) -> Path:
    """A SavedModel folder with one signature; variables lie in one shard."""
    infos = b"".join(part(2, part(1, k) + part(2, part(1, f"{v}:0"))) for k, v in outputs.items())
    meta = part(2, graph_def) + part(5, part(1, "serving_default") + part(2, infos))
    (folder / "variables").mkdir(parents=True)
    (folder / "saved_model.pb").write_bytes(number(1, 1) + part(2, meta))
    data, entries = bytearray(), {"": number(1, 1)}
    for name, array in sorted(variables.items()):
        place = number(4, len(data)) if data else b""
        entries[name] = (
            number(1, NUMBERS[DType.of(array.dtype)]) + part(2, shape(array.shape)) + place + number(5, array.nbytes)
        )
        data += array.tobytes()
    (folder / "variables/variables.data-00000-of-00001").write_bytes(bytes(data))
    (folder / "variables/variables.index").write_bytes(table(entries))
    return folder


def table(entries: Mapping[str, bytes]) -> bytes:
    """A LevelDB table of one data block; keys share their prefixes."""
    block, previous = bytearray(), b""
    for name, value in entries.items():
        key, shared = name.encode(), 0
        while shared < min(len(key), len(previous)) and key[shared] == previous[shared]:
            shared += 1
        block += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        previous = key
    block += struct.pack("<II", 0, 1)
    handle = varint(0) + varint(len(block))
    index = varint(0) + varint(1) + varint(len(handle)) + b"z" + handle + struct.pack("<II", 0, 1)
    start = len(block) + 5
    footer = varint(0) + varint(0) + varint(start) + varint(len(index))
    end = footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    return bytes(block) + bytes(5) + index + bytes(5) + end
