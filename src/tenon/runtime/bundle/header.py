"""The C header of a bundle: sizes, offsets and entry points as constants."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType

from tenon.machine.codegen.backend import EntryPoint
from tenon.machine.plan.program import ALIGNMENT, Port, Program
from tenon.network.graph.preprocessing import Preprocessing
from tenon.runtime.bundle.header_macros import (
    image_macros,
    initial_macros,
    quantisation_macros,
    size_macros,
    state_comment,
)
from tenon.runtime.bundle.library_calls import library_comment
from tenon.runtime.bundle.manifest import LibraryCalls
from tenon.runtime.bundle.names import unique
from tenon.runtime.bundle.static_bounds import Instructions, StaticBounds

NETWORK_MACROS = (
    "CONSTANT_MEM_SIZE",
    "MUTABLE_MEM_SIZE",
    "ACTIVATIONS_MEM_SIZE",
    "ACTIVATIONS_LOWER_BOUND",
    "PEAK_MEM_SIZE",
    "MEM_ALIGN",
    "STACK_SIZE",
    "MAX_INSTRUCTIONS",
    "CALL_INSTRUCTIONS",
    "LIBM_FUNCTIONS",
    "INPUTS",
    "OUTPUTS",
    "CALLS",
    "MAX_THREADS",
    "BINDINGS",
    "H",
)

_DEFINED = re.compile(r"^#define (\w+)", re.MULTILINE)

TENSOR_MACROS = (
    "",
    "_BYTES",
    "_ELEMENTS",
    "_SCALE",
    "_ZERO_POINT",
    "_IMAGE_HEIGHT",
    "_IMAGE_WIDTH",
    "_IMAGE_CHANNELS",
    "_IMAGE_CHANNELS_LAST",
    "_IMAGE_BGR",
    "_IMAGE_MEAN",
    "_IMAGE_SCALE",
    "_LEAST",
    "_MOST",
    "_STEP",
    "_STRIDES",
)
"""Endings of the names of the macros of an input or output."""

_STRINGS = ": strings in UTF-8 along the last axis, zeros behind the end of a shorter one"

_SHARED = """\
#ifndef TENON_MEM_ALIGN
/* Aligns a static array: TENON_MEM_ALIGN(64) uint8_t memory[SIZE];  For GCC and Clang: define it before for others. */
#define TENON_MEM_ALIGN(size) __attribute__((aligned(size)))
#endif
#ifndef TENON_GET_ADDR
/* The address of an input or output in the mutable region. */
#define TENON_GET_ADDR(base, offset) (((uint8_t *)(base)) + (offset))
#endif
"""


def header(
    program: Program,
    entry_points: Sequence[Sequence[EntryPoint]],
    *,
    more: Sequence[Program] = (),
    banner: str = "",
    preprocessing: Mapping[str, Preprocessing] = MappingProxyType({}),
) -> str:
    """The text of ``<name>.h`` (C99 and C++), which declares the ``entry_points`` of each program.

    ``more`` are the programs of further bindings, with their own entry points; the regions of ``program`` suffice for
    all. ``banner`` is the comment at the top, ``preprocessing`` that of inputs that take images, by name.
    """
    prefix = program.name.upper()
    memory = program.memory
    taken = {f"{p.name.upper()}_{word}".removeprefix(f"{prefix}_") for p in (program, *more) for word in NETWORK_MACROS}
    declared, *others_declared = (
        _declarations(each, own) for each, own in zip((program, *more), entry_points, strict=True)
    )
    others = [
        _binding(other, text, set(NETWORK_MACROS), preprocessing)
        for other, text in zip(more, others_declared, strict=True)
    ]
    taken |= {word.removeprefix(f"{prefix}_") for block in others for word in _DEFINED.findall(block)}
    define = [
        "/* Bytes of the three regions that the caller supplies. */",
        f"#define {prefix}_CONSTANT_MEM_SIZE {memory.constant}",
        f"#define {prefix}_MUTABLE_MEM_SIZE {memory.mutable}",
        f"#define {prefix}_ACTIVATIONS_MEM_SIZE {memory.activations}",
        "/* The least that any placement of the activations could need. */",
        f"#define {prefix}_ACTIVATIONS_LOWER_BOUND {memory.bound}",
        "/* All the memory that must be writable: the mutable region and the activations. */",
        f"#define {prefix}_PEAK_MEM_SIZE {memory.mutable + memory.activations}",
        "/* Every region starts at a multiple of this. */",
        f"#define {prefix}_MEM_ALIGN {ALIGNMENT}",
    ]
    blocks = [
        f"#ifndef {prefix}_H\n#define {prefix}_H\n\n#include <stdint.h>\n",
        "\n".join(define) + "\n",
        *_ports(program, taken, preprocessing),
        _SHARED,
        *([_several(program, more)] if more else []),
        declared,
        *others,
        f"#endif /* {prefix}_H */\n",
    ]
    return banner + "\n".join(blocks)


def with_bounds(text: str, programs: Sequence[Program], bounds: StaticBounds | None) -> str:
    """A header with the bounds of the entry points, which are known only after the compilation."""
    for program in programs if bounds else ():
        assert bounds
        lines = [*_stack(program, bounds), *_instructions(program, bounds.instructions.get(program.name)), ""]
        text = _after_sizes(text, program, "\n".join(lines))
    return text


def with_library_calls(text: str, program: Program, calls: LibraryCalls, possible: Sequence[str]) -> str:
    """A header with the functions of libraries that the object calls, and those of libm that are ``possible``."""
    return _after_sizes(text, program, library_comment(program.name.upper(), calls, possible))


def _after_sizes(text: str, program: Program, lines: str) -> str:
    line = rf"^#define {program.name.upper()}_(?:MEM_ALIGN|ACTIVATIONS_MEM_SIZE) \d+\n(?!/\* The least)"
    definition = re.search(line, text, re.MULTILINE)
    assert definition
    return text[: definition.end()] + lines + text[definition.end() :]


def _stack(program: Program, bounds: StaticBounds) -> list[str]:
    return [
        "/* The most bytes of stack that a run takes, below the frame of its caller, as this bundle's object is",
        "   compiled: the frames of the deepest path of calls. */",
        f"#define {program.name.upper()}_STACK_SIZE {bounds.stack}",
    ]


def _instructions(program: Program, most: Instructions | None) -> list[str]:
    if most is None:
        return []
    prefix = program.name.upper()
    rows = [
        f'X("{c_text(call.layer)}", {call.kernel.name}, {n})'
        for call, n in zip(program.calls, most.calls or (), strict=most.calls is not None)
    ]
    return [
        "/* The most instructions that a run executes, as this bundle's object is compiled (not cycles), and of them",
        "   those of each kernel call: X(layer, kernel, instructions) */",
        f"#define {prefix}_MAX_INSTRUCTIONS {most.total}",
        *([" \\\n  ".join([f"#define {prefix}_CALL_INSTRUCTIONS(X)", *rows])] if rows else []),
    ]


def _several(program: Program, more: Sequence[Program]) -> str:
    entries = ", ".join(p.name for p in (program, *more))
    return (
        "/* The network is there for several shapes of its inputs, one entry point each, over the same weights:\n"
        f"   {entries}.  The sizes above are enough for all of them. */\n"
        f"#define {program.name.upper()}_BINDINGS {1 + len(more)}\n"
    )


def _binding(program: Program, declared: str, taken: set[str], preprocessing: Mapping[str, Preprocessing]) -> str:
    """The text on a further binding, whose entry points are ``declared``."""
    prefix, memory = program.name.upper(), program.memory
    lines = [
        f"/* {program.name}: the bytes that it needs itself. */",
        f"#define {prefix}_MUTABLE_MEM_SIZE {memory.mutable}",
        f"#define {prefix}_ACTIVATIONS_MEM_SIZE {memory.activations}",
        *_ports(program, taken, preprocessing),
        declared,
    ]
    return "\n".join(lines)


def _ports(program: Program, taken: set[str], preprocessing: Mapping[str, Preprocessing]) -> list[str]:
    """The macros of inputs and outputs."""
    prefix = program.name.upper()
    names = {id(port): _port_name(port, taken) for port in (*program.inputs, *program.outputs)}
    return [
        "/* Inputs: offset in the mutable region, bytes, elements. */",
        *(_port(prefix, names[id(port)], port, preprocessing.get(port.name)) for port in program.inputs),
        "\n/* Outputs: offset in the mutable region, bytes, elements. */",
        *(_port(prefix, names[id(port)], port) for port in program.outputs),
        "\n/* The same as lists: X(name, type, offset, bytes, rank, extents...) */",
        _list(f"{prefix}_INPUTS", program.inputs),
        _list(f"{prefix}_OUTPUTS", program.outputs) + "\n",
    ]


def _port_name(port: Port, taken: set[str]) -> str:
    """A name for which all macros are free."""
    while True:
        name = unique(port.name, taken)
        macros = {f"{name}{end}" for end in TENSOR_MACROS if end}
        if not macros & taken:
            taken |= macros
            return name


def _port(prefix: str, name: str, port: Port, preprocessing: Preprocessing | None = None) -> str:
    shape = ",".join(map(str, port.type.dims))
    comment = f"/* {port.type.dtype}[{shape}]{_STRINGS if port.string else ''} */"
    lines = [
        f"#define {prefix}_{name} {port.offset} {comment}",
        f"#define {prefix}_{name}_BYTES {port.type.nbytes}",
        f"#define {prefix}_{name}_ELEMENTS {prod(port.type.dims)}",
        *(quantisation_macros(f"{prefix}_{name}", port.quant) if port.quant else ()),
        *initial_macros(f"{prefix}_{name}", port.initial),
        *state_comment(port),
        *size_macros(f"{prefix}_{name}", port),
        *(image_macros(f"{prefix}_{name}", port.type.dims, preprocessing) if preprocessing else ()),
    ]
    return "\n".join(lines)


def _list(name: str, ports: tuple[Port, ...]) -> str:
    rows = [f"#define {name}(X)"]
    for port in ports:
        extents = ", ".join(map(str, port.type.dims or (1,)))
        row = f"{port.offset}, {port.type.nbytes}, {port.type.rank}, {extents}"
        rows.append(f'  X("{c_text(port.name)}", {port.type.dtype}, {row})')
    return " \\\n".join(rows)


def c_text(text: str) -> str:
    """The content of a C string literal: octal escapes, because hexadecimal ones are not delimited; no trigraphs."""
    safe = set(map(chr, range(32, 127))) - set('"\\?')
    return "".join(c if c in safe else "".join(f"\\{byte:03o}" for byte in c.encode()) for c in text)


def _declarations(program: Program, entry_points: Sequence[EntryPoint]) -> str:
    """The declarations of a program's entry points, for C and C++."""
    return (
        "#ifdef __cplusplus\n"
        'extern "C" {\n'
        "#endif\n\n"
        f"{_NEXT.join(_declaration(program, entry) for entry in entry_points)}\n"
        "#ifdef __cplusplus\n"
        "}\n"
        "#endif\n"
    )


_NEXT = "\n"


def _declaration(program: Program, entry: EntryPoint) -> str:
    """An entry point with its comment and its macros."""
    macros = [f"#define {program.name.upper()}_{name} {value}" for name, value in entry.macros]
    return "\n".join([*macros, entry.about, f"{entry.prototype};", ""])
