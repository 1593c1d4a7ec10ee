"""The tables of ELF files (System V ABI, 32 and 64 bits, of both byte orders): sections and symbols."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAGIC = b"\x7fELF"
_SYMTAB = 2


@dataclass(frozen=True)
class ElfSection:
    """A row of the table of sections.  ``link`` is the number of the section with the names of its symbols."""

    type: int
    flags: int
    offset: int
    size: int
    link: int


@dataclass(frozen=True)
class ElfSymbol:
    """A row of a table of symbols.  ``kind`` is the type of what it stands for, ``section`` where that is defined."""

    content: bytes
    start: int
    kind: int
    size: int
    section: int

    @property
    def name(self) -> str:
        """Raises ValueError if the file is damaged."""
        return self.content[self.start : self.content.index(b"\0", self.start)].decode()


def sections(content: bytes) -> tuple[list[ElfSection], int]:
    """The sections of a file, and where their table ends.  Raises struct.error or IndexError if it is damaged."""
    wide, order = _form(content)
    table, entry, count = (
        (*struct.unpack_from(f"{order}Q", content, 40), *struct.unpack_from(f"{order}HH", content, 58))
        if wide
        else (*struct.unpack_from(f"{order}I", content, 32), *struct.unpack_from(f"{order}HH", content, 46))
    )
    # name, type, flags, address, offset, size, link
    layout = order + ("IIQQQQI" if wide else "IIIIIII")
    rows = (struct.unpack_from(layout, content, table + i * entry) for i in range(count))
    return [ElfSection(row[1], row[2], row[4], row[5], row[6]) for row in rows], table + count * entry


def symbols(content: bytes, sections: Sequence[ElfSection]) -> Iterator[ElfSymbol]:
    """The symbols of all tables of symbols.  Raises struct.error or IndexError if the file is damaged."""
    wide, order = _form(content)
    # name, info, other, section, value, size in 64 bits; name, value, size, info, other, section in 32
    layout, width = (order + "IBBHQQ", 24) if wide else (order + "IIIBBH", 16)
    for table in (s for s in sections if s.type == _SYMTAB):
        names = sections[table.link].offset
        for at in range(table.offset, table.offset + table.size, width):
            row = struct.unpack_from(layout, content, at)
            info, section, size = (row[1], row[3], row[5]) if wide else (row[3], row[5], row[2])
            yield ElfSymbol(content, names + row[0], info & 15, size, section)


def _form(content: bytes) -> tuple[bool, str]:
    """Whether it is of 64 bits, and the sign of its byte order for ``struct``."""
    return content[4] == 2, "<" if content[5] == 1 else ">"
