"""Operators whose kernel is a C function that is given as text."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from tenon.errors import InputError
from tenon.machine.algorithms.base import Arg, Input, Output, Step
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import Buffer, CallSource, Const, Kernel, Type
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops.base import Operator, Site


@dataclass(frozen=True)
class Source:
    """C99 with a function that computes a node.

    ``function`` is its name, ``text`` defines it (``static inline``, with what it needs: other functions, ``#include``
    of headers that the target has).  It returns nothing and takes ``const`` pointers to the inputs that are present,
    pointers to the outputs, then ``arguments``: an int as ``int64_t``, a float as ``float``.  Tensors are row-major, in
    the C types of their elements (``float``, ``int8_t``, ...; bool is ``uint8_t``, 16-bit floats are their bits as
    ``uint16_t``).
    """

    function: str
    text: str
    arguments: tuple[int | float, ...] = ()


@dataclass(frozen=True)
class SourceOperator(Operator):
    """An operator that is computed by ``source``; its type rule and reference are those of any operator.

    Nothing proves what the C does: it must write every element of every output, and stay inside the tensors.
    """

    on_devices: ClassVar[bool] = False

    @abstractmethod
    def source(self, site: Site) -> Source:
        """The C for a node, whose types are in ``site``."""

    def lower(self, site: Site) -> list[Step]:
        """One kernel that calls the function, on one thread."""
        source = self.source(site)
        if not source.function.isidentifier() or not source.function.isascii() or source.function not in source.text:
            raise InputError(f"operator {self.name}: its C defines no function '{source.function}'")
        inputs = [i for i, type in enumerate(site.inputs) if type is not None]
        buffers = tuple(
            [_buffer(f"x{i}", site.input(i), "const") for i in inputs]
            + [_buffer(f"y{i}", type, "global") for i, type in enumerate(site.outputs)]
        )
        numbers = tuple(Const(n, Type(DType.F32 if isinstance(n, float) else DType.I64)) for n in source.arguments)
        call = CallSource(source.function, source.text, buffers, numbers)
        kernel = Kernel(f"{source.function}_node", buffers, (), (call,), f"A node of operator {self.name}")
        operands: list[Arg] = [*map(Input, inputs), *map(Output, range(len(site.outputs)))]
        return [Step(kernel, tuple(operands))]


def _buffer(name: str, type: TensorType, space: str) -> Buffer:
    return Buffer(name, Type(type.dtype), (Index((), max(1, type.size)),), space)
