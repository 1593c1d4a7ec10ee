"""An operator with pointwise operators applied to its result before it is stored.

``can_fuse`` and ``fuse`` are all that a fusion pass needs.  The values of a fused operator are numbered: 0 is
what the base computes, then its extra inputs, then the result of each step; the last step gives the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tenon.network.graph.graph import Array, Node, Value
from tenon.network.graph.types import BOOL, F32, I32, DType, TensorType
from tenon.network.ops.activation import Clip, Relu, Sigmoid
from tenon.network.ops.base import ROUNDED, Algorithm, Case, Cost, Layouts, Operator, Site, Step, register
from tenon.network.ops.comparison import Greater, Where
from tenon.network.ops.convert import Cast
from tenon.network.ops.elementwise import (
    Apply,
    Chain,
    Pointwise,
    bind,
    has_channels,
    lower_chain,
    overwritable,
    pointwise_layouts,
)
from tenon.network.ops.patch import Patch, Span, broadcast_reads
from tenon.network.ops.pointwise import Add, Mul
from tenon.network.ops.reach import Absorbed, Operands, Reaches, broadcast_reach

MOST_STEPS = 16
"""The most steps of a fused operator: one store and one load for so many operations cost nothing, and the expressions
that compilers get stay short."""

_FUSED_TYPES = {F32, I32, BOOL, DType.BF16, DType.F16}


@register
@dataclass(frozen=True)
class Fused(Operator):
    """``base`` over its ``count`` inputs, then ``steps`` over its result and the inputs that follow."""

    base: Operator
    count: int
    steps: tuple[Apply, ...]
    arity: ClassVar[tuple[int, int]] = (1, 2**31)
    fusable: ClassVar[bool] = True
    internal: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return "+".join((self.base.name, *(step.op.name for step in self.steps)))

    def __str__(self) -> str:
        return " + ".join((str(self.base), *(str(step.op) for step in self.steps)))

    # ----------------------------------------------------------------------------------- what it means
    def infer(self, inputs: Sequence[Value | None]) -> tuple[TensorType, ...]:
        (first,) = self.base.infer(inputs[: self.count])
        values = [Value("result", first), *inputs[self.count :]]
        for step in self.steps:
            (type,) = step.op.infer([None if i is None else values[i] for i in step.args])
            values.append(Value("step", type))
        last = values[-1]
        assert last is not None
        return (last.type,)

    def reference(self, *inputs: Any) -> Array:
        values = [self.base.evaluate(inputs[: self.count])[0], *inputs[self.count :]]
        for step in self.steps:
            values.append(step.op.evaluate([None if i is None else values[i] for i in step.args])[0])
        result: Array = values[-1]
        return result

    def macs(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> int:
        return self.base.macs(inputs[: self.count], outputs)

    def patch(self, inputs: Sequence[TensorType | None], output: TensorType, span: Span) -> Patch | None:
        base = self.base.patch(inputs[: self.count], output, span)
        if base is None or not isinstance(base.op, Operator):
            return None
        return Patch(replace(self, base=base.op), (*base.reads, *broadcast_reads(inputs[self.count :], output, span)))

    # ------------------------------------------------------------------------------- how it is compiled
    def inner(self, site: Site) -> Site:
        """The site of the base: constants become part of the epilogue, the other extra inputs its operands."""
        operands, loaded = bind(site, self.count)
        chain = Chain((0, *(o + 1 if isinstance(o, int) else o for o in operands)), self.steps)
        hidden = [i >= self.count and i not in loaded for i in range(len(site.inputs))]
        return replace(
            site,
            inputs=tuple(None if h else t for t, h in zip(site.inputs, hidden, strict=True)),
            constants=tuple(None if h else c for c, h in zip(site.constants, hidden, strict=True)),
            epilogue=chain,
            extras=loaded,
            clears=not chain.keeps_zero([True, *(has_channels(site, i) for i in loaded)]),
        )

    def chained(self, inputs: int) -> tuple[Apply, ...]:
        """A pointwise base and the steps as one chain over all ``inputs`` of the node."""
        assert isinstance(self.base, Pointwise)
        moved = [inputs, *range(self.count, inputs), *range(inputs + 1, inputs + 1 + len(self.steps))]
        return (Apply(self.base, tuple(range(self.count))), *renumbered(self.steps, moved))

    def layouts(self, site: Site) -> Layouts:
        return pointwise_layouts(site) if isinstance(self.base, Pointwise) else self.base.layouts(self.inner(site))

    def any_block(self, site: Site, i: int | None) -> bool:
        return self.base.any_block(self.inner(site), i)

    def in_place(self, site: Site) -> tuple[int, ...]:
        """An epilogue reads each element of a full-sized operand just before it stores the result's."""
        first = 0 if isinstance(self.base, Pointwise) else self.count
        return tuple(i for i in overwritable(site) if i >= first)

    def reach(self, inputs: Operands, outputs: Sequence[TensorType], axis: int, output: int = 0) -> Reaches | None:
        base = self.base.reach(inputs[: self.count], outputs, axis)
        return None if base is None else (*base, *broadcast_reach(inputs[self.count :], outputs[0], axis))

    def in_blocks(self, inputs: Operands) -> bool:
        return self.base.in_blocks(inputs[: self.count])

    def absorbs(self, inputs: Operands) -> tuple[Absorbed, ...]:
        return self.base.absorbs(inputs[: self.count])

    def supported(self, site: Site) -> str:
        if isinstance(self.base, Pointwise):
            own = slice(self.count)
            return self.base.supported(replace(site, inputs=site.inputs[own], constants=site.constants[own]))
        return self.base.supported(self.inner(site))

    def candidates(self, site: Site) -> tuple[Algorithm, ...]:
        return () if isinstance(self.base, Pointwise) else self.base.candidates(self.inner(site))

    def packed_alike(self, site: Site, other: Site) -> Algorithm | None:
        return None if isinstance(self.base, Pointwise) else self.base.packed_alike(self.inner(site), self.inner(other))

    def cost(self, site: Site) -> Cost:
        return Cost() if isinstance(self.base, Pointwise) else self.base.cost(self.inner(site))

    def error(self, site: Site) -> float:
        return 0.0 if isinstance(self.base, Pointwise) else self.base.error(self.inner(site))

    def lower(self, site: Site) -> list[Step]:
        if isinstance(self.base, Pointwise):
            chain = Chain(bind(site)[0], self.chained(len(site.inputs)))
            return lower_chain(self.name.replace("+", "_"), site, chain, site.output.dtype)
        return self.base.lower(self.inner(site))

    @classmethod
    def cases(cls) -> Iterable[Case]:
        image, channel, half = (1, 19, 3, 5), (1, 19, 1, 1), np.array(0.5, np.float32)
        affine = cls(Mul(), 2, (Apply(Add(), (0, 1)),))
        yield Case(affine, (image, channel, channel), (1, 2), label="affine")
        yield Case(cls(Add(), 2, (Apply(Relu(), (0,)),)), (image, image), label="residual")
        gate = cls(Add(), 2, (Apply(Sigmoid(), (0,)), Apply(Mul(), (0, 1))))
        yield Case(gate, (image, channel), (1,), label="result_used_twice")
        limits = cls(Mul(), 2, (Apply(Clip(), (0, 1, None)), Apply(Add(), (2, 3))))
        yield Case(limits, (image, image, half, (1, 1, 3, 5)), (2,), label="not_zero_at_zero")
        bf16 = (DType.BF16,) * 3
        wide = cls(Add(), 2, (Apply(Cast("f32"), (0,)), Apply(Sigmoid(), (1,))))
        yield Case(wide, (image, image), (), ROUNDED, label="bf16_to_f32", dtypes=bf16)
        sums = cls(Mul(), 2, (Apply(Sigmoid(), (0,)), Apply(Add(), (2, 1))))
        yield Case(sums, (image, channel, image), (1,), 2 * ROUNDED, label="bf16", dtypes=bf16)
        choice = cls(Greater(), 2, (Apply(Where(), (0, 1, 2)),))
        yield Case(choice, ((4, 7), half, (4, 7), (7,)), (1,), label="mask_inside")
        masked = cls(Sigmoid(), 1, (Apply(Where(), (1, 0, 2)),))
        yield Case(masked, ((4, 7), np.arange(28).reshape(4, 7) % 3 == 0, half), (2,), label="mask_read")


