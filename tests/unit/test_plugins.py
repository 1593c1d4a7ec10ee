"""Plug-ins: an operator in a Python file, devices in Python and in a shared library, and how networks are split."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tenon
from command_line import run_main
from libtenon import needed, run, succeeded
from real import DIGITS, ROOT, held_out_digits
from tenon.cli import main
from tenon.errors import DeviceError, InputError
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array, Node
from tenon.network.ops.base import REGISTRY
from tenon.plugins import (
    Device,
    LibraryDevice,
    PartitionedEngine,
    find_device,
    load_plugin,
    offloaded,
    partition,
    placed,
    register_device,
    unregister_device,
)
from tenon.runtime.sdk.libtenon import RUNTIME

OPERATOR = ROOT / "examples" / "square_clip.py"
MODEL = DIGITS / "digits.onnx"


# ------------------------------------------------------------------------------------------------ operators
@pytest.fixture
def own_operator() -> Iterator[None]:
    yield
    REGISTRY.pop("SquareClip", None)


@pytest.fixture
def clipped(tmp_path: Path) -> Path:
    """A model with the plug-in's operator, between others."""
    nodes = [
        helper.make_node("Sub", ["x", "one"], ["a"]),
        helper.make_node("SquareClip", ["a"], ["b"], domain="own", limit=0.5),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 7]) for name in "xy")
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", [x], [y], [one]), opset_imports=opsets), tmp_path / "m.onnx"
    )
    return tmp_path / "m.onnx"


X = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
EXPECTED = np.minimum((X - 1) * (X - 1), np.float32(0.5))


@pytest.mark.usefixtures("own_operator")
def test_operator_of_a_python_file(clipped: Path) -> None:
    with pytest.raises(tenon.TenonError, match="SquareClip"):
        tenon.load(clipped)
    assert load_plugin(OPERATOR) is None
    (result,) = evaluate(tenon.load(clipped), {"x": X}).values()
    np.testing.assert_array_equal(result, EXPECTED)
    with tenon.open(tenon.compile(clipped, no_tuning=True, verify=True)) as engine:
        (result,) = engine.run(X).values()
    np.testing.assert_array_equal(result, EXPECTED)
    with pytest.raises(InputError, match="SquareClip is defined twice"):
        load_plugin(OPERATOR)


def test_operator_in_every_program(clipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command compiles it, Python and C run it without the plug-in."""
    monkeypatch.setenv("TENON_PLUGINS", str(OPERATOR))
    bundle = tmp_path / "m.tenon"
    done = run(sys.executable, "-m", "tenon", "compile", clipped, "-o", bundle)
    succeeded(done)
    with tenon.open(bundle) as engine:
        (result,) = engine.run(X).values()
    np.testing.assert_array_equal(result, EXPECTED)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "there is no plug-in"), ("x = 1 / 0", "ZeroDivisionError"), ("import nothing_of_that_name", "nothing_of")],
)
def test_plugins_that_fail(
    content: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plugin.py"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("TENON_PLUGINS", str(path))
    assert run_main(main, ["targets"]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert "Traceback" not in printed


# ------------------------------------------------------------------------------------------------ devices
class ReferenceDevice:
    """Runs some operators by their definitions, and counts."""

    name = "reference"

    def __init__(self, *operators: str) -> None:
        self.operators, self.calls = operators, list[str]()

    def describe(self) -> str:
        return "NumPy"

    def supports(self, node: Node) -> bool:
        return node.op.name in self.operators

    def prerun(self, model: bytes) -> ReferencePart:
        self.calls.append("prerun")
        return ReferencePart(self, model)

    def release(self) -> None:
        self.calls.append("release")


class ReferencePart:
    def __init__(self, device: ReferenceDevice, model: bytes) -> None:
        self.device, self.graph = device, tenon.load(model)

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        self.device.calls.append("run")
        feeds = {value.name: array for value, array in zip(self.graph.inputs, inputs, strict=True)}
        return list(evaluate(self.graph, feeds).values())

    def postrun(self) -> None:
        self.device.calls.append("postrun")


def digits_by_cpu(image: Array) -> Array:
    with tenon.open(tenon.compile(MODEL, no_tuning=True)) as engine:
        (result,) = engine.run(image).values()
    return np.array(result)


@pytest.fixture(scope="module")
def image() -> Array:
    return np.ascontiguousarray(held_out_digits()[0][0].reshape(1, 1, 8, 8))


@pytest.mark.parametrize("operators", [("Relu",), ("Conv", "Gemm"), ()])
def test_device_in_python(operators: tuple[str, ...], image: Array) -> None:
    device = ReferenceDevice(*operators)
    with PartitionedEngine(MODEL, device) as engine:
        for section in engine.sections:
            assert all((node.op.name in operators) == section.on_device for node in section.graph)
        (result,) = engine.run({"image": image}).values()
        with pytest.raises(InputError, match="image"):
            engine.run({"x": image})
        with pytest.raises(InputError, match="float64"):
            engine.run({"image": image.astype(np.float64)})
    np.testing.assert_allclose(result, digits_by_cpu(image), rtol=1e-5, atol=1e-6)
    parts = sum(section.on_device for section in engine.sections)
    assert device.calls == ["prerun"] * parts + ["run"] * parts + ["postrun"] * parts
    assert (parts > 0) == bool(operators)


def test_sections_of_branches() -> None:
    """Two branches that the device takes are one section, and a later reader of both sides waits for neither twice."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Neg", ["x"], ["b"]),
        helper.make_node("Abs", ["b"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["d"]),
        helper.make_node("Abs", ["d"], ["y"]),
    ]
    x, y, b = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xyb")
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y, b]), opset_imports=[helper.make_opsetid("", 17)])
    device = ReferenceDevice("Abs")
    sections = partition(placed(tenon.load(model.SerializeToString()), [device]))
    assert [section.on_device for section in sections] == [False, True, False, True]
    with PartitionedEngine(tenon.load(model.SerializeToString()), device) as engine:
        results = engine.run({"x": X[:2, :3]})
    np.testing.assert_array_equal(results["y"], 2 * np.abs(X[:2, :3]))
    np.testing.assert_array_equal(results["b"], -X[:2, :3])


