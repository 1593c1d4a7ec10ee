"""The template files, and text put into them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "templates"

Description = Mapping[str, Any]
"""The description of a network in a page or package, as JSON (``bundle.browser``)."""


def template(name: str) -> str:
    """The text of a template."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def filled(name: str, **texts: str) -> str:
    """A template with each ``@NAME@`` replaced by a text, in which nothing is replaced."""
    return re.sub(r"@([A-Z]+)@", lambda match: texts[match[1]], template(name))


def json_text(data: Any) -> str:
    """JSON that may stand in a script element: nothing in it ends the element or begins a comment."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
