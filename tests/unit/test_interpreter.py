"""The loop IR interpreter: results equal those of C, and undefined behaviour is an error."""

from __future__ import annotations

import numpy as np
import pytest

from interpret import interpret
from loop_operations import OPERATIONS, KernelError
from tenon.machine.kernel_ir.build import Builder, guarded
from tenon.machine.kernel_ir.loops import OPS, Kernel, bitcast, broadcast, cast, less, op, reduce_lanes, select
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32, I32, DType


def run(kernel: Kernel, *inputs: Array, shape: tuple[int, ...], dtype: type = np.float32) -> Array:
    y: Array = np.zeros(shape, dtype)
    interpret(kernel, [*inputs, y])
    return y


def test_every_primitive_is_implemented() -> None:
    """By a definition in NumPy, or by a meaning in the loop IR."""
    defined = OPERATIONS.keys() | {"cast", "bitcast", "broadcast"}
    assert defined <= OPS.keys()
    assert not [name for name, row in OPS.items() if name not in defined and row.meaning is None]


def test_vectors_and_tails() -> None:
    k = Builder("k")
    x, y = k.param("x", 7), k.param("y", 7, out=True)
    with k.loop("i", 1) as i:
        y.vec(4)[i] = x.vec(4)[i] * 2.0
    with k.loop("j", 3) as j:
        y[j + 4] = x[j + 4] * 2.0
    data = np.arange(7, dtype=np.float32)
    assert np.array_equal(run(k.done(), data, shape=(7,)), data * 2)


def test_masks_casts_and_lane_reductions() -> None:
    k = Builder("k")
    x, y = k.param("x", 4), k.param("y", 2, out=True)
    v = x.vec(4)[0]
    positive = select(less(0.0, v), v, 0.0)
    y[0] = reduce_lanes("add", positive)
    y[1] = cast(cast(reduce_lanes("max", v), I32) << 2, F32)
    assert run(k.done(), np.array([1, -5, 2.75, -0.5], np.float32), shape=(2,)).tolist() == [3.75, 8]


def test_bits_and_dot4() -> None:
    k = Builder("k")
    a, b = k.param("a", 2, dtype=DType.Q8), k.param("b", 2, dtype=DType.Q8)
    y = k.param("y", 2, dtype=I32, out=True)
    y.vec(2)[0] = op("dot4", bitcast(broadcast(bitcast(a[0], F32), 2), I32) * 0, a.vec(2)[0], b.vec(2)[0])
    a8 = np.array([1, 2, 3, 255, 4, 5, 6, 7], np.uint8)
    b8 = np.array([1, -2, 3, -4, 5, -6, 7, -128], np.int8)
    expected = (a8.astype(int) * b8.astype(int)).reshape(2, 4).sum(1)
    got = run(k.done(), a8.view(np.int32), b8.view(np.int32), shape=(2,), dtype=np.int32)
    assert got.tolist() == expected.tolist()


def test_integer_division_truncates_as_in_c() -> None:
    k = Builder("k")
    x, y = k.param("x", 2, dtype=I32), k.param("y", 2, dtype=I32, out=True)
    y[0] = op("div", x[0], x[1])
    y[1] = op("mod", x[0], x[1])
    assert run(k.done(), np.array([-7, 2], np.int32), shape=(2,), dtype=np.int32).tolist() == [-3, -1]


def test_guards_are_evaluated_lazily() -> None:
    k = Builder("k")
    x, y = k.param("x", 3), k.param("y", 5, out=True)
    with k.loop("i", 5) as i:
        y[i] = guarded((i - 1, 3 - i), x[i - 1], -9.0)
        with k.when(i - 4):
            y[i] = 7.0
    assert run(k.done(), np.arange(3, dtype=np.float32), shape=(5,)).tolist() == [-9, 0, 1, 2, 7]


def test_threads_meet_at_barriers() -> None:
    k = Builder("k")
    x, y = k.param("x", 2, 4), k.param("y", 2, 4, out=True)
    with k.loop("b", 2, kind="block") as b:
        s = k.local("s", 4, space="shared")
        with k.loop("t", 4, kind="thread") as t:
            s[t] = x[b, t]
            k.barrier()
            y[b, t] = s[3 - t]
    data = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert np.array_equal(run(k.done(), data, shape=(2, 4)), data[:, ::-1])


def test_symbolic_sizes() -> None:
    k = Builder("k")
    n = k.size("n", 100)
    x, y = k.param("x", n, 2), k.param("y", n, 2, out=True)
    with k.loop("i", n) as i, k.unroll("u", 2) as u:
        y[i, u] = -x[i, 1 - u]
    data, out = np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros((3, 2), np.float32)
    interpret(k.done(), [data, out], {"n": 3})
    assert np.array_equal(out, -data[:, ::-1])


def _column_outside(k: Builder) -> None:
    x, y = k.param("x", 3, 4), k.param("y", 3, 4, out=True)
    with k.loop("i", 3) as i:
        y[i, 0] = x[i, i + 2]  # still inside the flattened buffer


def _vector_outside(k: Builder) -> None:
    x, y = k.param("x", 3, 4), k.param("y", 3, 4, out=True)
    y.vec(2)[0, 0] = x.vec(8)[0, 0]


def _register_unwritten(k: Builder) -> None:
    a = k.local("a", 2)
    a[0] = 1.0
    _, y = k.param("x", 3, 4), k.param("y", 3, 4, out=True)
    y[0, 0] = a[1]


def _stack_uninitialised(k: Builder) -> None:
    _, y = k.param("x", 3, 4), k.param("y", 3, 4, out=True)
    with k.loop("i", 2) as i:
        a = k.local("a", 2, space="stack")
        with k.when(-i):
            a[0] = 1.0
        y[0, 0] = a[0]


def _store_to_constant(k: Builder) -> None:
    x, _ = k.param("x", 3, 4), k.param("y", 3, 4, out=True)
    x[0, 0] = 1.0


def _cast_too_large(k: Builder) -> None:
    _, y = k.param("x", 3, 4), k.param("y", 3, 4, out=True)
    y[0, 0] = cast(cast(y[0, 0] + 3e9, I32), F32)


def _shift_too_far(k: Builder) -> None:
    _, y = k.param("x", 3, 4), k.param("y", 3, 4, out=True)
    y[0, 0] = cast(cast(y[0, 0], I32) << 32, F32)


def _mixed_types(k: Builder) -> None:
    x, y = k.param("x", 3, 4), k.param("y", 3, 4, out=True)
    y[0, 0] = x[0, 0] + cast(x[0, 0], I32)


def _barrier_in_one_thread(k: Builder) -> None:
    k.param("x", 3, 4), k.param("y", 3, 4, out=True)
    with k.loop("t", 4, kind="thread") as t, k.when(t - 1):
        k.barrier()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (_column_outside, "dimension 1"),
        (_vector_outside, "8 lanes, dimension 1"),
        (_register_unwritten, "read before it is written"),
        (_stack_uninitialised, "read before it is written"),
        (_store_to_constant, "constant"),
        (_cast_too_large, "cast of"),
        (_shift_too_far, "shift of"),
        (_mixed_types, "add of"),
        (_barrier_in_one_thread, "never reach"),
    ],
)
def test_undefined_behaviour_is_an_error(build, message: str) -> None:  # type: ignore[no-untyped-def]
    k = Builder("k")
    build(k)
    with pytest.raises(KernelError, match=message):
        interpret(k.done(), [np.zeros((3, 4), np.float32), np.zeros((3, 4), np.float32)])
