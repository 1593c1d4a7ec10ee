"""The texts of the command line that are translated, and the catalogue of their translations.

``python tests/cli_messages.py`` brings the catalogue up to date: it adds texts that are new, without a translation, and
removes those that are gone.  Texts are: those of the help, as typer and its tables have them, and the templates of
messages, which ``message_texts`` reads from the sources.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from typing import Any

import typer

import message_texts as message_templates
from tenon.cli import option_tables
from tenon.cli.app import app
from tenon.cli.catalogue import entry_text, read_catalogue
from tenon.cli.examples import EXAMPLES, PROGRAM
from tenon.cli.translation import LOCALE

CATALOGUE = LOCALE / "zh_CN" / "LC_MESSAGES" / "tenon.po"
OTHERS = (
    "missing option {option}",
    "missing argument {argument}",
    "no such option: {option}",
    "no such option: {option} (Possible options: {options})",
    "no such option: {option} Did you mean {meant}?",
    "no such command {command}",
    "no such command {command}. Did you mean {meant}?",
    "option {option} requires an argument",
    "invalid value for {option}: {why}",
    "Input should be a valid integer, unable to parse string as an integer",
    "Input should be a valid number, unable to parse string as a number",
    "Input should be greater than or equal to {least}",
    "Input should be less than or equal to {most}",
    "{source}: 1 problem in this model",
    "{source}: {count} problems in this model",
    "option {option}={value}: it {why}",
    *map(
        os.strerror, (errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOTDIR, errno.ENOSPC, errno.EEXIST, errno.EPERM)
    ),
)
"""Messages of typer, pydantic and the system, and two that are put together in ``errors`` and ``options``."""


def help_texts() -> Iterator[str]:
    """The texts of the help."""
    program: Any = typer.main.get_command(app)
    yield from _paragraphs(program.help)
    yield from option_tables.GROUPS
    yield from option_tables.PANELS
    yield from ("Arguments", "Other options")
    yield from (text for text in option_tables.DEFAULTS.values() if " " in text or text in ("all", "none"))
    for examples in (PROGRAM, *EXAMPLES.values()):
        yield from (what for what, _ in examples)
    context = typer.Context(program) if hasattr(typer, "Context") else None
    for command in (program, *program.commands.values()):
        yield from _paragraphs(command.help)
        for parameter in command.get_params(context):
            if parameter.help:
                yield str(parameter.help)


def _paragraphs(help: str | None) -> Iterator[str]:
    yield from (" ".join(part.split()) for part in (help or "").strip().split("\n\n"))


def message_texts() -> Iterator[str]:
    """The templates of messages: what f-strings insert is named in braces."""
    yield from OTHERS
    yield from message_templates.message_texts()


def texts() -> dict[str, str]:
    """All texts that are to be translated, each with the kind that it is of ("help" or "message")."""
    kinds = {" ".join(text.split()) if kind == "help" else text: kind for kind, each in _kinds() for text in each}
    return {text: kind for text, kind in kinds.items() if text}


def _kinds() -> Iterable[tuple[str, Iterator[str]]]:
    return (("message", message_texts()), ("help", help_texts()))


def update() -> tuple[int, int]:
    """Bring the catalogue up to date; returns the numbers of texts without a translation and of those removed."""
    known = read_catalogue(CATALOGUE.read_text(encoding="utf-8")) if CATALOGUE.exists() else {}
    wanted = texts()
    entries = [entry_text(text, known.get(text, "")) for text in sorted(wanted)]
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: zh_CN\\n"\n'
    CATALOGUE.parent.mkdir(parents=True, exist_ok=True)
    CATALOGUE.write_text("\n".join([head, *entries]), encoding="utf-8")
    return sum(not known.get(text) for text in wanted), len(known.keys() - wanted.keys() - {""})


if __name__ == "__main__":
    missing, removed = update()
    print(f"{CATALOGUE}: {missing} texts to translate, {removed} removed")
