"""Convolutions and matrix products of quantised integers: weights, sums, and how a sum becomes an element."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.algorithms import registry
from tenon.machine.algorithms.base import Stage
from tenon.machine.algorithms.integers import IntegerStage
from tenon.machine.kernels import conv as dense
from tenon.machine.kernels import integer_conv, integer_depthwise
from tenon.machine.kernels.requantize import NEAR, Added, Requantize, Rounding, in_integers
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I32, DType, Quant, TensorType
from tenon.network.ops import integer_pairs
from tenon.network.ops.base import (
    Algorithm,
    Arg,
    Cost,
    ErrorBound,
    Input,
    Operator,
    Site,
    Step,
    Weights,
    padding_mask,
    typed,
)
from tenon.network.ops.integer_pairs import PairNumbers, PairProduct
from tenon.network.ops.requantize import Factors, clamped, largest_added, largest_sums, limits, row_type

ADDED = 5
"""The input of a convolution that is added to the sums; the next one has its factors."""

BYTES = frozenset({DType.I8, DType.U8})
SUMMED = frozenset({I32, DType.F32})
"""Element types of results that an epilogue is applied to, of bytes and of the sums themselves."""

ACTIVATIONS = (DType.I8, DType.U8, DType.I16)
"""Element types of quantised activations."""


@dataclass(frozen=True)
class IntegerProduct(Operator):
    """Parts that sums of products of integers share: how a sum becomes an element.

    Inputs: x, constant weights, bias in i32 or absent, factors per channel or one for all, and shifts unless
    ``rounding`` is "float" (see ``ops.requantize``).  The sum of (x - ``x_zero``) * (w - ``w_zero``), plus the bias,
    times the factor, rounded, plus ``zero``, is clamped between ``low`` and ``high``.  ``scale`` is that of the result.
    Negative sums are multiplied by ``slope``, from 0 to 1, before they are rounded to elements: a LeakyRelu.

    With the rounding "none" the result is the sums, in i32.  The fourth input, if there is one, is then an integer of
    i32 that is subtracted from x, too: a zero point that is known at run time.
    """

    rounding: Rounding = "double"
    x_zero: int = 0
    w_zero: int = 0
    zero: int = 0
    low: int = -128
    high: int = 127
    to: str = "i8"
    scale: float = 1.0
    slope: float = 1.0
    quantised: ClassVar[bool] = True
    arity: ClassVar[tuple[int, int]] = (4, 5)
    accuracy: ClassVar[ErrorBound] = ErrorBound.EXACT

    def zero_points(self) -> tuple[int]:
        return (self.x_zero,)

    def result(self, dims: tuple[int, ...]) -> TensorType:
        dtype = DType(self.to)
        if self.rounding == "none":
            return TensorType(I32, dims)
        least, most = limits(dtype)
        if not least <= self.low <= self.high <= most:
            raise ShapeError(f"{self.name}: bounds {self.low} to {self.high} do not fit {dtype}")
        if not 0 <= self.slope <= 1:
            raise ShapeError(f"{self.name}: a slope of {self.slope} is not from 0 to 1")
        return TensorType(dtype, dims, quant=Quant((self.scale,), (self.zero,)))

    def check(self, inputs: Sequence[Value | None], channels: int) -> None:
        """Raises ShapeError where element types, bias or factors do not fit."""
        x = typed(inputs)[0]
        if x.dtype not in ACTIVATIONS:
            raise ShapeError(f"{self.name}: activations of {x.dtype} are not quantised integers")
        wanted = (DType.F32,) if self.rounding == "float" else (I32, I32)
        given = [v.type for v in inputs[3:5] if v is not None]
        if self.rounding == "none":
            if any(t.dtype is not I32 or t.size != 1 for t in given):
                raise ShapeError(f"{self.name}: {', '.join(map(str, given))} is not one zero point of i32")
        elif tuple(t.dtype for t in given) != wanted or any(t.dims not in ((channels,), (1,)) for t in given):
            raise ShapeError(f"{self.name}: factors {', '.join(map(str, given))} do not fit {channels} channels")
        if inputs[2] is not None and (inputs[2].type.dtype, inputs[2].type.dims) != (I32, (channels,)):
            raise ShapeError(f"{self.name}: bias {inputs[2].type} does not fit {channels} channels")

    def centred(self, x: Array, zero: Array | None) -> Array:
        """The integers less their zero point, in i64; ``zero`` is what is subtracted at run time, if anything is."""
        known = zero if self.rounding == "none" else None
        return x.astype(np.int64) - self.x_zero - (0 if known is None else int(known.reshape(())))

    def stored(self, total: Array, factors: Array | None, shifts: Array | None) -> Array:
        """Sums, channels last, as elements of the result."""
        if self.rounding == "none" or factors is None:
            return total.astype(np.int32)
        scaled = Factors(self.rounding, factors, shifts, self.slope).apply(total) + self.zero
        return clamped(scaled, self.low, self.high, DType(self.to))

    def compiled(self, site: Site) -> str:
        read = (*site.extras, ADDED) if adds(site) else site.extras
        read = (*read, 3) if self.rounding == "none" else read
        own = (i for i in range(1, len(site.inputs)) if site.has(i) and i not in read)
        if any(site.constants[i] is None for i in own):
            return "weights, bias or factors computed at run time: they must be constants of the model"
        return ""

    def factors(self, site: Site) -> tuple[Array | None, Array | None]:
        """Factors per channel, or multipliers and shifts; none with the rounding "none"."""
        if self.rounding == "none":
            return None, None
        return site.constants[3], None if self.rounding == "float" else site.constants[4]

    def added(self, site: Site) -> tuple[Added, Array] | None:
        """The operand added to the sums, and its factors, if there is one."""
        return None

    def largest(self, site: Site, weights: Array) -> Array:
        """The largest magnitude of each sum."""
        span = limits(site.input(0).dtype)
        sums, other = largest_sums(weights, self.w_zero, span, self.x_zero, site.constants[2]), self.added(site)
        if other is not None:
            added, factors = other
            sums = sums + largest_added(added.zero, limits(site.input(ADDED).dtype), factors, added.shift)
        return sums

    def sums(self, weights: Array, bias: Array | None, shifted: int) -> Array:
        """The bias in i32 with the part of the zero point of x in it, where ``shifted`` is added to x; ``weights`` have
        channels first."""
        whole = weights.astype(np.int64) - self.w_zero
        total = -(self.x_zero + shifted) * whole.reshape(len(whole), -1).sum(1)
        result: Array = (total if bias is None else total + bias).astype(np.int32)
        return result

    def pair_numbers(self, site: Site) -> PairNumbers | None:
        """The numbers of the product by pairs of 16 bits, if they can be computed so; nothing is packed yet."""
        weights, factors, shifts = site.constants[1], *self.factors(site)
        if site.input(1).dtype is DType.I4:  # pairs are of bytes: weights of 4 bits would take twice their size
            return None
        if weights is None or factors is None or self.rounding not in ("double", "float"):
            return None
        if not integer_pairs.available(site.machine) or {site.input(0).dtype, site.output.dtype} != {DType.I8}:
            return None
        whole = weights.astype(np.int64) - self.w_zero
        if whole.min(initial=0) < -128 or whole.max(initial=0) > 127:
            return None
        other = self.added(site)
        numbers = PairNumbers(
            whole.astype(np.int8).reshape(*weights.shape[:2], *(1, 1, *weights.shape[2:])[-2:]),
            self.sums(weights, site.constants[2], 0),
            self.largest(site, weights),
            Factors(self.rounding, factors, shifts, self.slope),
            self.x_zero,
            self.zero,
            self.low,
            self.high,
            not site.machine.rounds_in_integers,
            None if other is None else other[0],
        )
        return numbers if numbers.possible else None

    def paired(self, site: Site, s: dense.Conv, numbers: PairNumbers | None) -> PairProduct | None:
        """The product by pairs of these images, if there is a kernel for it."""
        s = replace(s, weights=DType.I8)
        if numbers is None or not integer_pairs.supports(s, site.machine):
            return None
        own: tuple[Arg, ...] = ()
        if (other := self.added(site)) is not None:
            every = np.broadcast_to(other[1], len(numbers.weights)).astype(np.int32)
            own = (Weights(every), Input(ADDED))
        return PairProduct(s, numbers, (*own, *map(Input, site.extras)))

    def stored_weights(self, site: Site, s: dense.Conv, weights: Array) -> tuple[Array, int, bool]:
        """The weights as they are stored and their zero point; or less their zero point, each the sum of two i8."""
        whole = weights.astype(np.int64) - self.w_zero
        if whole.min(initial=0) >= -128 and whole.max(initial=0) <= 127:
            return whole.astype(np.int8), 0, False
        by_fours = integer_conv.by_taps(s, site.machine) and integer_conv.in_fours(s, site.machine)
        if by_fours and not site.machine.narrow_fours and integer_depthwise.halves(whole) is not None:
            return whole.astype(np.int16), 0, True
        if weights.dtype != np.uint8:
            return weights, self.w_zero, False
        return (weights.astype(np.int16) - 128).astype(np.int8), self.w_zero - 128, False

    def stage(self, site: Site, s: dense.Conv, weights: Array) -> IntegerStage:
        """The convolution in its context."""
        kernel, rows = self.finish(site, weights)
        other = self.added(site)
        rows |= {} if other is None else {"added": other[1]}
        stored, zero, halved = self.stored_weights(site, replace(s, weights=DType.I8), weights)
        nibbles = site.input(1).dtype is DType.I4 and not self.w_zero and s.x.block % 2 == 0 and not s.depthwise
        single = tuple(not isinstance(row, np.ndarray) or len(row) == 1 for row in rows.values())
        of_bytes = DType.I8 if halved else DType.of(stored.dtype)
        s = replace(s, weights=of_bytes, bias=True, clear=partial(site.output))
        types = tuple(row_type(kernel.rounding, name) for name in rows)
        narrow = halved or bool(stored.min(initial=0) > -128)
        added = None if other is None else other[0]
        described = integer_conv.IntegerConv(
            s, kernel, types, single, zero, nibbles, narrow, halved, added, self.x_zero
        )
        spare, bias = s.padded - s.y.channels, self.sums(weights, site.constants[2], described.shifted(site.machine))
        args: list[Arg] = [Weights(np.pad(bias, (0, spare)))]
        args += [Weights(integer_conv.flips(site.machine))] if described.shifted(site.machine) else []
        args += [_row(row, spare) for row in rows.values()]
        args += [Weights(padding_mask(site.output))] if s.clear else []
        args += [] if other is None else [Input(ADDED)]
        args += map(Input, site.extras)
        stored = stored.reshape(*stored.shape[:2], *(1, 1, *stored.shape[2:])[-2:])
        return IntegerStage(s, stored, None, tuple(args), described=described)

    def finish(self, site: Site, weights: Array) -> tuple[Requantize, dict[str, Array | Input]]:
        """How a sum becomes an element, and what that takes for each channel."""
        if self.rounding == "none":
            rows: dict[str, Array | Input] = {}
            if site.has(3) and 3 not in site.extras:
                rows = {"zero": Input(3), "weights": self.sums(weights, None, 1 - self.x_zero) * -1}
            return Requantize("none", 0, 0, 0, I32, tuple(rows)), rows
        factors, shifts = self.factors(site)
        assert factors is not None
        known = Factors(self.rounding, factors, shifts, self.slope)
        largest = self.largest(site, weights)
        made = known.kernel(self.zero, self.low, self.high, DType(self.to), int(largest.max(initial=0)))
        if site.machine.rounds_in_integers:
            even = in_integers(made, np.broadcast_to(known.values, largest.shape), largest)
            if even is not None:
                return even[0], dict(zip(even[0].rows, even[1], strict=True))
        if site.machine.nearest and made.rounding == "float" and made.dtype.bytes == 1:
            made = replace(made, near=bool((largest * known.values.astype(np.float64) < NEAR).all()))
        return made, {**known.rows()}

    @abstractmethod
    def problem(self, site: Site) -> dense.Conv | None:
        """The convolution without halos, which the choice of algorithm depends on; None where there is no choice."""

    def candidates(self, site: Site) -> tuple[Algorithm, ...]:
        return self._of_problem(site, self.problem(site))

    def algorithm(self, site: Site) -> Algorithm | None:
        """The algorithm chosen, or the best by estimate; None where there is no choice."""
        return site.algorithm or next(iter(self.candidates(site)), None)

    def packed_alike(self, site: Site, other: Site) -> Algorithm | None:
        problem, chosen = self.problem(site), self.algorithm(other)
        return None if problem is None or chosen is None else registry.packed_alike((problem,), site.machine, chosen)

    def cost(self, site: Site) -> Cost:
        problem, algorithm = self.problem(site), self.algorithm(site)
        return Cost() if problem is None or algorithm is None else algorithm.cost((problem,), site.machine)

    def tiled(self, site: Site, stage: Stage, problem: dense.Conv) -> list[Step]:
        """The steps of the algorithm chosen, or of the best by estimate: what was chosen for a layer of the same types
        may not apply to the weights of this one."""
        algorithm = site.algorithm
        if algorithm is None or not algorithm.applies((problem,), site.machine):
            algorithm = self._of_problem(site, problem)[0]
        return algorithm.lower((problem,), (stage,), site.machine)

    def _of_problem(self, site: Site, problem: dense.Conv | None) -> tuple[Algorithm, ...]:
        """The algorithms for a problem that take the weights of this layer."""
        listed = () if problem is None else registry.candidates((problem,), site.machine, site.limits)
        if not any(each.plain_weights for each in listed) or self.has_plain_weights(site):
            return listed
        return tuple(each for each in listed if not each.plain_weights)

    def has_plain_weights(self, site: Site) -> bool:
        """Whether weights less their zero point are bytes, and are stored as such."""
        weights = site.constants[1]
        if weights is None or site.input(1).dtype is DType.I4:
            return weights is None and not self.w_zero
        return int(weights.min(initial=0)) - self.w_zero >= -128 and int(weights.max(initial=0)) - self.w_zero <= 127


def _row(row: Array | Input, spare: int) -> Arg:
    """Numbers of all channels, or one, as an argument of a kernel whose last block has ``spare`` channels too many."""
    if not isinstance(row, np.ndarray):
        return row
    return Weights(row if len(row) == 1 else np.pad(row, (0, spare), "edge"))


def adds(site: Site) -> bool:
    """Whether a convolution has an input that is added to its sums."""
    return site.has(ADDED) and ADDED not in site.extras


def stored_type(dtype: DType) -> DType:
    """The type of weights in memory: bytes hold those of 4 bits, and those of u8 less 128 or their zero point."""
    return DType.I8 if dtype in (DType.I4, DType.U8) else dtype


def partial(type: TensorType) -> bool:
    """Whether the last block of an image has lanes past its last channel."""
    return type.layout.image and type.dims[1] % type.layout.block_of(type.dims[1]) != 0
