"""Groups of options: a dataclass whose fields are options is one parameter of several subcommands.

A subcommand decorated with ``with_groups`` takes a group as one parameter; on the command line it is replaced by the
group's fields.  A group may have a method ``around``, a context manager within which the subcommand runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

import typer

from tenon.cli.option_tables import CHOICES, entry

Command = Callable[..., None]


def with_groups(command: Command) -> Command:
    """The command with each group parameter replaced by the options of the group."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        with ExitStack() as context:
            for name, kind in groups.items():
                values[name] = group = kind(**{f.name: values.pop(f.name) for f in fields(kind)})
                if hasattr(group, "around"):
                    context.enter_context(group.around())
            command(**values)

    parameters = [
        option
        for parameter in inspect.signature(command).parameters.values()
        for option in (
            _options_of(groups[parameter.name])
            if parameter.name in groups
            else [parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)]
        )
    ]
    for parameter in parameters:
        _complete_choices(parameter.annotation)
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    return flat


def _options_of(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for option in fields(group):
        default = inspect.Parameter.empty if option.default is MISSING else option.default
        yield inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[option.name]
        )


def _complete_choices(annotation: Any) -> None:
    """Let shells complete the values of an option that has few."""
    for info in getattr(annotation, "__metadata__", ()):
        names = (getattr(info, "default", None), *(getattr(info, "param_decls", None) or ()))  # as typer splits them
        option = max((name for name in names if isinstance(name, str)), key=len, default="")
        if any(key.split()[-1] == option for key in CHOICES) and not info.autocompletion:
            info.autocompletion = _completed(option)


def _completed(option: str) -> Callable[[typer.Context, str], list[str]]:
    def complete(context: typer.Context, incomplete: str) -> list[str]:
        return [each for each in entry(CHOICES, str(context.info_name), option) if each.startswith(incomplete)]

    return complete
