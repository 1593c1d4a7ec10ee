"""Small programs of Paddle 3 (PIR)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from evaluate import evaluate
from small_models import paddle, paddle_operator, paddle_tensor, pir, pir_operator, pir_tensor
from tenon.errors import FormatError, UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array
from tenon.network.ops.scan import Scan

RNG = np.random.default_rng(6)
X = RNG.uniform(-1, 1, (1, 4, 6, 5)).astype(np.float32)
W, B = RNG.uniform(-1, 1, (3, 4, 1, 1)).astype(np.float32), RNG.uniform(-1, 1, 3).astype(np.float32)
STORED = paddle_tensor(B) + paddle_tensor(W)
Described = dict[str, object]


def numbers(value: int, *values: int) -> Described:
    return pir_operator("1.full_int_array", (), (value,), value=list(values), dtype="int64")


def number(value: int, wanted: float) -> Described:
    made = pir_operator("1.full", (), (value,), value=wanted)
    attributes = made["A"]
    assert isinstance(attributes, list)
    attributes += [
        {"N": "shape", "AT": {"#": "1.a_intarray", "D": [1]}},
        {"N": "dtype", "AT": {"#": "1.a_dtype", "D": "float32"}},
    ]
    return made


def run(*operators: Described, results: tuple[int, ...] = (9,)) -> dict[str, Array]:
    return evaluate(importers.load(pir(*operators, results=results), weights=STORED), {"x": X})


CONV = [
    pir_operator(
        "1.conv2d",
        (1, 2),
        (4,),
        strides=[1, 1],
        paddings=[0, 0],
        dilations=[1, 1],
        groups=1,
        padding_algorithm="EXPLICIT",
        data_format="NCHW",
    ),
    numbers(5, 1, -1, 1, 1),
    pir_operator("1.reshape", (3, 5), (6,)),
    pir_operator("1.add", (4, 6), (7,)),
]
CONVOLVED = np.einsum("oc,nchw->nohw", W[:, :, 0, 0], X) + B.reshape(3, 1, 1)


def test_layers_with_parameters() -> None:
    outputs = run(*CONV, pir_operator("1.relu_", (7,), (9,)), results=(9, 7))
    assert list(outputs) == ["y0", "y1"]
    np.testing.assert_allclose(outputs["y0"], np.maximum(CONVOLVED, 0), atol=1e-6)
    np.testing.assert_allclose(outputs["y1"], CONVOLVED, atol=1e-6)


def test_several_tensors_in_one_value() -> None:
    halves = pir_operator("1.split_with_num", (1, 4), (5,), num=2)
    halves["O"] = [{"%": 5, "TT": {"#": "0.t_vec", "D": [pir_tensor((1, 2, 6, 5))] * 2}}]
    (output,) = run(
        numbers(4, 1),
        halves,
        pir_operator("0.split", (5,), (6, 7)),
        pir_operator("0.slice", (5,), (10,), index=1),
        pir_operator("0.combine", (7, 6, 10), (8,)),
        pir_operator("1.concat", (8, 4), (9,)),
    ).values()
    np.testing.assert_array_equal(output, X[:, [2, 3, 0, 1, 2, 3]])


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        ([numbers(4, 2, 3), pir_operator("1.mean", (1, 4), (9,), keepdim=True)], X.mean((2, 3), keepdims=True)),
        ([numbers(4), pir_operator("1.sum", (1, 4), (9,), keepdim=False)], X.sum()),
        ([pir_operator("1.amax", (1,), (9,), axis=[1], keepdim=False)], X.max(1)),
        ([number(4, -0.25), number(5, 0.5), pir_operator("1.clip", (1, 4, 5), (9,))], X.clip(-0.25, 0.5)),
        ([number(4, 3.0), pir_operator("1.scale", (1, 4), (9,), bias=0.5, bias_after_scale=True)], 3 * X + 0.5),
        ([pir_operator("1.transpose", (1,), (9,), perm=[0, 2, 3, 1])], X.transpose(0, 2, 3, 1)),
        (
            [numbers(4, 1), numbers(5, -1), pir_operator("1.slice", (1, 4, 5), (9,), axes=[2], decrease_axis=[])],
            X[:, :, 1:-1],
        ),
        (
            [pir_operator("1.nearest_interp", (1, 0, 0, 0), (9,), scale=[2.0, 2.0], align_corners=False)],
            X.repeat(2, 2).repeat(2, 3),
        ),
        ([pir_operator("1.tril", (1,), (9,), diagonal=1)], np.tril(X, 1)),
        (
            [pir_operator("1.shape64", (1,), (4,)), pir_operator("1.full_with_tensor", (5, 4), (9,), dtype="float32")],
            None,
        ),
    ],
    ids=["mean", "sum", "amax", "clip", "scale", "transpose", "slice", "interpolate", "triangle", "full"],
)
def test_operators(operators: list[Described], expected: Array | None) -> None:
    if expected is None:
        operators, expected = [number(5, 2.5), *operators], np.full(X.shape, 2.5)
    (output,) = run(*operators).values()
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-5)


def test_infinite_attributes() -> None:
    norm = pir_operator("1.p_norm", (1,), (9,), axis=1, keepdim=False)
    attributes = norm["A"]
    assert isinstance(attributes, list)
    attributes.append({"N": "porder", "AT": {"#": "0.a_f32", "VD": "INF"}})
    (output,) = run(norm).values()
    np.testing.assert_array_equal(output, np.abs(X).max(1))


def test_repeated_outputs_and_unchanged_inputs() -> None:
    outputs = run(pir_operator("1.relu", (1,), (9,)), results=(9, 1, 9))
    assert len(outputs) == 3
    for ours, expected in zip(outputs.values(), (np.maximum(X, 0), X, np.maximum(X, 0)), strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_parameters_not_in_the_file() -> None:
    """Some parameters are created in every run; the file has no data for them."""
    program = json.loads(pir(*CONV, results=(7,)))
    state = {"#": "p", "A": [0, 1, 1, "a_state"], "DA": [], "O": {"%": 50, "TT": pir_tensor(())}, "OA": [0, 1, 0]}
    program["program"]["regions"][0]["blocks"][0]["ops"].insert(0, state)
    (output,) = evaluate(importers.load(json.dumps(program, indent=2).encode(), weights=STORED), {"x": X}).values()
    np.testing.assert_allclose(output, CONVOLVED, atol=1e-6)


@pytest.mark.parametrize("given", ["inference.json", "inference.pdiparams", ""])
def test_files(tmp_path: Path, given: str) -> None:
    (tmp_path / "inference.json").write_bytes(pir(*CONV, results=(7,)))
    (tmp_path / "inference.pdiparams").write_bytes(STORED)
    (output,) = evaluate(importers.load(tmp_path / given), {"x": X}).values()
    np.testing.assert_allclose(output, CONVOLVED, atol=1e-6)


@pytest.mark.parametrize("suffix", ["json", "pdmodel"])
def test_programs_without_parameters_need_none(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"plain.{suffix}"
    for name in ("one", "other"):
        (tmp_path / f"{name}.pdiparams").write_bytes(STORED)
    new = pir(pir_operator("1.relu", (1,), (9,)), parameters={})
    path.write_bytes(
        new if suffix == "json" else paddle(paddle_operator("relu", {"X": "x"}, {"Out": "y"}), parameters={})
    )
    (output,) = evaluate(importers.load(path), {"x": X}).values()
    np.testing.assert_array_equal(output, np.maximum(X, 0))


def region(*operators: Described, given: tuple[int, ...], arguments: tuple[int, ...] = ()) -> Described:
    """A block: its operators, what it gives, and its arguments, which have negative numbers."""
    entries = [{"#": value, "%": value, "TT": pir_tensor((1,))} for value in arguments]
    ops = [*operators, pir_operator("2.yield", given, ())]
    return {"#": "region_1", "blocks": [{"#": "block_1", "args": entries, "ops": ops}]}


def with_regions(type: str, inputs: tuple[int, ...], outputs: tuple[int, ...], *regions: Described) -> Described:
    return {**pir_operator(type, inputs, outputs), "regions": list(regions)}


@pytest.mark.parametrize("known", [False, True])
def test_branches(known: bool) -> None:
    """x + x where its largest element is above 0, else exp(x), twice."""
    largest = pir_operator("1.max", (1,), (4,), axis=[], keepdim=False)
    branches = (
        region(pir_operator("1.add", (1, 1), (7,)), given=(7, 7)),
        region(pir_operator("1.exp", (1,), (8,)), given=(8, 8)),
    )
    chosen = with_regions("1.if", (6,), (9, 10), *branches)
    operators = [number(4, 3.0) if known else largest, number(5, 0.0), pir_operator("1.greater_than", (4, 5), (6,))]
    graph = importers.load(pir(*operators, chosen, results=(9, 10)), weights=STORED)
    assert [node.op.name for node in graph if node.bodies] == ([] if known else ["If"])
    for x in (X, -np.abs(X)):
        results = evaluate(graph, {"x": x})
        for name in ("y0", "y1"):
            right = x + x if known or x.max() > 0 else np.exp(x)
            np.testing.assert_allclose(results[name], right, rtol=1e-6)


@pytest.mark.parametrize("steps", [2, 7, None])
def test_loops(steps: int | None) -> None:
    """x divided by 2 as often as a constant says, or as its largest element, in whole numbers."""
    counter = pir_operator("1.full_int_array", (), (4,), value=[0], dtype="int64")
    limit = numbers(5, 0 if steps is None else steps)
    computed = [
        pir_operator("1.max", (1,), (14,), axis=[], keepdim=False),
        pir_operator("1.cast", (14,), (15,), dtype="int64"),
        pir_operator("1.add", (5, 15), (16,)),
    ]
    count = 5 if steps is not None else 16
    body = region(
        numbers(20, 1),
        pir_operator("1.add", (-1, 20), (21,)),
        number(22, 0.5),
        pir_operator("1.multiply", (-2, 22), (23,)),
        pir_operator("1.less_than", (21, count), (24,)),
        given=(24, 21, 23),
        arguments=(-1, -2),
    )
    before = [counter, limit, *(computed if steps is None else [])]
    first = pir_operator("1.less_than", (4, count), (6,))
    loop = with_regions("1.while", (6, 4, 1), (8, 9), body)
    graph = importers.load(pir(*before, first, loop), weights=STORED)
    counted = [node.op.counted for node in graph if isinstance(node.op, Scan)]
    assert counted == ([] if steps == 2 else [steps is None])
    for largest in (0.0, 3.5):
        x = np.minimum(X, largest)
        x.flat[0] = largest
        (output,) = evaluate(graph, {"x": x}).values()
        np.testing.assert_allclose(output, x / 2 ** (int(largest) if steps is None else steps), rtol=1e-6)


def test_unsupported_forms_are_rejected() -> None:
    with pytest.raises(UnsupportedError, match="its axis is computed at run time"):
        run(pir_operator("1.cumsum", (1, 1), (9,)))
    with pytest.raises(UnsupportedError, match=r"\(pd_op.if\): .*its condition has 120 elements, not one"):
        run(pir_operator("1.if", (1,), (9,)))
    with pytest.raises(UnsupportedError, match=r"\(pd_op.while\): .*its condition has 120 elements, not one"):
        run(pir_operator("1.while", (1,), (9,)))
    whole = pir(*CONV, results=(7,))
    for damaged in (whole[:-1], whole.replace(b'"blocks"', b'"blocs"'), whole.replace(b'"%": 1}', b'"%": 77}')):
        with pytest.raises(FormatError, match="the file is damaged"):
            importers.load(damaged, weights=STORED)
    with pytest.raises(FormatError, match="bytes belong to no parameter"):
        importers.load(whole, weights=STORED + STORED)
