"""The traits declared by operators, checked against their references on all operator cases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

import tenon
from lowered import MACHINES, Ask, NotLoweredError, run_lowered
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops import registry
from tenon.network.ops.base import Case, Operator
from tenon.network.ops.elementwise import Pointwise
from tenon.network.ops.image_conv import IntegerImageConv
from tenon.network.ops.reduce import Reduce
from tenon.network.ops.shape import ConstantOfShape, Same, View
from tenon.network.passes.tolerance import Reference

OPERATORS = registry()
FLOATS = (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.float64))


def having(wanted: object, trait: str) -> list[str]:
    return [name for name, cls in OPERATORS.items() if getattr(cls, trait) == wanted]


def cases(name: str) -> list[Case]:
    listed = list(OPERATORS[name].cases())
    assert listed, f"{name} has no cases"
    return listed


def evaluated(op: Operator, arrays: Sequence[Array | None]) -> tuple[Array, ...]:
    return op.evaluate([None if a is None else np.array(a, order="C") for a in arrays])


def values(arrays: Sequence[Array | None]) -> list[Value | None]:
    return [None if a is None else Value("v", TensorType(DType.of(a.dtype), a.shape), a) for a in arrays]


def same(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype in FLOATS)


# ------------------------------------------------------------------------------------------------- rounding
EXACT = [name for name, cls in OPERATORS.items() if cls.exact()]


@pytest.mark.parametrize("name", EXACT)
def test_exact_operators_do_not_round(name: str) -> None:
    """Results in f64 are identical."""
    compared = 0
    for case in cases(name):
        arrays = case.arrays()
        wide = [a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in arrays]
        if all(a is b for a, b in zip(arrays, wide, strict=True)):
            continue
        narrow = evaluated(case.op, arrays)
        try:
            exact = evaluated(case.op, wide)
        except (TypeError, ValueError, KeyError):
            continue
        for a, b in zip(narrow, exact, strict=True):
            compared += 1
            with np.errstate(over="ignore"):
                assert np.array_equal(a.astype(b.dtype), b, equal_nan=b.dtype in FLOATS), case.label
    integers = all(a is None or a.dtype not in FLOATS for case in cases(name) for a in case.arrays())
    assert compared or integers or name in ("BitCast", "ConstantOfShape"), "nothing was compared"


ROUNDING = [name for name, cls in OPERATORS.items() if not cls.exact() and issubclass(cls, Pointwise)]


@pytest.mark.parametrize("name", ROUNDING)
def test_kernel_errors_are_within_the_accuracy_trait(name: str) -> None:
    compared = 0
    for case in cases(name):
        arrays = case.arrays()
        graph = Graph("one")
        feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None}
        types = {n: TensorType(DType.of(a.dtype), a.shape) for n, a in feeds.items()}
        inputs = [None if a is None else graph.add_input(f"x{i}", types[f"x{i}"]) for i, a in enumerate(arrays)]
        graph.outputs = [graph.add(case.op, inputs, ["y"]).output]
        (got, *_) = run_lowered(case.op, arrays, MACHINES["lanes4"], case.constant)
        assert not Reference(graph, feeds).differs({"y": got}), case.label
        compared += 1
    assert compared


# ---------------------------------------------------------------------------------------------------- moving
MOVES = [n for n in having(True, "moves") if n not in ("Shape", "Size", "BitCast", "ConstantOfShape")]


@pytest.mark.parametrize("name", MOVES)
def test_moving_operators_only_copy_elements(name: str) -> None:
    """Bit for bit, including NaN payloads, and independent of values: if the signs of all operands change, so do those
    of the result, except for filled elements.
    """
    compared = 0
    for case in cases(name):
        rng = np.random.default_rng(0)
        given = case.arrays()
        wild = {i: a for i, a in enumerate(given) if a is not None and a.dtype == np.float32 and a.size > 3}
        words = {i: rng.integers(0, 2**32, a.shape).astype(np.uint32) for i, a in wild.items()}
        turned = {i: w ^ np.uint32(1 << 31) for i, w in words.items()}
        first, second = (
            evaluated(case.op, [np.asarray(bits[i]).view(np.float32) if i in bits else a for i, a in enumerate(given)])
            for bits in (words, turned)
        )
        for a, b in zip(first, second, strict=True):
            if a.dtype != np.float32 or not wild:
                assert same(a, b)
                continue
            moved = (a.view(np.uint32) ^ np.uint32(1 << 31)) == b.view(np.uint32)
            filled = a.view(np.uint32) == b.view(np.uint32)
            assert (moved | filled).all(), case.label
            compared += int(moved.sum())
            assert set(a[moved].view(np.uint32)) <= {int(w) for each in words.values() for w in each.ravel()}
    assert compared


@pytest.mark.parametrize("name", ["BitCast", "ConstantOfShape", "Shape", "Size"])
def test_other_moving_operators(name: str) -> None:
    """Operators that copy bits or an attribute, or whose result follows from shapes alone."""
    for case in cases(name):
        (x, *_), (result, *_) = case.arrays(), evaluated(case.op, case.arrays())
        assert x is not None
        if name == "BitCast":
            assert result.tobytes() == x.tobytes()
        elif isinstance(case.op, ConstantOfShape):
            assert result.tobytes() == case.op.value.tobytes() * int(np.prod(x))
        else:
            assert same(evaluated(case.op, [np.zeros_like(x)])[0], result)


@pytest.mark.parametrize("name", MOVES)
def test_moving_operators_lower_in_16_bits(name: str) -> None:
    """``legalize`` does not widen them to f32."""
    compared = 0
    for case in cases(name):
        arrays = [a.astype(np.float16) if a is not None and a.dtype == np.float32 else a for a in case.arrays()]
        if not any(a is not None and a.dtype == np.float16 for a in arrays):
            continue
        op_results = evaluated(case.op, arrays)
        got = run_lowered(case.op, arrays, MACHINES["lanes4"], case.constant)
        for a, b in zip(got, op_results, strict=True):
            compared += 1
            assert same(a, b), case.label
    assert compared


@pytest.mark.parametrize("name", having(True, "converts"))
def test_converting_operators_are_elementwise_and_monotone(name: str) -> None:
    """The result has the operand's shape and is a monotone function of each element, up to the range of the type."""
    compared = 0
    for case in cases(name):
        (x, *rest), (result, *_) = case.arrays(), evaluated(case.op, case.arrays())
        assert x is not None
        assert result.shape == x.shape
        per_channel = any(a is not None and a.size > 1 for a in rest)
        plain = x.dtype in FLOATS and result.dtype.isbuiltin == 1 and result.dtype != bool
        if per_channel or not (plain or result.dtype in FLOATS):  # other integers wrap around
            continue
        wide = x.astype(np.float64)
        steady = np.isfinite(wide) & (np.abs(wide) < 100)
        order = np.argsort(wide[steady], kind="stable")
        assert (np.diff(result[steady][order].astype(np.float64)) >= 0).all(), case.label
        compared += 1
    assert compared


