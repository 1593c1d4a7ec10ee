"""Targets.  A module of this package that has ``TARGETS`` describes some; each is found by its name.

Names are resolved on first use.

The package itself can be called: its function is public under the same name.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from tenon.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenon.machine.targets.base import Target as Target

__all__ = ["Target", "find", "targets"]


def targets() -> dict[str, Target]:
    """Every known target by name."""
    from tenon.machine.targets.registry import rows

    return rows()


def find(name: str = "host", *, bf16: bool = False) -> Target:
    """The target of that name, or of the processor of a product of that name; "host" is the best one for this machine
    (``bf16``: to compute in that).

    Raises InputError with the nearest names.
    """
    if name == "host":
        from tenon.machine.targets.host import host

        return host(bf16)
    from tenon.machine.targets.registry import products

    known, boards = targets(), products()
    if board := boards.get(name):
        return known[board.target] if board.float_abi is None else _with_float_abi(known[board.target], board.float_abi)
    if name not in known:
        about = {"host": ""} | {each: known[each].about for each in known} | {b: boards[b].about for b in boards}
        raise InputError(f"no target '{name}'{_nearest(name, about)}: 'tenon targets' lists all")
    return known[name]


def _with_float_abi(target: Target, abi: Literal["softfp"]) -> Target:
    from tenon.machine.targets.float_abi import with_float_abi

    return with_float_abi(target, abi)


def _nearest(name: str, about: Mapping[str, str]) -> str:
    """The names most like a wrong one, or else those that are said to be what it names; ``about`` is by name."""
    from difflib import get_close_matches

    asked = _plain(name)
    plain = {_plain(each): each for each in about}
    words = [word for word in asked.split("-") if word]
    said = [each for each, text in about.items() if words and all(word in _plain(text).split("-") for word in words)]
    near = [plain[each] for each in get_close_matches(asked, plain, n=3, cutoff=0.6)] or said[:3]
    return f"; the nearest is {' or '.join(near)}" if near else ""


def _plain(name: str) -> str:
    """Without the differences between spellings of names."""
    return "-".join(word for word in re.split(r"[^a-z0-9+]+", name.lower()) if word).replace("+", "plus")


def __getattr__(name: str) -> Any:
    if name != "Target":
        raise AttributeError(f"module 'tenon.machine.targets' has no attribute '{name}'")
    from tenon.machine.targets.base import Target

    return Target


class _Callable(ModuleType):
    """A module that is the function of its name."""

    def __call__(self) -> dict[str, Target]:
        """Every known target by name."""
        return targets()


sys.modules[__name__].__class__ = _Callable
