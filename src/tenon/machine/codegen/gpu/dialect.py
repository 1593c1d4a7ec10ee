"""What the C-like languages of devices share: scalars, indices of an int, floats of 16 bits by functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tenon.machine.codegen.clike import CLike
from tenon.machine.codegen.printer import COMPARE, INFIX
from tenon.machine.kernel_ir.loops import Type
from tenon.network.graph.types import DType


class DeviceC(CLike):
    """One program of kernels.

    ``function_names`` are functions of the language, which kernels may not be called by.  ``conversions`` have, by the
    types from and to, the result, the parameter and the body of the function that converts floats of 16 bits.
    """

    int_type = "int"
    """The regions are too small for an index that it cannot hold (``gpu.unit``)."""
    function_names: ClassVar[frozenset[str]] = frozenset()
    conversions: ClassVar[Mapping[tuple[DType, DType], tuple[str, str, str]]] = {}
    operations: ClassVar[frozenset[str]] = frozenset(
        {*INFIX, *COMPARE, *CLike.takes, "neg", "cast", "bitcast", "broadcast", "scalar"}
    )
    """What it can print, of ``loops.OPS``."""

    def __init__(self) -> None:
        super().__init__()
        self.taken |= self.function_names

    def conversion(self, source: Type, target: Type) -> str:
        result, given, body = self.conversions[source.dtype, target.dtype]
        name = f"{target.dtype}_of_{source.dtype}"
        return self.require(name, lambda: f"{self.inline}{result} {name}({given} a) {{\n  {body}\n}}")
