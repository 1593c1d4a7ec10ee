"""A depthwise convolution and the 1x1 convolution of its result as one operator."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from tenon.ir.graph import Array, Value
from tenon.ir.types import Layout, TensorType
from tenon.kernels import conv as dense
from tenon.kernels import depthwise, separable, strassen
from tenon.kernels.machine import Machine
from tenon.ops.activation import Clip, Relu, Sigmoid
from tenon.ops.base import (
    Arg,
    Case,
    Cost,
    Input,
    Layouts,
    Limits,
    Operator,
    Output,
    Scratch,
    Site,
    Step,
    Weights,
    padding_mask,
    register,
)
from tenon.ops.conv import Conv, Described
from tenon.ops.elementwise import Apply
from tenon.ops.fused import Fused
from tenon.ops.pointwise import Add


@register
@dataclass(frozen=True)
class SeparableConv(Operator):
    """``second``, a 1x1 Conv, of what ``first``, a depthwise Conv, makes of the first ``count`` inputs.

    Either may be Fused.  The inputs of ``second`` but its first follow those of ``first``.
    """

    first: Operator
    second: Operator
    count: int
    arity: ClassVar[tuple[int, int]] = (3, 2**31)

    @property
    def name(self) -> str:
        return f"{self.first.name}+{self.second.name}"

    def __str__(self) -> str:
        return f"{self.first} + {self.second}"

    # ----------------------------------------------------------------------------------- what it means
    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (middle,) = self.first.infer(inputs[: self.count])
        return self.second.infer([Value("between", middle), *inputs[self.count :]])

    def reference(self, *inputs: Any) -> Array:
        (middle,) = self.first.evaluate(inputs[: self.count])
        return self.second.evaluate([middle, *inputs[self.count :]])[0]

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        middle = _middle(self, inputs)
        return self.first.macs(inputs[: self.count], [middle]) + self.second.macs(
            [middle, *inputs[self.count :]], outputs
        )

    # ------------------------------------------------------------------------------- how it is compiled
    def sites(self, site: Site) -> tuple[Site, Site]:
        """The sites of both; what lies between them has no halo."""
        middle = _middle(self, site.inputs).with_layout(Layout(site.machine.block, ((0, 0), (0, 0))))
        n, inputs, constants = self.count, site.inputs, site.constants
        first = replace(site, inputs=inputs[:n], constants=constants[:n], outputs=(middle,), choice=None)
        second = replace(site, inputs=(middle, *inputs[n:]), constants=(None, *constants[n:]), choice=None)
        return first, second

    def described(self, site: Site) -> tuple[Described, Described]:
        first, second = self.sites(site)
        return _described(self.first, first), _described(self.second, second)

    def layouts(self, site: Site) -> Layouts:
        first, second = self.sites(site)
        wanted = self.second.layouts(second)
        return Layouts((*self.first.layouts(first).inputs, *wanted.inputs[1:]), wanted.outputs)

    def in_place(self, site: Site) -> tuple[int, ...]:
        _, second = self.sites(site)
        return tuple(i + self.count - 1 for i in self.second.in_place(second) if i > 0)

    def supported(self, site: Site) -> str:
        first, second = self.sites(site)
        return self.first.supported(first) or self.second.supported(second)

    def candidates(self, site: Site) -> tuple[object, ...]:
        first, second = (replace(d.conv, epilogue=_nothing) for d in self.described(site))
        return _candidates(first, second, site.machine, site.limits)

    def cost(self, site: Site) -> Cost:
        first, second = (d.conv for d in self.described(site))
        b = self.choice(site)
        if not isinstance(b, strassen.Blocking):
            return Cost()
        weights = 4 * second.padded * second.x.channels * 7**b.levels // 4**b.levels + 4 * first.padded * first.taps
        return Cost(separable.estimate(first, second, site.machine, b), weights)

    def error(self, site: Site) -> float:
        b = self.choice(site)
        if isinstance(b, strassen.Blocking):
            return strassen.ERROR.get(b.levels, 0.0)
        first, second = self.sites(site)
        return max(self.first.error(first), self.second.error(second))

    def choice(self, site: Site) -> object | None:
        return site.choice or next(iter(self.candidates(site)), None)

    def lower(self, site: Site) -> list[Step]:
        first, second = self.described(site)
        b = self.choice(site)
        if not isinstance(b, strassen.Blocking):
            return self.apart(site)
        machine, s = site.machine, second.conv
        packed = depthwise.pack(first.weights.astype(np.float32), first.conv, machine)
        args: list[Arg] = [Input(0), Weights(packed), *_bias(first)]
        shapes = separable.scratch(first.conv, s, b)
        own = [Scratch(f"own{i}", 4 * math.prod(shape), per_thread=True) for i, shape in enumerate(shapes)]
        args += [own[0], Weights(strassen.transform(second.weights, s, machine, b)), *_bias(second)]
        if s.clear:
            args.append(Weights(padding_mask(site.output)))
        args += [Input(i + self.count - 1) for i in second.extras]
        kernel = separable.separable(first.conv, s, machine, b)
        return [Step(kernel, (*args, *own[1:], Output()))]

    def apart(self, site: Site) -> list[Step]:
        """One after the other, with all that lies between them in scratch memory."""
        first, second = self.sites(site)
        whole = Scratch("between", first.output.nbytes)

        def moved(arg: Arg) -> Arg:
            return whole if arg == Input(0) else Input(arg.i + self.count - 1) if isinstance(arg, Input) else arg

        before = [
            Step(s.kernel, tuple(whole if isinstance(a, Output) else a for a in s.args))
            for s in self.first.lower(first)
        ]
        return [*before, *(Step(s.kernel, tuple(map(moved, s.args))) for s in self.second.lower(second))]

    @classmethod
    def cases(cls) -> Iterable[Case]:
        relu, clip = (Apply(Relu(), (0,)),), (Apply(Clip(), (0, 1, 2)),)
        low, high = np.array(0, np.float32), np.array(0.25, np.float32)

        def three(channels: int, stride: int = 1) -> Conv:
            return Conv(group=channels, pads=(1, 1, 1, 1), strides=(stride, stride))

        def shapes(c: int, m: int, h: int, w: int) -> tuple[Any, ...]:
            return (1, c, h, w), (c, 1, 3, 3), (c,), (m, c, 1, 1), (m,)

        plain = cls(Fused(three(32), 3, relu), Fused(Conv(), 3, relu), 3)
        yield Case(plain, shapes(32, 32, 2, 3), (1, 2, 3, 4), label="relu")
        x, *weights = shapes(16, 24, 8, 4)
        residual = cls(three(16, 2), Fused(Conv(), 3, (Apply(Add(), (0, 1)),)), 3)
        yield Case(residual, (x, *weights, (1, 24, 4, 2)), (1, 2, 3, 4), label="stride_2_residual")
        x, kernel, bias, *rest = shapes(32, 32, 4, 2)
        clipped = cls(Fused(three(32), 3, clip), Fused(Conv(), 3, (Apply(Sigmoid(), (0,)),)), 5)
        yield Case(clipped, (x, kernel, bias, low, high, *rest), (1, 2, 3, 4, 5, 6), label="clip_sigmoid")
        narrow = cls(three(5), Conv(), 2)
        yield Case(narrow, ((2, 5, 5, 4), (5, 1, 3, 3), (7, 5, 1, 1)), (1, 2), label="apart")


def _middle(op: SeparableConv, inputs: Sequence[TensorType | None]) -> TensorType:
    return op.first.infer([None if t is None else Value("x", t) for t in inputs[: op.count]])[0]


def _described(op: Operator, site: Site) -> Described:
    base, site = (op.base, op.inner(site)) if isinstance(op, Fused) else (op, site)
    assert isinstance(base, Conv)
    return base.described(site)


def _bias(d: Described) -> list[Arg]:
    if d.bias is None:
        return []
    return [Weights(np.pad(d.bias.astype(np.float32), (0, d.conv.padded - d.conv.y.channels)))]


def _nothing(result: Any, *_: Any) -> Any:
    return result


@lru_cache(maxsize=1024)
def _candidates(first: dense.Conv, second: dense.Conv, machine: Machine, limits: Limits) -> tuple[object, ...]:
    """Blockings of the products, best first by estimate."""
    return tuple(separable.best_blockings(first, second, machine, 8, limits.strassen))
