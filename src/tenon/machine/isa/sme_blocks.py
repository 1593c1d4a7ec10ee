"""The numbers of Arm's instructions for blocks of outer products (``isa.sme``), and lines that all their forms have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import ClassVar

SIDE = 16
"""Rows and columns of a tile, and words of a vector."""


ONE = 0x3F800000
"""The bits of 1 in f32."""
KNOWN = 2
"""The value of ``OuterEnds.single`` where the factor of bytes is a number of the instruction."""


@dataclass(frozen=True)
class OuterEnds:
    """How sums become results that are stored in an image.

    ``words``: of four results, 4 of f32, 2 of bf16, 1 of bytes.  They are clamped between ``low`` and ``high``, which
    are bits of f32.  Sums of bytes are multiplied before by a factor in f32, which is ``single`` or one for each
    channel, and become whole numbers, halves to even, to which ``zero`` is added.  A block of the image has ``fours``
    of channels, and blocks lie ``plane`` bytes apart; ``in_rows``: there is one block, and positions lie ``plane``
    bytes apart.  Sums of floats are multiplied by ``factor`` before, which is bits of f32,
    and so are those of bytes where ``single`` is ``KNOWN``.
    """

    words: int
    low: int
    high: int
    single: int
    zero: int
    fours: int
    plane: int
    in_rows: int = 0
    factor: int = ONE
    COUNT: ClassVar[int] = 9

    @property
    def given(self) -> bool:
        """Whether factors of bytes are in memory."""
        return self.words == 1 and self.single != KNOWN

    @property
    def scaled(self) -> bool:
        """Whether sums of floats are multiplied by a factor."""
        return self.words > 1 and self.factor != ONE


@dataclass(frozen=True)
class OuterBlock:
    """The numbers of an instruction for a block of ``down`` tiles of positions by ``across`` of channels.

    The last tile of positions has ``last`` of them, the others 16.  A step multiplies ``words`` words of a position,
    and positions lie ``spread`` words apart: 1, 2 or 4.  ``bias``: sums begin with that of their channels instead of
    zero.  ``ends`` say how sums become results; None: they are stored.  ``loops`` are (iterations, bytes of the image
    from one to the next), outermost first.  Weights lie in the order of the steps: vectors [tiles of channels][words];
    with a ``pitch`` they are rows of a matrix so many bytes apart, a word of each channel, of which the last tile has
    ``channels``.
    """

    down: int
    last: int
    across: int
    words: int
    spread: int
    bias: int
    ends: OuterEnds | None = None
    loops: tuple[tuple[int, int], ...] = ()
    pitch: int = 0
    channels: int = SIDE

    @classmethod
    def of(cls, numbers: Sequence[int]) -> OuterBlock:
        """The inverse of ``numbers``."""
        down, last, across, words, spread, bias, pitch, channels, *rest = numbers
        ends, loops = OuterEnds(*rest[: OuterEnds.COUNT]), rest[OuterEnds.COUNT :]
        pairs = tuple(zip(loops[::2], loops[1::2], strict=True))
        return cls(down, last, across, words, spread, bias, ends if ends.words else None, pairs, pitch, channels)

    @property
    def numbers(self) -> tuple[int, ...]:
        fields = self.down, self.last, self.across, self.words, self.spread, self.bias, self.pitch, self.channels
        ends = (0,) * OuterEnds.COUNT if self.ends is None else astuple(self.ends)
        return (*fields, *ends, *(n for loop in self.loops for n in loop))

    @property
    def positions(self) -> int:
        return SIDE * (self.down - 1) + self.last

    @property
    def vectors(self) -> int:
        """Vectors of weights of a step."""
        return self.across * self.words

    @property
    def partial(self) -> str:
        """The predicate of the channels of the only tile, where these are not all."""
        return "p3" if self.channels < SIDE else "p0"

    def tile(self, i: int, j: int) -> int:
        """The tile of the ``i``-th positions by the ``j``-th channels."""
        return i * self.across + j

    def columns(self, i: int) -> str:
        """The predicate of the positions of a tile."""
        return "p2" if i == self.down - 1 else "p1"


def nest(block: OuterBlock, step: list[str]) -> list[str]:
    """The loops: ``at`` is the place in words, which every loop moves on and brings back."""
    loops = [(n, size // 4) for n, size in block.loops if n > 1]
    lines = step
    for depth in reversed(range(len(loops))):
        count = loops[depth][0]
        inner = [f"add %[at], %[at], %[step{depth}]", f"subs %[turn{depth}], %[turn{depth}], #1", f"b.ne {depth + 1}b"]
        lines = [f"mov %[turn{depth}], #{count}", f"{depth + 1}:", *lines, *inner]
        if depth:
            lines.append(f"sub %[at], %[at], %[whole{depth}]")
    return ["mov %[at], #0", *lines]


def contiguous(block: OuterBlock, vectors: int) -> int:
    """How many steps are written out where vectors of positions lie one after the other, of at most so many of either
    factor; 0 where they do not."""
    loops = [loop for loop in block.loops if loop[0] > 1]
    if block.words * block.spread != 1 or len(loops) != 1 or loops[0][1] != 4 * SIDE * block.down:
        return 0
    most = vectors // max(block.down, block.across)
    return next(count for count in (16, 8, 4, 2, 1) if count <= most and loops[0][0] % count == 0)


def spread(register: int, bits: int) -> list[str]:
    """A number of 32 bits in every lane."""
    low, high = bits & 0xFFFF, bits >> 16 & 0xFFFF
    return [f"movz %w[n], #{low}", f"movk %w[n], #{high}, lsl #16", f"dup z{register}.s, %w[n]"]


LOW, HIGH, ONES, FACTOR = 24, 25, 26, 28
"""Vectors of bounds, of what rounds to whole numbers, and of factors from the last on."""
INFINITE = (0xFF800000, 0x7F800000)


def finished(ends: OuterEnds, registers: Sequence[int]) -> list[str]:
    """Sums of sixteen channels each, in f32 in vectors of these numbers, as the results that ends make of them."""
    lines = [f"fmul z{k}.s, z{k}.s, z{FACTOR}.s" for k in registers] if ends.words == 1 or ends.scaled else []
    for name, bound, bits, none in (("fmax", LOW, ends.low, INFINITE[0]), ("fmin", HIGH, ends.high, INFINITE[1])):
        lines += [f"{name} z{k}.s, p0/m, z{k}.s, z{bound}.s" for k in registers if bits != none]
    if ends.words == 1:
        lines += [f"fadd z{k}.s, z{k}.s, z{ONES}.s" for k in registers]
        lines += [f"add z{k}.b, z{k}.b, #{ends.zero & 255}" for k in registers if ends.zero & 255]
    elif ends.words == 2:
        lines += [f"bfcvt z{k}.h, p0/m, z{k}.s" for k in registers]
    return lines


def stores_of(ends: OuterEnds) -> str:
    """The instruction that stores such results."""
    return {4: "st1w", 2: "st1h", 1: "st1b"}[ends.words]


def factor_of(ends: OuterEnds, register: int) -> list[str]:
    """The only factor of bytes in every lane of a vector."""
    return [f"ld1rw {{z{register}.s}}, p0/z, [%[q]]"] if ends.given else spread(register, ends.factor)


def channels_of(block: OuterBlock) -> list[str]:
    """The predicate of the channels of a tile that is not full."""
    return [f"mov %[n], #{block.channels}", "whilelt p3.s, xzr, %[n]"] if block.channels < SIDE else []


def finished_row(ends: OuterEnds, count: int, predicate: str) -> list[str]:
    """``count`` columns of a tile in z0 and so on, in f32: the results of sixteen channels each, stored."""
    stores = [f"{stores_of(ends)} {{z{k}.s}}, {predicate}, [%[s]]" for k in range(count)]
    return [*finished(ends, range(count)), *(line for each in stores for line in (each, "add %[s], %[s], %[plane]"))]
