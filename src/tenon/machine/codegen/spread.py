"""More parallel loops in a kernel, for devices with many more threads than a processor.

Kernels are written for a few threads: their outermost loops are parallel, those inside are serial.  A serial loop right
inside of parallel ones can be parallel, too, where its iterations are proved to be independent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from tenon.machine.kernel_ir.index import Var
from tenon.machine.kernel_ir.loops import Buffer, If, Kernel, Loop, Stmt
from tenon.machine.kernel_ir.work_items import linearise
from tenon.machine.proofs.bounds import ConflictError, prove

ENOUGH = 1 << 15
"""Work items that occupy a device: a few hundred for each of its hundred units."""


@lru_cache(maxsize=1024)
def spread(kernel: Kernel, same: tuple[tuple[Buffer, Buffer], ...]) -> Kernel:
    """The kernel with as many parallel loops as make enough work items, the outermost ones first; ``same`` as of
    ``independent``."""
    refused = set[Var]()
    while (items := linearise(kernel)) is None or items.length < ENOUGH:
        loop = next((each for each in _candidates(kernel.body) if each.var not in refused), None)
        if loop is None:
            return kernel
        wider = replace(kernel, body=_with_parallel(kernel.body, loop.var))
        if independent(wider, same):
            kernel = wider
        else:
            refused.add(loop.var)
    return kernel


def _candidates(body: tuple[Stmt, ...]) -> Iterator[Loop]:
    """Serial loops of a constant number of iterations that only parallel loops and tests contain."""
    for s in body:
        if isinstance(s, Loop) and s.kind == "serial" and s.var.most() and all(not b.terms for b in s.var.below):
            yield s
    for s in body:
        if (isinstance(s, Loop) and s.kind == "parallel") or isinstance(s, If):
            yield from _candidates(s.body)


def _with_parallel(body: tuple[Stmt, ...], var: Var) -> tuple[Stmt, ...]:
    made = list[Stmt]()
    for s in body:
        if isinstance(s, Loop) and s.var is var:
            s = replace(s, kind="parallel")
        elif isinstance(s, Loop | If):
            s = replace(s, body=_with_parallel(s.body, var))
        made.append(s)
    return tuple(made)


@lru_cache(maxsize=1024)
def independent(kernel: Kernel, same: tuple[tuple[Buffer, Buffer], ...]) -> bool:
    """Whether parallel iterations are independent.  Raises OutOfRangeError if not even one thread may run the kernel.

    ``same`` are parameters in the same memory (``proofs.bounds.prove``).
    """
    try:
        prove(kernel, dict(same))
    except ConflictError:
        return False
    return True
