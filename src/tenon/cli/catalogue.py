"""Catalogues of translations: gettext's text form (.po), read where it is needed.

The text form is what translators edit and what a change shows; reading it takes a few milliseconds of a Chinese user's
command and none of others', so that nothing has to be compiled when Tenon is built or installed, or can be stale.
"""

from __future__ import annotations

import ast
import gettext
import io
import json
from typing import Any


class Catalogue(gettext.NullTranslations):
    """The translations of a .po file, given as a file object of text."""

    def _parse(self, fp: Any) -> None:
        self.texts = read_catalogue(fp.read())

    def gettext(self, message: str) -> str:
        """The translation; the text itself where there is none."""
        return self.texts.get(message) or message


def open_catalogue(text: str) -> Catalogue:
    """The catalogue with the content of a .po file."""
    return Catalogue(io.StringIO(text))  # type: ignore[arg-type]  # typed as a file of bytes, which _parse reads


def read_catalogue(text: str) -> dict[str, str]:
    """The texts of a .po file with their translations, "" for those without.  Raises ValueError for a line that is none
    of a comment, ``msgid``, ``msgstr`` and a quoted string."""
    entries: dict[str, str] = {}
    parts: dict[str, list[str]] = {"msgid": [], "msgstr": []}
    now = ""
    for line in [*text.splitlines(), "msgid"]:
        word, _, rest = line.strip().partition(" ")
        if word in parts:
            if word == "msgid" and now == "msgstr":
                entries["".join(parts["msgid"])] = "".join(parts["msgstr"])
                parts = {"msgid": [], "msgstr": []}
            now = word
        elif line.startswith('"') and now:
            rest = line.strip()
        elif not line.strip() or line.startswith("#"):
            continue
        else:
            raise ValueError(f"a catalogue has no line {line!r}")
        if rest:
            parts[now].append(str(ast.literal_eval(rest)))
    return entries


def entry_text(text: str, translation: str) -> str:
    """An entry of a .po file."""
    return f"msgid {_quoted(text)}\nmsgstr {_quoted(translation)}\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
