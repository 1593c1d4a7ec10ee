"""YAML files as plain data, with the line of every value, so that problems can be reported where they are."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tenon.errors import FormatError, InputError
from tenon.input_file import read_regular
from tenon.options import child_environment

KeyPath = tuple[str | int, ...]
"""Keys and indices that lead to a value: ("models", "net", "inputs", 0); indices may be text."""

MAX_DIGITS = 400
"""Characters of a number: the largest double has 309 digits."""

MAX_DEPTH = 32
MAX_VALUES = 100_000
"""Aliases can make a small file expand without end."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_NULL, _BOOL, _INT, _FLOAT = (f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float"))
_STR, _MERGE = "tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Scalars as in YAML 1.2: ON, off, yes and no, sexagesimal numbers and dates are text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # declared so by PyYAML


for _tag, _form, _first in (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    (_INT, r"[-+]?[0-9]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        _FLOAT,
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    (_MERGE, "<<", ["<"]),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_form})$"), _first)


@dataclass
class Document:
    """The content of a YAML file, ``lines`` (from 1) of its values by path as text, and the problems found so far."""

    path: Path
    content: Any
    lines: dict[tuple[str, ...], int] = field(default_factory=dict)
    problems: list[tuple[int, str]] = field(default_factory=list)

    def line(self, where: KeyPath) -> int:
        """The line of the value at this path, or of the innermost value around it."""
        path = _as_text(where)
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def set_line(self, where: KeyPath, line: int) -> None:
        """State where a value is."""
        self.lines[_as_text(where)] = line

    def has(self, where: KeyPath) -> bool:
        """Whether the file itself has a value at this path."""
        return _as_text(where) in self.lines

    def report(self, where: KeyPath, what: str) -> None:
        """Add a problem; ``check`` raises all of them together."""
        shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in ".".join(map(str, where)))
        self.problems.append((self.line(where), f"{shown}: {what}" if shown else what))

    def place(self, where: KeyPath) -> str:
        """Where a key is, for messages: file, line and path."""
        return f"{self.path}:{self.line(where)}: {'.'.join(map(str, where))}"

    def check(self) -> None:
        """Raise InputError that lists all problems, in the order of the file."""
        if self.problems:
            rows = dict.fromkeys(f"{self.path}:{line}: {what}" for line, what in sorted(self.problems))
            raise InputError("\n".join(rows))


def _as_text(where: KeyPath) -> tuple[str, ...]:
    return tuple(map(str, where))


def nearest(key: str, known: Iterable[str]) -> str:
    """ "; did you mean 'runtime'?" for a key that is nearly a known one, else ""."""
    close = difflib.get_close_matches(key, list(known), 1, cutoff=0.7)
    return f"; did you mean '{close[0]}'?" if close else ""


def read_yaml(path: Path, environment: Mapping[str, str] | None = None) -> Document:
    """Read a YAML file of one document.  ${NAME} in text is replaced by the variable of the environment.

    Raises InputError where the file cannot be read, FormatError for what is not YAML; keys given twice, variables that
    are not set and tags are problems of the document.
    """
    try:
        text = read_regular(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not a YAML file: byte {error.start} is not UTF-8") from None
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
    except yaml.YAMLError as error:
        raise FormatError(_syntax_error(path, error)) from None
    except RecursionError:
        raise FormatError(f"{path}: values are nested more than {MAX_DEPTH} deep") from None
    finally:
        loader.dispose()
    document = Document(path, None)
    if node is not None:
        document.content = _Reader(document, child_environment() if environment is None else environment).value(
            node, ()
        )
    return document


def _syntax_error(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error).splitlines()[0]
    return f"{path}:{mark.line + 1}: not YAML: {what}" if mark else f"{path}: not YAML: {what}"


class _Reader:
    def __init__(self, document: Document, environment: Mapping[str, str]) -> None:
        self.document, self.environment, self.count = document, environment, 0

    def value(self, node: yaml.Node, where: KeyPath) -> Any:
        self.count += 1
        if self.count > MAX_VALUES or len(where) > MAX_DEPTH:
            raise FormatError(f"{self.document.path}: more than {MAX_VALUES} values, or more than {MAX_DEPTH} levels")
        self.document.set_line(where, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, where)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*where, at)) for at, item in enumerate(node.value)]
        return self.scalar(node, where)

    def mapping(self, node: yaml.MappingNode, where: KeyPath) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        inherited: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged = self.value(value_node, (*where, "<<"))
                for part in merged if isinstance(merged, list) else [merged]:
                    inherited = {**(part if isinstance(part, dict) else {}), **inherited}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                self.document.report(where, "keys must be text")
                continue
            key = str(key_node.value)
            value = self.value(value_node, (*where, key))
            self.document.set_line((*where, key), key_node.start_mark.line + 1)
            if key in entries:
                self.document.report((*where, key), "this key is given twice")
            entries[key] = value
        return {**inherited, **entries}

    def scalar(self, node: yaml.Node, where: KeyPath) -> Any:
        text = str(node.value)
        if node.tag == _NULL:
            return None
        if node.tag == _BOOL:
            return text.lower() == "true"
        if node.tag in (_INT, _FLOAT) and len(text) > MAX_DIGITS:
            self.document.report(where, f"a number of {len(text)} characters is longer than {MAX_DIGITS}")
            return 0
        if node.tag == _INT:
            return int(text, 16 if text[:2] == "0x" else 10)
        if node.tag == _FLOAT:
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if node.tag != _STR:
            self.document.report(where, f"the tag {node.tag} is not supported")
        return _VARIABLE.sub(lambda match: self.variable(match[1], where), text)

    def variable(self, name: str, where: KeyPath) -> str:
        if name not in self.environment:
            self.document.report(where, f"the environment variable {name} is not set")
        return self.environment.get(name, "")
