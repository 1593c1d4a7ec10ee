"""Networks of which a GPU runs parts and the processor the rest, with the answers of the processor alone."""

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import yaml

import installed
import tenon
from exact_onnxruntime import session
from gpu_devices import needs_compiler, why_not
from gpu_faults import faulty_opencl, with_fault
from installed import succeeds
from libtenon import CLIENTS, client, needed, run, sdk_for_clients, succeeded
from onnx_models import model, node, random
from source_operator import EXPECTED, PLUGIN, X, save_model
from tenon.errors import InputError
from tenon.network.graph.graph import Graph
from tenon.network.ops import registry
from tenon.plugins import (
    PartitionedEngine,
    SplitCosts,
    TargetDevice,
    load_plugin,
    measured_costs,
    offloaded,
    unregister_device,
)
from tenon.runtime.plugins.offload import offload_to
from tenon.runtime.sdk.libtenon import RUNTIME
from tenon.tools.deployment import convert, read_deployment

COSTS = SplitCosts(processor_macs=1e5, processor_bytes=1e12, device_macs=1e9, device_bytes=1e12, launch=1e-5, copy=1e-6)
"""Products are slow on the processor, everything else is faster there."""


@pytest.fixture(scope="module")
def content() -> bytes:
    """Two products with a softmax between them, and one behind."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Softmax", ["a"], ["b"]),
        node("MatMul", ["b", "v"], ["c"]),
        node("Softmax", ["c"], ["y"]),
    ]
    weights = {"w": random(16, 24), "v": random(24, 8)}
    made: bytes = model(nodes, {"x": [3, 16]}, ["y"], weights).SerializeToString()
    return made


def needs_opencl() -> None:
    if reason := why_not("opencl"):
        pytest.skip(reason)


def test_products_run_on_the_device_and_the_rest_on_the_processor(content: bytes) -> None:
    needs_opencl()
    x = random(3, 16, seed=1)
    with (
        PartitionedEngine(content, TargetDevice("opencl", COSTS)) as mixed,
        tenon.open(tenon.compile(content)) as usual,
    ):
        sections = [(s.on_device, [n.op.name for n in s.graph]) for s in mixed.sections]
        assert sections == [(True, ["MatMul"]), (False, ["Softmax"]), (True, ["MatMul"]), (False, ["Softmax"])]
        np.testing.assert_allclose(mixed.run({"x": x})["y"], usual.run(x)["y"], atol=1e-6)


CONTROL = """<ir_version: 8, opset_import: ["": 21]>
g (int64 n, float[3,16] x) => (float[3,16] y, float[k,3,16] z) {
    yes = Constant <value = bool {1}> () top = Constant <value = float {3.0}> ()
    zero = Constant <value = float {0.0}> ()
    a = MatMul(x, w)
    s = ReduceSum <keepdims: int = 0> (a)
    up = Greater(s, zero)
    c = If (up) <then_branch = t () => (float[3,16] b) { p = MatMul(a, w) b = MatMul(p, w) },
                 else_branch = e () => (float[3,16] d) { q = Sin(a) d = MatMul(q, w) }>
    e1 = Loop (n, yes, c) <body = o (int64 i, bool h, float[3,16] u) => (bool l, float[3,16] r) {
        v = MatMul(u, w) r = Tanh(v) m = ReduceMax <keepdims: int = 0> (r) l = Less(m, top) }>
    y, z = Loop (n, yes, e1) <
        body = o2 (int64 i2, bool h2, float[3,16] u2) => (bool l2, float[3,16] r2, float[3,16] z2) {
            l2 = Identity(h2) v2 = MatMul(u2, w) r2 = Tanh(v2) z2 = Relu(r2) }>
}"""
"""A product, a branch and a loop of products that a device can take, and a loop that stacks results."""


def test_loops_and_branches_are_nodes_that_a_device_takes() -> None:
    """But those whose stacked results have an extent of the run."""
    needs_opencl()
    made = onnx.parser.parse_model(CONTROL)
    made.graph.initializer.append(onnx.numpy_helper.from_array(random(16, 16, seed=3) / 4, "w"))
    content = made.SerializeToString()
    graph = tenon.load(content, max={"n": 6})
    mixed = offloaded(graph, TargetDevice("opencl", COSTS))
    assert mixed.placement is not None
    places = [(layer.op, layer.device, layer.reason) for layer in mixed.placement.layers if layer.op in ("If", "Scan")]
    assert places == [
        ("If", "opencl", ""),
        ("Scan", "opencl", ""),
        ("Scan", "cpu", "opencl does not stack results of a loop whose number of iterations a run decides"),
    ]
    peer = session(content)
    with tenon.open(tenon.compile(mixed, no_tuning=True)) as engine:
        for number in (0, 1, 5):
            given = {"n": np.array(number), "x": random(3, 16, seed=number)}
            y, z = peer.run(None, given)
            results = engine.run(given)
            np.testing.assert_allclose(results["y"], y, atol=1e-5)
            np.testing.assert_allclose(results["z"][:number], z, atol=1e-5)


def test_operators_of_plugins_stay_on_the_processor(tmp_path: Path) -> None:
    """Even where the device is faster at everything."""
    needs_opencl()
    if "SoftThreshold" not in registry():
        load_plugin(PLUGIN)
    costs = SplitCosts(processor_bytes=1e3, copy=0)
    with PartitionedEngine(save_model(tmp_path / "own.onnx"), TargetDevice("opencl", costs)) as engine:
        sections = [(s.on_device, [n.op.name for n in s.graph]) for s in engine.sections]
        assert sections == [(False, ["SoftThreshold"]), (True, ["Add"])]
        np.testing.assert_allclose(engine.run({"x": X})["y"], EXPECTED, atol=1e-6)


def test_a_device_that_is_named_is_a_target() -> None:
    small = model([node("Relu", ["x"], ["y"])], {"x": [4]}, ["y"]).SerializeToString()
    with PartitionedEngine(small, "opencl") as engine:
        assert isinstance(engine.devices[0], TargetDevice)
        assert [section.on_device for section in engine.sections] == [False]
        np.testing.assert_array_equal(engine.run({"x": np.array([-1, 0, 1, 2], np.float32)})["y"], [0, 0, 1, 2])


@pytest.fixture(scope="module")
def place(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with parts for OpenCL, one for the processor, a client of libtenon and the stand-in for OpenCL."""
    folder = tmp_path_factory.mktemp("split")

    def rewrite(graph: Graph) -> Graph:
        return offloaded(graph, TargetDevice("opencl", COSTS))

    tenon.compile(content, rewrite=rewrite, name="mixed", verify=True).save(folder / "mixed.tenon")
    tenon.compile(content, name="usual").save(folder / "usual.tenon")
    client("run_on_device", sdk_for_clients(folder, ""), folder)
    faulty_opencl(folder)
    return folder


