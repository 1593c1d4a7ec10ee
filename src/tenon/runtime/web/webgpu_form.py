"""The form of a network for WebGPU in pages and npm packages, beside that for WebAssembly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WebGpuForm:
    """A module in JavaScript that exports ``create``, and the constant region of its network."""

    module: str
    weights: bytes


def in_worker(form: WebGpuForm | None) -> str:
    """JavaScript that defines ``webgpu``, with what the module exports; null without one.

    It may stand in a script element: nothing in it ends the element or begins a comment of HTML.
    """
    if form is None:
        return "const webgpu = null;"
    module = form.module.replace("export function", "function").replace("</", "<\\/").replace("<!--", "<\\!--")
    return f"const webgpu = (() => {{\n{module}\nreturn {{ create }};\n}})();"
