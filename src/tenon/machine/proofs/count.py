"""Operation counts of a kernel, made on the tree: what a run costs before anything is printed."""

from __future__ import annotations

from dataclasses import dataclass

from tenon.machine.kernel_ir.index import Var
from tenon.machine.kernel_ir.loops import (
    BLOCKS,
    OPS,
    Bind,
    Expr,
    Guarded,
    Kernel,
    Let,
    Load,
    Loop,
    Op,
    Stmt,
    Store,
)
from tenon.machine.kernel_ir.upper import upper

_FREE = {"broadcast", "bitcast"}


@dataclass
class Count:
    macs: int = 0  # multiplies that feed an add, per lane; dot4 counts four, dot2 two
    instructions: int = 0  # vector operations: a*b+c is one, a broadcast folded into arithmetic none
    loaded: int = 0  # bytes from memory; registers are free
    stored: int = 0  # bytes to memory


def count(kernel: Kernel, sizes: dict[str, int] | None = None) -> Count:
    """Counts for one call, with the kernel's symbolic sizes given by name."""
    total = Count()
    env: dict[Var, int] = {v: (sizes or {})[v.name] for v in kernel.sizes}

    def expr(e: Expr, times: int) -> None:
        if isinstance(e, Load):
            if e.buffer.space != "register":
                total.loaded += times * e.type.bytes
                total.instructions += times * (e.type.lanes > 1)
        elif isinstance(e, Guarded):
            expr(e.value, times)
        elif isinstance(e, Op):
            lanes = e.args[0].type.lanes
            fused = e.name in ("add", "sub") and any(isinstance(a, Op) and a.name == "mul" for a in e.args)
            if products := OPS[e.name].products:
                total.macs += products * times * lanes
            elif e.type.dtype.is_float and e.name not in _FREE:
                total.macs += times * lanes * fused
            total.instructions += times * (e.name not in _FREE) - times * fused
            for a in e.args:
                expr(a, times)

    def visit(body: tuple[Stmt, ...], times: int) -> None:
        for s in body:
            if isinstance(s, Let | Store | Bind):
                expr(s.value, times)
            if isinstance(s, Store) and s.buffer.space != "register":
                total.stored += times * s.value.type.bytes
                total.instructions += times
            elif isinstance(s, Loop):
                iterations = min(upper(b.subst(env)) for b in s.var.below)
                visit(s.body, times * int(iterations))
            elif isinstance(s, BLOCKS):
                visit(s.body, times)

    visit(kernel.body, 1)
    return total
