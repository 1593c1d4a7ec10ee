"""Languages without pointers, whose memory is arrays of 32-bit words: integers of 8 and 16 bits are computed in 32.

A kernel takes the numbers of the first elements of its operands, in the array of the region in which each operand
lies: so the kernels of two steps are the same where their operands lie in the same regions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from tenon.machine.codegen.address import Address, offset_text
from tenon.machine.codegen.backend import KernelLaunch
from tenon.machine.codegen.clike import CLike, Makers, TemplateWords, computable, safe
from tenon.machine.codegen.gpu.dialect import DeviceC
from tenon.machine.codegen.gpu.word_functions import BODIES, CONVERSIONS, NARROW, QUOTIENT, WORDS
from tenon.machine.codegen.parentheses import bare
from tenon.machine.codegen.printer import COMPARE, INFIX
from tenon.machine.codegen.scalar_functions import ZERO_SAFE
from tenon.machine.kernel_ir.loops import Alloc, Const, Expr, Kernel, Op, Type
from tenon.machine.kernel_ir.work_groups import buffer_bytes
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import Region
from tenon.network.graph.types import DType

I32, U32, F32, I64, U64 = DType.I32, DType.U32, DType.F32, DType.I64, DType.U64

ARRAYS = {Region.CONSTANT: "constant_words", Region.MUTABLE: "mutable_words", Region.ACTIVATIONS: "activation_words"}
"""The names of the regions' arrays."""
OPERANDS = 32
"""The most operands of a kernel: every device takes as many numbers with a launch."""
GROUP = 64
"""The threads of a work group where kernels do not say."""


def computed(dtype: DType) -> DType:
    """The type of at least 32 bits in which values of a type are held; floats of 16 bits are their bits."""
    dtype = dtype.carrier
    if dtype.bytes == 8 or dtype is F32:
        return dtype
    return I32 if dtype.is_signed or dtype in (DType.Q8, DType.B2) else U32


def paired(t: Type) -> bool:
    """Whether a vector is held as two words."""
    return t.lanes == 4 and t.dtype.bytes == 2


