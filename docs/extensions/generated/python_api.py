"""Pages of the public Python modules, from their docstrings."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

MODULES = ("tenon", *map("tenon.{}".format, ["quantization", "metrics", "deployment", "devices", "images", "plugins"]))


def pages() -> dict[str, str]:
    """One page per public module, and their index."""
    written = {f"python/{module}": _page(module) for module in MODULES}
    rows = [f"| [`{module}`]({module}.md) | {_summary(module)} |" for module in MODULES]
    head = ["# Python API", "", "All public names; other modules are internal and may change.", ""]
    tree = ["", "```{toctree}", ":hidden:", "", *MODULES, "```", ""]
    written["python/index"] = "\n".join([*head, "| module | contents |", "|---|---|", *rows, *tree])
    return written


def _summary(module: str) -> str:
    return (import_module(module).__doc__ or "").strip().partition("\n")[0]


def _page(module: str) -> str:
    names = [name for name in import_module(module).__all__ if name != "__version__"]
    lines = [f"# {module}", "", "```{eval-rst}", f".. automodule:: {module}", "   :no-members:", ""]
    for name in names:
        lines += [*_entry(module, name), ""]
    return "\n".join([*lines, "```", ""])


def _entry(module: str, name: str) -> list[str]:
    """The directive that documents a name."""
    member = getattr(import_module(module), name)
    if isinstance(member, ModuleType):
        return [f".. automodule:: {member.__name__}", "   :members:"]
    if isinstance(member, type) and member.__module__.startswith("tenon"):
        return [f".. autoclass:: {module}.{name}", "   :members:"]
    if isinstance(member, FunctionType):
        return [f".. autofunction:: {module}.{name}"]
    return [f".. py:data:: {module}.{name}", "", f"   {_value(member)}"]


def _value(member: Any) -> str:
    if isinstance(member, type):
        return f"The class ``{member.__module__}.{member.__name__}``."
    keys = [key for key in member if isinstance(key, str)] if isinstance(member, Iterable) else []
    return "One of " + ", ".join(f"``{key}``" for key in keys) + "." if keys else f"``{member!r}``"
