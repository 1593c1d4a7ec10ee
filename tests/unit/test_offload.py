"""Devices that run parts of networks from C: bundles and models through libtenon and Tengine's API."""

from __future__ import annotations

import ctypes
import platform
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tenon
from command_line import run_main
from libtenon import CLIENTS, client, needed, run, succeeded
from tengine_sdk import Tengine, environment_of, sdk_and_compiler, small_bundle
from tenon.cli import main
from tenon.errors import DeviceError, InputError
from tenon.network.graph.device_placement import PlacedLayer
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array
from tenon.network.graph.text import show
from tenon.network.graph.verify import verify
from tenon.pipeline import rewrite
from tenon.plugins import DeviceRule, LibraryDevice, load_plugin, offloaded, unregister_device
from tenon.runtime.engine.device_parts import DeviceCalls
from tenon.runtime.sdk.libtenon import RUNTIME

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")
X = np.random.default_rng(0).normal(size=(4, 16)).astype(np.float32)
EXPECTED = (np.abs(X + 1) + (X + 1)) * -2
"""The output of the model below."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sdk_and_compiler(tmp_path_factory.mktemp("offload"))


@pytest.fixture(scope="module")
def plugin(place: Path) -> Path:
    path = place / "negator.so"
    flags = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{RUNTIME / 'include'}")
    succeeded(run(needed("gcc"), *flags, CLIENTS / "negating_device.c", "-o", path))
    return path


@pytest.fixture(scope="module")
def model(place: Path) -> Path:
    """Two parts for the device: one node, and two that follow each other after a branch."""
    nodes = [
        helper.make_node("Add", ["x", "one"], ["a"]),
        helper.make_node("Neg", ["a"], ["minus_a"]),
        helper.make_node("Abs", ["a"], ["b"]),
        helper.make_node("Sub", ["b", "minus_a"], ["c"]),
        helper.make_node("Neg", ["c"], ["d"]),
        helper.make_node("Neg", ["d"], ["e"]),
        helper.make_node("Mul", ["e", "minus_two"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 16]) for name in "xy"]
    constants = [helper.make_tensor(n, TensorProto.FLOAT, [], [v]) for n, v in (("one", 1), ("minus_two", -2))]
    graph = helper.make_graph(nodes, "negations", ports[:1], ports[1:], constants)
    path = place / "negations.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture(scope="module")
def bundle(place: Path, model: Path, plugin: Path) -> Path:
    path = place / "negations.tenon"
    assert run_main(main, ["compile", str(model), "-o", str(path), "--offload", str(plugin)]) == 0
    return path


@pytest.fixture(scope="module")
def program(place: Path) -> Path:
    return client("device_client", place / "sdk", place)


def test_graph_with_parts_of_a_device(model: Path, plugin: Path) -> None:
    """It computes what the model does, by the definitions of all operators."""
    graph = offloaded(tenon.load(model), LibraryDevice(plugin))
    verify(graph)
    assert [node.op.name for node in graph] == ["Add", "Abs", "DevicePart", "Sub", "DevicePart", "Mul"]
    table = graph.inputs[-1]
    assert (table.name, table.type.dims) == ("tenon_device_Negator", (4,))
    (result,) = evaluate(graph, {"x": X, table.name: np.zeros(4, np.uint64)}).values()
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-6)


def test_device_that_supports_nothing(model: Path, plugin: Path) -> None:
    graph = tenon.load(model)
    device = LibraryDevice(plugin)
    device.supports = lambda node: False  # type: ignore[method-assign]
    same = offloaded(graph, device)
    assert show(same) == show(graph)
    assert same.placement is not None
    assert {(layer.device, layer.reason) for layer in same.placement.layers if layer.op == "Neg"} == {
        ("cpu", "Negator negates 64 floats")
    }


def test_layers_that_stay_on_the_processor(model: Path, plugin: Path) -> None:
    """Layers stay that a device is slow at, that it refuses to prepare, and that the user names, with the reasons."""

    def layers(argument: str, *rules: str) -> list[PlacedLayer]:
        parsed = [DeviceRule.parse(rule) for rule in rules]
        graph = offloaded(tenon.load(model), LibraryDevice(plugin, argument), rules=parsed)
        assert graph.placement is not None
        return [layer for layer in graph.placement.layers if layer.op == "Neg" or layer.reason == "assigned"]

    assert [layer[1:] for layer in layers("")] == [("Neg", "Negator", "")] * 3
    assert [layer[1:] for layer in layers("slow")] == [("Neg", "cpu", "")] * 3
    refusal = "refuses a part of the network: it is asleep"
    assert [layer[1:] for layer in layers("refuse")] == [("Neg", "cpu", f"Negator {refusal}")] * 3
    assert [layer[1:] for layer in layers("slow", "Neg=negator", "d=cpu")] == [
        ("Neg", "Negator", "assigned"),
        ("Neg", "cpu", "assigned"),
        ("Neg", "Negator", "assigned"),
    ]


def test_bundle_from_python(
    bundle: Path, plugin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The device is one that the program loaded, or of TENON_DEVICE_PLUGINS."""
    with pytest.raises(InputError, match="there is no device 'Negator'"):
        tenon.open(bundle)
    monkeypatch.setenv("TENON_DEVICE_PLUGINS", f":{plugin}=")
    try:
        with tenon.open(bundle) as engine, engine.fork() as twin:
            assert list(engine.inputs) == ["x"]
            for _ in range(2):
                np.testing.assert_allclose(engine.run(X)["y"], EXPECTED, rtol=1e-6)
            np.testing.assert_allclose(twin.run(X)["y"], EXPECTED, rtol=1e-6)
            monkeypatch.setattr(DeviceCalls, "begin", lambda self: self._table.fill(8))
            engine.run(X)  # numbers that are no address and its complement are not followed
    finally:
        unregister_device("Negator")
    failing = load_plugin(plugin, "fail")
    assert failing is not None
    monkeypatch.undo()
    try:
        with tenon.open(bundle) as engine, pytest.raises(DeviceError, match="device Negator failed: it burnt"):
            engine.run(X)
    finally:
        unregister_device("Negator")
    assert run_main(main, ["inspect", str(bundle)]) == 0
    assert re.search(r"Negator +3 +512 B +512 B", capsys.readouterr().out)


