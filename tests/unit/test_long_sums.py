"""Long sums: blocked summation, so that errors do not grow with the length."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
import pytest

import tenon
from interpret import interpret
from lowered import make_site
from onnx_models import model, node
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernels import rows
from tenon.machine.kernels.machine import Machine
from tenon.machine.kernels.reduce import Reduction, reduction
from tenon.machine.proofs.bounds import prove
from tenon.network.graph.graph import Array
from tenon.network.graph.types import F32
from tenon.network.ops.matmul import MatMul

N = 1 << 20
PRIME = N + 7
TENTH = float(np.float32(0.1))
BOUND = 1e-4
"""Relative; chains that are not cut are off by up to 1e-2."""


class Sum(NamedTuple):
    """Operators from x to y, the shapes of x (all 0.1) and of the weights (all 1), and the expected result."""

    nodes: list[onnx.NodeProto]
    shape: tuple[int, ...]
    wanted: float
    weights: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()


def one(name: str, **attributes: Any) -> list[onnx.NodeProto]:
    return [node(name, ["x"], ["y"], **attributes)]


def two(name: str, **attributes: Any) -> list[onnx.NodeProto]:
    return [node(name, ["x", "w"], ["y"], **attributes)]


def over(shape: tuple[int, ...], axes: tuple[int, ...]) -> Sum:
    """The sum over some axes."""
    nodes = [node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)]
    return Sum(nodes, shape, TENTH * int(np.prod([shape[a] for a in axes])), axes=axes)


REDUCTIONS = {
    "row": over((N,), (0,)),
    "row_and_rest": over((N + 5000,), (0,)),
    "leading": over((4 * N, 3), (0,)),
    "leading_of_many": over((N // 4, 37), (0,)),
    "middle": over((2, N, 3), (1,)),
    "two_leading": over((N, 2, 2), (0, 1)),
    "first_and_last": over((N // 8, 3, 8), (0, 2)),
    "ReduceMean": Sum(one("ReduceMean", keepdims=0), (4, N // 4), TENTH),
    "ReduceL1": Sum(one("ReduceL1", keepdims=0), (N,), TENTH * N),
    "ReduceL2": Sum(one("ReduceL2", keepdims=0), (N,), np.sqrt(TENTH**2 * N)),
    "ReduceSumSquare": Sum(one("ReduceSumSquare", keepdims=0), (N,), TENTH**2 * N),
    "ReduceLogSum": Sum(one("ReduceLogSum", keepdims=0), (N,), np.log(TENTH * N)),
    "LpNormalization": Sum(one("LpNormalization", axis=0, p=1), (N, 1), 1 / N),
    "Einsum": Sum(one("Einsum", equation="ij->j"), (N, 3), TENTH * N),
    "GlobalAveragePool": Sum(one("GlobalAveragePool"), (1, 1, 2048, N // 2048), TENTH),
    "GlobalAveragePool_of_channels": Sum(one("GlobalAveragePool"), (1, 16, 512, 512), TENTH),
    "AveragePool": Sum(one("AveragePool", kernel_shape=[1024, 1024]), (1, 1, 1024, 1025), TENTH),
    "AveragePool_of_channels": Sum(one("AveragePool", kernel_shape=[500, 600]), (1, 20, 502, 600), TENTH),
    "AveragePool_with_pads": Sum(
        one("AveragePool", kernel_shape=[600, 600], pads=[2, 3, 2, 3]), (1, 2, 600, 600), TENTH
    ),
    "AveragePool_of_one_axis": Sum(one("AveragePool", kernel_shape=[N], pads=[1, 1]), (1, 1, N), TENTH),
    "LpPool": Sum(one("LpPool", kernel_shape=[1024, 1024], p=2), (1, 1, 1024, 1025), TENTH * 1024),
}
PRODUCTS = {
    "MatMul": Sum(two("MatMul"), (1, N), TENTH * N, (N, 1)),
    "MatMul_of_rows": Sum(two("MatMul"), (3, N // 4), TENTH * N / 4, (N // 4, 5)),
    "MatMul_of_many": Sum(two("MatMul"), (33, N // 8), TENTH * N / 8, (N // 8, 19)),
    "MatMul_of_a_prime": Sum(two("MatMul"), (1, PRIME), TENTH * PRIME, (PRIME, 1)),
    "MatMul_of_vectors": Sum(two("MatMul"), (PRIME,), TENTH * PRIME, (PRIME,)),
    "MatMul_of_batches": Sum(two("MatMul"), (2, 1, N // 2), TENTH * N / 2, (2, N // 2, 1)),
    "MatMul_of_batches_by_one": Sum(two("MatMul"), (2, 3, N // 4), TENTH * N / 4, (N // 4, 3)),
    "MatMul_at_run_time": Sum(
        [node("Transpose", ["x"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])], (1, N), TENTH**2 * N
    ),
    "Gemm": Sum(two("Gemm"), (1, N), TENTH * N, (N, 1)),
    "Gemm_turned": Sum(two("Gemm", transA=1, transB=1, alpha=0.5), (N // 4, 3), TENTH * N / 8, (5, N // 4)),
    "Einsum": Sum(two("Einsum", equation="ij,jk->ik"), (1, PRIME), TENTH * PRIME, (PRIME, 1)),
    "Einsum_of_vectors": Sum(two("Einsum", equation="i,i->"), (N,), TENTH * N, (N,)),
    "Einsum_over_two": Sum(two("Einsum", equation="bij,bjk->bk"), (2, 3, N // 8), TENTH * N / 8 * 3, (2, N // 8, 2)),
    "Conv_1x1": Sum(two("Conv"), (1, N // 4, 1, 1), TENTH * N / 4, (2, N // 4, 1, 1)),
    "Conv_1x1_of_an_image": Sum(two("Conv"), (1, N // 4, 3, 3), TENTH * N / 4, (2, N // 4, 1, 1)),
    "Conv_3x3": Sum(two("Conv"), (1, N // 8, 3, 3), TENTH * N / 8 * 9, (2, N // 8, 3, 3)),
    "Conv_3x3_of_an_image": Sum(two("Conv"), (1, N // 16, 6, 6), TENTH * N / 16 * 9, (2, N // 16, 3, 3)),
    "Conv_of_one_axis": Sum(two("Conv"), (1, 1, N), TENTH * N, (1, 1, N)),
    "Conv_of_three_axes": Sum(two("Conv"), (1, 1, 64, 128, 128), TENTH * N, (1, 1, 64, 128, 128)),
    "Conv_of_a_large_kernel": Sum(two("Conv"), (1, 1, 1024, 1024), TENTH * N, (1, 1, 1024, 1024)),
    "Conv_by_channels": Sum(two("Conv", group=4), (1, 4, 512, 512), TENTH * N / 4, (4, 1, 512, 512)),
    "ConvTranspose": Sum(two("ConvTranspose"), (1, N // 4, 2, 1), TENTH * N / 4, (N // 4, 2, 1, 1)),
}


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("case", [*REDUCTIONS.values(), *PRODUCTS.values()], ids=[*REDUCTIONS, *PRODUCTS])
def test_long_sums(case: Sum, level: Literal[0, 2]) -> None:
    """Equal numbers are the worst case, since all rounding errors have the same sign."""
    weights: dict[str, Array] = {"w": np.ones(case.weights, np.float32)} if case.weights else {}
    weights |= {"axes": np.array(case.axes)} if case.axes else {}
    made = model(case.nodes, {"x": case.shape}, ["y"], weights, opset=17).SerializeToString()
    actual = tenon.open(tenon.compile(made, optimize=level)).run(np.full(case.shape, 0.1, np.float32))["y"]
    assert np.abs(actual.astype(np.float64) / case.wanted - 1).max() < BOUND


@pytest.mark.parametrize("shape", [(1, N), (N, 1), (N // 4, 37)])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_long_sums_of_exponentials(name: str, shape: tuple[int, int]) -> None:
    axis = int(np.argmax(shape))
    x = np.full(shape, np.log(0.1), np.float32)
    np.swapaxes(x, 0, axis)[0] = 0  # the maximum: exp of all others is 0.1
    actual = tenon.open(tenon.compile(model(one(name, axis=axis), {"x": shape}, ["y"]).SerializeToString())).run(x)["y"]
    wide = x.astype(np.float64)
    true = wide - np.log(np.exp(wide).sum(axis, keepdims=True))
    if name == "Softmax":
        assert np.abs(actual / np.exp(true) - 1).max() < BOUND
    else:
        assert np.abs(actual - true).max() < BOUND


@pytest.mark.parametrize(
    ("name", "shape"), [("LayerNormalization", (1, N)), ("InstanceNormalization", (1, 2, 1024, 2048))]
)
def test_normalization_of_many_numbers(name: str, shape: tuple[int, ...]) -> None:
    """Deviations of 0.1 around 0.1, so that errors of the mean are visible."""
    x = np.full(shape, 0.2, np.float32)
    x[..., ::2] = 0
    n = shape[1]
    weights = {"scale": np.ones(n, np.float32), "bias": np.zeros(n, np.float32)}
    graph = model([node(name, ["x", "scale", "bias"], ["y"], epsilon=0.0)], {"x": shape}, ["y"], weights, opset=17)
    actual = tenon.open(tenon.compile(graph.SerializeToString())).run(x)["y"]
    assert np.abs(actual - np.where(x > 0.1, 1, -1)).max() < BOUND


@pytest.mark.parametrize("axis", [0, 1])
def test_log_softmax_of_one_large_number(axis: int) -> None:
    """The maximum is subtracted before the logarithm, which is small compared with it."""
    row = np.full(16, 100.0, np.float32)
    row[3] = 107.96875
    x = np.tile(row, (16, 1)) if axis else np.tile(row[:, None], (1, 16))
    actual = tenon.open(tenon.compile(model(one("LogSoftmax", axis=axis), {"x": x.shape}, ["y"]).SerializeToString()))
    got = actual.run(x)["y"][3, 3]
    assert abs(got + np.log1p(15 * np.exp(-7.96875))) < 15 * 2**-24  # 15 additions to a sum near 1


# -------------------------------------------------------------------------------------- the loops themselves
@pytest.mark.parametrize(
    "extents", [(), (3,), (17,), (16, 16), (2, 3, 2), (1, 50, 1), (5, 1, 7), (3, 4, 29), (29, 2, 5)]
)
@pytest.mark.parametrize("each", [1, 3, 7])
def test_blocks_cover_every_element_once(extents: tuple[int, ...], each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In blocks of four additions."""
    monkeypatch.setattr(rows, "LONGEST", 4)
    k = Builder("sum")
    x = k.param("x", *(extents or (1,)))
    y = k.param("y", 2, out=True)
    acc = rows.partial(k, "add", 2, F32, 1)
    for at, (sums,) in rows.in_blocks(k, [("i", n) for n in extents], [acc], each, 4):
        for turn in range(each):
            sums[turn % 2] = sums[turn % 2] + x[tuple(at) or 0]
    y[0], y[1] = acc[0], acc[1]
    kernel = k.done()
    assert prove(kernel)
    data: Array = np.random.default_rng(0).integers(-99, 99, extents or (1,)).astype(np.float32)
    out = np.zeros(2, np.float32)
    interpret(kernel, [data, out])
    assert out.tolist() == [data.sum() * (each - each // 2), data.sum() * (each // 2)]


@pytest.mark.parametrize("lanes", [1, 8])
def test_kernels_of_long_sums_are_proved(lanes: int) -> None:
    machine, n = Machine(lanes=lanes, block=lanes), rows.LONGEST_PRODUCT + 4041  # a prime
    site = make_site(MatMul(), [np.full((1, n), 0.1, np.float32), np.ones((n, 1), np.float32)], machine, (1,))
    for step in MatMul().lower(site):
        assert prove(step.kernel)
    long = Reduction("sum", (3 * rows.LONGEST + 5, 2, 3 * rows.LONGEST + 5), (True, False, True), "add")
    assert prove(reduction(long, machine))
