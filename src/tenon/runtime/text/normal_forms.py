"""Unicode's normal forms (UAX #15) as tables: what characters consist of, and what pairs of them are composed to."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from tenon.network.graph.dtype import Array
from tenon.runtime.text.character_sets import category

_HANGUL = range(0xAC00, 0xD7A4)
"""Syllables, which functions take apart without tables."""


class NormalForm(NamedTuple):
    """A form; ``composed``: characters are put together again.  ``parts`` are the characters that each one consists of,
    ``classes`` the combining classes that are not 0, ``pairs`` two characters and the one that they become."""

    composed: bool
    parts: Mapping[int, tuple[int, ...]]
    classes: Mapping[int, int]
    pairs: Array


@cache
def normal_form(name: str) -> NormalForm:
    """NFC, NFD, NFKC or NFKD."""
    known = [int(point) for point in np.flatnonzero(~(category("Cn") | category("Co") | category("Cs")))]
    apart: Literal["NFKD", "NFD"] = "NFKD" if "K" in name else "NFD"
    texts = {point: unicodedata.normalize(apart, chr(point)) for point in known if point not in _HANGUL}
    parts = {point: tuple(map(ord, text)) for point, text in texts.items() if text != chr(point)}
    classes = {point: number for point in known if (number := unicodedata.combining(chr(point)))}
    return NormalForm(name.endswith("C"), parts, classes, _pairs(known))


def _pairs(known: list[int]) -> Array:
    """The pairs that compose, sorted: those of canonical decompositions that are not excluded."""
    rows = []
    for point in known:
        own = unicodedata.decomposition(chr(point))
        if not own or own.startswith("<") or " " not in own:
            continue
        first, second = (int(part, 16) for part in own.split())
        if unicodedata.normalize("NFC", chr(first) + chr(second)) == chr(point):
            rows.append((first, second, point))
    return np.array(sorted(rows), np.uint32)
