"""Kernels that are a launch of work groups.

    for block i < 4 { for block j < 3 {
      alloc shared s: f32[64]
      for thread t < 64 { ... barrier ... }
    } }

Loops over blocks nest perfectly and contain the allocations of shared memory and one nest of loops over threads, which
contains everything else.  So every block has as many threads, and a barrier is a statement of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tenon.errors import InternalError
from tenon.machine.kernel_ir.index import Var
from tenon.machine.kernel_ir.loops import Alloc, Buffer, Kernel, Loop, Stmt
from tenon.machine.kernel_ir.walk import statements

KINDS = ("block", "thread")
"""Kinds of loops whose iterations are a launch."""


@dataclass(frozen=True, eq=False)
class WorkGroups:
    """The variables of the loops over blocks and over threads, outermost first, the memory that the threads of a block
    share, and what each thread runs."""

    blocks: tuple[Var, ...]
    threads: tuple[Var, ...]
    shared: tuple[Buffer, ...]
    body: tuple[Stmt, ...]

    @property
    def count(self) -> int:
        """Blocks of the launch."""
        return prod(_extent(v) for v in self.blocks)

    @property
    def size(self) -> int:
        """Threads of a block."""
        return prod(_extent(v) for v in self.threads)

    @property
    def shared_bytes(self) -> int:
        """Bytes of memory that the threads of a block share."""
        return sum(buffer_bytes(b) for b in self.shared)

    def place(self, var: Var) -> tuple[int, int]:
        """(step, extent) by which the iteration of a loop follows from the number of the block, or of the thread in its
        block: number // step mod extent.  The innermost loop counts fastest."""
        nest = self.blocks if var in self.blocks else self.threads
        return prod(_extent(v) for v in nest[nest.index(var) + 1 :]), _extent(var)


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes of a buffer of constant size."""
    return prod(extent.const for extent in buffer.shape) * buffer.type.bytes


@lru_cache(maxsize=1024)
def work_groups(kernel: Kernel) -> WorkGroups | None:
    """The launch that a kernel is; None for a kernel without loops over blocks or threads.

    Raises InternalError for a kernel whose loops over blocks and threads do not nest as this module says.
    """
    kinds = {s.kind for s in statements(kernel.body) if isinstance(s, Loop)}
    if not kinds & set(KINDS):
        return None
    blocks, body = _nest(kernel, kernel.body, "block")
    shared = tuple(s.buffer for s in body if isinstance(s, Alloc) and s.buffer.space == "shared")
    inside = tuple(s for s in body if not (isinstance(s, Alloc) and s.buffer in shared))
    threads, body = _nest(kernel, inside, "thread")
    if not threads:
        raise InternalError(f"{kernel.name}: its blocks contain more than one loop over threads and shared memory")
    for s in statements(body):
        if isinstance(s, Loop) and s.kind in (*KINDS, "parallel"):
            raise InternalError(f"{kernel.name}: a {s.kind} loop inside of a thread")
        if isinstance(s, Alloc) and s.buffer.space == "shared":
            raise InternalError(f"{kernel.name}: a thread allocates the shared {s.buffer.name}")
    return WorkGroups(blocks, threads, shared, body)


def _nest(kernel: Kernel, body: tuple[Stmt, ...], kind: str) -> tuple[tuple[Var, ...], tuple[Stmt, ...]]:
    """The variables of a perfect nest of loops of a kind, and the body of the innermost."""
    nest: list[Var] = []
    while len(body) == 1 and isinstance(loop := body[0], Loop) and loop.kind == kind:
        if len(loop.var.below) > 1 or loop.var.below[0].terms:
            raise InternalError(f"{kernel.name}: the {kind} loop {loop.var.name} has no constant number of iterations")
        nest.append(loop.var)
        body = loop.body
    return tuple(nest), body


def _extent(var: Var) -> int:
    return var.below[0].const
