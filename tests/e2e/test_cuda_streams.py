"""CUDA: devices that are not there or fail, kept kernels, and tensors and streams of the caller's.

A stand-in for the driver gives the statuses of such devices, and writes calls down (``c/faulty_cuda.c``); what is not
about faults runs on the machine's GPU as well, if it has one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import tenon
from gpu_devices import needs_compiler, why_not
from gpu_faults import StandIn, faulty_cuda
from onnx_models import model, node
from tenon.errors import InputError
from tenon.machine.codegen.gpu.launch_order import waited_for
from tenon.runtime.bundle import Bundle
from tenon.runtime.bundle.writer import save_container

Run = Callable[..., list[str]]

FAULTS = {
    "no device": "CUDA: no CUDA-capable device is detected (status 100) while looking for a CUDA device",
    "no memory": "CUDA: out of memory (status 2) while allocating memory of the device",
    "refused": "CUDA: unspecified failure (status 218) while loading the kernels (kernels for older GPUs are those of "
    "the target cuda-sm75): line 7: no such instruction",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in, a bundle, and what its kernel is for the stand-in."""
    needs_compiler("cuda")
    folder = tmp_path_factory.mktemp("cuda")
    content = model([node("Abs", ["x"], ["y"])], {"x": [8, 16]}, ["y"]).SerializeToString()
    bundles = [tenon.compile(content, target=target, name="net", no_tuning=True) for target in ("cuda", "x86-64")]
    save_container(folder / "net.tenon", bundles)
    (x,), (y,) = bundles[0].interface.inputs, bundles[0].interface.outputs
    (folder / "kernel").write_text(f"{x.offset} {y.offset} {y.bytes}")
    return faulty_cuda(folder)


@pytest.fixture(scope="module")
def stand_in(place: Path) -> Iterator[StandIn]:
    with StandIn(place, "TEST_CUDA") as process:
        yield process


@pytest.fixture
def run(place: Path, stand_in: StandIn) -> Run:
    """The output of two runs, and then the calls that they make."""

    def ran(*gpu: str, target: str = "cuda", **texts: str) -> list[str]:
        options = dict(option.split("=", 1) for option in gpu)
        return stand_in.run(place / "net.tenon", target, 2, options, **texts)

    return ran


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_device_refuses_is_one_message_and_the_processor_is_used(fault: str, run: Run) -> None:
    assert run(fault=fault)[:2] == [f"'net' cannot run: {FAULTS[fault]}"] * 2
    assert run(fault=fault, target="cuda,host")[:2] == ["x86-64 ran y"] * 2


def test_a_lost_device_is_one_message_and_the_next_run_tries_again(run: Run) -> None:
    lost = "'net' failed on the device: CUDA: unspecified failure (status 719) while running the network"
    assert run()[:2] == ["cuda ran y"] * 2
    assert run(fault="lost")[:2] == [lost, "cuda ran y"]
    assert run(fault="lost for good")[:2] == [lost, lost]


def of_branches(place: Path, target: str) -> Bundle:
    """A convolution, and two layers of its result; saved as "branches.tenon"."""
    nodes = [node("Conv", ["x", "v"], ["a"]), node("Softmax", ["a"], ["b"], axis=1), node("Conv", ["a", "v"], ["c"])]
    content = model(nodes, {"x": [1, 16, 12, 12]}, ["b", "c"], {"v": np.ones((16, 16, 1, 1), np.float32)})
    bundle = tenon.compile(content.SerializeToString(), target=target, no_tuning=True)
    save_container(place / "branches.tenon", [bundle])
    return bundle


def test_launches_of_a_graph_wait_for_what_they_depend_on(place: Path, stand_in: StandIn) -> None:
    bundle = of_branches(place, "cuda")
    said = stand_in.run(place / "branches.tenon", "cuda", 1, {}, kernel=(place / "kernel").read_text(), nodes="1")
    behind = [line.split(" behind")[1].split() for line in said if line.startswith("node")]
    *before, last = waited_for(bundle.program)
    steps = len(bundle.program.calls)
    expected = [[], *([str(number + 2) for number in own] or ["1"] for own in before)]  # behind the copy of the input
    assert behind[: steps + 1] == expected
    assert behind[steps + 1] == [str(number + 2) for number in last]  # the copy of the first output: behind all


def test_launches_behind_others_begin_early_on_hopper(place: Path, stand_in: StandIn) -> None:
    bundle = of_branches(place, "cuda-sm90")
    *before, _ = waited_for(bundle.program)
    (kernels,) = bundle.save(place / "sm90").glob("*.cu")
    text = kernels.read_text()
    assert text.count("griddepcontrol.wait;") == text.count('extern "C" __global__') > 0
    texts = {"kernel": (place / "kernel").read_text(), "nodes": "1"}
    said = stand_in.run(place / "branches.tenon", "cuda-sm90", 1, {}, **texts)
    early = [line.startswith("early") for line in said if "node" in line]
    assert early[1 : len(before) + 1] == [bool(own) for own in before]
    assert sum(early) == sum(map(bool, before)) > 0


