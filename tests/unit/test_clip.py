"""Kernels computed only as far as their results are needed, and the rules by which operands are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clipped_kernels import ProvedClipped, results
from lowered import MACHINES, Ask, make_site
from operator_cases import BY_OPERATOR, LOWERED
from parsed_kernels import with_parameters_of
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.clip import clipped
from tenon.machine.kernel_ir.index import Index, Quotient, Var
from tenon.machine.kernel_ir.loops import Bind, Kernel
from tenon.machine.kernel_ir.needed import CutShort, NeededAxis, NeededCount
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.rewrite import Substitution
from tenon.machine.kernel_ir.text import show
from tenon.machine.plan.clip import clip, sums_end
from tenon.machine.proofs.bounds import OutOfRangeError, prove
from tenon.machine.proofs.needed import LeftOutError, prove_needed
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.types import I64, DType, TensorType
from tenon.network.ops.base import Case, Input, Output
from tenon.network.ops.clipped import SPARES, AbsorbedPositions, Clipped, NeededExtent, NeededPositions
from tenon.network.ops.matmul import MatMul
from tenon.network.ops.softmax import Softmax


# ------------------------------------------------------------------------------------------ rules of operators
def values_of(case: Case) -> list[Value | None]:
    return [
        None if a is None else Value(f"x{i}", TensorType(DType.of(a.dtype), a.shape), a if i in case.constant else None)
        for i, a in enumerate(case.arrays())
    ]


def reaching() -> Iterator[Any]:
    """A case of each rule for any axis; with -m slow, all cases of all operators that have one."""
    rules = set[object]()
    for own in BY_OPERATOR.values():
        for name, case in ((name, case) for name, case in own if name in LOWERED):
            inputs = values_of(case)
            outputs = case.op.infer(inputs)
            if any(case.op.reach(inputs, outputs, a, i) for i, y in enumerate(outputs) for a in range(y.rank)):
                rule = case.op.reach.__func__  # type: ignore[attr-defined]
                yield pytest.param(name, marks=pytest.mark.slow if rule in rules else ())
                rules.add(rule)


REACHING = list(reaching())


def cut(array: Array, axis: int, first: int, rng: np.random.Generator) -> Array:
    """A copy with other elements from position ``first`` on, taken from elsewhere in the array."""
    copy = array.copy()
    beyond = (slice(None),) * axis + (slice(first, None),)
    copy[beyond] = rng.permutation(array.reshape(-1))[: copy[beyond].size].reshape(copy[beyond].shape)
    return copy


@pytest.mark.parametrize("name", REACHING)
def test_positions_of_results_depend_on_no_more_than_the_rule_says(name: str) -> None:
    """Elements of operands beyond the reach of the first positions of a result do not change these."""
    case = LOWERED[name]
    inputs, arrays, rng = values_of(case), case.arrays(), np.random.default_rng(1)
    expected = case.op.evaluate(arrays)
    types = [TensorType(DType.of(y.dtype), y.shape) for y in expected]
    for i, y in enumerate(expected):
        for axis in range(y.ndim):
            reaches = case.op.reach(inputs, types, axis, i)
            for n in sorted({1, y.shape[axis] // 2, y.shape[axis] - 1}) if reaches and y.size else ():
                other = list(arrays)
                for j, reach in enumerate(reaches or ()):
                    if reach is not None and (x := other[j]) is not None and j not in case.constant:
                        read = -(-(reach.factor * n + reach.offset) // reach.divisor)
                        other[j] = cut(x, reach.axis, min(max(read, 0), x.shape[reach.axis]), rng)
                got = case.op.evaluate(other)[i]
                kept = (slice(None),) * axis + (slice(n),)
                assert got[kept].tobytes() == y[kept].tobytes()  # NaN of 16 bits is not equal to itself


# ------------------------------------------------------------------------------------------------- kernels
def swept() -> Iterator[Any]:
    """A case of each rule, on vectors of 4 lanes; with -m slow, all cases on all machines."""
    for parameter in REACHING:
        for machine in MACHINES:
            yield pytest.param(
                parameter.values[0], machine, marks=parameter.marks if machine == "lanes4" else pytest.mark.slow
            )


@pytest.mark.parametrize(("name", "machine"), list(swept()))
def test_what_is_needed_is_computed(name: str, machine: str) -> None:
    """The first positions along each axis are those of the whole kernel, to the bit."""
    case, arrays = LOWERED[name], LOWERED[name].arrays()
    site = make_site(case.op, arrays, MACHINES[machine], case.constant, Ask(blocked=True, surplus=1))
    expected = results(case.op, site, arrays)
    for axis in range(site.output.rank):
        extent = site.output.dims[axis]
        for n in sorted({0, 1, extent // 2, extent}):
            needed = (NeededPositions(0, axis, (NeededExtent(0),)),)
            op = ProvedClipped(case.op, len(arrays), needed)
            inputs, constants = (*site.inputs, TensorType(I64, ())), (*site.constants, None)
            got = results(op, replace(site, inputs=inputs, constants=constants), [*arrays, np.array(n)])
            kept = (slice(None),) * axis + (slice(n),)
            assert got[kept].tobytes() == expected[kept].tobytes()  # NaN of 16 bits is not equal to itself


# ------------------------------------------------------------------------------------------------- faults
def tiles(rows: int = 10, columns: int = 12, step: int = 4) -> Kernel:
    """Stores to rows of an image in tiles of columns, and to a last, narrower tile."""
    k = Builder("tiles")
    x, y = k.param("x", rows, columns + 2), k.param("y", rows, columns + 2, out=True)
    with k.loop("i", rows, kind="parallel") as i:
        with k.loop("j", columns // step) as j, k.unroll("q", step) as q:
            y[i, j * step + q] = x[i, j * step + q] * 2.0
        with k.unroll("q", 2) as q:
            y[i, q + columns] = x[i, q + columns] * 2.0
    return k.done()


ROWS = NeededAxis(1, 14, 10, 0, 10, (NeededCount(2),))
COLUMNS = NeededAxis(1, 1, 14, 0, 14, (NeededCount(3, 2, 1, 3),))
CUT, WHOLE = clipped(tiles(), (ROWS, COLUMNS), 2)


def test_loops_end_at_extents() -> None:
    text = show(CUT)
    assert "bind needed < 11 = load extent[0] {" in text
    assert "for parallel i < min(10, needed) {" in text
    assert "for j < min(3, (needed2 + 3 // 4)) {" in text
    assert "if needed2 + -13 >= 0 {" in text
    prove(CUT)
    assert prove_needed(CUT, CutShort(WHOLE, (ROWS, COLUMNS))) == 3


class Altered(Substitution):
    """A kernel with other bounds of its loops."""

    def __init__(self, name: str, bound: Any) -> None:
        super().__init__({})
        self.name, self.bound = name, bound

    def defined(self, var: Var) -> Var:
        new = super().defined(replace(var, below=self.bound(var)) if var.name == self.name else var)
        self.env[var] = Index(((new, 1),))
        return new


def altered(name: str, bound: Any) -> Kernel:
    return replace(CUT, body=Altered(name, bound).body(CUT.body))


def number(kernel: Kernel, depth: int) -> Var:
    """A number of needed positions."""
    s = kernel.body[0]
    for _ in range(depth):
        assert isinstance(s, Bind)
        s = s.body[0]
    assert isinstance(s, Bind)
    return s.var


def rounded_down(var: Var) -> tuple[Index, ...]:
    whole, quotient = var.below
    (atom, _), *_ = quotient.terms
    assert isinstance(atom, Quotient)
    return whole, (atom.of - (atom.by - 1)) // atom.by


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("j", rounded_down),
        ("j", lambda var: (var.below[0], var.below[1] - 1)),
        ("i", lambda var: (var.below[0], Index(((number(CUT, 1), 1),)))),
        ("i", lambda var: (var.below[0], var.below[1] - 1)),
        ("j", lambda var: (var.below[1] + 1,)),
    ],
    ids=["rounded_down", "one_tile_less", "other_axis", "one_row_less", "not_limited"],
)
def test_wrong_bounds_are_refused(name: str, bound: Any) -> None:
    kernel = altered(name, bound)
    with pytest.raises(LeftOutError):
        prove_needed(kernel, CutShort(WHOLE, (ROWS, COLUMNS)))


def test_numbers_that_exceed_the_extent_are_refused() -> None:
    """A number of positions that is not limited by the buffer's extent is not that of an axis, nor a bound."""
    kernel = altered("needed", lambda var: (Index((), 12),))
    with pytest.raises(LeftOutError):
        prove_needed(kernel, CutShort(WHOLE, (ROWS, COLUMNS)))
    kernel = replace(kernel, body=Altered("i", lambda var: (var.below[1],)).body(kernel.body))
    with pytest.raises(OutOfRangeError, match="passes the end by 1"):
        prove(kernel)


