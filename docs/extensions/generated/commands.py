"""Pages of the commands, from the definitions that ``--help`` prints."""

from __future__ import annotations

import re
from typing import Any

import typer

from tenon.cli import help_text
from tenon.cli.app import app
from tenon.cli.examples import EXAMPLES
from tenon.cli.option_tables import GROUPS

NOTES = re.compile(r"(.*?)(?: \[([^\[\]]*(?:default|required|one of)[^\[\]]*|.*default: \[.*)\])?", re.DOTALL)
"""The description of a parameter, and the choices and default that the help adds in brackets."""


def pages() -> dict[str, str]:
    """One page per command, and their index."""
    program: Any = typer.main.get_command(app)
    commands = {name: program.commands[name] for names in GROUPS.values() for name in names}
    written = {f"commands/{name}": _page(program, name, command) for name, command in commands.items()}
    written["commands/index"] = _index(commands)
    return written


def _index(commands: dict[str, Any]) -> str:
    """The commands in their groups, in the order of the help."""
    lines = ["# Commands", "", "Every command prints its options and examples with `-h`."]
    for group, names in GROUPS.items():
        lines += ["", f"## {group}", "", "| command | what it does |", "|---|---|"]
        lines += [f"| [`tenon {name}`]({name}.md) | {_cell(_first(commands[name].help))} |" for name in names]
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *commands, "```", ""])


def _page(program: Any, name: str, command: Any) -> str:
    """A command's description, call, parameters by panel, and examples."""
    root = program.context_class(program, info_name="tenon")
    context = command.context_class(command, info_name=name, parent=root)
    lines = [f"# tenon {name}", "", command.help or "", "", "```text", help_text.usage(context, command), "```"]
    for title, rows in help_text.sections(name, context, command).items():
        lines += ["", f"## {title}", "", "| | meaning | |", "|---|---|---|"]
        lines += [f"| `{_cell(names, code=True)}` | {' | '.join(_described(text))} |" for names, text in rows]
    if name in EXAMPLES:
        lines += ["", "## Examples", "", "```text"]
        lines += [line for what, command_line in EXAMPLES[name] for line in (f"# {what}", f"$ {command_line}")]
        lines += ["```"]
    return "\n".join([*lines, ""])


def _described(text: str) -> tuple[str, str]:
    parts = NOTES.fullmatch(text)
    assert parts
    return _cell(parts[1]), _cell(parts[2] or "")


def _first(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def _cell(text: str, *, code: bool = False) -> str:
    """Text as the content of a cell of a table."""
    line = " ".join(text.split()).replace("|", "\\|")
    return line if code else line.replace("<", "&lt;").replace("*", "\\*")
