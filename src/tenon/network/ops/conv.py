"""Convolution and its transpose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np

from tenon.errors import ShapeError
from tenon.machine.algorithms import rounding, strassen, winograd
from tenon.machine.algorithms.base import Algorithm, Stage
from tenon.machine.algorithms.registry import best, candidates, packed_alike
from tenon.machine.kernels import conv as dense
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.narrow_image import reads_blocks
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sized_node import SizedNode, SizeRefusedError
from tenon.network.graph.sizes import Expression
from tenon.network.graph.types import F32, DType, Layout, TensorType
from tenon.network.ops.base import (
    ROUNDED,
    Case,
    Cost,
    Input,
    Layouts,
    Operator,
    Site,
    Step,
    conv_images,
    needs_clear,
    register,
    typed,
    widened,
)
from tenon.network.ops.mask import zeros_beyond
from tenon.network.ops.patch import Patch, Span, window_patch
from tenon.network.ops.reach import Operands, Reach, Reaches, alike, window_reach
from tenon.network.ops.sized_windows import over_images, same_padded, sized_windows
from tenon.network.ops.window import Axis, Ints, Window, last_axes, planar, same_pads


def check_operands(name: str, inputs: Sequence[Value | None], channel_axis: int, group: int) -> tuple[Ints, Ints]:
    """The shapes of x and w.  Raises ShapeError where they, the bias and ``group`` contradict each other."""
    x, w, *bias = typed(inputs)
    if x.rank < 3 or w.rank != x.rank:
        raise ShapeError(f"{name}: input {list(x.dims)} and weights {list(w.dims)} need equal ranks of at least 3")
    outs = w.dims[0] if channel_axis == 1 else w.dims[1] * group
    ins = w.dims[1] * group if channel_axis == 1 else w.dims[0]
    if group < 1 or x.dims[1] != ins or outs % group or ins % group:
        raise ShapeError(f"{name}: {x.dims[1]} input channels in {group} groups do not fit weights {list(w.dims)}")
    if outs and 0 in [ins, *w.dims[2:]]:
        raise ShapeError(f"{name}: weights {list(w.dims)} have no elements")
    if bias and bias[0].dims != (outs,):
        raise ShapeError(f"{name}: bias {list(bias[0].dims)} does not fit {outs} output channels")
    return x.dims, w.dims


def check_compiled(site: Site) -> str:
    """Why a convolution at this site cannot be compiled; empty if it can."""
    spatial = site.input(0).rank - 2
    if spatial > 2:
        return f"{spatial} spatial axes: only 1-D and 2-D are compiled"
    if site.input(0).dtype not in (F32, DType.BF16, DType.F16):
        return f"element type {site.input(0).dtype}: only f32, bf16 and f16 are compiled"
    if any(site.has(i) and site.constants[i] is None for i in (1, 2) if i not in site.extras):
        return "weights computed at run time: weights and bias must be constants (initializers) of the model"
    return ""


def extra_layouts(site: Site, layout: Layout) -> tuple[Layout | None, ...]:
    """The layouts of all inputs but the first: any for weights, the output's for epilogue operands."""
    return tuple(layout if i in site.extras else None for i in range(1, len(site.inputs)))


def geometry(site: Site, x: Image, *, bias: bool = True) -> dense.Conv:
    """The parameters that all algorithms at this site share: images, epilogue, groups of one."""
    return dense.Conv(
        x,
        Image.of(site.output),
        bias=bias,
        operands=conv_images(site),
        epilogue=site.epilogue,
        clear=needs_clear(site),
        weights=site.input(1).dtype,
    )


def planes(weights: Array) -> Array:
    """Weights of a 1-D convolution as those of a 2-D one."""
    return weights[:, :, None, :] if weights.ndim == 3 else weights


