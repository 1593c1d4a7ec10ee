"""Every target is compiled, by the zig that is installed and by the oldest that pyproject.toml allows.

The oldest is not installed for it: TENON_OLDEST_ZIG names a folder with its package, the site-packages of a virtual
environment in which ``pip install "ziglang==0.15.*"`` was run.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
from onnx import helper, numpy_helper

import tenon
from on_targets import COMPILED, ONE_OF_EACH_MACHINE, OTHER_SYSTEMS
from onnx_models import node, random
from tenon.machine.toolchain.compiler import zig
from tenon.options import Emit
from tenon.runtime.bundle import Bundle
from tenon.runtime.bundle.names import library_name

OLDEST = os.environ.get("TENON_OLDEST_ZIG", "")


def network() -> bytes:
    """Copies, memory set to 0 (borders of convolutions), and arithmetic that processors lack, of i64 and f64."""
    kinds = {"x": (1, (4, 96)), "n": (7, (5,)), "d": (11, (6,)), "image": (1, (1, 8, 30, 30))}
    inputs = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in kinds.items()]
    nodes = [
        node("Concat", ["x", "x"], ["copy"], axis=0),
        node("Softmax", ["x"], ["s"]),
        node("MatMul", ["s", "w"], ["product"]),
        node("Conv", ["image", "f"], ["conv"], pads=[1, 1, 1, 1]),
        node("Div", ["n", "n"], ["quotient"]),
        node("Mod", ["x", "s"], ["remainder"], fmod=1),
        node("Exp", ["d"], ["e"]),
        node("Pow", ["d", "e"], ["power"]),
    ]
    outputs = {"copy": 1, "conv": 1, "product": 1, "quotient": 7, "remainder": 1, "power": 11}
    shapes = {"w": (96, 3), "f": (16, 8, 3, 3)}
    weights = [numpy_helper.from_array(random(*shape), name) for name, shape in shapes.items()]
    ports = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    graph = helper.make_graph(nodes, "net", inputs, ports, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=8)
    data: bytes = model.SerializeToString()
    return data


def saved(target: str, cache: Path, folder: Path) -> Bundle:
    """The network with all usual parts and the static library, compiled and written."""
    bundle = tenon.compile(network(), name="net", target=target, cache=cache, no_tuning=True)
    parts: tuple[Emit, ...] = (*bundle.parts, "archive")
    bundle.save(folder, emit=parts)
    return bundle


def check(bundle: Bundle, folder: Path) -> None:
    files = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert {"net.c", "net.h", "net.o", "net.weights.bin", "manifest.json"} <= files.keys()
    library = library_name("net", bundle.target)
    if library:
        assert files[library] > 1000


def some(names: list[str], few: list[str]) -> list[object]:
    """For ``pytest.mark.parametrize``: those that are not among a few only with ``-m slow``."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("target", some(COMPILED, [*ONE_OF_EACH_MACHINE[:3], *OTHER_SYSTEMS]))
def test_targets_are_compiled(target: str, tmp_path: Path) -> None:
    check(saved(target, tmp_path / "cache", tmp_path / "out"), tmp_path / "out")


@pytest.fixture
def oldest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The version of the oldest zig, which is found first; skips the test without it."""
    if not OLDEST:
        pytest.skip("TENON_OLDEST_ZIG does not name the folder with the oldest package ziglang")
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    monkeypatch.syspath_prepend(OLDEST)
    importlib.invalidate_caches()
    return zig(tmp_path).version.removeprefix("zig ")


def lowest() -> str:
    """The oldest version of zig that the project allows."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    lists = tomllib.loads(text)["project"]
    given = [*lists["dependencies"], *(d for extra in lists.get("optional-dependencies", {}).values() for d in extra)]
    (version,) = {match[1] for d in given if (match := re.match(r"ziglang>=([\d.]+)", d))}
    return str(version)


@pytest.mark.parametrize("target", some(COMPILED, [*ONE_OF_EACH_MACHINE[:3], *OTHER_SYSTEMS]))
def test_targets_are_compiled_by_the_oldest_compiler(target: str, oldest: str, tmp_path: Path) -> None:
    assert oldest.startswith(lowest()), "another version than the oldest that pyproject.toml allows"
    check(saved(target, tmp_path / "cache", tmp_path / "out"), tmp_path / "out")
