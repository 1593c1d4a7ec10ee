"""Every public class, function, method and property has a docstring that stands alone: the reference leaves out what
has none, and shows each by itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

import pytest

MODULES = (
    "tenon",
    *(f"tenon.{name}" for name in ("deployment", "devices", "images", "metrics", "plugins", "quantization", "speech")),
)


INCOMPLETE = re.compile(r"[^A-Z`\d]|The same\b|Raises\b|(?:(?!\n\n).)*[^.:\n](?:\n\n|$)", re.DOTALL)
"""Docstrings that begin with a small letter, lean on another one, or whose first paragraph ends without a full stop."""


def undocumented(module: str) -> Iterator[str]:
    names = vars(import_module(module))["__all__"]
    for name in names:
        member = getattr(import_module(module), name)
        if inspect.isfunction(member) and lacking(member):
            yield f"{module}.{name}"
        if inspect.isclass(member) and member.__module__.startswith("tenon"):
            yield from (f"{module}.{name}.{part}" for part in _parts_without_docstring(member))


def lacking(member: object) -> bool:
    """Whether a docstring is missing or does not stand alone."""
    text = inspect.getdoc(member)
    return not text or INCOMPLETE.match(text) is not None


def _parts_without_docstring(cls: type) -> Iterator[str]:
    if lacking(cls):
        yield "(class)"
    for name, member in vars(cls).items():
        function: Any = member.func if isinstance(member, cached_property) else member
        function = function.fget if isinstance(function, property) else function
        function = inspect.unwrap(getattr(function, "__func__", function))
        is_method = inspect.isfunction(function) and function.__name__ == name
        if is_method and not name.startswith("_") and lacking(function):
            yield name


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_docstrings(module: str) -> None:
    assert list(undocumented(module)) == []


@pytest.mark.parametrize("text", ["", "the sizes.", "The same of others.", "Raises ShapeError.", "The sizes\n\nMore."])
def test_docstrings_that_do_not_stand_alone(text: str) -> None:
    def member() -> None: ...

    member.__doc__ = text
    assert lacking(member)
