"""The C of a Glow bundle besides the networks': entry points, symbol table, configuration, instrumentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenon.compat.glow.header import MemoryRegions, Placeholder
from tenon.compat.glow.names import elements
from tenon.machine.kernel_ir.loops import Buffer
from tenon.machine.plan.program import Call, Region
from tenon.runtime.bundle import Bundle

_REGIONS = "uint8_t *constantWeight, uint8_t *mutableWeight, uint8_t *activations"


@dataclass(frozen=True)
class Entry:
    """An entry point: its name, the network that it runs, and where that one's regions begin in the bundle's."""

    name: str
    bundle: Bundle
    constant: int = 0
    mutable: int = 0


def source(
    name: str,
    entries: Sequence[Entry],
    regions: MemoryRegions,
    placeholders: Sequence[Placeholder],
    *,
    dynamic: bool,
    instrumented: bool,
) -> str:
    """The C file; it includes ``<name>.h``.  Empty if the networks' own entry points are all that is needed."""
    wrapped = [e for e in entries if e.name != e.bundle.name]
    texts = [_wrapper(e, instrumented) for e in wrapped]
    if dynamic:
        texts.append(_config(name, regions, placeholders))
    given = "const uint8_t *, uint8_t *, uint8_t *"
    functions = [f"int @({given});"]
    if instrumented:
        functions = [f"void @_profile({given}, int, int, int, int);", f"int @_profile_next({given}, int);"]
    declared = [function.replace("@", e.bundle.name) for e in wrapped for function in functions]
    return "\n".join([f'#include "{name}.h"', *declared, *texts, ""]) if texts else ""


def info(entries: Sequence[Entry]) -> str:
    """``instrument-ir.info``: what the numbers of kernels, kinds and operands stand for."""
    lines = []
    for entry in entries:
        for number, call in enumerate(entry.bundle.program.calls):
            read, written = _operands(call)
            lines += [f"ID   : {number}", f"Kind : {_kind(entry, call)} ({call.op})", f"Name : {call.layer}"]
            lines += [f"Inp[{i}] {f'{buffer.name}:':10} {_shape(buffer)}" for i, (buffer, _) in enumerate(read)]
            lines += [f"Out[{i}] {f'{buffer.name}:':10} {_shape(buffer)}" for i, (buffer, _) in enumerate(written)]
            lines.append("")
    return "\n".join([*lines, ""])


def _wrapper(entry: Entry, instrumented: bool) -> str:
    """The C function of an entry point.  A kernel call in a loop tells the addresses of the first iteration."""
    regions = f"constantWeight + {entry.constant}, mutableWeight + {entry.mutable}, activations"
    if not instrumented:
        return f"int {entry.name}({_REGIONS}) {{\n  return {entry.bundle.name}({regions});\n}}"
    body = []
    for number, call in enumerate(entry.bundle.program.calls):
        read, written = _operands(call)
        both = [*read, *written]
        addresses = ", ".join(_address(entry, region, offset) for _, (region, offset) in both)
        sizes = ", ".join(str(_bytes(buffer)) for buffer, _ in both)
        told = f"({number}, {_kind(entry, call)}, {len(read)}, {len(written)}, addresses, sizes);"
        body += [
            f"  case {number}: {{",
            f"    uint8_t *addresses[] = {{{addresses}}};",
            f"    int sizes[] = {{{sizes}}};",
            f"    glow_instrument_before{told}",
            f"    {entry.bundle.name}_profile({regions}, {number}, 0, 1, 0);",
            f"    glow_instrument_after{told}",
            "    break;",
            "  }",
        ]
    following = f"{entry.bundle.name}_profile_next({regions}, "
    loop = f"  for (int call = {following}-1); call >= 0; call = {following}call)) switch (call) {{"
    return "\n".join([f"int {entry.name}({_REGIONS}) {{", loop, *body, "  }", "  return GLOW_SUCCESS;", "}"])


_Operand = tuple[Buffer, tuple[Region, int]]


def _operands(call: Call) -> tuple[list[_Operand], list[_Operand]]:
    """The buffers that a kernel reads and those that it writes, each with its place; scratch memory is neither."""
    places = [(place.region, place.offset) for place in call.args]
    pairs = list(zip(call.kernel.params, places, strict=True))
    return [p for p in pairs if p[0].space == "const"], [p for p in pairs if p[0].space == "global"]


def _kind(entry: Entry, call: Call) -> int:
    """Kinds are numbered in the order in which operators first occur."""
    return list(dict.fromkeys(c.op for c in entry.bundle.program.calls)).index(call.op)


def _address(entry: Entry, region: Region, offset: int) -> str:
    start = {Region.CONSTANT: entry.constant, Region.MUTABLE: entry.mutable}.get(region, 0)
    return f"{region} + {start + offset}"


def _bytes(buffer: Buffer) -> int:
    count = buffer.strides[0] * buffer.shape[0].const if buffer.shape else 1
    return count * buffer.type.bytes


def _shape(buffer: Buffer) -> str:
    return f"{buffer.type}<{' x '.join(map(repr, buffer.shape))}>"


def _config(name: str, regions: MemoryRegions, placeholders: Sequence[Placeholder]) -> str:
    rows = [f'  {{"{p.name}", {p.offset}, {elements(p.port)}, 1}},' for p in placeholders]
    return "\n".join(
        [
            f"static const SymbolTableEntry {name}SymbolTable[] = {{",
            *(rows or ['  {"", 0, 0, 1},']),
            "};",
            f"BundleConfig {name}_config = {{",
            f"  {regions.constant}, {regions.mutable}, {regions.activations}, {regions.alignment}, {len(rows)},",
            f"  {name}SymbolTable,",
            "};",
        ]
    )
