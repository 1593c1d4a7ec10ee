"""Options that would have no effect are errors: a repeated one, of which only the last would count, and one that does
not apply to what the command works on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from typer.core import TyperCommand

from tenon.errors import InputError


class Command(TyperCommand):
    """A subcommand whose options are given once, except those that are lists."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            self._refuse_repeated(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_repeated(self, ctx: Any, args: list[str]) -> None:
        """Raises InputError for an option with a value, or a switch with a form for "no", that is given twice."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(order).items():
            single = parameter.param_type_name == "option" and not getattr(parameter, "multiple", False)
            switch = getattr(parameter, "is_flag", False) and not parameter.secondary_opts
            if times > 1 and single and not switch and not getattr(parameter, "count", False):
                raise InputError(f"{_longest(parameter.opts)} is given {times} times: give it once")


def _longest(names: Iterable[str]) -> str:
    return max(names, key=len)


NAMES = {
    "optimize": "-O", "begin": "--from", "end": "--to", "inputs": "--from", "outputs": "--to", "bindings": "--shape",
    "values": "--value", "data_formats": "--data-format", "data_types": "--data-type", "ranges": "--range",
}  # fmt: skip
"""Names on the command line of the fields that are called otherwise."""


def option_name(field: str) -> str:
    """The name on the command line of a field of an option group or of ``Source``."""
    return NAMES.get(field, f"--{field.replace('_', '-')}")


def refuse(options: Mapping[str, Any], why: str, allowed: Iterable[str] = ()) -> None:
    """Raises InputError that names every option that is set, by the fields of option groups, except ``allowed``."""
    unset: tuple[object, ...] = (None, False, (), {}, [], "", ({},))
    given = [
        name
        for name, value in options.items()
        if name not in allowed and not any(value is u or value == u for u in unset)
    ]
    if given:
        listed = ", ".join(sorted(option_name(name) for name in given))
        raise InputError(f"{listed}: no effect: {why}")
