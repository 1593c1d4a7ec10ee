"""Many bytes looked up at once in a table of 256 that registers hold, in C.

AVX-512 with VBMI selects any of 128 bytes; without it, any of 64 words, of which the right byte is taken.  64-bit ARM
selects any of 64 bytes, and keeps what it had where an index is beyond them.
"""

from __future__ import annotations

from tenon.machine.codegen.c.alternatives import first_of

TABLES = {"lookup4": 4, "lookup16": 16}
"""How many vectors the table of an operation has."""

_BYTES = "typedef char bytes __attribute__((vector_size(64)));\n"
_VBMI = (
    _BYTES + "  const {T} low = ({T})%s;\n"
    "  const {T} high = ({T})%s;\n"
    "  const {T} upper = ({T})((bytes)wide.v < 0);\n"
    "  wide.v = (low & ~upper) | (high & upper);"
)
_WORDS = (
    "typedef short words __attribute__((vector_size(64)));\n"
    "  typedef unsigned short uwords __attribute__((vector_size(64)));\n"
    "  uwords found[2];\n"
    "  for (int odd = 0; odd < 2; odd++) {\n"
    "    const uwords code = odd ? (uwords)wide.v >> 8 : (uwords)wide.v & 255;\n"
    "    const uwords low = (uwords)%s;\n"
    "    const uwords high = (uwords)%s;\n"
    "    const uwords upper = (uwords)(code > 127);\n"
    "    found[odd] = ((low & ~upper) | (high & upper)) >> (code & 1) * 8;\n"
    "  }\n"
    "  wide.v = ({T})((found[0] & 255) | found[1] << 8);"
)
_EACH = (
    "for (int i = 0; i < %d; i++) {\n"
    "    const uint8_t code = (uint8_t)x[i];\n"
    "    x[i] = (*t[code / %d])[code %% %d];\n"
    "  }\n"
    "  return x;"
)


def _selected(builtins: tuple[str, str], code: str, vector: str, body: str) -> tuple[str, str]:
    """``body`` with two selections from a pair of vectors each, as clang and as GCC spell them."""

    def both(form: str) -> tuple[str, ...]:
        return tuple(form.format(v=vector, code=code, a=f"t{i}", b=f"t{i + 1}") for i in (0, 2))

    clang = builtins[0] + "(({v}){a}, ({v})({code}), ({v}){b})"
    gcc = builtins[1] + "(({v})({code}), ({v}){a}, ({v}){b}, -1)"
    return body % both(clang), body % both(gcc)


def helper(name: str, key: str, vector: str, table: str, lanes: int, entries: int) -> str:
    """The function ``key`` for a ``vector`` of ``lanes`` bytes, and for a ``table`` in vectors of ``entries`` bytes."""
    tables = [f"t{i}" for i in range(TABLES[name])]
    portable = f"const {table} *const t[] = {{{', '.join('&' + t for t in tables)}}};\n  " + _EACH % (
        lanes,
        entries,
        entries,
    )
    native = _on_arm(tables, vector) if name == "lookup16" else _on_x86(vector, table, lanes, entries)
    text = first_of(native, portable)
    return f"TENON_INLINE {vector} {key}({vector} x, {', '.join(f'{table} {t}' for t in tables)}) {{\n{text}\n}}"


def _on_x86(vector: str, table: str, lanes: int, entries: int) -> list[tuple[str, str]]:
    bytes = _selected(
        ("__builtin_ia32_vpermi2varqi512", "__builtin_ia32_vpermt2varqi512_mask"), "wide.v", "bytes", _VBMI
    )
    words = _selected(
        ("__builtin_ia32_vpermi2varhi512", "__builtin_ia32_vpermt2varhi512_mask"), "code >> 1", "words", _WORDS
    )
    wide = f"union {{ {table} v; {vector} part[{entries // lanes}]; }} wide = {{.part = {{x}}}};\n  "
    found = []
    for feature, bodies in (("AVX512VBMI", bytes), ("AVX512BW", words)):
        for compiler, body in zip((" && defined(__clang__)", ""), bodies, strict=True):
            text = wide + body.replace("{T}", table) + "\n  return wide.part[0];"
            found.append((f"defined(__{feature}__){compiler}", text))
    return found


def _on_arm(tables: list[str], vector: str) -> list[tuple[str, str]]:
    """Four selections from 64 bytes each, whose registers are neighbours."""
    first = 16
    pinned = "".join(
        f'register const {vector} r{i} __asm__("v{first + i}") = {table};\n  ' for i, table in enumerate(tables)
    )
    steps = []
    for i in range(0, len(tables), 4):
        how = "tbx" if i else "tbl"
        steps += ["sub %1.16b, %1.16b, %[step].16b"] if i else []
        steps.append(f"{how} %0.16b, {{v{first + i}.16b-v{first + i + 3}.16b}}, %1.16b")
    inputs = ", ".join(f'"w"(r{i})' for i in range(len(tables)))
    assembly = "\\n\\t".join(steps)
    body = (
        f"{pinned}{vector} found, step = x - x + 64;\n"
        f'  __asm__("{assembly}" : "=&w"(found), "+w"(x) : [step] "w"(step), {inputs});\n  return found;'
    )
    return [("defined(__GNUC__) && defined(__aarch64__)", body)]