def c_answers(place: Path, bundle: Path, environment: dict[str, str] | None) -> list[float]:
    """The numbers that the client of libtenon prints of three runs."""
    done = subprocess.run(
        [str(place / "run_on_device"), str(bundle)], capture_output=True, check=False, env=environment
    )
    lines = succeeded(done).decode().splitlines()
    return [float(b) for a, b in itertools.pairwise(lines) if a.startswith(("run: TENON_OK", "again"))]


def negating_device(folder: Path) -> Path:
    """A plug-in with a device that negates 64 floats."""
    flags = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{RUNTIME / 'include'}")
    succeeded(run(needed("gcc"), *flags, CLIENTS / "negating_device.c", "-o", folder / "negator.so"))
    return folder / "negator.so"


@pytest.mark.parametrize("fault", [None, "no device"])
def test_one_bundle_holds_the_parts_of_both(fault: str | None, place: Path) -> None:
    """Without the device, the processor runs the parts, too."""
    if fault is None:
        needs_opencl()
    environment = None if fault is None else with_fault(place, fault)

    mixed, usual = (c_answers(place, place / name, environment) for name in ("mixed.tenon", "usual.tenon"))
    assert len(mixed) == 3
    np.testing.assert_allclose(mixed, usual, atol=1e-5)


def test_devices_that_are_asked_for_by_the_command_line(tmp_path: Path) -> None:
    """With the usual costs, a product of 512 x 512 x 512 is worth the copies.  Options of GPUs are in the part."""
    large = model([node("MatMul", ["x", "w"], ["y"])], {"x": [512, 512]}, ["y"], {"w": random(512, 512)})
    (tmp_path / "large.onnx").write_bytes(large.SerializeToString())
    options = ("--offload", "opencl", "--no-tuning", "--gpu", "queue_window=3")
    succeeds("compile", tmp_path / "large.onnx", "-o", tmp_path / "out.tenon", *options)
    text = succeeds("inspect", tmp_path / "out.tenon", "--layers")
    assert "DevicePart" in text
    assert b"queue_window: 3" in (tmp_path / "out.tenon").read_bytes()


