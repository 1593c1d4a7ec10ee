"""An npm package (a tarball that ``npm install`` takes) that runs a network in browsers and in node."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from tenon.formats.wire.reproducible_archives import tar_archive
from tenon.runtime.web.template_files import Description, filled, template
from tenon.runtime.web.webgpu_form import WebGpuForm

VERSION = "1.0.0"

_ARRAYS = {
    "f32": "Float32Array",
    "f64": "Float64Array",
    "f16": "Uint16Array",
    "bool": "Uint8Array",
    "i8": "Int8Array",
    "i16": "Int16Array",
    "i32": "Int32Array",
    "i64": "BigInt64Array",
    "u8": "Uint8Array",
    "u16": "Uint16Array",
    "u32": "Uint32Array",
    "u64": "BigUint64Array",
}


def package_name(name: str) -> str:
    """The npm name of the network ``name``: lower case, words separated by hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def tarball_name(name: str) -> str:
    """The file name of the package, as ``npm pack`` forms it."""
    return f"{package_name(name)}-{VERSION}.tgz"


def npm_package(description: Description, wasm: bytes, webgpu: WebGpuForm | None = None) -> bytes:
    """The tarball, with the form for WebGPU if there is one.  The same arguments give the same bytes."""
    files = {"network.wasm": wasm, **_files(description, webgpu)}
    return tar_archive({f"package/{name}": content for name, content in files.items()})


def _package(description: Description, files: Iterable[str], form: str) -> dict[str, object]:
    """The contents of package.json; ``form`` says in words what the network is."""
    name = str(description["name"])
    addressed = [file for file in ("network.wasm", "webgpu.bin") if file in files]
    return {
        "name": package_name(name),
        "version": VERSION,
        "description": f"The neural network {name} as {form}, compiled by Tenon {description['version']}",
        "type": "module",
        "main": "index.js",
        "types": "index.d.ts",
        "exports": {".": {"types": "./index.d.ts", "default": "./index.js"}, **{f"./{f}": f"./{f}" for f in addressed}},
        "files": sorted(files),
        "engines": {"node": ">=18"},
        "sideEffects": False,
    }


_WASM = "WebAssembly with 128-bit SIMD"
_BOTH = f"kernels for WebGPU, and as {_WASM} for where there is none"


def _files(description: Description, webgpu: WebGpuForm | None) -> dict[str, bytes]:
    """The files but for network.wasm."""
    name, form = str(description["name"]), _BOTH if webgpu else _WASM
    texts = {
        "index.js": template("index.js"),
        "largest.js": template("largest.js"),
        "model.js": template("model.js"),
        "bytes.js": template("bytes.js"),
        "webgpu.js": template("webgpu.js") if webgpu else "export const open = null;\n",
        "network.js": f"export const description = {json.dumps(description, ensure_ascii=False)};\n",
        "index.d.ts": filled(
            "index.d.ts", INPUTS=_types(description["inputs"]), OUTPUTS=_types(description["outputs"])
        ),
    }
    files = {file: text.encode() for file, text in texts.items()}
    if webgpu:
        files |= {"kernels.js": webgpu.module.encode(), "webgpu.bin": webgpu.weights}
    readme = filled("README.md", NAME=name, PACKAGE=package_name(name), FORMS=form, EXAMPLE=_example(description))
    package = _package(description, {*files, "network.wasm"}, form)
    return {**files, "README.md": readme.encode(), "package.json": f"{json.dumps(package, indent=2)}\n".encode()}


def _types(tensors: list[Mapping[str, object]]) -> str:
    """The fields of a TypeScript interface; outputs of 16-bit floats are given as Float32Array, inputs as bits."""
    lines = [
        f"  /** {tensor['dtype']}{json.dumps(tensor['shape'], separators=(',', ':'))} */\n"
        f"  {json.dumps(tensor['name'])}{'?' if tensor.get('state') else ''}: {_ARRAYS[str(tensor['dtype'])]};"
        for tensor in tensors
    ]
    return "\n".join(lines)


def _example(description: Description) -> str:
    if description["detects"]:
        return "const found = await model.detect(image); // [{ class, label, score, box }], best first"
    if description["imageInput"] >= 0:
        name = json.dumps(description["outputs"][0]["name"])
        best = f"const best = model.top(outputs[{name}]); // [{{ index, label, value }}]"
        return f"const outputs = await model.runImage(image);\n{best}"
    given = [tensor for tensor in description["inputs"] if not tensor["state"]]
    feeds = ", ".join(f"{json.dumps(t['name'])}: new {_ARRAYS[t['dtype']]}({_length(t)})" for t in given)
    return f"const outputs = await model.run({{ {feeds} }});"


def _length(tensor: Mapping[str, object]) -> int:
    length = 1
    for extent in tensor["shape"]:  # type: ignore[attr-defined]  # JSON
        length *= extent
    return length
