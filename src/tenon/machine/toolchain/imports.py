"""Functions that an object file calls and does not define, as ``nm --undefined-only`` lists them.

Format: ELF (System V ABI, 32 and 64 bits, of both byte orders).
"""

from __future__ import annotations

import struct

from tenon.errors import ToolchainError
from tenon.machine.toolchain import elf

_UNDEFINED = 0


def imported(content: bytes) -> tuple[str, ...]:
    """The undefined symbols of an ELF object, sorted.  Raises ToolchainError for another or a damaged file."""
    if content[:4] != elf.MAGIC:
        raise ToolchainError("not an ELF object")
    try:
        sections, _ = elf.sections(content)
        undefined = {s.name for s in elf.symbols(content, sections) if s.section == _UNDEFINED}
        return tuple(sorted(undefined - {""}))
    except (struct.error, IndexError, ValueError) as error:
        raise ToolchainError(f"damaged object file: {error}") from error