def test_times_and_programs_of_networks_with_parts(model: Path, plugin: Path, tmp_path: Path) -> None:
    """A timed run calls the device as well; programs that would not call it are refused."""
    device = load_plugin(plugin)
    assert device is not None
    try:
        made = tenon.compile(model, rewrite=lambda graph: offloaded(graph, device), profile=True)
        with tenon.open(made) as engine:
            engine.inputs["x"][...] = X
            assert len(engine.timestamps()) == 1 + len(engine.manifest.nodes)
            np.testing.assert_allclose(engine.outputs["y"], EXPECTED, rtol=1e-6)
    finally:
        unregister_device("Negator")
    with pytest.raises(InputError, match="--emit exe: its program does not call Negator, which runs parts"):
        made.save(tmp_path / "out", emit=("exe",))


def answer(done: object) -> Array:
    return np.frombuffer(succeeded(done), np.float32).reshape(X.shape)  # type: ignore[arg-type]


def test_bundle_from_c(bundle: Path, plugin: Path, program: Path, place: Path) -> None:
    environment = environment_of(place)
    result = answer(run(program, bundle, plugin, "", "-", stdin=X.tobytes(), env=environment))
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-6)
    named = {**environment, "TENON_DEVICE_PLUGINS": f":{plugin}="}
    np.testing.assert_array_equal(answer(run(program, bundle, "-", "", "-", stdin=X.tobytes(), env=named)), result)


def test_shapes_that_no_binding_has(model: Path, plugin: Path, place: Path) -> None:
    """The device runs parts of 64 elements for other shapes as well, and none of 32."""
    made = client("device_shapes", place / "sdk", place)
    environment = environment_of(place)
    result = np.frombuffer(succeeded(run(made, model, plugin, stdin=X.tobytes(), env=environment)), np.float32)
    whole = EXPECTED.ravel()
    np.testing.assert_allclose(result, np.concatenate([whole, whole[:32], whole]), rtol=1e-6)


@pytest.mark.parametrize(
    ("argument", "status", "said"),
    [
        ("useless", 2, "it is useless"),
        ("refuse", 4, "negations: device Negator refuses a part of the network: it is asleep"),
        ("fail", 4, "negations: device Negator failed: it burnt"),
    ],
)
def test_errors_of_a_device(
    argument: str, status: int, said: str, bundle: Path, plugin: Path, program: Path, place: Path
) -> None:
    done = run(program, bundle, plugin, argument, "-", stdin=X.tobytes(), env=environment_of(place))
    assert done.returncode == status
    assert said in done.stderr.decode()


def test_absent_devices(bundle: Path, model: Path, program: Path, place: Path) -> None:
    environment = environment_of(place)
    for words, status, said in (
        ((bundle, "-", "", "-"), 3, "there is no device 'Negator': tenon_device_load comes first"),
        ((model, "-", "", "GPU"), 3, "there is no device 'GPU'"),
        ((bundle, "/no/such.so", "", "-"), 2, "/no/such.so cannot be loaded"),
        ((bundle, place / "sdk" / "lib" / "libtenon.so", "", "-"), 2, "no function tenon_plugin_device"),
    ):
        done = run(program, *words, stdin=X.tobytes(), env=environment)
        assert done.returncode == status, done.stderr
        assert said in done.stderr.decode()


