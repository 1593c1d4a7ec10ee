"""A self-contained page that runs a network on image files, the camera, drawings or numbers."""

from __future__ import annotations

import base64
from html import escape

from tenon.runtime.web.template_files import Description, filled, json_text, template


def page(description: Description, wasm: bytes) -> str:
    """The HTML text, with the module ``wasm`` (weights inside) in base64.  It loads nothing from anywhere, and works
    when opened as a file."""
    model = template("model.js").replace("export ", "")
    return filled(
        "page.html",
        TITLE=escape(str(description["name"])),
        STYLE=template("page.css"),
        DESCRIPTION=json_text(description),
        WASM=base64.b64encode(wasm).decode(),
        WORKER=f"{model}\n{template('worker.js')}",
        SCRIPT=f"{model}\n{template('page.js')}",
    )
