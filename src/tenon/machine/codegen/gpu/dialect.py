"""The common base of the C-like languages of devices: scalars, indices of an int, floats of 16 bits by functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tenon.machine import isa
from tenon.machine.codegen.address import Address
from tenon.machine.codegen.clike import CLike
from tenon.machine.codegen.gpu.memory_objects import Objects
from tenon.machine.codegen.parentheses import bare
from tenon.machine.codegen.printer import COMPARE, INFIX
from tenon.machine.kernel_ir.index import Index
from tenon.machine.kernel_ir.loops import (
    AsyncCopy,
    Buffer,
    Expr,
    Guarded,
    Instruction,
    Load,
    Op,
    Store,
    Type,
    broadcast,
    constant_of,
)
from tenon.machine.plan.program import Region
from tenon.network.graph.types import DType


@dataclass(frozen=True)
class MoreArguments:
    """Text behind the parameters of a kernel and behind the arguments of the function that it calls, the numbers of the
    images in it, as bits, and the name of the second object of activations."""

    parameters: str = ""
    arguments: str = ""
    images: int = 0
    second: str = str(Region.ACTIVATIONS)


def moved(address: Address, by: int) -> Address:
    """The element so many elements behind another."""
    return replace(address, at=address.at + by)


_VECTORS = tuple(Type(dtype, 4) for dtype in (DType.F32, DType.I32, DType.F16, DType.BF16))
"""Types of several elements, which are copied and converted at once and made of single ones."""


def _cut(s: AsyncCopy, most: int) -> Iterator[Store]:
    """A copy as stores of at most so many elements."""
    lanes, width = s.value.type.lanes, min(most, s.value.type.lanes)
    part = Type(s.value.type.dtype, width)
    for first in range(0, lanes, width):
        if isinstance(s.value, Guarded):
            fill = constant_of(s.value.other)
            assert fill is not None
            value: Expr = Guarded(s.value.facts, _moved(s.value.value, first, part), broadcast(fill, width))
        else:
            value = _moved(s.value, first, part)
        yield Store(s.buffer, (*s.index[:-1], s.index[-1] + first), value)


def _moved(load: Expr, first: int, part: Type) -> Expr:
    """A part of what is loaded."""
    assert isinstance(load, Load)
    return Load(load.buffer, (*load.index[:-1], load.index[-1] + first), part)


class DeviceC(CLike):
    """One program of kernels.

    ``function_names`` are functions of the language, which kernels may not be called by.  ``conversions`` have, by the
    types from and to, the result, the parameter and the body of the function that converts floats of 16 bits.
    """

    language: ClassVar[str]
    """The name of the language in ``isa.base``."""
    int_type = "int"
    """The regions are too small for an index that it cannot hold (``gpu.unit``)."""
    function_names: ClassVar[frozenset[str]] = frozenset()
    conversions: ClassVar[Mapping[tuple[DType, DType], tuple[str, str, str]]] = {}
    operations: ClassVar[frozenset[str]] = frozenset(
        {
            *INFIX,
            *COMPARE,
            *CLike.takes,
            "neg",
            "cast",
            "bitcast",
            "broadcast",
            "scalar",
            "vector4",
            *(f"lane{i}" for i in range(4)),
            "dot4",
            "dot4_signed",
            "bytes_left4",
            "bytes_right4",
        }
    )
    """The operations of ``loops.OPS`` that it can print."""

    def __init__(self) -> None:
        super().__init__()
        self.taken |= self.function_names
        self.halves: dict[int, tuple[Store, ...]] = {}  # stores that a copy is, by its identity
        self.aligned = True  # whether operands of the kernel being printed begin where several elements can be loaded
        self.as_images = frozenset[Buffer]()  # its operands that images can be read for, wherever it is called
        self.weights = frozenset[Buffer]()  # those of them that lie in the constant region

    def more_arguments(self, function: str, objects: Objects) -> MoreArguments:
        """The arguments, besides the regions, of a kernel whose function reads operands in these objects from images;
        to be asked when all functions are printed."""
        return MoreArguments()

    # ------------------------------------------------------------------- vectors, which are copied only
    def type(self, t: Type) -> str:
        return f"{self.names[t.dtype]}{t.lanes}" if t in _VECTORS else super().type(t)

    def load(self, t: Type, address: Address) -> str:
        if t not in _VECTORS:
            return super().load(t, address)
        if not self.aligned:
            return self.vector(t, [moved(address, i).element for i in range(t.lanes)])
        return f"*{self.vector_pointer(t, address)}"

    def stored(self, t: Type, address: Address, value: str) -> str:
        if t in _VECTORS and not self.aligned:
            parts = [f"{moved(address, i).element} = {e};" for i, e in enumerate(self.elements(t, "all_four"))]
            return f"{{ const {self.type(t)} all_four = {value}; {' '.join(parts)} }}"
        if t in _VECTORS:
            return f"*{self.vector_pointer(t, address)} = {value};"
        return super().stored(t, address, value)

    def on_copy(self, s: AsyncCopy) -> None:
        """A load and a store at once, of as many elements as the language has vectors of."""
        most = max((t.lanes for t in _VECTORS if t.dtype is s.value.type.dtype), default=1)
        for store in self.halves.setdefault(id(s), tuple(_cut(s, most))):
            self.on_store(store)

    def vector_pointer(self, t: Type, address: Address) -> str:
        """The pointer to several elements at once, which the proof shows to be aligned."""
        return f"({address.words}{self.type(t)} *)({address.sum})"

    def splat(self, text: str, t: Type) -> str:
        return self.vector(t, [text] * t.lanes) if t in _VECTORS else super().splat(text, t)

    def vector(self, t: Type, elements: Sequence[str]) -> str:
        """A vector of elements."""
        return f"({self.type(t)})({', '.join(elements)})"

    def call(self, e: Op, args: list[str]) -> str:
        source = e.args[0].type
        if e.name == "vector4":
            return self.vector(e.type, args)
        if e.name.startswith("lane"):
            return f"({args[0]}).{'xyzw'[int(e.name[-1])]}"
        if e.name == "cast" and source in _VECTORS and e.type in _VECTORS:
            return f"{self.vector_conversion(source, e.type)}({bare(args[0])})"
        return super().call(e, args)

    def vector_conversion(self, source: Type, target: Type) -> str:
        """The function that converts each element of a vector."""
        name, one = f"{target}_of_{source}", self.conversion(Type(source.dtype), Type(target.dtype))
        elements = self.vector(target, [f"{one}({element})" for element in self.elements(source, "a")])
        head = self.signature(name, f"{self.type(source)} a", self.type(target))
        quick = self.quick_vector_conversion(source.dtype, target.dtype)
        return self.require(name, lambda: f"{head} {{\n{quick}  return {elements};\n}}")

    def quick_vector_conversion(self, source: DType, target: DType) -> str:
        """Lines that return the converted vector ``a`` where the device can convert it at once."""
        return ""

    def elements(self, t: Type, vector: str) -> list[str]:
        """The elements of a vector in a variable."""
        return [f"{vector}.{lane}" for lane in "xyzw"]

    def on_instruction(self, s: Instruction) -> None:
        """A call of its function, where the language has one."""
        text = self.instruction_text(s)
        if not text:
            super().on_instruction(s)
            return
        self.require(s.name, lambda: text)
        places = [self.memory_operand(buffer, at) for buffer, at in s.operands if buffer.space != "register"]
        held = [(buffer, self.register(buffer, at)) for buffer, at in s.operands if buffer.space == "register"]
        registers = [name for _, name in held]
        self.f.taken |= {self.cell(buffer, name) for buffer, name in held}
        self.line(f"{s.name}({', '.join([*places, *registers, *map(str, s.numbers)])});")

    def instruction_text(self, s: Instruction) -> str:
        """The function of an instruction; empty where its body is printed."""
        return isa.device_instruction(self.language, s.name)

    def memory_operand(self, buffer: Buffer, at: tuple[Index, ...]) -> str:
        """An operand of an instruction that lies in memory: its address."""
        return self.place(buffer, at).sum

    def portable(self, name: str, t: Type) -> str:
        """Operations of instruction sets have bodies of their own (``isa.base``)."""
        return isa.device_body(self.language, name) or super().portable(name, t)

    def conversion(self, source: Type, target: Type) -> str:
        result, given, body = self.conversions[source.dtype, target.dtype]
        name = f"{target.dtype}_of_{source.dtype}"
        return self.require(name, lambda: f"{self.inline}{result} {name}({given} a) {{\n  {body}\n}}")
