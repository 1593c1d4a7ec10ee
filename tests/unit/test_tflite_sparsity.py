"""Sparse constants of TFLite files: every form is expanded to the dense tensor; broken forms are refused."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tflite_models import Fields, Model

KINDS = {1: np.int32, 2: np.uint16, 3: np.uint8}


def sparse(
    dense: Array, order: Sequence[int], compressed: Sequence[int], blocks: dict[int, int], kind: int
) -> tuple[Array, Fields]:
    """The stored elements and the form: levels in ``order``, those in ``compressed`` by segments and indices.

    ``blocks`` are sizes of blocks by axis, whose own axes follow those of the tensor.
    """
    rank = dense.ndim
    extents = [n // blocks.get(i, 1) for i, n in enumerate(dense.shape)] + list(blocks.values())

    def element(place: dict[int, int]) -> Any:
        within = {axis: place.get(rank + k, 0) for k, axis in enumerate(blocks)}
        return dense[tuple(place[i] * blocks.get(i, 1) + within.get(i, 0) for i in range(rank))]

    def used(place: dict[int, int]) -> bool:
        """Whether any element below this entry is not zero."""
        rest = [range(n) if i not in place else [place[i]] for i, n in enumerate(extents)]
        return any(element(dict(enumerate(full))) for full in itertools.product(*rest))

    entries: list[dict[int, int]] = [{}]
    levels: list[Fields] = []
    for axis in order:
        if axis in compressed:
            children = [[i for i in range(extents[axis]) if used({**e, axis: i})] for e in entries]
            segments = np.cumsum([0, *map(len, children)]).astype(KINDS[kind])
            indices = np.array([i for child in children for i in child], KINDS[kind])
            levels.append({0: ("i8", 1), 2: ("u8", kind), 3: {0: segments}, 4: ("u8", kind), 5: {0: indices}})
        else:
            children = [list(range(extents[axis]))] * len(entries)
            levels.append({0: ("i8", 0), 1: ("i32", extents[axis])})
        entries = [{**e, axis: i} for e, child in zip(entries, children, strict=True) for i in child]
    form = {0: np.array(order, np.int32), 1: np.array(list(blocks), np.int32), 2: levels}
    return np.array([element(e) for e in entries], dense.dtype), form


def network(stored: Array, form: Fields, shape: Sequence[int], *, densify: bool = True) -> bytes:
    """``x`` times a sparse matrix of weights."""
    model = Model()
    x = model.tensor("x", (2, shape[1]))
    w = model.tensor("sparse", shape, "f32", stored, sparsity=form)
    if densify:
        dense = model.tensor("dense", shape)
        model.add("DENSIFY", [w], [dense])
        w = dense
    y = model.tensor("y", (2, shape[0]))
    model.add("FULLY_CONNECTED", [x, w, -1], [y], keep_num_dims=True)
    return model.bytes([x], [y])


RNG = np.random.default_rng(0)
W = np.where(RNG.uniform(size=(4, 6)) < 0.4, RNG.integers(1, 9, (4, 6)), 0).astype(np.float32)
W[2] = 0
FORMS: dict[str, tuple[Sequence[int], Sequence[int], dict[int, int], int]] = {
    "rows": ([0, 1], [1], {}, 1),
    "columns": ([1, 0], [0], {}, 3),
    "both": ([0, 1], [0, 1], {}, 2),
    "dense": ([0, 1], [], {}, 1),
    "blocks of columns": ([0, 1, 2], [1], {1: 2}, 3),
    "blocks": ([0, 1, 2, 3], [1], {0: 2, 1: 3}, 1),
    "blocks first": ([2, 0, 1], [1], {0: 2}, 1),
}


@pytest.mark.parametrize("densify", [True, False])
@pytest.mark.parametrize("name", FORMS)
def test_forms_are_expanded(name: str, densify: bool) -> None:
    stored, form = sparse(W, *FORMS[name])
    x = RNG.integers(-4, 5, (2, 6)).astype(np.float32)
    (y,) = evaluate(importers.load(network(stored, form, W.shape, densify=densify)), {"x": x}).values()
    np.testing.assert_array_equal(y, x @ W.T)


def test_a_matrix_without_elements_is_one_of_zeros() -> None:
    stored, form = sparse(0 * W, [0, 1], [1], {}, 1)
    (y,) = evaluate(importers.load(network(stored, form, W.shape)), {"x": np.ones((2, 6), np.float32)}).values()
    np.testing.assert_array_equal(y, np.zeros((2, 4)))


def broken(**changes: Any) -> bytes:
    """Rows whose level of columns has other segments or indices."""
    stored, form = sparse(W, [0, 1], [1], {}, 1)
    level = dict(form[2][1])
    for name, values in changes.items():
        level[{"segments": 3, "indices": 5}[name]] = {0: np.array(values, np.int32)}
    return network(stored, {**form, 2: [form[2][0], level]}, W.shape)


@pytest.mark.parametrize("changes", [{"segments": [0, 1]}, {"segments": [0, 3, 2, 2, 99]}, {"indices": [77] * 9}])
def test_broken_forms_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"'sparse': its sparse form is invalid: the segments and indices of"):
        importers.load(broken(**changes))


def test_a_tensor_much_larger_than_its_form_is_refused() -> None:
    form = {0: np.array([0, 1], np.int32), 2: [{1: ("i32", 40000)}, {1: ("i32", 40000)}]}
    with pytest.raises(UnsupportedError, match="its sparse form of 4 bytes is too small"):
        importers.load(network(np.ones(1, np.float32), form, (40000, 40000)))


@pytest.mark.parametrize("name", [name for name in FORMS if name != "blocks first"])  # which LiteRT aborts on
def test_results_match_litert(name: str) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", reason="LiteRT is not installed")
    stored, form = sparse(W, *FORMS[name])
    net = interpreter.Interpreter(model_content=network(stored, form, W.shape))
    net.allocate_tensors()
    x = RNG.integers(-4, 5, (2, 6)).astype(np.float32)
    net.set_tensor(net.get_input_details()[0]["index"], x)
    net.invoke()
    np.testing.assert_array_equal(net.get_tensor(net.get_output_details()[0]["index"]), x @ W.T)
