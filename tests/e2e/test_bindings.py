"""Bundles for several shapes of the inputs: one copy of the weights, an entry point for each shape."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tenon
from evaluate import difference, evaluate
from onnx_models import model as onnx_model
from onnx_models import node
from tenon.cli import main
from tenon.errors import InputError
from tenon.network.graph.bind import bind
from tenon.network.graph.graph import Array
from tenon.runtime.engine.engine import Engine

SHAPES = [{"x": (1, 3, 16, 16)}, {"x": (4, 3, 16, 16)}, {"x": (1, 3, 24, 20)}]
"""Two batches and two sizes of images."""


def network() -> bytes:
    """Convolutions of all kinds, and a classifier: 200 kB of weights."""
    rng = np.random.default_rng(0)

    def numbers(*shape: int) -> Array:
        weights: Array = (rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        return weights

    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
        node("Conv", ["c2", "w3"], ["c3"], pads=[1, 1, 1, 1], group=64),
        node("Conv", ["c3", "w4"], ["c4"]),
        node("Add", ["c2", "c4"], ["sum"]),
        node("GlobalAveragePool", ["sum"], ["mean"]),
        node("Flatten", ["mean"], ["flat"]),
        node("Gemm", ["flat", "w5", "b5"], ["y"], transB=1),
    ]
    weights = {
        "w1": numbers(32, 3, 3, 3),
        "b1": numbers(32),
        "w2": numbers(64, 32, 3, 3),
        "w3": numbers(64, 1, 3, 3),
        "w4": numbers(64, 64, 1, 1),
        "w5": numbers(200, 64),
        "b5": numbers(200),
    }
    return bytes(onnx_model(nodes, {"x": ("n", 3, "h", "w")}, ["y"], weights).SerializeToString())


def image(i: int) -> Array:
    shape = SHAPES[i]["x"]
    return np.random.default_rng(i).normal(size=shape).astype(np.float32)


def expected(i: int) -> Array:
    return evaluate(bind(tenon.load(network()), SHAPES[i]), {"x": image(i)})["y"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bundle = tenon.compile(network(), shapes=SHAPES, name="net", threads=2)
    return bundle.save(tmp_path_factory.mktemp("bindings") / "net", bundle.parts_with(("weights-text",)))


def test_weights_are_stored_once(folder: Path) -> None:
    alone = tenon.compile(network(), shapes=SHAPES[0], name="net", threads=2)
    assert (folder / "net.weights.bin").stat().st_size == len(alone.weights) > 200_000
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [b["entry"] for b in manifest["bindings"]] == ["net", "net_2", "net_3"]
    assert [b["inputs"][0]["shape"] for b in manifest["bindings"]] == [list(s["x"]) for s in SHAPES]
    assert manifest["memory"]["activations"] == max(b["activations"] for b in manifest["bindings"])


@pytest.mark.parametrize("threads", [1, 2])
def test_feeds_select_the_binding(folder: Path, threads: int) -> None:
    with tenon.open(folder, threads=threads) as engine:
        for i in (0, 1, 2, 1, 0):
            actual = engine.run({"x": image(i)})["y"]
            assert difference(actual, expected(i)) < 1e-5
            assert engine.inputs["x"].shape == SHAPES[i]["x"]
        with pytest.raises(InputError, match=r"no binding takes x\[2, 3, 16, 16\].*x\[1,3,16,16\]; x\[4,3,16,16\]"):
            engine.run(np.zeros((2, 3, 16, 16), np.float32))


def test_a_binding_is_selected_by_number(folder: Path) -> None:
    with Engine(folder) as engine:
        assert engine.inputs["x"].shape == SHAPES[0]["x"]
        engine.select(2)
        engine.inputs["x"][...] = image(2)
        assert difference(engine.run()["y"], expected(2)) < 1e-5
        with pytest.raises(InputError, match="no binding 3"):
            engine.select(3)


CLIENT = """
#include "net.h"
#include <stdio.h>
#include <string.h>