@pytest.mark.parametrize("name", [n for n, cls in OPERATORS.items() if issubclass(cls, View | Same)])
def test_views_keep_the_order_of_elements(name: str) -> None:
    for case in cases(name):
        (x, *_), (result, *_) = case.arrays(), evaluated(case.op, case.arrays())
        assert x is not None
        np.testing.assert_array_equal(result.ravel(), x.ravel())


# ------------------------------------------------------------------------------------------------ algebra
@pytest.mark.parametrize("name", having(True, "commutative"))
def test_commutative_operators(name: str) -> None:
    several = 0
    for case in cases(name):
        arrays = case.arrays()
        if len(arrays) < 2:
            continue
        several += 1
        assert same(evaluated(case.op, arrays)[0], evaluated(case.op, [arrays[1], arrays[0], *arrays[2:]])[0])
    assert several


@pytest.mark.parametrize("name", [n for n, cls in OPERATORS.items() if cls.neutral is not None])
def test_neutral_operands(name: str) -> None:
    cls = OPERATORS[name]
    assert cls.neutral is not None
    x = np.array([0.0, -0.0, 1.5, -3.0, 1e-42, np.inf, -np.inf, np.nan, 3e38], np.float32)
    for data in (x, x.astype(np.float64), np.arange(-4, 5, dtype=np.int32)):
        if data.dtype == np.int32 and name == "Pow":
            continue
        assert same(evaluated(cls(), [data, np.array(cls.neutral, data.dtype)])[0], data)


