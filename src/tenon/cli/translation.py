"""Texts in the language of the user, which LANGUAGE, LC_ALL, LC_MESSAGES and LANG name, as for other programs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tenon.options import languages

if TYPE_CHECKING:
    from tenon.cli.catalogue import Catalogue

LOCALE = Path(__file__).parent / "locale"
"""The folder of the catalogues: LANGUAGE/LC_MESSAGES/tenon.po."""

ALSO = {"zh": "zh_CN", "zh_SG": "zh_CN", "zh_Hans": "zh_CN", "zh_Hans_CN": "zh_CN"}
"""Languages that a catalogue of another name is for, too."""

ENGLISH = ("en", "C", "POSIX")
"""Languages of the sources."""


def translated(text: str) -> str:
    """The text in the language of the user, where it has been translated."""
    catalogue = chosen_catalogue()
    return text if catalogue is None else catalogue.gettext(text)


def translated_message(text: str) -> str:
    """The message of an error or note in the language of the user, as far as it has been translated."""
    catalogue = chosen_catalogue()
    if catalogue is None:
        return text
    from tenon.cli.message_templates import Templates

    return Templates.of(catalogue).translated(text)


@lru_cache(maxsize=1)
def chosen_catalogue() -> Catalogue | None:
    """The catalogue of the first language of the user that there is one for; None for English."""
    for language in languages():
        name = language.partition(".")[0].partition("@")[0]
        if name.partition("_")[0] in ENGLISH:
            return None
        path = LOCALE / ALSO.get(name, name) / "LC_MESSAGES" / "tenon.po"
        if name and path.is_file():
            from tenon.cli.catalogue import open_catalogue

            return open_catalogue(path.read_text(encoding="utf-8"))
    return None
