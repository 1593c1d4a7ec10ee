"""Checks plain data against a pydantic model; every problem is reported at its line, with the nearest known key."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from tenon.errors import InputError
from tenon.network.graph.size_range import read_dimension
from tenon.tools.deployment.base import name_problem
from tenon.tools.deployment.yaml_document import Document, KeyPath, nearest

Schema = TypeVar("Schema", bound="ConfigSection")


class ConfigSection(BaseModel):
    """A mapping of a deployment file: other keys than its fields are problems, and null is as if a key were absent."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, protected_namespaces=())


def _listed(value: Any) -> Any:
    return () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)


def _texts(value: Any) -> Any:
    return tuple(str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for v in _listed(value))


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else _listed(value)


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
"""One text or a list of texts."""

Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
"""A list of names, or one text of names with commas."""

Range = Annotated[tuple[float, float], BeforeValidator(_split)]
"""Minimum and maximum, as a list or as text with a comma."""

Shape = Annotated[tuple[int, ...], BeforeValidator(_split)]
"""Dimensions, as a list or as text with commas."""


def _dimension(value: Any, number: ValidatorFunctionWrapHandler) -> Any:
    """A number, or a ``Size`` from text such as H:64..512:32."""
    if not (isinstance(value, str) and ".." in value):
        return number(value)
    try:
        return read_dimension(value)
    except InputError as error:
        raise ValueError(str(error)) from None


SizedShape = Annotated[tuple[Annotated[int, WrapValidator(_dimension)], ...], BeforeValidator(_split)]
"""The same, in which a dimension may be a size that every run chooses, of a name and a range."""


def _checksum(value: Any) -> Any:
    text = value.strip() if isinstance(value, str) else value
    if text == "":
        raise ValueError("it is empty, and nothing would be checked: give the file's SHA-256, or leave the key out")
    if isinstance(text, str) and not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise ValueError("a SHA-256 has 64 hexadecimal digits")
    return text


Checksum = Annotated[str, BeforeValidator(_checksum)]
"""The SHA-256 of a file."""


def check_name(document: Document, where: KeyPath, name: str) -> None:
    """Report the name of a model that is no plain name of a folder, in which its bundles are put."""
    if problem := name_problem(name):
        document.report(where, problem)


def checked(document: Document, kind: type[Schema], content: Any, where: KeyPath = ()) -> Schema | None:
    """``content`` as a section of this kind; None, with all its problems reported, if it is none."""
    content = {} if content is None else content
    if not isinstance(content, dict):
        document.report(where, "must be a mapping of keys to values")
        return None
    try:
        return kind.model_validate(_without_nulls(content))
    except ValidationError as error:
        for problem in error.errors():
            inner = tuple(problem["loc"])
            document.report((*where, *inner), _message(problem, kind, inner, document))
        return None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _message(problem: Any, kind: type[ConfigSection], where: KeyPath, document: Document) -> str:
    if problem["type"] == "extra_forbidden":
        section = _section(kind, where[:-1])
        known = list(section.model_fields) if section else []
        return "there is no such key" + nearest(str(where[-1]), known)
    if problem["type"] == "missing":
        return "this key is required"
    text = str(problem["msg"]).removeprefix("Value error, ")
    given = problem.get("input")
    shown = f" (it is {given!r})" if isinstance(given, str | int | float | bool) else ""
    return text[:1].lower() + text[1:] + shown


def _section(kind: type[ConfigSection], where: KeyPath) -> type[ConfigSection] | None:
    """The section at this path of a section."""
    section: type[ConfigSection] | None = kind
    for key in where:
        if section is None:
            return None
        field = section.model_fields.get(str(key))
        if field is not None:
            section = _inner(field.annotation)
    return section


def _inner(annotation: Any) -> type[ConfigSection] | None:
    """The section in a type such as ``dict[str, Section] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, ConfigSection):
        return annotation
    return next((made for each in getattr(annotation, "__args__", ()) if (made := _inner(each))), None)
