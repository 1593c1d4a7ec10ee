"""Pages of the gallery, written before each build from ``docs/gallery/models`` and ``docs/gallery/results``.

Images are in the pages if ``scripts/gallery --images`` made them before.
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from gallery.pages import write_pages


def _before_reading(app: Sphinx) -> None:
    if app.config.generate_pages:
        write_pages()


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("builder-inited", _before_reading)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