def test_code_of_the_gpu_is_kept(run: Run, tmp_path: Path) -> None:
    def built(*gpu: str, fault: str = "") -> list[str]:
        return [line for line in run(*gpu, fault=fault) if line in ("compile", "link", "load")]

    option = f"cache={tmp_path / 'kernels'}"
    assert built() == ["compile"]
    assert built(option) == ["link", "load"]
    assert built(option) == ["load"]
    assert built(option, fault="other code") == ["load", "link", "load", "compile"]
    assert run(option, fault="other code")[:2] == ["cuda ran y"] * 2
    (file,) = (tmp_path / "kernels").iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert built(option) == ["link", "load"]


@pytest.mark.parametrize(("priority", "number"), [("low", 0), ("normal", 0), ("high", -5)])
def test_streams_have_the_priority(priority: str, number: int, run: Run) -> None:
    assert f"priority {number}" in run(f"priority={priority}")


def test_groups_are_measured_once(run: Run, tmp_path: Path) -> None:
    """The usual size wins where all are alike, as in the stand-in; a graph is recorded for each size."""
    file = tmp_path / "groups"

    def threads(*gpu: str) -> list[str]:
        listed = run(*gpu, threads="listed")
        assert listed[:2] == ["cuda ran y"] * 2
        return [line for line in listed if line.startswith("threads")]

    (usual,) = set(threads())
    assert len(threads()) == 1
    assert set(threads(f"tune={file}")) == {"threads 16", usual}
    title, device, measured = file.read_text().splitlines()
    assert (title, device, measured.split()[1]) == ("tenon gpu parameters 1", "device: Stand-in (CUDA)", "64")
    assert threads(f"tune={file}") == [usual]
    file.write_text(f"{title}\n{device}\n{measured.split()[0]} 16\n")
    assert threads(f"parameters={file}") == ["threads 16"]


STREAMS = """
import ctypes, sys
import numpy as np
import tenon
from tenon.network.graph.dtype import DType
from tenon.runtime.engine import device_tensor
from tenon.runtime.engine.device_tensor import Borrowed, DeviceTensor

cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuMemcpyHtoD_v2.argtypes = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
cuda.cuMemcpyDtoH_v2.argtypes = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t

def good(status):
    assert status == 0, status

def read(tensor):
    array = np.empty(tensor.shape, np.float32)
    good(cuda.cuStreamSynchronize(ctypes.c_void_p(1)))
    good(cuda.cuMemcpyDtoH_v2(array.ctypes.data, tensor.address, array.nbytes))
    return array

def write(address, array):
    good(cuda.cuMemcpyHtoD_v2(address, array.ctypes.data, array.nbytes))

def refused(feed):
    try:
        engine.run_on_device(feed)
    except tenon.errors.InputError as error:
        print(error)

waited = []
with tenon.open(sys.argv[1], target="cuda") as engine:
    engine.prepare()
    x = np.random.default_rng(0).random((8, 16), np.float32)
    address = ctypes.c_uint64()
    good(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(x.nbytes)))
    write(address.value, x)
    feed = DeviceTensor(address.value, x.shape, DType.F32, 0, None, waited.append)
    y = engine.run_on_device({"x": feed})["y"]
    assert np.array_equal(read(y), x) and waited == [1], waited
    write(address.value, x + 1)
    assert np.array_equal(read(engine.run_on_device(feed)["y"]), x + 1)

    write(engine.device_inputs["x"].address, x + 2)
    assert np.array_equal(read(engine.run_on_device()["y"]), x + 2)
    assert np.array_equal(engine.run(x)["y"], x)

    stream = ctypes.c_void_p()
    good(cuda.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0))
    assert engine.run_on_device(feed, stream=stream.value)["y"].address == y.address
    assert waited == [1, 1, stream.value], waited
    held = Borrowed(y, 1)
    assert held.address("y", y.shape, y.dtype) == y.address and y.__dlpack_device__() == (2, 0)
    held.close()
    capsule = y.__dlpack__(stream=-1)
    assert len(device_tensor._lent) == 1
    del capsule
    assert not device_tensor._lent

    refused({"z": feed})
    refused(DeviceTensor(0, (8, 17), DType.F32, 0, None, waited.append))
    refused(DeviceTensor(0, (8, 16), DType.I32, 0, None, waited.append))
    refused(x)
    for how in ({"copy": True}, {"dl_device": (1, 0)}):
        try:
            y.__dlpack__(**how)
        except BufferError as error:
            print(error)
    try:
        engine.run(feed)
    except tenon.errors.InputError as error:
        print(error)
    assert not device_tensor._lent
"""

