"""Blocks of one position of Arm's SME: a tile of outer products would have one column, so that vectors are multiplied.

A vector of weights has a word of sixteen channels, which is multiplied by a word of the position: FMLA, BFDOT and SDOT
by element add what FMOPA, BFMOPA and SMOPA do, in the same order.  SME2 multiplies vectors of four tiles of channels by
one instruction, whose sums are vectors of the array that holds tiles.  Source: as of ``isa.sme`` and ``isa.sme2``.
"""

from __future__ import annotations

from tenon.machine.isa.sme_blocks import (
    FACTOR,
    HIGH,
    LOW,
    ONES,
    SIDE,
    OuterBlock,
    OuterEnds,
    channels_of,
    factor_of,
    finished,
    nest,
    spread,
    stores_of,
)

_BY_ELEMENT = {"fmopa": "fmla", "bfmopa": "bfdot", "smopa": "sdot", "sumopa": "sudot"}
"""Products by a word of the position, by the names of outer products."""
_SUMS, _TOGETHER = 4, 4
"""The first vector of sums, and vectors that one instruction of SME2 multiplies."""
_CHUNK, _CHUNKS = 4, 4
"""Steps of one word whose words are loaded at once, and how many times these are written out at most."""
_ARRAY = "za.d[w8, 0, vgx4], {z4.d-z7.d}"