def test_other_extents_are_refused() -> None:
    with pytest.raises(LeftOutError):
        prove_needed(CUT, CutShort(WHOLE, (ROWS, replace(COLUMNS, bounds=(NeededCount(3, 2, 2, 3),)))))


@pytest.mark.quick
def test_args_are_inputs_of_the_node() -> None:
    op = Clipped(LOWERED["Add-equal"].op, 2, (NeededPositions(0, 0, (NeededExtent(1, 1, 0, 1),)),))
    site = make_site(op.base, LOWERED["Add-equal"].arrays(), MACHINES["lanes4"])
    (step,) = op.base.lower(site)
    _, args, _ = clip(op, [], site.outputs, step.kernel, step.args)
    assert args == (Input(0), Input(1), Output(), Input(2), Input(3))


def product(rows: int = 10, width: int = 6) -> Kernel:
    """Sums of products in registers, in outlined tiles of rows."""
    k = Builder("product")
    x, y = k.param("x", rows + 2, 3), k.param("y", rows + 2, 1, out=True)
    with k.loop("j", (rows + 2) // width) as j, k.outline("tile"):
        a = k.local("a", width)
        with k.unroll("q", width) as q:
            a[q] = 0.0
        with k.loop("c", 3) as c, k.unroll("q", width) as q:
            a[q] = a[q] + x[j * width + q, c]
        with k.unroll("q", width) as q:
            y[j * width + q, 0] = a[q]
    return k.done()


TILED = (NeededAxis(1, 1, 12, 0, 12, (NeededCount(2),)),)
NARROW, WIDE = clipped(product(), TILED, 1, narrow=True)


def test_tiles_have_narrower_versions() -> None:
    text = show(NARROW)
    assert "for j < min(2, (needed + 5 // 6)) {" in text
    assert "if needed + -6*j + -1 >= 0, -1*needed + 6*j + 2 >= 0 {" in text
    assert [text.count(f"for unroll q < {n} {{") for n in (2, 4, 6)] == [1, 1, 1]
    prove(NARROW)
    assert prove_needed(NARROW, CutShort(WIDE, TILED)) == 8


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("-1*needed + 6*j + 2 >= 0", "-1*needed + 6*j + 3 >= 0"),
        ("needed + -6*j + -3 >= 0", "needed + -6*j + -4 >= 0"),
        ("for unroll q < 2 {", "for unroll q < 1 {"),
        ("for unroll q2 < 2 {", "for unroll q2 < 1 {"),
        ("load a[q2], load x[6*j + q2, c]", "load a[q2], load x[6*j + q2, 0]"),
    ],
    ids=["too_narrow", "gap", "not_cleared", "not_summed", "other_element"],
)
def test_wrong_versions_are_refused(before: str, after: str) -> None:
    text = show(NARROW)
    assert before in text
    whole = parse(show(WIDE))
    kernel = with_parameters_of(text.replace(before, after, 1), whole)
    with pytest.raises((LeftOutError, OutOfRangeError)):  # noqa: PT012
        prove(kernel)
        prove_needed(kernel, CutShort(whole, TILED))