@pytest.mark.parametrize("gpu", ["opencl", "vulkan", "cuda"])
def test_a_gpu_a_plugin_and_the_processor_in_one_network(gpu: str, place: Path, tmp_path: Path) -> None:
    """The answers of the processor alone, in Python and in C; where the user wants a device for what it cannot run,
    the processor runs it, and `tenon inspect` says why."""
    if reason := why_not(gpu):
        pytest.skip(reason)
    needs_compiler(gpu)
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Softmax", ["a"], ["b"]),
        node("Neg", ["b"], ["c"]),
        node("MatMul", ["c", "v"], ["d"]),
        node("Neg", ["d"], ["y"]),
    ]
    weights = {"w": random(16, 16), "v": random(16, 8)}
    network = model(nodes, {"x": [4, 16]}, ["y"], weights).SerializeToString()
    (tmp_path / "net.onnx").write_bytes(network)
    plugin, bundle = negating_device(tmp_path), tmp_path / "net.tenon"
    devices: list[str | Path] = [
        "--offload",
        gpu,
        "--offload",
        plugin,
        "--device-of",
        f"MatMul={gpu}",
        "--device-of",
        "y=negator",
    ]
    environment = {**os.environ, "TENON_DEVICE_PLUGINS": f"{plugin}="}
    succeeds("compile", tmp_path / "net.onnx", "-o", bundle, *devices, "--device-of", "Softmax=cpu", "--no-tuning")
    succeeds("compile", tmp_path / "net.onnx", "-o", tmp_path / "usual.tenon", "--no-tuning")
    text = succeeds("inspect", bundle, "--layers")
    assert re.search(rf"{gpu} +2 ", text)
    assert re.search(r"Negator +1 ", text)
    assert "1 layer on cpu: assigned to Negator, which negates 64 floats" in text
    x = np.ascontiguousarray(random(4, 16, seed=1))
    device = load_plugin(plugin)
    assert device is not None
    try:
        for target in ("", "host"):
            with tenon.open(bundle, target=target) as mixed, tenon.open(tmp_path / "usual.tenon") as usual:
                np.testing.assert_allclose(mixed.run(x)["y"], usual.run(x)["y"], atol=1e-6)
    finally:
        unregister_device(device.name)
    answers = [c_answers(place, file, environment) for file in (bundle, tmp_path / "usual.tenon")]
    assert len(answers[0]) == 3
    np.testing.assert_allclose(answers[0], answers[1], atol=1e-5)


