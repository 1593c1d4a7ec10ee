"""Protocol buffers without generated code: tables of fields, a bounded reader, messages with attributes.

An importer writes down the part of a schema that it needs::

    SCHEMA = Schema(
        {
            "Net": {"name": (1, "string"), "layer": (100, "*Layer"), "attr": (5, "map:Value")},
            "Layer": {"kernel": (1, "*uint32"), "scale": (2, "float", 1.0), "phase": (10, "Phase")},
        },
        enums={"Phase": {"TRAIN": 0, "TEST": 1}},
    )
    net = SCHEMA.parse("Net", file.data, file.name)
    for layer in net.layer:
        layer.scale, layer.has("scale"), tuple(layer.kernel)

A field is (number, kind) or (number, kind, default).  Kinds: the scalar types of protobuf, an enum of the schema, a
message of the schema, each with ``*`` in front when repeated, and ``map:KIND`` for maps with string keys (a dict).
Values are int, float, bool, str; bytes as a memoryview into the file; an enum's value by its name (its number
as text when the name is unknown); repeated float and double as NumPy arrays; other repeated fields as lists.
A message that is absent reads as an empty one, so ``layer.pooling_param.pad`` always works.  Unknown fields, and known
ones of another wire type, are skipped as protobuf does.

Hostile files: lengths are checked before anything is read, nesting and the number of fields are limited, groups are
skipped without recursion.  Source of the format: "Encoding", protobuf.dev.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tenon.errors import FormatError

MAX_DEPTH = 64
"""Messages within messages."""

MAX_PIECES = 1_000_000
"""Messages, strings and single numbers in one file: far above any real model, and a bound on memory."""

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)

Raw = int | memoryview
"""A field as it stands in the file: a varint's value, or the bytes of everything else."""


@dataclass(frozen=True)
class Scalar:
    """How a scalar type is stored; ``dtype`` is set for what has a fixed size."""

    wire: int
    default: Any
    dtype: str = ""


SCALARS = {
    "int32": Scalar(VARINT, 0),
    "int64": Scalar(VARINT, 0),
    "uint32": Scalar(VARINT, 0),
    "uint64": Scalar(VARINT, 0),
    "sint32": Scalar(VARINT, 0),
    "sint64": Scalar(VARINT, 0),
    "bool": Scalar(VARINT, False),
    "fixed32": Scalar(FIXED32, 0, "<u4"),
    "sfixed32": Scalar(FIXED32, 0, "<i4"),
    "float": Scalar(FIXED32, 0.0, "<f4"),
    "fixed64": Scalar(FIXED64, 0, "<u8"),
    "sfixed64": Scalar(FIXED64, 0, "<i8"),
    "double": Scalar(FIXED64, 0.0, "<f8"),
    "string": Scalar(BYTES, ""),
    "bytes": Scalar(BYTES, memoryview(b"")),
}


@dataclass(frozen=True)
class Field:
    """One field of a message."""

    name: str
    number: int
    kind: str
    repeated: bool
    default: Any

    @property
    def is_array(self) -> bool:
        return self.repeated and self.kind in ("float", "double")


FieldRow = tuple[int, str] | tuple[int, str, Any]


