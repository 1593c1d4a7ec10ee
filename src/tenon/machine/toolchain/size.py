"""How many bytes of code and data an object, a library or a WebAssembly module holds.

Formats: ELF (System V ABI, 32 and 64 bits, of both byte orders), COFF and PE, Mach-O (64 bits), and the WebAssembly
binary format 1.  Functions are listed for ELF.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from tenon.errors import ToolchainError
from tenon.machine.toolchain import elf

_ALLOC, _EXECUTE = 0x2, 0x4
_NOBITS = 8
_FUNCTION = 2
_COFF_CODE, _COFF_INITIALISED, _COFF_UNINITIALISED, _COFF_REMOVED = 0x20, 0x40, 0x80, 0x02000800
_LC_SYMTAB, _LC_SEGMENT_64, _MACHO_ZEROFILL, _MACHO_INSTRUCTIONS = 0x2, 0x19, 1, 0x80000400


@dataclass(frozen=True)
class Sizes:
    """Bytes.  ``data`` is what must be stored (constants, initial values), ``zeroed`` only exists at run time."""

    code: int
    data: int
    zeroed: int = 0
    functions: dict[str, int] = field(default_factory=dict)


def sizes(content: bytes) -> Sizes:
    """Raises ToolchainError if ``content`` is of none of these formats, or is damaged."""
    try:
        if content[:4] == elf.MAGIC:
            return _elf(content)
        if content[:4] == b"\0asm":
            return _wasm(content)
        if content[:4] == b"\xcf\xfa\xed\xfe":
            return _macho(content)
        if content[:2] == b"MZ":
            return _coff(content, struct.unpack_from("<I", content, 60)[0] + 4)
        if content[:2] in (b"\x64\x86", b"\x64\xaa"):  # x86-64, AArch64
            return _coff(content, 0)
    except (struct.error, IndexError, ValueError) as error:
        raise ToolchainError(f"damaged object file: {error}") from error
    raise ToolchainError("not an ELF, COFF, Mach-O or WebAssembly file")


def _elf(content: bytes) -> Sizes:
    sections, end = elf.sections(content)
    stored = [s.offset + s.size for s in sections if s.type != _NOBITS]
    if max(stored, default=0) > len(content) or end > len(content):
        raise ValueError("a section ends past the end of the file")
    loaded = [s for s in sections if s.flags & _ALLOC]
    code = sum(s.size for s in loaded if s.flags & _EXECUTE)
    zeroed = sum(s.size for s in loaded if s.type == _NOBITS)
    data = sum(s.size for s in loaded) - code - zeroed
    symbols = (s for s in elf.symbols(content, sections) if s.kind == _FUNCTION and s.size)
    functions = {s.name: s.size for s in symbols}
    return Sizes(code, data, zeroed, dict(sorted(functions.items())))


def _coff(content: bytes, at: int) -> Sizes:
    """Section headers: name, virtual size and address, size and offset in the file, ..., characteristics."""
    count, optional = struct.unpack_from("<H", content, at + 2)[0], struct.unpack_from("<H", content, at + 16)[0]
    table, symbols = struct.unpack_from("<II", content, at + 8)
    if table:  # the table of strings, which follows that of symbols, begins with its length
        strings = table + 18 * symbols
        if strings + struct.unpack_from("<I", content, strings)[0] > len(content):
            raise ValueError("the symbols end past the end of the file")
    code = data = zeroed = 0
    for i in range(count):
        header = struct.unpack_from("<8sIIIIIIHHI", content, at + 20 + optional + 40 * i)
        size, offset, kind = header[3], header[4], header[9]
        if not kind & _COFF_UNINITIALISED and offset + size > len(content):
            raise ValueError("a section ends past the end of the file")
        if kind & _COFF_REMOVED:
            continue
        code += size if kind & _COFF_CODE else 0
        data += size if kind & _COFF_INITIALISED and not kind & _COFF_CODE else 0
        zeroed += size if kind & _COFF_UNINITIALISED else 0
    return Sizes(code, data, zeroed)


def _macho(content: bytes) -> Sizes:
    """The sections of all LC_SEGMENT_64 commands."""
    code = data = zeroed = 0
    at = 32
    for _ in range(struct.unpack_from("<I", content, 16)[0]):
        command, length = struct.unpack_from("<II", content, at)
        for i in range(struct.unpack_from("<I", content, at + 64)[0] if command == _LC_SEGMENT_64 else 0):
            row = struct.unpack_from("<16s16sQQIIIII", content, at + 72 + 80 * i)
            size, offset, flags = row[3], row[4], row[8]
            empty = flags & 0xFF == _MACHO_ZEROFILL
            if not empty and offset + size > len(content):
                raise ValueError("a section ends past the end of the file")
            if empty:
                zeroed += size
            elif flags & _MACHO_INSTRUCTIONS:
                code += size
            else:
                data += size
        if command == _LC_SYMTAB and sum(struct.unpack_from("<II", content, at + 16)) > len(content):
            raise ValueError("the symbols end past the end of the file")
        if length < 8:
            raise ValueError("a load command is empty")
        at += length
    return Sizes(code, data, zeroed)


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
