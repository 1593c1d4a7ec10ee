"""Arm's SME: outer products of vectors of 512 bits, added to four tiles of 16 rows by 16 columns of sums.

The rows of a tile are output channels and its columns neighbouring positions.  ``outer_f32``, ``outer_bf16``,
``outer_i8`` and ``outer_u8`` (positions without sign) make a block of sums, from their bias on, over all steps of a
nest of loops.  They store these as fours of channels, or what they make of them by ``OuterEnds``.  A step loads some
words of each position into as many vectors, by one instruction that takes these apart, and as many vectors of weights
for each tile of channels.  ``outer_turn`` puts rows of a matrix side by side, as these instructions read them.

Sums of f32 are fused multiply-adds in the order of the inputs.  Those of bf16 round to odd as ``isa.bf16.DOT2_ODD``
does; integers are exact.  Flushing of subnormal numbers follows FPCR for f32, and always happens for bf16.

The streaming mode, which vectors of that length and tiles need, begins and ends with every block, so that the rest of a
kernel is code of any processor.  Kernels ask Linux for the length of vectors of that mode when the first of them runs
(prctl PR_SME_GET_VL, which fails without SME), and compute by NEON where it is not 512 bits.  Those of bytes also
check one product, which emulators get wrong; TENON_UNCHECKED_OUTER_PRODUCTS leaves the check out, to count on these.
Source: Arm Architecture Reference Manual Supplement, The Scalable Matrix Extension (DDI 0616).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tenon.machine.isa.base import Assembly, ProductUnit, asked_once
from tenon.machine.isa.frame import LOCAL
from tenon.machine.isa.sme_blocks import (
    FACTOR,
    HIGH,
    INFINITE,
    LOW,
    ONES,
    SIDE,
    OuterBlock,
    OuterEnds,
    channels_of,
    contiguous,
    factor_of,
    finished_row,
    nest,
    spread,
)
from tenon.machine.isa.sme_single import single
from tenon.network.graph.dtype import DType

_TIME = 4.0
"""A quarter of an outer product's 256 multiply-adds would be sixteen vectors of NEON; one a cycle beside four of those
is not measured, but what processors with the unit are said to do."""

OUTER_F32 = ProductUnit("outer_f32", DType.F32, DType.F32, DType.F32, (16, 16, 1), _TIME)
OUTER_BF16 = ProductUnit("outer_bf16", DType.BF16, DType.BF16, DType.F32, (16, 16, 2), _TIME)
OUTER_I8 = ProductUnit("outer_i8", DType.I8, DType.I8, DType.I32, (16, 16, 4), _TIME)
OUTER_U8 = ProductUnit("outer_u8", DType.U8, DType.I8, DType.I32, (16, 16, 4), _TIME)

TILES = 4
"""Tiles of sums of 32 bits."""

Product = tuple[str, str]
"""The name of an instruction for outer products, and the suffix of its elements."""
PRODUCTS: Mapping[str, Product] = {
    "outer_f32": ("fmopa", "s"),
    "outer_bf16": ("bfmopa", "h"),
    "outer_i8": ("smopa", "b"),
    "outer_u8": ("sumopa", "b"),
}
_NAMES = "cc", "memory", "x8", "x9", "x12", "p0", "p1", "p2", "p3", "p8", *(f"v{i}" for i in range(32))
CLOBBERED = ", ".join(f'"{name}"' for name in _NAMES)
_ASSEMBLERS = "((defined(__clang__) && __clang_major__ >= 17) || (!defined(__clang__) && __GNUC__ >= 12))"
"""Compilers whose assemblers know the instructions; clang 14 does not take those of vectors from the directive."""
CONDITION = f"defined(__aarch64__) && defined(__linux__) && {_ASSEMBLERS}"
_BYTES_RIGHT = """\
#ifndef TENON_UNCHECKED_OUTER_PRODUCTS
static int outer_bytes_right(void) { /* QEMU before 9.0 adds products of bytes to the wrong sums */
  int8_t a[64];
  int32_t sums[16];
  for (int i = 0; i < 64; i++) a[i] = (int8_t)(37 * i);
  __asm__ volatile(
    ".arch_extension sme\\nsmstart\\nptrue p0.b\\nzero {za}\\nld1w {z0.s}, p0/z, [%[a]]\\n"
    "smopa za0.s, p0/m, p0/m, z0.b, z0.b\\nmov w12, #0\\nst1w {za0h.s[w12, 0]}, p0, [%[sums]]\\nsmstop"
    : : [a] "r"(a), [sums] "r"(sums) : CLOBBERED);
  for (int i = 0; i < 16; i++)
    for (int k = 0; k < 4; k++) sums[i] -= a[k] * a[4 * i + k];
  for (int i = 1; i < 16; i++) sums[0] |= sums[i];
  return sums[0] == 0;
}
#else
static int outer_bytes_right(void) { return 1; }
#endif
"""
_ASK = """\
register long result __asm__("x0") = 64; /* PR_SME_GET_VL: bytes, and flags above them */
register long call __asm__("x8") = 167; /* prctl */
__asm__ volatile("svc #0" : "+r"(result) : "r"(call) : "memory");
if (result > 0 && (result & 0xffff) == 64RIGHT) own = 1;"""
_TESTS = {False: "outer_products_ready", True: "outer_bytes_ready"}
"""The functions that say whether a machine has outer products, and of bytes."""
FLOATS_READY, BYTES_READY = _TESTS[False], _TESTS[True]


def asks(of_bytes: bool) -> str:
    """The functions that ask for what a machine has."""
    about = "1: vectors of the streaming mode have 512 bits, -1: they have not"
    text = asked_once(_TESTS[of_bytes], about, _ASK.replace("RIGHT", " && outer_bytes_right()" if of_bytes else ""))
    check = _BYTES_RIGHT.replace("CLOBBERED", CLOBBERED) if of_bytes else ""
    return f"#if {CONDITION}\n{check}{text}\n#endif"


def begin(block: OuterBlock, sums: DType) -> list[str]:
    """The streaming mode, predicates and the bias in the sums."""
    lines = [
        "smstart",
        "ptrue p0.b",
        "ptrue p1.b",
        f"mov %[n], #{4 * block.last}",
        "whilelt p2.b, xzr, %[n]",
        "zero {za}",
        *channels_of(block),
    ]
    if not block.bias:
        return lines
    lines += ["fmov z17.s, #1.0"] if sums is DType.F32 else []
    for j in range(block.across):
        lines.append(f"ld1w {{z16.s}}, p0/z, [%[b], #{j}, mul vl]")
        for i in range(block.down):
            into = f"za{block.tile(i, j)}.s, p0/m, {block.columns(i)}/m, z16.s"
            lines.append(f"fmopa {into}, z17.s" if sums is DType.F32 else f"addva {into}")
    return lines


def _constants(ends: OuterEnds) -> list[str]:
    lines = [*spread(LOW, ends.low), *spread(HIGH, ends.high)]
    if ends.words == 1:
        lines += spread(ONES, 0x4B400000)
        lines += [line for k in range(4) for line in factor_of(ends, FACTOR + k)] if ends.single else []
    return [*lines, *(spread(FACTOR, ends.factor) if ends.scaled else [])]


def _four(block: OuterBlock, ends: OuterEnds, i: int, channel: int, into: int) -> list[str]:
    """The results of four channels of a tile of positions, from vector ``into`` on."""
    tile = f"za{block.tile(i, channel // SIDE)}h.s"
    own = [into + k for k in range(4)] if ends.words == 4 else [16 + k for k in range(4)]
    lines = [f"mov w12, #{channel % SIDE}", *(f"mova z{v}.s, p0/m, {tile}[w12, {k}]" for k, v in enumerate(own))]
    if ends.words == 1:
        lines += [f"scvtf z{v}.s, p0/m, z{v}.s" for v in own]
        if not ends.single:
            lines += [f"ld1rw {{z{FACTOR + k}.s}}, p0/z, [%[q], #{4 * (channel + k)}]" for k in range(4)]
        lines += [f"fmul z{v}.s, z{v}.s, z{FACTOR + k}.s" for k, v in enumerate(own)]
    elif ends.scaled:
        lines += [f"fmul z{v}.s, z{v}.s, z{FACTOR}.s" for v in own]
    for name, bound, bits, none in (("fmax", LOW, ends.low, INFINITE[0]), ("fmin", HIGH, ends.high, INFINITE[1])):
        lines += [f"{name} z{v}.s, p0/m, z{v}.s, z{bound}.s" for v in own if bits != none]
    if ends.words == 1:
        lines += [f"fadd z{v}.s, z{v}.s, z{ONES}.s" for v in own]
        lines += [f"sli z{own[0]}.s, z{own[k]}.s, #{8 * k}" for k in (1, 2, 3)]
        lines += [f"add z{own[0]}.b, z{own[0]}.b, #{ends.zero & 255}"] if ends.zero & 255 else []
        lines.append(f"mov z{into}.d, z{own[0]}.d")
    elif ends.words == 2:
        lines += [f"bfcvt z{v}.h, p0/m, z{v}.s" for v in own]
        lines += [f"sli z{own[k]}.s, z{own[k + 1]}.s, #16" for k in (0, 2)]
        lines += [f"mov z{into + k}.d, z{own[2 * k]}.d" for k in (0, 1)]
    return lines


def _row(ends: OuterEnds, tile: int, count: int, predicate: str) -> list[str]:
    if ends.words == 4 and (ends.low, ends.high) == INFINITE and not ends.scaled:
        stores = [f"st1w {{za{tile}v.s[w12, {k}]}}, {predicate}, [%[s]]" for k in range(count)]
        return [line for store in stores for line in (store, "add %[s], %[s], %[plane]")]
    lines = [f"mova z{k}.s, p0/m, za{tile}v.s[w12, {k}]" for k in range(count)]
    lines += [f"scvtf z{k}.s, p0/m, z{k}.s" for k in range(count)] if ends.words == 1 else []
    return [*lines, *finished_row(ends, count, predicate)]


def _operands(block: OuterBlock, inputs: str, rest: Sequence[str]) -> tuple[list[str], list[str]]:
    """The operands that the assembly writes, and those that it only reads."""
    places = list(rest[1:])
    loops = [(n, size // 4) for n, size in block.loops if n > 1]
    written = [f'[w] "+&r"({LOCAL}w)', f'[s] "+&r"({LOCAL}s)', f'[at] "=&r"({LOCAL}at)', f'[n] "=&r"({LOCAL}n)']
    written += [f'[turn{depth}] "=&r"({LOCAL}turn{depth})' for depth in range(len(loops))]
    apart = 4 * SIDE * block.spread
    read = [f'[x{i}] "r"((const char *)({inputs}) + {apart * i})' for i in range(block.down)]
    read += [f'[b] "r"({places.pop(0)})'] if block.bias else []
    if ends := block.ends:
        read += [f'[q] "r"({places.pop(0)})'] if ends.given else []
        across = 4 * SIDE * ends.fours * ends.words
        read += [f'[y{i}] "r"((char *)({places[0]}) + {across * i})' for i in range(block.down)]
        read.append(f'[plane] "r"({ends.plane}L)')
    read += [f'[pitch] "r"({block.pitch}L)'] if block.pitch else []
    read += [f'[step{depth}] "r"({size}L)' for depth, (_, size) in enumerate(loops)]
    read += [f'[whole{depth}] "r"({n * size}L)' for depth, (n, size) in enumerate(loops) if depth]
    return written, read


@dataclass(frozen=True)
class OuterWriter:
    """How an extension writes the parts of a block.

    ``begin``: the streaming mode, predicates and the bias in the sums.  ``weights`` loads so many vectors of weights,
    the second number, from z16 + the first number on, and ``positions`` those of so many steps to z0 and on where they
    lie one after the other, which are at most ``most`` of either factor.  ``sums`` takes four rows of a tile to z0 to
    z3.  ``constants`` are ahead of the results of ends: ``four`` makes those of four channels of a tile of positions,
    from the first channel and the first vector of results on, and ``row`` stores those of up to four columns of a tile
    from w12 on, of the channels of a predicate.
    """

    extension: str
    begin: Callable[[OuterBlock, DType], list[str]]
    weights: Callable[[int, int], list[str]]
    positions: Callable[[OuterBlock, int], list[str]]
    most: int
    sums: Callable[[int], list[str]]
    constants: Callable[[OuterEnds], list[str]]
    four: Callable[[OuterBlock, OuterEnds, int, int, int], list[str]]
    row: Callable[[OuterEnds, int, int, str], list[str]]

    def step(self, block: OuterBlock, product: Product) -> list[str]:
        """A step of a nest of loops: vectors of positions are z0 and so on, ``spread`` for each tile."""
        load = "ld1w" if block.spread == 1 else f"ld{block.spread}w"
        lines = []
        for i in range(block.down):
            registers = ", ".join(f"z{i * block.spread + k}.s" for k in range(block.spread))
            lines.append(f"{load} {{{registers}}}, {block.columns(i)}/z, [%[x{i}], %[at], lsl #2]")
        lines += self.weights_of(block, 1)
        for q in range(block.words):
            lines += _products(block, product, range(q, SIDE, block.words), range(q, SIDE, block.spread))
        return lines

    def weights_of(self, block: OuterBlock, count: int) -> list[str]:
        """The weights of so many steps, and the address of those of the next."""
        if not block.pitch:
            return [*self.weights(0, count * block.vectors), f"addvl %[w], %[w], #{count * block.vectors}"]
        lines = list[str]()
        for k in range(count):
            partial = [f"ld1w {{z{SIDE + k}.s}}, p3/z, [%[w], #-8, mul vl]"]
            lines += partial if block.partial == "p3" else self.weights(k * block.across, block.across)
            lines.append("add %[w], %[w], %[pitch]")
        return lines

    def steps(self, block: OuterBlock, product: Product, count: int) -> list[str]:
        """The loop over steps, so many at a time, where vectors of positions lie one after the other; ``at`` is their
        address."""
        (turns,) = [n for n, _ in block.loops if n > 1]
        down, across = block.down, block.across
        lines = ["mov %[at], %[x0]", f"mov %[turn0], #{turns // count}", "1:"]
        lines += [*self.positions(block, count), *self.weights_of(block, count)]
        for k in range(count):
            lines += _products(block, product, range(k * across, SIDE), range(k * down, SIDE))
        lines.append(f"addvl %[at], %[at], #{count * down}")
        return [*lines, "subs %[turn0], %[turn0], #1", "b.ne 1b"]

    def stores(self, block: OuterBlock) -> list[str]:
        """Four rows of a tile are four channels, whose vectors are stored by turns: fours of channels for each
        position."""
        lines, stored = list[str](), 0
        for i in range(block.down):
            for j in range(block.across):
                for first in range(0, SIDE, 4):
                    lines += [f"mov w12, #{first}", *self.sums(block.tile(i, j))]
                    if stored == 8:
                        lines += ["addvl %[s], %[s], #31", "addvl %[s], %[s], #1"]
                        stored = 0
                    lines.append(f"st4w {{z0.s, z1.s, z2.s, z3.s}}, {block.columns(i)}, [%[s], #{4 * stored}, mul vl]")
                    stored += 1
        return lines

    def results(self, block: OuterBlock, ends: OuterEnds) -> list[str]:
        """The vectors of the results of some fours of channels are z0 and so on, and are stored by turns."""
        if ends.in_rows:
            return self._rows(block, ends)
        count = ends.fours * ends.words
        store = f"st{count}w" if count > 1 else "st1w"
        registers = ", ".join(f"z{k}.s" for k in range(count))
        lines = self.constants(ends)
        for i in range(block.down):
            lines.append(f"mov %[s], %[y{i}]")
            for channel in range(0, block.across * SIDE, 4 * ends.fours):
                for number in range(ends.fours):
                    lines += self.four(block, ends, i, channel + 4 * number, number * ends.words)
                lines.append(f"{store} {{{registers}}}, {block.columns(i)}, [%[s]]")
                lines.append("add %[s], %[s], %[plane]")
        return lines

    def _rows(self, block: OuterBlock, ends: OuterEnds) -> list[str]:
        """Columns of a tile are positions: the results of sixteen channels each."""
        lines = [*spread(LOW, ends.low), *spread(HIGH, ends.high)]
        lines += spread(FACTOR, ends.factor) if ends.scaled else []
        if ends.words == 1:
            lines += spread(ONES, 0x4B400000)
            lines += factor_of(ends, FACTOR) if ends.single else []
        for j in range(block.across):
            if ends.words == 1 and not ends.single:
                lines.append(f"ld1w {{z{FACTOR}.s}}, p0/z, [%[q], #{j}, mul vl]")
            for i in range(block.down):
                lines.append(f"add %[s], %[y{i}], #{SIDE * ends.words * j}")
                count = block.last if i == block.down - 1 else SIDE
                for first in range(0, count, 4):
                    lines += [
                        f"mov w12, #{first}",
                        *self.row(ends, block.tile(i, j), min(4, count - first), block.partial),
                    ]
        return lines


def _products(block: OuterBlock, product: Product, weights: Sequence[int], positions: Sequence[int]) -> list[str]:
    """A product for every tile: of vectors of weights, numbered from z16 on, and of positions, one for each of both."""
    (name, element), lines = product, list[str]()
    for i in range(block.down):
        for j in range(block.across):
            into = f"za{block.tile(i, j)}.s, p0/m, {block.columns(i)}/m"
            lines.append(f"{name} {into}, z{SIDE + weights[j]}.{element}, z{positions[i]}.{element}")
    return lines


def block_text(
    writer: OuterWriter, product: Product, weights: str, inputs: str, rest: Sequence[str], numbers: Sequence[int]
) -> list[str]:
    """``rest``: the sums; the bias where there is one; factors of bytes and the results where there are ends."""
    block = OuterBlock.of(numbers)
    sums, count = DType.I32 if product[1] == "b" else DType.F32, contiguous(block, writer.most)
    if block.positions == 1:
        lines = single(block, product, multi=writer.extension == "sme2")
    else:
        lines = writer.begin(block, sums)
        lines += writer.steps(block, product, count) if count else nest(block, writer.step(block, product))
        lines += writer.stores(block) if block.ends is None else writer.results(block, block.ends)
    written, read = _operands(block, inputs, rest)
    turns = [f"{LOCAL}turn{depth}" for depth in range(len([n for n, _ in block.loops if n > 1]))]
    return [
        "{",
        f"  const char *{LOCAL}w = (const char *)({weights}) + 512;",
        f"  char *{LOCAL}s = (char *)({rest[0]});",
        f"  long {', '.join([f'{LOCAL}at', f'{LOCAL}n', *turns])};",
        "  __asm__ volatile(",
        f'    ".arch_extension {writer.extension}\\n"',
        *(f'    "{line}\\n"' for line in (*lines, "smstop")),
        f"    : {', '.join(written)}",
        f"    : {', '.join(read)}",
        f"    : {CLOBBERED});",
        "}",
    ]


def _weights(first: int, count: int) -> list[str]:
    return [f"ld1w {{z{SIDE + first + k}.s}}, p0/z, [%[w], #{k - 8}, mul vl]" for k in range(count)]


def _positions(block: OuterBlock, count: int) -> list[str]:
    vectors = range(count * block.down)
    return [f"ld1w {{z{k}.s}}, {block.columns(k % block.down)}/z, [%[at], #{k}, mul vl]" for k in vectors]


def _sums(tile: int) -> list[str]:
    return [f"mova z{k}.s, p0/m, za{tile}h.s[w12, {k}]" for k in range(4)]


_WRITER = OuterWriter("sme", begin, _weights, _positions, 8, _sums, _constants, _four, _row)


def _of(name: str) -> Assembly:
    def text(weights: str, inputs: str, rest: Sequence[str], numbers: Sequence[int]) -> list[str]:
        return block_text(_WRITER, PRODUCTS[name], weights, inputs, rest, numbers)

    of_bytes = PRODUCTS[name][1] == "b"
    return Assembly(CONDITION, text, test=_TESTS[of_bytes], asks=asks(of_bytes))


@dataclass(frozen=True)
class OuterTurn:
    """The numbers of ``outer_turn``, which stores ``words`` words of each of ``rows`` rows, at most 16, side by side:
    the rows lie ``apart`` bytes after each other, and the vectors of words ``pitch``.  It stores whole sixteens of
    vectors."""

    rows: int
    words: int
    apart: int
    pitch: int


def _turn(into: str, inputs: str, _: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Rows are loaded as rows of a tile, whose columns are stored."""
    turn = OuterTurn(*numbers)
    lines = ["smstart", "ptrue p0.b", f"mov %[n], #{turn.rows}", "whilelt p1.s, xzr, %[n]"]
    lines += ["mov %[at], #0", "1:", "whilelt p2.s, %[at], %[words]", "mov %[r], %[x]"]
    for row in range(turn.rows):
        lines += [f"mov w12, #{row}"] if row % 4 == 0 else []
        lines += [f"ld1w {{za0h.s[w12, {row % 4}]}}, p2/z, [%[r], %[at], lsl #2]", "add %[r], %[r], %[apart]"]
    for column in range(SIDE):
        lines += [f"mov w12, #{column}"] if column % 4 == 0 else []
        lines += [f"st1w {{za0v.s[w12, {column % 4}]}}, p1, [%[p]]", "add %[p], %[p], %[pitch]"]
    lines += ["add %[at], %[at], #16", "cmp %[at], %[words]", "b.lt 1b"]
    names = [f"{LOCAL}{name}" for name in ("at", "n", "r")]
    written = ", ".join(f'[{name.removeprefix(LOCAL)}] "=&r"({name})' for name in names)
    read = ", ".join(f'[{name}] "r"({n}L)' for name, n in (("apart", turn.apart), ("pitch", turn.pitch)))
    return [
        "{",
        f"  char *{LOCAL}p = (char *)({into});",
        f"  long {', '.join(names)};",
        "  __asm__ volatile(",
        '    ".arch_extension sme\\n"',
        *(f'    "{line}\\n"' for line in (*lines, "smstop")),
        f'    : [p] "+&r"({LOCAL}p), {written}',
        f'    : [x] "r"({inputs}), [words] "r"({turn.words}L), {read}',
        f"    : {CLOBBERED});",
        "}",
    ]


TURN = "outer_turn"
ASSEMBLY = {
    **{name: _of(name) for name in PRODUCTS},
    TURN: Assembly(CONDITION, _turn, test=_TESTS[False], asks=asks(False)),
}
