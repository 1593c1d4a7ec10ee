"""Bundles run on the machine of every target give bit-identical results; the runner interface."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import handmade
import tenon
from command_line import run_main
from on_targets import COMPILED, EMULATED, selected, skip_without_device
from onnx_models import model, node
from programs import needed
from tenon.cli import main
from tenon.errors import InputError, ToolchainError
from tenon.machine.targets import find
from tenon.machine.targets.host import runner_of
from tenon.machine.targets.runner import Finished, Local, Session
from tenon.pipeline import tune
from tenon.runtime.bundle.names import executable_name, library_name
from tenon.runtime.engine.device import RemoteBundle, run_on_device
from tenon.runtime.engine.instruction_count import count
from tenon.runtime.engine.profile import profile

X = np.linspace(-3, 3, 10, dtype=np.float32).reshape(1, 10)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("target", selected(COMPILED))
def test_results_are_equal_for_any_number_of_threads(target: str, cache: Path) -> None:
    skip_without_device(target)
    device = RemoteBundle(handmade.bundle(target, cache, rounds=3))
    # multiples of 0.5 and small integers: every operation is exact, so fused and separate multiply-adds agree
    feeds = [np.round(X + i) for i in range(3)]
    for feed, answer in zip(feeds, device.run([{"x": feed} for feed in feeds]), strict=True):
        np.testing.assert_array_equal(answer["y"], handmade.expected(feed, 3))


@pytest.mark.parametrize("target", ["aarch64", "cortex-m7"])
def test_missing_emulator_names_the_package(target: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ToolchainError, match=r"apt-get install qemu-(user|system-arm)"):
        RemoteBundle(handmade.bundle(target, cache))


@pytest.mark.parametrize("target", selected(COMPILED))
def test_nonzero_return_code_is_an_error(target: str, cache: Path) -> None:
    skip_without_device(target)
    bundle = handmade.bundle(target, cache)
    bundle = handmade.with_source(bundle, bundle.source.replace("return 0;", "return 7;"))
    with pytest.raises(ToolchainError, match=rf"'affine' on {_runner(target)}: the network failed"):
        run_on_device(bundle, X)


def _runner(target: str) -> str:
    runner = runner_of(find(target))
    assert runner
    return runner.name


@pytest.mark.parametrize("target", selected([name for name in COMPILED if find(name).linker_script]))
def test_arithmetic_without_hardware_support(target: str) -> None:
    """Linked with zig's compiler_rt, which is cached after the first link; it does f64 conversions in integer
    registers.
    """
    skip_without_device(target)
    bundle = handmade.bundle(target)
    divide = "volatile int64_t n = 100, d = 7; *(float *)(mutableWeight + 64) = (float)((double)(n / d) + 0.5);"
    divide += "\n  return 0;"
    answer = run_on_device(handmade.with_source(bundle, bundle.source.replace("return 0;", divide)), X)
    assert answer["y"][0, 0] == 14.5


OTHER_SYSTEMS = {
    "android-arm64": b"\x7fELF",
    "ios": b"\xcf\xfa\xed\xfe",
    "macos-arm64": b"\xcf\xfa\xed\xfe",
    "macos-x86_64": b"\xcf\xfa\xed\xfe",
    "windows-x86_64": b"MZ",
    "windows-arm64": b"MZ",
}
"""Systems other than this one, and what their libraries begin with."""


@pytest.mark.parametrize("target", OTHER_SYSTEMS)
def test_libraries_for_other_systems(target: str, cache: Path, tmp_path: Path) -> None:
    bundle = handmade.bundle(target, cache)
    bundle.save(tmp_path / "out")
    name = library_name("affine", bundle.target)
    assert name
    content = (tmp_path / "out" / name).read_bytes()
    assert content.startswith(OTHER_SYSTEMS[target])
    assert b"affine" in content, "the entry point is exported"


@pytest.mark.parametrize("target", ["android-arm64", "ios"])
def test_executables_need_a_c_library(target: str, cache: Path) -> None:
    with pytest.raises(InputError, match=rf"zig has no C library for target {target}: link the object or the library"):
        _ = handmade.bundle(target, cache).executable


@pytest.mark.slow
@pytest.mark.parametrize(("target", "emulator"), [("windows-x86_64", "wine64"), ("s390x", "qemu-s390x")])
def test_executables_for_other_systems(target: str, emulator: str, tmp_path: Path) -> None:
    """The input is an .npy file, which is little-endian; the output is in the machine's own byte order."""
    command = needed(emulator)
    bundle = handmade.bundle(target, rounds=3, emit=("exe",))
    folder = bundle.save(tmp_path / "out")
    program = folder / executable_name("affine", bundle.target)
    np.save(tmp_path / "x.npy", np.round(X))
    environment = {**os.environ, "WINEPREFIX": str(tmp_path / "wine"), "WINEDEBUG": "-all"}
    run = [command, str(program), "x.npy", "--raw-output", "y.bin"]
    subprocess.run(run, cwd=tmp_path, env=environment, check=True, capture_output=True)
    order = {"little": "<", "big": ">"}[bundle.target.byte_order]
    y = np.fromfile(tmp_path / "y.bin", f"{order}f4").reshape(X.shape)
    np.testing.assert_array_equal(y, handmade.expected(np.round(X), 3))


