"""What a library's code takes for granted, as text: it is compiled into the library and compared when that is opened.

A manifest that tells other sizes, places or types than the code was generated for would let it read and write where it
must not.
"""

from __future__ import annotations

import json

from tenon.bundle.manifest import Manifest, Tensor

SYMBOL = "tenon_layout"
SIZE = "tenon_layout_size"
"""The text in the library, and its bytes."""


def layout(manifest: Manifest) -> str:
    """A line on memory, one on threads; for the network and each binding, one and those of its inputs and outputs."""
    memory = manifest.memory
    calls = len(manifest.nodes) if manifest.options.get("profile") else 0
    lines = [
        f"constant {memory.constant} mutable {memory.mutable} activations {memory.activations} {memory.alignment}",
        f"threads {manifest.threads} timed calls {calls}",
    ]
    for b in (manifest.alone(), *manifest.bindings):
        lines.append(f"entry {b.entry} phases {b.phases} mutable {b.mutable} activations {b.activations}")
        lines += [f"input {_tensor(t)}" for t in b.inputs]
        lines += [f"output {_tensor(t)}" for t in b.outputs]
    return "\n".join(lines)


def layout_source(text: str) -> str:
    """The C file that holds it."""
    data = text.encode()
    rows = "\n".join("  " + "".join(f"{byte}," for byte in data[i : i + 32]) for i in range(0, len(data), 32))
    return f"const unsigned char {SYMBOL}[] = {{\n{rows}\n}};\nconst unsigned {SIZE} = sizeof {SYMBOL};\n"


def _tensor(t: Tensor) -> str:
    return json.dumps([t.name, t.dtype, t.shape, t.offset, t.bytes, t.extent, t.string])
