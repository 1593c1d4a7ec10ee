"""Dimensions with ranges in --shape and in Python, and --max: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from installed import succeeds
from installed import tenon as command
from onnx_models import model, node
from tenon.cli.parse import parse_bindings, parse_limits
from tenon.errors import InputError
from tenon.network.graph.size_range import Size, read_shapes

H, W = Size("H", 64, 512, 32), Size("W", 64, 512, 32)
READ: dict[str, Any] = {
    "ids=1,L:1..256": {"ids": (1, Size("L", 1, 256))},
    "x=1,3,H:64..512:32,W:64..512:32": {"x": (1, 3, H, W)},
    "x=1,x:1..4": {"x": (1, Size("x", 1, 4))},
    "seq=1..256": {"seq": Size("seq", 1, 256)},
    "past.length=0..8": {"past.length": Size("past_length", 0, 8)},
    "x=L:1..9,": {"x": (Size("L", 1, 9),)},
    "x=1x3x224x224": {"x": (1, 3, 224, 224)},
    "batch=4": {"batch": 4},
}
REFUSED = {
    "x=1,1..4": "the range '1..4' has no name: write a name before it",
    "x=1,L:9..4": r"size L:9\.\.4: the smallest size is 0",
    "x=1,L:1..10:4": "the largest size is 9 with that step",
    "x=1,L:1..9:0": "the step is 1 or more",
    "x=1,L:1..9999999999": "the largest 2147483647",
    "x=1,L:a..b": "'L:a..b' is no dimension: write a number, or a range",
    "x=1,L:": "write NAME=DIMS",
    "x=1,-3": "write NAME=DIMS",
    "x=1,a b:1..2": "'a b' is no name of a size",
    "seq=1..": "'1..' is no dimension",
    "seq=": "write NAME=DIMS",
}


@pytest.mark.parametrize("text", READ)
def test_shapes_are_read(text: str) -> None:
    assert parse_bindings([text]) == (READ[text],)


@pytest.mark.parametrize("text", REFUSED)
def test_shapes_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=REFUSED[text]) as error:
        parse_bindings([text])
    assert str(error.value).startswith(f"--shape {text}: ")


def test_bindings_may_have_ranges() -> None:
    assert parse_bindings(["x=1,L:1..4", "x=1,8"]) == ({"x": (1, Size("L", 1, 4))}, {"x": (1, 8)})


def test_shapes_in_python() -> None:
    for given in ((1, Size("L", 1, 256)), (1, "L:1..256"), "1,L:1..256", [1, "L:1..256:1"]):
        assert list(read_shapes({"ids": given})["ids"]) == [1, Size("L", 1, 256)]  # type: ignore[arg-type, dict-item]
    assert read_shapes({"seq": "1..256", "n": 3}) == {"seq": Size("seq", 1, 256), "n": 3}
    with pytest.raises(InputError, match="--shape ids: the range"):
        read_shapes({"ids": (1, "1..256")})


def test_limits() -> None:
    assert parse_limits(["durations=400", "a=b=3"]) == {"durations": 400, "a=b": 3}
    for wrong in ("durations", "durations=", "durations=-1", "durations=x"):
        with pytest.raises(InputError, match="write NAME=N"):
            parse_limits([wrong])
    with pytest.raises(InputError, match="each name once"):
        parse_limits(["n=1", "n=2"])


NETWORK = model([node("Relu", ["x"], ["y"]), node("Neg", ["z"], ["w"])], {"x": (1, "n"), "z": ("n",)}, ["y", "w"])


def test_compiling() -> None:
    """A dimension of the model may be bound by its own name, or an input have a shape with ranges, at once or later."""
    content = NETWORK.SerializeToString()
    for source in (content, tenon.load(content)):
        for shapes in ({"n": Size("n", 1, 8, 7)}, {"n": "1..8:7"}, {"x": "1,n:1..8:7"}):
            program = tenon.compile(source, shapes=shapes, target="x86-64").program
            assert [check.name for check in program.checks] == ["n"]
            assert [(port.name, port.extents) for port in program.inputs] == [
                ("x", ((1, "n"),)),
                ("z", ((0, "n"),)),
                ("n", ()),
            ]
            assert [port.extents for port in program.outputs] == [((1, "n"),), ((0, "n"),)]


def test_limits_without_effect_are_refused() -> None:
    with pytest.raises(InputError, match=r"--max nothing=4: no size of .* depends on a value of that name"):
        tenon.compile(NETWORK.SerializeToString(), shapes={"n": 4}, max={"nothing": 4})
    with pytest.raises(InputError, match="--max n=-1: give a whole number"):
        tenon.load(NETWORK.SerializeToString(), max={"n": -1})
    with pytest.raises(InputError, match=r"give max to tenon\.load"):
        tenon.compile(tenon.load(NETWORK.SerializeToString(), shapes={"n": 4}), max={"n": 4})


def test_bindings_have_the_same_sizes() -> None:
    """Other numbers of inputs would be other networks for programs."""
    for others in ({"n": 4}, {"x": (1, "m:1..4"), "z": "m:1..4"}):
        with pytest.raises(InputError, match="is a size that runs choose in some bindings only"):
            tenon.compile(NETWORK.SerializeToString(), shapes=[{"n": "1..8"}, others])


def test_prior_boxes_are_for_one_size() -> None:
    with pytest.raises(InputError, match="its prior boxes are those of one size, and runs choose n"):
        tenon.compile(NETWORK.SerializeToString(), shapes={"n": "1..8"}, head={"kind": "ssd", "strides": (8,)})


def test_command_line(tmp_path: Path) -> None:
    """A model with ranges is compiled once, and run with arrays of any size in them."""
    (tmp_path / "net.onnx").write_bytes(NETWORK.SerializeToString())
    succeeds("compile", "net.onnx", "--shape", "n=1..8", "-o", "out", "--no-tuning", cwd=tmp_path)
    assert "x  f32[1,n:1..8]" in succeeds("inspect", "out", cwd=tmp_path)
    assert "x  f32[1,n:1..8]" in succeeds("inspect", "net.onnx", "--shape", "n=1..8", cwd=tmp_path)
    n = 8
    x, z = np.linspace(-1, 1, n, dtype=np.float32)[None], np.full(n, n, np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "z.npy", z)
    succeeds("run", "out", "--input", "x=x.npy", "--input", "z=z.npy", "--output", "y.npz", cwd=tmp_path)
    results = np.load(tmp_path / "y.npz")
    np.testing.assert_array_equal(results["y"], np.maximum(x, 0))
    np.testing.assert_array_equal(results["w"], -z)
    np.save(tmp_path / "z.npy", np.zeros(3, np.float32))
    done = command("run", "out", "--input", "x=x.npy", "--input", "z=z.npy", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "tenon: size 'n' is 8 in 'x' and 3 in 'z': it is the same in all inputs\n"
    done = command("run", "out", "--input", "x.npy", cwd=tmp_path)
    assert done.returncode == 2
    assert "the model has 2 inputs: write NAME=FILE with one of x f32[1,n:1..8], z f32[n:1..8]" in done.stderr
