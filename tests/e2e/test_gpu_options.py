"""Options of networks on GPUs: kept kernels, the pace of launches, and hints.

Calls are counted by a stand-in for the OpenCL library (``c/faulty_opencl.c``); results are those of the machine's
devices, where it has any.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from gpu_devices import needs_compiler, why_not
from gpu_faults import StandIn, faulty_opencl, with_fault
from installed import tenon as command
from onnx_models import model, node
from tenon.errors import InputError
from tenon.runtime.bundle.writer import save_container

Calls = Callable[..., list[str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bundle of three kernels, two of them in work groups, and the stand-in."""
    folder = tmp_path_factory.mktemp("options")
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Softmax", ["h"], ["y"])]
    weights = {"w": np.ones((256, 256), np.float32)}
    content = model(nodes, {"x": [256, 256]}, ["y"], weights).SerializeToString()
    (folder / "net.onnx").write_bytes(content)
    save_container(folder / "net.tenon", [tenon.compile(content, target="opencl", name="net", no_tuning=True)])
    return faulty_opencl(folder)


@pytest.fixture(scope="module")
def stand_in(place: Path) -> Iterator[StandIn]:
    with StandIn(place, "TEST_OPENCL") as process:
        yield process


@pytest.fixture
def calls(place: Path, stand_in: StandIn) -> Calls:
    """The output of a program in ``runs`` runs of the network with some options, and the calls that it makes."""

    def made(*options: str, runs: int = 1, bundle: str = "net.tenon", **texts: str) -> list[str]:
        gpu = dict(option.split("=", 1) for option in options)
        return stand_in.run(place / bundle, "opencl", runs, gpu, **texts)

    return made


def programs(listed: list[str]) -> list[str]:
    return [line for line in listed if line in ("source", "binary")]


