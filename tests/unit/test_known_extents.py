"""Results whose extent is known when compiling although it could depend on data; messages about shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

import tenon
from evaluate import evaluate
from tenon.errors import ModelError, ShapeError, UnsupportedError
from tenon.formats import importers
from tenon.network.graph.bind import bind
from tenon.network.graph.graph import Array

RNG = np.random.default_rng(2)
CONSTANTS = (
    "bool[5] c = {0, 1, 0, 1, 0}, bool[2] short = {1, 0}, int64[3] s = {3, 1, 1}, int64 zero = {0}, int64 one = {1}, "
    "int64[1] first = {0}, int64[1] second = {1}, int64[1] last = {4}"
)


def parsed(signature: str, body: str, opset: int = 19) -> bytes:
    text = f'<ir_version: 8, opset_import: ["" : {opset}, "other" : 1]> net {signature} {{ {body} }}'
    data: bytes = onnx.parser.parse_model(text).SerializeToString()
    return data


def reference(data: bytes, feeds: Mapping[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    results: list[Array] = ort.InferenceSession(data, options).run(None, dict(feeds))
    return results


def compiled(data: bytes, feeds: Mapping[str, Array], **options: Any) -> list[Array]:
    return list(tenon.open(tenon.compile(data, name="net", no_tuning=True, **options)).run(feeds).values())


# ------------------------------------------------------------------------------------------- known extents
@pytest.mark.parametrize(
    "body",
    [
        "t = Compress <axis: int = 1> (x, c) y = Relu(t)",
        "t = Compress (x, c) y = Relu(t)",
        "t = Compress <axis: int = -1> (x, short) y = Relu(t)",
        "n = NonZero(c) f = Squeeze(n) y = Gather <axis: int = 1> (x, f)",
        "n = NonZero(c) sh = Shape(n) k = Gather <axis: int = 0> (sh, one) r = Range(zero, k, one) "
        "y = Gather <axis: int = 1> (x, r)",
        "n = NonZero(c) f = Squeeze(n) at = Slice(f, first, second) y = Slice(x, at, last, second)",
        "u = Unique(s) y = Gather <axis: int = 1> (x, u)",
        "u = Unique(s) k = Size(u) r = Range(zero, k, one) y = Gather <axis: int = 1> (x, r)",
    ],
)
def test_extents_of_constants_are_known(body: str) -> None:
    data = parsed(f"(float[4,5,3] x) => (float[] y) <{CONSTANTS}>", body)
    feeds = {"x": RNG.uniform(-1, 1, (4, 5, 3)).astype(np.float32)}
    (y,) = evaluate(importers.load(data), feeds).values()
    np.testing.assert_array_equal(y, reference(data, feeds)[0])


def boxes(count: int) -> dict[str, Array]:
    corners = RNG.uniform(0, 1, (1, count, 4)).astype(np.float32)
    return {"b": corners, "s": RNG.uniform(0, 1, (1, 2, count)).astype(np.float32)}


@pytest.mark.parametrize(("count", "most"), [(0, 5), (4, 0), (4, None)])
def test_suppression_of_nothing_is_empty(count: int, most: int | None) -> None:
    constants = "" if most is None else f"<int64[1] m = {{{most}}}>"
    more = "" if most is None else ", m"
    data = parsed(
        f"(float[1,{count},4] b, float[1,2,{count}] s) => (int64[k,3] y, float[1,2,{count}] z) {constants}",
        f"y = NonMaxSuppression(b, s{more}) z = Neg(s)",
    )
    y, z = compiled(data, boxes(count))
    assert y.shape == (0, 3)
    np.testing.assert_array_equal(z, reference(data, boxes(count) | {"s": -z})[1])


def test_suppression_of_nothing_alone() -> None:
    data = parsed("(float[1,4,4] b, float[1,2,4] s) => (int64[k,3] y)", "y = NonMaxSuppression(b, s)")
    assert compiled(data, boxes(4))[0].shape == reference(data, boxes(4))[0].shape == (0, 3)


@pytest.mark.parametrize("body", ["y = Compress(x, c)", "n = NonZero(x) y = Cast <to: int = 1> (n)", "y = Unique(x)"])
def test_nothing_of_empty_tensors(body: str) -> None:
    size = 3 if "c)" in body else 0
    data = parsed(f"(float[{size}] x, bool[0] c) => (float[] y)", body)
    feeds = {"x": np.ones(size, np.float32), "c": np.zeros(0, np.bool_)}
    (y,) = evaluate(importers.load(data), feeds).values()
    assert y.shape == reference(data, feeds)[0].shape


# ------------------------------------------------------------------------------------------------ windows
@pytest.mark.parametrize("type", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "before", "after"),
    [(4, 5, 2, 0, 0), (4, 6, 3, 0, 0), (3, 5, 3, 1, 0), (3, 5, 3, 0, 1), (1, 3, 4, 1, 0)],
)
def test_a_window_larger_than_the_image(
    type: str, size: int, kernel: int, stride: int, before: int, after: int
) -> None:
    attributes = (
        f"kernel_shape: ints = [{kernel}, 3], strides: ints = [{stride}, 2], pads: ints = [{before}, 0, {after}, 0], "
        "ceil_mode: int = 1"
    )
    data = parsed(f"(float[1,3,{size},7] x) => (float[a,b,c,d] y)", f"y = {type} <{attributes}> (x)")
    feeds = {"x": RNG.uniform(-1, 1, (1, 3, size, 7)).astype(np.float32)}
    np.testing.assert_allclose(compiled(data, feeds)[0], reference(data, feeds)[0], rtol=1e-5, atol=1e-6)


def test_a_window_that_no_rounding_makes_fit_is_refused() -> None:
    body = "y = MaxPool <kernel_shape: ints = [6, 3], strides: ints = [2, 2], ceil_mode: int = 1> (x)"
    with pytest.raises(ShapeError, match="a window of 6 elements does not fit an axis of 4 with its padding"):
        importers.load(parsed("(float[1,3,4,7] x) => (float[a,b,c,d] y)", body))


# ----------------------------------------------------------------------------------------------- messages
@pytest.mark.parametrize("body", ["y = Attention(x, x, x)", "y = RotaryEmbedding(x, t, t, p)"])
def test_functions_of_unknown_shapes_ask_for_them(body: str) -> None:
    signature = "(float[n,2,length,4] x, float[5,2] t, int64[n,length] p) => (float[a,b,c,d] y)"
    with pytest.raises(ShapeError, match=r"needs the shapes of its inputs.*--shape x=N,2,N,4"):
        importers.load(parsed(signature, body, opset=23))


REGULATOR = parsed(
    "(int64[4] durations, float[4,3] h) => (float[l,3] y) <int64 zero = {0}, int64 one = {1}, int64[1] rows = {1}>",
    "n = ReduceSum <keepdims: int = 0> (durations) t = Range(zero, n, one) c = CumSum(durations, zero) "
    "tt = Unsqueeze(t, rows) ge = GreaterOrEqual(tt, c) gi = Cast <to: int = 7> (ge) "
    "idx = ReduceSum <keepdims: int = 0> (gi, rows) y = Gather <axis: int = 0> (h, idx)",
)


def test_the_remedy_for_a_range_of_a_computed_length_works() -> None:
    with pytest.raises(ShapeError, match=r"make 'n' an input and fix it, .*: --from n --value n=N"):
        importers.load(REGULATOR)
    feeds = {"durations": np.array([1, 2, 0, 3]), "h": RNG.uniform(-1, 1, (4, 3)).astype(np.float32)}
    (y,) = evaluate(importers.load(REGULATOR, inputs=["n"], values={"n": np.array(6)}), feeds).values()
    np.testing.assert_array_equal(y, reference(REGULATOR, feeds)[0])


def test_the_remedy_for_a_range_up_to_an_input_is_to_fix_that() -> None:
    data = parsed("(int64 n, float[4] x) => (int64[l] y, float[4] z) <int64 o = {1}>", "y = Range(o, n, o) z = Neg(x)")
    with pytest.raises(ShapeError, match=r"fix --value n=\.\.\."):
        importers.load(data)


def test_problems_of_different_kinds_are_reported_together() -> None:
    body = "n = NonZero(x) f = Squeeze(n) y = Cast <to: int = 1> (f) z = other.Bar(x) w = Relu(v)"
    data = parsed("(float[4] x, float[4,k] v) => (float[a] y, float[4] z, float[4,k] w)", body)
    with pytest.raises(UnsupportedError) as error:
        importers.load(data)
    text = str(error.value)
    assert "3 problems in this model" in text
    for part in (
        "f (Squeeze) of i64[1,4]: whether an axis has one element",
        "Bar of the domain 'other'",
        "--shape v=4,N",
    ):
        assert part in text


# ------------------------------------------------------------------------------------------ open batches
def test_an_open_batch_is_one() -> None:
    data = parsed("(float[batch,4] x) => (float[batch,4] y)", "y = Relu(x)")
    graph = importers.load(data)
    assert str(graph.inputs[0].type) == "f32[batch,4]"
    bound = bind(graph)
    assert bound.inputs[0].type.dims == (1, 4)
    assert bound.assumed == {"x": "batch"}
    bundle = tenon.compile(data, name="net", no_tuning=True)
    assert bundle.program.assumed == (("x", "batch"),)
    assert tenon.compile(data, name="net", no_tuning=True, shapes={"batch": 3}).program.assumed == ()


def test_a_batch_of_nothing() -> None:
    data = parsed("(float[n,4] past, float[2,4] x) => (float[m,4] y)", "y = Concat <axis: int = 0> (past, x)")
    for shapes in ({"n": 0}, {"past": (0, 4)}):
        graph = importers.load(data, shapes=shapes)
        assert graph.inputs[0].type.dims == (0, 4)
    x = np.ones((2, 4), np.float32)
    (y,) = compiled(data, {"past": np.zeros((0, 4), np.float32), "x": x}, shapes={"n": 0})
    np.testing.assert_array_equal(y, x)


def test_operators_that_need_shapes_get_an_open_batch_of_one() -> None:
    data = parsed("(float[batch,2,3,4] x) => (float[batch,2,3,4] y)", "y = Attention(x, x, x)", opset=23)
    graph = importers.load(data)
    assert graph.inputs[0].type.dims == (1, 2, 3, 4)
    assert graph.assumed == {"x": "batch"}


@pytest.mark.parametrize("dims", ["n,k", "4,k", "length,4", "n"])
def test_other_open_dimensions_are_asked_for(dims: str) -> None:
    data = parsed(f"(float[{dims}] x) => (float[] y)", "y = Relu(x)")
    with pytest.raises(ModelError, match="dimensions without a value"):
        tenon.compile(data, name="net", no_tuning=True)


def test_the_rest_of_a_shape_leaves_the_batch_open() -> None:
    data = parsed("(float[n,k] x) => (float[] y)", "y = Relu(x)")
    assert bind(importers.load(data, shapes={"k": 7})).inputs[0].type.dims == (1, 7)