@pytest.mark.parametrize("name", having(True, "one_is_itself"))
def test_one_operand_is_the_result(name: str) -> None:
    for case in cases(name):
        x = case.arrays()[0]
        assert x is not None
        assert same(evaluated(case.op, [x])[0], x)


def near(a: Array, b: Array) -> None:
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", having(True, "bilinear"))
def test_bilinear_operators(name: str) -> None:
    """f(2 a + b, w) = 2 f(a, w) + f(b, w), the same in w, and a third operand is added."""
    rng = np.random.default_rng(0)
    compared = 0
    for case in cases(name):
        if any(a is not None and a.dtype != np.float32 for a in case.arrays()):
            continue
        compared += 1
        x, w, *rest = (None if a is None else a.astype(np.float64) for a in case.arrays())
        assert x is not None
        assert w is not None
        other, turned = (np.array(rng.standard_normal(a.shape)) for a in (x, w))

        def f(x: Array, w: Array, op: Operator = case.op) -> Array:
            return evaluated(op, [x, w])[0]

        near(f(2 * x + other, w), 2 * f(x, w) + f(other, w))
        near(f(x, 2 * w + turned), 2 * f(x, w) + f(x, turned))
        if rest and rest[0] is not None:
            moved = evaluated(case.op, [x, w, 2 * rest[0]])[0] - evaluated(case.op, [x, w, rest[0]])[0]
            zero = evaluated(case.op, [0 * x, w, rest[0]])[0]
            near(moved, zero)
    assert compared


@pytest.mark.parametrize("name", [n for n, cls in OPERATORS.items() if issubclass(cls, Reduce)])
def test_reductions_that_keep_zero(name: str) -> None:
    """Results for padding channels of blocked layouts."""
    cls = OPERATORS[name]
    assert issubclass(cls, Reduce)
    zeros = np.zeros((1, 2, 3, 3), np.float32)
    result = evaluated(cls(), [zeros, np.array([2, 3])])[0]
    assert (not result.any()) or not cls.zero_of_zeros


# ------------------------------------------------------------------------------------------ order of elements
POINTWISE = [name for name, cls in OPERATORS.items() if issubclass(cls, Pointwise)]


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_operators_are_elementwise(name: str) -> None:
    """Permuted operands give a permuted result, and elements do not affect each other."""
    rng = np.random.default_rng(1)
    compared = 0
    for case in cases(name):
        if hasattr(case.op, "axis"):  # scales along an axis
            continue
        arrays = case.arrays()
        shape = np.broadcast_shapes(*(a.shape for a in arrays if a is not None))
        flat = [None if a is None else np.array(np.broadcast_to(a, shape)).reshape(-1) for a in arrays]
        result = evaluated(case.op, flat)[0]
        compared += 1
        order = rng.permutation(result.size)
        permuted = [None if a is None else a[order] for a in flat]
        again = evaluated(case.op, permuted)[0]
        if again.dtype in FLOATS:  # NumPy's SIMD functions may differ by one bit in the last elements of an array
            np.testing.assert_allclose(again, result[order], rtol=1e-6 if again.dtype != np.float16 else 1e-3)
        else:
            assert again.tobytes() == result[order].tobytes()
    assert compared


def turned(case: Case) -> Iterator[tuple[Operator, list[Array | None], tuple[int, ...]]]:
    """The case with its axes permuted: the operator, its operands, and the permutation."""
    arrays = case.arrays()
    x = arrays[0]
    assert x is not None
    every = type(case.op).__name__ == "Concat"
    for perm in list(permutations(range(x.ndim)))[1:7]:
        axis = perm.index(getattr(case.op, "axis") % x.ndim)  # noqa: B009
        moved = [a.transpose(perm) if a is not None and (every or i == 0) else a for i, a in enumerate(arrays)]
        yield replace(case.op, axis=axis), moved, perm  # type: ignore[call-arg]


@pytest.mark.parametrize("name", having(True, "along_axis"))
def test_axes_other_than_the_declared_one_can_be_permuted(name: str) -> None:
    compared = 0
    for case in cases(name):
        before, (x, *rest) = evaluated(case.op, case.arrays()), case.arrays()
        assert x is not None
        if before[0].ndim != x.ndim or (name == "Gather" and rest[0] is not None and rest[0].ndim != 1):
            continue
        for op, arrays, perm in turned(case):
            for a, b in zip(before, evaluated(op, arrays), strict=True):
                compared += 1
                np.testing.assert_allclose(b, a.transpose(perm), rtol=1e-6, atol=1e-7)
    assert compared


