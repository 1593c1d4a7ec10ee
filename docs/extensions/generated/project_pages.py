"""Pages of files that stand beside ``docs`` in the project, such as the release notes."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = "reference/generated/project"
FILES = {
    "ARCHITECTURE.md": "architecture",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
    "bench/NOTES.md": "benchmarks",
}
LINK = re.compile(r"\[([^\]\n]*)\]\(((?![a-z]+:|#|/)[^)#\s]+)(#[^)\s]*)?\)")


def pages() -> dict[str, str]:
    """The files with their links resolved from the place of the page."""
    return {
        f"project/{name}": with_links((ROOT / file).read_text(encoding="utf-8"), (ROOT / file).parent)
        for file, name in FILES.items()
    }


def with_links(text: str, folder: Path) -> str:
    """A page's text with its links to other files of the project turned into what the site has.

    A link to one of FILES leads to its page, one to a page of ``docs`` gets its path from the root of ``docs``, one to
    a folder becomes the folder's name, and one to any other file a download.
    """

    def link(match: re.Match[str]) -> str:
        path = os.path.relpath(folder / match[2], ROOT)
        if path in FILES:
            return f"[{match[1]}](/{FOLDER}/{FILES[path]}.md{match[3] or ''})"
        if (ROOT / path).is_dir():
            index = ROOT / path / "index.md"
            return f"[{match[1]}](/{os.path.relpath(index, ROOT / 'docs')})" if index.exists() else f"`{path}`"
        if path.startswith("docs/"):
            return f"[{match[1]}](/{path.removeprefix('docs/')}{match[3] or ''})"
        return f"[{match[1]}](/../{path})"

    return LINK.sub(link, text)