# ---------------------------------------------------------------------------------------------------- sums
ROWS_OF_SOFTMAX = NeededPositions(0, 1, (NeededExtent(0),))
SUMS = {
    "left": (MatMul(), ((3, 150), (150, 20)), (), AbsorbedPositions(0, 1, 0), 0.0),
    "right": (MatMul(), ((2, 3, 150), (2, 150, 20)), (), AbsorbedPositions(1, 1, 0), 0.0),
    "softmax": (Softmax(-1), ((3, 192),), (ROWS_OF_SOFTMAX,), AbsorbedPositions(0, 1, 0), -np.inf),
}
"""An operator, the shapes of its operands, what is needed of its result, the operand that is masked, and by what."""


@pytest.mark.parametrize("machine", ["lanes4", "lanes16"])
@pytest.mark.parametrize("name", SUMS)
def test_sums_end_where_elements_change_nothing(name: str, machine: str) -> None:
    """Elements further beyond the extent than ``spare`` are not read, and the result is that of the masked operand."""
    base, shapes, needed, absorbed, value = SUMS[name]
    rng = np.random.default_rng(3)
    for n in (1, 70):
        arrays: list[Array | None] = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        masked = arrays[absorbed.operand]
        assert masked is not None
        beyond = (slice(None),) * absorbed.axis
        masked[(*beyond, slice(n, None))] = value
        (expected,) = base.evaluate(arrays)
        site = make_site(base, arrays, MACHINES[machine])
        types = [t for t in site.inputs if t is not None]
        ops = [ProvedClipped(base, len(arrays), needed, (absorbed,), spare) for spare in SPARES]
        op = next(op for op in ops if sums_end(op, types, site.outputs, base.lower(site)))
        masked[(*beyond, slice(n + op.spare, None))] = np.nan
        site = replace(site, inputs=(*types, TensorType(I64, ())), constants=(*site.constants, None))
        got = results(op, site, [*arrays, np.array(n)])
        kept = (slice(None), slice(n)) if needed else ()
        np.testing.assert_allclose(got[kept], expected[kept], rtol=0, atol=1e-5)


def test_sums_of_what_is_not_absorbed_are_refused() -> None:
    base, shapes, _, absorbed, _ = SUMS["left"]
    site = make_site(base, [np.zeros(shape, np.float32) for shape in shapes], MACHINES["lanes4"])
    (step,) = base.lower(site)
    types = [t for t in site.inputs if t is not None]
    kernel, _, cut = clip(Clipped(base, 2, (), (absorbed,), SPARES[-1]), types, site.outputs, step.kernel, step.args)
    assert cut is not None
    prove_needed(kernel, cut)
    with pytest.raises(LeftOutError, match="may leave out a store"):
        prove_needed(kernel, CutShort(cut.whole, cut.absorbed, ()))
    with pytest.raises(LeftOutError, match="read further"):
        prove_needed(kernel, replace(cut, spare=1))
