"""Many bytes looked up at once in a table of 256 that registers hold."""

from __future__ import annotations

from tenon.machine.isa.base import Portable, Primitive, TableUnit


def _looked_up(vectors: int) -> Portable:
    """The table is in so many ``vectors``, T each, of M bytes."""
    tables = [f"t{i}" for i in range(vectors)]
    body = (
        f"const {{T}} *const t[] = {{{{{', '.join('&' + t for t in tables)}}}}};\n"
        "  for (int i = 0; i < {N}; i++) {{\n"
        "    const uint8_t code = (uint8_t)x[i];\n"
        "    x[i] = (*t[code / {M}])[code % {M}];\n"
        "  }}\n"
        "  return x;"
    )
    return Portable(f"{{V}} x, {', '.join(f'{{T}} {t}' for t in tables)}", body)


LOOKUP4 = TableUnit("lookup4", 64)
LOOKUP16 = TableUnit("lookup16", 16)

PRIMITIVES = {
    # Bytes, as numbers without a sign, by the entries of a table of 256 in 4 vectors of 64 or 16 of 16.
    "lookup4": Primitive(5, "given"),
    "lookup16": Primitive(17, "given"),
}
PORTABLE = {"lookup4": _looked_up(4), "lookup16": _looked_up(16)}
