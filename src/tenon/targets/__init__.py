"""Targets.  Each module here defines rows of ``TARGETS``; a target is found by its name."""

from __future__ import annotations

from tenon.errors import InputError
from tenon.targets.base import Target


def targets() -> dict[str, Target]:
    """Every known target by name."""
    from tenon.targets import arm, cortex_m, null, riscv, wasm, x86

    rows = [row for module in (x86, arm, cortex_m, riscv, wasm, null) for row in module.TARGETS]
    return {row.name: row for row in rows}


def find(name: str = "host", *, bf16: bool = False) -> Target:
    """The target of that name; "host" is the best one for this machine (``bf16``: to compute in that).

    Raises InputError listing all names.
    """
    if name == "host":
        from tenon.targets.host import host

        return host(bf16)
    known = targets()
    if name not in known:
        raise InputError(f"no target '{name}'; known targets: host, {', '.join(sorted(known))}")
    return known[name]


__all__ = ["Target", "find", "targets"]
