"""The interface of algorithms: methods to compute a layer, with all their parameters.

An algorithm is data: a frozen value whose ``key`` is stable text, so that a table of measured times, a manifest or
another machine can name it.  Its class says where it applies and lists candidates; the value says what it costs, how
it wants its operands laid out and its weights packed, and lowers the layer to kernels.  Adding one (tiles of a matrix
unit) is a class in a file of its own, named in ``registry.ALGORITHMS``: whether it applies follows from the element
types of the problem and from the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self

import numpy as np

from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.machine import Machine
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType, Layout


# -------------------------------------------------------------------------------- kernels and their arguments
@dataclass(frozen=True)
class Input:
    """The buffer of the node's input ``i``."""

    i: int


@dataclass(frozen=True)
class Output:
    """The buffer of the node's output ``i``."""

    i: int = 0


@dataclass(frozen=True, eq=False)
class Weights:
    """An array stored with the model's weights, as it is."""

    data: Array


@dataclass(frozen=True)
class Scratch:
    """Bytes of the arena that live only while this node runs; equal names are the same bytes.

    ``per_thread`` says that every thread needs its own (the kernel's parameter is in the space "scratch").
    """

    name: str
    nbytes: int
    per_thread: bool = False


Arg = Input | Output | Weights | Scratch


@dataclass(frozen=True)
class Step:
    """A kernel and what to call it with, one argument per parameter."""

    kernel: Kernel
    args: tuple[Arg, ...]


# ----------------------------------------------------------------------------------------------- limits and costs
@dataclass(frozen=True)
class Limits:
    """Bounds of the cost of an algorithm.

    ``winograd`` is the largest tile of Winograd's algorithm, 0 for none, and ``max_winograd_error`` the largest error
    over the RMS of an output channel that it may add.  ``integer_winograd`` is the most bytes that the weights of a
    layer may take by Winograd's algorithm in integers, which is exact.  ``strassen`` says how often Strassen's may
    halve a product, 0 for never; each time makes weights 7/4 as large.  ``bf16x3``: products of f32 may be computed as
    three of bf16.
    """

    winograd: int = 4
    strassen: int = 2
    max_winograd_error: float = math.inf
    integer_winograd: float = math.inf
    bf16x3: bool = False


@dataclass(frozen=True)
class Cost:
    """``time`` in multiply-adds of a vector, by estimate; ``weights`` in bytes, as packed."""

    time: float = 0.0
    weights: int = 0


# --------------------------------------------------------------------------------------------------- problems
Problem = tuple[Conv, ...]
"""Convolutions of which each reads the result of the one before: what an algorithm computes.  A matrix product is a
convolution too (see ``kernels.conv``).  While candidates are compared, they are without halos and epilogues."""


def in_floats(problem: Problem) -> bool:
    """Whether its images are of floats, not of quantised integers."""
    return not any(s.x.dtype in (DType.I8, DType.U8, DType.I16) for s in problem)


@dataclass(frozen=True, eq=False)
class Stage:
    """A convolution of a layer about to be lowered, and where its operands are.

    ``weights`` are [channels out, channels in / groups, kh, kw]; None where they are an operand ``right``, read as it
    lies.  ``operands`` are those of the epilogue.
    """

    conv: Conv
    weights: Array | None
    bias: Array | None
    operands: tuple[Arg, ...] = ()
    left: Arg = Input(0)
    right: Arg | None = None

    @property
    def constant(self) -> Array:
        """The weights, where the algorithm applies to constant ones only."""
        assert self.weights is not None
        return self.weights

    def bias_args(self) -> list[Arg]:
        """f32 [channels out, those that fill the last block included]; nothing without a bias."""
        if self.bias is None:
            return []
        return [Weights(np.pad(self.bias.astype(np.float32), (0, self.conv.padded - self.conv.y.channels)))]

    def epilogue_args(self) -> list[Arg]:
        """The arguments of every kernel after its weights: bias, mask of padding lanes, the epilogue's operands."""
        mask = [Weights(lane_mask(self.conv.y.channels, self.conv.y.block))] if self.conv.clear else []
        return [*self.bias_args(), *mask, *self.operands]


