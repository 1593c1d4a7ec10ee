"""Functions that an object file calls and does not define, as ``nm --undefined-only`` lists them.

Format: ELF (System V ABI, 32 and 64 bits, of both byte orders).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tenon.errors import ToolchainError

_SYMTAB, _UNDEFINED = 2, 0


def imported(content: bytes) -> tuple[str, ...]:
    """The undefined symbols of an ELF object, sorted.  Raises ToolchainError for another or a damaged file."""
    if content[:4] != b"\x7fELF":
        raise ToolchainError("not an ELF object")
    try:
        return tuple(sorted({name for name in _undefined(content) if name}))
    except (struct.error, IndexError, ValueError) as error:
        raise ToolchainError(f"damaged object file: {error}") from error


def _undefined(content: bytes) -> Iterator[str]:
    wide, order = content[4] == 2, "<" if content[5] == 1 else ">"
    table, entry, count = (
        (*struct.unpack_from(f"{order}Q", content, 40), *struct.unpack_from(f"{order}HH", content, 58))
        if wide
        else (*struct.unpack_from(f"{order}I", content, 32), *struct.unpack_from(f"{order}HH", content, 46))
    )
    # name, type, flags, address, offset, size, link, ...
    layout = order + ("IIQQQQI" if wide else "IIIIIII")
    sections = [struct.unpack_from(layout, content, table + i * entry) for i in range(count)]
    symbol, width = (order + "IBBHQQ", 24) if wide else (order + "IIIBBH", 16)
    for section in sections:
        strings = sections[section[6]][4] if section[1] == _SYMTAB else 0
        for at in range(section[4], section[4] + section[5], width) if section[1] == _SYMTAB else ():
            row = struct.unpack_from(symbol, content, at)
            if (row[3] if wide else row[5]) == _UNDEFINED:
                start = strings + row[0]
                yield content[start : content.index(b"\0", start)].decode()
