"""The help of the program and of its commands: panels of options with their defaults and choices, and examples."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from typing import Any

from tenon.cli import option_tables
from tenon.cli.examples import EXAMPLES, PROGRAM
from tenon.cli.option_tables import GROUPS, PANELS
from tenon.cli.text_wrap import columns, padded, wrapped
from tenon.cli.translation import translated as _
from tenon.options import variable

WIDEST = 100
"""Columns of the widest lines: longer ones are harder to read."""

_NAMES = 26
"""Columns of names; what is described by a longer name begins in the line below."""

_LONGEST_CHOICES = 24
"""Columns of choices that are written behind the name of the option; more are listed in its description."""


def program_help(context: Any, program: Any) -> str:
    """The text of ``tenon --help``: all commands by group."""
    parts = [f"{_('Usage:')} {context.command_path} {_('COMMAND')} [{_('OPTIONS')}]", _paragraphs(program.help)]
    for title, names in GROUPS.items():
        rows = [(name, _first(program.commands[name].help)) for name in names if name in program.commands]
        if rows:
            parts.append(_section(title, rows))
    parts.append(_section("Options", [_row("", option) for option in _shown(context, program)]))
    more = _("'tenon COMMAND -h' describes the options of a command and shows examples.")
    return _joined([*parts, _examples(PROGRAM), more])


def command_help(context: Any, command: Any) -> str:
    """The text of ``tenon COMMAND --help``."""
    name = str(context.info_name)
    parts = [f"{_('Usage:')} {usage(context, command)}", _paragraphs(command.help)]
    parts += [_section(title, rows) for title, rows in sections(name, context, command).items()]
    parts.append("\n".join(wrapped(_("Options without a value are off unless they are given."), _width())))
    return _joined([*parts, _examples(EXAMPLES.get(name, ()))])


def usage(context: Any, command: Any) -> str:
    """The line that shows how a command is called."""
    parameters = _shown(context, command)
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    options = [p for p in parameters if p.param_type_name == "option"]
    return " ".join([context.command_path, *_usage(str(context.info_name), arguments, options)])


def sections(name: str, context: Any, command: Any) -> dict[str, list[tuple[str, str]]]:
    """The parameters of a command by the title of their panel: names, and what they mean."""
    parameters = _shown(context, command)
    arguments = [(_argument(each), _described(name, each)) for each in parameters if each.param_type_name == "argument"]
    panels = _by_panel(name, [each for each in parameters if each.param_type_name == "option"])
    rows = {title: [_row(name, each) for each in options] for title, options in panels.items()}
    return {"Arguments": arguments, **rows} if arguments else rows


def default_text(command: str, option: Any) -> str:
    """The default of an option in words; "" if nothing states it, or there is none to state: switches are off."""
    variable = option_tables.entry(option_tables.VARIABLES, command, long_name(option))
    usual = _usual(command, option)
    return _("{variable}, else {default}").format(variable=variable, default=usual) if variable and usual else usual


def _usual(command: str, option: Any) -> str:
    """The default where no environment variable has one."""
    text = option_tables.entry(option_tables.DEFAULTS, command, long_name(option))
    value = option.default
    if value is None or value == "":
        return _(str(text)) if text else ""
    if getattr(option, "is_flag", False):
        names = option.opts if value else option.secondary_opts
        return max(names, key=len) if option.secondary_opts else ""
    return str(value)


def metavar(command: str, option: Any) -> str:
    """The placeholder of an option's value; "" where it takes none, or nothing says what it takes."""
    if getattr(option, "is_flag", False):
        return ""
    if option.metavar:
        return str(option.metavar)
    choices = option_tables.entry(option_tables.CHOICES, command, long_name(option))
    if choices:
        text = "|".join(choices)
        return text if len(text) <= _LONGEST_CHOICES else "NAME"
    kind = str(getattr(option, "type_descriptor", None) or option.type).lower()
    return next((word for part, word in (("path", "PATH"), ("int", "N"), ("float", "X")) if part in kind), "")


