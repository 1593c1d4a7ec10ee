"""The text form of protocol buffers (.prototxt), over the schemas of ``wire.protobuf``.

``parse`` gives the same messages as the binary reader.  Names that the schema lacks are kept as text in
``Message.unknown``, for an importer to judge and for ``show`` to repeat.
Source of the format: "Text Format Language", protobuf.dev.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tenon.errors import FormatError
from tenon.formats.wire.protobuf import MAX_DEPTH, MAX_PIECES, SCALARS, Field, Message, Schema

_TOKEN = re.compile(
    r"""(?P<skip>[\s;,]+|\#[^\n]*|//[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)[fF]?(?![\w.])|-(?:inf|nan)\b)
    |(?P<name>[A-Za-z_][\w.]*)
    |(?P<mark>[{}<>\[\]:])""",
    re.VERBOSE,
)
_BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}


class Token(NamedTuple):
    kind: str
    text: str
    line: int
    begin: int = 0
    end: int = 0


def tokens(text: str, where: str) -> Iterator[Token]:
    """Tokens: identifiers, numbers, strings and punctuation; comments, commas and semicolons are skipped.  Raises
    FormatError."""
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise FormatError(f"{where}, line {line}: {text[at : at + 20].split()[0]!r} is not readable here")
        kind = match.lastgroup or ""
        if kind != "skip":
            yield Token(kind, match.group(), line, at, match.end())
        line += match.group().count("\n")
        at = match.end()
    yield Token("end", "", line)


def parse(schema: Schema, type: str, text: str, where: str) -> Message:
    """The message that a text describes.  Raises FormatError naming ``where`` and the line."""
    parser = _TextParser(schema, text, where)
    message = Message(schema, type)
    parser.body(message, "", 0)
    with np.errstate(over="ignore"):  # a number beyond f32 is infinite, as it is in Caffe
        for array, numbers in parser.arrays.values():
            array[0].set(**{array[1]: np.array(numbers, np.float32)})
    return message


class _TextParser:
    def __init__(self, schema: Schema, text: str, where: str) -> None:
        self.schema, self.where = schema, where
        self.source = tokens(text, where)
        self.text = text
        self.token = next(self.source)
        self.read = 0
        self.left = MAX_PIECES
        self.arrays: dict[tuple[int, str], tuple[tuple[Message, str], list[float]]] = {}

    # ----------------------------------------------------------------------------------------- tokens
    def fail(self, what: str) -> FormatError:
        return FormatError(f"{self.where}, line {self.token.line}: {what}")

    def next(self) -> Token:
        self.left -= 1
        if self.left < 0:
            raise self.fail(f"more than {MAX_PIECES} tokens; the file is damaged")
        token, self.token = self.token, next(self.source, Token("end", "", self.token.line))
        self.read = token.end
        return token

    def accept(self, mark: str) -> bool:
        if self.token.kind == "mark" and self.token.text == mark:
            self.next()
            return True
        return False

    # ----------------------------------------------------------------------------------------- fields
    def body(self, into: Message | None, end: str, depth: int) -> None:
        """The fields of a message up to the token ``end``; a message that the schema lacks is read into None."""
        if depth > MAX_DEPTH:
            raise self.fail(f"messages are nested more than {MAX_DEPTH} deep")
        while not (self.accept(end) if end else self.token.kind == "end"):
            if self.token.kind == "end":
                raise self.fail(f"the text ends where '{end}' is missing; the file is truncated")
            begin, name = self.token.begin, self.token.text
            if self.accept("["):
                self.extension()
                field = None
            else:
                field = self.field(into)
            self.content(into, field, depth)
            if into is not None and field is None:
                into.unknown.setdefault(name, []).append(self.text[begin : self.read])

    def extension(self) -> None:
        while not self.accept("]"):
            if self.token.kind == "end":
                raise self.fail("a '[' is never closed")
            self.next()

    def field(self, into: Message | None) -> Field | None:
        if self.token.kind != "name":
            raise self.fail(f"the name of a field should stand where '{self.token.text}' does")
        name = self.next().text
        if into is None:
            return None
        return self.schema.fields[into.type_name].get(name)

    def content(self, into: Message | None, field: Field | None, depth: int) -> None:
        colon = self.accept(":")
        if self.accept("["):
            while not self.accept("]"):
                self.one(into, field, depth)
        elif colon or self.token.text in ("{", "<"):
            self.one(into, field, depth)
        else:
            raise self.fail(f"':' is missing before '{self.token.text}'")

    def one(self, into: Message | None, field: Field | None, depth: int) -> None:
        """One value or message."""
        for begin, end in ("{}", "<>"):
            if self.accept(begin):
                self.body(self.inner(into, field), end, depth + 1)
                return
        token = self.next()
        if token.kind not in ("string", "number", "name"):
            raise self.fail(f"a value is missing before '{token.text}'")
        text = token.text
        if token.kind == "string":
            text = _unquoted(text)
            while self.token.kind == "string":
                text += _unquoted(self.next().text)
        if into is not None and field is not None:
            self.store(into, field, self.value(field, token.kind, text))

    def inner(self, into: Message | None, field: Field | None) -> Message | None:
        if into is None or field is None:
            return None
        if field.kind not in self.schema.fields:
            raise self.fail(f"{field.name} is a {field.kind}, not a message")
        if field.repeated:
            result = Message(self.schema, field.kind)
            self.store(into, field, result)
            return result
        if not into.has(field.name):
            into.set(**{field.name: Message(self.schema, field.kind)})
        message: Message = getattr(into, field.name)
        return message

    def store(self, into: Message, field: Field, value: Any) -> None:
        if field.is_array:
            self.arrays.setdefault((id(into), field.name), ((into, field.name), []))[1].append(value)
        elif field.repeated:
            if not into.has(field.name):
                into.set(**{field.name: []})
            getattr(into, field.name).append(value)
        else:
            into.set(**{field.name: value})

    def value(self, field: Field, kind: str, text: str) -> Any:
        """A scalar of the type that the schema gives it."""
        try:
            return self.typed(field, kind, text)
        except (KeyError, ValueError, OverflowError):
            raise self.fail(f"{field.name}: {text[:40]!r} is not a {field.kind}") from None

    def typed(self, field: Field, kind: str, text: str) -> Any:
        if field.kind in self.schema.enums:
            if kind == "number":
                return self.schema.names[field.kind].get(int(text), text)
            if text not in self.schema.enums[field.kind]:
                known = ", ".join(self.schema.enums[field.kind])
                raise self.fail(f"{field.name}: '{text}' is none of {known}")
            return text
        if field.kind in ("string", "bytes"):
            if kind != "string":
                raise ValueError
            return text if field.kind == "string" else memoryview(text.encode("latin-1", "replace"))
        if kind == "string" or field.kind not in SCALARS:
            raise ValueError
        if field.kind == "bool":
            return _BOOLS[text.lower()]
        if field.kind in ("float", "double"):
            return float(text.rstrip("fF") if text[-3:].lower() != "inf" else text)
        number = int(text, 0) if "x" in text.lower() else int(text)
        if number >> 64 not in (0, -1):
            raise ValueError
        return number


def _unquoted(text: str) -> str:
    """The characters between quotes, unescaped."""

    def char(match: re.Match[str]) -> str:
        code = match.group(1)
        if code in _ESCAPES:
            return _ESCAPES[code]
        return chr(int(code[1:], 16) if code[0] in "xX" else int(code, 8) & 255)

    return re.sub(r"\\(x[0-9a-fA-F]{1,2}|X[0-9a-fA-F]{1,2}|[0-7]{1,3}|[nrt\\\"'])", char, text[1:-1])


# -------------------------------------------------------------------------------------------- writing
def show(message: Message, indent: str = "") -> str:
    """The text of a message, a field per line, in the order of the schema; unknown fields come last."""
    lines = []
    for field, value in message.items():
        for one in value if field.repeated else [value]:
            if isinstance(one, Message):
                lines.append(f"{indent}{field.name} {{\n{show(one, indent + '  ')}{indent}}}\n")
            else:
                lines.append(f"{indent}{field.name}: {_quoted(message.schema, field, one)}\n")
    lines += [f"{indent}{text}\n" for texts in message.unknown.values() for text in texts]
    return "".join(lines)


def _quoted(schema: Schema, field: Field, value: Any) -> str:
    if field.kind in schema.enums:
        return str(value)
    if field.kind == "bool":
        return "true" if value else "false"
    if field.kind in ("float", "double"):
        number = float(value)
        return repr(number) if field.kind == "double" else str(np.float32(number))
    if field.kind in ("string", "bytes"):
        raw = value if isinstance(value, str) else bytes(value).decode("latin-1")
        escaped = raw.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'"{escaped}"'
    return str(value)
