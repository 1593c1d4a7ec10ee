"""The passes that a precision or a format of weights asks for, on a machine."""

from __future__ import annotations

from functools import partial

from tenon.errors import Problem
from tenon.machine.algorithms import attention
from tenon.machine.algorithms.block_products import in_bf16
from tenon.machine.kernels import paired_attention
from tenon.machine.plan.arithmetic import attends, computes, quickest, weight_types, why_wide
from tenon.machine.plan.choose import streaming
from tenon.machine.plan.lowering_context import Setting
from tenon.network.graph.graph import Graph
from tenon.network.graph.types import DType
from tenon.network.passes.attention import attention_of
from tenon.network.passes.base import Pass
from tenon.network.passes.block_weights import BLOCK_FORMATS, block_weights
from tenon.network.passes.precision import STORED, precision
from tenon.network.passes.rounded_products import rounded_products
from tenon.network.passes.weight_format import StoredWeights, exact_weights, stored_weights

_WIDER = {"fp16": [DType.F16], "bf16": [DType.BF16], "int8": [DType.I8, DType.F16]}
"""The types of a weight format: the one asked for, and wider ones for layers whose error is too large."""


def narrowing(name: str, target: str, setting: Setting, left: list[Problem] | None, *, stated: bool) -> list[Pass]:
    """The passes for the precision ``name`` on a target; ``left`` gets the layers that compute in f32 nevertheless, and
    why.  With ``stated`` only products that the model has in f16 are changed."""
    machine = setting.machine
    joined = attention_of(machine)
    if name == "fp32":
        return joined
    stored = STORED[name]
    arithmetic = computes(machine, stored)
    if not arithmetic and left is not None:
        left.append(Problem("all layers", f"{target} has no arithmetic in {stored}, which weights are stored in"))
    arithmetic_of, reason_of = (partial(each, setting=setting, dtype=stored) for each in (quickest, why_wide))
    rows = attends(machine, stored)
    by_pairs = rows is None and stored is DType.BF16 and paired_attention.unit_of(machine) is not None
    passes = precision(
        name,
        arithmetic=arithmetic,
        arithmetic_of=arithmetic_of,
        reason_of=reason_of,
        left=left,
        stated=stated,
        attends=rows,
        joined=partial(attention.attends, machine=machine) if by_pairs else None,
    )
    blocks = [rounded_products(partial(in_bf16, machine=machine))] if machine.bf16_tiles else []
    return [*joined, *passes, *blocks] if by_pairs else [*passes, *joined, *blocks]


def storing(
    graph: Graph, form: str, max_error: float, setting: Setting, stored: StoredWeights | None = None
) -> list[Pass]:
    """The passes for a format of weights; ``stored`` gets what was chosen.  With fp32, weights of language models that
    16 bits hold exactly are stored in these on processors."""
    joined = attention_of(setting.machine)
    if form == "fp32":
        exact = graph.text is not None and setting.machine.launch is None
        return [*([exact_weights()] if exact else []), *joined]
    if form in BLOCK_FORMATS:
        return [block_weights(form, max_error, stored), *joined]
    if form == "auto":
        by_time = partial(weight_types, setting=streaming(graph, setting))
        return [stored_weights(by_time, max_error, stored), *joined]
    return [stored_weights(lambda node: _WIDER[form], max_error, stored), *joined]
