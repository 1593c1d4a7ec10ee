"""Configuration of the documentation site, for Sphinx: ``scripts/docs`` builds it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "extensions"), str(DOCS.parent / "src")]

project = "Tenon"
author = "The Tenon authors"
copyright = "The Tenon authors, Apache-2.0"
(release,) = re.findall(
    r'^version = "(.*)"', (DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE
)
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "chinese_search",
    "generated_reference",
    "gallery_pages",
    "short_navigation",
]
source_suffix = {".md": "markdown"}
exclude_patterns = ["build", "locale", "extensions", "_templates", "gallery/generated/models.md"]
myst_enable_extensions = ["colon_fence", "attrs_inline", "fieldlist"]
myst_heading_anchors = 4
nitpicky = False
suppress_warnings = ["myst.header"]

language = "en"
locale_dirs = ["locale"]
gettext_compact = False
gettext_uuid = False
gettext_location = False
# Paragraphs without a current translation are shown in English with a mark: locale/README.md.
translation_progress_classes = True

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_class_signature = "separated"

html_theme = "furo"
html_title = f"Tenon {release}"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["tenon.css"]
html_js_files = ["site.js"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6e4f", "color-brand-content": "#0b6e4f"},
    "dark_css_variables": {"color-brand-primary": "#5fd3a7", "color-brand-content": "#5fd3a7"},
}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "site.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
pygments_style = "friendly"
pygments_dark_style = "monokai"
linkcheck_anchors = True
