"""A depthwise convolution and the 1x1 convolution of its result one after the other, by machines of work groups.

It is an algorithm of the pair, so that it is compared with those of one launch, by estimate and by measured times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from tenon.machine.algorithms.base import Algorithm, Arg, Cost, Limits, Output, Problem, Scratch, Stage, Step
from tenon.machine.algorithms.depthwise_items import DepthwiseItems
from tenon.machine.algorithms.direct import Direct
from tenon.machine.algorithms.estimate import DEVICE_CYCLES, DEVICE_LAUNCH
from tenon.machine.algorithms.matrix_tiled import MatrixTiled
from tenon.machine.algorithms.tensor_staged import TensorStaged
from tenon.machine.algorithms.tensor_tiled import TensorTiled
from tenon.machine.algorithms.tiled import Tiled
from tenon.machine.algorithms.vector_product import VectorProduct
from tenon.machine.kernels import separable_tiled
from tenon.machine.kernels.machine import Machine

PRODUCTS: tuple[type[Algorithm], ...] = (TensorStaged, TensorTiled, MatrixTiled, Tiled, VectorProduct, Direct)
"""The algorithms for matrix products of floats on machines that run work groups, in order of preference."""


@dataclass(frozen=True)
class InTurn(Algorithm):
    """Each by an algorithm of its own; what lies between them is in memory."""

    first: Algorithm
    second: Algorithm
    name: ClassVar[str] = "in-turn"
    offered: ClassVar[int] = 8

    @classmethod
    def applies(cls, problem: Problem, machine: Machine) -> bool:
        return len(problem) == 2 and machine.launch is not None and separable_tiled.supported(*problem)

    @classmethod
    def candidates(cls, problem: Problem, machine: Machine, limits: Limits, count: int) -> Sequence[Self]:
        first, second = problem
        depthwise = DepthwiseItems.candidates((first,), machine, limits, min(count, DepthwiseItems.offered))
        products = [
            each
            for kind in PRODUCTS
            if kind.applies((second,), machine)
            for each in kind.candidates((second,), machine, limits, min(count, kind.offered))
        ]
        products.sort(key=lambda each: each.compared((second,), machine))
        pairs = [(depthwise[0], each) for each in products] + [(each, products[0]) for each in depthwise[1:]]
        listed = [cls(*pair) for pair in pairs]
        return sorted(listed, key=lambda each: each.compared(problem, machine))[:count]

    @classmethod
    def of_numbers(cls, numbers: Mapping[str, int]) -> Self:
        return cls(_part((DepthwiseItems,), numbers), _part(PRODUCTS, numbers))

    @property
    def numbers(self) -> Mapping[str, int]:
        parts = (self.first, self.second)
        return {f"{part.name}.{name}": number for part in parts for name, number in part.numbers.items()}

    @property
    def packing(self) -> tuple[str | int, ...]:
        return self.name, *self.first.packing, *self.second.packing

    def cost(self, problem: Problem, machine: Machine) -> Cost:
        costs = [each.cost((s,), machine) for each, s in zip((self.first, self.second), problem, strict=True)]
        time = sum(cost.time for cost in costs) + DEVICE_LAUNCH / DEVICE_CYCLES
        return Cost(time, sum(cost.weights for cost in costs))

    def lower(self, problem: Problem, stages: Sequence[Stage], machine: Machine) -> list[Step]:
        (first, second), y = stages, stages[0].conv.y
        between = Scratch("between", y.dtype.bytes * math.prod(y.shape))

        def moved(arg: Arg) -> Arg:
            return between if isinstance(arg, Output) else arg

        before = self.first.lower(problem[:1], (first,), machine)
        after = self.second.lower(problem[1:], (replace(second, left=between),), machine)
        return [*(Step(step.kernel, tuple(map(moved, step.args))) for step in before), *after]


def _part(kinds: Sequence[type[Algorithm]], numbers: Mapping[str, int]) -> Algorithm:
    """The algorithm among ``kinds`` whose numbers these are, by their prefix.  Raises KeyError if there is none."""
    for kind in kinds:
        own = {name.removeprefix(f"{kind.name}."): n for name, n in numbers.items() if name.startswith(f"{kind.name}.")}
        if own:
            return kind.of_numbers(own)
    raise KeyError("no algorithm of this name")
