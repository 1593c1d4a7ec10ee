"""A depthwise convolution and the 1x1 convolution of its result as one operator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tenon.machine.algorithms.base import Algorithm, Problem, Stage
from tenon.machine.algorithms.integers import IntegerStage
from tenon.machine.algorithms.registry import candidates
from tenon.machine.kernels.image import Image, identity
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import Layout, TensorType
from tenon.network.ops.activation import Clip, Relu, Sigmoid
from tenon.network.ops.base import (
    Arg,
    Case,
    Cost,
    Input,
    Layouts,
    Operator,
    Output,
    Scratch,
    Site,
    Step,
    register,
)
from tenon.network.ops.conv import Conv
from tenon.network.ops.elementwise import Apply
from tenon.network.ops.fused import Fused
from tenon.network.ops.integer_conv import IntegerConv
from tenon.network.ops.patch import Patch, Span
from tenon.network.ops.pointwise import Add
from tenon.network.ops.reach import Operands, Reaches


@register
@dataclass(frozen=True)
class SeparableConv(Operator):
    """``second``, a 1x1 Conv, of the result of ``first``, a depthwise Conv of the first ``count`` inputs; or both an
    IntegerConv.

    Either may be Fused.  The inputs of ``second`` but its first follow those of ``first``.
    """

    first: Operator
    second: Operator
    count: int
    arity: ClassVar[tuple[int, int]] = (3, 2**31)
    internal: ClassVar[bool] = True

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

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        second = self.second.patch([_middle(self, inputs), *inputs[self.count :]], output, span)
        if second is None or second.reads[0] is None:
            return None
        first = self.first.patch(inputs[: self.count], _middle(self, inputs), second.reads[0])
        if first is None:
            return None
        one, two = first.op, second.op
        assert isinstance(one, Operator)
        assert isinstance(two, Operator)
        return Patch(replace(self, first=one, second=two), (*first.reads, *second.reads[1:]))

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        types = [None if v is None else v.type for v in inputs]
        between = Value("between", _middle(self, types))
        second = self.second.reach([between, *inputs[self.count :]], outputs, axis)
        if second is None or second[0] is None:
            return None
        first = self.first.reach(inputs[: self.count], [between.type], second[0].axis)
        if first is None:
            return None
        return (*(None if r is None else second[0].then(r) for r in first), *second[1:])

    # ------------------------------------------------------------------------------- how it is compiled
    def sites(self, site: Site) -> tuple[Site, Site]:
        """The sites of both; the intermediate image has no halo."""
        middle = _middle(self, site.inputs).with_layout(Layout(site.machine.block, ((0, 0), (0, 0))))
        n, inputs, constants = self.count, site.inputs, site.constants
        first = replace(site, inputs=inputs[:n], constants=constants[:n], outputs=(middle,), algorithm=None)
        second = replace(site, inputs=(middle, *inputs[n:]), constants=(None, *constants[n:]), algorithm=None)
        return first, second

    def stages(self, site: Site) -> tuple[Stage, Stage]:
        """Both convolutions in their context; operands are inputs of the fused node."""
        first, second = self.sites(site)
        one, two = _stage(self.first, first), _stage(self.second, second)
        return one, replace(two, operands=tuple(map(self.moved, two.operands)))

    def moved(self, arg: Arg) -> Arg:
        """An operand of ``second`` as one of this operator."""
        return Input(arg.i + self.count - 1) if isinstance(arg, Input) else arg

    def problem(self, site: Site) -> Problem:
        """Both without halos and epilogues."""
        block = site.machine.block

        def plain(image: Image) -> Image:
            return Image(image.n, image.channels, image.h, image.w, block, dtype=image.dtype)

        stages = self.stages(site)
        plains = (replace(s.conv, x=plain(s.conv.x), y=plain(s.conv.y), epilogue=identity) for s in stages)
        integers = isinstance(stages[0], IntegerStage)  # what is fused to them does not change what they cost
        return tuple(replace(s, operands=(), clear=False) if integers else s for s in plains)

    def layouts(self, site: Site) -> Layouts:
        first, second = self.sites(site)
        layouts = self.second.layouts(second)
        return Layouts((*self.first.layouts(first).inputs, *layouts.inputs[1:]), layouts.outputs)

    def in_place(self, site: Site) -> tuple[int, ...]:
        _, second = self.sites(site)
        return tuple(i + self.count - 1 for i in self.second.in_place(second) if i > 0)

    def supported(self, site: Site) -> str:
        first, second = self.sites(site)
        return self.first.supported(first) or self.second.supported(second)

    def candidates(self, site: Site) -> tuple[Algorithm, ...]:
        return candidates(self.problem(site), site.machine, site.limits)

    def cost(self, site: Site) -> Cost:
        algorithm = self.algorithm(site)
        return Cost() if algorithm is None else algorithm.cost(self.problem(site), site.machine)

    def error(self, site: Site) -> float:
        algorithm = self.algorithm(site)
        if algorithm is not None:
            return algorithm.error(self.problem(site), site.constants[self.count])
        first, second = self.sites(site)
        return max(self.first.error(first), self.second.error(second))

    def algorithm(self, site: Site) -> Algorithm | None:
        """The algorithm chosen, or the best by estimate; None where only separate execution is possible."""
        return site.algorithm or next(iter(self.candidates(site)), None)

    def lower(self, site: Site) -> list[Step]:
        algorithm = self.algorithm(site)
        if algorithm is None:
            return self.apart(site)
        return algorithm.lower(self.problem(site), self.stages(site), site.machine)

    def apart(self, site: Site) -> list[Step]:
        """Both in sequence, with the whole intermediate image in scratch memory."""
        first, second = self.sites(site)
        whole = Scratch("between", first.output.nbytes)

        def moved(arg: Arg) -> Arg:
            return whole if arg == Input(0) else self.moved(arg)

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


def _stage(op: Operator, site: Site) -> Stage:
    """The convolution, whose operands are inputs of its own site."""
    base, site = (op.base, op.inner(site)) if isinstance(op, Fused) else (op, site)
    if isinstance(base, IntegerConv):
        assert site.constants[1] is not None
        return base.stage(site, base.described(site, Image.of(site.input(0)), Image.of(site.output)), site.constants[1])
    assert isinstance(base, Conv)
    return replace(base.stage(site), operands=tuple(map(Input, site.extras)))