class _Single:
    def __init__(self, block: OuterBlock, product: tuple[str, str], *, multi: bool) -> None:
        self.block, (name, self.element) = block, product
        self.name = _BY_ELEMENT[name]
        loops = [loop for loop in block.loops if loop[0] > 1]
        one_by_one = block.words == 1 and len(loops) == 1 and loops[0][1] == 4
        self.chunks = loops[0][0] // _CHUNK if one_by_one and loops[0][0] % _CHUNK == 0 else 0
        self.together = multi and block.across == _TOGETHER and (self.chunks > 0 or block.words == _CHUNK)

    def products(self, x: int, words: int, *, by_words: bool) -> list[str]:
        """By so many words of vector ``x``; weights are [words][tiles] where ``by_words``, else [tiles][words]."""
        if self.together:
            vectors = [f"{{z{SIDE + 4 * q}.{self.element}-z{SIDE + 4 * q + 3}.{self.element}}}" for q in range(words)]
            return [
                f"{self.name} za.s[w8, 0, vgx4], {each}, z{x}.{self.element}[{q}]" for q, each in enumerate(vectors)
            ]
        lines, across = list[str](), self.block.across
        for q in range(words):
            for j in range(across):
                weights = SIDE + (q * across + j if by_words else j * words + q)
                lines.append(f"{self.name} z{_SUMS + j}.s, z{weights}.{self.element}, z{x}.{self.element}[{q}]")
        return lines

    def weights(self, count: int, *, by_words: bool) -> list[str]:
        """Load ``count`` vectors of weights, and advance the address to the next."""
        if self.block.pitch:
            return [line for step in range(count // self.block.across) for line in self.matrix_row(step)]
        return [*self.packed(count, by_words=by_words), f"addvl %[w], %[w], #{count}"]

    def matrix_row(self, step: int) -> list[str]:
        first, across = SIDE + step * self.block.across, self.block.across
        if self.together:
            loads = [f"ld1w {{z{first}.s-z{first + 3}.s}}, pn8/z, [%[w], #-8, mul vl]"]
        else:
            each = enumerate(["p0"] * (across - 1) + [self.block.partial])
            loads = [f"ld1w {{z{first + j}.s}}, {predicate}/z, [%[w], #{j - 8}, mul vl]" for j, predicate in each]
        return [*loads, "add %[w], %[w], %[pitch]"]

    def packed(self, count: int, *, by_words: bool) -> list[str]:
        if not self.together:
            return [f"ld1w {{z{SIDE + k}.s}}, p0/z, [%[w], #{k - 8}, mul vl]" for k in range(count)]
        lines = list[str]()
        for i in range(4):
            numbers = [SIDE + 4 * i + k for k in range(4)] if by_words else [SIDE + i + 4 * k for k in range(4)]
            registers = ", ".join(f"z{k}.s" for k in numbers)
            lines.append(f"ld1w {{{registers}}}, pn8/z, [%[w], #{4 * i - 8}, mul vl]")
        return lines

    def loop(self) -> list[str]:
        block = self.block
        if self.chunks:
            times = next(n for n in range(_CHUNKS, 0, -1) if self.chunks % n == 0)
            lines = ["mov %[at], %[x0]", f"mov %[turn0], #{self.chunks // times}", "1:"]
            for x in range(times):
                lines.append(f"ld1rqw {{z{x}.s}}, p0/z, [%[at], #{16 * x}]")
                lines += self.weights(_CHUNK * block.across, by_words=True)
                lines += self.products(x, _CHUNK, by_words=True)
            return [*lines, f"add %[at], %[at], #{16 * times}", "subs %[turn0], %[turn0], #1", "b.ne 1b"]
        load = {1: "ld1rw {z0.s}", 2: "ld1rd {z0.d}", 4: "ld1rqw {z0.s}"}[block.words]
        step = ["add %[n], %[x0], %[at], lsl #2", f"{load}, p0/z, [%[n]]"]
        step += self.weights(block.vectors, by_words=False)
        step += self.products(0, block.words, by_words=False)
        return nest(block, step)

    def pieces(self, register: int, channels: int, store: str, apart: str) -> list[str]:
        """Stores of so many channels of a vector each."""
        lines = list[str]()
        for first in range(0, SIDE, channels):
            if first:
                lines.append(f"ext z{register}.b, z{register}.b, z{register}.b, #{4 * channels}")
            lines += [f"{store} {{z{register}.s}}, p1, [%[s]]", f"add %[s], %[s], {apart}"]
        return lines

    def results(self, ends: OuterEnds) -> list[str]:
        channels = self.block.channels if ends.in_rows else 4 * ends.fours
        whole = SIDE if ends.in_rows else channels
        lines = [*spread(LOW, ends.low), *spread(HIGH, ends.high), f"mov %[n], #{channels}", "whilelt p1.s, xzr, %[n]"]
        lines += spread(FACTOR, ends.factor) if ends.scaled else []
        if ends.words == 1:
            lines += spread(ONES, 0x4B400000)
            lines += factor_of(ends, FACTOR) if ends.single else []
        lines += ["mov %[s], %[y0]"]
        for j in range(self.block.across):
            own = _SUMS + j
            if ends.words == 1:
                lines += [] if ends.single else [f"ld1w {{z{FACTOR}.s}}, p0/z, [%[q], #{j}, mul vl]"]
                lines.append(f"scvtf z{own}.s, p0/m, z{own}.s")
            apart = f"#{SIDE * ends.words}" if ends.in_rows else "%[plane]"
            lines += [*finished(ends, [own]), *self.pieces(own, whole, stores_of(ends), apart)]
        return lines

    def lines(self) -> list[str]:
        across = range(self.block.across)
        lines = ["smstart", "ptrue p0.b", *channels_of(self.block)]
        if self.block.bias:
            lines += [f"ld1w {{z{_SUMS + j}.s}}, p0/z, [%[b], #{j}, mul vl]" for j in across]
        else:
            lines += [f"dup z{_SUMS + j}.s, #0" for j in across]
        lines += ["ptrue pn8.s", "mov w8, #0", f"mova {_ARRAY}"] if self.together else []
        lines += self.loop()
        lines += ["mova {z4.d-z7.d}, za.d[w8, 0, vgx4]"] if self.together else []
        if self.block.ends is not None:
            return [*lines, *self.results(self.block.ends)]
        lines += ["mov %[n], #4", "whilelt p1.s, xzr, %[n]"]
        return [*lines, *(line for j in across for line in self.pieces(_SUMS + j, 4, "st1w", f"#{16 * SIDE}"))]


def single(block: OuterBlock, product: tuple[str, str], *, multi: bool) -> list[str]:
    """The lines of a block of one position; ``multi``: with instructions of SME2.

    Sums that are stored are [fours of channels][16 positions][4], of which the first position is written.
    """
    return _Single(block, product, multi=multi).lines()
