"""Convolution of quantised integers, requantised by fixed-point or f32 factors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.kernels import conv as dense
from tenon.machine.kernels import integer_conv
from tenon.machine.kernels.image import Image, identity
from tenon.machine.kernels.requantize import Added
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I32, ROW_MAJOR, DType, Layout, TensorType
from tenon.network.ops import integer_pairs
from tenon.network.ops.base import (
    Case,
    Layouts,
    Site,
    Step,
    register,
)
from tenon.network.ops.conv import check_operands
from tenon.network.ops.integer_conv_cases import conv_case, sums_case, with_added
from tenon.network.ops.integer_pairs import PairNumbers, PairProduct
from tenon.network.ops.integer_product import (
    ADDED,
    BYTES,
    SUMMED,
    IntegerProduct,
    adds,
    stored_type,
)
from tenon.network.ops.patch import Patch, Span, window_patch
from tenon.network.ops.pool import window_views
from tenon.network.ops.reach import Operands, Reaches, broadcast_reach, window_reach
from tenon.network.ops.requantize import (
    in_sums,
)
from tenon.network.ops.window import Axis, Ints, Window, planar


def _images(site: Site) -> tuple[Image, ...]:
    """The epilogue's operands as images; one number is spread over all."""
    types = [site.input(i) for i in site.extras]
    return tuple(Image.of(t) if t.rank == site.output.rank else Image(1, 1, 1, 1, dtype=t.dtype) for t in types)


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

    @property
    def fused_types(self) -> frozenset[DType]:
        return SUMMED if self.rounding == "none" else BYTES

    @property
    def takes_epilogue(self) -> bool:
        """Fixed-point factors are for microcontrollers too, whose kernels (``kernels.integer_pairs``) take none."""
        return self.rounding in ("float", "none")

    def fuses(self, inputs: Sequence[TensorType | None], output: TensorType, operand: TensorType) -> bool:
        if operand.dtype not in self.fused_types or not 3 <= output.rank <= 4:
            return False
        if self.rounding != "none":
            return operand.dims == output.dims
        alike = operand.rank == output.rank and all(a in (1, b) for a, b in zip(operand.dims, output.dims, strict=True))
        return alike or operand.size == 1

    def axes(self, x: Ints, w: Ints) -> tuple[Axis, ...]:
        return Window(w[2:], self.strides, self.dilations, self.pads).axes(self.name, x[2:])

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, w = check_operands(self.name, inputs[:2], 1, self.group)
        self.check(inputs, w[0])
        if self.rounding == "none" and inputs[3] is not None and any(self.pads):
            raise ShapeError(f"{self.name}: pads are not known before the zero point is")
        result = self.result((x[0], w[0], *(a.out for a in self.axes(x, w))))
        if len(inputs) > ADDED:
            self._check_added(inputs, result)
        return (result,)

    def _check_added(self, inputs: Sequence[Value | None], result: TensorType) -> None:
        r, factors = (None if v is None else v.type for v in (*inputs[ADDED:], None)[:2])
        if r is None or factors is None or r.dims != result.dims or r.dtype not in BYTES:
            raise ShapeError(f"{self.name}: {r} cannot be added to sums for {result}")
        if factors.dtype is not I32 or factors.dims not in ((result.dims[1],), (1,)):
            raise ShapeError(f"{self.name}: factors {factors} do not fit {result.dims[1]} channels")
        if not 0 <= self.added_shift < 31:
            raise ShapeError(f"{self.name}: a shift by {self.added_shift} bits is not from 0 to 30")

    def reference(
        self,
        x: Array,
        w: Array,
        b: Array | None,
        factors: Array | None,
        shifts: Array | None = None,
        r: Array | None = None,
        own: Array | None = None,
    ) -> Array:
        axes = self.axes(x.shape, w.shape)
        n, g, per_in, per_out = x.shape[0], self.group, x.shape[1] // self.group, w.shape[0] // self.group
        wide, taps = self.centred(x, factors), w.astype(np.int64) - self.w_zero
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
        factors = site.constants[ADDED + 1] if adds(site) else None
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
        own = (Image.of(site.input(ADDED)),) if adds(site) else ()
        return replace(s, operands=(*own, *_images(site)), epilogue=site.epilogue)

    def pair_numbers(self, site: Site) -> PairNumbers | None:
        fits = site.machine.block == integer_pairs.BLOCK and site.input(0).rank <= 4
        return super().pair_numbers(site) if fits else None

    def in_pairs(self, site: Site, numbers: PairNumbers | None, *, settled: bool = True) -> PairProduct | None:
        """The product that is computed by pairs of 16 bits, if it can be: with the layouts that it wants, or with those
        that are ``settled``, in which other readers may have asked for halos."""
        if numbers is None:
            return None
        known = Image.of if settled else integer_pairs.image
        x, y = (known(t) for t in (site.input(0), site.output))
        s = self.described(site, x, y)
        own = (known(site.input(ADDED)),) if adds(site) else ()
        return self.paired(site, replace(s, operands=(*own, *s.operands[len(own) :])).flattened(), numbers)

    def in_place(self, site: Site) -> tuple[int, ...]:
        """A depthwise convolution by pairs copies what it reads; what is added is read just before a result is
        stored."""
        x, y = site.input(0), site.output
        depthwise = self.group == x.dims[1] and x.dims == y.dims
        own = (0,) if depthwise and self.in_pairs(site, self.pair_numbers(site)) is not None else ()
        return (*own, ADDED) if adds(site) else own

    def layouts(self, site: Site) -> Layouts:
        x, block = site.input(0), site.machine.block
        if self.in_pairs(site, self.pair_numbers(site), settled=False) is not None:
            around = self._other_layouts(site, integer_pairs.layout(site.output))
            return Layouts((integer_pairs.layout(x), *around), (integer_pairs.layout(site.output),))
        axes = self.axes(x.dims, site.input(1).dims)
        halo = tuple((a.before, a.reach) for a in axes)
        depthwise = self.group == x.dims[1] == site.output.dims[1]
        if depthwise and integer_conv.taps_in_fours((last := axes[-1]).dilation, site.machine):
            read = integer_conv.columns(last.kernel, last.stride, last.out)
            halo = (*halo[:-1], (last.before, max(last.reach, read - last.before - last.size)))
        image, output = Layout(self.x_block(site), halo, self.x_zero), Layout(block, ((0, 0),) * (x.rank - 2))
        units = site.machine.wants_blocks(x.dtype)
        asked = site.machine.launch is not None or units or site.machine.has("madd_i16")
        problem = self.problem(site) if asked else None
        if problem is not None and (algorithm := self.algorithm(site)) is not None:
            image, output = algorithm.layouts((problem,), image, output)
        return Layouts((image, *self._other_layouts(site, output)), (output,))

    def any_block(self, site: Site, i: int | None) -> bool:
        """The result and what is added to it, on machines whose units want blocks of their own."""
        known = i in site.extras or (i == ADDED and adds(site))
        if i is None:  # a depthwise convolution reads as many lanes as it stores
            known = self.group == 1 or site.output.dims[1] % site.machine.widest_block(site.input(0).dtype) == 0
        return known and site.machine.wants_blocks(site.input(0).dtype) and self.pair_numbers(site) is None

    def _other_layouts(self, site: Site, output: Layout) -> tuple[Layout | None, ...]:
        """The layouts of all inputs but the first: the result's for the added tensor and the epilogue's operands."""
        read = (*site.extras, ADDED) if adds(site) else site.extras
        alike = {i for i in read if site.input(i).rank == site.output.rank}
        return tuple(
            output if i in alike else ROW_MAJOR if i in read or i == 3 else None for i in range(1, len(site.inputs))
        )

    def x_block(self, site: Site) -> int:
        """Channels of the input that lie side by side; of a first layer fewer."""
        channels = site.input(0).dims[1]
        if channels > 4 or self.group > 1:
            return site.machine.block
        words = channels > 2 or site.machine.launch is not None  # one or two channels would be mostly zeros
        return 4 if site.machine.fours and words else 1

    def problem(self, site: Site) -> dense.Conv | None:
        return None if site.input(0).rank > 4 else self._problem(site, self.pair_numbers(site))

    def _problem(self, site: Site, numbers: PairNumbers | None) -> dense.Conv:
        product = self.in_pairs(site, numbers, settled=False)
        return self.alone(site) if product is None else product.problem

    def alone(self, site: Site) -> dense.Conv:
        """The convolution without halos and what is fused to it."""
        x, y, block = site.input(0), site.output, self.x_block(site)
        images = (
            Image(t.dims[0], t.dims[1], *planar(t.dims[2:], 1), each, dtype=t.dtype)
            for t, each in ((x, block), (y, site.machine.block))
        )
        described = self.described(site, *images)
        return replace(described, operands=(), epilogue=identity, weights=stored_type(site.input(1).dtype))

    def lower(self, site: Site) -> list[Step]:
        weights = site.constants[1]
        assert weights is not None
        numbers = self.pair_numbers(site)
        problem = self._problem(site, numbers)
        if (product := self.in_pairs(site, numbers)) is not None:
            return self.tiled(site, product.stage, problem)
        images = Image.of(site.input(0)), Image.of(site.output)
        stage = self.stage(site, self.described(site, *images), weights)
        return self.tiled(site, stage, problem)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        x, w = inputs[0], inputs[1]
        assert x is not None
        assert w is not None
        reach = window_reach(self.axes(x.type.dims, w.type.dims), inputs, axis)
        if reach is None or len(inputs) <= ADDED:
            return reach
        return (*reach[:ADDED], *broadcast_reach(inputs[ADDED : ADDED + 1], outputs[0], axis), *reach[ADDED + 1 :])

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        x, w = inputs[0], inputs[1]
        assert x is not None
        assert w is not None
        patch = window_patch(self, self.axes(x.dims, w.dims), inputs, span)
        if patch is None or len(inputs) <= ADDED:
            return patch
        return replace(patch, reads=(*patch.reads[:ADDED], span, *patch.reads[ADDED + 1 :]))

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
        for label in ("3x3", "first", "1x1", "depthwise", "depthwise_partial", "depthwise_5x5", "groups", "1d"):
            x, w, more = shapes[label]
            bare = {name: value for name, value in more.items() if name != "pads"}
            yield sums_case(cls, rng, label, x, w, bare)
            yield sums_case(cls, rng, label, x, w, bare, (DType.I8, DType.I8), 1)
            yield sums_case(cls, rng, label, x, w, bare, (DType.I8, DType.U8), 97)
            known = conv_case(cls, rng, label, x, w, more, "double")
            op = cls("none", 3, to="i32", **more)
            yield replace(known, op=op, inputs=(*known.inputs[:3], None), constant=(1, 2), label=f"{label}_sums")
        slope = conv_case(cls, rng, "3x3_slope", *shapes["3x3"][:2], shapes["3x3"][2] | {"slope": 0.1}, "float")
        yield with_added(slope, rng, DType.U8)
        yield conv_case(cls, rng, "3x3_even", (1, 36, 4, 8), (4, 36, 3, 3), {"pads": (1, 1, 1, 1)}, "double")
        yield conv_case(cls, rng, "u8", (1, 6, 5, 5), (5, 6, 3, 3), {"to": "u8", "w_zero": 121}, "double", np.uint8)
        yield conv_case(cls, rng, "u8_from_zero", (1, 6, 5, 5), (5, 6, 1, 1), {"to": "u8"}, "double", np.uint8)
        yield from (
            conv_case(cls, rng, f"{label}_lowest", *shapes[label], "double", wide=True)
            for label in ("3x3", "depthwise")
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
