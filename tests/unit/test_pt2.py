"""torch.export archives, imported without torch and compared with NumPy."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from evaluate import difference, evaluate
from pt2_models import call, described, pt2
from tenon.errors import FormatError, ModelError, UnsupportedError
from tenon.formats import importers
from tenon.network.graph.graph import Array

pytestmark = pytest.mark.quick(importer="pytorch")

RNG = np.random.default_rng(5)


def run(data: bytes, **inputs: Array) -> list[Array]:
    return list(evaluate(importers.load(data), inputs).values())


def rand(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def net() -> bytes:
    """A 1x1 convolution, in-place ReLU, pooling and a linear layer."""
    calls = [
        call("aten.conv2d.default", "c", input="x", weight="w", bias="b"),
        call("aten.relu_.default", "r", self="c"),
        call("aten.adaptive_avg_pool2d.default", "p", self="r", output_size=[1, 1]),
        call("aten.flatten.using_ints", "f", self="p", start_dim=1),
        call("aten.linear.default", "y", input="f", weight="m"),
    ]
    shapes = {"x": (1, 3, 4, 5), "c": (1, 6, 4, 5), "r": (1, 6, 4, 5), "p": (1, 6, 1, 1), "f": (1, 6), "y": (1, 2)}
    weights = {"w": W.reshape(6, 3, 1, 1), "b": B, "m": M}
    return pt2(calls, shapes, ["x"], ["y"], weights)


W, B, M = rand(6, 3), rand(6), rand(2, 6)


def test_a_small_net() -> None:
    x = rand(1, 3, 4, 5)
    hidden = np.maximum(np.einsum("oc,nchw->nohw", W, x) + B[:, None, None], 0)
    (output,) = run(net(), x=x)
    assert difference(output, hidden.mean((2, 3)) @ M.T) < 1e-5


def test_weights_with_strides() -> None:
    stored = rand(4, 3)
    calls = [call("aten.linear.default", "y", input="x", weight="w")]
    data = pt2(calls, {"x": (2, 4), "y": (2, 3)}, ["x"], ["y"], {"w": stored.T}, strides={"w": (1, 3)})
    # the data is stored row by row, so transposed strides read it as the transposed matrix
    seen = np.lib.stride_tricks.as_strided(np.ascontiguousarray(stored.T), (3, 4), (4, 12))
    x = rand(2, 4)
    assert difference(run(data, x=x)[0], x @ seen.T) < 1e-5


def test_strides_beyond_the_storage() -> None:
    calls = [call("aten.linear.default", "y", input="x", weight="w")]
    data = pt2(calls, {"x": (2, 4), "y": (2, 3)}, ["x"], ["y"], {"w": rand(3, 4)}, strides={"w": (4, 5)})
    with pytest.raises(ModelError, match="does not fit the 48 bytes"):
        importers.load(data)


def test_several_results_and_lists() -> None:
    calls = [
        call("aten.split.Tensor", ("a", "b"), self="x", split_size=2, dim=1),
        call("aten.cat.default", "y", tensors=("b", "a"), dim=1),
    ]
    x = rand(2, 4)
    data = pt2(calls, {"x": (2, 4), "a": (2, 2), "b": (2, 2), "y": (2, 4)}, ["x"], ["y"])
    assert np.array_equal(run(data, x=x)[0], x[:, [2, 3, 0, 1]])


def program_with_writes(*calls: dict[str, Any], output: str = "y") -> bytes:
    """A clone of x, then these calls; all tensors have one shape, except slices of rows and columns."""
    first = call("aten.clone.default", "z", self="x")
    shapes = {
        "x": (3, 4),
        "z": (3, 4),
        "row": (4,),
        "part": (3, 2),
        "flat": (12,),
        "y": (3, 4),
        "swapped": (4, 3),
        "low": (2,),
        "new": (3, 2),
    }
    shapes |= {f"{name}_": shapes[name] for name in ("row", "part", "flat", "low", "swapped")}
    return pt2([first, *calls], shapes, ["x"], [output])


def test_writes_through_views() -> None:
    """z[1, 2:] = 7; z.view(12) += 1."""
    data = program_with_writes(
        call("aten.select.int", "row", self="z", dim=0, index=1),
        call("aten.slice.Tensor", "low", self="row", dim=0, start=2, end=9223372036854775807),
        call("aten.fill_.Scalar", "low_", self="low", value=7.0),
        call("aten.view.default", "flat", self="z", size=[12]),
        call("aten.add_.Scalar", "flat_", self="flat", other=1.0),
        call("aten.mul.Scalar", "y", self="z", other=2.0),
    )
    x = rand(3, 4)
    expected = x.copy()
    expected[1, 2:] = 7
    assert difference(run(data, x=x)[0], (expected + 1) * 2) < 1e-6


def test_unsupported_writes_are_rejected() -> None:
    turned = program_with_writes(
        call("aten.t.default", "swapped", self="z"),
        call("aten.add_.Scalar", "swapped_", self="swapped", other=1.0),
        call("aten.mul.Scalar", "y", self="swapped_", other=2.0),
    )
    with pytest.raises(UnsupportedError, match=r"writes through 't' into 'z'.*run_decompositions"):
        importers.load(turned)


def test_reads_of_outdated_views_are_rejected() -> None:
    data = program_with_writes(
        call("aten.slice.Tensor", "part", self="z", dim=1, start=0, end=2),
        call("aten.add_.Scalar", "y", self="z", other=1.0),
        call("aten.mul.Scalar", "new", self="part", other=2.0),
        output="new",
    )
    with pytest.raises(UnsupportedError, match="reads 'part', a part of a tensor that was written to since"):
        importers.load(data)


@pytest.mark.parametrize("functional", [True, False])
def test_buffers_that_a_run_changes_are_states(functional: bool) -> None:
    """A sum of all inputs, by a write to the buffer and by a result that it holds; it begins at 1, 2, 3."""
    adding = call(f"aten.add{'' if functional else '_'}.Tensor", "after", self="total", other="x")
    shapes, total = {"x": (3,), "after": (3,), "y": (3,)}, np.array([1, 2, 3], np.float32)
    calls = [adding, call("aten.mul.Scalar", "y", self="after", other=2.0)]
    kept = {"total": "after"} if functional else None
    data = pt2(calls, shapes, ["x"], ["y"], {"total": total}, kept=kept)
    with tenon.open(tenon.compile(data, no_tuning=True)) as engine:
        for _ in range(2):
            x, expected = rand(3), total
            for _ in range(3):
                expected = expected + x
                np.testing.assert_allclose(engine.run({"x": x})["output"], 2 * expected, rtol=1e-5)
            engine.reset()


def _rezipped(data: bytes, old: bytes, new: bytes) -> bytes:
    """The archive with changed text in its description."""
    source, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name in source.namelist():
            archive.writestr(name, source.read(name).replace(old, new))
    return out.getvalue()


def test_the_body_of_no_grad() -> None:
    body = {
        "inputs": [{"as_tensor": {"name": "inner"}}],
        "outputs": [{"as_tensor": {"name": "twice"}}],
        "nodes": [call("aten.mul.Scalar", "twice", self="inner", other=2.0)],
        "tensor_values": {"inner": described((3, 4)), "twice": described((3, 4))},
    }
    wrapped = call(
        "higher_order.wrap_with_set_grad_enabled",
        "g",
        enabled=False,
        body={"as_graph": {"name": "b", "graph": body}},
        x="x",
    )
    data = pt2([wrapped, call("aten.neg.default", "y", self="g")], dict.fromkeys("xgy", (3, 4)), ["x"], ["y"])
    x = rand(3, 4)
    assert np.array_equal(run(data, x=x)[0], -2 * x)


def test_unknown_operators_are_all_listed() -> None:
    calls = [call("aten.histc.default", "a", self="x"), call("own.thing.default", "y", x="a")]
    with pytest.raises(UnsupportedError) as error:
        importers.load(pt2(calls, dict.fromkeys("xay", (4,)), ["x"], ["y"]))
    assert [p.where.split("(")[-1].strip(")") for p in error.value.problems] == ["histc", "own.thing"]


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "net.pth").write_bytes(pickle.dumps({"w": 1}))
    with pytest.raises(FormatError, match=r"pickles, which are never opened.*torch.export.save"):
        importers.load(tmp_path / "net.pth")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("net/data.pkl", pickle.dumps([1]))
    (tmp_path / "net.pt").write_bytes(out.getvalue())
    with pytest.raises(FormatError, match="pickles, which are never opened"):
        importers.load(tmp_path / "net.pt")
    with pytest.raises(UnsupportedError, match=r"net\.w' is kept as a pickle"):
        importers.load(_rezipped(net(), b'"use_pickle": false', b'"use_pickle": true'))
