"""The machine parameters that kernel generators depend on: widths and counts, never a name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tenon.network.graph.types import DType


@dataclass(frozen=True)
class Machine:
    """``lanes`` f32 elements make a vector; ``registers`` vectors fit the register file.

    ``block`` is how many channels lie side by side in a blocked layout: a multiple of ``lanes``.
    """

    lanes: int = 1
    registers: int = 16
    block: int = 4
    folds_broadcast: bool = False  # a multiply-add can take one lane from memory and spread it
    prefetch: bool = False
    unroll: int = 4  # input channels per step of the inner loop
    chains: int = 8  # independent multiply-adds that hide the latency of one
    dot2: float = 0.0  # multiply-adds of f32 in the time of a product of pairs of bf16 (``loops.dot2``); 0: it has none
    half: bool = False  # it multiplies vectors of twice as many f16 in the time of one of f32 (``loops.fma_f16``)
    dot4: tuple[
        DType, ...
    ] = ()  # u8, i8: what it multiplies by i8 quickly, four at a time (``loops.dot4``); best first
    dot4_time: float = 1.0  # multiply-adds of f32 in the time of one of ``dot4``, by instructions
    integer_time: float = 1.0  # multiply-adds of f32 in the time of one estimated of integers, by instructions
    narrow_dot4: bool = False  # it does only where no i8 of the weights is -128 (``dot4_narrow`` of ``loops.OPS``)
    mmla: bool = False  # it multiplies blocks of 2x8 bytes of either sign (``loops.mmla``)
    pairs: bool = False  # it multiplies pairs of 16 bits in words of 32 (``loops.dot2_i16``)
    dot16: bool = False  # it adds sixteen products of bytes to a scalar (``loops.dot16``)
    lookup: int = (
        0  # entries in each of the vectors of a table in which it looks up many bytes at once (``loops.lookup``)
    )
    scalar: bool = False  # it multiplies integers one by one, in few registers (``kernels.integer_scalar``)
    soft_float: bool = False  # floats are computed by calls, for want of an FPU: no tap beside an image is multiplied
    threads: int = 1  # that algorithms are chosen for
    stream: float = 5.0  # bytes of main memory that arrive in the time of one multiply-add of a vector

    @property
    def rounds_in_integers(self) -> bool:
        """Whether sums times factors in f32 are computed faster in fixed point (``requantize.even_factors``): without
        an FPU, and where vectors are of integers only."""
        return self.soft_float or self.dot16

    def lanes_of(self, *dtypes: DType) -> int:
        """Elements of a vector that fits the registers in the widest of these types; f32 at least, in which narrower
        types are computed."""
        return max(1, self.lanes * 4 // max(4, *(dtype.bytes for dtype in dtypes)))


def in_halves(machine: Machine) -> Machine:
    """``machine`` with blocks that vectors of f16 fit in."""
    return replace(machine, block=max(machine.block, 2 * machine.lanes))