@register
@dataclass(frozen=True)
class Conv(Operator):
    """Cross-correlation of [N, C, spatial...] with weights [M, C / group, kernel...]."""

    auto_pad: str = "NOTSET"
    dilations: Ints = ()
    group: int = 1
    kernel_shape: Ints = ()
    pads: Ints = ()
    strides: Ints = ()
    arity: ClassVar[tuple[int, int]] = (2, 3)
    fusable: ClassVar[bool] = True
    bilinear: ClassVar[bool] = True
    narrow_images: ClassVar[bool] = True

    @property
    def fused_types(self) -> frozenset[DType]:
        return frozenset({F32, DType.BF16, DType.F16})

    def axes(self, x: Ints, w: Ints) -> tuple[Axis, ...]:
        kernel = self.kernel_shape or w[2:]
        if kernel != w[2:]:
            raise ShapeError(f"Conv: kernel_shape {list(kernel)} does not fit weights {list(w)}")
        return Window(kernel, self.strides, self.dilations, self.pads, self.auto_pad).axes("Conv", x[2:])

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, w = check_operands("Conv", inputs, 1, self.group)
        return (TensorType(typed(inputs)[0].dtype, (x[0], w[0], *(a.out for a in self.axes(x, w)))),)

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        if not node.fixed(*range(1, len(node.inputs))):
            raise SizeRefusedError("its weights have extents that are known only at run time")
        weights = node.type(1).dims
        window = Window(self.kernel_shape or weights[2:], self.strides, self.dilations, self.pads, self.auto_pad)
        node.inputs[0], window = same_padded(node, node.input(0), window, 0.0)
        windows = sized_windows(window, node.extents(0)[2:], node.type(0).dims[2:])
        axes = replace(window, pads=windows.pads).axes("Conv", node.type(0).dims[2:])
        tiled = [2 + i for i, a in enumerate(axes) if self._in_tiles(a, node.type(0).dtype)]
        if self._halved([v.type for v in node.inputs if v is not None]):
            tiled.append(2)
        extents = over_images(node, replace(windows, reaching=sorted({*windows.reaching, *tiled})), weights[0], 0.0)
        node.op = replace(self, pads=windows.pads, auto_pad="NOTSET")
        return node.same(extents)

    def reference(self, x: Array, w: Array, b: Array | None = None) -> Array:
        axes = self.axes(x.shape, w.shape)
        stored, (x, w, b) = x.dtype, widened(x, w, b)  # type: ignore[assignment]
        n, g, per_in, per_out = x.shape[0], self.group, x.shape[1] // self.group, w.shape[0] // self.group
        x = np.pad(x, [(0, 0), (0, 0), *((max(0, a.before), max(0, a.after)) for a in axes)])
        kept = (slice(max(0, -a.before), n - max(0, -a.after)) for a, n in zip(axes, x.shape[2:], strict=True))
        x = x[last_axes(kept)]
        out = np.zeros((n, g, per_out, *(a.out for a in axes)), x.dtype)
        for tap in np.ndindex(*w.shape[2:]):
            window = (
                slice(t * a.dilation, t * a.dilation + (a.out - 1) * a.stride + 1, a.stride)
                for t, a in zip(tap, axes, strict=True)
            )
            part = x[last_axes(window)].reshape(n, g, per_in, -1)
            taps = w[(slice(None), slice(None), *tap)].reshape(1, g, per_out, per_in)
            product = taps * part if per_in == per_out == 1 else taps @ part
            out += product.reshape(out.shape)
        out = out.reshape(n, w.shape[0], *out.shape[3:])
        return (out if b is None else out + b.reshape(1, -1, *(1,) * len(axes))).astype(stored)

    def layouts(self, site: Site) -> Layouts:
        x, block = site.input(0), site.machine.block
        axes = self.axes(x.dims, site.input(1).dims)
        halo = tuple((a.before, a.reach) for a in axes)
        first = self.is_first(site)
        image, output = Layout(1 if first else block, halo), Layout(block, ((0, 0),) * len(axes))
        algorithm = self.algorithm(site)
        if algorithm is not None:
            image, output = algorithm.layouts((self.problem(site),), image, output)
        if first and x.dtype is DType.BF16:  # taps are multiplied in pairs: an odd number reads one more column
            *outer, (before, after) = image.halo
            image = replace(image, halo=(*outer, (before, after + 1)))
        return Layouts((image, *extra_layouts(site, output)), (output,))

    def any_block(self, site: Site, i: int | None) -> bool:
        """The result, by algorithms whose kernels store any."""
        algorithm = self.algorithm(site) if i is None else None
        return algorithm is not None and algorithm.any_block and site.machine.wants_blocks(site.input(0).dtype)

    def supported(self, site: Site) -> str:
        negative = any(p < 0 for p in self.pads)
        return "negative pads: crop the input with Slice instead" if negative else check_compiled(site)

    def stage(self, site: Site) -> Stage:
        """The convolution in its context."""
        weights = site.constants[1]
        assert weights is not None
        axes = self.axes(site.input(0).dims, weights.shape)
        bias = site.constants[2] if len(site.inputs) > 2 and 2 not in site.extras else None
        top, left = planar(tuple(a.before for a in axes), 0)
        more = self.channels(site) - site.input(0).dims[1]
        weights = np.pad(weights, [(0, 0), (0, more), *[(0, 0)] * len(axes)]) if more else weights
        s = replace(
            geometry(site, replace(Image.of(site.input(0)), channels=self.channels(site)), bias=bias is not None),
            kernel=planar(tuple(a.kernel for a in axes), 1),
            stride=planar(tuple(a.stride for a in axes), 1),
            dilation=planar(tuple(a.dilation for a in axes), 1),
            groups=self.group,
            top=top,
            left=left,
        )
        return Stage(s, planes(weights), bias, tuple(map(Input, site.extras)))

    def lower(self, site: Site) -> list[Step]:
        problem = (self.problem(site),)
        algorithm = self.algorithm(site) or best(problem, site.machine)
        return algorithm.lower(problem, (self.stage(site),), site.machine)

    def is_first(self, site: Site) -> bool:
        """Whether there are so few channels that blocks of one waste nothing, where larger ones are not read faster."""
        return site.input(0).dims[1] <= 4 and self.group == 1 and not self.fills_block(site)

    def fills_block(self, site: Site) -> bool:
        """Whether few channels are computed as those of a whole block: padding has weights of zero."""
        x = site.input(0)
        return self.group == 1 and x.rank == 4 and reads_blocks(site.machine, x.dtype, x.dims[1])

    def channels(self, site: Site) -> int:
        """The channels that are multiplied."""
        return site.machine.block if self.fills_block(site) else site.input(0).dims[1]

    def problem(self, site: Site) -> dense.Conv:
        """The convolution without halos and epilogue, which the choice of algorithm depends on."""
        x, y, block = site.input(0).dims, site.output.dims, site.machine.block
        axes = self.axes(x, site.input(1).dims)
        inside = 1 if self.is_first(site) else block
        top, left = planar(tuple(a.before for a in axes), 0)
        return dense.Conv(
            Image(x[0], self.channels(site), *planar(x[2:], 1), inside, dtype=site.input(0).dtype),
            Image(y[0], y[1], *planar(y[2:], 1), block, dtype=site.output.dtype),
            weights=site.input(1).dtype,
            kernel=planar(tuple(a.kernel for a in axes), 1),
            stride=planar(tuple(a.stride for a in axes), 1),
            dilation=planar(tuple(a.dilation for a in axes), 1),
            top=top,
            left=left,
            groups=self.group,
        )

    def candidates(self, site: Site) -> tuple[Algorithm, ...]:
        problem, weights = self.problem(site), site.constants[1]
        if problem.depthwise and site.machine.launch is None:
            return ()
        return candidates((problem,), site.machine, site.limits, None if weights is None else planes(weights))

    def algorithm(self, site: Site) -> Algorithm | None:
        """The algorithm chosen, or the best by estimate; None where there is no choice."""
        if site.algorithm is not None or site.input(0).rank > 4:
            return site.algorithm
        return next(iter(self.candidates(site)), None)

    def packed_alike(self, site: Site, other: Site) -> Algorithm | None:
        algorithm = self.algorithm(other)
        return None if algorithm is None else packed_alike((self.problem(site),), site.machine, algorithm)

    def cost(self, site: Site) -> Cost:
        problem = (self.problem(site),)
        return (self.algorithm(site) or best(problem, site.machine)).cost(problem, site.machine)

    def error(self, site: Site) -> float:
        algorithm, weights = self.algorithm(site), site.constants[1]
        added = 0.0
        if algorithm is not None:
            added = algorithm.error((self.problem(site),), None if weights is None else planes(weights))
        if weights is None or {site.input(0).dtype, site.input(1).dtype, site.output.dtype} == {F32}:
            return added
        halves = self.problem(site).halves(site.machine) and not added
        return rounding.direct(weights, site.input(0).dtype, site.output.dtype, halves=halves) + added

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        x, w = inputs[0], inputs[1]
        assert x is not None
        assert w is not None
        return window_patch(self, self.axes(x.dims, w.dims), inputs, span, auto_pad="NOTSET")

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        x, w = inputs[0], inputs[1]
        assert x is not None
        assert w is not None
        axes = self.axes(x.type.dims, w.type.dims)
        reaches = window_reach(axes, inputs, axis)
        if reaches is None or reaches[0] is None or axis < 2:
            return reaches
        more = winograd.LARGEST_TILE - 1 if self._in_tiles(axes[axis - 2], x.type.dtype) else 0
        if axis == 2 and self.in_blocks(inputs):
            more = max(more, axes[0].stride * (strassen.MOST_ROWS - 1))
        return replace(reaches[0], offset=reaches[0].offset + more), *reaches[1:]

    def in_blocks(self, inputs: Operands) -> bool:
        x = inputs[0]
        return x is not None and self._halved([v.type for v in inputs if v is not None]) and zeros_beyond(x, 2)

    def _halved(self, inputs: Sequence[TensorType]) -> bool:
        """Whether Strassen's algorithm may halve rows and channels.  It adds rows beyond the needed ones, and subtracts
        them again."""
        x, w, *_ = inputs
        halves = strassen.worthwhile(x.dims[1], w.dims[0])
        return halves and x.rank == 4 and self.group == 1 and x.dtype is w.dtype is F32

    def _in_tiles(self, a: Axis, dtype: DType) -> bool:
        """Whether Winograd's algorithm may take tiles of several positions along an axis.  A tile adds what lies beyond
        the needed positions, and subtracts it again: zeros have to be there, since NaNs and large numbers remain."""
        floats = dtype.is_float or dtype.is_small_float
        return floats and self.group == 1 and a.kernel > 1 and a.stride == a.dilation == 1

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[1] is not None
        return outputs[0].size * int(np.prod(inputs[1].dims[1:]))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        def case(label: str, x: Ints, w: Ints, bias: bool = True, **attributes: object) -> Case:
            inputs = (x, w, (w[0],)) if bias else (x, w)
            op = cls(**attributes)  # type: ignore[arg-type]
            return Case(op, inputs, (1, 2) if bias else (1,), label=label)

        yield case("pointwise", (1, 19, 5, 6), (21, 19, 1, 1))
        yield case("3x3", (1, 5, 4, 5), (18, 5, 3, 3), pads=(1, 1, 1, 1))
        yield case("no_bias", (2, 7, 4, 4), (5, 7, 3, 3), bias=False)
        yield case("first_layer", (2, 3, 9, 8), (17, 3, 3, 3), pads=(0, 0, 1, 1), strides=(2, 2))
        yield case("one_in_one_out", (1, 1, 6, 5), (1, 1, 5, 3), pads=(2, 1, 2, 1))
        yield case("stride_past_pads", (1, 5, 8, 9), (4, 5, 2, 3), pads=(1, 0, 0, 2), strides=(3, 2))
        yield case("dilated", (1, 5, 9, 8), (6, 5, 3, 2), pads=(2, 1, 2, 1), dilations=(2, 3))
        yield case("same_upper", (1, 6, 7, 6), (6, 6, 4, 3), auto_pad="SAME_UPPER", strides=(2, 2))
        yield case("same_lower", (1, 6, 7, 6), (6, 6, 4, 2), auto_pad="SAME_LOWER", strides=(2, 1))
        yield case("valid", (1, 6, 5, 5), (6, 6, 2, 3), auto_pad="VALID")
        yield case("aligned_groups", (1, 32, 1, 3), (32, 16, 1, 3), group=2, pads=(0, 1, 0, 1))
        yield case("narrow_groups", (1, 24, 3, 4), (16, 3, 1, 3), group=8, pads=(0, 1, 0, 1))
        yield case("odd_groups", (1, 9, 4, 3), (15, 3, 3, 1), group=3, pads=(1, 0, 1, 0))
        yield case("multiplier", (1, 6, 4, 5), (12, 1, 3, 3), group=6, pads=(1, 1, 1, 1))
        yield case("depthwise", (2, 19, 5, 7), (19, 1, 3, 3), group=19, pads=(1, 1, 1, 1))
        yield case("depthwise_s2", (1, 16, 7, 8), (16, 1, 3, 3), group=16, pads=(1, 1, 1, 1), strides=(2, 2))
        yield case("depthwise_5x5", (1, 5, 6, 5), (5, 1, 5, 5), group=5, auto_pad="SAME_UPPER", bias=False)
        yield case("depthwise_dilated", (1, 6, 7, 6), (6, 1, 3, 2), group=6, dilations=(2, 3), pads=(1, 2, 1, 2))
        yield case("depthwise_17x17", (1, 2, 4, 3), (2, 1, 17, 17), group=2, pads=(8, 8, 8, 8))
        yield case("one_axis", (2, 5, 11), (7, 5, 3), pads=(1, 1), strides=(2,))
        yield case("one_axis_depthwise", (1, 5, 9), (5, 1, 4), group=5, auto_pad="SAME_LOWER")
        yield case("three_axes", (1, 2, 4, 5, 3), (3, 2, 2, 3, 1), pads=(1, 0, 0, 1, 0, 0))

        def narrow(label: str, x: Ints, w: Ints, dtype: DType = DType.BF16, **attributes: object) -> Case:
            dtypes = (dtype, dtype) if dtype is DType.BF16 else (F32, dtype)
            # Winograd's transformed weights are rounded to f16 (2**-11), and the sums of six amplify that.
            tolerance = ROUNDED if dtype is DType.BF16 else 2.0**-10
            op = cls(**attributes)  # type: ignore[arg-type]
            return Case(op, (x, w, (w[0],)), (1, 2), tolerance, label=label, dtypes=dtypes)

        def halves(label: str, x: Ints, w: Ints, **attributes: object) -> Case:
            """Images of f16; where they are multiplied as such, sums are as exact as those of bf16."""
            case = narrow(label, x, w, DType.BF16, **attributes)
            return replace(case, dtypes=(DType.F16, DType.F16))

        yield narrow("bf16_pointwise", (2, 19, 5, 6), (21, 19, 1, 1))
        yield narrow("bf16_3x3", (1, 37, 4, 5), (18, 37, 3, 3), pads=(1, 1, 1, 1))
        yield narrow("bf16_3x3_s2", (1, 21, 7, 5), (35, 21, 3, 3), pads=(1, 1, 1, 1), strides=(2, 2))
        yield narrow("bf16_first_layer", (2, 3, 9, 8), (17, 3, 3, 3), pads=(0, 0, 1, 1), strides=(2, 2))
        yield narrow("bf16_one_in", (1, 1, 6, 5), (5, 1, 5, 3), pads=(2, 1, 2, 1))
        yield narrow("bf16_groups", (1, 24, 3, 4), (16, 3, 1, 3), group=8, pads=(0, 1, 0, 1))
        yield narrow("bf16_depthwise", (2, 19, 5, 7), (19, 1, 3, 3), group=19, pads=(1, 1, 1, 1))
        yield narrow("bf16_one_axis", (2, 9, 11), (7, 9, 3), pads=(1, 1), strides=(2,))
        yield narrow("f16_weights", (1, 19, 6, 5), (21, 19, 3, 3), DType.F16, pads=(1, 1, 1, 1))
        yield narrow("f16_first_layer", (1, 3, 6, 5), (5, 3, 3, 3), DType.F16)
        yield halves("f16_pointwise", (2, 139, 5, 6), (21, 139, 1, 1))
        yield halves("f16_3x3", (1, 37, 4, 5), (18, 37, 3, 3), pads=(1, 1, 1, 1))
        yield halves("f16_first_layer_s2", (2, 3, 9, 8), (17, 3, 3, 3), pads=(0, 0, 1, 1), strides=(2, 2))
        yield halves("f16_groups", (1, 24, 3, 4), (16, 3, 1, 3), group=8, pads=(0, 1, 0, 1))
        yield halves("f16_depthwise", (2, 19, 5, 7), (19, 1, 3, 3), group=19, pads=(1, 1, 1, 1))
        yield halves("f16_depthwise_13x13", (1, 9, 4, 3), (9, 1, 13, 13), group=9, pads=(6, 6, 6, 6))
        stored = (F32, DType.BF16)
        yield Case(cls(), ((1, 19, 5, 6), (21, 19, 1, 1)), (1,), label="bf16_weights", dtypes=stored)
        integers = np.random.default_rng(0).integers(-127, 128, (21, 19, 3, 3), np.int8)
        yield Case(cls(pads=(1, 1, 1, 1)), ((1, 19, 6, 5), integers, (21,)), (1, 2), label="i8_weights")