class WordC(DeviceC):
    """One program.  ``regions`` says where each operand of the kernel to be printed lies, by its name; the others
    are among the activations.

    ``as_float`` and ``as_word`` are the functions that give the bits of a word as a float and back.
    """

    pointers = False
    inline: ClassVar[str] = ""
    typed_functions = False
    bodies: ClassVar[Mapping[str, str]] = BODIES
    conversions: ClassVar[Mapping[tuple[DType, DType], tuple[str, str, str]]] = CONVERSIONS
    integer_suffixes: ClassVar[Mapping[DType, str]] = {U32: "u"}
    as_float: ClassVar[str]
    as_word: ClassVar[str]
    let: ClassVar[str]
    """The keyword that declares a word or a float of a helper function."""

    def __init__(self) -> None:
        super().__init__()
        self.regions: dict[str, Region] = {}
        self.shared: list[str] = []
        """Declarations of arrays that the threads of a work group share."""

    @abstractmethod
    def entry(self, number: int, function: str, step: KernelLaunch) -> str:
        """The function of that number, which calls a printed kernel for one of its work items, or one of its threads.

        The first elements of the operands are given by whoever launches it.
        """

    @abstractmethod
    def program(self, entries: Sequence[str]) -> str:
        """The text of all that was printed, and entries."""

    @abstractmethod
    def shared_array(self, t: Type, name: str, size: int) -> str:
        """The declaration of an array that the threads of a work group share."""

    def kernel(self, k: Kernel, slices: WorkItems | None = None) -> str:
        self.regions = {b.name: self.regions.get(b.name, Region.ACTIVATIONS) for b in k.params}
        return super().kernel(k, slices)

    @abstractmethod
    def operand(self, number: int) -> str:
        """The number of the first element of an operand, as the launch gives it."""

    def arguments(self, step: KernelLaunch) -> list[str]:
        """The arguments that an entry gives to a kernel."""
        operands = [self.operand(i) for i in range(len(step.call.kernel.params))]
        return operands + (["block", "thread"] if step.groups else ["item", "item + 1"] if step.work_items else [])

    def on_alloc(self, s: Alloc) -> None:
        if s.buffer.space != "shared":
            super().on_alloc(s)
            return
        name = self.f.arrays[s.buffer] = self.unique(f"shared_{s.buffer.name}")
        self.f.made[s.buffer] = object()
        self.shared.append(
            self.shared_array(Type(s.buffer.type.dtype), name, buffer_bytes(s.buffer) // s.buffer.type.dtype.bytes)
        )

    @abstractmethod
    def loaded_wide(self, dtype: DType, words: str, number: str) -> str:
        """An element of 8 bytes, of an array of words."""

    @abstractmethod
    def stored_wide(self, dtype: DType, words: str, number: str, value: str) -> str:
        """The statement that stores it."""

    @abstractmethod
    def changed(self, words: str, number: str, change: str) -> str:
        """The statement that changes bits of a word, while other threads change others: an exclusive or."""

    def word(self, words: str, number: str) -> str:
        """A word of an array."""
        return f"{words}[{number}]"

    def whole_stored(self, words: str, number: str, value: str) -> str:
        """The statement that stores a word."""
        return f"{self.word(words, number)} = {value};"

    # ------------------------------------------------------------------------------------ memory
    def load(self, t: Type, address: Address) -> str:
        if t.lanes > 1:
            return self.loaded_vector(t, address)
        if address.array not in self.regions:
            return address.element
        words, number = self.located(address)
        if t.dtype.bytes == 8:
            return self.loaded_wide(t.dtype, words, number)
        if t.dtype.bytes == 4:
            return self.of_word(self.word(words, number), t.dtype)
        text = self.loaded_part(t.dtype, words, number)
        return self.narrowed(self.converted(text, U32, I32), t.dtype) if computed(t.dtype) is I32 else text

    def stored(self, t: Type, address: Address, value: str) -> str:
        if t.lanes > 1:
            return self.stored_vector(t, address, value)
        if address.array not in self.regions:
            return f"{address.element} = {value};"
        words, number = self.located(address)
        if t.dtype.bytes == 8:
            return self.stored_wide(t.dtype, words, number, value)
        if t.dtype.bytes == 4:
            return self.whole_stored(words, number, self.to_word(value, t.dtype))
        return self.stored_part(t.dtype, words, number, self.to_word(value, t.dtype))

    def loaded_part(self, dtype: DType, words: str, number: str) -> str:
        """The bits of a narrow element, as a number without a sign."""
        part = self.required(f"part{8 * dtype.bytes}")
        return f"{part}({self.word(words, self.word_of(number, dtype))}, {number})"

    def stored_part(self, dtype: DType, words: str, number: str, value: str) -> str:
        """The statement that stores the lowest bits of a word as a narrow element."""
        at, change = self.word_of(number, dtype), self.required(f"change{8 * dtype.bytes}")
        return self.changed(words, at, f"{change}({self.word(words, at)}, {number}, {value})")

    # ----------------------------------------------------------------------------------- vectors of four
    def loaded_vector(self, t: Type, address: Address) -> str:
        """Four neighbouring elements; those of 16 bits are whole words, which the proof shows to be aligned."""
        if paired(t) and address.array in self.regions:
            words, number = self.located(address)
            return f"{self.type(t)}({', '.join(self.word(words, at) for at in self.pair_places(number))})"
        one = Type(t.dtype)
        return self.vector(t, [self.load(one, replace(address, at=address.at + i)) for i in range(t.lanes)])

    def stored_vector(self, t: Type, address: Address, value: str) -> str:
        """The statement that stores four neighbouring elements."""
        if paired(t) and address.array in self.regions:
            words, number = self.located(address)
            low, high = self.pair_places(number)
            each = [self.whole_stored(words, low, "whole.x"), self.whole_stored(words, high, "whole.y")]
        else:
            elements = enumerate(self.elements(t, "whole"))
            each = [self.stored(Type(t.dtype), replace(address, at=address.at + i), e) for i, e in elements]
        return f"{{ {self.constant(self.type(t), 'whole', value)} {' '.join(each)} }}"

    def pair_places(self, number: str) -> list[str]:
        """The numbers of the two words of four elements of 16 bits."""
        at = self.word_of(number, DType.F16)
        return [at, f"({at}) + 1"]

    def vector(self, t: Type, elements: Sequence[str]) -> str:
        """Elements of 16 bits are held in two words."""
        if paired(t):
            elements = [f"{low} | ({high} << 16u)" for low, high in zip(elements[::2], elements[1::2], strict=True)]
        return f"{self.type(t)}({', '.join(elements)})"

    def elements(self, t: Type, vector: str) -> list[str]:
        """The elements of a vector in a variable."""
        if paired(t):
            return [half for word in "xy" for half in (f"{vector}.{word} & 0xffffu", f"{vector}.{word} >> 16u")]
        return [f"{vector}.{lane}" for lane in "xyzw"]

    def located(self, address: Address) -> tuple[str, str]:
        """The array of words in which an operand's element lies, and the element's number."""
        moved = f" + {address.base}" if address.base else ""
        return ARRAYS[self.regions[address.array]], f"{address.array}{moved}{offset_text(address.at)}"

    def word_of(self, number: str, dtype: DType) -> str:
        """The number of the word in which a narrow element lies."""
        return f"({number}) >> {2 // dtype.bytes}u"

    def of_word(self, text: str, dtype: DType) -> str:
        """A word as a value of a type of 4 bytes."""
        return f"{self.as_float}({text})" if dtype is F32 else self.converted(text, U32, computed(dtype))

    def to_word(self, text: str, dtype: DType) -> str:
        """The bits of a value of at most 4 bytes as a word."""
        return f"{self.as_word}({text})" if dtype is F32 else self.converted(text, computed(dtype), U32)

    def required(self, name: str) -> str:
        """The helper function of that name, of those that work on words."""
        return self.require(name, lambda: self.helper_text(name, (WORDS | QUOTIENT)[name]))

    # ---------------------------------------------------------------------------------- literals
    def literal(self, e: Const) -> str:
        dtype = e.type.dtype
        if not dtype.is_float and dtype.carrier is dtype:
            return self.integer(int(e.value), computed(dtype))
        return self.integer(int(super().literal(e)), U32) if computed(dtype) is U32 else super().literal(e)

    # -------------------------------------------------------------------------------- operations
    def converted(self, text: str, source: DType, target: DType) -> str:
        """A value as another type of at least 32 bits, as by a cast in C."""
        return text if source is target else f"{self.names[target]}({bare(text)})"

    def narrowed(self, text: str, dtype: DType) -> str:
        """The lowest bits of an integer that its type has."""
        bits = 32 - 8 * dtype.bytes
        if bits <= 0:
            return text
        return (
            f"(({text} << {bits}u) >> {bits}u)" if computed(dtype) is I32 else f"({text} & {(1 << 32 - bits) - 1:#x}u)"
        )

    def adds_up(self, t: Type) -> bool:
        return t.dtype.bytes >= 4 and not t.dtype.is_float

    def infix(self, e: Op, a: str, b: str) -> str:
        if e.name == "add" and e.type.dtype.is_float and (fused := self.fused(e)):
            return fused
        if e.name == "div" and not e.type.dtype.is_float and safe(e.args[1]):
            return f"({a} / {b})"
        if e.name == "div" and e.type.dtype is F32:
            return self.rounded_quotient(bare(a), bare(b))
        return super().infix(e, a, b)

    def rounded_quotient(self, a: str, b: str) -> str:
        """A quotient of f32, rounded once: those of the languages may be 2.5 units in the last place off."""
        for helper in QUOTIENT:
            self.required(helper)
        return f"quotient({a}, {b})"

    def exactly(self, e: Expr) -> str:
        return self.value(e)

    def fused(self, e: Op) -> str:
        """A sum with a product as one operation, which may be rounded once as in C; empty for other sums."""
        for product, other in (e.args, e.args[::-1]):
            if isinstance(product, Op) and product.name == "mul":
                return f"fma({', '.join(bare(self.value(each)) for each in (*product.args, other))})"
        return ""

    def integer_infix(self, e: Op, a: str, b: str) -> str:
        if e.name in ("shl", "shr"):
            b = self.converted(b, computed(e.args[1].type.dtype), U32)
        return self.narrowed(f"({a} {INFIX[e.name]} {b})", e.type.dtype)

    def call(self, e: Op, args: list[str]) -> str:
        dtype, source = e.type.dtype, e.args[0].type.dtype
        if e.name == "neg":
            computable(e.type)
            return f"(-{args[0]})" if dtype.is_float else self.narrowed(f"({self.zero(dtype)} - {args[0]})", dtype)
        if e.name in COMPARE:
            computable(e.args[0].type)
            return f"(-{self.names[computed(dtype)]}({args[0]} {COMPARE[e.name]} {args[1]}))"
        if e.name == "mod" and safe(e.args[1]) and not computed(dtype).is_signed:
            return f"({args[0]} % {args[1]})"
        if e.name == "cast" and not {source, dtype} & {DType.F16, DType.BF16}:
            wide = self.converted(args[0], computed(source), computed(dtype))
            return wide if source is dtype else self.narrowed(wide, dtype)
        if e.name == "bitcast":
            return self.same_bits(bare(args[0]), source, dtype)
        return super().call(e, args)

    def same_bits(self, text: str, source: DType, target: DType) -> str:
        """The bits of a value as another type of the same width."""
        if source.bytes != 4 or F32 not in (source, target):
            return self.narrowed(self.converted(text, computed(source), computed(target)), target)
        return text if source is target else self.of_word(self.to_word(text, source), target)

    def bits(self, source: Type, target: Type) -> str:
        """The function that gives the bits of a number without a sign as a float."""
        return self.as_float

    def zero(self, dtype: DType) -> str:
        return self.integer(0, computed(dtype))

    # ----------------------------------------------------------------------------- helper functions
    def words(self, name: str, t: Type) -> Makers:
        """Besides: ``zero`` and ``minus_one`` of the type, and narrowing to it by ``cut`` and ``end``."""
        return {**super().words(name, t), **self.common_words(t.dtype)}

    def common_words(self, dtype: DType) -> Makers:
        """The words of all helper functions."""
        before, after = self.narrowed("(\0)", dtype).split("\0")
        return {
            "zero": lambda: self.zero(dtype),
            "mask_zero": lambda: self.zero(self.signed(Type(dtype)).dtype),
            "minus_one": lambda: self.integer(-1, computed(dtype)),
            "cut": lambda: before,
            "end": lambda: after,
            "float": lambda: self.names[F32],
            "int": lambda: self.names[I32],
            "word": lambda: self.names[U32],
            "as_float": lambda: self.as_float,
            "as_word": lambda: self.as_word,
            "let": lambda: self.let,
        }

    def helper_body(self, name: str, t: Type) -> str:
        signed = name in (*ZERO_SAFE, "abs") and computed(t.dtype) in (I32, I64)
        key = f"signed_{name}" if signed else name
        return "  " + (self.bodies[key] if key in self.bodies else self.portable(name, t))

    def helper_text(self, name: str, function: tuple[str, str, str]) -> str:
        """A helper function from its result, its parameters and its body, which contain words in braces."""
        gives, takes, body = function
        template = f"{self.signature(name, takes, gives)} {{{{\n  {body}\n}}}}"
        return template.format_map(TemplateWords(self.common_words(U32)))

    def conversion(self, source: Type, target: Type) -> str:
        name = f"{target.dtype}_of_{source.dtype}"
        return self.require(name, lambda: self.helper_text(name, self.conversions[source.dtype, target.dtype]))

    def clamp(self, value: str, t: Type, below: str) -> str:
        kind = computed(t.dtype)
        name, of = f"clamp_{kind}", self.names[kind]
        taken = f"{of} v, {self.names[I32]} below"
        body = NARROW.replace("{of}", of).replace("{zero}", self.zero(kind))
        return f"{self.require(name, lambda: self.helper_text(name, ('{int}', taken, body)))}({bare(value)}, {below})"

    def unused(self, name: str) -> str:
        return ""

    @classmethod
    def pointer_type(cls, buffer: object) -> str:
        """An operand is the number of its first element."""
        return f"{cls.names[I32]} "


NAMES: Mapping[DType, DType] = {dtype: computed(dtype) for dtype in CLike.names}
"""The type of at least 32 bits for every type of the loop IR."""
