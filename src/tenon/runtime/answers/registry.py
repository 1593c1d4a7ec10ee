"""The heads, found by scanning the package ``heads``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import Any

from tenon.runtime.answers.base import Head

_BASE: Any = Head


@cache
def heads() -> Mapping[str, type[Head]]:
    """All heads by kind, in alphabetical order."""
    from tenon.runtime.answers import heads as package

    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    return {kind.kind: kind for kind in sorted(_concrete(_BASE), key=lambda kind: kind.kind)}


def _concrete(base: type[Head]) -> list[type[Head]]:
    below = [kind for child in base.__subclasses__() for kind in _concrete(child)]
    return [*below, base] if "kind" in vars(base) else below
