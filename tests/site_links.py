"""Links of a built site: what a page refers to, and which of it is not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src"), ("video", "src")}
"""Attributes whose targets a browser loads by itself."""


@dataclass
class _Page(HTMLParser):
    """Anchors and references of a page."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif (tag, name) in LOADED and value:
                self.loaded.append(value)
            elif (tag, name) == ("a", "href") and value:
                self.links.append(value)


@cache
def _page(path: str) -> _Page:
    page = _Page()
    page.feed(Path(path).read_text(encoding="utf-8"))
    return page


def foreign(site: Path) -> Iterator[str]:
    """Addresses that pages load from other hosts."""
    for path in sorted(site.rglob("*.html")):
        for address in _page(str(path)).loaded:
            if urlsplit(address).netloc:
                yield f"{path.relative_to(site)}: {address}"


def broken(site: Path) -> Iterator[str]:
    """Links, images, scripts and anchors inside the site that do not exist."""
    for path in sorted(site.rglob("*.html")):
        page = _page(str(path))
        for address in (*page.links, *page.loaded):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = os.path.normpath(path.parent / unquote(parts.path)) if parts.path else str(path)
            if not Path(target).is_file() or (
                parts.fragment and target.endswith(".html") and unquote(parts.fragment) not in _page(target).anchors
            ):
                yield f"{path.relative_to(site)}: {address}"
