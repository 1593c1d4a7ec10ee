"""Parts that the formats of TensorFlow's family share: tensors whose channels come last, in ONNX operators.

Every operator that ONNX defines on [N, C, spatial...] stands between two Transposes; the passes let these cancel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np

from tenon.errors import FormatError
from tenon.formats.decompositions.recurrent_layers import unrolled
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Array, Graph, Node, Value
from tenon.network.graph.types import DType, Quant, TensorType
from tenon.network.ops.elementwise import Pointwise

Ints = Sequence[int]
Padding = str | Sequence[int]
"""SAME, VALID, or the elements added before each spatial axis and then those after each."""


@dataclass(frozen=True)
class Batched:
    """A result of SpaceToBatch: its operand, the blocks, and the padding before and after each spatial axis."""

    x: Value
    block: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Convolved:
    """A convolution of a result of SpaceToBatch."""

    source: Batched
    weights: Value
    bias: Value | None
    before: tuple[int, ...]
    after: tuple[int, ...]
    group: int


def same_padding(size: int, kernel: int, stride: int, dilation: int = 1) -> tuple[int, int]:
    """(before, after) such that there are ceil(size / stride) windows; the odd element comes after."""
    total = max(0, (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
    return total // 2, total - total // 2


class ChannelsLast(GraphBuilder):
    """A builder with TensorFlow's operations.  All values that are passed in must have bound types."""

    _batched: dict[Value, Batched]
    _convolved: dict[Value, Convolved]

    def remember(self) -> None:
        """Start to record SpaceToBatch, so that it can be folded into convolutions."""
        self._batched, self._convolved = {}, {}

    def finish(self, outputs: Sequence[str]) -> Graph:
        """As ``GraphBuilder.finish``; all inputs were bound, so all outputs must have types.  Raises FormatError."""
        graph = super().finish(outputs)
        if not all(v.typed for v in graph.outputs):
            raise FormatError(f"{self.file.name}: an output is not computed; the file is damaged")
        return graph

    # ------------------------------------------------------------------------------------- moving data
    def quantized(self, data: Array, stem: str, quant: Quant | None) -> Value:
        """A constant whose quantisation is known."""
        value = self.constant(data, stem)
        if quant is not None:
            value.type = TensorType(value.type.dtype, value.type.shape, quant=quant)
        return value

    def number(self, number: float, like: Value) -> Value:
        """A scalar of ``like``'s element type."""
        return self.constant(np.array(number, self.type(like).dtype.numpy), "number")

    def transpose(self, x: Value, perm: Ints) -> Value:
        """A constant is transposed when importing and keeps its quantisation."""
        if list(perm) == list(range(len(perm))):
            return x
        if x.data is None:
            return self.add("Transpose", x, perm=tuple(perm))
        quant = x.type.quant
        if quant is not None and quant.axis is not None:
            quant = replace(quant, axis=list(perm).index(quant.axis))
        return self.quantized(np.ascontiguousarray(x.data.transpose(perm)), "turned", quant)

    def first(self, x: Value) -> Value:
        """Channels moved from last to first, after the batch."""
        rank = self.type(x).rank
        return self.transpose(x, (0, rank - 1, *range(1, rank - 1)))

    def last(self, x: Value) -> Value:
        """Channels moved back to the end."""
        rank = self.type(x).rank
        return self.transpose(x, (0, *range(2, rank), 1))

    def reshape(self, x: Value, dims: Ints) -> Value:
        """One extent may be -1, which is inferred."""
        dims, old = [int(d) for d in dims], self.dims(x)
        if dims.count(-1) == 1:
            known = -math.prod(dims)
            if known <= 0 or math.prod(old) % known:
                raise RefusedError(f"a tensor of shape {list(old)} cannot become one of {dims}")
            dims[dims.index(-1)] = math.prod(old) // known
        if tuple(dims) == old:
            return x
        if math.prod(dims) != math.prod(old) or min(dims, default=0) < 0:
            raise RefusedError(f"a tensor of shape {list(old)} cannot become one of {dims}")
        return self.add("Reshape", x, self.ints(*dims), allowzero=int(0 in dims))

    def slice(self, x: Value, starts: Ints, ends: Ints, axes: Ints, steps: Ints = ()) -> Value:
        bounds = (starts, ends, axes, steps or [1] * len(axes))
        return self.add("Slice", x, *(self.ints(*map(int, v)) for v in bounds))

    def pad(self, x: Value, pads: Array, value: Value | None = None) -> Value:
        """``pads`` are [rank, 2]: before and after each axis."""
        if pads.shape != (self.type(x).rank, 2):
            raise RefusedError(f"its paddings of shape {list(pads.shape)} do not fit {self.type(x)}")
        return self.add("Pad", x, self.ints(*map(int, pads.T.ravel())), value)

    def mirror_pad(self, x: Value, pads: Array, *, edges: bool) -> Value:
        """Reflected padding; with ``edges`` the outermost elements are repeated, which ONNX cannot express."""
        if not edges:
            return self.add("Pad", x, self.ints(*map(int, pads.T.ravel())), mode="reflect")
        for axis, (before, after) in enumerate(pads.tolist()):
            n = self.dims(x)[axis]
            if max(before, after) > n or min(before, after) < 0:
                raise RefusedError(f"its paddings are larger than axis {axis} of {n}")
            index = [*range(before - 1, -1, -1), *range(n), *range(n - 1, n - 1 - after, -1)]
            if before or after:
                x = self.add("Gather", x, self.ints(*index), axis=axis)
        return x

    def strided_slice(self, x: Value, begin: Ints, end: Ints, strides: Ints, masks: dict[str, int]) -> Value:
        """TensorFlow's slicing; ``masks`` are the bit masks begin, end, ellipsis, new_axis and shrink_axis."""
        dims = self.dims(x)
        spare = len(dims) - sum(not _bit(masks["new_axis"], i) for i in range(len(begin)))
        starts = list[int]()
        ends = list[int]()
        axes = list[int]()
        steps = list[int]()
        shape, axis = list[int](), 0
        for i, (b, e, s) in enumerate(zip(begin, end, strides, strict=True)):
            if _bit(masks["ellipsis"], i):
                shape += dims[axis : axis + spare + 1]
                axis += spare + 1
                continue
            if _bit(masks["new_axis"], i):
                shape.append(1)
                continue
            n = dims[axis]
            if _bit(masks["shrink_axis"], i):
                b = b + n if b < 0 else b
                cut = slice(b, b + 1, 1)
            else:
                cut = slice(None if _bit(masks["begin"], i) else b, None if _bit(masks["end"], i) else e, s)
                shape.append(len(range(*cut.indices(n))))
            indices = range(*cut.indices(n))
            indices = indices or range(0)  # an empty one may begin at -1, which counts from the end elsewhere
            if indices != range(n):
                starts.append(indices.start)
                ends.append(indices.stop if indices.stop >= 0 else -(2**31))
                axes.append(axis)
                steps.append(indices.step)
            axis += 1
        x = self.slice(x, starts, ends, axes, steps) if axes else x
        return self.reshape(x, [*shape, *dims[axis:]])

    def pack(self, values: Sequence[Value], axis: int) -> Value:
        """Equal tensors stacked along a new axis."""
        axis += self.type(values[0]).rank + 1 if axis < 0 else 0
        wide = [self.reshape(v, (*self.dims(v)[:axis], 1, *self.dims(v)[axis:])) for v in values]
        return self.add("Concat", *wide, axis=axis) if len(wide) > 1 else wide[0]

    def unpack(self, x: Value, axis: int) -> list[Value]:
        """The slices along an axis."""
        dims = self.dims(x)
        axis %= len(dims)
        parts = self.split(x, [1] * dims[axis], axis)
        return [self.reshape(v, dims[:axis] + dims[axis + 1 :]) for v in parts]

    def split(self, x: Value, lengths: Ints, axis: int) -> tuple[Value, ...]:
        if -1 in lengths:
            rest = self.dims(x)[axis] - sum(lengths) - 1
            lengths = [rest if n == -1 else n for n in lengths]
        if not 0 < len(lengths) <= 65536:
            raise RefusedError(f"it makes {len(lengths)} parts")
        return self.adds("Split", len(lengths), x, self.ints(*lengths), axis=axis)

    def reverse(self, x: Value, axes: Ints) -> Value:
        return self.slice(x, [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes))

    def squeeze(self, x: Value, axes: Ints) -> Value:
        """Without axes, all axes of one element are removed."""
        dims = self.dims(x)
        removed_axes = {a % len(dims) for a in axes} or {i for i, n in enumerate(dims) if n == 1}
        return self.reshape(x, [n for i, n in enumerate(dims) if i not in removed_axes])

    def expand_dims(self, x: Value, axis: int) -> Value:
        dims = list(self.dims(x))
        dims.insert(axis + len(dims) + 1 if axis < 0 else axis, 1)
        return self.reshape(x, dims)

    # ---------------------------------------------------------------------------- blocks of space
    def space_to_batch(self, x: Value, block: Ints, pads: Array, zero: Value | None = None) -> Value:
        """Pads the spatial axes and moves their positions modulo ``block`` to the front of the batch.

        ``zero`` is what stands for 0 in a tensor of quantised integers.
        """
        rank, m = self.type(x).rank, len(block)
        full = np.zeros((rank, 2), np.int64)
        full[1 : m + 1] = pads
        padded = self.pad(x, full, zero) if full.any() else x
        n, *dims = self.dims(padded)
        if any(d % b for d, b in zip(dims, block, strict=False)):
            raise RefusedError(f"a tensor of shape {[n, *dims]} does not divide into blocks of {list(block)}")
        split = [n, *(k for d, b in zip(dims, block, strict=False) for k in (d // b, b)), *dims[m:]]
        order = [*range(2, 2 * m + 1, 2), 0, *range(1, 2 * m, 2), *range(2 * m + 1, len(split))]
        apart = self.transpose(self.reshape(padded, split), order)
        small = [d // b for d, b in zip(dims, block, strict=False)]
        result = self.reshape(apart, [n * math.prod(block), *small, *dims[m:]])
        before, after = tuple(map(int, full[1:-1, 0])), tuple(map(int, full[1:-1, 1]))
        if m == rank - 2:
            self._batched[result] = Batched(x, tuple(block), before, after)
        return result

    def batch_to_space(self, x: Value, block: Ints, crops: Array) -> Value:
        """The inverse; around a convolution the two together are a dilation."""
        dilated = self._dilated(x, tuple(block), crops)
        if dilated is not None:
            return dilated
        n, *dims = self.dims(x)
        m, blocks = len(block), math.prod(block)
        if blocks < 1 or n % blocks:
            raise RefusedError(f"a batch of {n} does not divide into blocks of {list(block)}")
        split = self.reshape(x, [*block, n // blocks, *dims])
        order = [m, *(k for i in range(m) for k in (m + 1 + i, i)), *range(2 * m + 1, m + 1 + len(dims))]
        wide = [d * b for d, b in zip(dims, block, strict=False)]
        x = self.reshape(self.transpose(split, order), [n // blocks, *wide, *dims[m:]])
        if not crops.any():
            return x
        ends = [d - int(after) for d, after in zip(wide, crops[:, 1], strict=True)]
        return self.slice(x, [int(c) for c in crops[:, 0]], ends, range(1, m + 1))

    def _dilated(self, x: Value, block: tuple[int, ...], crops: Array) -> Value | None:
        """The convolution that ``x`` comes from, dilated instead of done on a batch of blocks, with the operators
        after it."""
        chain: list[Node] = []
        while x not in self._convolved:
            if x.producer is None or not isinstance(x.producer.op, Pointwise):
                return None
            chain.append(x.producer)
            variable = [v for v in x.producer.inputs if v is not None and not v.constant]
            if len(variable) != 1:
                return None
            (x,) = variable
        convolved = self._convolved[x]
        source = convolved.source
        if source.block != block:
            return None
        before = [
            p + q * b - int(c) for p, q, b, c in zip(source.before, convolved.before, block, crops[:, 0], strict=True)
        ]
        after = [
            p + q * b - int(c) for p, q, b, c in zip(source.after, convolved.after, block, crops[:, 1], strict=True)
        ]
        if min(*before, *after) < 0:
            return None
        y = self.conv(
            source.x,
            convolved.weights,
            convolved.bias,
            dilations=block,
            padding=[*before, *after],
            group=convolved.group,
        )
        for node in reversed(chain):
            old, attributes = x, {f.name: getattr(node.op, f.name) for f in fields(cast(Pointwise, node.op))}
            y = self.add(node.op.name, *(y if v is old else v for v in node.inputs), **attributes)
            x = node.output
        return y

    # ------------------------------------------------------------------------------------------ windows
    def pads(self, x: Value, kernel: Ints, strides: Ints, dilations: Ints, padding: Padding) -> tuple[int, ...]:
        """ONNX's pads for windows over the spatial axes of ``x``."""
        if not isinstance(padding, str):
            return tuple(padding)
        if padding == "VALID":
            return (0,) * (2 * len(kernel))
        if padding != "SAME" or min(*strides, *dilations, *kernel) < 1:
            raise RefusedError(f"padding {padding} with strides {list(strides)} is not supported")
        sizes = self.dims(x)[1:-1]
        pairs = [same_padding(*numbers) for numbers in zip(sizes, kernel, strides, dilations, strict=True)]
        return (*(before for before, _ in pairs), *(after for _, after in pairs))

    def conv(
        self,
        x: Value,
        weights: Value,
        bias: Value | None = None,
        *,
        strides: Ints = (),
        dilations: Ints = (),
        padding: Padding = "VALID",
        group: int = 1,
    ) -> Value:
        """A convolution of channels-last ``x`` with weights [out, in / group, kernel...]."""
        kernel = self.dims(weights)[2:]
        ones = (1,) * len(kernel)
        strides, dilations = tuple(strides) or ones, tuple(dilations) or ones
        pads = self.pads(x, kernel, strides, dilations, padding)
        result = self.last(
            self.add(
                "Conv",
                self.first(x),
                weights,
                bias,
                strides=strides,
                dilations=dilations,
                pads=pads,
                kernel_shape=kernel,
                group=group,
            )
        )
        source = self._batched.get(x)
        if source is not None and strides == dilations == ones:
            half = len(kernel)
            self._convolved[result] = Convolved(source, weights, bias, pads[:half], pads[half:], group)
        return result

    def conv_transpose(
        self,
        x: Value,
        weights: Value,
        bias: Value | None,
        sizes: Ints,
        *,
        strides: Ints,
        padding: Padding,
        dilations: Ints = (),
        group: int = 1,
    ) -> Value:
        """The gradient of a convolution that made ``x`` from an image of ``sizes``.

        Weights are [in, out / group, kernel...].
        """
        kernel = self.dims(weights)[2:]
        dilations = tuple(dilations) or (1,) * len(kernel)
        before, after, extra = [], [], []
        for i, (n, out, k, s, d) in enumerate(zip(self.dims(x)[1:-1], sizes, kernel, strides, dilations, strict=True)):
            first = padding[i] if not isinstance(padding, str) else 0
            if padding == "SAME":
                first, _ = same_padding(out, k, s, d)
            rest = (n - 1) * s + (k - 1) * d + 1 - out - int(first)
            before.append(int(first))
            after.append(max(0, rest))
            extra.append(max(0, -rest))
        return self.last(
            self.add(
                "ConvTranspose",
                self.first(x),
                weights,
                bias,
                kernel_shape=kernel,
                strides=tuple(strides),
                dilations=dilations,
                pads=(*before, *after),
                output_padding=tuple(extra),
                group=group,
            )
        )

    def pool(self, kind: str, x: Value, kernel: Ints, strides: Ints, padding: Padding) -> Value:
        """MaxPool or AveragePool; an average is over what lies inside the image."""
        ones = (1,) * len(kernel)
        pads = self.pads(x, kernel, strides, ones, padding)
        y = self.add(kind, self.first(x), kernel_shape=tuple(kernel), strides=tuple(strides), pads=pads)
        return self.last(y)

    # ----------------------------------------------------------------------------------------- resampling
    def resize(self, x: Value, sizes: Ints, mode: str, *, align_corners: bool, half_pixel: bool) -> Value:
        """An image of other extents; ``mode`` is nearest, linear or cubic."""
        n, *old, c = self.dims(x)
        if min(*old, *sizes) < 1:
            raise RefusedError(f"an image of {old} cannot be made one of {list(sizes)}")
        whole = not any(out % size for out, size in zip(sizes, old, strict=True))
        if mode == "nearest" and (half_pixel if align_corners else not whole):
            return self._nearest(x, old, sizes, align_corners=align_corners, half_pixel=half_pixel)
        position = "align_corners" if align_corners else "half_pixel" if half_pixel else "asymmetric"
        rounding = "round_prefer_ceil" if align_corners or half_pixel else "floor"
        target = self.ints(n, c, *map(int, sizes))
        attributes: dict[str, object] = {"coordinate_transformation_mode": position, "mode": mode}
        if mode == "nearest":
            attributes["nearest_mode"] = rounding
        if mode == "cubic":
            attributes["cubic_coeff_a"] = -0.5 if half_pixel else -0.75
            attributes["exclude_outside"] = int(half_pixel)
        return self.last(self.add("Resize", self.first(x), None, None, target, **attributes))

    def _nearest(self, x: Value, old: Ints, sizes: Ints, *, align_corners: bool, half_pixel: bool) -> Value:
        """By gathering, where ONNX's quotient could round to another neighbour than TensorFlow's product, and where
        corners are aligned and centres shifted at once, which ONNX does not have."""
        for axis, (n, out) in enumerate(zip(old, sizes, strict=True), 1):
            ends = (n - 1, out - 1) if align_corners and out > 1 else (n, out)
            scale = np.float32(ends[0]) / np.float32(ends[1])
            at = (np.arange(out, dtype=np.float32) + np.float32(0.5 * half_pixel)) * scale
            index = np.minimum(np.floor(at + np.float32(0.5 * align_corners)), n - 1).astype(np.int64)
            moved = index.tolist() != list(range(n))
            x = self.add("Gather", x, self.constant(index, "rows"), axis=axis) if moved else x
        return x

    def depth_to_space(self, x: Value, block: int) -> Value:
        return self.last(self.add("DepthToSpace", self.first(x), blocksize=block))

    def space_to_depth(self, x: Value, block: int) -> Value:
        return self.last(self.add("SpaceToDepth", self.first(x), blocksize=block))

    # ------------------------------------------------------------------------------------------ arithmetic
    def reduce(self, kind: str, x: Value, axes: Ints, keep: bool) -> Value:
        """``kind`` is ONNX's name without "Reduce"."""
        if not axes:
            return x
        return self.add(f"Reduce{kind}", x, self.ints(*axes), keepdims=int(keep))

    def clip(self, x: Value, low: float | None, high: float | None) -> Value:
        bounds = [None if v is None else self.number(v, x) for v in (low, high)]
        return self.add("Clip", x, *bounds)

    def matmul(self, x: Value, w: Value, bias: Value | None = None, *, transposed: bool = False) -> Value:
        """x [..., in] by w [in, out], or [out, in] if ``transposed``."""
        dims = self.dims(x)
        inner, outer = self.dims(w)[::-1] if transposed else self.dims(w)
        y = self.add("Gemm", self.reshape(x, (-1, inner)), w, bias, transB=int(transposed))
        return y if len(dims) == 2 else self.reshape(y, (*dims[:-1], outer))

    def recurrent(self, kind: str, inputs: Sequence[Value | None], **attributes: Any) -> list[Value]:
        """The results of ONNX's LSTM, GRU or RNN of these inputs: all outputs, the last states."""
        return unrolled(self, kind, inputs, **attributes)

    def square(self, x: Value) -> Value:
        return self.add("Mul", x, x)

    def floor_mod(self, a: Value, b: Value) -> Value:
        """The remainder with the divisor's sign."""
        if self.type(a).dtype.is_float:
            return self.add("Sub", a, self.add("Mul", self.add("Floor", self.add("Div", a, b)), b))
        return self.add("Mod", a, b)

    def floor_div(self, a: Value, b: Value) -> Value:
        if self.type(a).dtype.is_float:
            return self.add("Floor", self.add("Div", a, b))
        return self.add("Div", self.add("Sub", a, self.floor_mod(a, b)), b)

    def fake_quant(self, x: Value, low: float, high: float, bits: int, *, narrow: bool) -> Value:
        """Rounding to the grid that a quantised tensor of this range would have, its zero moved to a grid point."""
        if not (low <= 0 <= high and low < high) or bits not in range(2, 17):
            raise RefusedError(f"a range of {low} to {high} in {bits} bits is not supported")
        lowest, maximum = int(narrow), (1 << bits) - 1
        scale = (high - low) / (maximum - lowest)
        zero = int(np.clip(np.floor(lowest - low / scale + 0.5), lowest, maximum))
        if x.data is not None and bits <= 8:
            return self.on_grid(x.data, np.array([scale]), np.array([zero]), lowest, bits)
        dtype = DType.U8 if bits <= 8 else DType.U16
        if (lowest, maximum) != (0, (1 << 8 * dtype.bytes) - 1):
            x = self.clip(x, (lowest - zero) * scale, (maximum - zero) * scale)
        grid = self.scalar(scale), self.constant(np.array(zero, dtype.numpy), "zero_point")
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, *grid, to=dtype.value), *grid)

    def on_grid(self, data: Array, scale: Array, zero: Array, lowest: int, bits: int) -> Value:
        """A constant rounded to integers of ``lowest`` to the most that ``bits`` hold, of one scale and zero point or
        of one for each of the last axis."""
        steps = scale.astype(np.float32)
        whole = np.clip(np.floor(data / steps + zero + 0.5), lowest, (1 << bits) - 1) - zero
        signed = tuple(int(n) - (1 << bits - 1) for n in zero)
        quant = Quant(tuple(float(n) for n in steps), signed, data.ndim - 1 if steps.size > 1 else None)
        return self.quantized((whole * steps).astype(np.float32), "weights", quant)


def _bit(mask: int, i: int) -> bool:
    return bool(mask >> i & 1)
