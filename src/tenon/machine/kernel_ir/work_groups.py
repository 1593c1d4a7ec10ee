"""Kernels that are a launch of work groups.

    for block i < 4 { for block j < 3 {
      alloc shared s: f32[64]
      for thread t < 64 { ... barrier ... }
    } }

Loops over blocks nest perfectly and contain the allocations of shared memory and one nest of loops over threads, which
contains everything else.  So every block has as many threads, and a barrier is a statement of all of them.

A loop of kind ``cluster`` inside of those over blocks is over the blocks of a cluster, which run at the same time.
Memory of space ``cluster`` is allocated in front of it; its first dimension is the number of the block in the cluster.

    for block i < 4 {
      alloc cluster sums: f32[2, 64]
      for cluster c < 2 { alloc shared s: f32[64] for thread t < 64 { ... barrier cluster ... } }
    }
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tenon.errors import InternalError
from tenon.machine.kernel_ir.index import Var
from tenon.machine.kernel_ir.loops import Alloc, Buffer, Kernel, Loop, Stmt
from tenon.machine.kernel_ir.walk import statements

KINDS = ("block", "cluster", "thread")
"""Kinds of loops whose iterations are a launch."""


@dataclass(frozen=True, eq=False)
class WorkGroups:
    """The variables of the loops over blocks (those of a cluster last) and over threads, outermost first, the memory
    that the threads of a block share, what each thread runs, and the variable over the blocks of a cluster."""

    blocks: tuple[Var, ...]
    threads: tuple[Var, ...]
    shared: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    cluster: Var | None = None

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

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster."""
        return _extent(self.cluster) if self.cluster else 1

    def place(self, var: Var) -> tuple[int, int]:
        """(step, extent) by which the iteration of a loop follows from the number of the block, or of the thread in its
        block: number // step mod extent.  The innermost loop counts fastest."""
        nest = self.blocks if var in self.blocks else self.threads
        return prod(_extent(v) for v in nest[nest.index(var) + 1 :]), _extent(var)


def buffer_bytes(buffer: Buffer) -> int:
    """Bytes of a buffer of constant size; of one that blocks of a cluster share, those in each."""
    shape = buffer.shape[1:] if buffer.space == "cluster" else buffer.shape
    return prod(extent.const for extent in shape) * buffer.type.bytes


@lru_cache(maxsize=1024)
def work_groups(kernel: Kernel) -> WorkGroups | None:
    """The launch that a kernel is; None for a kernel without loops over blocks or threads.

    Raises InternalError for a kernel whose loops over blocks and threads do not nest as this module says.
    """
    kinds = {s.kind for s in statements(kernel.body) if isinstance(s, Loop)}
    if not kinds & set(KINDS):
        return None
    blocks, body = _nest(kernel, kernel.body, "block")
    exchanged, body = _allocated(body, "cluster")
    cluster, body = _nest(kernel, body, "cluster")
    shared, body = _allocated(body, "shared")
    threads, body = _nest(kernel, body, "thread")
    if not threads:
        raise InternalError(f"{kernel.name}: its blocks contain more than one loop over threads and shared memory")
    for s in statements(body):
        if isinstance(s, Loop) and s.kind in (*KINDS, "parallel"):
            raise InternalError(f"{kernel.name}: a {s.kind} loop inside of a thread")
        if isinstance(s, Alloc) and s.buffer.space in ("shared", "cluster"):
            raise InternalError(f"{kernel.name}: a thread allocates the {s.buffer.space} {s.buffer.name}")
    if len(cluster) > 1 or any(not cluster or b.shape[:1] != cluster[0].below for b in exchanged):
        raise InternalError(f"{kernel.name}: its memory of clusters has no element for each block of one")
    return WorkGroups((*blocks, *cluster), threads, (*exchanged, *shared), body, cluster[0] if cluster else None)


def _allocated(body: tuple[Stmt, ...], space: str) -> tuple[tuple[Buffer, ...], tuple[Stmt, ...]]:
    """The buffers of a space that statements allocate, and the other statements."""
    made = tuple(s.buffer for s in body if isinstance(s, Alloc) and s.buffer.space == space)
    return made, tuple(s for s in body if not (isinstance(s, Alloc) and s.buffer in made))


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