# --------------------------------------------------------------------------------------------- for passes
def renumbered(steps: Sequence[Apply], moved: Sequence[int]) -> tuple[Apply, ...]:
    """The steps with value ``i`` now being ``moved[i]``."""
    return tuple(Apply(s.op, tuple(None if i is None else moved[i] for i in s.args)) for s in steps)


def can_fuse(producer: Node, consumer: Node) -> str:
    """Empty if ``consumer`` can become a step of ``producer``, whose result it reads; else why not.

    The caller has to check that nothing else reads that result.
    """
    base, output = producer.op, producer.output
    if not isinstance(base, Operator) or not base.takes_epilogue or len(producer.outputs) != 1:
        return f"{base.name} applies nothing to its result"
    if not _is_chain(consumer.op):
        return f"{consumer.op.name} is not pointwise"
    if not any(v is output for v in consumer.inputs):
        return f"{consumer.op.name} does not read it"
    if _steps(producer.op) + _steps(consumer.op) + 1 > MOST_STEPS:
        return f"{MOST_STEPS} steps are enough for one operator"
    if consumer.output.type.shape != output.type.shape:
        return "the result has another shape"
    base, count = (base.base, base.count) if isinstance(base, Fused) else (base, len(producer.inputs))
    allowed = _FUSED_TYPES if isinstance(base, Pointwise) else base.fused_types
    if not {output.type.dtype, consumer.output.type.dtype} <= allowed:
        return f"{output.type.dtype} to {consumer.output.type.dtype} is not computed in registers"
    types = [None if v is None else v.type for v in producer.inputs[:count]]
    if not all(_readable(base, types, output, v) for v in consumer.inputs if v is not None):
        return "it reads an operand that is not at hand where the result is stored"
    return ""


