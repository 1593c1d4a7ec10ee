"""A self-contained page that runs a network on image files, the camera, drawings or numbers."""

from __future__ import annotations

import base64
import re
from html import escape

from tenon.runtime.web.template_files import Description, filled, json_text, template
from tenon.runtime.web.webgpu_form import WebGpuForm, in_worker


def page(description: Description, wasm: bytes, webgpu: WebGpuForm | None = None) -> str:
    """The HTML text, with the module ``wasm`` (weights inside) in base64, and the form for WebGPU if there is one.  It
    loads nothing from anywhere, and works when opened as a file."""
    largest, model = (_script(name) for name in ("largest.js", "model.js"))
    return filled(
        "page.html",
        TITLE=escape(str(description["name"])),
        STYLE=template("page.css"),
        DESCRIPTION=json_text(description),
        WASM=base64.b64encode(wasm).decode(),
        WEIGHTS=base64.b64encode(webgpu.weights).decode() if webgpu else "",
        WORKER=f"{largest}{model}\n{in_worker(webgpu)}\n{template('worker.js')}",
        SCRIPT=f"{largest}\n{template('page.js')}",
    )


def _script(name: str) -> str:
    """A module of the npm package as part of a script that has what it imports before it."""
    return re.sub(r"^import .*\n|^export ", "", template(name), flags=re.MULTILINE)
