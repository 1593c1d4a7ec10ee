"""The race proof: kernels with races are rejected, and accepted kernels are checked by enumeration."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product

import pytest

from compiled import lowered_steps
from lowered import MACHINES, Ask
from operator_cases import LOWERED
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index, Quotient, Var
from tenon.machine.kernel_ir.loops import Kernel, Load, Loop, Stmt, Store, Type
from tenon.machine.kernel_ir.work_items import linearise
from tenon.machine.proofs.bounds import ConflictError, OutOfRangeError, has_parallel, prove
from tenon.network.graph.types import F32


def overlapping() -> Kernel:
    k = Builder("overlapping")
    y = k.param("y", 64, out=True)
    with k.loop("i", 16, kind="parallel") as i, k.loop("j", 2) as j:
        y[i + j] = 1.0
    return k.done()


def wide_store() -> Kernel:
    k = Builder("wide_store")
    y = k.param("y", 64, out=True).vec(4)
    with k.loop("i", 15, kind="parallel") as i:
        k.store(y.buffer, (i * 3,), Load(y.buffer, (Index(),), Type(F32, 4)))
    return k.done()


def two_loops(second: int) -> Kernel:
    """Two parallel loops of eight iterations; the second one starts at element ``second``."""
    k = Builder("two_loops")
    y = k.param("y", 64, out=True)
    with k.loop("i", 8, kind="parallel") as i:
        y[i] = 1.0
    with k.loop("j", 8, kind="parallel") as j:
        y[j + second] = 2.0
    return k.done()


def passes(step: int) -> Kernel:
    """An outer serial loop is no barrier: a thread may be one iteration ahead of another."""
    k = Builder("passes")
    y = k.param("y", 128, out=True)
    with k.loop("n", 4) as n, k.loop("i", 8, kind="parallel") as i:
        y[n * step + i] = 1.0
    return k.done()


def neighbours() -> Kernel:
    """An iteration reads what the previous one wrote."""
    k = Builder("neighbours")
    y = k.param("y", 65, out=True)
    with k.loop("i", 64, kind="parallel") as i:
        y[i + 1] = y[i] + 1.0
    return k.done()


def outside() -> Kernel:
    k = Builder("outside")
    y = k.param("y", 65, out=True)
    y[64] = 1.0
    with k.loop("i", 64, kind="parallel") as i:
        y[i] = 1.0
    return k.done()


def carried() -> Kernel:
    k = Builder("carried")
    x, y = k.param("x", 8), k.param("y", 8, out=True)
    total = k.local("t", 1)
    total[0] = 0.0
    with k.loop("i", 8, kind="parallel") as i:
        total[0] = total[0] + x[i]
        y[i] = total[0]
    return k.done()


def scratch(between: bool) -> Kernel:
    """Scratch memory written and read in one parallel loop, or in two."""
    k = Builder("scratch")
    x, t, y = k.param("x", 8), k.param("t", 8, scratch=True), k.param("y", 8, out=True)
    with k.loop("i", 8, kind="parallel") as i:
        t[i] = x[i]
        if not between:
            y[i] = t[i]
    if between:
        with k.loop("j", 8, kind="parallel") as j:
            y[j] = t[j]
    return k.done()


def negative() -> Kernel:
    """With floor division iterations 0 and 1 write elements 0 and 1; with C's truncation, both write element 1."""
    k = Builder("negative")
    y = k.param("y", 2, out=True)
    with k.loop("i", 2, kind="parallel") as i:
        y[Index(((Quotient(i - 1, 2), 1),)) + 1] = 1.0
    return k.done()


def guarded_halves() -> Kernel:
    """A guard excludes some elements of an iteration, but not those of another one."""
    k = Builder("halves_of_some")
    y = k.param("y", 16, out=True)
    with k.loop("i", 8, kind="parallel") as i, k.when(i - 3):
        y[i // 2] = 1.0
    return k.done()


def beside_the_inner_loop() -> Kernel:
    k = Builder("beside")
    y = k.param("y", 4, 9, out=True)
    with k.loop("i", 4, kind="parallel") as i:
        y[i, 8] = 1.0
        with k.loop("j", 8, kind="parallel") as j:
            y[i, j] = 1.0
    return k.done()


def divided(columns: int, modulus: int) -> Kernel:
    """Iteration p writes row p / columns, column p mod ``modulus``."""
    k = Builder("divided")
    y = k.param("y", 64, 8, out=True)
    with k.loop("p", 40, kind="parallel") as p:
        y[p // columns, p % modulus] = 1.0
    return k.done()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (overlapping, "parallel i may write one element of y"),
        (wide_store, "parallel i may write"),
        (lambda: two_loops(7), "parallel i and j may write one element of y"),
        (lambda: passes(4), "parallel i may write"),
        (neighbours, "parallel i may write and read one element of y"),
        (outside, "parallel no loop"),
        (carried, "t carries a value from one iteration of parallel i to another"),
        (beside_the_inner_loop, "parallel no loop"),
        (lambda: scratch(True), "t carries a value from one parallel loop to another"),
        (guarded_halves, "parallel i may write"),
        (lambda: divided(5, 4), "parallel p may write"),
        (lambda: divided(8, 5), "parallel p may write"),
    ],
)
def test_injected_faults_are_rejected(make: Callable[[], Kernel], message: str) -> None:
    with pytest.raises(ConflictError, match=message):
        prove(make())


def test_negative_quotients_are_refused() -> None:
    """The indices of two iterations are compared by floor division, so dividends must not be negative (C truncates)."""
    with pytest.raises(OutOfRangeError, match="divides a negative number"):
        prove(negative())