@pytest.mark.parametrize("runtime", ["gpu", "cpu+gpu"])
def test_runtimes_of_mace_files(runtime: str, content: bytes, place: Path, tmp_path: Path) -> None:
    """With "gpu" all layers run there, with "cpu+gpu" those that are faster there: none of this one."""
    needs_opencl()
    (tmp_path / "net.onnx").write_bytes(content)
    graph = {"input_tensors": "x", "input_shapes": "3,16", "output_tensors": "y", "output_shapes": "3,8"}
    formats = {"data_type": "fp32_fp32", "input_data_formats": "NONE", "output_data_formats": "NONE"}
    network = {"platform": "onnx", "model_file_path": "net.onnx", "runtime": runtime, "subgraphs": [graph], **formats}
    whole = {"library_name": "lib", "target_abis": ["host"], "models": {"net": network}}
    (tmp_path / "mace.yml").write_text(yaml.safe_dump(whole))
    (made,) = convert(read_deployment(tmp_path / "mace.yml"), tmp_path / "out")
    placement = made.manifest.placement
    assert placement is not None
    assert {layer.device for layer in placement.layers} == {"opencl" if runtime == "gpu" else "cpu"}
    x = random(3, 16, seed=1)
    with tenon.open(place / "usual.tenon") as usual, tenon.open(made.folder) as mixed:
        np.testing.assert_allclose(mixed.run(x)["y"], usual.run(x)["y"], atol=1e-6)


def test_parts_on_gpus_in_programs_for_mace(place: Path, tmp_path: Path) -> None:
    """``MaceEngineConfig config(GPU)`` runs the parts there, with its options, and one for the CPU runs them on the
    CPU."""
    needs_opencl()
    x = random(3, 16, seed=1)
    x.tofile(tmp_path / "in_x")
    with tenon.open(place / "usual.tenon") as usual:
        expected = usual.run(x)["y"].ravel()
    for device, fault in (("GPU", None), ("CPU", "refused")):
        words = ["--input_node=x", "--input_shape=3,16", "--output_node=y", "--output_shape=3,8", "--round=1"]
        words += [f"--input_file={tmp_path / 'in'}", f"--output_file={tmp_path / device}", f"--device={device}"]
        words += ["--input_data_format=NONE", "--output_data_format=NONE", f"--model_file={place / 'mixed.tenon'}"]
        words.append(f"--opencl_cache_full_path={tmp_path / 'kernels'}{device}")
        environment = None if fault is None else with_fault(place, fault)
        command = [str(place / "sdk" / "bin" / "mace_run"), *words]
        succeeded(subprocess.run(command, capture_output=True, check=False, env=environment))
        np.testing.assert_allclose(np.fromfile(tmp_path / f"{device}_y", np.float32), expected, atol=1e-5)
        assert (tmp_path / f"kernels{device}").is_dir() == (device == "GPU")


def test_parts_for_gpus_are_for_this_machine_only(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(content)
    words = ("compile", tmp_path / "net.onnx", "-o", tmp_path / "net.tenon", "--target", "aarch64")
    done = installed.tenon(*words, "--offload", "opencl")
    assert done.returncode == 2
    text = "--offload opencl: parts for GPUs are made for this machine, not for aarch64: leave it out"
    assert text in " ".join(done.stderr.split())


def test_measured_costs_of_a_device(tmp_path: Path) -> None:
    """They are what "opencl=measured" asks for; nothing else can be asked for."""
    needs_opencl()
    costs = measured_costs("opencl")
    assert all(value >= 0 and math.isfinite(value) for value in vars(costs).values())
    large = model([node("MatMul", ["x", "w"], ["y"])], {"x": [64, 64]}, ["y"], {"w": random(64, 64)})
    (tmp_path / "net.onnx").write_bytes(large.SerializeToString())
    graph = offload_to(["opencl=measured"])(tenon.load(tmp_path / "net.onnx"))
    assert graph.placement is not None
    with pytest.raises(InputError, match="opencl takes no argument but 'measured'"):
        offload_to(["opencl=fast"])
