"""Instruction sets, one module each (``base`` says what is in one): found by scanning the folder."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from tenon.machine.isa.base import Assembly as Assembly
from tenon.machine.isa.base import Form, Primitive, in_first_lane
from tenon.machine.isa.base import Portable as Portable
from tenon.network.graph.dtype import DType


@cache
def instruction_sets() -> tuple[ModuleType, ...]:
    """The modules of this package, by name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    return tuple(import_module(f"{__name__}.{name}") for name in names if name != "__init__")


def primitives() -> dict[str, Primitive]:
    """The operations that instruction sets add to the loop IR."""
    listed = (getattr(module, "PRIMITIVES", {}) for module in instruction_sets())
    return {name: row for rows in listed for name, row in rows.items()}


@cache
def portable(operation: str) -> Portable | None:
    """The C of an operation for any compiler; None for one of no instruction set."""
    listed = (getattr(module, "PORTABLE", {}) for module in instruction_sets())
    return next((rows[operation] for rows in listed if operation in rows), None)


@cache
def _forms(operation: str) -> tuple[Form, ...]:
    rows = (row for module in instruction_sets() for row in getattr(module, "FORMS", ()))
    return tuple(row for row in rows if row.operation == operation)


def forms(operation: str, dtype: DType, lanes: int) -> list[tuple[str, str]]:
    """(preprocessor condition, body) of an operation over such operands: the first that holds is compiled."""
    row = portable(operation)
    if lanes == 1 and row and row.first_of_four:
        return [(condition, in_first_lane(body)) for condition, body in forms(operation, dtype, 4)]
    return [(form.condition, form.body) for form in _forms(operation) if form.fits(dtype, lanes)]


@cache
def device_body(language: str, operation: str) -> str:
    """The body of an operation over single elements in a language of devices; empty where it has none of its own."""
    listed = (getattr(module, "DEVICES", {}).get(language, {}) for module in instruction_sets())
    return next((rows[operation] for rows in listed if operation in rows), "")


@cache
def device_instruction(language: str, name: str) -> str:
    """The function, of that name, of an instruction over memory in a language of devices: it takes the addresses of
    operands in memory, then references to registers.  Empty where there is none but its body."""
    listed = (getattr(module, "DEVICE_INSTRUCTIONS", {}).get(language, {}) for module in instruction_sets())
    return next((rows[name] for rows in listed if name in rows), "")


@cache
def assembly(name: str) -> Assembly | None:
    """The C of an instruction over memory; None where it has none but that of its body."""
    listed = (getattr(module, "ASSEMBLY", {}) for module in instruction_sets())
    return next((rows[name] for rows in listed if name in rows), None)
