"""``-model-input``: the name, type and shape of an input."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tenon.errors import InputError
from tenon.options import DataType

_FLOATS: dict[str, DataType] = {"float": "float32", "float16": "float16"}
_INTEGERS: dict[str, DataType] = {"int32": "int32", "int64": "int64"}
_QUANTISED: dict[str, DataType] = {"int8q": "int8"}
_UNSUPPORTED = ("bfloat16", "int16q", "int32q", "bool")


@dataclass(frozen=True)
class ModelInput:
    """An input as the option describes it; ``shape`` is None where only its name is given.

    ``scale`` and ``offset`` are those of a quantised input: an element q stands for scale * (q - offset).
    """

    name: str
    type: DataType | None = None
    shape: tuple[int, ...] | None = None
    scale: float | None = None
    offset: int = 0


def model_input(text: str) -> ModelInput:
    """``name``, ``name,type,[dims]`` or ``name,qtype,scale,offset,[dims]``.  Raises InputError."""
    matched = re.fullmatch(r"([^,]+)(?:,([a-z0-9]+)(?:,([^,\[]+),([^,\[]+))?,\[([^\]]*)\])?", text.strip())
    if matched is None:
        raise InputError(_form(text))
    name, kind, scale, offset, dims = matched.groups()
    if kind is None:
        return ModelInput(name)
    if kind in _UNSUPPORTED:
        raise InputError(f"-model-input={text}: inputs of {kind} are not supported: choose {', '.join(_types())}")
    types = {**_FLOATS, **_INTEGERS, **_QUANTISED}
    if kind not in types:
        raise InputError(f"-model-input={text}: no type '{kind}': choose {', '.join(_types())}")
    try:
        shape = tuple(int(d) for d in dims.split(",")) if dims.strip() else ()
        if (scale is not None) != (kind in _QUANTISED) or min(shape, default=1) < 1:
            raise ValueError
        if scale is None:
            return ModelInput(name, types[kind], shape)
        return ModelInput(name, types[kind], shape, float(scale), int(offset))
    except ValueError:
        raise InputError(_form(text)) from None


def _types() -> list[str]:
    return [*_FLOATS, *_INTEGERS, *_QUANTISED]


def _form(text: str) -> str:
    return (
        f"-model-input={text}: write name, name,type,[dims] or name,int8q,scale,offset,[dims], as in "
        "data,float,[1,1,28,28]"
    )