TENON_MEM_ALIGN(64) static uint8_t weights[NET_CONSTANT_MEM_SIZE] = {
#include "net.weights.txt"
};
TENON_MEM_ALIGN(64) static uint8_t values[NET_MUTABLE_MEM_SIZE];
TENON_MEM_ALIGN(64) static uint8_t activations[NET_ACTIVATIONS_MEM_SIZE];

_Static_assert(NET_BINDINGS == 3, "three shapes");
_Static_assert(NET_ACTIVATIONS_MEM_SIZE >= NET_2_ACTIVATIONS_MEM_SIZE, "enough for the second");
_Static_assert(NET_MUTABLE_MEM_SIZE >= NET_3_MUTABLE_MEM_SIZE, "enough for the third");

int main(void) {
  FILE *file = fopen("x", "rb");
  if (!file || fread(values + NET_2_x, 1, NET_2_x_BYTES, file) != NET_2_x_BYTES) return 2;
  net_2(weights, values, activations);
  fwrite(values + NET_2_y, 1, NET_2_y_BYTES, stdout);
  if (fread(values + NET_x, 1, NET_x_BYTES, file) != NET_x_BYTES) return 3;
  net(weights, values, activations);
  fwrite(values + NET_y, 1, NET_y_BYTES, stdout);
  return fclose(file);
}
"""


def test_c_program_calls_both_bindings(folder: Path, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    (tmp_path / "client.c").write_text(CLIENT)
    (tmp_path / "x").write_bytes(image(1).tobytes() + image(0).tobytes())
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{folder}"]
    subprocess.run([gcc, *flags, "client.c", str(folder / "net.o"), "-o", "client"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "client"], cwd=tmp_path, capture_output=True, check=True)
    actual = np.frombuffer(done.stdout, np.float32)
    assert difference(actual[:800].reshape(4, 200), expected(1)) < 1e-5
    assert difference(actual[800:].reshape(1, 200), expected(0)) < 1e-5


def test_names_of_ports_do_not_clash(tmp_path: Path) -> None:
    """An input called 2_y and the second binding's y."""
    made = bytes(onnx_model([node("Relu", ["2_y"], ["y"])], {"2_y": ("n",)}, ["y"]).SerializeToString())
    bundle = tenon.compile(made, shapes=[{"n": 3}, {"n": 5}], name="net", target="null")
    macros = [line.split()[1] for line in bundle.header.splitlines() if line.startswith("#define")]
    assert len(macros) == len(set(macros))
    assert {"NET_2_y", "NET_2_2_y", "NET_2_y_2"} <= set(macros)


# ------------------------------------------------------------------------------------------ command line
def run_main(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["tenon", *words])
    main()


def test_repeated_shapes_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(network())
    words = ("compile", str(path), "-o", str(tmp_path / "b"), "--target", "null", "--shape", "h=8")
    shapes = ("--shape", "n=1", "--shape", "w=8", "--shape", "n=2")
    with pytest.raises(SystemExit) as ended:
        run_main(monkeypatch, *words, *shapes)
    assert not ended.value.code
    bindings = json.loads((tmp_path / "b" / "manifest.json").read_text())["bindings"]
    assert [b["inputs"][0]["shape"] for b in bindings] == [[1, 3, 8, 8], [2, 3, 8, 8]]
    for more, message in (
        (("compile", str(path), "-o", str(tmp_path / "c"), *shapes, *("--shape", "h=1") * 3), "as often as there are"),
        (("inspect", str(path), *shapes, "--shape", "h=8"), "only tenon compile"),
    ):
        with pytest.raises(SystemExit) as ended:
            run_main(monkeypatch, *more)
        assert ended.value.code == 2
        assert message in capsys.readouterr().err


def test_fork_has_bindings_too(folder: Path) -> None:
    with tenon.open(folder) as engine, engine.fork() as twin:
        assert difference(twin.run(image(1))["y"], expected(1)) < 1e-5
