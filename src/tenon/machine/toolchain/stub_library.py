"""Stand-ins for the C library's shared libraries: what a linker needs to see of them, and nothing else.

Linked against them, a library names the C library among those that it needs, as loaders want it (Android's finds
symbols in no others), without the C library of the target being there.  Format: ELF (System V ABI).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_SHARED, _STRTAB, _DYNAMIC, _DYNSYM, _ABSOLUTE = 3, 3, 6, 11, 0xFFF1
_SECTIONS = (".dynsym", ".dynstr", ".dynamic")
"""GNU ld finds them by these names."""
_GLOBAL_FUNCTION = 1 << 4 | 2
_DT_STRTAB, _DT_SYMTAB, _DT_SONAME = 5, 6, 14


def stub_library(like: bytes, soname: str, functions: Sequence[str]) -> bytes:
    """A shared library called ``soname`` that defines ``functions``, for the machine of the ELF object ``like``."""
    wide, order = like[4] == 2, "<" if like[5] == 1 else ">"
    names, at = b"\0", dict[str, int]()
    for text in (soname, *functions, *_SECTIONS):
        at[text] = len(names)
        names += text.encode() + b"\0"
    head, row = (64, 64) if wide else (52, 40)

    def symbol(name: int, info: int, section: int) -> bytes:
        if wide:
            return struct.pack(order + "IBBHQQ", name, info, 0, section, 0, 0)
        return struct.pack(order + "IIIBBH", name, 0, 0, info, 0, section)

    symbols = symbol(0, 0, 0) + b"".join(symbol(at[name], _GLOBAL_FUNCTION, _ABSOLUTE) for name in functions)
    first = head + len(symbols) + len(names)
    tags = ((_DT_SONAME, at[soname]), (_DT_STRTAB, head + len(symbols)), (_DT_SYMTAB, head), (0, 0))
    padding = bytes(-first % 8)
    dynamic = b"".join(struct.pack(order + ("qQ" if wide else "iI"), tag, value) for tag, value in tags)
    each = len(symbol(0, 0, 0))
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0),  # type, flags, offset, size, link, info, alignment, size of an entry
        (_DYNSYM, 2, head, len(symbols), 2, 1, 8, each),
        (_STRTAB, 2, head + len(symbols), len(names), 0, 0, 1, 0),
        (_DYNAMIC, 2, first + len(padding), len(dynamic), 2, 0, 8, 16 if wide else 8),
    ]
    table = b"".join(
        struct.pack(
            order + ("IIQQQQIIQQ" if wide else "IIIIIIIIII"), at.get(name, 0), type, flags, offset, offset, size, *rest
        )
        for name, (type, flags, offset, size, *rest) in zip(("", *_SECTIONS), sections, strict=True)
    )
    body = symbols + names + padding + dynamic
    machine, flags = like[18:20], like[48:52] if wide else like[36:40]
    version = struct.pack(order + "I", 1)
    places = struct.pack(order + ("QQQ" if wide else "III"), 0, 0, head + len(body))
    sizes = struct.pack(order + "HHHHHH", head, 0, 0, row, len(sections), 2)
    ident = like[:16] + struct.pack(order + "H", _SHARED) + machine + version + places + flags + sizes
    return ident + body + table
