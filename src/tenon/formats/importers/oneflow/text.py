"""A OneFlow job's text: operations of MLIR with their attributes and types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tenon.errors import FormatError
from tenon.network.graph.types import DType, TensorType

MAX_CHARACTERS = 1 << 26
"""Characters of a file."""

_DTYPES = {
    "f32": DType.F32,
    "f16": DType.F16,
    "f64": DType.F64,
    "si64": DType.I64,
    "i64": DType.I64,
    "si32": DType.I32,
    "i32": DType.I32,
    "si8": DType.I8,
    "i8": DType.I8,
    "ui8": DType.U8,
    "i1": DType.BOOL,
}


@dataclass(frozen=True)
class OneflowOperation:
    """One operation of the job."""

    results: tuple[str, ...]
    type: str
    operands: tuple[str, ...]
    attributes: dict[str, Any]
    types: tuple[TensorType, ...]

    @property
    def name(self) -> str:
        return str(self.attributes.get("op_name", "")) or (self.results[0] if self.results else self.type)


# ------------------------------------------------------------------------------------------------ text
_OPERATION = re.compile(r'^\s*(?:(%[\w:, %]+?)\s*=\s*)?"oneflow\.(\w+)"\(([^)]*)\)\s*')
_RETURN = re.compile(r"^\s*oneflow\.return\s+([^:]*):")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|#\w[\w.]*<[^{}"]*?>(?=\s*[,}])|[{}\[\]=,:]|[^\s{}\[\]=,:"]+')


def parse(data: bytes) -> tuple[list[OneflowOperation], list[str]]:
    """The operations of a job and what it returns.  Raises FormatError."""
    if len(data) > MAX_CHARACTERS:
        raise FormatError(f"{len(data)} bytes are too many")
    operations: list[OneflowOperation] = []
    returned: list[str] = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        match = _OPERATION.match(line)
        if match:
            try:
                operations.append(_operation(match, line[match.end() :]))
            except (ValueError, IndexError, KeyError) as error:
                raise FormatError(f"line {number} is not an operation; the file is damaged ({error})") from None
        elif match := _RETURN.match(line):
            returned = [name.strip() for name in match[1].split(",") if name.strip()]
    if not operations:
        raise FormatError("it has no operations; the file is truncated or damaged")
    return operations, returned


def _operation(match: re.Match[str], rest: str) -> OneflowOperation:
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
    return OneflowOperation(results, match[2], operands, attributes, types)


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
