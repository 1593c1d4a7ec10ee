"""The memory layout assumed by a library's code, as text: compiled into the library and compared when it is opened.

A manifest with other sizes, offsets or types than the code was generated for would cause accesses out of bounds.
"""

from __future__ import annotations

import json

from tenon.runtime.bundle.manifest import BundleTensor, Manifest
from tenon.validation import plain


def symbols(name: str) -> tuple[str, str]:
    """The symbols of the text in the library of the bundle ``name``, and of its size."""
    return f"{name}_layout", f"{name}_layout_size"


def layout(manifest: Manifest, *, quantised: bool = False) -> str:
    """Lines for memory and threads; for the first and each further binding its entry point, inputs and outputs.

    ``quantised`` adds what integers stand for, to be known where there is no manifest beside the code.  Only "memory by
    thread" is run: code whose scratch memory belongs to the parts of a phase is refused.
    """
    memory = manifest.memory
    calls = len(manifest.nodes) if manifest.options.get("profile") else 0
    lines = [
        f"constant {memory.constant} mutable {memory.mutable} activations {memory.activations} {memory.alignment}",
        f"threads {manifest.threads} memory by thread timed calls {calls}",
    ]
    for b in (manifest.first_binding(), *manifest.bindings):
        lines.append(f"entry {b.entry} mutable {b.mutable} activations {b.activations}")
        lines += [f"input {_tensor(t, quantised=quantised)}" for t in b.inputs]
        lines += [f"output {_tensor(t, quantised=quantised)}" for t in b.outputs]
    return "\n".join(lines)


def layout_source(name: str, text: str) -> str:
    """The C file that defines the symbols."""
    symbol, size = symbols(name)
    data = text.encode()
    rows = "\n".join("  " + "".join(f"{byte}," for byte in data[i : i + 32]) for i in range(0, len(data), 32))
    return f"const unsigned char {symbol}[] = {{\n{rows}\n}};\nconst unsigned {size} = sizeof {symbol};\n"


def _tensor(t: BundleTensor, *, quantised: bool) -> str:
    more = [t.scale, t.zero_point] if quantised and t.scale is not None else []
    return json.dumps([t.name, t.dtype, t.shape, t.offset, t.bytes, t.extents, plain(t.size), t.string, *more])
