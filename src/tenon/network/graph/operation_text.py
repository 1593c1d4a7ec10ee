"""Operators as text and back: ``Conv(strides=(2, 2))``.

Attributes with default values are omitted.  Parsing constructs only what is in the given table of
constructors: literals, tuples, and calls with keyword arguments, nested where an attribute is itself an
operator.
"""

from __future__ import annotations

import ast
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tenon.errors import FormatError
from tenon.network.graph.types import DType

Constructors = Mapping[str, Callable[..., Any]]

_CONSTANTS = {"inf": math.inf, "nan": math.nan, **{f"DType.{d.name}": d for d in DType}}


def show_operation(op: object) -> str:
    """``Name(attribute=value, ...)`` with the attributes that are not at their defaults."""
    return _show(op)


def _show(value: object) -> str:
    if isinstance(value, DType):
        return f"DType.{value.name}"
    if isinstance(value, np.ndarray):
        return f"array({value.dtype.name!r}, {value.shape!r}, {_show(tuple(value.ravel().tolist()))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({', '.join(_shown_fields(value))})"
    if isinstance(value, tuple):
        inner = ", ".join(_show(v) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return repr(value)


def _shown_fields(value: Any) -> list[str]:
    shown = []
    for f in dataclasses.fields(value):
        default = f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        text = _show(getattr(value, f.name))
        if default is dataclasses.MISSING or text != _show(default):
            shown.append(f"{f.name}={text}")
    return shown


def _array(dtype: str, shape: tuple[int, ...], values: tuple[Any, ...]) -> np.ndarray:
    return np.array(values, dtype).reshape(shape)


def parse_operation(text: str, constructors: Constructors) -> tuple[Any, str]:
    """The operator at the start of ``text``, and the text after it.  Raises FormatError."""
    end = _closing(text)
    try:
        tree = ast.parse(text[:end], mode="eval")
    except SyntaxError as error:
        raise FormatError(f"'{text[:end]}' is not an operator: {error.msg}") from error
    return _build(tree.body, {**constructors, "array": _array}), text[end:]


def _closing(text: str) -> int:
    """The end of the argument list."""
    depth, quote, escaped = 0, "", False
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote and not escaped else quote
            escaped = c == "\\" and not escaped
        elif c in "'\"":
            quote = c
        elif c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
            if depth == 0:
                return i + 1
    raise FormatError("a parenthesis is not closed")


def _build(tree: ast.expr, constructors: Constructors) -> Any:
    match tree:
        case ast.Call(func=ast.Name(id=name)):
            if name not in constructors:
                raise FormatError(f"there is no operator '{name}'")
            keywords = {k.arg: _build(k.value, constructors) for k in tree.keywords if k.arg is not None}
            return constructors[name](*(_build(a, constructors) for a in tree.args), **keywords)
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(_build(e, constructors) for e in elements)
        case ast.Name() | ast.Attribute() if ast.unparse(tree) in _CONSTANTS:
            return _CONSTANTS[ast.unparse(tree)]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_build(operand, constructors)
        case ast.Constant(value=value):
            return value
    raise FormatError(f"'{ast.unparse(tree)}' is not a literal")
