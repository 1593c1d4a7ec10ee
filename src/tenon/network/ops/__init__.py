"""Operators, one family per file.  ``registry()`` knows them all."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenon.network.ops.base import Operator


@cache
def registry() -> dict[str, type[Operator]]:
    """Every operator by its name: those of all files beside this one that do not begin with an underscore."""
    from importlib import import_module
    from pkgutil import iter_modules

    from tenon.network.ops.base import REGISTRY

    for module in sorted(m.name for m in iter_modules(__path__)):
        if not module.startswith("_"):
            import_module(f"{__name__}.{module}")
    return REGISTRY


def lookup(name: str) -> type[Operator] | None:
    """The operator of that name, or None."""
    return registry().get(name)


def constructors() -> dict[str, Callable[..., object]]:
    """The classes that an operator's text may name: operators, and the parts of fused ones."""
    from tenon.network.ops.elementwise import Apply, Chain, Immediate

    return {**registry(), "Apply": Apply, "Chain": Chain, "Immediate": Immediate}
