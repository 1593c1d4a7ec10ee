"""Every public class, function, method and property has a docstring: the reference leaves out what has none."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

import pytest

MODULES = (
    "tenon",
    *(f"tenon.{name}" for name in ("deployment", "devices", "images", "metrics", "plugins", "quantization", "speech")),
)


def undocumented(module: str) -> Iterator[str]:
    names = vars(import_module(module))["__all__"]
    for name in names:
        member = getattr(import_module(module), name)
        if inspect.isfunction(member) and not member.__doc__:
            yield f"{module}.{name}"
        if inspect.isclass(member) and member.__module__.startswith("tenon"):
            yield from (f"{module}.{name}.{part}" for part in _parts_without_docstring(member))


def _parts_without_docstring(cls: type) -> Iterator[str]:
    if not cls.__doc__:
        yield "(class)"
    for name, member in vars(cls).items():
        function = member.fget if isinstance(member, property) else inspect.unwrap(getattr(member, "__func__", member))
        is_method = inspect.isfunction(function) and function.__name__ == name
        if is_method and not name.startswith("_") and not function.__doc__:
            yield name


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_docstrings(module: str) -> None:
    assert list(undocumented(module)) == []
