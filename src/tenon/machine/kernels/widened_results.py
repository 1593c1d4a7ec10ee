"""Epilogues of requantised bytes without narrowing these to bytes first.

An epilogue such as an addition widens the byte that it is given to i32, subtracts the zero point and makes a float of
the difference.  In vectors narrowing and widening take longer than the addition, and the values are there before:
in i32, and as a float that was rounded to a whole number.
"""

from __future__ import annotations

from dataclasses import dataclass

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Const, Expr, Op, bitcast, cast
from tenon.machine.kernels.image import Epilogue
from tenon.machine.kernels.requantize import ONES
from tenon.network.graph.types import F32, I32


@dataclass(frozen=True)
class WidenedResult:
    """A requantised result in i32 and as ``narrow`` bytes; ``real``, if it is known, is ``ONES`` plus the result less
    ``zero`` in f32."""

    narrow: Expr
    wide: Expr
    zero: int
    real: Expr | None = None

    @classmethod
    def of(cls, k: Builder, value: Expr, zero: int) -> WidenedResult | None:
        """The result of ``Requantize`` with that zero point, named; None where it is no vector of narrowed i32."""
        if not (isinstance(value, Op) and value.name == "cast" and value.type.dtype.bytes == 1):
            return None
        (wide,) = value.args
        if value.type.lanes == 1 or wide.type.dtype is not I32:
            return None
        real = None
        match wide:
            case Op("add", (Op("bitcast", (rounded,)), step)) if rounded.type.dtype is F32:
                real = k.let("r", rounded)
                wide = bitcast(real, I32) + step
            case _:
                wide = k.let("r", wide)
        return cls(cast(wide, value.type.dtype), wide, zero, real)

    def through(self, epilogue: Epilogue, *operands: Expr) -> Expr:
        """The result of the epilogue."""
        return self._rewritten(epilogue(self.narrow, *operands), {})

    def _rewritten(self, e: Expr, known: dict[int, Expr]) -> Expr:
        if not isinstance(e, Op) or e is self.narrow:
            return e
        if id(e) not in known:
            known[id(e)] = self._of_wide(e) or self._with(e, known)
        return known[id(e)]

    def _with(self, e: Op, known: dict[int, Expr]) -> Expr:
        args = tuple(self._rewritten(a, known) for a in e.args)
        return e if all(a is b for a, b in zip(args, e.args, strict=True)) else Op(e.name, args, e.type)

    def _of_wide(self, e: Op) -> Expr | None:
        """The value of a cast of the bytes, or of their difference from the zero point, computed without the bytes."""
        match e:
            case Op("cast", (a,)) if a is self.narrow and e.type.dtype is I32:
                return self.wide
            case Op("cast", (Op("sub", (less, zero)),)) if self._widens(less) and _number(zero) == self.zero:
                return self._whole(e)
            case Op("cast", (a,)) if self._widens(a) and self.zero == 0:
                return self._whole(e)
        return None

    def _whole(self, e: Op) -> Expr | None:
        """The cast ``e`` of the result less its zero point, if it is to f32 and known."""
        return None if self.real is None or e.type.dtype is not F32 else self.real - ONES

    def _widens(self, e: Expr) -> bool:
        return isinstance(e, Op) and e.name == "cast" and e.type.dtype is I32 and e.args[0] is self.narrow


def _number(e: Expr) -> float | None:
    while isinstance(e, Op) and e.name == "broadcast":
        (e,) = e.args
    return e.value if isinstance(e, Const) else None