def long_name(option: Any) -> str:
    """An option's longest name, by which messages and tables call it; the last of these."""
    longest = max(map(len, option.opts))
    return str([name for name in option.opts if len(name) == longest][-1])


# ---------------------------------------------------------------------------------------------------- parts
def _shown(context: Any, command: Any) -> list[Any]:
    return [each for each in command.get_params(context) if not getattr(each, "hidden", False)]


def _by_panel(command: str, options: Iterable[Any]) -> dict[str, list[Any]]:
    """The options by panel; those that the tables do not know come last."""
    panels: dict[str, list[Any]] = {title: [] for title in (*PANELS, "Other options")}
    for option in options:
        panels[option_tables.panel(command, long_name(option)) or "Other options"].append(option)
    for title, names in PANELS.items():
        places = {name.rpartition(" ")[2]: place for place, name in enumerate(names)}
        panels[title].sort(key=lambda option: places.get(long_name(option), len(places)))
    return {title: each for title, each in panels.items() if each}


def _usage(command: str, arguments: Iterable[Any], options: Iterable[Any]) -> Iterator[str]:
    for argument in arguments:
        text = _argument(argument)
        yield text if argument.required else f"[{text}]"
    for option in options:
        if option.required:
            yield f"{min(option.opts, key=len)} {metavar(command, option)}"
    yield f"[{_('OPTIONS')}]"


def _argument(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper()) + ("..." if argument.nargs != 1 else "")


def _row(command: str, option: Any) -> tuple[str, str]:
    names = ", ".join(sorted(option.opts, key=len)) + "".join(f" / {name}" for name in option.secondary_opts)
    return f"{names} {metavar(command, option)}".rstrip(), _described(command, option)


def _described(command: str, parameter: Any) -> str:
    """The description of a parameter, with its choices, limits and default."""
    notes = []
    if parameter.param_type_name == "option":
        choices = option_tables.entry(option_tables.CHOICES, command, long_name(parameter))
        if choices and "|" not in metavar(command, parameter):
            notes.append(_("one of {choices}").format(choices=", ".join(choices)))
        if default := default_text(command, parameter):
            notes.append(_("default: {default}").format(default=default))
    if parameter.required:
        notes.append(_("required"))
    return f"{_(parameter.help or '')} [{'; '.join(notes)}]".strip() if notes else _(parameter.help or "")


def _first(help: str | None) -> str:
    """The first paragraph of a command's help."""
    return _(" ".join((help or "").split("\n\n")[0].split()))


def _paragraphs(help: str | None) -> str:
    width = _width() - 2
    paragraphs = [wrapped(_(" ".join(part.split())), width) for part in (help or "").strip().split("\n\n")]
    return "\n\n".join("\n".join(f"  {line}" for line in lines) for lines in paragraphs)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Rows of a name and its description under a title."""
    rows = list(rows)
    names = min(_NAMES, max(columns(name) for name, _text in rows))
    indent, lines = " " * (names + 4), [_heading(_(title))]
    for name, text in rows:
        described = wrapped(text, _width() - names - 4)
        if columns(name) > names:
            lines += [f"  {line}" for line in wrapped(name, _width() - 2)]
        else:
            lines.append(f"  {padded(name, names)}  {described.pop(0)}".rstrip())
        lines += [indent + line for line in described]
    return "\n".join(lines)


def _examples(examples: Iterable[tuple[str, str]]) -> str:
    """Examples: what each does, and the command in one line, so that it can be copied."""
    lines = [_heading(_("Examples"))]
    for what, line in examples:
        lines += [f"  # {part}" for part in wrapped(_(what), _width() - 4)]
        lines.append(f"  $ {line}")
    return "\n".join(lines)


def _heading(text: str) -> str:
    import typer

    return typer.style(_("{title}:").format(title=text), bold=not variable("NO_COLOR"))


def _width() -> int:
    return min(WIDEST, shutil.get_terminal_size().columns)


def _joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part)
