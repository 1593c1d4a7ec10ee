"""Selects the fastest arithmetic of a product, on a machine that multiplies numbers of 16 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tenon.errors import Problem
from tenon.machine.algorithms import attention
from tenon.machine.isa import fp16
from tenon.machine.kernel_ir.walk import operations
from tenon.machine.kernels.head_sizes import HeadSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.tensor_staged import OPERATIONS
from tenon.machine.plan.loops import with_bodies
from tenon.machine.plan.lowering_context import Setting, operator, site
from tenon.machine.plan.program import Program
from tenon.network.graph.graph import Graph, Node
from tenon.network.graph.types import F32, DType
from tenon.network.ops.fused import Fused

_TYPES = {
    DType.BF16: {"stored": (F32, DType.BF16), "wide": (F32, F32), "narrow": (DType.BF16, DType.BF16)},
    DType.F16: {"stored": (F32, DType.F16), "narrow": (DType.F16, DType.F16)},
}
"""The types of images and weights, by ``passes.precision.ArithmeticOf``; of equally fast ones the first is taken.
Weights in f16 are asked for to save memory, those in bf16 to save time."""

_GAIN = 1.03
"""Minimum speed-up before weights are stored in fewer bits to save time."""

_CONVERTED = 1.1
"""Minimum speed-up before one f32 layer among 16-bit ones pays for its conversions."""


def computes(machine: Machine, dtype: DType) -> bool:
    """Whether a machine has instructions for products of ``dtype``, of 16 bits, or gains time where images are stored
    so."""
    alone = machine.multiplies(dtype, 2 if dtype is DType.BF16 else 1)
    return dtype in machine.stores or alone is not None or machine.tiles(dtype) is not None


def attends(machine: Machine, dtype: DType) -> Callable[[HeadSizes], bool] | None:
    """Whether a machine computes attention in one launch, of heads of some sizes; None for one that gains nothing where
    rows and products of two tensors are of ``dtype``, too: one without a matrix unit for it."""
    able = machine.launch is not None and dtype in OPERATIONS and machine.has(OPERATIONS[dtype])
    able = able or (dtype is DType.BF16 and machine.tiles(dtype) is not None)
    return partial(attention.attends, machine=machine) if able else None


def quickest(node: Node, setting: Setting, dtype: DType = DType.BF16) -> str:
    """The fastest arithmetic by estimate for a product by constant weights in f32 that may be stored as ``dtype``."""
    times = {name: time for name, (time, _) in _estimates(node, setting, dtype).items()}
    return min(times, key=lambda name: times[name])


def weight_types(node: Node, setting: Setting) -> list[DType]:
    """The types in which a product's weights may be stored while it computes in f32: i8 or f16 where that is faster by
    estimate, the fastest first, then f32."""
    op, here = operator(node), site(node, setting)
    x, w, *rest = here.inputs
    assert w is not None
    times = {
        dtype: op.cost(replace(here, inputs=(x, replace(w, dtype=dtype), *rest))).time
        for dtype in (DType.I8, DType.F16, F32)
    }
    faster = [dtype for dtype in sorted(times, key=lambda each: times[each]) if times[dtype] * _GAIN < times[F32]]
    return [*faster, F32]


def why_wide(node: Node, setting: Setting, dtype: DType = DType.BF16) -> str:
    """Why ``quickest`` does not compute a product in ``dtype``: the algorithm that is faster in f32."""
    estimates = _estimates(node, setting, dtype)
    narrow, by = estimates.pop("narrow")
    time, wide = min(estimates.values())
    if wide == by != "direct":
        return f"{wide} is faster, and computes in f32"
    return f"{wide} in f32 takes {time / narrow:.0%} of the estimated time of {by} in {dtype}"


def products_in_f32(graph: Graph, program: Program, setting: Setting) -> list[Problem]:
    """The products of images and weights in f16 that ``program``, compiled from ``graph``, computes in f32, and why."""
    narrow = {call.layer for call in program.calls if not fp16.PRODUCTS.isdisjoint(operations(call.kernel))}
    problems = []
    for node in (node for part in with_bodies(graph) for node in part if not node.bodies):
        types = {v.type.dtype for v in node.inputs[:2] if v is not None}
        op = operator(node)
        base = op.base if isinstance(op, Fused) else op
        if not base.bilinear or types != {DType.F16} or (node.origin.layer or node.output.name) in narrow:
            continue
        here = site(node, setting)
        algorithm = here.algorithm or next(iter(op.candidates(here)), None)
        why = "its channels do not fill vectors of f16"
        if algorithm is not None and algorithm.name != "direct":
            why = f"{algorithm.name} is faster, and computes in f32"
        problems.append(Problem(str(node.origin), why))
    return problems


def _estimates(node: Node, setting: Setting, dtype: DType) -> dict[str, tuple[float, str]]:
    """The estimated time of each arithmetic, and the name of the algorithm."""
    op, here = operator(node), site(node, setting)
    estimates = {}
    for name, (image, weights) in _TYPES[dtype].items():
        x, w, *rest = here.inputs
        assert x is not None
        assert w is not None
        inputs = (replace(x, dtype=image), replace(w, dtype=weights), *rest)
        outputs = tuple(replace(y, dtype=image) for y in here.outputs)
        typed = replace(here, inputs=inputs, outputs=outputs)
        algorithm = next((each.name for each in op.candidates(typed)), "it")
        estimates[name] = op.cost(typed).time, algorithm
    pairs = setting.machine.multiplies(DType.BF16, 2)
    if dtype is DType.F16 or pairs is None or pairs.time < 2:
        time, algorithm = estimates["narrow"]
        estimates["narrow"] = time / _CONVERTED, algorithm
    return estimates
