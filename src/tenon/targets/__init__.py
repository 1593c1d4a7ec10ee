"""Targets.  A module of this package that has ``TARGETS`` describes some; each is found by its name.

Names are resolved on first use.

The package itself can be called: ``tenon.targets`` is a public function, and importing a submodule binds its name in
the package above it, so that the two must be one object.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tenon.errors import InputError

if TYPE_CHECKING:
    from tenon.targets.base import Target as Target

__all__ = ["Target", "find", "targets"]


def targets() -> dict[str, Target]:
    """Every known target by name."""
    from tenon.targets.registry import rows

    return rows()


def find(name: str = "host", *, bf16: bool = False) -> Target:
    """The target of that name; "host" is the best one for this machine (``bf16``: to compute in that).

    Raises InputError listing all names.
    """
    if name == "host":
        from tenon.targets.host import host

        return host(bf16)
    known = targets()
    if name not in known:
        raise InputError(f"no target '{name}'; known targets: host, {', '.join(sorted(known))}")
    return known[name]


def __getattr__(name: str) -> Any:
    if name != "Target":
        raise AttributeError(f"module 'tenon.targets' has no attribute '{name}'")
    from tenon.targets.base import Target

    return Target


class _Callable(ModuleType):
    """A module that is the function of its name."""

    def __call__(self) -> dict[str, Target]:
        """Every known target by name."""
        return targets()


sys.modules[__name__].__class__ = _Callable
