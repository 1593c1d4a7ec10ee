"""Memory that the threads of a work group share, as vectors of four.

Where every element's place among four is known when the shader is compiled, neighbouring ones can be loaded and stored
at once: compilers of drivers need not prove that they are aligned.
"""

from __future__ import annotations

from collections.abc import Set

from tenon.machine.codegen.address import Address, offset_text
from tenon.machine.kernel_ir.index import Atom, Var
from tenon.machine.kernel_ir.loops import Alloc, Buffer, Instruction, Kernel, Load, Loop, Store
from tenon.machine.kernel_ir.walk import statements, values
from tenon.network.graph.types import DType


def shared_in_fours(k: Kernel) -> frozenset[Buffer]:
    """Shared buffers of 32-bit numbers whose elements are accessed at places among four that are known once loops are
    unrolled, and not by instructions."""
    unrolled = {s.var for s in statements(k.body) if isinstance(s, Loop) and s.kind == "unroll"}
    given = {b for s in statements(k.body) if isinstance(s, Instruction) for b, _ in s.operands}
    stores = [(s.buffer, s.index) for s in statements(k.body) if isinstance(s, Store)]
    loads = [(e.buffer, e.index) for e in values(k.body) if isinstance(e, Load)]
    loose = {b for b, at in stores + loads if not all(_in_fours(atom, n, unrolled) for atom, n in b.flat(at).terms)}
    made = (s.buffer for s in statements(k.body) if isinstance(s, Alloc) and s.buffer.space == "shared")
    return frozenset(b for b in made if b.type.dtype in (DType.F32, DType.I32) and b not in loose | given)


def _in_fours(atom: Atom, factor: int, unrolled: Set[Var]) -> bool:
    """Whether a term of an element's number leaves its place among four known."""
    return factor % 4 == 0 or (atom in unrolled if isinstance(atom, Var) else atom.vars <= unrolled)


def four_of(address: Address) -> str:
    """The vector in which an element of an array of vectors lies, whose base is a multiple of four."""
    assert address.lane is not None
    number = (address.at - address.lane) // 4
    return (
        f"{address.array}[({address.base} >> 2){offset_text(number)}]" if address.base else f"{address.array}[{number}]"
    )
