"""The settings of a model in ``config.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from tenon.errors import FormatError
from tenon.formats.decompositions.decoder.layers import Pooling
from tenon.formats.model_files.model_file import ModelFile

_T = TypeVar("_T")


class ModelSettings:
    """The content of a ``config.json``; ``name`` is the file's, ``pooling`` how states become the embedding of a text,
    if the files beside it say that."""

    def __init__(self, content: Mapping[str, Any], name: str, pooling: Pooling | None = None) -> None:
        self.content, self.name, self.pooling = content, name, pooling

    @classmethod
    def of(cls, file: ModelFile) -> ModelSettings:
        """The settings in a file, those of rotary positions among them.  Raises FormatError for a damaged one."""
        content = read_object(file)
        if content is None:
            raise FormatError(f"{file.name}: the settings of a model are a JSON object")
        rotation = content.get("rope_parameters")
        return cls({**(rotation if isinstance(rotation, dict) else {}), **content}, file.name)

    @property
    def model_type(self) -> str:
        return str(self.content.get("model_type", ""))

    def part(self, key: str) -> ModelSettings:
        """The settings of a part of the model.  Raises FormatError if there are none."""
        content = self.content.get(key)
        if not isinstance(content, dict):
            raise FormatError(f"{self.name}: '{key}' is missing")
        return ModelSettings(content, self.name)

    def read(self, kind: type[_T]) -> _T:
        """A dataclass of numbers, flags and texts, whose fields are keys of the file.  Raises FormatError for missing
        values and for such of other types."""
        values = {}
        for field in fields(kind):  # type: ignore[arg-type]  # a dataclass
            value = self.content.get(field.name)
            if value is None:
                if field.default is MISSING:
                    raise FormatError(f"{self.name}: '{field.name}' is missing")
                continue
            values[field.name] = self._checked(field.name, str(field.type), value)
        return kind(**values)

    def _checked(self, key: str, kind: str, value: Any) -> Any:
        if kind == "int" and type(value) is int and 0 < value < 1 << 30:
            return value
        if kind == "float" and type(value) in (int, float):
            return float(value)
        if (kind == "bool" and type(value) is bool) or (kind == "str" and type(value) is str):
            return value
        what = {"int": "a positive integer", "float": "a number", "bool": "true or false", "str": "a text"}[kind]
        raise FormatError(f"{self.name}: '{key}' is {value!r:.40}, and must be {what}")


def read_object(file: ModelFile) -> dict[str, Any] | None:
    """The content of a file of JSON, of names and values; None if it is of another kind."""
    try:
        content = json.loads(file.data)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None