@pytest.mark.parametrize(
    "make",
    [lambda: two_loops(8), lambda: passes(8), lambda: divided(5, 5), lambda: passes(9), lambda: scratch(False)],
)
def test_correct_kernels_are_proved(make: Callable[[], Kernel]) -> None:
    assert prove(make()) > 0


def moving(parallel_iterations: int, step: int, start: int) -> Kernel:
    """y[i] = x[start + step * i]."""
    k = Builder("moving")
    x, y = k.param("x", 16), k.param("y", 16, out=True)
    with k.loop("i", parallel_iterations, kind="parallel") as i:
        y[i] = x[i * step + start]
    return k.done()


def test_in_place_kernels_are_proved_for_shared_memory() -> None:
    for correct in (moving(16, 1, 0), moving(8, -1, 15)):
        x, y = correct.params
        assert prove(correct)
        assert prove(correct, {x: y})
    fault = moving(16, -1, 15)
    x, y = fault.params
    assert prove(fault)
    with pytest.raises(ConflictError, match="write and read"):
        prove(fault, {x: y})


@pytest.mark.parametrize(
    "machine", [pytest.param(m, marks=pytest.mark.slow if m in ("lanes4", "lanes8") else ()) for m in MACHINES]
)
def test_kernels_of_every_operator_case_are_proved(machine: str) -> None:
    parallel = 0
    for case in LOWERED.values():
        for step in lowered_steps(case, MACHINES[machine], Ask(blocked=True, surplus=1)):
            parallel += has_parallel(step.kernel.body)
            assert prove(step.kernel) >= 0
    assert parallel > 500


# ------------------------------------------------------------------------------------ against enumeration
def parallel_iterations(
    body: tuple[Stmt, ...], env: dict[Var, int], item: tuple[object, ...]
) -> Iterator[tuple[object, Store, dict[Var, int]]]:
    """Every executed store: (the parallel iterations that execute it, the store, its variables)."""
    for s in body:
        if isinstance(s, Store):
            yield item, s, dict(env)
        elif isinstance(s, Loop):
            for v in range(min(b.subst(env).const for b in s.var.below)):
                inner = (*item, (s.var, v)) if s.kind == "parallel" else item
                yield from parallel_iterations(s.body, {**env, s.var: v}, inner)


def has_race(kernel: Kernel) -> bool:
    """Whether two different iterations write one element."""
    writers: dict[tuple[int, ...], object] = {}
    for item, store, env in parallel_iterations(kernel.body, {}, ()):
        where = tuple(i.subst(env).const for i in store.index)
        for lane in range(store.value.type.lanes):
            if writers.setdefault((*where[:-1], where[-1] + lane), item) != item:
                return True
    return False


def random_kernel(chance: random.Random) -> Kernel:
    """Two loop nests with strides, quotients and remainders that are often, but not always, free of races."""
    k = Builder("random")
    y = k.param("y", 400, 400, out=True)
    for _ in range(chance.choice([1, 2])):
        a, b, c = (chance.randint(1, 4) for _ in range(3))
        start, step = chance.choice([0, 0, 7, 12, 20]), chance.choice([1, 2, 3, 4])
        by = chance.choice([2, 3, 4])
        with k.loop("n", a) as n, k.loop("p", b * c, kind="parallel") as p, k.loop("t", chance.choice([1, 2, 3])) as t:
            e = p * step + t + start
            row = chance.choice([n, n * 5 + p // c, e // by, n * 30 + p * step, p // by])
            col = chance.choice([p % c * 3 + t, e % by, e, p % by + t * by])
            y[row, col] = 1.0
    return k.done()


def test_accepted_kernels_have_no_races() -> None:
    chance = random.Random(7)
    accepted = rejected = loose = 0
    for _ in range(1500):
        kernel = random_kernel(chance)
        try:
            prove(kernel)
        except ConflictError:
            rejected += 1
            loose += not has_race(kernel)
            continue
        accepted += 1
        assert not has_race(kernel), kernel
    assert accepted > 200
    assert rejected > 200
    assert loose < 0.15 * (accepted + rejected)  # a proof that rejects too much would leave most kernels to one thread


# ------------------------------------------------------------------------------------------- work items
def test_work_items_are_numbered_consecutively() -> None:
    k = Builder("nested")
    y = k.param("y", 5, 11, out=True)
    with k.loop("n", 3), k.loop("o", 5, kind="parallel") as o:
        with k.loop("i", 4, kind="parallel") as i:
            y[o, i * 2] = 1.0
        with k.loop("j", 1, kind="parallel") as j:
            y[o, j + 10] = 1.0
    items = linearise(k.done())
    assert items is not None
    assert items.length == 25
    at = {v.name: (index, items.each[v]) for v, index in items.first.items()}
    assert at["o"] == (Index(), 5)
    (outer,) = (v for v in items.first if v.name == "o")
    places = [at[name][0].subst({outer: 3}).const for name in ("i", "j")]
    assert places == [15, 19]
    assert linearise(k_without_loops()) is None


def k_without_loops() -> Kernel:
    k = Builder("alone")
    k.param("y", 1, out=True)[0] = 1.0
    return k.done()


def test_slices_cover_every_work_item_once() -> None:
    for length, threads in product((0, 1, 2, 7, 64), (1, 2, 3, 8)):
        slices = [(length * t // threads, length * (t + 1) // threads) for t in range(threads)]
        assert [i for a, b in slices for i in range(a, b)] == list(range(length))
