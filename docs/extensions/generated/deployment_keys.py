"""The page of all keys of deployment files, from the classes that check them."""

from __future__ import annotations

import types
import typing
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tenon.tools.deployment import tenon_config
from tenon.tools.deployment.schema import ConfigSection


def pages() -> dict[str, str]:
    sections = [
        member
        for member in vars(tenon_config).values()
        if isinstance(member, type) and issubclass(member, ConfigSection) and member is not ConfigSection
    ]
    lines = ["# Keys of deployment files", "", "What the keys mean is told in [deployment files](../deployment.md)."]
    for section in sections:
        lines += ["", f"## {section.__name__.removesuffix('Section')}", "", _prose(section), ""]
        lines += ["| key | type | default |", "|---|---|---|"]
        lines += [_row(field.alias or name, field) for name, field in section.model_fields.items()]
    return {"deployment-keys": "\n".join([*lines, ""])}


def _prose(section: type[BaseModel]) -> str:
    return " ".join((section.__doc__ or "").split())


def _row(name: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else _value(field)
    return f"| `{name}` | {_type(field.annotation)} | {default} |"


def _value(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    return "" if value is None or value is PydanticUndefined or value in ((), {}, []) else f"`{value}`"


def _type(annotation: Any) -> str:
    """The type in words of a YAML file."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(a) for a in arguments if a is not type(None))
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin is typing.Literal:
        return ", ".join(f"`{a}`" for a in arguments)
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    if origin in (dict,) or getattr(origin, "__name__", "") == "Mapping":
        return f"mapping of names to {_type(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, ConfigSection):
        return (
            f"[{annotation.__name__.removesuffix('Section')}](#{annotation.__name__.removesuffix('Section').lower()})"
        )
    words = {str: "text", int: "integer", float: "number", bool: "true or false", Any: "any"}
    return words.get(annotation, f"`{getattr(annotation, '__name__', annotation)}`")