@register
@dataclass(frozen=True)
class ConvTranspose(Operator):
    """The gradient of Conv: every input element adds its weighted kernel [C, M / group, kernel...] to the output."""

    auto_pad: str = "NOTSET"
    dilations: Ints = ()
    group: int = 1
    kernel_shape: Ints = ()
    output_padding: Ints = ()
    output_shape: Ints = ()
    pads: Ints = ()
    strides: Ints = ()
    arity: ClassVar[tuple[int, int]] = (2, 3)
    fusable: ClassVar[bool] = True
    bilinear: ClassVar[bool] = True

    def axes(self, x: Ints, w: Ints) -> tuple[Axis, ...]:
        """Each axis; ``before`` and ``after`` are the elements cropped from the full result."""
        rank = len(x) - 2
        kernel = self.kernel_shape or w[2:]
        if kernel != w[2:]:
            raise ShapeError(f"ConvTranspose: kernel_shape {list(kernel)} does not fit weights {list(w)}")
        ones, zeros = (1,) * rank, (0,) * rank
        strides, dilations, pads = self.strides or ones, self.dilations or ones, self.pads or zeros * 2
        extra, shapes = self.output_padding or zeros, self.output_shape[-rank:] or (None,) * rank
        if not len(strides) == len(dilations) == len(extra) == len(shapes) == len(pads) / 2 == rank:
            raise ShapeError(f"ConvTranspose: the attributes do not fit an input with {rank} spatial axes")
        axes = []
        for i, (n, k, s, d) in enumerate(zip(x[2:], kernel, strides, dilations, strict=True)):
            full = s * (n - 1) + extra[i] + (k - 1) * d + 1
            before, after, shape = pads[i], pads[rank + i], shapes[i]
            if shape is None and self.auto_pad.startswith("SAME"):
                shape = n * s
            if self.auto_pad == "VALID":
                before = after = 0
            if shape is not None:
                before, after = same_pads(self.auto_pad, full - shape)
            if full - before - after < 1:
                raise ShapeError(f"ConvTranspose: pads leave nothing of an axis of {full}")
            axes.append(Axis(n, k, s, d, before, after, full - before - after))
        return tuple(axes)

    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        x, w = check_operands("ConvTranspose", inputs, 0, self.group)
        outs = tuple(a.out for a in self.axes(x, w))
        if 0 in x and 0 not in [x[0], w[1], *outs]:
            raise ShapeError(f"ConvTranspose: an input of {list(x)} has no elements to spread over {list(outs)}")
        return (TensorType(typed(inputs)[0].dtype, (x[0], w[1] * self.group, *outs)),)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        x, w = inputs[0], inputs[1]
        assert x is not None
        assert w is not None
        if axis < 2:
            return None if axis else alike(inputs, 0)
        a = self.axes(x.type.dims, w.type.dims)[axis - 2]
        return (Reach(axis, 1, a.before, a.stride), *(None for _ in inputs[1:]))

    def at_run_time(self, node: SizedNode) -> Sequence[Value]:
        if not node.fixed(*range(1, len(node.inputs))):
            raise SizeRefusedError("its weights have extents that are known only at run time")
        weights, extents = node.type(1).dims, node.extents(0)
        if 1 in node.changing(0):
            raise SizeRefusedError("the number of its channels is known only at run time")
        geometry = self.axes(node.type(0).dims, weights)
        counts, reaching = list[Expression](), list[int]()
        for i, a in enumerate(geometry):
            extra = self.output_padding[i] if self.output_padding else 0
            if not extents[2 + i].known and self.output_shape:
                raise SizeRefusedError("output_shape with an extent that is known only at run time")
            counts.append((extents[2 + i] - 1) * a.stride + (extra + a.span - a.before - a.after))
            if a.stride < extra + a.span - a.after:
                reaching.append(2 + i)
        node.with_masked(0, reaching, 0.0)
        pads = (*(a.before for a in geometry), *(a.after for a in geometry))
        node.op = replace(self, pads=pads, auto_pad="NOTSET", output_shape=())
        return node.same([extents[0], weights[1] * self.group, *counts])

    def reference(self, x: Array, w: Array, b: Array | None = None) -> Array:
        axes = self.axes(x.shape, w.shape)
        stored, (x, w, b) = x.dtype, widened(x, w, b)  # type: ignore[assignment]
        n, g, per_in, per_out = x.shape[0], self.group, x.shape[1] // self.group, w.shape[1]
        low = [max(0, -a.before) for a in axes]
        high = [max(a.before + a.out, (a.size - 1) * a.stride + a.span) for a in axes]
        full = np.zeros((n, g, per_out, *(a + b for a, b in zip(low, high, strict=True))), x.dtype)
        flat = x.reshape(n, g, per_in, -1)
        for tap in np.ndindex(*w.shape[2:]):
            taps = w[(slice(None), slice(None), *tap)].reshape(1, g, per_in, per_out)
            part = (np.swapaxes(taps, 2, 3) @ flat).reshape(n, g, per_out, *x.shape[2:])
            at = [lo + t * a.dilation for lo, t, a in zip(low, tap, axes, strict=True)]
            where = (slice(i, i + (a.size - 1) * a.stride + 1, a.stride) for i, a in zip(at, axes, strict=True))
            full[last_axes(where)] += part
        kept = (slice(lo + a.before, lo + a.before + a.out) for lo, a in zip(low, axes, strict=True))
        out = full[last_axes(kept)].reshape(n, g * per_out, *(a.out for a in axes))
        return np.asarray(out if b is None else out + b.reshape(1, -1, *(1,) * len(axes))).astype(stored)

    def layouts(self, site: Site) -> Layouts:
        axes = self.axes(site.input(0).dims, site.input(1).dims)
        output = Layout(site.machine.block, ((0, 0),) * len(axes))
        halo = tuple(_phase_halo(a) for a in axes)
        return Layouts((Layout(site.machine.block, halo), *extra_layouts(site, output)), (output,))

    def supported(self, site: Site) -> str:
        return check_compiled(site)

    def lower(self, site: Site) -> list[Step]:
        weights = site.constants[1]
        assert weights is not None
        axes = self.axes(site.input(0).dims, weights.shape)
        rows, cols = ((Axis(1, 1, 1, 1, 0, 0, 1),) * 2 + axes)[-2:]
        bias = site.constants[2] if len(site.inputs) > 2 and 2 not in site.extras else None
        weights = _swapped(planes(weights), self.group)
        shared = geometry(site, Image.of(site.input(0)), bias=bias is not None)
        shared = replace(shared, groups=self.group, y_step=(rows.stride, cols.stride))
        steps: list[Step] = []
        for p, q in product(_phases(rows), _phases(cols)):
            taps = weights[:, :, p.taps][:, :, :, q.taps]
            kernel = (len(p.taps), len(q.taps)) if p.taps and q.taps else (0, 0)
            s = replace(
                shared,
                kernel=kernel,
                dilation=(p.step, q.step),
                top=p.before,
                left=q.before,
                y_start=(p.start, q.start),
                positions=(p.count, q.count),
            )
            stage = Stage(s, taps, bias, tuple(map(Input, site.extras)))
            steps += best((s,), site.machine).lower((s,), (stage,), site.machine)
        return steps

    def error(self, site: Site) -> float:
        weights = site.constants[1]
        if weights is None or DType.of(weights.dtype) is F32:
            return 0.0
        return rounding.direct(_swapped(planes(weights), self.group), site.input(0).dtype, site.output.dtype)

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        assert inputs[0] is not None
        assert inputs[1] is not None
        return inputs[0].size * int(np.prod(inputs[1].dims[1:]))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        def case(label: str, x: Ints, w: Ints, bias: int = 0, **attributes: object) -> Case:
            inputs = (x, w, (bias,)) if bias else (x, w)
            op = cls(**attributes)  # type: ignore[arg-type]
            return Case(op, inputs, (1, 2) if bias else (1,), label=label)

        yield case("stride_1", (1, 5, 4, 3), (5, 6, 3, 3), 6, pads=(1, 1, 1, 1))
        yield case("stride_2", (2, 7, 3, 4), (7, 5, 4, 4), 5, pads=(1, 1, 1, 1), strides=(2, 2))
        yield case("doubling", (1, 18, 3, 3), (18, 17, 2, 2), strides=(2, 2))
        yield case("holes", (1, 3, 3, 2), (3, 4, 1, 2), 4, strides=(3, 3))
        yield case(
            "output_padding", (1, 4, 3, 4), (4, 4, 3, 3), strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1)
        )
        yield case("dilated", (1, 4, 3, 4), (4, 3, 3, 2), 3, strides=(2, 3), dilations=(2, 2), pads=(1, 0, 0, 1))
        yield case("groups", (1, 6, 3, 3), (6, 2, 3, 3), 6, group=3, strides=(2, 1))
        yield case("depthwise", (1, 5, 3, 4), (5, 1, 4, 4), 5, group=5, strides=(2, 2), pads=(1, 1, 1, 1))
        yield case("same_upper", (1, 3, 3, 3), (3, 3, 3, 3), strides=(2, 2), auto_pad="SAME_UPPER")
        yield case("same_lower", (1, 3, 3, 3), (3, 3, 3, 4), strides=(2, 2), auto_pad="SAME_LOWER")
        yield case("output_shape", (1, 3, 3, 3), (3, 3, 3, 3), strides=(3, 2), output_shape=(9, 8))
        yield case("one_axis", (2, 4, 5), (4, 3, 4), 3, strides=(2,), pads=(1, 1))
        yield case("three_axes", (1, 2, 2, 3, 2), (2, 2, 2, 2, 2), strides=(2, 1, 2))
        yield Case(cls(strides=(2, 2)), ((1, 18, 3, 3), (18, 17, 3, 3)), (1,), label="f16", dtypes=(F32, DType.F16))