def lane_mask(channels: int, block: int) -> Array:
    """i32, one per channel of whole blocks: -1 for a real channel, 0 for a padding lane."""
    mask = np.zeros(-(-channels // block) * block, np.int32)
    mask[:channels] = -1
    return mask


# ------------------------------------------------------------------------------------------------- algorithms
def without_halo(layout: Layout) -> Layout:
    """The layout with a halo of no elements, for kernels that leave out the taps beside an image."""
    return Layout(layout.block, ((0, 0),) * len(layout.halo))


class Algorithm(Protocol):
    """An algorithm for a problem, with all its parameters; compared by value."""

    name: ClassVar[str]
    """The first word of its key."""
    offered: ClassVar[int]
    """How many candidates are compared with those of other algorithms."""

    # Methods of the class
    own_memory: ClassVar[bool] = False
    """Whether each thread has memory of its own for intermediate results, which threads of a device do not have."""
    quantises: ClassVar[bool] = False
    """Whether it reads planes of f32 that ``Conv.image_scale`` makes integers of, and nothing else."""
    cut_alike: ClassVar[bool] = True
    """Whether kernels of which only the first positions may be needed have the same blocks and tiles as others."""

    any_block: ClassVar[bool] = False
    """Whether its kernels of floats store images in blocks of any number of vectors."""

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        """Whether the problem can be computed so at all."""
        ...

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        """At most ``count``, best first by estimate, for a problem that it applies to."""
        ...

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        """The inverse of ``numbers``.  Raises KeyError for one that is missing."""
        ...

    plain_weights: ClassVar[bool] = False
    """Whether weights of bytes must have no zero point, and 8 bits."""

    # Methods of one of them
    @property
    def numbers(self) -> Mapping[str, int]:
        """All that sets it apart from others of its class, by name."""
        ...

    @property
    def key(self) -> str:
        """Stable text, "winograd m=4 tiles=12 cols=6 vecs=2 pairs=0", which ``registry.parse`` reads."""
        return " ".join([self.name, *(f"{name}={n}" for name, n in self.numbers.items())])

    @property
    def packing(self) -> tuple[str | int, ...]:
        """Parameters that packed weights depend on, besides the weights and the problem."""
        ...

    def compared(self, problem: Problem, machine: Machine) -> float:
        """The time by which candidates of all algorithms are sorted, before layouts are known."""
        return self.cost(problem, machine).time

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        """Time and weights, by estimate."""
        ...

    def error(self, problem: Problem, weights: Array | None) -> float:
        """Maximum error on random data, relative to the RMS of an output channel, beyond direct summation (transform
        error and 16-bit storage).  ``weights`` are those of the last convolution, [channels out, channels in / groups,
        kh, kw]; None if they are not known."""
        return 0.0

    def most_error(self, limits: Limits) -> float:
        """The largest ``error`` that ``limits`` allow it."""
        return math.inf

    @property
    def numerics(self) -> tuple[str | int, ...]:
        """Parameters that ``error`` depends on, besides the problem."""
        return (self.name,)

    def layouts(self, problem: Problem, x: Layout, y: Layout) -> tuple[Layout, Layout]:
        """The layouts that it wants of input and output where direct sums want ``x`` and ``y``."""
        return x, y

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        """Kernels and their arguments for the ``stages``, which are ``problem`` with halos and epilogues."""
        ...


class WithoutParameters(Algorithm):
    """The base of algorithms that compute a layer in one way only."""

    offered: ClassVar[int] = 1

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        return [cls()]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls()

    @property
    def numbers(self) -> Mapping[str, int]:
        return {}

    @property
    def packing(self) -> tuple[str | int, ...]:
        return (self.name,)