def test_kernels_are_compiled_once_and_kept(calls: Calls, tmp_path: Path) -> None:
    """The kernels are compiled again where the file is damaged, of another driver or refused by this one."""
    cache = tmp_path / "kernels"
    option = f"cache={cache}"
    assert programs(calls()) == ["source"]
    assert programs(calls(option)) == ["source"]
    (file,) = cache.iterdir()
    assert (cache.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    whole = file.read_bytes()
    assert programs(calls(option)) == ["binary"]
    assert programs(calls(option, name="Another")) == ["source"]
    assert programs(calls(option, driver="1.2.4")) == ["source"]
    assert programs(calls(option, driver="1.2.4")) == ["binary"]
    assert programs(calls(option, "reuse=same-gpu")) == ["binary"]
    assert programs(calls(option, "reuse=same-gpu", fault="other code")) == ["binary", "source"]
    for damaged in (
        whole[:-3],
        whole[:40],
        b"",
        whole.replace(b"compiled", b"Compiled"),
        whole.replace(b"\n\n", b"\n"),
    ):
        file.write_bytes(damaged)
        assert programs(calls(option)) == ["source"]
        assert file.read_bytes() == whole


def test_what_cannot_be_kept_is_compiled(calls: Calls, tmp_path: Path) -> None:
    """A folder that cannot be made or written, a file that others may write, a link."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "absent" / "folder", Path("/proc")):
        assert programs(calls(f"cache={folder}")) == ["source"]
    cache = tmp_path / "kernels"
    assert programs(calls(f"cache={cache}")) == ["source"]
    (file,) = cache.iterdir()
    file.chmod(0o666)
    assert programs(calls(f"cache={cache}")) == ["source"]
    assert file.stat().st_mode & 0o777 == 0o600
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert programs(calls(f"cache={cache}")) == ["source"]
    assert not file.is_symlink()
    assert programs(calls(f"binary={tmp_path / 'elsewhere'}")) == ["binary"]
    assert list(cache.iterdir()) == [file]


KILLED = """
import resource, signal, sys, tenon
with tenon.open(sys.argv[1], target="opencl", gpu={"cache": sys.argv[2]}) as engine:
    signal.signal(signal.SIGXFSZ, getattr(signal, sys.argv[3]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    print(*engine.run())
"""


@pytest.mark.parametrize(("signal", "printed"), [("SIG_DFL", ""), ("SIG_IGN", "y")])
def test_no_file_is_left_half_written(signal: str, printed: str, calls: Calls, place: Path, tmp_path: Path) -> None:
    """A process is killed while it writes kernels down, or the disk is full: the next run compiles them again."""
    cache = tmp_path / "kernels"
    words = [sys.executable, "-c", KILLED, str(place / "net.tenon"), str(cache), signal]
    done = subprocess.run(words, env=with_fault(place, ""), capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode == 0) == (printed, bool(printed)), done.stderr
    left = list(cache.iterdir())
    assert [file.stat().st_size for file in left] == ([] if printed else [100])
    assert not [file for file in left if file.suffix == ".kernels"]
    assert programs(calls(f"cache={cache}")) == ["source"]
    assert programs(calls(f"cache={cache}")) == ["binary"]


Launch = tuple[int, int, int]


def launches(listed: list[str]) -> list[Launch]:
    """The first thread, the number of threads, and those of a group."""
    made = (line.split()[1:] for line in listed if line.startswith("launch"))
    return [(int(first), int(threads), int(group)) for first, threads, group in made]


USUAL = [(0, 16384, 64), (0, 65536, 64), (0, 16384, 64)]


def test_launches_are_cut_by_their_time(calls: Calls) -> None:
    """The first run measures; those after it launch whole groups in slices, which follow each other."""
    assert launches(calls(runs=2)) == 2 * USUAL
    made = launches(calls("kernel_time=1", runs=2, time="100"))
    assert made[:3] == USUAL
    cut = made[3:]
    assert [each for each in cut if each[0] == 0] == [(0, 8192, 64), (0, 9408, 64), (0, 8192, 64)]
    ends = [first + threads for first, threads, _ in cut]
    assert all(first in (0, end) for (first, _, _), end in zip(cut[1:], ends, strict=False))
    assert sum(threads for _, threads, _ in cut) == sum(threads for _, threads, _ in USUAL)
    assert all(threads % group == 0 and 100 * threads <= 1_000_000 for _, threads, group in cut)
    assert launches(calls("kernel_time=1", runs=2, time="1")) == 2 * USUAL


def test_groups_are_as_large_as_the_device_runs_them(calls: Calls, place: Path) -> None:
    """Only kernels that run in groups of any size change; others need a bundle of their own."""
    (refused,) = calls(fault="small groups")[:1]
    assert "runs 16 threads in a group of kernel net_step_0, and the network has 64: it was made for another" in refused
    content = model([node("Tanh", ["x"], ["y"])], {"x": [1, 300]}, ["y"]).SerializeToString()
    save_container(place / "single.tenon", [tenon.compile(content, target="opencl", name="single", no_tuning=True)])
    small = launches(calls(bundle="single.tenon", fault="small groups"))
    assert small == [(0, 80, 16)]  # a thread computes four elements


def test_operands_are_read_from_images_where_that_is_asked_for(calls: Calls, tmp_path: Path) -> None:
    """Devices that read images faster do so too, as far as these are large enough; such kernels are kept apart."""

    def images(listed: list[str]) -> list[str]:
        return [line for line in listed if line.startswith("image")]

    weights, inputs = "image 0x10de 16384", "image 0x10de 32768"
    assert images(calls("images=on")) == [weights]
    assert images(calls("images=all")) == images(calls(name="QUALCOMM Adreno(TM)")) == [weights, inputs]
    assert images(calls("images=all", fault="small images")) == [weights]
    for listed in (calls(), calls("images=off", name="QUALCOMM Adreno(TM)"), calls("images=all", fault="no images")):
        assert images(listed) == []
        assert launches(listed) == USUAL
    cache = f"cache={tmp_path}"
    assert [programs(calls(cache, f"images={word}")) for word in ("on", "off", "all", "on")] == [
        ["source"],
        ["source"],
        ["source"],
        ["binary"],
    ]


def test_the_queue_is_waited_for_and_flushed(calls: Calls) -> None:
    def pace(listed: list[str]) -> str:
        return " ".join(line.split()[0] for line in listed if line.split()[0] in ("launch", "flush", "finish"))

    assert pace(calls()) == "launch launch launch finish"
    assert pace(calls("queue_window=1")) == "launch finish launch finish launch finish finish"
    assert pace(calls("queue_window=2")) == "launch launch finish launch finish"
    cut = pace(calls("kernel_time=0.1", runs=2, time="100", name="Mali-G710 r0p0"))
    assert f"finish {'launch ' * 24}flush {'launch ' * 24}flush" in cut
    assert "flush" not in pace(calls("kernel_time=0.1", runs=2, time="100"))


def test_groups_are_measured_once_for_all_networks_and_devices(calls: Calls, place: Path, tmp_path: Path) -> None:
    """The usual size wins where all are alike, as in the stand-in."""
    file = tmp_path / "groups"
    tried = launches(calls(f"tune={file}"))
    assert {group for _, _, group in tried} == {16, 32, 64, 128, 256, 512}
    title, device, measured = file.read_text().splitlines()
    key, group = measured.split()
    assert (title, device, len(key), group) == ("tenon gpu parameters 1", "device: Stand-in", 16, "64")
    assert launches(calls(f"tune={file}")) == USUAL
    assert len(launches(calls(f"tune={file}", name="Another"))) == len(tried)
    both = file.read_text()
    assert both.split("\n", 1)[1].split() == f"{device}\n{measured}\ndevice: Another\n{measured}".split()
    file.write_text(f"{both}device: Another\n{key} 32\ndevice: Stand-in\n{key} 128\n0123456789abcdef 16\n")
    for option in ("parameters", "tune"):
        assert launches(calls(f"{option}={file}"))[1] == (0, 65536, 128)
        assert launches(calls(f"{option}={file}", name="Another"))[1] == (0, 65536, 32)
    assert launches(calls(f"parameters={file}", name="None")) == USUAL
    file.write_text(f"something else\ndevice: Stand-in\n{key} 128\n")
    assert launches(calls(f"parameters={file}")) == USUAL
    assert launches(calls(f"parameters={tmp_path / 'absent'}")) == USUAL
    unwritten = calls("tune=/proc/groups")[0]
    assert unwritten == "'net' failed on the device: the parameters cannot be written to /proc/groups"


@pytest.mark.parametrize("language", ["opencl", "vulkan", "cuda"])
def test_tune_keeps_groups_in_a_file(language: str, place: Path, tmp_path: Path) -> None:
    needs_compiler(language)
    if reason := why_not(language):
        pytest.skip(reason)
    given = ("--table", tmp_path / "table", "--gpu-parameters", tmp_path / "groups")
    content = model([node("Tanh", ["x"], ["y"])], {"x": [1, 300]}, ["y"]).SerializeToString()
    (tmp_path / "net.onnx").write_bytes(content)
    done = command("tune", tmp_path / "net.onnx", "--target", language, *given)
    assert (done.returncode, f"work groups in {tmp_path / 'groups'}" in done.stdout) == (0, True), done.stderr
    stated = (tmp_path / "groups").read_text()
    assert len(stated.splitlines()) == 3
    x, bundle = np.linspace(-3, 3, 300, dtype=np.float32)[None], tenon.compile(content, target=language, no_tuning=True)
    for size in (16, 128):
        (tmp_path / "groups").write_text(re.sub(r"\d+\n$", f"{size}\n", stated))
        with tenon.open(bundle, gpu={"parameters": tmp_path / "groups"}) as engine:
            np.testing.assert_allclose(engine.run(x)["y"], np.tanh(x), atol=1e-6)
    done = command("tune", tmp_path / "net.onnx", "--target", "x86-64", *given)
    assert (done.returncode, "x86-64 has no work groups to choose" in done.stderr) == (2, True), done.stderr


QUALCOMM = "cl_khr_fp16 cl_qcom_perf_hint cl_qcom_priority_hint"


@pytest.mark.parametrize(
    ("name", "version", "extensions", "expected"),
    [
        ("QUALCOMM Adreno(TM)", "OpenCL 2.0 Adreno", QUALCOMM, ["context 0x40c2 0x40c3", "context 0x40c9 0x40cc"]),
        ("QUALCOMM Adreno(TM)", "OpenCL 1.2 Adreno", QUALCOMM, []),
        ("Mali-G78", "OpenCL 3.0", "cl_khr_priority_hints", ["queue 0x1096 0x4"]),
        ("Mali-G78", "OpenCL 3.0", "cl_khr_priority_hints_of_another", []),
    ],
)
def test_hints_are_given_to_drivers_that_take_them(
    name: str, version: str, extensions: str, expected: list[str], calls: Calls
) -> None:
    listed = calls("performance=high", "priority=low", name=name, version=version, extensions=extensions)
    assert [line for line in listed if line.startswith(("context", "queue"))] == expected


def test_options_of_the_bundle_count_unless_others_are_given(place: Path, tmp_path: Path) -> None:
    """``tenon compile --gpu``, and ``tenon run --gpu`` on the result."""
    log = tmp_path / "log"
    done = command("compile", place / "net.onnx", "--target", "opencl", "--gpu", "queue_window=1", "-o", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    environment: dict[str, Any] = {
        name: text for name, text in with_fault(place, "", log=str(log)).items() if name not in os.environ
    }
    for given, finishes in (((), 4), (("--gpu", "queue_window=2"), 2)):
        log.unlink(missing_ok=True)
        done = command("benchmark", tmp_path / "b", "--rounds", "1", *given, **environment)
        assert done.returncode == 0, done.stderr
        listed = log.read_text().splitlines()
        assert listed.count("finish") / (len(launches(listed)) / 3) == finishes


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"windows": 1}, "gpu: there is no option 'windows': the options are cache, binary"),
        ({"queue_window": -1}, "gpu: queue_window must be 0 or more"),
        ({"priority": "highest"}, "gpu: priority"),
        ({"cache": "a\nb"}, "gpu: cache must be one line"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, object], text: str, place: Path) -> None:
    with pytest.raises(InputError, match=text):
        tenon.open(place / "net.tenon", target="opencl", gpu=given)
    with pytest.raises(InputError, match=text):
        tenon.compile(place / "net.onnx", target="opencl", gpu=given)


def test_options_without_a_gpu(place: Path) -> None:
    with pytest.raises(InputError, match="target x86-64 is no GPU: leave out the options of one"):
        tenon.compile(place / "net.onnx", target="x86-64", gpu={"priority": "low"})
    done = command("run", place / "net.onnx", "--target", "host", "--gpu", "priority=low")
    assert (done.returncode, "--gpu: no effect: net runs on the processor" in done.stderr) == (2, True), done.stderr
    for out in ("out", "out.tenon"):
        given = ("-o", place / out, "--target", "x86-64", "--gpu", "priority=low")
        done = command("compile", place / "net.onnx", *given)
        assert (done.returncode, "--gpu: no effect: target x86-64 is no GPU" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("language", ["opencl", "vulkan", "cuda"])
def test_results_do_not_depend_on_the_options(language: str, place: Path, tmp_path: Path) -> None:
    """Kept kernels, slices and hints on a real device."""
    needs_compiler(language)
    if reason := why_not(language):
        pytest.skip(reason)
    bundle = tenon.compile(place / "net.onnx", target=language, no_tuning=True)
    x = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    options = {"cache": tmp_path, "kernel_time": 1e-6, "queue_window": 3, "priority": "low", "performance": "low"}
    options["images"] = "all"
    with tenon.open(bundle) as plain:
        expected = plain.run(x)["y"]
    for _ in range(2):
        with tenon.open(bundle, gpu=options) as engine:
            for _ in range(2):
                np.testing.assert_array_equal(engine.run(x)["y"], expected)
            if language == "opencl":
                assert engine.device_times()[2:].all()
        assert len(list(tmp_path.iterdir())) == 1
