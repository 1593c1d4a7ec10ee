"""Multithreaded runs: bit-identical results, no races, no hangs, no leaked threads."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import pytest

import tenon
from onnx_models import model, node, random
from real import DIGITS, held_out_digits, zoo_model
from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.runtime.bundle import Bundle
from tenon.runtime.bundle.link import runtime

pytestmark = pytest.mark.usefixtures("every_kernel_divided")

NETS = ["squeezenet_v1.1", "mobilenet_v3_small", "retinaface_mnet025"]


@pytest.fixture(scope="module")
def digits(every_kernel_divided: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tenon.compile(DIGITS / "digits.onnx", name="digits").save(tmp_path_factory.mktemp("digits") / "digits")


@pytest.fixture(scope="module", params=NETS)
def net(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return tenon.compile(zoo_model(request.param, tmp_path_factory.mktemp("zoo")), name="net")


def feeds(engine: tenon.Engine, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {n: np.asarray(rng.standard_normal(a.shape), a.dtype) for n, a in engine.inputs.items()}


def workers() -> int:
    """Native threads of this process, which Python did not start."""
    return len(tasks()) - threading.active_count()


def tasks() -> list[int]:
    return [int(task.name) for task in Path("/proc/self/task").iterdir()]


# -------------------------------------------------------------------------------------------- the same answer
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_repeated_runs(threads: int, digits: Path) -> None:
    images, _ = held_out_digits()
    with tenon.open(digits) as alone, tenon.open(digits, threads=threads) as together:
        for i in range(200):
            image = images[i % len(images)]
            assert together.run(image)["probabilities"].tobytes() == alone.run(image)["probabilities"].tobytes()


def test_zoo_models_are_bit_identical_for_any_number_of_threads(net: Bundle) -> None:
    with tenon.open(net) as alone:
        given = feeds(alone)
        expected = {name: array.tobytes() for name, array in alone.run(given).items()}
    for threads in (2, 3, 8):
        with tenon.open(net, threads=threads) as engine:
            for _ in range(20):
                assert {name: array.tobytes() for name, array in engine.run(given).items()} == expected


def test_engines_in_several_python_threads_at_once(digits: Path) -> None:
    images, _ = held_out_digits()
    with tenon.open(digits, threads=2) as engine:
        expected = [engine.run(image)["probabilities"].tobytes() for image in images[:50]]
        engines = [engine.fork(), engine.fork(), engine]
        results: dict[int, list[bytes]] = {}

        def work(i: int) -> None:
            results[i] = [engines[i].run(image)["probabilities"].tobytes() for image in images[:50]]

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(engines))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert all(answers == expected for answers in results.values())
        assert len(results) == len(engines)
        for twin in engines:
            twin.close()


def test_executable_with_threads(tmp_path: Path) -> None:
    images, _ = held_out_digits()
    images[0].tofile(tmp_path / "image.bin")
    bundle = tenon.compile(DIGITS / "digits.onnx", name="digits", threads=4)
    program = bundle.save(tmp_path / "digits", ("exe",)) / "digits"
    answers = set()
    for threads in ("1", "2", "4"):
        command = [str(program), "image.bin", "--threads", threads, "--repeat", "50", "--raw-output", "y.bin"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        answers.add((tmp_path / "y.bin").read_bytes())
    assert len(answers) == 1
    command = [str(program), "--threads", "5", str(tmp_path / "image.bin")]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "made for 1 to 4" in refused.stderr


# ------------------------------------------------------------------------------------------------- lifetimes
def test_close_stops_the_threads(digits: Path) -> None:
    before = workers()
    engine = tenon.open(digits, threads=4)
    assert engine.threads == 4
    assert workers() == before  # none before the first run
    engine.run(feeds(engine))
    assert workers() == before + 3
    engine.close()
    assert workers() == before
    engine.close()


def test_garbage_collected_engine_stops_its_threads(digits: Path) -> None:
    before = workers()
    gc.disable()  # an engine must not be part of a reference cycle
    try:
        engine = tenon.open(digits, threads=3)
        engine.run(feeds(engine))
        del engine
        assert workers() == before
    finally:
        gc.enable()


def test_forked_child_has_its_own_threads(digits: Path) -> None:
    with tenon.open(digits, threads=2) as engine:
        given = feeds(engine)
        expected = engine.run(given)["probabilities"]
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, engine.run(given)["probabilities"].tobytes())
            engine.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(reader, expected.nbytes) == expected.tobytes()
        assert engine.run(given)["probabilities"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("ending", ["", "engine.close()", "sys.exit(0)", "del engine"])
def test_interpreter_exits_with_running_threads(ending: str, digits: Path) -> None:
    script = f"import sys, tenon; engine = tenon.open({str(digits)!r}, threads=3); engine.run(); {ending}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=60)


# --------------------------------------------------------------------------------------------------- refusals
def test_limits_are_in_the_manifest_and_respected(tmp_path: Path) -> None:
    folder = tenon.compile(DIGITS / "digits.onnx", threads=2).save(tmp_path / "two")
    with tenon.open(folder, threads=2) as engine:
        assert engine.manifest.threads == 2
    for threads in (0, 3, -1):
        with pytest.raises(InputError, match="made for 1 to 2"):
            tenon.open(folder, threads=threads)
    with pytest.raises(InputError, match="cortex-m7 has no threads"):
        tenon.compile(DIGITS / "digits.onnx", target="cortex-m7", threads=2)
    assert tenon.compile(DIGITS / "digits.onnx", target="cortex-m7").program.threads == 1


def test_threads_option_of_the_command_line(digits: Path, tmp_path: Path) -> None:
    images, _ = held_out_digits()
    np.save(tmp_path / "image.npy", images[0])
    command = [sys.executable, "-m", "tenon", "run", str(digits), "--input", str(tmp_path / "image.npy"), "--json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)

    alone, together = (json.loads(run("--threads", n).stdout) for n in ("1", "2"))
    assert alone["top"] == together["top"]
    refused = run("--threads", "9")
    assert refused.returncode != 0
    assert "made for 1 to 8" in refused.stderr


def test_single_threaded_bundles_contain_no_thread_pool() -> None:
    bundle = tenon.compile(DIGITS / "digits.onnx", threads=1)
    banner, _, code = bundle.source.partition("*/")
    assert "threads=1" in banner
    assert "thread" not in code.replace("__thread", "")
    assert "MAX_THREADS" not in bundle.header
    assert b"pthread" not in bundle.library


def test_affinity_holds_for_all_threads_until_close(digits: Path) -> None:
    allowed = os.sched_getaffinity(0)
    processor = min(allowed)
    with tenon.open(digits, threads=3, affinity=[processor]) as engine:
        engine.run(feeds(engine))
        assert sum(os.sched_getaffinity(t) == {processor} for t in tasks()) >= 3
    assert os.sched_getaffinity(0) == allowed


# ------------------------------------------------------------------------------------------------------ races
def test_workers_stay_off_the_processor_of_the_caller() -> None:
    """Linux may wake them there, where they would wait for the caller."""
    weights = np.random.default_rng(1).uniform(-1, 1, (64, 64, 3, 3)).astype(np.float32)
    network = model([node("Conv", ["x", "w"], ["y"])], {"x": [1, 64, 64, 64]}, ["y"], {"w": weights})
    present, before = os.sched_getaffinity(0), set(tasks())
    if len(present) < 2:
        pytest.skip("this process may use one processor only")
    with tenon.open(tenon.compile(network.SerializeToString()), threads=2) as engine:
        engine.run()
        (worker,) = set(tasks()) - before
        for own in sorted(present)[:2]:
            os.sched_setaffinity(0, {own})  # of the calling thread; the pool was started before
            try:
                sleep(0.05)
                engine.run()
            finally:
                os.sched_setaffinity(0, present)
            assert os.sched_getaffinity(worker) == present - {own}


def test_more_threads_than_processors_run_anywhere(digits: Path) -> None:
    present, before = os.sched_getaffinity(0), set(tasks())
    with tenon.open(digits, threads=len(present) + 1) as engine:
        for _ in range(2):
            engine.run(held_out_digits()[0][0])
            sleep(0.05)
        assert {frozenset(os.sched_getaffinity(task)) for task in set(tasks()) - before} == {frozenset(present)}


def with_pool(name: str, place: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and output of a program beside this file, which includes the thread pool."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    for file in ("threads.c", "threads.h"):
        (place / file).write_bytes(runtime(file))
    source = Path(__file__).with_name(name)
    command = [gcc, "-std=gnu99", "-O1", f"-I{place}", str(source), "-o", str(place / "program"), "-pthread"]
    subprocess.run(command, check=True)
    done = subprocess.run([place / "program", *arguments], capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout


def test_no_wake_up_is_lost(tmp_path: Path) -> None:
    """Threads that are descheduled between the decision to sleep and sleeping, or before they wake others; of six,
    finished parts are counted in two groups."""
    assert with_pool("delayed_threads.c", tmp_path, "500") == (0, "224000 of 224000\n")
    assert with_pool("delayed_threads.c", tmp_path, "30", "6") == (0, "40320 of 40320\n")


def test_workers_are_woken_for_long_runs_only(tmp_path: Path) -> None:
    """The callers of short runs with pauses between them run alone, unless runs become long."""
    assert with_pool("short_runs.c", tmp_path) == (0, "short alone, long shared, short alone again\n")


def loop() -> bytes:
    """A recurrent layer of 40 steps, which is a loop."""
    weights = {"w": random(1, 64, 8), "r": random(1, 64, 16)}
    made = node("LSTM", ["x", "w", "r"], ["y"], hidden_size=16)
    content: bytes = model([made], {"x": [40, 3, 8]}, ["y"], weights).SerializeToString()
    return content


@pytest.mark.parametrize("name", ["digits", "recurrent", "squeezenet_v1.1"])
def test_thread_sanitizer_reports_no_races(name: str, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    own: dict[str, Path | bytes] = {"digits": DIGITS / "digits.onnx", "recurrent": loop()}
    network = own[name] if name in own else zoo_model(name, tmp_path)
    bundle = tenon.compile(network, name="net", target="x86-64-avx2")
    bundle.save(tmp_path / "net", emit=("c", "header", "weights"))
    for file in ("threads.c", "threads.h"):
        (tmp_path / "net" / file).write_bytes(runtime(file))
    shutil.copy(Path(__file__).with_name("thread_sanitizer.c"), tmp_path / "net" / "driver.c")
    command = [
        gcc,
        "-std=gnu99",
        "-O1",
        "-g",
        "-march=x86-64-v3",
        "-fsanitize=thread",
        "-pthread",
        '-DTENON_HEADER="net.h"',
        "-DTENON_ENTRY=net",
        "-DTENON_PREFIX=NET_",
        "-I.",
        "driver.c",
        "net.c",
        "threads.c",
        "-o",
        "driver",
    ]
    built = subprocess.run(command, cwd=tmp_path / "net", capture_output=True, text=True, check=False)
    if "libtsan" in built.stderr:
        pytest.skip("gcc has no ThreadSanitizer runtime")
    assert built.returncode == 0, built.stderr
    # Without address space randomisation, which old sanitizer runtimes do not support.
    run = [*(["setarch", "-R"] if shutil.which("setarch") else []), "./driver", "net.weights.bin"]
    done = subprocess.run(run, cwd=tmp_path / "net", capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "0 of 7 runs differ" in done.stdout


def _burn(stop: object) -> None:
    while not stop.is_set():  # type: ignore[attr-defined]
        for _ in range(100_000):
            pass


@pytest.mark.slow
def test_a_descheduled_thread_delays_by_one_part(net: Bundle) -> None:
    """Two threads, one of which shares its processor with other work, take at most 2.5 times as long as one thread."""
    with tenon.open(net) as alone, tenon.open(net, threads=2) as together:
        for engine in (alone, together):
            engine.run(feeds(engine))
        undisturbed = _median(alone)
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        others = [context.Process(target=_burn, args=(stop,)) for _ in range(max(1, (os.cpu_count() or 2) - 1))]
        for other in others:
            other.start()
        try:
            disturbed = _median(together)
        finally:
            stop.set()
            for other in others:
                other.join()
    assert disturbed < 2.5 * undisturbed


def _median(engine: tenon.Engine, seconds: float = 2.0) -> float:
    times = [perf_counter()]
    while times[-1] - times[0] < seconds:
        engine.run(copy=False)
        times.append(perf_counter())
    return float(np.median(np.diff(times)))
