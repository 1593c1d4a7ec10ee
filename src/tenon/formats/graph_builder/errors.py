"""Errors of nodes that cannot be imported; the builders turn them into Problems."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from tenon.errors import InputError


class RefusedError(Exception):
    """This node cannot be imported: ``what`` is wrong, ``remedy`` may help."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


class UntypedError(RefusedError):
    """This node cannot be imported before the shapes of its inputs are known."""

    def __init__(self) -> None:
        super().__init__("it needs the shapes of its inputs, which are not known")


def unknown(type: str, known: Iterable[str], what: str = "operator", remedy: str = "") -> RefusedError:
    """An error for an unknown type of node, which suggests the nearest known one."""
    names_by_lower_case = {name.lower(): name for name in known}
    near = difflib.get_close_matches(type.lower(), names_by_lower_case, 1, 0.75)
    hint = (
        f"the nearest that is: {names_by_lower_case[near[0]]}"
        if near
        else "cut the model around it with --from and --to"
    )
    return RefusedError(f"this {what} is not supported", remedy or hint)


def no_such_tensors(file: str, unknown: Sequence[str], known: Iterable[str]) -> InputError:
    """An error for names of tensors that the user gave and the model does not have, which suggests the nearest."""
    names = list(known)
    near = dict.fromkeys(close for name in unknown for close in difflib.get_close_matches(name, names, 1, 0.6))
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else "'tenon inspect' prints its inputs and outputs"
    return InputError(f"{file}: no tensor is called {', '.join(map(repr, unknown))}; {hint}")
