"""Mutation tests of kernels and their generators: every harmful mutant must be detected."""

from __future__ import annotations

import importlib
import inspect
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from types import FunctionType, ModuleType

import numpy as np
import pytest

from check_kernels import FaultError, check
from interpret import interpret
from loop_operations import KernelError
from lowered import MACHINES, Ask, NotLoweredError, make_site, run_lowered, run_site
from mutants import mutants
from operator_cases import selected
from tenon.errors import FormatError
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.text import show
from tenon.machine.proofs.bounds import ConflictError, OutOfRangeError, prove
from tenon.network.graph.graph import Array
from tenon.network.ops import registry
from tenon.network.ops.base import Case

ASK = Ask(blocked=True)
MEMORY = ("is read before it is written", "dimension", "negative", "its range is empty", "store to the constant")
"""In the words of the interpreter: what a proof must have refused.  All else is a matter of values."""


def verdicts(text: str) -> tuple[bool, bool]:
    """Whether ``bounds`` and ``check_kernels`` accept a kernel."""
    try:
        prove(parse(text))
        proved = True
    except OutOfRangeError:
        proved = False
    try:
        check(text)
    except FaultError:
        return proved, False
    return proved, True


def close(got: Sequence[Array], expected: Sequence[Array], tolerance: float) -> bool:
    for a, b in zip(got, expected, strict=True):
        if a.dtype.kind not in "fiub" or a.dtype.isbuiltin != 1:
            a, b = a.astype(np.float32), b.astype(np.float32)
        scale = float(np.abs(b[np.isfinite(b)]).max(initial=0.0)) or 1.0
        if not np.allclose(a, b, rtol=0, atol=tolerance * scale if a.dtype.kind == "f" else 0, equal_nan=True):
            return False
    return True


def outcome(case: Case, machine: str, step: int, mutant: Kernel, tolerance: float) -> str:
    """ "memory" or "value" for an error of the interpreter, "wrong" for another result, else "equal"."""
    calls = iter(range(100))

    def execute(kernel: Kernel, views: list[Array]) -> None:
        interpret(mutant if next(calls) == step else kernel, views)

    arrays = case.arrays()
    site = make_site(case.op, arrays, MACHINES[machine], case.constant, ASK)
    try:
        got = run_site(case.op, site, arrays, ASK, execute)
    except KernelError as error:
        return "memory" if any(word in str(error) for word in MEMORY) else "value"
    except AssertionError:  # a nonzero halo, a bool of 2
        return "wrong"
    return "equal" if close(got, case.op.evaluate(arrays), case.tolerance) else "wrong"


def injected(names: list[str], machine: str, each: int, seed: int) -> Iterator[tuple[Case, int, str, str]]:
    """``each`` mutants of the kernels of every case: the case, the index of the kernel, the mutation, the text."""
    chance = random.Random(seed)
    for name in names:
        for case in selected(name):
            site = make_site(case.op, case.arrays(), MACHINES[machine], case.constant, ASK)
            for i, step in enumerate(case.op.lower(site)):
                mutated = list(mutants(show(step.kernel)))
                for what, text in chance.sample(mutated, min(each, len(mutated))):
                    yield case, i, what, text


def detection_counts(names: list[str], machine: str, each: int, seed: int) -> Counter[tuple[str, str]]:
    """The number of detected mutants by kind and detector. Fails if a harmful one was not detected."""
    count: Counter[tuple[str, str]] = Counter()
    for case, step, what, text in injected(names, machine, each, seed):
        try:
            kernel = parse(text)
        except (FormatError, TypeError):
            count[what, "parser"] += 1
            continue
        proved, checked = verdicts(text)
        effect = outcome(case, machine, step, kernel, case.tolerance) if proved or checked else ""
        assert not (proved and effect == "memory"), f"bounds accepts {what} in\n{text}"
        assert not (checked and effect == "memory"), f"check_kernels accepts {what} in\n{text}"
        how = "both" if not (proved or checked) else "bounds" if not proved else "checker" if not checked else effect
        count[what, how] += 1
    return count


FEW = [
    "AveragePool",
    "Concat",
    "CumSum",
    "Gather",
    "LayerNormalization",
    "MaxPool",
    "ReduceSum",
    "Softmax",
    "Transpose",
]


def test_injected_faults_are_detected() -> None:
    count = detection_counts(FEW, "lanes4", 1, 1)
    total = count.total()
    missed = sum(n for (_, how), n in count.items() if how == "equal")
    assert total > 60
    assert sum(n for (_, how), n in count.items() if how in ("both", "bounds", "checker")) > total / 2, count
    assert missed < total / 5, count  # equivalent mutants: a redundant bound, a store executed twice


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_injected_faults_of_all_operators_are_detected(machine: str) -> None:
    count = detection_counts(sorted(registry()), machine, 4, 2)
    print(machine, count.total(), sorted(count.items()))
    assert sum(n for (_, how), n in count.items() if how == "equal") < count.total() / 5, count


