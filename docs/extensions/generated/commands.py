"""Pages of the commands, from the definitions that ``--help`` prints."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import typer

from tenon.cli.app import app


def pages() -> dict[str, str]:
    """One page per command, and their index."""
    root = typer.main.get_command(app)
    commands = {name: command for name, command in vars(root)["commands"].items() if not command.hidden}
    written = {f"commands/{name}": _page(name, command) for name, command in commands.items()}
    written["commands/index"] = _index(commands)
    return written


def _index(commands: dict[str, Any]) -> str:
    """The commands in their groups, in the order of the help."""
    lines = ["# Commands", "", "Every command prints this with `-h`."]
    for group, members in groupby(commands.items(), lambda item: _panel(item[1]) or "Commands"):
        lines += ["", f"## {group}", "", "| command | what it does |", "|---|---|"]
        lines += [
            f"| [`tenon {name}`]({name}.md) | {_cell(_first_sentence(command.help))} |" for name, command in members
        ]
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *commands, "```", ""])


def _page(name: str, command: Any) -> str:
    usage = " ".join(command.collect_usage_pieces(_context(command)))
    lines = [f"# tenon {name}", "", *(command.help or "").split("\n"), "", "```text", f"tenon {name} {usage}", "```"]
    visible = [p for p in command.params if not p.hidden]
    lines += _table("Arguments", "argument", command, [p for p in visible if p.param_type_name == "argument"])
    options = [p for p in visible if p.param_type_name == "option"]
    panels = list(dict.fromkeys(_panel(p) or "Options" for p in options))
    for panel in panels:
        lines += _table(panel, "option", command, [p for p in options if (_panel(p) or "Options") == panel])
    return "\n".join([*lines, *_examples(command), ""])


def _table(title: str, kind: str, command: Any, parameters: list[Any]) -> list[str]:
    """The parameters as the help prints them: names, text, and what it adds in brackets."""
    if not parameters:
        return []
    lines = ["", f"## {title}", "", f"| {kind} | meaning | |", "|---|---|---|"]
    for parameter in parameters:
        names, text = parameter.get_help_record(_context(command))
        words = re.fullmatch(r"(.*?)(?:\s+\[((?:default|required|env var|\d|x).*)\])?", text, re.DOTALL)
        assert words
        lines.append(f"| `{_cell(names, code=True)}` | {_cell(words[1])} | {_cell(words[2])} |")
    return lines


def _examples(command: Any) -> list[str]:
    epilog = (command.epilog or "").strip("\n")
    return ["", "## Examples", "", "```text", epilog, "```"] if epilog else []


def _context(command: Any) -> Any:
    """An empty context: typer brings its own copy of click, whose classes have no public names."""
    return command.context_class(command)


def _panel(thing: Any) -> str | None:
    panel = getattr(thing, "rich_help_panel", None)
    return panel if isinstance(panel, str) else None


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").partition("\n\n")[0].split())


def _cell(text: str | None, *, code: bool = False) -> str:
    """Text as the content of a cell of a table."""
    line = " ".join((text or "").split()).replace("|", "\\|")
    return line if code else line.replace("<", "&lt;").replace("*", "\\*")
