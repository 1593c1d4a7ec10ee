"""The texts of the command line that are translated, and the catalogue of their translations.

``python tests/cli_messages.py`` brings the catalogue up to date: it adds texts that are new, without a translation, and
removes those that are gone.  Texts are: those of the help, as typer and its tables have them, and the templates of
messages in the modules of ``MODULES``, which are read from the sources.
"""

from __future__ import annotations

import ast
import builtins
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

import tenon
from tenon.cli import option_tables
from tenon.cli.app import app
from tenon.cli.catalogue import entry_text, read_catalogue
from tenon.cli.examples import EXAMPLES, PROGRAM
from tenon.cli.translation import LOCALE

SOURCE = Path(tenon.__file__).parent
CATALOGUE = LOCALE / "zh_CN" / "LC_MESSAGES" / "tenon.po"
MODULES = (
    "cli/*.py",
    "options.py",
    "validation.py",
    "input_file.py",
    "atomic_write.py",
    "errors.py",
    "compilation.py",
    "formats/importers/__init__.py",
    "formats/model_files/*.py",
    "formats/graph_builder/errors.py",
    "formats/graph_builder/builder.py",
    "formats/wire/encryption.py",
    "formats/wire/file_kinds.py",
    "formats/importers/onnx/load.py",
    "formats/importers/tflite/load.py",
    "machine/targets/*.py",
    "machine/toolchain/compiler.py",
    "network/graph/bind.py",
    "network/graph/fixed.py",
    "runtime/bundle/*.py",
    "runtime/engine/*.py",
    "runtime/sdk/*.py",
    "tools/cluster/*.py",
    "tools/devices/*.py",
    "tools/metrics/*.py",
    "tools/peers/*.py",
    "tools/quantization/*.py",
    "tools/tune/*.py",
)
"""The modules whose messages are translated: what users of the command line meet most."""

SAID = ("note", "warn", "refuse", "translated_message", "FileKind")
"""Functions whose arguments are texts for users, besides exceptions."""

LABELS = ("_", "translated", "_section", "_heading", "FileKind")
"""Functions whose arguments are translated as they are, single words, too."""

REASONS = (
    "_REMEDIES",
    "_PICTURE",
    "_PROGRAM",
    "_DOWNLOAD",
    "fault",
    "remedy",
    "reason",
    "why",
    "wrong",
    "hint",
    "meant",
)
"""Variables that hold a part of a message."""

SYSTEM_ERRORS = (
    errno.ENOENT,
    errno.EACCES,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENOSPC,
    errno.EEXIST,
    errno.EPERM,
)

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
    for path in sorted({path for pattern in MODULES for path in SOURCE.glob(pattern)}):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _says(node):
                for argument in node.args:
                    yield from _templates(argument)
            if isinstance(node, ast.Call) and _called(node) in LABELS:
                yield from (str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant) and each.value)
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in REASONS:
                yield from _templates(node.value)
            if isinstance(node, ast.Return) and node.value is not None and _explains(tree, node):
                yield from _templates(node.value)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else str(getattr(call.func, "id", ""))


def _says(call: ast.Call) -> bool:
    name = _called(call)
    return name in SAID or (name.endswith("Error") and name != "InternalError" and not hasattr(builtins, name))


def _explains(tree: ast.Module, node: ast.Return) -> bool:
    """Whether a function returns a reason, as messages insert it."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and node in ast.walk(function):
            return function.name.lstrip("_").startswith(("why", "explained", "told", "write_error", "foreign", "wrong"))
    return False


def _templates(argument: ast.expr) -> Iterator[str]:
    """The template of an expression that is a text; both of a choice between two."""
    if isinstance(argument, ast.IfExp):
        yield from _templates(argument.body)
        yield from _templates(argument.orelse)
    elif isinstance(argument, ast.Constant) and isinstance(argument.value, str) and _is_sentence(argument.value):
        yield argument.value
    elif isinstance(argument, ast.Dict):
        for value in argument.values:
            yield from _templates(value)
    elif isinstance(argument, ast.JoinedStr | ast.BinOp):
        text = template(_parts(argument))
        if _is_sentence(text):
            yield text


def _parts(text: ast.expr) -> list[ast.expr]:
    """The parts of an f-string, or of a sum of texts."""
    if isinstance(text, ast.JoinedStr):
        return text.values
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add):
        return [*_parts(text.left), *_parts(text.right)]
    return [text] if isinstance(text, ast.Constant) else [ast.FormattedValue(text, -1)]


def template(values: list[ast.expr]) -> str:
    """A text with the names of what is inserted."""
    parts, names = "", list[str]()
    for value in values:
        if isinstance(value, ast.Constant):
            parts += str(value.value)
            continue
        assert isinstance(value, ast.FormattedValue)
        name = _name(value.value)
        while name in names:
            name += "2"
        names.append(name)
        parts += f"{{{name}}}"
    return parts


def _name(inserted: ast.expr) -> str:
    match inserted:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(args=[ast.Name(id=name), *_]) | ast.Subscript(value=ast.Name(id=name)):
            return name
        case _:
            return "value"


def _is_sentence(text: str) -> bool:
    return sum(character.isalpha() for character in text) >= 4 and " " in text.strip()


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
