"""Pages of the reference that are written from the code before each build, into ``docs/reference/generated``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from generated import c_api, commands, deployment_keys, errors, project_pages, python_api

PAGES: tuple[Callable[[], dict[str, str]], ...] = (
    commands.pages,
    python_api.pages,
    c_api.pages,
    deployment_keys.pages,
    errors.pages,
    project_pages.pages,
)
"""Each returns the text of pages by their path below ``reference/generated``, without ``.md``."""


def write(folder: Path) -> list[Path]:
    """Write all pages into a folder; unchanged ones keep their time, and pages that are no longer written go."""
    folder.mkdir(parents=True, exist_ok=True)
    written = list[Path]()
    for pages in PAGES:
        for name, text in pages().items():
            path = folder / f"{name}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
            written.append(path)
    for path in set(folder.rglob("*.md")) - set(written):
        path.unlink()
    return written


def _before_reading(app: Sphinx) -> None:
    if app.config.generate_pages:
        write(Path(app.srcdir) / "reference" / "generated")


def _after_reading_source(app: Sphinx, name: str, source: list[str]) -> None:
    if "/generated/" not in name:
        source[0] = project_pages.with_links(source[0], Path(app.env.doc2path(name)).parent)


def setup(app: Sphinx) -> dict[str, Any]:
    # Off where a build of another language has just written the same pages.
    app.add_config_value("generate_pages", True, "", bool)
    app.connect("builder-inited", _before_reading)
    app.connect("source-read", _after_reading_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
