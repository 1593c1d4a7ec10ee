"""An npm package (a tarball that ``npm install`` takes) that runs a network in browsers and in node."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from tenon.formats.wire.reproducible_archives import tar_archive
from tenon.runtime.web.template_files import Description, filled, template

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


def npm_package(description: Description, wasm: bytes) -> bytes:
    """The tarball.  The same description and module give the same bytes."""
    return tar_archive({f"package/{name}": content for name, content in _files(description, wasm).items()})


def _files(description: Description, wasm: bytes) -> dict[str, bytes]:
    name = str(description["name"])
    package = {
        "name": package_name(name),
        "version": VERSION,
        "description": f"The neural network {name} as WebAssembly, compiled by Tenon {description['version']}",
        "type": "module",
        "main": "index.js",
        "types": "index.d.ts",
        "exports": {".": {"types": "./index.d.ts", "default": "./index.js"}, "./network.wasm": "./network.wasm"},
        "files": ["index.js", "index.d.ts", "model.js", "network.js", "network.wasm"],
        "engines": {"node": ">=18"},
        "sideEffects": False,
    }
    texts = {
        "package.json": json.dumps(package, indent=2) + "\n",
        "index.js": template("index.js"),
        "model.js": template("model.js"),
        "network.js": f"export const description = {json.dumps(description, ensure_ascii=False)};\n",
        "index.d.ts": filled(
            "index.d.ts", INPUTS=_types(description["inputs"]), OUTPUTS=_types(description["outputs"])
        ),
        "README.md": filled("README.md", NAME=name, PACKAGE=package_name(name), EXAMPLE=_example(description)),
    }
    return {"network.wasm": wasm, **{file: text.encode() for file, text in texts.items()}}


def _types(tensors: list[Mapping[str, object]]) -> str:
    """The fields of a TypeScript interface; outputs of 16-bit floats are given as Float32Array, inputs as bits."""
    lines = [
        f"  /** {tensor['dtype']}{json.dumps(tensor['shape'], separators=(',', ':'))} */\n"
        f"  {json.dumps(tensor['name'])}: {_ARRAYS[str(tensor['dtype'])]};"
        for tensor in tensors
    ]
    return "\n".join(lines)


def _example(description: Description) -> str:
    if description["detects"]:
        return "const found = model.detect(image); // [{ class, label, score, box }], best first"
    if description["imageInput"] >= 0:
        name = json.dumps(description["outputs"][0]["name"])
        best = f"const best = model.top(outputs[{name}]); // [{{ index, label, value }}]"
        return f"const outputs = model.runImage(image);\n{best}"
    feeds = ", ".join(
        f"{json.dumps(t['name'])}: new {_ARRAYS[t['dtype']]}({_length(t)})" for t in description["inputs"]
    )
    return f"const outputs = model.run({{ {feeds} }});"


def _length(tensor: Mapping[str, object]) -> int:
    length = 1
    for extent in tensor["shape"]:  # type: ignore[attr-defined]  # JSON
        length *= extent
    return length