def test_feeds_are_checked(cache: Path) -> None:
    skip_without_device("wasm32")
    with pytest.raises(InputError, match="float64"):
        run_on_device(handmade.bundle("wasm32", cache), X.astype(np.float64))


@pytest.mark.parametrize("target", selected(COMPILED))
def test_runs_are_timed_on_the_device(target: str, cache: Path) -> None:
    skip_without_device(target)
    with RemoteBundle(handmade.bundle(target, cache, rounds=50_000)) as device:
        times = device.time(3, warmup=1)
        assert len(times.samples) == 3
        assert times.min > 0
        short = RemoteBundle(handmade.bundle(target, cache, rounds=1)).time(3, warmup=1)
        assert short.min < times.min
        assert device.run([X])[0]["y"].shape == (1, 10)


def test_bundles_without_profile_cannot_be_timed_by_step(cache: Path) -> None:
    skip_without_device("wasm32")
    bundle = handmade.bundle("wasm32", cache)
    with pytest.raises(InputError, match="at least 1"):
        RemoteBundle(bundle).time(0)
    with pytest.raises(InputError, match="compile the model again with --profile"):
        RemoteBundle(bundle).timestamps(1)
    made = replace(bundle.compilation, recorded={**bundle.compilation.recorded, "profile": True})
    with pytest.raises(InputError, match="only be timed as a whole"):
        RemoteBundle(replace(bundle, compilation=made)).timestamps(1)


class Remote:
    """A runner like one for ssh or adb: only commands that copy files and run programs in another folder."""

    name, emulates = "elsewhere", False

    def __init__(self, place: Path) -> None:
        self.place, self.pushed = place, list[str]()

    def missing(self) -> str:
        return ""

    @contextmanager
    def session(self) -> Iterator[Session]:
        self._shell("mkdir place")
        yield self
        self._shell("rm -r place")

    def push(self, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            self.pushed.append(name)
            self._shell(f"cat > place/{name}", content)

    def run(self, program: str, arguments: Sequence[str] = ()) -> Finished:
        done = self._shell(f"cd place && chmod +x {program} && ./{program} {' '.join(arguments)}")
        return Finished(done.returncode, done.stderr.decode())

    def pull(self, name: str) -> bytes:
        return self._shell(f"cat place/{name}").stdout

    def _shell(self, command: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(["sh", "-c", command], cwd=self.place, input=given, capture_output=True, check=False)


def test_device_works_with_any_push_run_pull_runner(cache: Path, tmp_path: Path) -> None:
    remote = Remote(tmp_path)
    with RemoteBundle(handmade.bundle("host", cache, rounds=3), remote) as device:
        for feed in (np.round(X), np.round(X + 1)):
            np.testing.assert_array_equal(device.run([feed])[0]["y"], handmade.expected(feed, 3))
        assert device.time(2).min > 0
    assert remote.pushed == ["probe_run", "input.bin", "input.bin", "probe_time", "input.bin"]
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------- tuning and profiling
def small_network() -> bytes:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 4, 3, 3), np.float32), "v": rng.standard_normal((8, 8, 1, 1), np.float32)}
    nodes = [node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]), node("Conv", ["h", "v"], ["y"])]
    made: bytes = model(nodes, {"x": [1, 4, 6, 6]}, ["y"], weights).SerializeToString()
    return made


@pytest.mark.parametrize("target", selected([name for name in EMULATED if find(name).object == "elf"]))
def test_profile_on_another_machine(target: str) -> None:
    skip_without_device(target)
    bundle = tenon.compile(small_network(), name="small", target=target, profile=True)
    with RemoteBundle(bundle) as device:
        measured = profile(device, rounds=3, warmup=1)
    assert (measured.target, measured.threads, measured.name) == (target, 1, "small")
    assert [row.op for row in measured.rows if row.op == "Conv"] == ["Conv", "Conv"]
    assert all(row.min > 0 for row in measured.rows)
    assert measured.warmup is not None
    assert len(measured.warmup.samples) == 1
    assert len(measured.plain.samples) == len(measured.stamped.samples) == 3
    assert 0 < measured.total <= 1.01 * measured.stamped.mean
    assert measured.peak > 0


