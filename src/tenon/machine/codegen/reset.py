"""The entry point that gives the states of a program their initial content."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tenon.machine.codegen.backend import EntryPoint
from tenon.machine.codegen.float_literals import float_literal
from tenon.machine.plan.program import Port, Program, Region
from tenon.network.graph.types import DType

_RESET = """\
/* Gives the states, inputs that hold what the run before left in an output, their initial content: before the
   first run, and whenever a new sequence begins. */"""


def initial_bytes(initial: Sequence[float], dtype: DType) -> list[int]:
    """The bytes of the initial content of a state: of all elements, of one that is that of all, or none for zeros."""
    return list(np.array(initial, dtype.numpy).tobytes()) if any(initial) else []


def reset(program: Program) -> tuple[EntryPoint, ...]:
    """The declaration; none for a program without states."""
    return (EntryPoint(f"{program.name}_reset", (Region.MUTABLE,), returns="void", about=_RESET),) * program.has_states


def reset_text(program: Program) -> Iterator[str]:
    """The lines of the function."""
    for entry in reset(program):
        yield f"\n{entry.prototype} {{"
        for port in program.inputs:
            if port.state:
                yield from _initialised(port)
        yield "}"


def _initialised(port: Port) -> Iterator[str]:
    """The statements that fill a state: with zeros, with one number, or with a number for each element."""
    place = f"{Region.MUTABLE} + {port.offset}"
    if not any(port.initial):
        yield f"  for (int32_t i = 0; i < {port.type.nbytes}; i++) ({place})[i] = 0;"
        return
    name = _c_type(port.type.dtype)
    numbers = [_literal(number, port.type.dtype) for number in port.initial]
    target = f"(({name} *)({place}))[i]"
    if len(numbers) == 1:
        yield f"  for (int32_t i = 0; i < {port.type.size}; i++) {target} = {numbers[0]};"
        return
    yield f"  {{\n    static const {name} initial[] = {{{', '.join(numbers)}}};"
    yield f"    for (int32_t i = 0; i < {port.type.size}; i++) {target} = initial[i];\n  }}"


def _c_type(dtype: DType) -> str:
    """The type that the elements are stored as, which have the bits of an integer where C has no such type."""
    held = dtype.carrier
    if held in (DType.F32, DType.F64):
        return "float" if held is DType.F32 else "double"
    return f"{'u' * (not held.is_signed)}int{8 * held.bytes}_t"


def _literal(number: float, dtype: DType) -> str:
    if dtype in (DType.F32, DType.F64):
        return float_literal(number, "f" if dtype is DType.F32 else "")
    if dtype is DType.F16 or dtype.carrier is not dtype:
        return str(dtype.bits(number))
    return _integer(int(number))


def _integer(value: int) -> str:
    if value < 0:  # the least number of a type is no literal of it
        return f"(-{_integer(-value - 1)} - 1)"
    return f"{value}{'' if value < 1 << 31 else 'LL' if value < 1 << 63 else 'ULL'}"
