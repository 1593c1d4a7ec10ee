"""Bundles without the names of their model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from onnx import NodeProto

import tenon
from command_line import run_main
from onnx_models import model, node
from onnx_models import random as weights_of
from tenon.cli import main
from tenon.errors import InputError

SECRETS = ("secret", "portrait", "verdict", "Conv", "conv", "Softmax", "softmax", "MatMul", "matmul", "AveragePool")
X = np.random.default_rng(3).normal(size=(1, 3, 12, 12)).astype(np.float32)


def named(name: str, type: str, inputs: list[str], outputs: list[str], **attributes: object) -> NodeProto:
    made = node(type, inputs, outputs, **attributes)
    made.name = name
    return made


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("obfuscation") / "secret_model.onnx"
    nodes = [
        named("secret_stem", "Conv", ["portrait", "w"], ["secret_a"], pads=[1, 1, 1, 1]),
        named("secret_twin", "Conv", ["secret_a", "v"], ["secret_b"], pads=[1, 1, 1, 1]),
        named("secret_pool", "GlobalAveragePool", ["secret_b"], ["secret_c"]),
        named("secret_flat", "Flatten", ["secret_c"], ["secret_d"]),
        named("secret_last", "MatMul", ["secret_d", "u"], ["secret_e"]),
        named("secret_soft", "Softmax", ["secret_e"], ["verdict"]),
    ]
    constants = {"w": weights_of(8, 3, 3, 3), "v": weights_of(8, 8, 3, 3), "u": weights_of(8, 5)}
    path.write_bytes(model(nodes, {"portrait": [1, 3, 12, 12]}, ["verdict"], constants).SerializeToString())
    return path


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("scope", ["layers", "all"])
def test_names_are_nowhere_in_the_bundle(scope: str, file: Path, tmp_path: Path) -> None:
    plain = tenon.compile(file, name="net", no_tuning=True, threads=2)
    plain.save(tmp_path / "plain")
    bundle = tenon.compile(file, name="net", no_tuning=True, threads=2, obfuscate=scope)  # type: ignore[call-overload]
    bundle.save(tmp_path / "net")
    kept = {"portrait", "verdict"} if scope == "layers" else set()
    for name, content in contents(tmp_path / "net").items():
        leaked = {word for word in SECRETS if re.search(word.encode(), content)} - kept
        assert not leaked, (name, leaked)
    with tenon.open(tmp_path / "plain") as engine:
        expected = engine.run({"portrait": X})["verdict"]
    feed, answer = ("portrait", "verdict") if scope == "layers" else ("in1", "out1")
    with tenon.open(tmp_path / "net", threads=2) as engine:
        assert engine.run({feed: X})[answer].tobytes() == expected.tobytes()
    without = contents(tmp_path / "plain")
    assert all(any(word.encode() in content for content in without.values()) for word in ("secret", "Conv", "conv"))


def test_code_differs_only_in_names(file: Path) -> None:
    """The same kernels in the same number, on the same memory."""
    plain, without = (tenon.compile(file, name="net", no_tuning=True, obfuscate=scope) for scope in (None, "all"))
    assert without.weights == plain.weights
    assert [call.args for call in without.program.calls] == [call.args for call in plain.program.calls]
    assert without.source.count("{") == plain.source.count("{")
    assert len({call.kernel.name for call in without.program.calls}) == len({c.kernel for c in plain.program.calls})


def test_bindings_and_profiles(file: Path, tmp_path: Path) -> None:
    shapes = [{"portrait": (n, 3, 12, 12)} for n in (1, 2)]
    nodes = [named("secret", "Sigmoid", ["portrait"], ["verdict"])]
    data = model(nodes, {"portrait": ["n", 3, 12, 12]}, ["verdict"], {}).SerializeToString()
    bundle = tenon.compile(data, name="net", shapes=shapes, obfuscate="all", profile=True, no_tuning=True)
    bundle.save(tmp_path / "net.tenon")
    with tenon.open(tmp_path / "net.tenon") as engine:
        engine.select(1)
        assert engine.run({"in1": np.zeros((2, 3, 12, 12), np.float32)})["out1"].mean() == 0.5


def test_command(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "net")
    assert run_main(main, ["compile", str(file), "--name", "net", "-o", out, "--obfuscate", "all", "--json"]) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert {step["layer"][0] for step in manifest["nodes"]} == {"l"}
    assert {step["op"] for step in manifest["nodes"]} == {"op"}
    assert manifest["origin"] is None
    with pytest.raises(InputError, match="option obfuscate='some'"):
        tenon.Options(obfuscate="some")  # type: ignore[arg-type]
