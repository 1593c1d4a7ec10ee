"""Convolution and matrix product of quantised integers, requantised by fixed-point or f32 factors."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tenon.algorithms import registry
from tenon.algorithms.base import Stage
from tenon.algorithms.integers import IntegerStage, depthwise_cost
from tenon.errors import ShapeError
from tenon.ir.graph import Array, Value
from tenon.ir.types import I32, ROW_MAJOR, DType, Layout, Quant, TensorType
from tenon.kernels import conv as dense
from tenon.kernels import integer_conv, integer_depthwise
from tenon.kernels.image import Image, identity
from tenon.kernels.machine import Machine
from tenon.kernels.requantize import Added, Rounding
from tenon.ops import integer_pairs
from tenon.ops.base import (
    Accuracy,
    Algorithm,
    Arg,
    Case,
    Cost,
    Input,
    Layouts,
    Operator,
    Output,
    Site,
    Step,
    Weights,
    conv_images,
    padding_mask,
    register,
    typed,
)
from tenon.ops.conv import check_operands
from tenon.ops.integer_conv_cases import conv_case, with_added
from tenon.ops.integer_pairs import Product
from tenon.ops.patch import Patch, Span, window_patch
from tenon.ops.pool import window_views
from tenon.ops.requantize import (
    Factors,
    clamped,
    in_sums,
    largest_added,
    largest_sums,
    limits,
    quantized_multipliers,
    row_type,
)
from tenon.ops.window import Axis, Ints, Window, planar

ADDED = 5
"""The input of a convolution that is added to the sums; the next one has its factors."""

ACTIVATIONS = (DType.I8, DType.U8, DType.I16)
"""Element types of quantised activations."""


@dataclass(frozen=True)
class IntegerProduct(Operator):
    """What sums of products of integers share: how a sum becomes an element.

    Inputs: x, constant weights, bias in i32 or absent, factors per channel or one for all, and shifts unless
    ``rounding`` is "float" (see ``ops.requantize``).  The sum of (x - ``x_zero``) * (w - ``w_zero``), plus the bias,
    times the factor, rounded, plus ``zero``, is clamped between ``low`` and ``high``.  ``scale`` is that of the result.
    Negative sums are multiplied by ``slope``, from 0 to 1, before they are rounded to elements: a LeakyRelu.
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
    arity: ClassVar[tuple[int, int]] = (4, 5)
    accuracy: ClassVar[Accuracy] = Accuracy.EXACT

    def zero_points(self) -> tuple[int]:
        return (self.x_zero,)

    def result(self, dims: tuple[int, ...]) -> TensorType:
        dtype = DType(self.to)
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
        if tuple(t.dtype for t in given) != wanted or any(t.dims not in ((channels,), (1,)) for t in given):
            raise ShapeError(f"{self.name}: factors {', '.join(map(str, given))} do not fit {channels} channels")
        if inputs[2] is not None and (inputs[2].type.dtype, inputs[2].type.dims) != (I32, (channels,)):
            raise ShapeError(f"{self.name}: bias {inputs[2].type} does not fit {channels} channels")

    def stored(self, total: Array, factors: Array, shifts: Array | None) -> Array:
        """Sums, channels last, as elements of the result."""
        scaled = Factors(self.rounding, factors, shifts, self.slope).apply(total) + self.zero
        return clamped(scaled, self.low, self.high, DType(self.to))

    def compiled(self, site: Site) -> str:
        read = (*site.extras, ADDED) if _adds(site) else site.extras
        own = (i for i in range(1, len(site.inputs)) if site.has(i) and i not in read)
        if any(site.constants[i] is None for i in own):
            return "weights, bias or factors computed at run time: they must be constants of the model"
        return ""

    def factors(self, site: Site) -> tuple[Array | None, Array | None]:
        """Those per channel, or multipliers and shifts."""
        return site.constants[3], None if self.rounding == "float" else site.constants[4]

    def added(self, site: Site) -> tuple[Added, Array] | None:
        """What is added to the sums, and its factors, if anything is."""
        return None

    def largest(self, site: Site, weights: Array) -> Array:
        """The largest magnitude of each sum."""
        span = limits(site.input(0).dtype)
        found, other = largest_sums(weights, self.w_zero, span, self.x_zero, site.constants[2]), self.added(site)
        if other is not None:
            added, factors = other
            found = found + largest_added(added.zero, limits(site.input(ADDED).dtype), factors, added.shift)
        return found

    def sums(self, weights: Array, bias: Array | None, shifted: int) -> Array:
        """The bias in i32 with the part of the zero point of x in it, where ``shifted`` is added to x; ``weights`` have
        channels first."""
        whole = weights.astype(np.int64) - self.w_zero
        total = -(self.x_zero + shifted) * whole.reshape(len(whole), -1).sum(1)
        result: Array = (total if bias is None else total + bias).astype(np.int32)
        return result

    def paired(self, site: Site, s: dense.Conv) -> Product | None:
        """The product that is computed by pairs of 16 bits, if it can be; nothing is packed yet."""
        weights, factors, shifts = site.constants[1], *self.factors(site)
        if site.input(1).dtype is DType.I4:  # pairs are of bytes: weights of 4 bits would take twice their size
            return None
        if weights is None or factors is None or shifts is None or self.rounding != "double":
            return None
        s = replace(s, weights=DType.I8)
        if not integer_pairs.supports(s, site.machine):
            return None
        whole = weights.astype(np.int64) - self.w_zero
        if whole.min(initial=0) < -128 or whole.max(initial=0) > 127:
            return None
        bias = self.sums(weights, site.constants[2], 0)
        kernel = whole.astype(np.int8).reshape(*weights.shape[:2], *(1, 1, *weights.shape[2:])[-2:])
        product = Product(
            s, kernel, bias, self.largest(site, weights), factors, shifts, self.x_zero, self.zero, self.low, self.high,
            self.slope,
        )  # fmt: skip
        if (other := self.added(site)) is not None:
            added, own = other
            every = np.broadcast_to(own, len(weights)).astype(np.int32)
            product = replace(product, added=added, operands=(Weights(every), Input(ADDED)))
        return product if product.possible else None

    def stored_weights(self, site: Site, s: dense.Conv, weights: Array) -> tuple[Array, int, bool]:
        """The weights as they are stored and their zero point; or less their zero point, each the sum of two i8."""
        whole = weights.astype(np.int64) - self.w_zero
        if whole.min(initial=0) >= -128 and whole.max(initial=0) <= 127:
            return whole.astype(np.int8), 0, False
        by_fours = integer_conv.by_taps(s, site.machine) and integer_conv.in_fours(s, site.machine)
        if by_fours and not site.machine.narrow_dot4 and integer_depthwise.halves(whole) is not None:
            return whole.astype(np.int16), 0, True
        if weights.dtype != np.uint8:
            return weights, self.w_zero, False
        return (weights.astype(np.int16) - 128).astype(np.int8), self.w_zero - 128, False

    def stage(self, site: Site, s: dense.Conv, weights: Array) -> IntegerStage:
        """The convolution in its context."""
        factors, shifts = self.factors(site)
        assert factors is not None
        known = Factors(self.rounding, factors, shifts, self.slope)
        rows, other = known.rows(), self.added(site)
        rows |= {} if other is None else {"added": other[1]}
        stored, zero, halved = self.stored_weights(site, replace(s, weights=DType.I8), weights)
        nibbles = site.input(1).dtype is DType.I4 and not self.w_zero and s.x.block % 2 == 0 and not s.depthwise
        single = tuple(len(row) == 1 for row in rows.values())
        of_bytes = DType.I8 if halved else DType.of(stored.dtype)
        s = replace(s, weights=of_bytes, bias=True, clear=_partial(site.output))
        types = tuple(row_type(self.rounding, name) for name in rows)
        largest = int(self.largest(site, weights).max(initial=0))
        kernel = known.kernel(self.zero, self.low, self.high, DType(self.to), largest)
        narrow = halved or bool(stored.min(initial=0) > -128)
        added = None if other is None else other[0]
        described = integer_conv.IntegerConv(s, kernel, types, single, zero, nibbles, narrow, halved, added)
        spare, bias = s.padded - s.y.channels, self.sums(weights, site.constants[2], described.shifted(site.machine))
        args: list[Arg] = [Weights(np.pad(bias, (0, spare)))]
        args += [Weights(integer_conv.flips(site.machine))] if described.shifted(site.machine) else []
        args += [Weights(row if len(row) == 1 else np.pad(row, (0, spare))) for row in rows.values()]
        args += [Weights(padding_mask(site.output))] if s.clear else []
        args += [] if other is None else [Input(ADDED)]
        args += map(Input, site.extras)
        stored = stored.reshape(*stored.shape[:2], *(1, 1, *stored.shape[2:])[-2:])
        return IntegerStage(s, stored, None, tuple(args), described=described)

    @abstractmethod
    def problem(self, site: Site) -> dense.Conv | None:
        """The convolution without halos, which the choice of algorithm depends on; None where there is no choice."""

    def candidates(self, site: Site) -> tuple[Algorithm, ...]:
        problem = self.problem(site)
        return () if problem is None else registry.candidates((problem,), site.machine, site.limits)

    def packed_alike(self, site: Site, other: Site) -> Algorithm | None:
        problem, chosen = self.problem(site), other.algorithm or next(iter(self.candidates(other)), None)
        return None if problem is None or chosen is None else registry.packed_alike((problem,), site.machine, chosen)

    def cost(self, site: Site) -> Cost:
        problem, algorithm = self.problem(site), site.algorithm or next(iter(self.candidates(site)), None)
        if problem is None or algorithm is None:
            return Cost()
        return _beside_floats(algorithm.cost((problem,), site.machine), site.machine)

    def tiled(self, site: Site, stage: Stage, problem: dense.Conv) -> list[Step]:
        """The steps of the algorithm chosen, or of the best by estimate: what was chosen for a layer of the same types
        may not apply to the weights of this one."""
        algorithm = site.algorithm
        if algorithm is None or not algorithm.applies((problem,), site.machine):
            algorithm = self.candidates(site)[0]
        return algorithm.lower((problem,), (stage,), site.machine)


