"""Catalogues of the Chinese pages: ``python docs/translations.py [--check]``.

Every paragraph of a translated page is a message of a catalogue in ``docs/locale/zh_CN/LC_MESSAGES``.  Without options
the catalogues are brought up to date: new and changed paragraphs get an empty or a "fuzzy" entry, for which the site
shows the English text with a mark until it is translated and the word "fuzzy" removed.  README.zh.md is then written
from its catalogue.  ``--check`` writes nothing, counts paragraphs without a current translation, and fails if there are
any in the pages that have to be complete.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po
from markdown_it import MarkdownIt

DOCS = Path(__file__).parent
ROOT = DOCS.parent
CATALOGUES = DOCS / "locale" / "zh_CN" / "LC_MESSAGES"
COMPLETE = (
    "index",
    "tutorials/",
    "howto/",
    "reference/index",
    "explanation/index",
    "explanation/faq",
    "explanation/troubleshooting",
    "README",
)
"""Pages that are translated: names, or folders that end in a slash."""

THEME = CATALOGUES / "sphinx.po"
"""The labels of the theme, which are not those of a page."""

README = ROOT / "README.md"
TRANSLATED_README = ROOT / "README.zh.md"


def templates() -> dict[str, Catalog]:
    """The messages of the pages that are translated, by the name of the page."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "sphinx", "-q", "-b", "gettext", "-d", f"{folder}/doctrees", str(DOCS), f"{folder}/pot"]
        subprocess.run([sys.executable, *command], check=True)
        names = sorted(path.relative_to(f"{folder}/pot") for path in Path(folder, "pot").rglob("*.pot"))
        pages = {str(name.with_suffix("")): Path(folder, "pot", name) for name in names}
        made = {name: _read(path) for name, path in pages.items() if name.startswith(COMPLETE)}
    made["README"] = Catalog(charset="utf-8")
    for _, _, text in _paragraphs(README.read_text(encoding="utf-8")):
        made["README"].add(text)
    return made


def _read(path: Path) -> Catalog:
    with path.open("rb") as file:
        return read_po(file, locale="zh_CN")


def updated(template: Catalog, path: Path) -> Catalog:
    """The catalogue in a file with the messages of a template; messages that the page no longer has go."""
    catalogue = _read(path) if path.exists() else Catalog(locale="zh_CN", charset="utf-8")
    catalogue.update(template)
    catalogue.obsolete.clear()
    catalogue.fuzzy = False
    return catalogue


def text_of(catalogue: Catalog) -> bytes:
    """The content of a catalogue's file: without dates and places, which would change with every update."""
    buffer = io.BytesIO()
    write_po(buffer, catalogue, omit_header=True, no_location=True, width=100, sort_output=False)
    header = b'msgid ""\nmsgstr ""\n"Language: zh_CN\\n"\n"MIME-Version: 1.0\\n"\n'
    return (
        header
        + b'"Content-Type: text/plain; charset=UTF-8\\n"\n"Content-Transfer-Encoding: 8bit\\n"\n\n'
        + buffer.getvalue()
    )


def missing(catalogue: Catalog) -> list[str]:
    """Messages without a current translation."""
    return [str(message.id) for message in catalogue if message.id and (message.fuzzy or not message.string)]


def _paragraphs(text: str) -> list[tuple[int, int, str]]:
    """First line, last line (exclusive) and text, as one line, of the paragraphs, headings and cells of a page."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    return [
        (t.map[0], t.map[1], " ".join(t.content.split())) for t in tokens if t.type == "inline" and t.map and t.content
    ]


def translated(text: str, catalogue: Catalog) -> str:
    """A page in which every paragraph that has a current translation is replaced by it."""
    lines = text.splitlines()
    for first, last, message in reversed(_paragraphs(text)):
        entry = catalogue.get(message)
        if entry is None or not entry.string or entry.fuzzy:
            continue
        if message in lines[first]:  # the line may have more: the mark of a heading or list, other cells
            lines[first] = lines[first].replace(message, str(entry.string), 1)
        else:
            indent = re.match(r"(?:[-*+] |\s)*", lines[first])
            lines[first:last] = [f"{indent[0] if indent else ''}{entry.string}"]
    return "\n".join(lines) + "\n"


def _states() -> Iterator[tuple[str, Path, Catalog]]:
    for name, template in templates().items():
        path = CATALOGUES / f"{name}.po"
        yield name, path, updated(template, path)


def update() -> None:
    """Bring the catalogues and the translated README up to date; catalogues of pages that are gone go."""
    kept = set[Path]()
    for name, path, catalogue in _states():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text_of(catalogue))
        kept.add(path)
        if name == "README":
            TRANSLATED_README.write_text(translated(README.read_text(encoding="utf-8"), catalogue), encoding="utf-8")
    for path in set(CATALOGUES.rglob("*.po")) - kept - {THEME}:
        path.unlink()


def check() -> int:
    """Print the number of paragraphs without a current translation; 1 if there are any."""
    count = 0
    for name, _, catalogue in _states():
        lacking = missing(catalogue)
        count += len(lacking)
        for message in lacking:
            print(f"{name}: {message[:100]}")
        if name == "README" and not lacking:
            current = translated(README.read_text(encoding="utf-8"), catalogue)
            if not TRANSLATED_README.exists() or TRANSLATED_README.read_text(encoding="utf-8") != current:
                print(f"{TRANSLATED_README.name} is stale: run python docs/translations.py")
                count += 1
    print(f"{count} stale or untranslated paragraphs")
    return int(count > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="count what has no current translation, write nothing")
    if parser.parse_args().check:
        raise SystemExit(check())
    update()