# ------------------------------------------------------------------------------------------------------ no-ops
def number(*data: int) -> Array:
    return np.array(data, np.int64)


X = np.random.default_rng(0).standard_normal((1, 3, 4, 5)).astype(np.float32)
DOES_NOTHING: dict[str, tuple[dict[str, object], list[Array | None]]] = {
    "Cast": ({"to": "f32"}, [X]),
    "Reshape": ({}, [X, number(1, 3, 4, 5)]),
    "Expand": ({}, [X, number(3, 1, 1)]),
    "Tile": ({}, [X, number(1, 1, 1, 1)]),
    "Transpose": ({"perm": (1, 0, 2, 3)}, [X[:, :1]]),
    "Pad": ({}, [X, number(0, 0, 0, 0, 0, 0, 0, 0)]),
    "Slice": ({}, [X, number(0, 0), number(4, 5), number(2, 3)]),
    "Resize": ({}, [X, None, np.array([1, 1, 1.2, 1.1], np.float32)]),
    "MaxPool": ({"kernel_shape": (1, 1)}, [X]),
    "AveragePool": ({"kernel_shape": (1, 1)}, [X]),
}
DOES_SOMETHING: dict[str, tuple[dict[str, object], list[Array | None]]] = {
    "Transpose": ({"perm": (0, 1, 3, 2)}, [X[..., :4]]),
    "Slice": ({}, [X, number(-1), number(-9), number(2), number(-1)]),
    "Pad": ({}, [X, number(0, 0, 1, 0, 0, 0, -1, 0)]),
    "MaxPool": ({"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}, [X]),
    "AveragePool": ({"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}, [X]),
    "Resize": (
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
        [X, np.array([0, 0, 0.2, 0, 1, 1, 0.8, 1], np.float32), None, number(1, 3, 4, 5)],
    ),
}


def test_every_operator_with_the_unchanging_trait_has_a_case() -> None:
    able = {n for n, cls in OPERATORS.items() if cls.unchanging is not Operator.unchanging}
    assert {n for n in able if not n.startswith("Direct") and n != "MaxPoolWithIndices"} == set(DOES_NOTHING)


@pytest.mark.parametrize("name", DOES_NOTHING)
def test_unchanging_cases(name: str) -> None:
    attributes, arrays = DOES_NOTHING[name]
    op = OPERATORS[name](**attributes)
    assert op.unchanging(values(arrays))
    assert same(evaluated(op, arrays)[0], arrays[0] if arrays[0] is not None else X)


@pytest.mark.parametrize("name", DOES_SOMETHING)
def test_changing_cases(name: str) -> None:
    attributes, arrays = DOES_SOMETHING[name]
    op = OPERATORS[name](**attributes)
    assert not op.unchanging(values(arrays))


@pytest.mark.parametrize("name", [n for n, cls in OPERATORS.items() if cls.unchanging is not Operator.unchanging])
def test_unchanging_trait_on_operator_cases(name: str) -> None:
    for case in cases(name):
        arrays, results = case.arrays(), evaluated(case.op, case.arrays())
        x = arrays[0]
        alike = x is not None and (results[0].dtype, results[0].shape) == (x.dtype, x.shape) and len(results) == 1
        if alike and x is not None and case.op.unchanging(values(arrays)):
            assert same(results[0], x), case.label


# ---------------------------------------------------------------------------------------------- types and shapes
@pytest.mark.parametrize("name", [n for n in having(True, "narrow_images") if "Direct" not in n and "Indices" not in n])
def test_kernels_take_images_of_bf16(name: str) -> None:
    compared = 0
    for case in cases(name):
        arrays = case.arrays()
        if any(a is not None and a.dtype.kind == "f" and a.dtype != np.float32 for a in arrays):
            continue
        if arrays[0] is None or arrays[0].dtype != np.float32:
            continue
        weighted = case.op.bilinear
        if weighted and 1 not in case.constant:
            continue
        bf16 = [a.astype(DType.BF16.numpy) if a is not None and i < 1 + weighted else a for i, a in enumerate(arrays)]
        if weighted and len(bf16) > 2:
            bf16 = bf16[:2]
        elif not weighted:
            bf16 = [a if a is None or a.dtype.kind != "f" else a.astype(DType.BF16.numpy) for a in arrays]
        constant = tuple(i for i in case.constant if i < len(bf16))
        try:
            expected = evaluated(case.op, bf16)
            got = run_lowered(case.op, bf16, MACHINES["lanes4"], constant, Ask(blocked=True))
        except (NotLoweredError, TypeError):
            continue
        for a, b in zip(got, expected, strict=True):
            compared += 1
            assert a.dtype == DType.BF16.numpy
            wide, exact = a.astype(np.float32), b.astype(np.float32)
            np.testing.assert_allclose(
                wide, exact, rtol=0, atol=2.0**-6 * float(np.abs(exact[np.isfinite(exact)]).max(initial=1e-9))
            )
    assert compared


@pytest.mark.parametrize("name", [n for n, cls in OPERATORS.items() if cls.shape_operands])
def test_shapes_follow_from_operands(name: str) -> None:
    """Only the named operands affect the shape of the result."""
    cls = OPERATORS[name]
    changed = set()
    for case in cases(name):
        arrays = case.arrays()
        shape = evaluated(case.op, arrays)[0].shape
        for i, a in enumerate(arrays):
            if a is None or a.dtype not in FLOATS:
                continue
            other = [b if j != i or b is None else b * b.dtype.type(2) for j, b in enumerate(arrays)]
            if evaluated(case.op, other)[0].shape != shape:
                changed.add(i)
    assert changed <= cls.shape_operands


# --------------------------------------------------------------------------------------- moves of the first operand
@pytest.mark.parametrize("name", having(True, "rearranges"))
def test_rearranging_operators_place_elements_by_position(name: str) -> None:
    """Where the first operand holds the positions of its elements, the result says where each element of another such
    operand is found."""
    compared = 0
    for case in cases(name):
        first, *rest = case.arrays()
        assert first is not None
        places = np.arange(first.size, dtype=np.int64).reshape(first.shape)
        taken = [each.astype(np.int64) for each in evaluated(case.op, [places, *rest])]
        for result, at in zip(evaluated(case.op, [first, *rest]), taken, strict=True):
            assert same(result, first.reshape(-1)[at]), case.label
            compared += result.size
    assert compared
    assert OPERATORS[name].moves


@pytest.mark.parametrize("name", having(True, "selects"))
def test_selecting_operators_keep_order_and_elements(name: str) -> None:
    """A monotone function may be applied before or after, and all results are elements of the first operand."""
    compared = 0
    for case in cases(name):
        x, *rest = case.arrays()
        if x is None or x.dtype not in FLOATS or not x.size:
            continue
        (result, *_) = evaluated(case.op, [x, *rest])
        (scaled, *_) = evaluated(case.op, [x * x.dtype.type(4), *rest])
        assert same(scaled, result * x.dtype.type(4)), case.label
        assert set(np.unique(result[np.isfinite(result)])) <= set(np.unique(x)), case.label
        compared += result.size
    assert compared


INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32)


@pytest.mark.parametrize("name", having(True, "quantised"))
def test_quantised_operators_compute_on_integers(name: str) -> None:
    for case in cases(name):
        x = case.arrays()[0]
        assert x is not None
        assert x.dtype in INTEGERS or isinstance(case.op, IntegerImageConv), case.label  # which quantises its image
        assert not OPERATORS[name].converts


def test_operators_with_zero_points_are_quantised() -> None:
    named = {name for name, cls in OPERATORS.items() if cls.zero_points is not Operator.zero_points}
    assert named <= set(having(True, "quantised"))
    assert named


def test_names_of_operators_are_not_compared() -> None:
    """Passes and tools ask for traits and classes; tables by name are data."""
    source = Path(tenon.__file__).parent
    compared = [
        f"{path.relative_to(source)}: {line.strip()}"
        for folder in ("network/passes", "network/ops", "machine", "tools", "runtime", "compat", "formats/exporters")
        for path in sorted((source / folder).rglob("*.py"))
        for line in path.read_text().splitlines()
        if re.search(r"\bop\.name (==|!=) |\bop\.name (not )?in \(|op\.name\.(starts|ends)with\(", line)
    ]
    assert not compared
