"""Kernels read from altered text, with the parameters of the kernel that the text was of."""

from __future__ import annotations

from dataclasses import replace

from tenon.machine.kernel_ir.loops import Expr, Kernel, Load, Stmt, Store
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.rewrite import Substitution


def with_parameters_of(text: str, whole: Kernel) -> Kernel:
    """The kernel of a text, with the parameters of another one."""
    kernel = parse(text)
    return replace(kernel, params=whole.params, body=_Renamed(kernel, whole).body(kernel.body))


class _Renamed(Substitution):
    """A parsed kernel with the parameters of another one."""

    def __init__(self, kernel: Kernel, other: Kernel) -> None:
        super().__init__({})
        self.params = dict(zip(kernel.params, other.params, strict=True))

    def statement(self, s: Stmt) -> Stmt:
        new = super().statement(s)
        return replace(new, buffer=self.params.get(new.buffer, new.buffer)) if isinstance(new, Store) else new

    def _value(self, e: Expr) -> Expr:
        new = super()._value(e)
        return Load(self.params.get(new.buffer, new.buffer), new.index, new.type) if isinstance(new, Load) else new
