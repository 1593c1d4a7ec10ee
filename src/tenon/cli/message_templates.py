"""Translations of messages, which programs make of templates: "{path}: no such file".

Errors are plain texts, because they are raised everywhere and by programs that use Tenon as a library.  So the template
that a message was made of is found again: its literal parts stand in the message in their order.  What stands between
them is inserted into the translation, translated as well where it is a message itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from tenon.cli.catalogue import Catalogue

_INSERTED = re.compile(r"\{(\w+)\}")
_MARKS = re.compile(r"^ +- |(: |; | \(|\)(?=$|: |; |\)))")
"""Text between messages: the separator of a list, marks behind what a message is about, and parentheses at its end."""

_WIDE_MARKS = {": ": "\uff1a", "; ": "\uff1b", " (": "\uff08", ")": "\uff09"}
"""The same between Chinese texts."""

_LEAST = 4
"""Letters of literal parts that a template has at least: "{where}: {what}" would fit everything."""

_MOST_PARTS = 24
"""Parts of a message, beyond which it is a list and stays as it is."""


@dataclass(frozen=True)
class Template:
    """A text with names in braces: the literal parts around them.  Names without a part between them are one group, of
    which the first name gets all that is inserted there."""

    text: str
    literals: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, text: str) -> Template:
        first, *parts = _INSERTED.split(text)
        literals, groups = [first], list[tuple[str, ...]]()
        for name, literal in zip(parts[::2], parts[1::2], strict=True):
            if groups and not literals[-1]:
                groups[-1] += (name,)
                literals[-1] = literal
            else:
                groups.append((name,))
                literals.append(literal)
        return cls(text, tuple(literals), tuple(groups))

    @property
    def letters(self) -> int:
        """The letters of the literal parts: the more there are, the surer is a match."""
        return sum(character.isalpha() for part in self.literals for character in part)

    def match(self, message: str) -> dict[str, str] | None:
        """The values that were inserted, by name; None if the message was not made of this template."""
        first, *rest = self.literals
        if not rest:
            return {} if message == first else None
        end = len(message) - len(rest[-1])
        if not message.startswith(first) or not message.endswith(rest[-1]) or end < len(first):
            return None
        at, values = len(first), dict[str, str]()
        for group, literal in zip(self.groups, rest, strict=True):
            place = end if literal is rest[-1] and group is self.groups[-1] else message.find(literal, at, end)
            if place < 0:
                return None
            values |= {**dict.fromkeys(group, ""), group[0]: message[at:place]}
            at = place + len(literal)
        return values


@dataclass(frozen=True)
class Templates:
    """The texts of a catalogue, and those of them that are templates, each behind the longest of its literal parts, by
    which most templates are soon ruled out."""

    texts: Mapping[str, str]
    templates: tuple[tuple[str, Template], ...]
    _known: dict[str, tuple[int, str] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, catalogue: Catalogue) -> Templates:
        return _templates_of(catalogue)

    def translated(self, message: str) -> str:
        """The message in another language, where it, a line of it or a part between marks is known."""
        if "\n" in message and self._whole(message) is None:
            return "\n".join(map(self.translated, message.split("\n")))
        return self._divided(message)[1]

    def _divided(self, message: str) -> tuple[int, str]:
        """The division of a message at its marks that translates most of its letters: their number, and the text."""
        marks = [(0, 0), *(mark.span() for mark in _MARKS.finditer(message)), (len(message), len(message))]
        if len(marks) > _MOST_PARTS:
            return 0, message
        best: list[tuple[int, int, str]] = [(0, 0, "")]  # letters, minus the number of parts, text
        for last, (end, _) in enumerate(marks[1:], 1):
            choices = []
            for first, (start, begin) in enumerate(marks[:last]):
                letters, parts, text = best[first]
                known = self._whole(message[begin:end]) or (0, message[begin:end])
                mark = message[start:begin]
                wide = known[0] or (letters and mark != " (")
                if mark == ")":
                    wide = text.count("\uff08") > text.count("\uff09")
                text += (_WIDE_MARKS.get(mark, mark) if wide else mark) + known[1]
                choices.append((letters + known[0], parts - 1, text))
            best.append(max(choices))
        return best[-1][0], best[-1][2]

    def _whole(self, message: str) -> tuple[int, str] | None:
        """The letters that are translated of a message made of one template, and the text."""
        if message not in self._known:
            self._known[message] = None  # a message that contains itself is none
            self._known[message] = max(self._made(message), default=None)
        return self._known[message]

    def _made(self, message: str) -> Iterator[tuple[int, str]]:
        """The translations by every template that a message may have been made of, with their letters."""
        if self.texts.get(message):
            yield sum(map(str.isalpha, message)), self.texts[message]
        for longest, template in self.templates:
            if longest not in message or ("\n" in message and "\n" not in template.text):
                continue
            values = template.match(message)
            if values is not None:
                shown = {name: self._inserted(value) for name, value in values.items()}
                letters = template.letters + sum(letters for letters, _ in shown.values())
                letters -= sum(len(_MARKS.findall(value)) for value in values.values())  # rather divided there
                yield letters, _filled(self.texts[template.text], {name: text for name, (_, text) in shown.items()})

    def _inserted(self, value: str) -> tuple[int, str]:
        """A name as it is; a message translated."""
        return self._divided(value) if " " in value else (0, self.texts.get(value) or value)


def _filled(template: str, values: Mapping[str, str]) -> str:
    """A template with its names replaced."""
    parts = _INSERTED.split(template)
    return "".join(values[part] if place % 2 else part for place, part in enumerate(parts))


@lru_cache(maxsize=1)
def _templates_of(catalogue: Catalogue) -> Templates:
    texts = {text: translation for text, translation in catalogue.texts.items() if text and translation}
    templates = [Template.of(text) for text in texts if "{" in text]
    return Templates(texts, tuple((max(each.literals, key=len), each) for each in templates if each.letters >= _LEAST))