def _beside_floats(cost: Cost, machine: Machine) -> Cost:
    """An estimate that integers are compared by, as one that floats are compared with, too."""
    return replace(cost, time=cost.time * machine.integer_time)


def _adds(site: Site) -> bool:
    """Whether a convolution has an input that is added to its sums."""
    return site.has(ADDED) and ADDED not in site.extras


def _stored_type(dtype: DType) -> DType:
    """The type of weights in memory: bytes hold those of 4 bits, and those of u8 less 128 or their zero point."""
    return DType.I8 if dtype in (DType.I4, DType.U8) else dtype


def _partial(type: TensorType) -> bool:
    """Whether the last block of an image has lanes past its last channel."""
    return type.layout.image and type.dims[1] % type.layout.block_of(type.dims[1]) != 0


@register
@dataclass(frozen=True)
class IntegerConv(IntegerProduct):
    """Convolution of [N, C, spatial...] with weights [M, C / group, kernel...]: see ``IntegerProduct``.

    Two more inputs, r of the result's shape in i8 or u8 and factors in i32 per channel or one for all, are a tensor
    that is added to the sums: (r - ``added_zero``) * factor / 2**``added_shift``, rounded to sums, halves up.  A slope
    counts for what is negative then.
    """

    dilations: Ints = ()
    group: int = 1
    pads: Ints = ()
    strides: Ints = ()
    added_zero: int = 0
    added_shift: int = 0
    arity: ClassVar[tuple[int, int]] = (4, 7)
    fusable: ClassVar[bool] = True
    fused_types: ClassVar[frozenset[DType]] = frozenset({DType.I8, DType.U8})

    @property
    def takes_epilogue(self) -> bool:
        """Fixed-point factors are for microcontrollers too, whose kernels (``kernels.integer_pairs``) take none."""
        return self.rounding == "float"

    def fuses(self, inputs: Sequence[TensorType | None], output: TensorType, operand: TensorType) -> bool:
        return operand.dtype in self.fused_types and operand.dims == output.dims and 3 <= output.rank <= 4

    def axes(self, x: Ints, w: Ints) -> tuple[Axis, ...]:
        return Window(w[2:], self.strides, self.dilations, self.pads).axes(self.name, x[2:])

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, w = check_operands(self.name, inputs[:2], 1, self.group)
        self.check(inputs, w[0])
        result = self.result((x[0], w[0], *(a.out for a in self.axes(x, w))))
        if len(inputs) > ADDED:
            self._check_added(inputs, result)
        return (result,)

    def _check_added(self, inputs: Sequence[Value | None], result: TensorType) -> None:
        r, factors = (None if v is None else v.type for v in (*inputs[ADDED:], None)[:2])
        if r is None or factors is None or r.dims != result.dims or r.dtype not in self.fused_types:
            raise ShapeError(f"{self.name}: {r} cannot be added to sums for {result}")
        if factors.dtype is not I32 or factors.dims not in ((result.dims[1],), (1,)):
            raise ShapeError(f"{self.name}: factors {factors} do not fit {result.dims[1]} channels")
        if not 0 <= self.added_shift < 31:
            raise ShapeError(f"{self.name}: a shift by {self.added_shift} bits is not from 0 to 30")

    def reference(
        self, x: Array, w: Array, b: Array | None, factors: Array, shifts: Array | None = None,
        r: Array | None = None, own: Array | None = None,
    ) -> Array:  # fmt: skip
        axes = self.axes(x.shape, w.shape)
        n, g, per_in, per_out = x.shape[0], self.group, x.shape[1] // self.group, w.shape[0] // self.group
        wide, taps = x.astype(np.int64) - self.x_zero, w.astype(np.int64) - self.w_zero
        exact = np.float64 if per_in * math.prod(w.shape[2:]) * 2**33 < 2**53 else np.int64
        total = np.zeros((n, g, per_out, math.prod(a.out for a in axes)), exact)
        for tap, part in zip(np.ndindex(*w.shape[2:]), window_views(wide, axes, 0), strict=True):
            weights = taps[(slice(None), slice(None), *tap)].reshape(1, g, per_out, per_in).astype(exact)
            total += weights @ part.reshape(n, g, per_in, -1).astype(exact)
        sums = np.moveaxis(total.astype(np.int64).reshape(n, w.shape[0], *(a.out for a in axes)), 1, -1)
        sums = sums if b is None else sums + b
        if r is not None and own is not None:
            sums = sums + in_sums(np.moveaxis(r, 1, -1), self.added_zero, own, self.added_shift)
        return np.moveaxis(self.stored(sums, factors, shifts), -1, 1)

    def added(self, site: Site) -> tuple[Added, Array] | None:
        factors = site.constants[ADDED + 1] if _adds(site) else None
        return None if factors is None else (Added(self.added_zero, self.added_shift), factors)

    def supported(self, site: Site) -> str:
        if site.input(0).rank > 4:
            return f"{site.input(0).rank - 2} spatial axes: only 1-D and 2-D are compiled"
        return self.compiled(site)

    def described(self, site: Site, x: Image, y: Image) -> dense.Conv:
        """The convolution of one image to another."""
        axes = self.axes(site.input(0).dims, site.input(1).dims)
        top, left = planar(tuple(a.before for a in axes), 0)
        kernel, stride, dilation = (
            planar(tuple(getattr(a, name) for a in axes), 1) for name in ("kernel", "stride", "dilation")
        )
        s = dense.Conv(x, y, kernel, stride, dilation, top, left, self.group)
        own = (Image.of(site.input(ADDED)),) if _adds(site) else ()
        return replace(s, operands=(*own, *conv_images(site)), epilogue=site.epilogue)

    def in_pairs(self, site: Site, *, settled: bool = True) -> Product | None:
        """The product that is computed by pairs of 16 bits, if it can be: with the layouts that it wants, or with those
        that are ``settled``, in which other readers may have asked for halos."""
        if (
            not (site.machine.pairs or site.machine.scalar)
            or site.machine.block != integer_pairs.BLOCK
            or site.input(0).rank > 4
        ):
            return None
        known = Image.of if settled else integer_pairs.image
        x, y = (known(t) for t in (site.input(0), site.output))
        s = self.described(site, x, y)
        own = (known(site.input(ADDED)),) if _adds(site) else ()
        return self.paired(site, replace(s, operands=(*own, *s.operands[len(own) :])).flattened())

    def in_place(self, site: Site) -> tuple[int, ...]:
        """A depthwise convolution by pairs copies what it reads; what is added is read just before a result is
        stored."""
        x, y = site.input(0), site.output
        depthwise = self.group == x.dims[1] and x.dims == y.dims
        own = (0,) if depthwise and self.in_pairs(site) is not None else ()
        return (*own, ADDED) if _adds(site) else own

    def layouts(self, site: Site) -> Layouts:
        x, block = site.input(0), site.machine.block
        if self.in_pairs(site, settled=False) is not None:
            around = self._other_layouts(site, integer_pairs.layout(site.output))
            return Layouts((integer_pairs.layout(x), *around), (integer_pairs.layout(site.output),))
        axes = self.axes(x.dims, site.input(1).dims)
        halo = tuple((a.before, a.reach) for a in axes)
        depthwise = self.group == x.dims[1] == site.output.dims[1]
        if depthwise and integer_conv.taps_in_fours((last := axes[-1]).dilation, site.machine):
            read = integer_conv.columns(last.kernel, last.stride, last.out)
            halo = (*halo[:-1], (last.before, max(last.reach, read - last.before - last.size)))
        output = Layout(block, ((0, 0),) * (x.rank - 2))
        return Layouts((Layout(self.x_block(site), halo, self.x_zero), *self._other_layouts(site, output)), (output,))

    def _other_layouts(self, site: Site, output: Layout) -> tuple[Layout | None, ...]:
        """Of all inputs but the first: the result's for what is added and the epilogue's operands."""
        read = (*site.extras, ADDED) if _adds(site) else site.extras
        return tuple(output if i in read else None for i in range(1, len(site.inputs)))

    def x_block(self, site: Site) -> int:
        """Channels of the input that lie side by side; of a first layer fewer."""
        channels = site.input(0).dims[1]
        if channels > 4 or self.group > 1:
            return site.machine.block
        return 4 if site.machine.dot4 and channels > 2 else 1  # one or two channels would be mostly zeros

    def problem(self, site: Site) -> dense.Conv | None:
        if site.input(0).rank > 4:
            return None
        if (product := self.in_pairs(site, settled=False)) is not None:
            return product.problem(site.machine)
        s = self.alone(site)
        return None if s.depthwise else s

    def cost(self, site: Site) -> Cost:
        if site.input(0).rank <= 4 and self.in_pairs(site, settled=False) is None and (s := self.alone(site)).depthwise:
            return _beside_floats(depthwise_cost(s, site.machine), site.machine)
        return super().cost(site)

    def alone(self, site: Site) -> dense.Conv:
        """The convolution without halos and what is fused to it."""
        x, y, block = site.input(0), site.output, self.x_block(site)
        images = (
            Image(t.dims[0], t.dims[1], *planar(t.dims[2:], 1), each, dtype=t.dtype)
            for t, each in ((x, block), (y, site.machine.block))
        )
        described = self.described(site, *images)
        return replace(described, operands=(), epilogue=identity, weights=_stored_type(site.input(1).dtype))

    def lower(self, site: Site) -> list[Step]:
        weights = site.constants[1]
        assert weights is not None
        problem = self.problem(site)
        if (product := self.in_pairs(site)) is not None:
            return [product.step(site.machine)] if problem is None else self.tiled(site, product.stage, problem)
        images = Image.of(site.input(0)), Image.of(site.output)
        stage = self.stage(site, self.described(site, *images), weights)
        if problem is not None:
            return self.tiled(site, stage, problem)
        packed = Weights(integer_depthwise.pack(stage.constant, stage.described, site.machine))
        kernel = integer_depthwise.conv(stage.described, site.machine)
        return [Step(kernel, (Input(0), packed, *stage.operands, Output()))]

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        x, w = inputs[0], inputs[1]
        assert x is not None
        assert w is not None
        found = window_patch(self, self.axes(x.dims, w.dims), inputs, span)
        if found is None or len(inputs) <= ADDED:
            return found
        return replace(found, reads=(*found.reads[:ADDED], span, *found.reads[ADDED + 1 :]))

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[1] is not None
        return outputs[0].size * math.prod(inputs[1].dims[1:])

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(5)
        shapes: dict[str, tuple[Ints, Ints, dict[str, Any]]] = {
            "3x3": ((1, 5, 6, 7), (9, 5, 3, 3), {"pads": (1, 1, 1, 1)}),
            "first": ((1, 3, 8, 9), (8, 3, 3, 3), {"pads": (0, 0, 1, 1), "strides": (2, 2)}),
            "1x1": ((2, 16, 3, 5), (32, 16, 1, 1), {}),
            "depthwise": ((1, 16, 6, 5), (16, 1, 3, 3), {"group": 16, "pads": (1, 1, 1, 1)}),
            "depthwise_partial": ((1, 7, 6, 9), (7, 1, 3, 3), {"group": 7, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
            "depthwise_wide": ((1, 32, 4, 14), (32, 1, 3, 3), {"group": 32, "pads": (1, 1, 1, 1)}),
            "depthwise_5x5": ((1, 16, 5, 9), (16, 1, 5, 5), {"group": 16, "pads": (2, 2, 2, 2)}),
            "depthwise_5x2": ((1, 16, 7, 27), (16, 1, 5, 2), {"group": 16, "pads": (2, 0, 2, 1)}),
            "depthwise_s2": ((1, 16, 6, 26), (16, 1, 3, 3), {"group": 16, "pads": (0, 0, 1, 1), "strides": (2, 2)}),
            "depthwise_dilated": ((1, 16, 7, 8), (16, 1, 3, 3), {"group": 16, "dilations": (2, 2)}),
            "groups": ((1, 8, 5, 5), (8, 4, 3, 3), {"group": 2, "dilations": (2, 2), "pads": (2, 2, 2, 2)}),
            "1d": ((1, 6, 11), (4, 6, 3), {"pads": (1, 1)}),
        }
        for label, (x, w, more) in shapes.items():
            yield from (conv_case(cls, rng, label, x, w, more, rounding) for rounding in ("double", "single", "float"))
        for label in ("3x3", "1x1", "depthwise", "depthwise_partial", "groups"):
            for rounding in ("double", "single", "float"):
                x, w, more = shapes[label]
                yield conv_case(cls, rng, f"{label}_slope", x, w, more | {"slope": 0.1}, rounding)
        for label in ("3x3", "first", "1x1", "depthwise", "depthwise_wide", "groups", "1d"):
            yield from (
                with_added(conv_case(cls, rng, label, *shapes[label], kind), rng) for kind in ("double", "float")
            )
        slope = conv_case(cls, rng, "3x3", *shapes["3x3"][:2], shapes["3x3"][2] | {"slope": 0.1}, "float")
        yield with_added(slope, rng, DType.U8)
        yield conv_case(cls, rng, "3x3_even", (1, 36, 4, 8), (4, 36, 3, 3), {"pads": (1, 1, 1, 1)}, "double")
        yield conv_case(cls, rng, "u8", (1, 6, 5, 5), (5, 6, 3, 3), {"to": "u8", "w_zero": 121}, "double", np.uint8)
        yield conv_case(cls, rng, "u8_from_zero", (1, 6, 5, 5), (5, 6, 1, 1), {"to": "u8"}, "double", np.uint8)
        yield from (
            conv_case(cls, rng, f"{label}_wide", *shapes[label], "double", wide=True) for label in ("3x3", "depthwise")
        )
        x, w, more = shapes["groups"]
        yield conv_case(cls, rng, "groups_u8", x, w, more | {"to": "u8", "w_zero": 121}, "double", np.uint8)
        for label in ("3x3", "depthwise", "groups"):  # i16 by i8, with sums that 32 bits hold
            case = conv_case(cls, rng, label, *shapes[label], "reduced")
            pixels = rng.integers(-(1 << 15), 1 << 15, shapes[label][0]).astype(np.int16)
            limit = {"low": -(1 << 15), "high": (1 << 15) - 1, "to": "i16"}
            op = cls("reduced", scale=0.5, **limit, **shapes[label][2])  # type: ignore[arg-type]
            yield replace(case, op=op, inputs=(pixels, *case.inputs[1:]), label=f"{label}_16_bits")
        for label in ("3x3", "first", "1x1", "depthwise", "depthwise_partial", "groups"):
            case = conv_case(cls, rng, label, *shapes[label], "double")
            data, weights, *rest = case.inputs
            assert isinstance(weights, np.ndarray)
            yield replace(case, inputs=(data, (weights >> 4).astype(DType.I4.numpy), *rest), label=f"{label}_i4")


@register
@dataclass(frozen=True)
class IntegerGemm(IntegerProduct):
    """Rows [N, ...] of K elements each times constant weights [M, K], transposed: see ``IntegerProduct``.

    The axes after the first are one row, in their order.  An image is read in the layout that it has.
    """

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, w = typed(inputs)[:2]
        if x.rank < 2 or w.rank != 2 or math.prod(x.dims[1:]) != w.dims[1]:
            raise ShapeError(f"{self.name}: rows {list(x.dims)} do not fit weights {list(w.dims)}")
        self.check(inputs, w.dims[0])
        return (self.result((x.dims[0], w.dims[0])),)

    def reference(self, x: Array, w: Array, b: Array | None, factors: Array, shifts: Array | None = None) -> Array:
        wide, weights = x.reshape(len(x), w.shape[1]).astype(np.int64) - self.x_zero, w.astype(np.int64) - self.w_zero
        exact = np.float64 if w.shape[1] * 2**33 < 2**53 else np.int64
        sums = (wide.astype(exact) @ weights.T.astype(exact)).astype(np.int64)
        return self.stored(sums if b is None else sums + b, factors, shifts)

    def supported(self, site: Site) -> str:
        return self.compiled(site)

    def rows(self, site: Site) -> dense.Conv:
        """The product as a convolution of one row of positions, over all that an image has in memory."""
        n, deep, outs = site.input(0).dims[0], math.prod(site.input(0).physical[1:]), site.output.dims[1]
        x = Image(1, deep, 1, n, deep, dtype=site.input(0).dtype)
        y = Image(1, outs, 1, n, outs, dtype=site.output.dtype)
        return dense.Conv(x, y, weights=_stored_type(site.input(1).dtype))

    def problem(self, site: Site) -> dense.Conv | None:
        s = self.rows(site)
        return None if self.paired(site, s) is not None else s

    def layouts(self, site: Site) -> Layouts:
        x = site.input(0)
        whole = x.layout.image and x.rank > 2 and x.dims[1] % x.block == 0
        layout = replace(x.layout, halo=((0, 0),) * (x.rank - 2)) if whole else ROW_MAJOR
        return Layouts((layout, *(None,) * (len(site.inputs) - 1)), (ROW_MAJOR,))

    def in_memory_order(self, weights: Array, x: TensorType) -> Array:
        """Weights [M, K] in the order in which a row of x lies in memory; nothing is added for halos and lanes past
        the last channel."""
        if x.layout.in_order:
            return weights
        whole = weights.astype(np.int16).reshape(len(weights), *x.dims[1:]) - self.w_zero
        packed = replace(x.layout, fill=0).pack(whole).reshape(len(weights), -1) + self.w_zero
        return packed.astype(weights.dtype)

    def lower(self, site: Site) -> list[Step]:
        weights = site.constants[1]
        assert weights is not None
        weights, s = self.in_memory_order(weights, site.input(0)), self.rows(site)
        site = replace(site, constants=(site.constants[0], weights, *site.constants[2:]))
        if (product := self.paired(site, s)) is not None:
            return [product.step(site.machine)]
        return self.tiled(site, self.stage(site, s, weights), s)

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[1] is not None
        return outputs[0].size * inputs[1].dims[1]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        rng = np.random.default_rng(6)
        wide = [rng.integers(-(1 << 15), 1 << 15, (3, 40)).astype(np.int16)]
        wide += [rng.integers(-127, 128, (19, 40)).astype(np.int8), rng.integers(-(10**6), 10**6, 19).astype(np.int32)]
        roundings: tuple[Rounding, ...] = ("reduced", "double", "single")
        for kind in roundings:
            op = cls(kind, low=-(1 << 15), high=(1 << 15) - 1, to="i16", scale=0.5)
            fixed = quantized_multipliers(rng.uniform(0.001, 0.005, 19).tolist())
            yield Case(op, (*wide, *fixed), (1, 2, 3, 4), 0, label=f"16_bits_{kind}")
        for rounding in ("double", "single", "float"):
            for n, k, m in ((1, 37, 21), (5, 8, 16), (3, 12, 1), (16, 16, 2), (7, 1, 1)):
                x = rng.integers(-128, 128, (n, k)).astype(np.int8)
                w = rng.integers(-127, 128, (m, k)).astype(np.int8)
                b = rng.integers(-5000, 5000, m).astype(np.int32)
                factors: tuple[Array, ...] = quantized_multipliers([0.011])
                if rounding == "float":
                    factors = (np.array([0.011], np.float32),)
                op = cls(rounding, -3, zero=4, scale=0.25)
                yield Case(
                    op, (x, w, b, *factors), (1, 2, 3, 4)[: 2 + len(factors)], 0, label=f"{n}x{k}x{m}_{rounding}"
                )
                yield Case(
                    replace(op, slope=0.25), (x, w, b, *factors), (1, 2, 3, 4)[: 2 + len(factors)], 0,
                    label=f"{n}x{k}x{m}_{rounding}_slope",
                )  # fmt: skip
        x = rng.integers(-128, 128, (2, 8, 3, 2)).astype(np.int8)
        w, b = rng.integers(-127, 128, (5, 48)).astype(np.int8), rng.integers(-5000, 5000, 5).astype(np.int32)
        op = cls("double", -3, zero=4, scale=0.25)
        yield Case(op, (x, w, b, *quantized_multipliers([0.011])), (1, 2, 3, 4), 0, label="images")