class Schema:
    """Messages and enums by name."""

    def __init__(
        self,
        messages: Mapping[str, Mapping[str, FieldRow]],
        enums: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self.enums = dict(enums or {})
        self.names = {enum: {n: name for name, n in values.items()} for enum, values in self.enums.items()}
        self.fields: dict[str, dict[str, Field]] = {name: {} for name in messages}
        for message, rows in messages.items():
            for name, row in rows.items():
                self.fields[message][name] = self._field(name, *row)
        self.numbers = {m: {f.number: f for f in fields.values()} for m, fields in self.fields.items()}

    def _field(self, name: str, number: int, kind: str, default: Any = None) -> Field:
        repeated = kind.startswith("*")
        kind = kind.removeprefix("*")
        if kind.startswith("map:"):
            entry = f"{kind}>"
            rows: dict[str, FieldRow] = {"key": (1, "string"), "value": (2, kind.removeprefix("map:"))}
            if entry not in self.fields:
                self.fields[entry] = {key: self._field(key, *row) for key, row in rows.items()}
        elif kind not in SCALARS and kind not in self.fields and kind not in self.enums:
            raise ValueError(f"{name}: no type is called {kind}")
        if default is None and kind in self.enums:
            default = next(iter(self.enums[kind]))
        elif default is None and kind in SCALARS:
            default = SCALARS[kind].default
        return Field(name, number, kind, repeated, default)

    def new(self, message: str, /, **values: Any) -> Message:
        """A message with these fields set."""
        result = Message(self, message)
        result.set(**values)
        return result

    def parse(self, type: str, data: bytes | memoryview, where: str) -> Message:
        """The message in ``data``.  Raises FormatError, naming ``where``, for bytes that are not one."""
        return _MessageReader(self, where).message(type, memoryview(data), 0, Message(self, type))


class Message:
    """Values by attribute; absent fields read as their defaults."""

    __slots__ = ("_schema", "_type", "_unknown", "_values")

    def __init__(self, schema: Schema, type: str) -> None:
        self._schema, self._type = schema, type
        self._values: dict[str, Any] = {}
        self._unknown: dict[str, list[str]] = {}

    def __getattr__(self, name: str) -> Any:
        value = self._values.get(name)
        if value is not None:
            return value
        field = self._schema.fields[self._type].get(name)
        if field is None:
            raise AttributeError(f"{self._type} has no field '{name}'")
        return self._schema_default(field)

    def _schema_default(self, field: Field) -> Any:
        if field.is_array:
            return np.zeros(0, SCALARS[field.kind].dtype)
        if field.kind.startswith("map:"):
            return {}
        if field.repeated:
            return []
        return Message(self._schema, field.kind) if field.kind in self._schema.fields else field.default

    def has(self, name: str) -> bool:
        """Whether the field is set in the file; for a repeated one, whether it has elements."""
        return name in self._values

    def set(self, /, **values: Any) -> None:
        """Set fields, to values of the types that reading gives; None removes a field."""
        for name, value in values.items():
            if name not in self._schema.fields[self._type]:
                raise AttributeError(f"{self._type} has no field '{name}'")
            if value is None:
                self._values.pop(name, None)
            else:
                self._values[name] = value

    def items(self) -> Iterator[tuple[Field, Any]]:
        """The fields that are there, in the schema's order, and their values."""
        for name, field in self._schema.fields[self._type].items():
            if name in self._values:
                yield field, self._values[name]

    @property
    def type_name(self) -> str:
        return self._type

    @property
    def schema(self) -> Schema:
        return self._schema

    @property
    def unknown(self) -> dict[str, list[str]]:
        """Fields of a text file that the schema lacks: the text of each, by name."""
        return self._unknown

    def clone(self) -> Message:
        """A copy that can be changed; arrays and bytes are shared."""

        def copied(value: Any) -> Any:
            if isinstance(value, Message):
                return value.clone()
            return [copied(v) for v in value] if isinstance(value, list) else value

        new = Message(self._schema, self._type)
        new._values = {name: copied(value) for name, value in self._values.items()}
        new._unknown = {name: list(texts) for name, texts in self._unknown.items()}
        return new

    def __repr__(self) -> str:
        return f"{self._type}({', '.join(self._values)})"


# -------------------------------------------------------------------------------------------- reading
class DamagedError(Exception):
    """A fault in the bytes; the reader adds the location."""


def varint(data: memoryview | bytes, at: int) -> tuple[int, int]:
    """An unsigned number and the offset after it."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value = value | (byte & 127) << shift
        shift = shift + 7
        at = at + 1
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
    raise DamagedError("a varint is not terminated")


def _take(data: memoryview, at: int, size: int) -> tuple[memoryview, int]:
    if size > len(data) - at:
        raise DamagedError(f"a field of {size} bytes where {len(data) - at} are left")
    return data[at : at + size], at + size


SHORTEST_RUN = 16
"""Numbers of one field in a row, each with its key, from which on they are read as one packed field."""


def _run_length(data: memoryview, at: int, key: int, stride: int) -> int:
    """How many chunks of ``stride`` bytes from ``at`` on begin with the same ``key`` bytes."""
    count, ahead = 0, SHORTEST_RUN
    while True:
        more = min(ahead, (len(data) - at) // stride - count)
        begin = at + count * stride
        pieces = np.frombuffer(data[begin : begin + more * stride], np.uint8).reshape(more, stride)
        same = (pieces[:, :key] == np.frombuffer(data[at : at + key], np.uint8)).all(1)
        if not more or not same.all():
            return count + (int(same.argmin()) if more else 0)
        count, ahead = count + more, ahead * 4


def raw_fields(data: memoryview) -> Iterator[tuple[int, int, Raw]]:
    """(number, wire type, content) of each field; the inside of groups is skipped.

    A long row of numbers of one fixed size is given as if it had been packed.
    """
    at = depth = 0
    while at < len(data):
        begin = at
        key, at = varint(data, at)
        number, wire = key >> 3, key & 7
        if number == 0 or wire > FIXED32:
            raise DamagedError(f"field {number} of wire type {wire}")
        content: Raw = 0
        if wire == VARINT:
            content, at = varint(data, at)
        elif wire == BYTES:
            size, at = varint(data, at)
            content, at = _take(data, at, size)
        elif wire in (FIXED32, FIXED64):
            size, head = 4 if wire == FIXED32 else 8, at - begin
            content, at = _take(data, at, size)
            if depth == 0 and data[at : at + head] == data[begin : begin + head]:
                count = _run_length(data, begin, head, head + size)
                if count >= SHORTEST_RUN:
                    rows = np.frombuffer(data[begin : begin + count * (head + size)], np.uint8).reshape(count, -1)
                    wire, content = BYTES, memoryview(rows[:, head:].tobytes())
                    at = begin + count * (head + size)
        else:
            depth += 1 if wire == GROUP else -1
            if depth < 0:
                raise DamagedError("a group ends that was not opened")
            continue
        if depth == 0:
            yield number, wire, content
    if depth:
        raise DamagedError("a group is not terminated")


class _MessageReader:
    def __init__(self, schema: Schema, where: str) -> None:
        self.schema = schema
        self.where = where
        self.left = MAX_PIECES

    def message(self, type: str, data: memoryview, depth: int, into: Message) -> Message:
        if depth > MAX_DEPTH:
            raise FormatError(f"{self.where}: messages are nested more than {MAX_DEPTH} deep; the file is damaged")
        numbers = self.schema.numbers[type]
        arrays: dict[str, list[memoryview]] = {}
        try:
            for number, wire, content in raw_fields(data):
                field = numbers.get(number)
                if field is None:
                    continue
                if field.is_array and not isinstance(content, int) and wire in (BYTES, SCALARS[field.kind].wire):
                    self.spend(1)
                    arrays.setdefault(field.name, []).append(content)
                else:
                    self.store(into, field, wire, content, depth)
            for name, parts in arrays.items():
                self.join(into, name, parts)
        except DamagedError as damage:
            raise FormatError(f"{self.where}: truncated or damaged: {damage} in a {type}") from None
        return into

    def spend(self, pieces: int) -> None:
        self.left -= pieces
        if self.left < 0:
            raise FormatError(f"{self.where}: more than {MAX_PIECES} fields; the file is damaged")

    def join(self, into: Message, name: str, parts: list[memoryview]) -> None:
        """Packed and single numbers of a repeated float field as one array."""
        dtype = np.dtype(SCALARS[self.schema.fields[into.type_name][name].kind].dtype)
        if any(len(part) % dtype.itemsize for part in parts):
            raise DamagedError(f"{name} has a size that is no multiple of its element")
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        joined = np.frombuffer(data, dtype)
        before = into._values.get(name)
        into._values[name] = joined if before is None else np.concatenate([before, joined])

    def store(self, into: Message, field: Field, wire: int, content: Raw, depth: int) -> None:
        values = into._values
        if field.kind.startswith("map:"):
            self.entry(values.setdefault(field.name, {}), f"{field.kind}>", content, depth)
        elif field.kind in self.schema.fields:
            if isinstance(content, int) or wire != BYTES:
                return
            self.spend(1)
            old = None if field.repeated else values.get(field.name)
            result = self.message(field.kind, content, depth + 1, old or Message(self.schema, field.kind))
            if field.repeated:
                values.setdefault(field.name, []).append(result)
            else:
                values[field.name] = result
        else:
            self.scalars(values, field, wire, content)

    def entry(self, into: dict[str, Any], type: str, content: Raw, depth: int) -> None:
        if isinstance(content, int):
            return
        self.spend(2)
        entry = self.message(type, content, depth + 1, Message(self.schema, type))
        into[entry.key] = entry.value

    def scalars(self, values: dict[str, Any], field: Field, wire: int, content: Raw) -> None:
        scalar = SCALARS.get(field.kind) or SCALARS["int32"]
        if wire == scalar.wire:
            self.spend(1)
            elements = [self.value(field, content)]
        elif wire == BYTES and field.repeated and not isinstance(content, int):
            elements = self.packed(field, scalar, content)
        else:
            return
        if field.repeated:
            values.setdefault(field.name, []).extend(elements)
        else:
            values[field.name] = elements[0]

    def packed(self, field: Field, scalar: Scalar, content: memoryview) -> list[Any]:
        if scalar.dtype:
            if len(content) % np.dtype(scalar.dtype).itemsize:
                raise DamagedError(f"{field.name} has a size that is no multiple of its element")
            self.spend(len(content) // 4)
            values: list[Any] = np.frombuffer(content, scalar.dtype).tolist()
            return values
        numbers, at = [], 0
        while at < len(content):
            number, at = varint(content, at)
            self.spend(1)
            numbers.append(self.value(field, number))
        return numbers

    def value(self, field: Field, content: Raw) -> Any:
        if field.kind in self.schema.enums:
            assert isinstance(content, int)
            number = _signed(content, 32)
            return self.schema.names[field.kind].get(number, str(number))
        if isinstance(content, int):
            return _integer(field.kind, content)
        if field.kind == "string":
            try:
                return str(content, "utf-8")
            except UnicodeDecodeError:
                raise DamagedError(f"{field.name} is not text") from None
        if field.kind == "bytes":
            return content
        return np.frombuffer(content, SCALARS[field.kind].dtype)[0].item()


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _integer(kind: str, value: int) -> int | bool:
    if kind == "bool":
        return value != 0
    if kind.startswith("sint"):
        return (value >> 1) ^ -(value & 1)
    bits = 32 if kind.endswith("32") else 64
    return value & ((1 << bits) - 1) if kind.startswith("uint") else _signed(value, bits)
