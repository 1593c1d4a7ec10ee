"""The references of all operator cases compared with the independent ones of ONNX (``onnx.reference``)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from fuzzing.generate import endless
from tenon.errors import UnsupportedError
from tenon.formats.exporters.onnx import to_onnx
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.types import DType, TensorType
from tenon.network.ops import registry
from tenon.network.ops.base import Case, Operator
from tenon.network.ops.region import RoiAlign
from tenon.network.ops.slice_gather import Gather, Pad, Slice

EVERY_CASE = {
    "Compress": "it gives no shape to the condition",
    "LRN": "it sums over the images of a batch, and takes four axes only",
    "MaxPoolWithIndices": "not of ONNX, whose indices count in the whole tensor",
    "MaxRoiPool": "it has none",
    "NonMaxSuppression": "it wants its limits as vectors",
    "NonZero": "the file says a number of elements that depends on data",
    "Unique": "a fifth output, how many there are, is ours",
}
"""Operators that ``onnx.reference`` cannot be asked for, or answers otherwise than ONNX's text in every case."""

_OTHER_RANKS = ("1x3x2x3x4", "1x5x9", "bf16_1x3x2x3x4", "bf16_1x5x9")

KNOWN = {
    **{
        f"ReduceMean large_{kind}": "it adds in the type of the elements"
        for kind in ("int32", "uint32", "uint8", "rows_int32", "rows_uint32", "rows_uint8")
    },
    "AveragePool bf16": "it adds in bf16",
    "Cast wild_f8e8m0_1": "it rounds what is not finite otherwise than the table of Cast's text",
    "ConvTranspose depthwise": "it computes groups wrongly",
    "ConvTranspose groups": "it takes groups of one channel only",
    "DirectAveragePool nothing_but_padding": "it divides by nothing where a window is padding only",
    "DirectAveragePool padding_only_0": "it divides by nothing where a window is padding only",
    "DirectAveragePool padding_rows": "it divides by nothing where a window is padding only",
    "DirectConvTranspose groups": "it takes groups of one channel only",
    "DirectMaxPool three_axes": "it reads past the last window of three axes",
    "GatherElements columns": "it wants the indices as long as the data along the other axes",
    "GlobalAveragePool bf16_1x16x7x7": "it adds in bf16",
    "GlobalAveragePool bf16_2x19x3x5": "it adds in bf16",
    **{f"GlobalMaxPool {label}": "it takes two spatial axes only" for label in _OTHER_RANKS},
    "LogSoftmax large": "it takes the logarithm of a softmax that underflows",
    "MatMul bf16_weights": "operands of two types are ours",
    "MaxPool integers": "it pads with NaN, which is no integer",
    "MaxPool large": "it swaps the axes of windows that are not square",
    "MaxPool same_lower": "it swaps the axes of windows that are not square",
    "Mean broadcast": "it adds in place, so that only the first operand may be the largest",
    "OneHot first": "it takes a depth that is a scalar only",
    "Pad crop": "it cannot crop",
    **{f"QuantizeLinear {label}_away": "it rounds halves to even" for label in ("u8", "i16")},
    "QuantizeLinear f8": "it gives integers of f8 numbers, not their bits",
    "QuantizeLinear per_axis": "it wants the zero point as a vector",
    "ReduceLogSumExp odd": "infinity less infinity is not a number",
    "Resize linear_corners_broken": "it divides by the unrounded extent, which onnxruntime and PyTorch do not",
    **{
        f"Resize {mode}_same_extents": "it resamples where no extent changes, which onnxruntime and PyTorch do not"
        for mode in ("nearest", "linear", "cubic")
    },
    "Resize antialias_one_extent": "it resamples an axis that keeps its extent, which onnxruntime copies",
    "Slice from_before_the_first": "it slices as NumPy does: see test_slices_with_any_bounds_follow_the_standard",
    "Softsign rank0": "it takes no scalar",
}
"""Faults of ``onnx.reference``, by operator and case; where it answers at all, onnxruntime answers as we do."""


def graph_of(op: Operator, arrays: Sequence[Array | None], constant: Sequence[int]) -> tuple[Graph, dict[str, Array]]:
    """A graph of one node, and its feeds."""
    graph, feeds, values = Graph("made"), dict[str, Array](), list[Value | None]()
    for i, array in enumerate(arrays):
        if array is None:
            values.append(None)
        elif i in constant:
            values.append(graph.constant(f"c{i}", np.asarray(array)))
        else:
            feeds[f"x{i}"] = np.asarray(array)
            values.append(graph.add_input(f"x{i}", TensorType(DType.of(feeds[f"x{i}"].dtype), feeds[f"x{i}"].shape)))
    names = [f"y{i}" for i in range(len(op.infer(values)))]
    graph.outputs = list(graph.add(op, values, names, Origin("", "y0", op.name)).outputs)
    return graph, feeds


def compare(op: Operator, arrays: Sequence[Array | None], constant: Sequence[int], tolerance: float = 1e-5) -> None:
    graph, feeds = graph_of(op, arrays, constant)
    model = to_onnx(graph)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # means of empty arrays
        theirs = ReferenceEvaluator(model).run(None, feeds)
        ours = op.evaluate(arrays)
        for value, a, b in zip(graph.outputs, ours, map(np.asarray, theirs), strict=True):
            assert a.shape == value.type.dims, "the type rule and the reference differ"
            assert a.shape == b.shape
            assert a.dtype.itemsize == b.dtype.itemsize
            x, y = a.astype(np.float64), b.view(a.dtype).astype(np.float64)
            largest = np.abs(y[np.isfinite(y)]).max(initial=0)
            alike = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= tolerance * largest)
            assert alike.all(), f"{op}: {x[~alike][:4]} instead of {y[~alike][:4]}"