@dataclass(frozen=True)
class _Phase:
    """Every ``stride``-th output element of an axis from ``start`` on: a convolution of stride 1.

    ``taps`` are in the order of the input elements that they multiply, ``step`` apart; the first is ``before`` elements
    ahead of the output's index.
    """

    start: int
    count: int
    taps: list[int]
    step: int
    before: int


def _phases(a: Axis) -> list[_Phase]:
    """The sub-pixel phases of a transposed convolution (Shi et al., "Is the deconvolution layer the same as a
    convolutional layer?", 2016)."""
    phases = []
    for start in range(min(a.stride, a.out)):
        at = {k: start + a.before - k * a.dilation for k in reversed(range(a.kernel))}
        offsets = {k: at[k] // a.stride for k in at if at[k] % a.stride == 0}
        taps = list(offsets)
        step = offsets[taps[1]] - offsets[taps[0]] if len(taps) > 1 else 1
        before = -offsets[taps[0]] if taps else 0
        phases.append(_Phase(start, -(-(a.out - start) // a.stride), taps, step, before))
    return phases


def _phase_halo(a: Axis) -> tuple[int, int]:
    phases = [p for p in _phases(a) if p.taps]
    before = max((p.before for p in phases), default=0)
    after = max((p.count - 1 - p.before + (len(p.taps) - 1) * p.step - (a.size - 1) for p in phases), default=0)
    return max(0, before), max(0, after)


def _swapped(weights: Array, group: int) -> Array:
    """[C, M / group, taps] as the [M, C / group, taps] of an ordinary convolution, along any number of axes."""
    ins, outs, *taps = weights.shape
    split = weights.reshape(group, ins // group, outs, *taps)
    return split.swapaxes(1, 2).reshape(group * outs, ins // group, *taps)