def _steps(op: object) -> int:
    return len(op.steps) if isinstance(op, Fused) else 0


def _is_chain(op: object) -> bool:
    return isinstance(op, Pointwise) or (isinstance(op, Fused) and isinstance(op.base, Pointwise))


def _readable(base: Operator, inputs: Sequence[TensorType | None], output: Value, operand: Value) -> bool:
    if operand is output or (operand.constant and operand.type.size == 1):
        return True
    return operand.type.dtype in _FUSED_TYPES | base.fused_types and base.fuses(inputs, output.type, operand.type)


def fuse(producer: Node, consumer: Node) -> tuple[Fused, tuple[Value | None, ...]]:
    """Fuse ``consumer`` into ``producer`` as its last step; returns the fused operator and its inputs.

    An operand that the steps of ``producer`` already read is not loaded again.
    """
    base = producer.op
    assert isinstance(base, Operator)
    before = base if isinstance(base, Fused) else Fused(base, len(producer.inputs), ())
    extras = list(producer.inputs[before.count :])
    known = len(extras)
    numbers: list[int | None] = []  # of the consumer's inputs: None is the producer's result
    for value in consumer.inputs:
        if value is producer.output:
            numbers.append(None)
            continue
        at = next((i for i, v in enumerate(extras) if v is value), len(extras))
        if at == len(extras):
            extras.append(value)
        numbers.append(at + 1)
    shift = len(extras) - known
    kept = [i if i <= known else i + shift for i in range(1 + known + len(before.steps))]
    first = 1 + len(extras) + len(before.steps)
    result = first - 1 if before.steps else 0
    args = [result if n is None else n for n in numbers]
    op, inputs = consumer.op, len(consumer.inputs)
    added = op.chained(inputs) if isinstance(op, Fused) else _single(op, inputs)
    moved = [*args, *range(first, first + len(added))]
    steps = (*renumbered(before.steps, kept), *renumbered(added, moved))
    return Fused(before.base, before.count, steps), (*producer.inputs[: before.count], *extras)


def _single(op: object, inputs: int) -> tuple[Apply, ...]:
    assert isinstance(op, Pointwise)
    return (Apply(op, tuple(range(inputs))),)