def labelled(name: str) -> list[tuple[str, Case]]:
    return [(f"{name} {case.label}".strip(), case) for case in registry()[name].cases()]


def fault(case: Case) -> str:
    """Empty, or how ``onnx.reference`` fails or differs for a case."""
    try:
        compare(case.op, case.arrays(), case.constant, max(case.tolerance, 1e-5))
    except UnsupportedError:
        own = not onnx.defs.has(case.op.name)  # an operator that ONNX cannot express
        return "" if own else "it cannot be written as ONNX"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("name", sorted(set(registry()) - set(EVERY_CASE)))
def test_cases(name: str) -> None:
    for label, case in labelled(name):
        if isinstance(case.op, RoiAlign) and endless(case.op, np.asarray(case.arrays()[1])):
            continue  # its time grows with the number of samples
        wrong = fault(case)
        assert bool(wrong) == (label in KNOWN), f"{label}: {wrong or 'is fine'}"


def test_known_deviations_are_still_there() -> None:
    assert set(EVERY_CASE) <= set(registry())
    assert set(KNOWN) <= {label for name in registry() for label, _ in labelled(name)}


# ------------------------------------------------------------------------------------------- random attributes
EXTREME = (-(2**31), -100, -9, -8, -7, -6, -1, 0, 1, 3, 6, 7, 8, 100, 2**31 - 1)


def slice_by_the_standard(n: int, start: int, end: int, step: int) -> list[int]:
    """The elements that a Slice of opset 13 takes of an axis of n, by the text of the standard."""
    start, end = (i + n if i < 0 else i for i in (start, end))
    if step > 0:
        return list(range(min(max(start, 0), n), min(max(end, 0), n), step))
    return list(range(min(max(start, 0), n - 1), min(max(end, -1), n - 1), step))


@pytest.mark.parametrize("n", [0, 1, 2, 7])
@pytest.mark.parametrize("step", [-8, -7, -2, -1, 1, 2, 7])
def test_slices_with_any_bounds_follow_the_standard(n: int, step: int) -> None:
    """``onnx.reference`` slices like NumPy, where a negative step with a start before the first element gives an empty
    result; by the ONNX standard, and in onnxruntime, such a start is clamped to the first element.
    """
    x = np.arange(n, dtype=np.float32)
    for start in EXTREME:
        for end in EXTREME:
            given = [np.array([k], np.int64) for k in (start, end, 0, step)]
            (output,) = Slice().evaluate([x, *given])
            assert output.tolist() == slice_by_the_standard(n, start, end, step), (start, end)
            if step > 0 or start >= -n:
                compare(Slice(), [x, *given], (1, 2, 3, 4))


def test_slices_match_onnxruntime() -> None:
    """Contrary to the standard, onnxruntime takes the end 2**31 - 1 of a slice with a negative step as "to the first
    element".
    """
    import onnxruntime as rt

    backwards = [(start, end, step) for start in EXTREME for end in EXTREME[:-1] for step in (-2, -1)]
    starts = [*backwards, *((start, end, step) for start in EXTREME for end in EXTREME for step in (1, 3))]
    x = np.arange(7, dtype=np.float32)
    graph, values = Graph("made"), list[Value]()
    value = graph.add_input("x", TensorType(DType.F32, (7,)))
    for i, (start, end, step) in enumerate(starts):
        given = [graph.constant(f"c{i}_{k}", np.array([n])) for k, n in enumerate((start, end, 0, step))]
        values += graph.add(Slice(), [value, *given], [f"y{i}"], Origin("", f"y{i}", "Slice")).outputs
    graph.outputs = values
    theirs = rt.InferenceSession(to_onnx(graph).SerializeToString()).run(None, {"x": x})
    for bounds, value, array in zip(starts, values, theirs, strict=True):
        assert list(value.type.dims) == list(array.shape), bounds
        assert array.tolist() == slice_by_the_standard(7, *bounds), bounds


def test_random_attributes_of_data_movement() -> None:
    """Slices with negative steps on several axes, gathers with decreasing and negative indices, negative pads."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        rank = int(rng.integers(1, 6))
        dims = tuple(int(n) for n in rng.integers(1, 6, rank))
        x = rng.uniform(-1, 1, dims).astype(np.float32)
        axes = rng.permutation(rank)[: rng.integers(1, rank + 1)]
        starts, ends = rng.integers(-6, 7, (2, len(axes)))
        steps = rng.choice([-3, -2, -1, 1, 2], len(axes))
        starts = np.where(steps < 0, np.maximum(starts, [-dims[a] for a in axes]), starts)
        compare(Slice(), [x, starts, ends, axes - rank * rng.integers(0, 2, len(axes)), steps], (1, 2, 3, 4))
        axis = int(rng.integers(-rank, rank))
        indices = rng.integers(-dims[axis], dims[axis], rng.integers(0, 4, rng.integers(0, 3)))
        compare(Gather(axis), [x, indices], (1,))
        pads = rng.integers(0, 4, 2 * rank)
        compare(Pad(str(rng.choice(["constant", "edge", "wrap"]))), [x, pads], (1,))
