"""How many bytes of code and data an object, a library or a WebAssembly module holds.

Formats: ELF (System V ABI, 32 and 64 bits, little-endian) and the WebAssembly binary format 1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tenon.errors import ToolchainError

_ALLOC, _EXECUTE = 0x2, 0x4
_SYMTAB, _NOBITS = 2, 8
_FUNCTION = 2


@dataclass(frozen=True)
class Sizes:
    """Bytes.  ``data`` is what must be stored (constants, initial values), ``zeroed`` only exists at run time."""

    code: int
    data: int
    zeroed: int = 0
    functions: dict[str, int] = field(default_factory=dict)


def sizes(content: bytes) -> Sizes:
    """Raises ToolchainError if ``content`` is neither ELF nor WebAssembly, or is damaged."""
    try:
        if content[:4] == b"\x7fELF":
            return _elf(content)
        if content[:4] == b"\0asm":
            return _wasm(content)
    except (struct.error, IndexError, ValueError) as error:
        raise ToolchainError(f"damaged object file: {error}") from error
    raise ToolchainError("neither an ELF nor a WebAssembly file")


@dataclass(frozen=True)
class _Section:
    type: int
    flags: int
    offset: int
    size: int
    link: int


def _elf(content: bytes) -> Sizes:
    wide = content[4] == 2
    table, entry, count = (
        (*struct.unpack_from("<Q", content, 40), *struct.unpack_from("<HH", content, 58))
        if wide
        else (*struct.unpack_from("<I", content, 32), *struct.unpack_from("<HH", content, 46))
    )
    # name, type, flags, address, offset, size, link
    layout = "<IIQQQQI" if wide else "<IIIIIII"
    rows = (struct.unpack_from(layout, content, table + i * entry) for i in range(count))
    sections = [_Section(row[1], row[2], row[4], row[5], row[6]) for row in rows]
    stored = [s.offset + s.size for s in sections if s.type != _NOBITS]
    if max(stored, default=0) > len(content) or table + count * entry > len(content):
        raise ValueError("a section ends past the end of the file")
    loaded = [s for s in sections if s.flags & _ALLOC]
    code = sum(s.size for s in loaded if s.flags & _EXECUTE)
    zeroed = sum(s.size for s in loaded if s.type == _NOBITS)
    data = sum(s.size for s in loaded) - code - zeroed
    functions: dict[str, int] = {}
    for symbols in (s for s in sections if s.type == _SYMTAB):
        functions.update(_functions(content, symbols, sections[symbols.link], wide))
    return Sizes(code, data, zeroed, dict(sorted(functions.items())))


def _functions(content: bytes, symbols: _Section, strings: _Section, wide: bool) -> dict[str, int]:
    """name, value, size, info, ... in 32 bits; name, info, other, section, value, size in 64."""
    layout, width = ("<IBBHQQ", 24) if wide else ("<IIIBBH", 16)
    found = {}
    for at in range(symbols.offset, symbols.offset + symbols.size, width):
        row = struct.unpack_from(layout, content, at)
        info, size = (row[1], row[5]) if wide else (row[3], row[2])
        if info & 15 == _FUNCTION and size:
            start = strings.offset + row[0]
            found[content[start : content.index(b"\0", start)].decode()] = size
    return found


def _wasm(content: bytes) -> Sizes:
    code, data, at = 0, 0, 8
    while at < len(content):
        section = content[at]
        size, at = _leb128(content, at + 1)
        if at + size > len(content):
            raise ValueError("a section ends past the end of the file")
        code += size if section == 10 else 0
        data += size if section == 11 else 0
        at += size
    return Sizes(code, data)


def _leb128(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
