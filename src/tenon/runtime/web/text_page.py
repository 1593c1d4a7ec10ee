"""A self-contained page that goes on with a text, by a language model."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape

from tenon.runtime.web.template_files import Description, filled, json_text, template


def text_page(description: Description, generation: Mapping[str, float], wasm: bytes) -> str:
    """The HTML text, with the module ``wasm`` (weights and tokenizer inside) in base64.  ``generation`` are the values
    of sampling that the model recommends.  The page loads nothing from anywhere, and works when opened as a file."""
    values = {"temperature": 0.0, "top_k": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, **generation}
    return filled(
        "text_page.html",
        TITLE=escape(str(description["name"])),
        STYLE=template("page.css"),
        DESCRIPTION=json_text(description),
        TEMPERATURE=f"{values['temperature']:g}",
        TOPK=f"{values['top_k']:g}",
        TOPP=f"{values['top_p']:g}",
        PENALTY=f"{values['repetition_penalty']:g}",
        WASM=base64.b64encode(wasm).decode(),
        WORKER=template("text_worker.js"),
        SCRIPT=template("text_page.js"),
    )