def test_profile_command_for_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_device("aarch64")
    path = tmp_path / "small.onnx"
    path.write_bytes(small_network())
    command = ["profile", str(path), "--target", "aarch64", "--rounds", "2", "--json"]
    assert run_main(main, command) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["target"] == "aarch64"
    assert len(shown["operators"]) >= 2


@pytest.mark.parametrize("target", ["aarch64", "s390x", "wasm32", "cortex-m4"])
def test_run_command_for_another_machine(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_device(target)
    (tmp_path / "small.onnx").write_bytes(small_network())
    x = np.random.default_rng(1).standard_normal((1, 4, 6, 6), np.float32)
    np.save(tmp_path / "x.npy", x)
    outputs = []
    for where in (target, "host"):
        command = ["run", str(tmp_path / "small.onnx"), "--input", str(tmp_path / "x.npy"), "--target", where]
        assert run_main(main, [*command, "--output", str(tmp_path / "y.npz"), "--json"]) == 0
        shown = capsys.readouterr()
        with np.load(tmp_path / "y.npz") as arrays:
            outputs.append(arrays["y"])
        assert ("runs on an emulator, " in shown.err) == (where == target)
        assert json.loads(shown.out).get("runner") == (_runner(target) if where == target else None)
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=0, atol=1e-5)  # sums of 36 products, fused or not


@pytest.mark.parametrize("target", ["mips", "wasm32", "cortex-m4"])
def test_benchmark_counts_instructions_on_an_emulator(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_device(target)
    counts = []
    for _ in range(2):
        (tmp_path / "small.onnx").write_bytes(small_network())
        assert run_main(main, ["benchmark", str(tmp_path / "small.onnx"), "--target", target, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["networks"]
        assert (row["target"], row["runner"]) == (target, _runner(target))
        counts.append(row["instructions"])
    assert counts[0] == counts[1], "the count does not depend on the machine's speed"
    assert counts[0] > 36 * (4 * 9 * 8 + 8 * 8) / 4, "at least an instruction for four multiply-adds"


@pytest.mark.parametrize("target", ["aarch64", "wasm32"])
def test_instructions_of_a_loop_are_counted(target: str) -> None:
    skip_without_device(target)
    few, more = (count(handmade.bundle(target, rounds=rounds), [X, X]) for rounds in (100, 300))
    assert few.instructions[0] == few.instructions[1]
    each, rest = divmod(more.instructions[0] - few.instructions[0], 200)
    assert each > handmade.COUNT
    assert rest < 4, "every iteration of the loop has as many, but for those of its first"
    np.testing.assert_array_equal(few.outputs[0]["y"], few.outputs[1]["y"])


def test_instructions_are_counted_on_emulators_only() -> None:
    with pytest.raises(ToolchainError, match="instructions are counted on emulators, and x86-64 runs on this machine"):
        count(handmade.bundle("x86-64"), [X])


@pytest.mark.slow
def test_tune_on_an_emulator_does_not_affect_compilation(tmp_path: Path) -> None:
    """Times from an emulator are stored, but not used for choosing algorithms."""
    skip_without_device("aarch64")
    changes: Any = {"target": "aarch64", "tuning": tmp_path / "tuning.sqlite"}
    tuned = list(tune(small_network(), **changes))
    assert len(tuned) == 2
    assert all(len(layer.seconds) > 1 and layer.best > 0 for layer in tuned)
    again = list(tune(small_network(), **changes))
    assert [layer.seconds for layer in again] == [layer.seconds for layer in tuned]
    assert tenon.compile(small_network(), **changes).tuned is None


def test_tune_on_a_device_affects_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the emulator presented as a real device."""
    skip_without_device("aarch64")
    monkeypatch.setattr(Local, "emulates", False)
    changes: Any = {"target": "aarch64", "tuning": tmp_path / "tuning.sqlite"}
    results = list(tune(small_network(), **changes))
    tuned = tenon.compile(small_network(), **changes).tuned
    assert tuned is not None
    assert tuned.layers == len(results) == 2


def test_tune_on_another_machine_uses_one_thread(tmp_path: Path) -> None:
    skip_without_device("aarch64")
    with pytest.raises(InputError, match="leave out threads=2"):
        list(tune(small_network(), target="aarch64", threads=2, tuning=tmp_path / "tuning.sqlite"))
