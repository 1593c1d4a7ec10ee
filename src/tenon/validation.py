"""Validation of values from files and users against type annotations.

Supported types are those of Python annotations: ``int``, ``tuple[int, ...]``, ``Literal["a", "b"]``, unions, and
``NamedTuple`` and dataclasses (written as dicts).  ``Annotated`` adds conditions: functions that return an error text,
or "".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

Condition = Callable[[Any], str]
Reader = Callable[[Any], Any]


_DATACLASS = "__dataclass_fields__"
"""Attribute of dataclasses, checked without importing their module."""


class MisfitError(ValueError):
    """A value does not have the required type; ``where`` is the path of field names and indices to it."""

    def __init__(self, why: str, where: tuple[str | int, ...] = ()) -> None:
        super().__init__(why)
        self.why, self.where = why, where

    def within(self, name: str | int) -> MisfitError:
        return MisfitError(self.why, (name, *self.where))


_LONGEST = 30
"""Digits of a number of bytes."""

_UNITS = {"": 1, "K": 1 << 10, "KIB": 1 << 10, "KB": 1000, "M": 1 << 20, "MIB": 1 << 20, "MB": 1000**2}


class ByteCount(int):
    """A number of bytes, which may be given as text with a unit: K or KiB (1024), kB (1000), M, MiB, MB."""

    def __new__(cls, value: int | str) -> ByteCount:
        if isinstance(value, int):
            return super().__new__(cls, value)
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]*)", value.strip())
        if not match or match[2].upper() not in _UNITS or len(match[1]) > _LONGEST:
            raise ValueError(value)
        return super().__new__(cls, int(float(match[1]) * _UNITS[match[2].upper()]))


def least(bound: float) -> Condition:
    return lambda value: "" if value >= bound else f"must be {bound} or more"


def most(bound: float) -> Condition:
    return lambda value: "" if value <= bound else f"must be {bound} or less"


def matching(pattern: str, longest: int) -> Condition:
    """Text that matches a pattern, of at most ``longest`` characters."""
    form = re.compile(pattern)
    return lambda text: "" if len(text) <= longest and form.fullmatch(text) else f"must match {pattern}"


@lru_cache(maxsize=256)
def reader(kind: Any, from_text: bool = False) -> Reader:
    """A function that converts a value to type ``kind``, or raises MisfitError.

    With ``from_text``, numbers and flags may be given as text, as environments do.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin is Annotated:
        return _conditional(reader(arguments[0], from_text), arguments[1:])
    if origin in (Union, UnionType):
        return _union([reader(k, from_text) for k in sorted(arguments, key=lambda k: k is not NoneType)])
    if origin is Literal:
        return _literal(arguments, from_text)
    if origin is tuple and arguments[1:] == (...,):
        return _sequence(reader(arguments[0], from_text), tuple)
    if origin is tuple:
        return _row([reader(k, from_text) for k in arguments])
    if origin is list:
        return _sequence(reader(arguments[0], from_text), list)
    if origin in (dict, Mapping):
        return _mapping(reader(arguments[1], from_text))
    if hasattr(kind, "_fields") or hasattr(kind, _DATACLASS):
        return _record(kind, from_text)
    return _plain(kind, from_text)


def plain(value: Any) -> Any:
    """The value as JSON types: records as dicts, tuples as lists."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(item) for name, item in zip(value._fields, value, strict=True)}
    if hasattr(value, _DATACLASS):
        return {name: plain(getattr(value, name)) for name in getattr(value, _DATACLASS)}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return {name: plain(item) for name, item in value.items()} if isinstance(value, Mapping) else value


# ---------------------------------------------------------------------------------- readers of each form
_FLAGS = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}
_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
    ByteCount: "a number of bytes, such as 65536, 64K or 60kB",
}


def _plain(kind: type, from_text: bool) -> Reader:
    path = issubclass(kind, os.PathLike)
    accepted = (kind, str) if path else (float, int) if kind is float else (int,) if kind is ByteCount else (kind,)

    def read(value: Any) -> Any:
        if from_text and isinstance(value, str) and kind in (int, float, bool, ByteCount):
            try:
                return _FLAGS[value.lower()] if kind is bool else kind(value)
            except (KeyError, ValueError):
                raise MisfitError(f"must be {_NAMES[kind]}") from None
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise MisfitError(f"must be {_NAMES.get(kind, 'a path')}")
        return kind(value) if path else value

    return read


def _conditional(base: Reader, conditions: tuple[Condition, ...]) -> Reader:
    def read(value: Any) -> Any:
        result = base(value)
        for condition in conditions:
            if why := condition(result):
                raise MisfitError(why)
        return result

    return read


def _union(readers: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        why, where = "fits no alternative", tuple[str | int, ...]()
        for each in readers:
            try:
                return each(value)
            except MisfitError as misfit:
                # Keeping the exception would keep its frames alive, and with them an engine that is being opened.
                why, where = misfit.why, misfit.where
        raise MisfitError(why, where)

    return read


def _literal(choices: tuple[Any, ...], from_text: bool) -> Reader:
    named = {str(choice): choice for choice in choices} if from_text else {}

    def read(value: Any) -> Any:
        chosen = named.get(value, value) if isinstance(value, str) else value
        if isinstance(chosen, bool) or chosen not in choices:
            raise MisfitError(f"must be one of {', '.join(map(str, choices))}")
        return chosen

    return read


def _sequence(item: Reader, kind: type) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise MisfitError("must be a list")
        return kind(_each(item, enumerate(value)).values())

    return read


def _row(items: list[Reader]) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            raise MisfitError(f"must be a list of {len(items)}")
        return tuple(item(part) for item, part in zip(items, value, strict=True))

    return read


def _mapping(item: Reader) -> Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise MisfitError("must be an object")
        return _each(item, value.items())

    return read


def _each(item: Reader, parts: Any) -> dict[Any, Any]:
    result = {}
    for name, part in parts:
        try:
            result[name] = item(part)
        except MisfitError as misfit:
            raise misfit.within(name) from None
    return result


def _fields(kind: Any) -> tuple[Sequence[str], Container[str]]:
    """The names of a record's fields, and of those with a default."""
    if not hasattr(kind, _DATACLASS):
        return kind._fields, kind._field_defaults
    from dataclasses import MISSING, fields

    given = {f.name for f in fields(kind) if f.default is not MISSING or f.default_factory is not MISSING}
    return [f.name for f in fields(kind)], given


def _record(kind: Any, from_text: bool) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    names, given = _fields(kind)
    items = {name: reader(hints[name], from_text) for name in names}
    required = [name for name in names if name not in given]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise MisfitError("must be an object")
        for name in required:
            if name not in value:
                raise MisfitError("is missing", (name,))
        result = {}
        for name, item in value.items():
            if name not in items:
                raise MisfitError("is not known", (name,))
            try:
                result[name] = items[name](item)
            except MisfitError as misfit:
                raise misfit.within(name) from None
        return kind(**result)

    return read