def test_registered_devices() -> None:
    device = ReferenceDevice()
    register_device(device)
    with pytest.raises(InputError, match="already"):
        register_device(device)
    assert find_device("reference") is device
    unregister_device("reference")
    assert device.calls == ["release"]
    with pytest.raises(InputError, match="no device 'reference'"):
        find_device("reference")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("device") / "device.so"
    flags = ("-std=c11", "-pedantic", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{RUNTIME / 'include'}")
    succeeded(run(needed("gcc"), *flags, ROOT / "examples" / "onnxruntime_device.c", "-ldl", "-o", path))
    return path


@pytest.fixture(scope="module")
def onnxruntime_library() -> str:
    spec = find_spec("onnxruntime")
    libraries = sorted(Path(spec.origin).parent.glob("capi/libonnxruntime.so*")) if spec and spec.origin else []
    if not libraries:
        pytest.skip("the library of onnxruntime is not installed")
    return str(libraries[0])


def test_onnxruntime_as_a_device(library: Path, onnxruntime_library: str, image: Array) -> None:
    device = load_plugin(library, onnxruntime_library)
    assert isinstance(device, LibraryDevice)
    try:
        assert device.describe().startswith("ONNX Runtime 1.")
        with PartitionedEngine(MODEL, "onnxruntime") as engine:
            names = [[node.op.name for node in s.graph] for s in engine.sections if s.on_device]
            assert names == [["Conv", "Relu", "Conv", "Relu"], ["Gemm"]]
            (result,) = engine.run({"image": image}).values()
        np.testing.assert_allclose(result, digits_by_cpu(image), rtol=1e-5, atol=1e-6)
        with pytest.raises(DeviceError, match="onnxruntime refuses"):
            device.prerun(b"no model")
    finally:
        unregister_device("onnxruntime")


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        ("XNNPACK", "this ONNX Runtime has no provider XNNPACK: it has .*CPUExecutionProvider"),
        ("CPU,x", "write KEY=VALUE"),
    ],
)
def test_providers_that_onnxruntime_does_not_have(
    provider: str, said: str, library: Path, onnxruntime_library: str
) -> None:
    """The package of ONNX Runtime for Linux brings no other provider that needs no device but the processor."""
    with pytest.raises(InputError, match=said):
        load_plugin(library, f"{onnxruntime_library},{provider}")


@pytest.mark.slow
def test_a_provider_of_onnxruntime(library: Path, image: Array) -> None:
    """ONNXRUNTIME_PROVIDER has the argument of the plug-in: "libonnxruntime.so.1.24.1,OpenVINO,device_type=CPU"."""
    argument = os.environ.get("ONNXRUNTIME_PROVIDER")
    if not argument:
        pytest.skip("ONNXRUNTIME_PROVIDER names no library of ONNX Runtime with a provider")
    device = load_plugin(library, argument)
    assert device is not None
    try:
        assert device.name == argument.split(",")[1]
        graph = offloaded(tenon.load(MODEL), device)
        assert graph.placement is not None
        assert {layer.op for layer in graph.placement.layers if layer.device == device.name} == {"Conv", "Relu", "Gemm"}
        with PartitionedEngine(MODEL, device) as engine:
            (result,) = engine.run({"image": image}).values()
        np.testing.assert_allclose(result, digits_by_cpu(image), rtol=1e-4, atol=1e-5)
    finally:
        unregister_device(device.name)


def test_libraries_that_are_no_devices(library: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give its path"):
        load_plugin(library, "/no/such/library")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(InputError, match="no plug-in with a device"):
        load_plugin(tmp_path / "text.so")
    old = '#include "tenon_device.h"\nstatic const TenonDevice d = {8, 9, "x", 0, 0, 0, 0, 0, 0, 0, 0};\n'
    old += "const TenonDevice *tenon_plugin_device(const char *a, const char **m) { return (void)a, (void)m, &d; }\n"
    (tmp_path / "old.c").write_text(old)
    succeeded(
        run(
            needed("gcc"), "-shared", "-fPIC", f"-I{RUNTIME / 'include'}", tmp_path / "old.c", "-o", tmp_path / "old.so"
        )
    )
    with pytest.raises(InputError, match="version 9"):
        load_plugin(tmp_path / "old.so")


def test_protocol_is_met() -> None:
    devices: list[type[Device]] = [ReferenceDevice, LibraryDevice]
    assert devices
