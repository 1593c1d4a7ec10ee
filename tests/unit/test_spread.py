"""More parallel loops for devices: which loops become parallel, and which must not."""

from __future__ import annotations

from tenon.machine.codegen.spread import spread
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel, Loop
from tenon.machine.kernel_ir.walk import statements
from tenon.machine.kernel_ir.work_items import linearise


def kinds(kernel: Kernel) -> dict[str, str]:
    """The kind of each loop by its variable's name."""
    return {s.var.name: s.kind for s in statements(kernel.body) if isinstance(s, Loop)}


def test_loops_whose_iterations_are_independent_become_parallel() -> None:
    k = Builder("scaled")
    x, y = k.param("x", 8, 16, 4), k.param("y", 8, 16, 4, out=True)
    with k.loop("i", 8, kind="parallel") as i, k.loop("j", 16) as j, k.loop("c", 4) as c:
        y[i, j, c] = x[i, j, c] * 2.0
    made = spread(k.done(), ())
    assert kinds(made) == {"i": "parallel", "j": "parallel", "c": "parallel"}
    items = linearise(made)
    assert items is not None
    assert items.length == 8 * 16 * 4


def test_a_sum_in_memory_stays_serial() -> None:
    k = Builder("sums")
    x, y = k.param("x", 8, 16), k.param("y", 8, out=True)
    with k.loop("i", 8, kind="parallel") as i:
        y[i] = 0.0
        with k.loop("j", 16) as j:
            y[i] = y[i] + x[i, j]
    assert kinds(spread(k.done(), ())) == {"i": "parallel", "j": "serial"}


def test_a_sum_in_a_register_stays_serial() -> None:
    k = Builder("sums")
    x, y = k.param("x", 8, 16), k.param("y", 8, out=True)
    with k.loop("i", 8, kind="parallel") as i:
        total = k.local("t", 1)
        total[0] = 0.0
        with k.loop("j", 16) as j:
            total[0] = total[0] + x[i, j]
        y[i] = total[0]
    assert kinds(spread(k.done(), ())) == {"i": "parallel", "j": "serial"}


def test_loops_that_shift_in_the_same_memory_stay_serial() -> None:
    """Where input and output are one buffer, an iteration would read what another has written."""
    k = Builder("shifted")
    x, y = k.param("x", 17), k.param("y", 17, out=True)
    with k.loop("i", 16) as i:
        y[i] = x[i + 1]
    kernel = k.done()
    assert kinds(spread(kernel, ())) == {"i": "parallel"}
    read, written = kernel.params
    assert kinds(spread(kernel, ((read, written),))) == {"i": "serial"}