REFUSED = [
    "give an array for each input, not for others (x): inputs are x",
    "input 'x' is f32[8, 16], and the array has shape [8, 17] of 32 bits (DLPack's code 2)",
    "input 'x' is f32[8, 16], and the array has shape [8, 16] of 32 bits (DLPack's code 0)",
    "input 'x' is no array on the CUDA device 0: run() takes others",
    *2 * ["DeviceTensor(f32[8, 16] on cuda:0) is given where it lies: copy it with the library that takes it"],
    "input 'x' is a DeviceTensor on a GPU: give it to run_on_device (of a bundle for cuda), or copy it to the memory "
    "of the processor",
]


@pytest.mark.parametrize("driver", ["stand-in", "machine"])
def test_arrays_on_the_device_are_used_there_and_streams_are_followed(driver: str, place: Path, tmp_path: Path) -> None:
    environment = dict(os.environ)
    if driver == "machine" and (reason := why_not("cuda")):
        pytest.skip(reason)
    if driver == "stand-in":
        texts = {"LOG": str(tmp_path / "log"), "KERNEL": (place / "kernel").read_text()}
        environment |= {f"TEST_CUDA_{name}": text for name, text in texts.items()} | {"LD_LIBRARY_PATH": str(place)}
    command = [sys.executable, "-c", STREAMS, str(place / "net.tenon")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()) == (0, REFUSED), done.stderr
    if driver == "stand-in":
        called = [line for line in (tmp_path / "log").read_text().splitlines() if "priority" not in line]
        first, again, own = ["copy 1", "launch 1", "record 1"], ["wait 1", "copy 1", "launch 1", "record 1"], "wait -1"
        inside, usual = ["wait 1", "launch 1", "record 1"], [own, "launch -1"]
        assert called[:14] == ["compile", *first, *again, *inside, *usual, own]
        assert called[14:] == ["copy -1", "launch -1", "record -1", "wait 1"]


DECISIONS = """
import ctypes, sys
import numpy as np
import tenon

cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuMemcpyHtoD_v2.argtypes = ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
cuda.cuMemcpyDtoH_v2.argtypes = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t
x = np.random.default_rng(0).random((8, 16), np.float32)
with tenon.open(sys.argv[1], target="cuda") as engine:
    for c in (True, False):
        assert np.allclose(engine.run({"x": x, "c": np.array(c)})["y"], x)
        for _ in range(2):
            times = engine.device_times()
            assert np.allclose(engine.outputs["y"], x) and len(times) == 5, times
    for c in (True, False):
        given = {"x": x, "c": np.array(c)}
        for name, tensor in engine.device_inputs.items():
            assert cuda.cuMemcpyHtoD_v2(tensor.address, given[name].ctypes.data, given[name].nbytes) == 0
        y = np.empty_like(x)
        tensor = engine.run_on_device()["y"]
        assert cuda.cuStreamSynchronize(ctypes.c_void_p(1)) == 0
        assert cuda.cuMemcpyDtoH_v2(y.ctypes.data, tensor.address, y.nbytes) == 0
        assert np.allclose(y, x)
"""


@pytest.mark.parametrize("driver", ["stand-in", "machine"])
def test_a_branch_is_chosen_between_launches(driver: str, place: Path, tmp_path: Path) -> None:
    """In runs of both kinds and timed ones, by a byte on the device; no graph is recorded."""
    if driver == "machine" and (reason := why_not("cuda")):
        pytest.skip(reason)
    made = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 21]> g (float[8,16] x, bool c) => (float[8,16] y) { y = If (c) <'
        "then_branch = t () => (float[8,16] a) { a = Abs(x) },"
        "else_branch = e () => (float[8,16] b) { d = Abs(x) b = MatMul(d, w) }> }"
    )
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(16, dtype=np.float32), "w"))
    bundle = tenon.compile(made.SerializeToString(), target="cuda", name="net", no_tuning=True)
    environment = dict(os.environ)
    if driver == "stand-in":
        (x, _), (y,) = bundle.interface.inputs, bundle.interface.outputs
        texts = {"LOG": str(tmp_path / "log"), "KERNEL": f"{x.offset} {y.offset} {y.bytes}"}
        environment |= {f"TEST_CUDA_{name}": text for name, text in texts.items()} | {"LD_LIBRARY_PATH": str(place)}
    command = [sys.executable, "-c", DECISIONS, str(save_container(tmp_path / "if.tenon", [bundle]))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if driver == "stand-in":
        called = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith(("kernel", "launch"))]
        assert called == [*9 * ["kernel -1"], *3 * ["kernel 1"]]


def test_arrays_on_a_device_need_a_bundle_for_cuda() -> None:
    content = model([node("Abs", ["x"], ["y"])], {"x": [8, 16]}, ["y"]).SerializeToString()
    with (
        tenon.open(tenon.compile(content, no_tuning=True)) as engine,
        pytest.raises(InputError, match="tensors on a GPU need a bundle for cuda"),
    ):
        engine.run_on_device()
