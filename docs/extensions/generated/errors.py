"""The page of all error messages, from the places that raise them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tenon import errors

SOURCES = Path(errors.__file__).parent
KINDS = {
    name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)
}


def pages() -> dict[str, str]:
    messages: dict[str, dict[str, set[str]]] = {name: {area: set() for area in AREAS} for name in KINDS}
    for path in sorted(SOURCES.rglob("*.py")):
        for kind, message in _messages(ast.parse(path.read_text(encoding="utf-8"))):
            messages[kind][_area(path)].add(message)
    lines = ["# Errors", "", ABOUT]
    for kind, areas in messages.items():
        if any(areas.values()):
            lines += ["", f"## {kind}", "", " ".join((KINDS[kind].__doc__ or "").split())]
        for area, texts in areas.items():
            lines += ["", f"**{area}**", "", *(f"- {text}" for text in sorted(texts, key=str.lower))] if texts else []
    return {"errors": "\n".join([*lines, ""])}


AREAS = {
    "Reading and writing models": ("formats",),
    "Operators and the graph": ("network",),
    "Compiling": ("machine",),
    "Bundles, libtenon, running": ("runtime",),
    "Quantising, tuning, measuring, devices": ("tools",),
    "Tengine's, MACE's and Glow's commands": ("compat",),
    "Command line and options": (),
}
"""The areas of the page by their titles, and the packages of each; the last has the messages of all other modules."""


def _area(path: Path) -> str:
    package = path.relative_to(SOURCES).parts[0]
    return next((area for area, packages in AREAS.items() if package in packages), list(AREAS)[-1])


ABOUT = """\
Every error is one of these classes, which derive from `tenon.TenonError`. The command line prints the message and exits
with status 2; `-v` adds the traceback. A message names file and layer, says what is wrong and, after a colon, semicolon
or in parentheses, what to do. Parts in italics are filled in."""


def _messages(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Class and text of every error that is raised with a text of its own."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS and node.args):
            continue
        text = _text(node.args[0])
        if text is not None and len(text) > 12:
            yield node.func.id, text


def _text(node: ast.expr) -> str | None:
    """A string with what is filled in as words in italics; None for what is no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _escaped(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) or "" if isinstance(value, ast.Constant) else _hole(value) for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None and right is None else f"{left or '…'}{right or '…'}"
    return None


def _hole(value: ast.expr) -> str:
    assert isinstance(value, ast.FormattedValue)
    names = [
        n.attr if isinstance(n, ast.Attribute) else n.id
        for n in ast.walk(value.value)
        if isinstance(n, ast.Attribute | ast.Name)
    ]
    return f"*{names[0].strip('_').replace('_', ' ')}*" if names else "*…*"


def _escaped(text: str) -> str:
    for character in "\\`*_[]<>":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split(" ")).replace("\n", " ")
