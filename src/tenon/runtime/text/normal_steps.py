"""The steps by which a tokenizer changes a text before it is cut into words, for the tables in C."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tenon.errors import Problem, UnsupportedError
from tenon.runtime.text.character_sets import category

PREPEND, REPLACE, MAP, PREPEND_ONCE, PREPEND_FIRST, FORM = range(1, 7)
"""Kinds of steps: put a text in front, replace one by another, replace characters by the map, put a text in front
unless it is there, that at the beginning of the whole text only, and a normal form of Unicode."""


class NormalStep(NamedTuple):
    """A step, and the texts that it puts in front, or replaces."""

    kind: int
    text: str = ""
    other: str = ""


@dataclass(frozen=True)
class NormalSteps:
    """All steps in order, the texts that take the place of characters, and the name of the normal form."""

    steps: tuple[NormalStep, ...]
    map: Mapping[int, str]
    form: str = ""


def unsupported(what: str) -> UnsupportedError:
    """The error for a part of a tokenizer that the tables in C lack."""
    problem = Problem("tokenizer", f"the tables in C lack {what}", "Python and tenon serve have it")
    return UnsupportedError("tokenizer", [problem])


def normal_steps(normalizer: Mapping[str, Any] | None) -> NormalSteps:
    """The steps of a tokenizer.json's normalizer.  Raises UnsupportedError for what the tables lack."""
    steps, changes, forms = list[NormalStep](), list[Callable[[str], str]](), list[str]()
    for part in flattened(normalizer, "normalizers"):
        kind = part.get("type")
        if kind == "Prepend":
            steps.append(NormalStep(PREPEND, part["prepend"]))
        elif kind == "Replace" and isinstance(part["pattern"].get("String"), str):
            steps.append(NormalStep(REPLACE, part["pattern"]["String"], part["content"]))
        elif kind in ("NFC", "NFD", "NFKC", "NFKD"):
            steps.append(NormalStep(FORM))
            forms.append(str(kind))
        elif kind in ("BertNormalizer", "Lowercase"):
            if not changes:
                steps.append(NormalStep(MAP))
            changes.append(_bert(part) if kind == "BertNormalizer" else _lower)
        else:
            raise unsupported(f"the normalizer {kind}")
    if len(changes) > 1 or len(forms) > 1:
        raise unsupported("several maps of characters")
    return NormalSteps(tuple(steps), _mapped(changes[0]) if changes else {}, "".join(forms))


def flattened(step: Mapping[str, Any] | None, parts: str) -> list[Mapping[str, Any]]:
    """The steps of a sequence, or the only one."""
    if step is None:
        return []
    if step.get("type") != "Sequence":
        return [step]
    return [each for part in step[parts] for each in flattened(part, parts)]


def _lower(character: str) -> str:
    return character.lower()


_CHINESE = (
    range(0x4E00, 0xA000),
    range(0x3400, 0x4DC0),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B920, 0x2CEB0),
    range(0xF900, 0xFB00),
    range(0x2F800, 0x2FA20),
)


def _bert(part: Mapping[str, Any]) -> Callable[[str], str]:
    """BERT's normalisation of a character."""
    lower = bool(part.get("lowercase"))
    accents = part.get("strip_accents")
    strip = lower if accents is None else bool(accents)

    def change(character: str) -> str:
        if part.get("clean_text"):
            if character in "\t\n\r" or (character.isspace() and ord(character) not in range(0x1C, 0x20)):
                return " "
            if character in "\0\ufffd" or unicodedata.category(character)[0] == "C":
                return ""
        if part.get("handle_chinese_chars") and any(ord(character) in block for block in _CHINESE):
            character = f" {character} "
        if strip:
            parts = unicodedata.normalize("NFD", character)
            character = "".join(c for c in parts if unicodedata.category(c) != "Mn")
        return character.lower() if lower else character

    return change


def _mapped(change: Callable[[str], str]) -> dict[int, str]:
    """The characters that a function changes, and what they become.

    Those of a category that are no characters are alike: the first one shows what all become.
    """
    none = category("Cn") | category("Co")
    points = (int(point) for point in np.flatnonzero(~(none | category("Cs"))))
    changed = {point: text for point in points if (text := change(chr(point))) != chr(point)}
    first = chr(int(none.argmax()))
    if (text := change(first)) != first:
        changed |= dict.fromkeys(np.flatnonzero(none).tolist(), text)
    return changed


@cache
def growth(steps: Sequence[NormalStep], longest: int, form: int = 1) -> tuple[int, int]:
    """A factor and a number of bytes by which a text becomes longer at most; ``longest`` is the most that a character
    of the map grows by, and ``form`` that of the normal form."""
    factor, more = 1, 0
    for step in steps:
        text, other = len(step.text.encode()), len(step.other.encode())
        times = {REPLACE: max(1, -(-other // max(text, 1))), MAP: longest, FORM: form}.get(step.kind, 1)
        factor, more = factor * times, more * times + (text if step.kind not in (REPLACE, MAP, FORM) else 0)
    return factor, more
