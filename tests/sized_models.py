"""Runs models whose extents a run decides, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx

import tenon
from tenon.errors import TenonError
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.size_range import Size
from tenon.network.passes import optimize

Sizes = Mapping[str, int]


def loaded(
    model: onnx.ModelProto, shapes: Mapping[str, Size | Sequence[int | Size]] | None = None, **options: Any
) -> Graph:
    """The graph of a model of which some dimensions have ranges."""
    return tenon.load(model.SerializeToString(), shapes=dict(shapes or {}), **options)


def buffers(graph: Graph, feeds: Mapping[str, Array], sizes: Sizes) -> dict[str, Array]:
    """The inputs of a graph: what they hold beyond the true extents is not a number, or an integer out of range."""
    given: dict[str, Array] = {}
    for value in graph.inputs:
        if value.name in graph.sizes:
            given[value.name] = np.array(sizes[value.name], np.int64)
            continue
        feed, dtype = feeds[value.name], value.type.dtype.numpy
        buffer = np.full(value.type.dims, np.nan if dtype.kind == "f" else 1 if dtype.kind == "b" else 99, dtype)
        buffer[tuple(slice(0, n) for n in feed.shape)] = feed
        given[value.name] = buffer
    return given


def cropped(graph: Graph, results: Mapping[str, Array], sizes: Sizes) -> dict[str, Array]:
    """The outputs with their true extents."""
    numbers = {**{name: np.array(n) for name, n in sizes.items()}, **results}
    cut = {}
    for name, array in results.items():
        for axis, held in graph.extents.get(name, ()):
            n = int(numbers[held])
            assert 0 <= n <= array.shape[axis], (name, axis, n)
            array = np.take(array, range(n), axis)
        cut[name] = array
    return cut


def by_references(graph: Graph, feeds: Mapping[str, Array], sizes: Sizes) -> dict[str, Array]:
    """The outputs by the references of the operators."""
    with np.errstate(all="ignore"):
        return cropped(graph, evaluate(graph, buffers(graph, feeds, sizes)), sizes)


def as_c(graph: Graph, feeds: Sequence[tuple[Mapping[str, Array], Sizes]], **options: Any) -> list[dict[str, Array]]:
    """The outputs of a compiled bundle for each of several runs.  Before each, a run of the largest sizes leaves NaNs
    in its memory: none may reach an output."""
    largest = {name: size.most for name, size in graph.sizes.items()}
    nothing = {v.name: np.zeros([0] * v.type.rank, v.type.dtype.numpy) for v in graph.inputs if v.name not in largest}
    with tenon.open(tenon.compile(graph, **options)) as engine:
        results = []
        for each, sizes in feeds:
            if not graph.states:
                with suppress(TenonError):  # a run that its values end
                    engine.run(buffers(graph, nothing, largest))
            given = buffers(graph, each, sizes)
            results.append({name: np.array(a) for name, a in engine.run(given).items()})
        return results


def by_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of ONNX Runtime, without its optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def assert_alike(actual: Mapping[str, Array], wanted: Mapping[str, Array], tolerance: float = 1e-4) -> None:
    """All of ``wanted`` are there, with the same shapes and nearly the same elements."""
    for name, array in wanted.items():
        assert actual[name].shape == array.shape, name
        assert actual[name].dtype == array.dtype, name
        if array.dtype.kind == "f":
            scale = max(1.0, float(np.abs(array[np.isfinite(array)]).max(initial=0)))
            np.testing.assert_allclose(actual[name], array, atol=tolerance * scale, rtol=0, err_msg=name)
        else:
            np.testing.assert_array_equal(actual[name], array, err_msg=name)


def check(
    model: onnx.ModelProto,
    shapes: Mapping[str, Size | Sequence[int | Size]],
    runs: Sequence[tuple[Mapping[str, Array], Sizes]],
    *,
    compiled: bool = True,
    **options: Any,
) -> Graph:
    """Compare a model with ONNX Runtime in several runs: by the references, after the passes, and as C."""
    graph = loaded(model, shapes, **options)
    optimised = graph.copy()
    optimize(optimised)
    wanted = [by_onnxruntime(model, feeds) for feeds, _ in runs]
    for (feeds, sizes), each in zip(runs, wanted, strict=True):
        assert_alike(by_references(graph, feeds, sizes), each)
        assert_alike(by_references(optimised, feeds, sizes), each)
    if compiled:
        for actual, each in zip(as_c(graph, runs), wanted, strict=True):
            assert_alike(actual, each)
    return graph
