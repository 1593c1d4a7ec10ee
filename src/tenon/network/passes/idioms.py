"""Subgraphs that exporters write for operators that their ONNX version lacked."""

from __future__ import annotations

import math

from tenon.network.graph.graph import Value
from tenon.network.passes.base import Match, Result, Rule, attribute, make, rule, rules
from tenon.network.passes.canonicalize import permutation, reshape
from tenon.network.passes.patterns import ANY, Any, Constant, IsOp, Number, Pattern


def _becomes(name: str, pattern: IsOp, op: str, **attributes: object) -> Rule:
    """The rule that turns a pattern over x into ``op`` of x."""

    def rewrite(match: Match) -> Result:
        x = match.value("x")
        return match.add(make(op, **attributes), x) if x.type == match.root.output.type else None

    return Rule(name, pattern, rewrite)


# ------------------------------------------------------------------------------------------- activations
def _over(x: Pattern, divisor: float) -> tuple[IsOp, IsOp]:
    """x / divisor, as a division or a multiplication."""
    return IsOp("Div", x, Number(divisor)), IsOp("Mul", x, Number(1 / divisor))


def _halved(pattern: IsOp, x: Pattern) -> tuple[IsOp, ...]:
    """0.5 * x * pattern, in every association."""
    half = Number(0.5)
    return (
        IsOp("Mul", IsOp("Mul", x, pattern), half),
        IsOp("Mul", x, IsOp("Mul", pattern, half)),
        IsOp("Mul", IsOp("Mul", x, half), pattern),
    )


_SIX = IsOp("Clip", IsOp("Add", ANY, Number(3)), Number(0), Number(6))
_CUBES = (
    IsOp("Pow", ANY, Number(3)),
    IsOp("Mul", IsOp("Mul", ANY, ANY), ANY),
)

SWISH = (
    _becomes("swish", IsOp("Mul", ANY, IsOp("Sigmoid", ANY)), "Swish"),
    _becomes("mish", IsOp("Mul", ANY, IsOp("Tanh", IsOp("Softplus", ANY))), "Mish"),
)
HARD_SWISH = (
    *(_becomes("hard swish", IsOp("Mul", ANY, six), "HardSwish") for six in _over(_SIX, 6)),
    *(_becomes("hard swish", outer, "HardSwish") for outer in _over(IsOp("Mul", ANY, _SIX), 6)),
    *(_becomes("hard sigmoid", outer, "HardSigmoid", alpha=1 / 6, beta=0.5) for outer in _over(_SIX, 6)),
)
GELU = (
    *(
        _becomes("gelu", spelling, "Gelu")
        for scaled in _over(ANY, math.sqrt(2))
        for spelling in _halved(IsOp("Add", IsOp("Erf", scaled), Number(1)), ANY)
    ),
    *(
        _becomes("gelu by tanh", spelling, "Gelu", approximate="tanh")
        for cube in _CUBES
        for inner in (
            IsOp(
                "Mul",
                IsOp("Add", ANY, IsOp("Mul", cube, Number(0.044715))),
                Number(math.sqrt(2 / math.pi)),
            ),
        )
        for spelling in _halved(IsOp("Add", IsOp("Tanh", inner), Number(1)), ANY)
    ),
)


@rule(IsOp("Mul", ANY, IsOp("HardSigmoid", ANY, name="gate")))
def hard_swish_from_gate(match: Match) -> Result:
    """x * HardSigmoid(x), with the slopes of HardSwish"""
    gate = match.node("gate")
    slopes = abs(attribute(gate, "alpha") - 1 / 6) < 1e-6 and attribute(gate, "beta") == 0.5
    return match.add("HardSwish", match.value("x")) if slopes else None


@rule(IsOp("Clip", ANY, Number(0), Any("max")))
def relu_from_clip(match: Match) -> Result:
    """Clip from 0 to infinity"""
    most = match.value("max").data
    return match.add("Relu", match.value("x")) if most is not None and most.size and most.item() == math.inf else None


@rule(IsOp("Max", ANY, Number(0)))
def relu_from_max(match: Match) -> Result:
    """Max(x, 0)"""
    return match.add("Relu", match.value("x")) if match.value("x").type == match.root.output.type else None


# --------------------------------------------------------------------------------------- channel shuffle
@rule(
    IsOp(
        "Reshape",
        IsOp("Transpose", IsOp("Reshape", ANY, Constant("split")), name="swap"),
        Constant("join"),
    )
)
def channel_shuffle(match: Match) -> Result:
    """[N, C, ...] seen as [N, groups, C / groups, ...], transposed, and back"""
    x, swap = match.value("x"), match.node("swap")
    dims = swap.input(0).type.dims
    perm = permutation(swap.input(0), attribute(swap, "perm"))
    if x.type != match.root.output.type or len(dims) != x.type.rank + 1 or x.type.rank < 2:
        return None
    expected = (0, 2, 1, *range(3, len(dims)))
    if perm != expected or dims[0] != x.type.dims[0] or dims[3:] != x.type.dims[2:]:
        return None
    return match.add(make("ChannelShuffle", groups=dims[1]), x)


# --------------------------------------------------------------------------------------- global averages
def _spatial(x: Value) -> tuple[int, ...]:
    return tuple(range(2, x.type.rank))


@rule(IsOp("ReduceMean"))
def global_average(match: Match) -> Result:
    """The mean over all spatial axes"""
    node, x = match.root, match.root.input(0)
    axes = node.inputs[1].data if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if axes is None or not 3 <= x.type.rank <= 4 or not x.type.dtype.is_float:
        return None
    if tuple(sorted(int(a) % x.type.rank for a in axes.ravel())) != _spatial(x):
        return None
    mean = match.add("GlobalAveragePool", x)
    return mean if attribute(node, "keepdims") else reshape(match, mean, x.type.dims[:2])


@rule(IsOp("AveragePool"))
def whole_average(match: Match) -> Result:
    """An average over a window as large as the image"""
    node, x = match.root, match.root.input(0)
    whole = tuple(attribute(node, "kernel_shape")) == x.type.dims[2:]
    if not whole or any(attribute(node, "pads")) or attribute(node, "auto_pad") not in ("NOTSET", "VALID"):
        return None
    if any(n != 1 for n in node.output.type.dims[2:]) or any(d != 1 for d in attribute(node, "dilations")):
        return None
    return match.add("GlobalAveragePool", x)


IDIOMS = rules(
    "recognise idioms",
    *HARD_SWISH,
    *SWISH,
    *GELU,
    hard_swish_from_gate,
    relu_from_clip,
    relu_from_max,
    channel_shuffle,
    global_average,
    whole_average,
    level=2,
    ensures="activations, channel shuffles and global averages are single operators",
)
