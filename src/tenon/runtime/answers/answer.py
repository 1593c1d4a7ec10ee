"""The answer of a network: a table, JSON, and what is drawn into the image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image as Photo


@dataclass(frozen=True)
class Answer:
    """``columns`` and ``rows`` of a table of text, and a last line ``summary``; ``data`` is the same for JSON.

    ``draw`` returns a copy of the image (RGB, in its own size) with the answer drawn into it; None where there is
    nothing to draw.
    """

    summary: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[Photo], Photo] | None = None
