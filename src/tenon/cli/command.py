"""Subcommands and the program as typer sees them: their help, and what is checked of the words of a command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from tenon.atomic_write import check_writable
from tenon.cli import option_tables
from tenon.cli.help_text import command_help, long_name, program_help
from tenon.errors import InputError
from tenon.input_file import open_regular

_ALIASES = {"--cores": ("0", "1", "2")}
"""Further values of options with choices, as MACE writes them."""

_REMEDIES = {"--precision": "a model in 8-bit integers is made by 'tenon quantize'"}
"""Remedies for values that are no choice."""


@contextmanager
def usage_errors(ctx: Any) -> Iterator[None]:
    """Typer's errors as InputError, which ends with the command that helps."""
    try:
        yield
    except Exception as error:
        message = getattr(error, "format_message", None)
        if message is None or ctx.resilient_parsing or type(error).__name__ == "NoArgsIsHelpError":
            raise
        text = " ".join(str(message()).split()).rstrip(".")
        what, where = f"{text[:1].lower()}{text[1:]}", f"see '{ctx.command_path} -h'"
        raise InputError(f"{what} ({where})" if what.endswith("?") else f"{what}: {where}") from None


class CommandGroup(TyperGroup):
    """The program, which lists its commands by group."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(program_help(ctx, self))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with usage_errors(ctx):
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        with usage_errors(ctx):
            return super().resolve_command(ctx, args)


class Command(TyperCommand):
    """A subcommand, whose options are given once, except those that are lists."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(command_help(ctx, self))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with usage_errors(ctx):
            if not ctx.resilient_parsing:
                self._refuse_repeated(ctx, args)
            rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            self._check_choices(ctx)
            self._check_files(ctx)
        return rest

    def _refuse_repeated(self, ctx: Any, args: list[str]) -> None:
        """Raises InputError for an option with a value, or a switch with a form for "no", that is given twice."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(order).items():
            single = parameter.param_type_name == "option" and not getattr(parameter, "multiple", False)
            switch = getattr(parameter, "is_flag", False) and not parameter.secondary_opts
            if times > 1 and single and not switch and not getattr(parameter, "count", False):
                raise InputError(f"{long_name(parameter)} is given {times} times: give it once")

    def _check_choices(self, ctx: Any) -> None:
        """Raises InputError for a value that an option with choices does not have."""
        for parameter in self.params:
            if parameter.param_type_name != "option":
                continue
            option, value = long_name(parameter), ctx.params.get(parameter.name)
            choices = option_tables.entry(option_tables.CHOICES, str(ctx.info_name), option)
            if choices and value not in (None, "", *choices, *_ALIASES.get(option, ())) and str(value) not in choices:
                raise InputError(f"{option} {value}: {wrong_choice(str(value), choices, _REMEDIES.get(option, ''))}")

    def _check_files(self, ctx: Any) -> None:
        """Raises InputError for files that cannot be read, or written: before the work, which may take minutes."""
        for parameter in self.params:
            option = parameter.param_type_name == "option"
            name = long_name(parameter) if option else str(parameter.name)
            value, own = ctx.params.get(parameter.name), f"{ctx.info_name} {name}"
            if not isinstance(value, Path):
                continue
            if name in option_tables.READ:
                open_regular(value).close()
            elif option and {name, own} & set(option_tables.WRITTEN):
                check_writable(value, name)


def wrong_choice(value: str, choices: tuple[str, ...] | str, remedy: str = "") -> str:
    """Why a value is refused: the choices, the one that is probably meant, else a remedy."""
    close = get_close_matches(value, choices, 1)
    meant = f"; did you mean {close[0]}?" if close else f"; {remedy}" if remedy else ""
    return f"choose one of {', '.join(choices)}{meant}"
