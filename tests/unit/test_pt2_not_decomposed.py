"""Programs of torch.export that were not decomposed: their operators compared with NumPy, a program with torch."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from pt2_models import call, pt2
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array

RNG = np.random.default_rng(6)


def rand(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def single(
    target: str, arguments: dict[str, Any], expected: Array | Sequence[Array], weights: dict[str, Array] | None = None
) -> bytes:
    """A program of one call; arrays among the arguments are its inputs or ``weights``."""
    given = weights or {}
    tensors = {name: a for name, a in _tensors(arguments) if name not in given}
    results = [expected] if isinstance(expected, np.ndarray) else list(expected)
    names = [f"y{i}" for i in range(len(results))]
    plain = {name: _named(name, value) for name, value in arguments.items()}
    shapes = {name: a.shape for name, a in (*tensors.items(), *zip(names, results, strict=True))}
    kinds = {name: a.dtype.name for name, a in (*tensors.items(), *zip(names, results, strict=True))}
    made = call(f"aten.{target}", names[0] if isinstance(expected, np.ndarray) else tuple(names), **plain)
    if not isinstance(expected, np.ndarray):
        made["outputs"] = [{"as_tensor": {"name": name}} for name in names]
    return pt2([made], shapes, list(tensors), names, given, kinds)


def _tensors(arguments: dict[str, Any]) -> list[tuple[str, Array]]:
    pairs = [(k, v) for k, v in arguments.items() if isinstance(v, np.ndarray)]
    lists = [(k, v) for k, v in arguments.items() if isinstance(v, tuple)]
    return pairs + [(f"{k}_{i}", a) for k, v in lists for i, a in enumerate(v)]


def _named(name: str, value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(f"{name}_{i}" for i in range(len(value)))
    if isinstance(value, np.ndarray):
        return name
    return {"as_string": value} if isinstance(value, str) else value


def matches(target: str, arguments: dict[str, Any], expected: Array | Sequence[Array]) -> None:
    graph = importers.load(single(target, arguments, expected))
    outputs = evaluate(graph, dict(_tensors(arguments)))
    results = [expected] if isinstance(expected, np.ndarray) else expected
    for y, wanted in zip(outputs.values(), results, strict=True):
        assert y.dtype == wanted.dtype
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------------------ products
def test_products_by_letters() -> None:
    x, y = rand(2, 3, 4), rand(2, 4, 5)
    equation = "bij, bjk -> bik"
    matches("einsum.default", {"equation": equation, "tensors": (x, y)}, np.einsum("bij,bjk->bik", x, y))


@pytest.mark.parametrize(("a", "b"), [([1, 2], [0, 1]), ([0], [2]), ([-1], [1]), ([], [])])
def test_products_over_axes(a: list[int], b: list[int]) -> None:
    x, y = rand(3, 2, 4), rand(2, 4, 3)
    expected = np.tensordot(x, y, (a, b)) if a else np.multiply.outer(x, y)
    matches("tensordot.default", {"self": x, "other": y, "dims_self": a, "dims_other": b}, expected)


def test_outer_products() -> None:
    matches("outer.default", {"self": (x := rand(3)), "vec2": (y := rand(4))}, np.outer(x, y))


# ------------------------------------------------------------------------------------------------ recurrence
def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def test_a_step_of_an_lstm() -> None:
    x, h, c, w, r, b, d = rand(2, 3), rand(2, 4), rand(2, 4), rand(16, 3), rand(16, 4), rand(16), rand(16)
    i, f, g, o = np.split(x @ w.T + b + h @ r.T + d, 4, 1)
    after = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    given = {"input": x, "hx": (h, c), "w_ih": w, "w_hh": r, "b_ih": b, "b_hh": d}
    matches("lstm_cell.default", given, [sigmoid(o) * np.tanh(after), after])


def test_a_step_of_a_gru() -> None:
    x, h, w, r, b, d = rand(2, 3), rand(2, 4), rand(12, 3), rand(12, 4), rand(12), rand(12)
    (xr, xz, xn), (hr, hz, hn) = np.split(x @ w.T + b, 3, 1), np.split(h @ r.T + d, 3, 1)
    z = sigmoid(xz + hz)
    expected = (1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * h
    given = {"input": x, "hx": h, "w_ih": w, "w_hh": r, "b_ih": b, "b_hh": d}
    matches("gru_cell.default", given, expected)


@pytest.mark.parametrize(("name", "activation"), [("tanh", np.tanh), ("relu", lambda x: np.maximum(x, 0))])
def test_a_step_of_an_rnn_without_biases(name: str, activation: Callable[[Array], Array]) -> None:
    x, h, w, r = rand(2, 3), rand(2, 4), rand(4, 3), rand(4, 4)
    given = {"input": x, "hx": h, "w_ih": w, "w_hh": r}
    matches(f"rnn_{name}_cell.default", given, activation(x @ w.T + h @ r.T))


# --------------------------------------------------------------------------------------------------- windows
def columns(x: Array, kernel: list[int], dilation: int, padding: int, stride: int) -> Array:
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    counts = [(n - (k - 1) * dilation - 1) // stride + 1 for n, k in zip(x.shape[2:], kernel, strict=True)]
    windows = [
        x[
            :,
            :,
            i * stride : i * stride + (kernel[0] - 1) * dilation + 1 : dilation,
            j * stride : j * stride + (kernel[1] - 1) * dilation + 1 : dilation,
        ].reshape(x.shape[0], -1)
        for i in range(counts[0])
        for j in range(counts[1])
    ]
    return np.stack(windows, 2)


@pytest.mark.parametrize(("dilation", "padding", "stride"), [(1, 0, 1), (2, 1, 1), (1, 1, 2)])
def test_windows_as_columns(dilation: int, padding: int, stride: int) -> None:
    x, kernel = rand(2, 3, 6, 7), [2, 3]
    given = {"kernel_size": kernel, "dilation": [dilation] * 2, "padding": [padding] * 2, "stride": [stride] * 2}
    matches("im2col.default", {"self": x, **given}, columns(x, kernel, dilation, padding, stride))


# --------------------------------------------------------------------------------------------------- indices
AT = np.array([[0, 2, 1], [1, 0, 2]])


def test_elements_by_number() -> None:
    matches("take.default", {"self": (x := rand(4, 3)), "index": AT}, x.ravel()[AT])
    matches(
        "take_along_dim.default", {"self": (x := rand(2, 3)), "indices": AT, "dim": 1}, np.take_along_axis(x, AT, 1)
    )
    spread = np.take_along_axis(x, np.broadcast_to(AT[:1], (2, 3)), 1)
    matches("take_along_dim.default", {"self": x, "indices": AT[:1], "dim": 1}, spread)


@pytest.mark.parametrize("name", ["index_add", "index_copy"])
def test_slices_at_indices(name: str) -> None:
    x, source, index = rand(2, 4, 3), rand(2, 3, 3), np.array([0, 2, 0] if name == "index_add" else [0, 2, 1])
    expected, more = x.copy(), {"alpha": 2} if name == "index_add" else {}
    for k, i in enumerate(index):
        expected[:, i] = expected[:, i] + 2 * source[:, k] if more else source[:, k]
    matches(f"{name}.default", {"self": x, "dim": 1, "index": index, "source": source, **more}, expected)


def test_slices_filled_with_a_number() -> None:
    expected = (x := rand(4, 3)).copy()
    expected[:, [2, 0]] = 5
    matches("index_fill.int_Scalar", {"self": x, "dim": 1, "index": np.array([2, 0]), "value": 5.0}, expected)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("how", ["sum", "prod", "mean", "amax", "amin"])
def test_elements_combined_at_indices(how: str, own: bool) -> None:
    x, source, index = rand(2, 4), rand(2, 3), np.array([[0, 2, 0], [1, 1, 1]])
    combine: Any = {"sum": sum, "prod": math.prod, "mean": np.mean, "amax": max, "amin": min}[how]
    expected = x.copy()
    for row in range(2):
        for column in set(index[row].tolist()):
            parts = [source[row, k] for k in range(3) if index[row, k] == column]
            expected[row, column] = combine([x[row, column], *parts] if own else parts)
    given = {"self": x, "dim": 1, "index": index, "src": source, "reduce": how, "include_self": own}
    matches("scatter_reduce.two", given, expected)


# -------------------------------------------------------------------------------------------------- formulas
A, B, C = rand(3, 4), rand(3, 4), rand(3, 4)
FORMULAS: dict[str, tuple[dict[str, Any], Any]] = {
    "addcmul": ({"self": A, "tensor1": B, "tensor2": C, "value": 0.5}, A + 0.5 * B * C),
    "addcdiv": ({"self": A, "tensor1": B, "tensor2": C * C + 1}, A + B / (C * C + 1)),
    "lerp": ({"self": A, "end": B, "weight": 0.25}, A + 0.25 * (B - A)),
    "square": ({"self": A}, A * A),
    "log_sigmoid": ({"self": A}, np.log(sigmoid(A))),
    "glu": ({"self": A, "dim": 1}, A[:, :2] * sigmoid(A[:, 2:])),
    "hardshrink": ({"self": A, "lambd": 0.4}, np.where(abs(A) > np.float32(0.4), A, 0)),
    "softshrink": ({"self": A, "lambd": 0.4}, np.sign(A) * np.maximum(abs(A) - np.float32(0.4), 0)),
    "threshold": ({"self": A, "threshold": 0.1, "value": 7.0}, np.where(np.float32(0.1) < A, A, np.float32(7))),
    "logaddexp": ({"self": A, "other": B}, np.logaddexp(A, B)),
    "isfinite": ({"self": np.array([1, np.inf, np.nan], np.float32)}, np.array([True, False, False])),
    "nan_to_num": (
        {"self": np.array([1, np.inf, -np.inf, np.nan], np.float32), "nan": 2.0, "posinf": 9.0},
        np.array([1, 9, np.finfo(np.float32).min, 2], np.float32),
    ),
    "deg2rad": ({"self": A}, np.deg2rad(A)),
    "frac": ({"self": A}, A - np.trunc(A)),
    "std": ({"self": A, "dim": [1], "correction": 1}, A.std(1, ddof=1)),
    "std_mean": ({"self": A, "dim": [1]}, [A.std(1, ddof=1), A.mean(1)]),
    "count_nonzero": ({"self": np.array([[1, 0], [2, 3]], np.float32), "dim": 1}, np.array([1, 2])),
    "cosine_similarity": ({"x1": A, "x2": B}, (A * B).sum(1) / np.linalg.norm(A, axis=1) / np.linalg.norm(B, axis=1)),
    "pairwise_distance": ({"x1": A, "x2": B}, np.linalg.norm(A - B + np.float32(1e-6), axis=1)),
    "inner": ({"self": A, "other": B}, A @ B.T),
    "vdot": ({"self": A[0], "other": B[0]}, np.array(A[0] @ B[0])),
    "numpy_T": ({"self": A}, A.T),
    "mT": ({"self": A[None]}, A.T[None]),
    "swapaxes": ({"self": A[None], "axis0": 0, "axis1": 2}, np.swapaxes(A[None], 0, 2)),
    "movedim": ({"self": A[None], "source": [0], "destination": [2]}, np.moveaxis(A[None], 0, 2)),
    "narrow": ({"self": A, "dim": 1, "start": 1, "length": 2}, A[:, 1:3]),
    "tile": ({"self": A, "dims": [2, 1, 3]}, np.tile(A, (2, 1, 3))),
    "repeat_interleave": ({"self": A, "repeats": 2, "dim": 1}, np.repeat(A, 2, 1)),
    "hstack": ({"tensors": (A[0], B[0])}, np.hstack([A[0], B[0]])),
    "vstack": ({"tensors": (A[0], B[0])}, np.vstack([A[0], B[0]])),
    "column_stack": ({"tensors": (A[0], B)}, None),
    "expand_as": ({"self": A[:1], "other": B}, np.broadcast_to(A[:1], (3, 4))),
    "view_as": ({"self": A, "other": B.reshape(4, 3)}, A.reshape(4, 3)),
    "one_hot": ({"self": AT, "num_classes": 4}, np.eye(4, dtype=np.int64)[AT]),
    "diff": ({"self": A}, np.diff(A)),
}
FORMULAS["column_stack"] = ({"tensors": (A[:, 0], B)}, np.column_stack([A[:, 0], B]))


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name: str) -> None:
    matches(f"{name}.default", *FORMULAS[name])


def test_grids() -> None:
    x, y = rand(2), rand(3)
    data = single("meshgrid.indexing", {"tensors": (x, y), "indexing": "xy"}, list(np.meshgrid(x, y)))
    outputs = evaluate(importers.load(data), {"tensors_0": x, "tensors_1": y})
    for result, expected in zip(outputs.values(), np.meshgrid(x, y), strict=True):
        np.testing.assert_array_equal(result, expected)


# -------------------------------------------------------------------------------------------------- messages
def test_the_message_names_the_decomposition() -> None:
    with pytest.raises(UnsupportedError, match=r"kron.*run_decompositions\(\)"):
        importers.load(single("kron.default", {"self": A, "other": B}, np.kron(A, B)))


def test_programs_of_torch_match() -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.unfold = torch.nn.LSTMCell(3, 4), torch.nn.Unfold(2)

        def forward(self, x: Any) -> Any:
            h, c = self.cell(x[0])
            y = torch.einsum("ij,kj->ik", h, c)
            index = torch.tensor([0, 1, 0])
            y = torch.tensordot(y, c.index_add(0, index, h), dims=1)
            return torch.take(self.unfold(x[None]), index) + y.scatter_reduce(0, index[None] % 2, h[:1], "mean").sum()

    example, file = torch.randn(2, 3, 3), io.BytesIO()
    module = Module().eval()
    torch.export.save(torch.export.export(module, (example,)), file)
    (output,) = evaluate(importers.load(file.getvalue()), {"x": example.numpy()}).values()
    np.testing.assert_allclose(output, module(example).detach().numpy(), rtol=1e-4, atol=1e-5)
