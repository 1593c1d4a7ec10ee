"""The code of a shared library as an object, for linking it into a static program.

A bundle that was saved without its object still has its library.  What a loader would map becomes one section, and
the library's dynamic relocations become expressions that the linker resolves.  Format: ELF (System V ABI), with the
relocation types of the processors' supplements.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tenon.errors import ToolchainError
from tenon.machine.targets import Target
from tenon.machine.toolchain.compiler import Compiler

_LOAD, _THREAD_LOCAL = 1, 7
"""Types of program headers."""
_RELA, _REL, _DYNSYM, _ALLOC = 4, 9, 11, 0x2
"""Types of sections, and the flag of those that are loaded."""
_UNDEFINED, _FUNCTION = 0, 2

_RELATIVE, _SYMBOL, _SLOT = "relative", "symbol", "slot"
_RELOCATIONS = {
    3: {8: _RELATIVE, 1: _SYMBOL, 6: _SLOT, 7: _SLOT},  # i386
    40: {23: _RELATIVE, 2: _SYMBOL, 21: _SLOT, 22: _SLOT},  # Arm
    62: {8: _RELATIVE, 1: _SYMBOL, 6: _SYMBOL, 7: _SYMBOL},  # x86-64
    183: {1027: _RELATIVE, 257: _SYMBOL, 1025: _SYMBOL, 1026: _SYMBOL},  # AArch64
    243: {3: _RELATIVE, 1: _SYMBOL, 2: _SYMBOL, 5: _SYMBOL},  # RISC-V
}
"""By e_machine: relocation types that add the address of the library, that add the address of a symbol, and that take
the address of a symbol in place of what is there."""

_IMAGE = "tenon_library_image"
_PAGE = 4096


class _DynamicSymbol(NamedTuple):
    name: str
    address: int
    function: bool
    defined: bool


@dataclass(frozen=True)
class _Library:
    """``words`` are expressions for the pointers in ``image``, by their offsets."""

    image: bytes
    symbols: tuple[_DynamicSymbol, ...]
    words: dict[int, str]
    wide: bool


def object_of_library(compiler: Compiler, target: Target, library: bytes, needed: Collection[str]) -> bytes:
    """An object that defines what the shared library exports; of what it imports, all that is not ``needed`` may stay
    undefined.  Raises ToolchainError for a library that is damaged, or of a processor that is not supported."""
    try:
        read = _read(library)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ToolchainError(f"damaged shared library: {error}") from error
    lines = "".join(json.dumps(f"{line}\n") for line in _assembly(read, needed))
    source = f"/* {hashlib.sha256(library).hexdigest()} */\n__asm__({lines});\n"
    return compiler.compile({"library.c": source.encode(), "image.bin": read.image}, "library.c", target)


def _assembly(library: _Library, needed: Collection[str]) -> Iterator[str]:
    word, size = (".quad", 8) if library.wide else (".long", 4)
    yield '.section .tenon_library,"awx",%progbits'
    yield f".balign {_PAGE}"
    yield f"{_IMAGE}:"
    at = 0
    for offset, expression in sorted(library.words.items()):
        if offset > at:
            yield f'.incbin "image.bin", {at}, {offset - at}'
        yield f"{word} {expression}"
        at = offset + size
    if at < len(library.image):
        yield f'.incbin "image.bin", {at}, {len(library.image) - at}'
    for symbol in library.symbols:
        if symbol.defined:
            yield f".globl {symbol.name}"
            yield f".type {symbol.name}, {'%function' if symbol.function else '%object'}"
            yield f".set {symbol.name}, {_IMAGE} + {symbol.address}"
        elif symbol.name not in needed:
            yield f".weak {symbol.name}"
    yield ".text"


def _read(content: bytes) -> _Library:
    if content[:4] != b"\x7fELF":
        raise ToolchainError("the library is no ELF file")
    wide, order = content[4] == 2, "<" if content[5] == 1 else ">"
    machine = struct.unpack_from(f"{order}H", content, 18)[0]
    if machine not in _RELOCATIONS:
        raise ToolchainError(
            "a library for this processor cannot be linked into a program: save the bundle with its object "
            "(--emit manifest,weights,object)"
        )
    sections = list(_table(content, order, wide=wide, segments=False))
    symbols = [s for section in sections if section[1] == _DYNSYM for s in _symbols(content, sections, section, order)]
    image = _image(content, order, wide=wide)
    words: dict[int, str] = {}
    for section in sections:
        if section[1] in (_RELA, _REL) and section[2] & _ALLOC:
            words |= _words(content, section, order, machine, symbols, image)
    return _Library(image, tuple(s for s in symbols if s.name), words, wide)


def _table(content: bytes, order: str, *, wide: bool, segments: bool) -> Iterator[tuple[int, ...]]:
    """The program headers, or the section headers."""
    if wide:
        place, (size, count) = (
            (32 if segments else 40),
            struct.unpack_from(f"{order}HH", content, 54 if segments else 58),
        )
        layout = "IIQQQQQQ" if segments else "IIQQQQIIQQ"
    else:
        place, (size, count) = (
            (28 if segments else 32),
            struct.unpack_from(f"{order}HH", content, 42 if segments else 46),
        )
        layout = "IIIIIIII" if segments else "IIIIIIIIII"
    begin = struct.unpack_from(f"{order}{'Q' if wide else 'I'}", content, place)[0]
    for i in range(count):
        yield struct.unpack_from(order + layout, content, begin + i * size)


def _image(content: bytes, order: str, *, wide: bool) -> bytes:
    """The segments at their addresses."""
    image = bytearray()
    for row in _table(content, order, wide=wide, segments=True):
        kind, offset, address, stored, size = (row[i] for i in ((0, 2, 3, 5, 6) if wide else (0, 1, 2, 4, 5)))
        if kind == _THREAD_LOCAL:
            raise ToolchainError("a library with thread-local variables cannot be linked into a program")
        if kind == _LOAD:
            if offset + stored > len(content):
                raise ToolchainError("damaged shared library: a segment ends past the end of the file")
            image.extend(bytes(max(0, address + size - len(image))))
            image[address : address + stored] = content[offset : offset + stored]
    return bytes(image)


def _symbols(
    content: bytes, sections: list[tuple[int, ...]], section: tuple[int, ...], order: str
) -> Iterator[_DynamicSymbol]:
    """The dynamic symbols.  A section is name, type, flags, address, offset, size, link, info, alignment, entry."""
    names = sections[section[6]][4]
    for at in range(section[4], section[4] + section[5], section[9]):
        if content[4] == 2:
            name, info, _, home, address, _ = struct.unpack_from(f"{order}IBBHQQ", content, at)
        else:
            name, address, _, info, _, home = struct.unpack_from(f"{order}IIIBBH", content, at)
        text = content[names + name : content.index(b"\0", names + name)].decode()
        yield _DynamicSymbol(text, address, info & 15 == _FUNCTION, home != _UNDEFINED)


def _words(
    content: bytes, section: tuple[int, ...], order: str, machine: int, symbols: list[_DynamicSymbol], image: bytes
) -> dict[int, str]:
    wide, explicit = content[4] == 2, section[1] == _RELA
    layout = order + ("QQ" if wide else "II") + (("q" if wide else "i") if explicit else "")
    words: dict[int, str] = {}
    for at in range(section[4], section[4] + section[5], section[9]):
        offset, info, *given = struct.unpack_from(layout, content, at)
        kind = _RELOCATIONS[machine].get(info & 0xFFFFFFFF if wide else info & 0xFF)
        number = info >> (32 if wide else 8)
        if kind is None:
            raise ToolchainError(f"the library has a relocation of type {info & 0xFFFFFFFF} that cannot be linked")
        there = 0 if kind == _SLOT else struct.unpack_from(f"{order}{'q' if wide else 'i'}", image, offset)[0]
        addend = given[0] if given else there
        symbol = symbols[number]
        if kind == _RELATIVE:
            words[offset] = f"{_IMAGE} + {addend}"
        elif symbol.defined:
            words[offset] = f"{_IMAGE} + {symbol.address + addend}"
        else:
            words[offset] = f"{symbol.name} + {addend}"
    return words