def test_compiler_refuses_a_plugin(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.tenon"
    assert run_main(main, ["compile", str(model), "-o", str(out), "--offload", "/no/such.so"]) == 2
    assert "/no/such.so is no plug-in with a device" in capsys.readouterr().err
    assert not out.exists()


def test_model_from_c_and_through_tengine(model: Path, plugin: Path, program: Path, place: Path) -> None:
    """Both ask for the same bundle, which is compiled once; Tengine's programs name the device in capitals."""
    environment = environment_of(place)
    result = answer(run(program, model, plugin, "", "negator", stdin=X.tobytes(), env=environment))
    np.testing.assert_allclose(result, EXPECTED, rtol=1e-6)
    with pytest.MonkeyPatch.context() as patch:
        tengine = Tengine(place, environment, patch, small_bundle(place))
        patch.setenv("TENON_DEVICE_PLUGINS", f"{plugin}=")
        context = tengine.pointer("create_context", b"mine", 1)
        assert tengine("set_context_device", context, b"NPU", None, ctypes.c_size_t(0)) == -1
        assert "there is no device 'NPU'" in tengine.messages[-1]
        assert tengine("set_context_device", context, b"NEGATOR", None, ctypes.c_size_t(0)) == 0
        assert tengine("get_context_device_number", context) == 1
        graph = tengine.pointer("create_graph", context, b"tengine", str(model).encode())
        node = tengine.pointer("get_graph_output_node", graph, 0)
        assert ctypes.string_at(tengine.pointer("get_node_device", node).value or 0) == b"NEGATOR"
        assert run_graph(tengine, graph).tobytes() == result.tobytes()
        assert tengine("set_graph_device", graph, b"CPU") == -1, "it is prepared"
        assert tengine("postrun_graph", graph) == 0
        assert tengine("set_graph_device", graph, b"NPU") == -1
        assert tengine("remove_context_device", context, b"CPU") == -1
        assert tengine("remove_context_device", context, b"NEGATOR") == 0
        assert tengine("get_context_device_number", context) == 0
        tengine.library.destroy_context(context)


def test_devices_of_nodes_through_tengine(model: Path, plugin: Path, place: Path) -> None:
    """One node runs on a device, and the others on the processor, which is the graph's."""
    (path,) = rewrite(model, place / "negations.tmfile")[0]
    with pytest.MonkeyPatch.context() as patch:
        tengine = Tengine(place, environment_of(place), patch, small_bundle(place))
        patch.setenv("TENON_DEVICE_PLUGINS", f"{plugin}=")
        graph = tengine.pointer("create_graph", None, b"tengine", str(path).encode())
        nodes = {name: tengine.pointer("get_graph_node", graph, name) for name in (b"minus_a", b"b")}
        assert tengine("set_node_device", nodes[b"minus_a"], b"NPU") == -1
        assert tengine("set_node_device", None, b"CPU") == -1
        assert tengine("set_node_device", nodes[b"minus_a"], b"NEGATOR") == 0
        devices = [tengine.pointer("get_node_device", node).value or 0 for node in nodes.values()]
        assert [ctypes.string_at(device) for device in devices] == [b"NEGATOR", b"CPU"]
        prepared = ctypes.CDLL(str(plugin)).negating_parts
        before = prepared()
        np.testing.assert_allclose(run_graph(tengine, graph).reshape(X.shape), EXPECTED, rtol=1e-6)
        assert prepared() == before + 1
        assert tengine("set_node_device", nodes[b"minus_a"], b"CPU") == -1, "it is prepared"
        assert tengine("destroy_graph", graph) == 0
        assert prepared() == before


def run_graph(tengine: Tengine, graph: ctypes.c_void_p) -> Array:
    first, last = (tengine.pointer(f"get_graph_{end}put_tensor", graph, 0, 0) for end in ("in", "out"))
    assert tengine("set_tensor_buffer", first, X.ctypes.data_as(ctypes.c_void_p), X.nbytes) == 0
    assert tengine("prerun_graph", graph) == 0, tengine.messages
    assert tengine("run_graph", graph, 1) == 0, tengine.messages
    return np.frombuffer(ctypes.string_at(tengine.pointer("get_tensor_buffer", last).value or 0, X.nbytes), np.float32)


def test_tengine_plugin_with_a_device(plugin: Path, place: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tengine = Tengine(place, environment_of(place), patch, small_bundle(place))
        assert tengine("load_tengine_plugin", b"negator", str(plugin).encode(), None) == 0, tengine.messages
        assert tengine("set_graph_device", tengine.graph, b"Negator") == 0
        assert tengine("unload_tengine_plugin", b"negator", None) == 0