# ------------------------------------------------------------------------------------------------ generators
CHANGES = [
    # module, operator whose cases must detect it, the line, the line with a fault
    ("pool", "MaxPool", "ky * s.dilation[0] + rows.start", "ky * s.dilation[0] + rows.start + 1"),
    ("pool", "MaxPool", "lanes = machine.lanes if shared % machine.lanes == 0 else 1", "lanes = 2 * machine.lanes"),
    ("pool", "AveragePool", "acc[q] = 0.0 if s.average else lowest(computed(s.x.dtype))", "pass"),
    ("pool", "AveragePool", "1.0 / (rows.weight * cols.weight)", "1.0 / rows.weight"),
    ("softmax", "Softmax", "sums[0] = sums[0] + e", "sums[0] = e"),
    ("softmax", "Softmax", 'with k.loop("i", s.n) as i:', 'with k.loop("i", s.n + 1) as i:'),
    ("depthwise", "Conv", "acc[i, j] = 0.0 if p.bias is None or p.halves else p.bias", "pass"),
    ("depthwise", "Conv", "p.added(start, value, p.weight(ky, kx))", "value * p.weight(ky, kx)"),
    ("winograd", "Conv", "half[i, j] = e", "half[i, 0] = e"),
    ("winograd", "Conv", "acc[0, q, z] = 0.0", "acc[0, q, 0] = 0.0"),
    ("conv", "Conv", "yield o, n, i * height + top, j * width + left,", "yield o, n, i * height, j * width + left,"),
    ("conv", "Conv", 'k.loop("o", iterations, kind=outer)', 'k.loop("o", iterations + 1, kind=outer)'),
    ("norm", "LayerNormalization", "value + weight(weights[1], at, lanes) if s.bias else value", "value"),
    ("norm", "LRN", "with k.when(other, s.channels - 1 - other):", "with k.when(other):"),
    ("indexing", "Gather", "x.vec(width)[o, at, v + start // width]", "x.vec(width)[o, i, v + start // width]"),
    ("indexing", "Gather", "y.vec(width)[o, i, v + start // width] =", "y.vec(width)[o, i, v] ="),
    ("move", "Transpose", "top + down + p, left + right + q", "top + down + p, left + q"),
    ("move", "Transpose", "top + p * shuffled, left + q * shuffled", "top + p * shuffled, left"),
    ("move", "Transpose", 'for name in ("low_halves", "high_halves")]', 'for name in ("high_halves", "low_halves")]'),
    ("integer_matmul_words", "IntegerMatMul", "word(length // 4, length % 4)", "word(length // 4, 1)"),
    ("integer_matmul_words", "IntegerMatMul", "for term in (start, less) if", "for term in (start,) if"),
    ("integer_matmul_words", "IntegerMatMul", "(total[0] - known * length)", "total[0]"),
    ("rows", "ReduceSum", "acc[c] = initial(combine, dtype)", "pass"),
    ("merge", "Unique", 'op("and", ready, op("or", done, cast(after(p, q), I32)))', "ready"),
    ("merge", "Unique", "select(fresh, middle[0], right[0])", "select(fresh, counter[0], right[0])"),
    ("data_dependent", "Unique", 'flag(op("not_equal", order(p, head), number(0)))', "number(0)"),
    ("resize", "Resize", "y[to] = _weighted(lines, vertical)", "y[to] = _weighted(lines, lines and vertical[::-1])"),
]


def functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions that a module defines, including cached ones and methods."""
    for function in [
        *vars(module).values(),
        *(f for c in vars(module).values() if inspect.isclass(c) for f in vars(c).values()),
    ]:
        inner = inspect.unwrap(function) if callable(function) else function
        if isinstance(inner, FunctionType) and inner.__module__ == module.__name__:
            yield inner


def clear_caches() -> None:
    """Kernels are cached by their parameters."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tenon."):
            for function in vars(module).values():
                if callable(getattr(function, "cache_clear", None)):
                    function.cache_clear()


@contextmanager
def changed(module: ModuleType, line: str, faulty: str) -> Iterator[None]:
    """Replace the code of a module's functions as if a line of its source were changed."""
    source = inspect.getsource(module)
    assert line in source, f"{module.__name__} has no line '{line}'"
    copy = ModuleType(module.__name__)
    sys.modules[module.__name__], original = copy, sys.modules[module.__name__]
    try:
        exec(compile(source.replace(line, faulty), module.__file__ or "", "exec"), vars(copy))
    finally:
        sys.modules[module.__name__] = original
    new = {f.__qualname__: f.__code__ for f in functions(copy)}
    old = [(f, f.__code__) for f in functions(module)]
    try:
        for f, _ in old:
            f.__code__ = new[f.__qualname__]
        clear_caches()
        yield
    finally:
        for f, code in old:
            f.__code__ = code
        clear_caches()


def detected(name: str) -> bool:
    """Whether the proofs, the interpreter or the comparison with the reference fail for an operator's cases."""
    for case, machine, ask in product(registry()[name].cases(), ("lanes4", "lanes8"), (Ask(), ASK)):
        arrays = case.arrays()
        try:
            site = make_site(case.op, arrays, MACHINES[machine], case.constant, ask)
            for step in case.op.lower(site):
                with suppress(ConflictError):  # one thread runs it alone
                    prove(step.kernel)
            got = run_lowered(case.op, arrays, MACHINES[machine], case.constant, ask)
        except NotLoweredError:
            continue
        except (OutOfRangeError, KernelError, AssertionError):
            return True
        if not close(got, case.op.evaluate(arrays), case.tolerance):
            return True
    return False


@pytest.mark.parametrize(("module", "operator", "line", "faulty"), CHANGES)
def test_faults_in_generators_are_detected(module: str, operator: str, line: str, faulty: str) -> None:
    with changed(importlib.import_module(f"tenon.machine.kernels.{module}"), line, faulty):
        assert detected(operator)
