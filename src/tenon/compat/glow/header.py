"""The header of a bundle with Glow's static or dynamic API (as of ``lib/LLVMIRCodeGen/BundleSaver.cpp``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenon import __version__
from tenon.compat.glow.names import elements, type_text
from tenon.machine.plan.program import Port

_RULE = "// ---------------------------------------------------------------"

_TEMPLATE = """\
// Bundle API auto-generated header file. Do not edit!
// Glow Tools version: Tenon {version}

#ifndef _GLOW_BUNDLE_{upper}_H
#define _GLOW_BUNDLE_{upper}_H

#include <stdint.h>

{rule}
//                       Common definitions
{rule}
#ifndef _GLOW_BUNDLE_COMMON_DEFS
#define _GLOW_BUNDLE_COMMON_DEFS

// The result of an entry point that has run.
#define GLOW_SUCCESS 0
{common}
#endif

{rule}
//                          Bundle API
{rule}
{model}
// NOTE: placeholders lie in the "mutableWeight" region, at offsets from its start.
{rule}
#ifdef __cplusplus
extern "C" {{
#endif

{api}{extra}
#ifdef __cplusplus
}}
#endif
#endif
"""
_STATIC = """
// Aligns a static array.
#define GLOW_MEM_ALIGN(size)  __attribute__((aligned(size)))

// The address of a placeholder, from that of the mutable region and the placeholder's offset.
#define GLOW_GET_ADDR(mutableBaseAddr, placeholderOff)  (((uint8_t*)(mutableBaseAddr)) + placeholderOff)
"""
_DYNAMIC = """
// An entry of a bundle's symbol table: a placeholder's name, its offset in the mutable region, its number of elements,
// and its kind, which is 1.
typedef struct SymbolTableEntry {
  const char *name;
  uint64_t offset;
  uint64_t size;
  char kind;
} SymbolTableEntry;

// The sizes and the alignment of a bundle's regions in bytes, and its symbol table.
typedef struct BundleConfig {
  uint64_t constantWeightVarsMemSize;
  uint64_t mutableWeightVarsMemSize;
  uint64_t activationsMemSize;
  uint64_t alignment;
  uint64_t numSymbols;
  const SymbolTableEntry *symbolTable;
} BundleConfig;
"""
INSTRUMENTATION = """
// With -instrument-ir the bundle calls these two functions, which the program defines (with C linkage), before and
// after each kernel: its number from 0 on, its kind, how many operands it reads and writes, and the addresses and the
// sizes in bytes of these operands, first of those that are read. "instrument-ir.info" says what the numbers stand for.
void glow_instrument_before(int id, int kind, int opInp, int opOut, uint8_t **opAddr, int *opSize);
void glow_instrument_after(int id, int kind, int opInp, int opOut, uint8_t **opAddr, int *opSize);
"""


Row = tuple[str, str, int, int, int]
"""Name, type, elements, bytes and offset of a tensor."""


@dataclass(frozen=True)
class Placeholder:
    """An input or output: its legal name and its offset in the bundle's mutable region."""

    name: str
    offset: int
    port: Port


@dataclass(frozen=True)
class MemoryRegions:
    """Bytes of a bundle's regions, their alignment, and the least that the activations could need."""

    constant: int
    mutable: int
    activations: int
    alignment: int
    bound: int


def header(
    name: str,
    entries: Sequence[str],
    regions: MemoryRegions,
    placeholders: Sequence[Placeholder],
    *,
    dynamic: bool,
    instrumented: bool = False,
    constants: Sequence[Row] = (),
) -> str:
    """The text of ``<name>.h``; ``constants`` are those to list in a comment."""
    api = _dynamic_api(name) if dynamic else _static_api(name.upper(), regions, placeholders)
    return _TEMPLATE.format(
        version=__version__,
        upper=name.upper(),
        rule=_RULE,
        common=_DYNAMIC if dynamic else _STATIC,
        model=_model(name, regions, placeholders, constants),
        api=api + "".join(map(_prototype, entries)),
        extra=INSTRUMENTATION if instrumented else "",
    )


def _model(
    name: str,
    regions: MemoryRegions,
    placeholders: Sequence[Placeholder],
    constants: Sequence[Row],
) -> str:
    rows = [(p.name, type_text(p.port), elements(p.port), p.port.type.nbytes, p.offset) for p in placeholders]
    efficiency = regions.bound / regions.activations if regions.activations else 1.0
    lines = [
        f'// Model name: "{name}"',
        f"// Total data size: {regions.constant + regions.mutable + regions.activations} (bytes)",
        f"// Activations allocation efficiency: {efficiency:.4f}",
        "// Placeholders:",
        *(line for row in rows for line in _described(*row)),
    ]
    if constants:
        lines += ["//", "// Constants:", *(line for row in constants for line in _described(*row))]
    return "\n".join([*lines, "//"])


def _described(name: str, type: str, count: int, size: int, offset: int) -> list[str]:
    return [
        "//",
        f'//   Name: "{name}"',
        f"//   Type: {type}",
        f"//   Size: {count} (elements)",
        f"//   Size: {size} (bytes)",
        f"//   Offset: {offset} (bytes)",
    ]


def _dynamic_api(name: str) -> str:
    return f"// Bundle memory configuration (memory layout).\nextern BundleConfig {name}_config;\n\n"


def _static_api(prefix: str, regions: MemoryRegions, placeholders: Sequence[Placeholder]) -> str:
    width = max((len(p.name) for p in placeholders), default=0)
    return "\n".join(
        [
            "// Placeholder address offsets within mutable buffer (bytes).",
            *(f"#define {prefix}_{p.name:{width}}  {p.offset}" for p in placeholders),
            "",
            "// Memory sizes (bytes).",
            f"#define {prefix}_CONSTANT_MEM_SIZE     {regions.constant}",
            f"#define {prefix}_MUTABLE_MEM_SIZE      {regions.mutable}",
            f"#define {prefix}_ACTIVATIONS_MEM_SIZE  {regions.activations}",
            "",
            "// Memory alignment (bytes).",
            f"#define {prefix}_MEM_ALIGN  {regions.alignment}",
            "\n",
        ]
    )


def _prototype(entry: str) -> str:
    return (
        "// Runs the network once.  Returns GLOW_SUCCESS.\n"
        f"int {entry}(uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations);\n"
    )
