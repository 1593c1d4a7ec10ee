"""The bounds proof rejects injected faults and accepts correct kernels."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index, IndexLike, Quotient, Var
from tenon.machine.kernel_ir.loops import Kernel, Load, Type
from tenon.machine.kernel_ir.upper import upper
from tenon.machine.kernels.conv import Conv, OutputTile, conv
from tenon.machine.kernels.halo import halo
from tenon.machine.kernels.image import Image
from tenon.machine.kernels.machine import Machine
from tenon.machine.proofs.bounds import OutOfRangeError, prove
from tenon.machine.proofs.count import count
from tenon.network.graph.types import F32

MACHINE = Machine(lanes=16, registers=32, block=16)
CORRECT = Conv(Image(1, 32, 14, 14, 16, 1, 1, 1, 1), Image(1, 32, 14, 14, 16), (3, 3), top=1, left=1)


def convolution(spec: Conv) -> Kernel:
    return conv(spec, MACHINE, OutputTile(2, 5, 1))


def copy(extent: int, shift: int = 0, lanes: int = 1, guard: int | None = None, symbolic: bool = False) -> Kernel:
    """y[i] = x[i + shift], guarded by i + shift < extent + guard."""
    k = Builder("copy")
    n: IndexLike = k.size("n", 1000) if symbolic else extent
    n = n if isinstance(n, Index) else Index((), n)
    x, y = k.param("x", n), k.param("y", n, out=True)
    with k.loop("i", n // lanes) as i:
        value = Load(x.buffer, (i * lanes + shift,), Type(F32, lanes))
        if guard is None:
            y.vec(lanes)[i] = value
        else:
            with k.when(i + shift < n + guard):
                y.vec(lanes)[i] = value
    return k.done()


def parallel(step: int) -> Kernel:
    """Iterations that write two elements each, ``step`` apart."""
    k = Builder("parallel")
    y = k.param("y", 64, out=True)
    with k.loop("i", 16, kind="parallel") as i, k.loop("j", 2) as j:
        y[i * step + j] = 1.0
    return k.done()


def unwritten() -> Kernel:
    k = Builder("unwritten")
    y = k.param("y", 4, out=True)
    a = k.local("a", 2)
    a[0] = 1.0
    b = k.local("b", 2)
    y[0] = b[0] + a[0]
    return k.done()


def read_only() -> Kernel:
    k = Builder("read_only")
    x = k.param("x", 4)
    x[0] = 1.0
    return k.done()


@pytest.mark.parametrize(
    "make",
    [
        lambda: convolution(CORRECT),
        lambda: convolution(replace(CORRECT, x=replace(CORRECT.x, bottom=3, right=2))),
        lambda: convolution(replace(CORRECT, stride=(2, 2), y=replace(CORRECT.y, h=7, w=7))),
        lambda: copy(100, lanes=4),
        lambda: copy(0, lanes=16, symbolic=True),
        lambda: copy(0, 3, guard=0, symbolic=True),
        lambda: parallel(2),
        lambda: halo(CORRECT.x, MACHINE),
    ],
)
def test_correct_kernels_are_proved(make: Callable[[], Kernel]) -> None:
    assert prove(make()) > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: convolution(replace(CORRECT, x=replace(CORRECT.x, bottom=0))),
            r"of x, dimension 2: passes the end by 1",
        ),
        (
            lambda: convolution(replace(CORRECT, x=replace(CORRECT.x, right=0))),
            r"of x, dimension 3: passes the end by 1",
        ),
        (lambda: convolution(replace(CORRECT, x=replace(CORRECT.x, top=0))), r"dimension 2: starts 1 before 0"),
        (lambda: convolution(replace(CORRECT, stride=(2, 2))), r"load of x, dimension 2: passes the end"),
        (lambda: convolution(replace(CORRECT, y_start=(0, 1))), r"store of y, dimension 3: passes the end by 1"),
        (lambda: copy(100, 1, lanes=4), r"load of x, dimension 0: passes the end by 1"),
        (lambda: copy(0, 1, lanes=16, symbolic=True), r"passes the end by 1"),
        (lambda: copy(0, 3, guard=1, symbolic=True), r"passes the end by 1"),
        (lambda: parallel(1), r"two iterations of parallel i may write one element of y"),
        (unwritten, r"register b is read before it is written"),
        (read_only, r"stores to the read-only x"),
    ],
)
def test_injected_faults_are_rejected(make: Callable[[], Kernel], message: str) -> None:
    with pytest.raises(OutOfRangeError, match=message):
        prove(make())


def test_upper_is_never_below_the_true_maximum() -> None:
    """Random expressions over a ragged two-level loop nest, against enumeration."""
    chance = random.Random(1)
    exact = 0
    for trial in range(400):
        step, q, r = chance.choice([3, 4, 5, 7]), chance.choice([2, 3, 4, 7]), chance.choice([2, 3, 5])
        total = chance.randint(step, 30)
        n = Var("n", (Index((), -(-total // step)),), 1)
        outer = Index(((n, 1),))
        t = Var("t", (Index((), step), total - outer * step), 2)
        inner = Index(((t, 1),))
        tile = outer * step + inner
        a, b, c = (chance.randint(-5, 5) for _ in range(3))
        tile = tile + max(0, c)
        e = [tile // q * a + tile % q * b, outer * a + inner * b, (tile * 2 + inner) // r * a + (tile + inner) // q * b]
        expression = e[trial % 3] + c
        iterations = [(i, j) for i in range(-(-total // step)) for j in range(min(step, total - step * i))]
        most = max(expression.subst({n: i, t: j}).const for i, j in iterations)
        bound = upper(expression)
        assert bound >= most
        exact += bound == most
    assert exact > 250  # a valid bound that is never tight would reject correct kernels


def test_counted_macs_of_a_convolution() -> None:
    cost = count(convolution(CORRECT))
    assert cost.macs == 32 * 32 * 9 * 14 * 14
    assert cost.stored == 4 * 32 * 14 * 14


def test_quotients_keep_the_constant_that_their_dividend_needs() -> None:
    """C truncates towards zero: what is moved out of a quotient must not leave a negative number in it."""
    n, q = (Var(name, (Index((), below),), depth) for depth, (name, below) in enumerate((("n", 257), ("q", 4))))
    place = (Index(((n, 1), (q, -64)), 31 + 192)) // 32
    dividends = [atom.of for atom, _ in place.terms if isinstance(atom, Quotient)]
    assert [of.span()[0] >= 0 for of in dividends] == [True]
    for needed in (0, 1, 33, 256):
        for part in range(4):
            assert place.subst({n: needed, q: part}).const == (needed - 64 * part + 223) // 32
