"""An operator of a Paddle program as the functions that import it see it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.graph_builder.node_context import NodeContext
from tenon.formats.importers.paddle.program import PaddleOperation
from tenon.network.graph.graph import Value
from tenon.network.graph.writer import is_known


def looks_like_type(data: bytes) -> bool:
    return re.fullmatch(rb"[a-z][a-z0-9_]{1,63}", data) is not None


_TYPES = {0: "bool", 1: "i16", 2: "i32", 3: "i64", 4: "f16", 5: "f32", 6: "f64", 20: "u8", 21: "i8"}


def _numbers(name: str, values: Sequence[Value]) -> Any:
    """The value of constants that replace an attribute: a number, or a list."""
    if not all(v.constant for v in values):
        raise RefusedError(f"its {name} is computed at run time; it must be a constant")
    if len(values) == 1 and values[0].array.size == 1 and values[0].array.ndim == 0:
        return values[0].array.item()
    return [n for v in values for n in v.array.ravel().tolist()]


class PaddleNode(NodeContext):
    """The operator being imported, its inputs by slot; ``others`` are the types of all operators of the program, and
    ``read`` are the names that any of them reads or the program returns."""

    builder: GraphBuilder

    def __init__(
        self, builder: GraphBuilder, op: PaddleOperation, others: frozenset[str], read: frozenset[str]
    ) -> None:
        super().__init__(builder)
        self.others, self.read = others, read
        self.type = op.type
        every = {slot: [builder[name] for name in names] for slot, names in op.inputs.items()}
        self.slots = {slot: values for slot, values in every.items() if not slot.endswith("=")}
        self.outputs = op.outputs
        attributes = self.attributes = dict(op.attributes)
        for slot in every.keys() - self.slots.keys():
            attributes[slot[:-1]] = _numbers(slot[:-1], every[slot])
        if str(self.attributes.get("data_format", self.attributes.get("data_layout", ""))) in ("NHWC", "NDHWC"):
            raise RefusedError("only NCHW is supported")

    def used(self, *names: str) -> bool:
        return not self.read.isdisjoint(names)

    @property
    def inputs_known(self) -> bool:
        return all(is_known(v) for values in self.slots.values() for v in values)

    def optional_slot(self, slot: str) -> Value | None:
        values = self.slots.get(slot)
        return values[0] if values else None

    def slot(self, *slots: str) -> Value:
        """The first of these slots that holds something.  Raises RefusedError."""
        for slot in slots:
            value = self.optional_slot(slot)
            if value is not None:
                return value
        raise RefusedError(f"its input {slots[0]} is missing")

    @property
    def x(self) -> Value:
        return self.slot("X", "Input")

    @property
    def reduced(self) -> list[int]:
        """The axes that a reduction goes over: all, where it says so or names none."""
        axes = self.integers("dim") if "dim" in self.attributes else [0]
        return list(range(self.x_rank)) if self.integer("reduce_all") or not axes else axes

    def vector(self, *slots: str) -> Value | None:
        """i64 numbers that come as a tensor or as a list of single numbers."""
        for slot in slots:
            parts = self.slots.get(slot)
            if parts:
                flat = [self.reshape(self.add("Cast", v, to="i64"), -1) for v in parts]
                return flat[0] if len(flat) == 1 else self.add("Concat", *flat, axis=0)
        return None


Result = Value | Sequence[Value] | dict[str, Value]
"""The result of an operator: its main output, the outputs in that slot, or outputs by slot."""


def numpy_type(code: int) -> str:
    names = {
        0: "bool",
        1: "int16",
        2: "int32",
        3: "int64",
        4: "float16",
        5: "float32",
        6: "float64",
        20: "uint8",
        21: "int8",
    }
    if code not in names:
        raise RefusedError(f"elements of type {code} are not supported")
    return names[code]
