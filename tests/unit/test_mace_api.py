"""MACE's C++ API over libtenon: programs in its manner, mace_run, misuse."""

from __future__ import annotations

import io
import os
import platform
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import tenon
from evaluate import evaluate
from libtenon import (
    BUILDS,
    CLIENTS,
    VALGRIND,
    checked,
    needed,
    needs_plain_build,
    run,
    sanitizer_flags,
    sdk_for_clients,
    succeeded,
)
from on_targets import skip_without_device
from onnx_models import model, node, random
from real import DIGITS, held_out_digits
from small_models import mace_net
from tenon.network.graph.graph import Array
from tenon.options import DataType
from tenon.runtime.bundle import read_manifest
from tenon.runtime.sdk import save_sdk
from tenon.tools.deployment import read_deployment
from tenon.tools.quantization.by_ranges import profiled, quantize_by_ranges

DEPLOYMENT = """\
library_name: digits
target_abis: [host]
model_graph_format: code
model_data_format: code
models:
  digits:
    platform: onnx
    model_file_path: MODEL
    data_type: fp32_fp32
    subgraphs:
      - {input_tensors: image, input_shapes: "1,8,8,1", output_tensors: probabilities, output_shapes: "1,10"}
"""
SECOND = """\
  numbers:
    platform: onnx
    model_file_path: MODEL
    data_type: fp32_fp32
"""
DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "howto" / "from-mace.md"
REFERENCE = DOCS / "reference" / "mace-api.md"
STRICT = ("-std=c++11", "-pedantic", "-Wall", "-Wextra", "-Werror")
RNG = np.random.default_rng(5)
X, LARGER = (RNG.uniform(-1, 1, (1, height, 5, 4)).astype(np.float32) for height in (6, 8))
W = RNG.uniform(-1, 1, (3, 4, 1, 1)).astype(np.float32)
B = np.array([0.5, -0.5, 0.25], np.float32)
pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")


def convolved(x: Array) -> Array:
    return np.asarray(np.einsum("fc,nhwc->nhwf", W[:, :, 0, 0], x) + B)


@pytest.fixture(scope="module", params=BUILDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the SDK, a model of MACE, the same as a bundle, and a command that compiles."""
    folder = tmp_path_factory.mktemp("mace")
    sdk_for_clients(folder, request.param)
    (folder / "model.pb").write_bytes(mace_net("Conv2D", {"strides": [1, 1], "padding": 1}, (W, B)))
    (folder / "model.data").write_bytes(W.tobytes() + B.tobytes())
    (folder / "empty").write_bytes(b"")
    target = "x86-64" if platform.machine() == "x86_64" else "host"  # valgrind does not know newer instructions
    tenon.compile(folder / "model.pb", no_tuning=True, profile=True, target=target).save(folder / "model.tenon")
    objects = tenon.Options.from_environment().cache
    script = folder / "compiler"
    script.write_text(f'#!/bin/sh\nTENON_CACHE="{objects}" exec "{sys.executable}" -m tenon "$@"\n')
    script.chmod(0o755)
    (folder / "broken").write_text("#!/bin/sh\necho no model >&2\nexit 2\n")
    (folder / "broken").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def environment(place: Path) -> dict[str, str]:
    cache = str(place / "cache")
    return {**os.environ, "TENON": str(place / "compiler"), "TENON_CACHE": cache, "TENON_NO_TUNING": "1"}


@pytest.fixture(scope="module")
def broken(environment: dict[str, str], place: Path) -> dict[str, str]:
    """With a compiler that refuses every model."""
    return {**environment, "TENON": str(place / "broken")}


def program(place: Path, source: Path, *more: str | Path, libraries: Sequence[str] = ()) -> Path:
    sdk, out = place / "sdk", place / source.stem
    if not out.exists():
        paths = (f"-I{sdk}/include", f"-L{sdk}/lib", "-lmace", f"-Wl,-rpath,{sdk}/lib", f"-Wl,-rpath-link,{sdk}/lib")
        succeeded(run(needed("g++"), *STRICT, *sanitizer_flags(sdk), source, *more, *paths, *libraries, "-o", out))
        checked(out, sdk)
    return out


@pytest.fixture(scope="module")
def client(place: Path) -> Path:
    return program(place, CLIENTS / "mace_client.cpp", "-Wno-pedantic", "-pthread")  # checks without a text


def check(content: bytes, shape: bytes, expected: Array, dtype: type = np.float32) -> None:
    assert tuple(map(int, shape.split())) == expected.shape
    tolerance = 1e-3 if dtype is np.float16 else 1e-6  # that of halves between 1 and 2
    np.testing.assert_allclose(np.frombuffer(content, dtype).reshape(expected.shape), expected, atol=tolerance)


def test_model_in_memory(place: Path, client: Path, environment: dict[str, str]) -> None:
    done = run(
        client, "run_model", place / "model.pb", place / "model.data", "nhwc", stdin=X.tobytes(), env=environment
    )
    check(succeeded(done), done.stderr, convolved(X))
    done = run(
        client,
        "run_model",
        place / "model.pb",
        place / "model.data",
        "nchw",
        stdin=turned(X).tobytes(),
        env=environment,
    )
    check(succeeded(done), done.stderr, turned(convolved(X)))


def turned(x: Array) -> Array:
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2))


@pytest.mark.slow
def test_inputs_of_another_shape(place: Path, client: Path, environment: dict[str, str]) -> None:
    done = run(
        client, "run_model", place / "model.pb", place / "model.data", "larger", stdin=LARGER.tobytes(), env=environment
    )
    check(succeeded(done), done.stderr, convolved(LARGER))


@pytest.mark.parametrize("case", ["nhwc", "nchw", "half", "profile"])
def test_bundle(case: str, place: Path, client: Path, broken: dict[str, str]) -> None:
    """Without the compiler: a bundle stands for graph and weights."""
    given, expected = (turned(X), turned(convolved(X))) if case == "nchw" else (X, convolved(X))
    done = run(client, "run_model", place / "model.tenon", place / "empty", case, stdin=given.tobytes(), env=broken)
    check(succeeded(done), done.stderr, expected, np.float16 if case == "half" else np.float32)
    larger = run(
        client, "run_model", place / "model.tenon", place / "empty", "larger", stdin=LARGER.tobytes(), env=broken
    )
    assert larger.returncode == 11
    assert b"has the shape 1,6,5,4, not 1,8,5,4" in larger.stderr


def test_engines_in_several_threads(place: Path, client: Path, environment: dict[str, str]) -> None:
    """Some share the memory of results; the model is compiled once for all."""
    done = run(client, "threads", place / "model.pb", place / "model.data", "4", stdin=X.tobytes(), env=environment)
    np.testing.assert_allclose(np.frombuffer(succeeded(done), np.float32), convolved(X).ravel(), atol=1e-6)


def rows_of_misuse() -> Iterator[tuple[str, int]]:
    """The cases that the page lists, with the codes that it promises."""
    codes = {"SUCCESS": 0, "INVALID_ARGS": 1, "OUT_OF_RESOURCES": 2, "UNSUPPORTED": 3, "RUNTIME_ERROR": 4}
    for cases, code in re.findall(
        r"^\| .* \| ((?:`\w+`(?:, )?)+) \| `MACE_(\w+)` \|$", REFERENCE.read_text(), re.MULTILINE
    ):
        yield from ((case, codes[code]) for case in re.findall(r"`(\w+)`", cases))


def test_misuse(place: Path, client: Path, broken: dict[str, str]) -> None:
    lines = (
        succeeded(run(client, "misuse", place / "model.tenon", place / "model.data", env=broken)).decode().splitlines()
    )
    outcomes = {words[0]: (int(words[1]), words[2]) for words in (line.split(" ", 2) for line in lines)}
    words = ("Success", "Invalid Arguments: ", "Out of resources: ", "Unsupported: ", "Runtime error: ")
    assert {case: code for case, (code, _) in outcomes.items()} == dict(rows_of_misuse())
    for case, (code, text) in outcomes.items():
        assert text.startswith(words[code]), case
        assert code == 0 or len(text) > len(words[code]) + 8, case
    assert "'z'" in outcomes["unknown_input"][1]
    assert "room for 60" in outcomes["small_output"][1]


def test_environment_of_runs(place: Path, client: Path, broken: dict[str, str]) -> None:
    command = (client, "run_model", place / "model.tenon", place / "empty", "nhwc")
    failing = {**broken, "MACE_RUNTIME_FAILURE_RATIO": "1"}
    refused = run(*command, stdin=X.tobytes(), env=failing)
    assert refused.returncode == 12, "MACE_OUT_OF_RESOURCES"
    assert b"Out of resources: an allocation failed, as MACE_RUNTIME_FAILURE_RATIO asks for" in refused.stderr
    silent = {**broken, "MACE_RUNTIME_FAILURE_RATIO": "0", "MACE_LOG_TENSOR_RANGE": "0"}
    assert len(succeeded(run(*command, stdin=X.tobytes(), env=silent))) == convolved(X).nbytes
    printed = succeeded(run(*command, stdin=X.tobytes(), env={**broken, "MACE_LOG_TENSOR_RANGE": "1"}))
    match = re.search(rb"I \S+] Tensor range @@y@@(\S+),(\S+)\n", printed)
    assert match, printed
    np.testing.assert_allclose([float(text) for text in match.groups()], [convolved(X).min(), convolved(X).max()], 1e-5)


def test_misuse_under_valgrind(place: Path, client: Path, broken: dict[str, str]) -> None:
    needs_plain_build(place / "sdk", "valgrind takes its place")
    needed("valgrind")
    succeeded(run(*VALGRIND, client, "misuse", place / "model.tenon", place / "model.data", env=broken))


def test_program_of_the_documentation(place: Path, broken: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "program.cpp").write_text(PAGE.read_text().split("```cpp\n")[1].split("```")[0])
    made = program(place, tmp_path / "program.cpp")
    done = run(made, place / "model.tenon", "x", "y", "1,6,5,4", "1,6,5,3", stdin=X.tobytes(), env=broken)
    np.testing.assert_allclose(np.frombuffer(succeeded(done), np.float32), convolved(X).ravel(), atol=1e-6)


def test_helpers_of_programs(place: Path, client: Path) -> None:
    """Files, messages, texts and checksums of mace/port and mace/utils."""
    files = (place / "model.data", place / "copy")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MACE_")}
    written = succeeded(run(client, "helpers", *files, env=plain)).decode()
    assert re.fullmatch(r"W \S*mace_helpers.cpp:\d+\] warned 3\n", written)
    assert (place / "copy").read_bytes() == (place / "model.data").read_bytes()
    more = succeeded(run(client, "helpers", *files, env={**plain, "MACE_CPP_MIN_LOG_LEVEL": "I"}))
    assert [line[0] for line in more.decode().splitlines()] == ["I", "I", "W"]
    detailed = {**plain, "MACE_CPP_MIN_LOG_LEVEL": "info", "MACE_CPP_MIN_VLOG_LEVEL": "2"}
    assert len(succeeded(run(client, "helpers", *files, env=detailed)).splitlines()) == 4
    silent = {**plain, "MACE_CPP_MIN_LOG_LEVEL": "ERROR"}
    assert succeeded(run(client, "helpers", *files, env=silent)) == b""
    assert run(client, "helpers", place / "no such file", files[1], env=plain).returncode == -6, "a failed check aborts"


def test_model_in_code(place: Path, broken: dict[str, str], tmp_path: Path) -> None:
    """By the package and the factory in it; a deployment file of MACE asks for the same, with the times of kernels."""
    (tmp_path / "digits.yml").write_text(DEPLOYMENT.replace("MODEL", str(DIGITS / "digits.onnx")))
    (made,) = tenon.convert(read_deployment(tmp_path / "digits.yml"), tmp_path / "out")
    with tarfile.open(fileobj=io.BytesIO((made.folder / "digits_mace.tar.gz").read_bytes())) as archive:
        archive.extractall(tmp_path, filter="data")
    image = held_out_digits()[0][0]
    with tenon.open(made.folder) as engine:
        (expected,) = engine.run(image.reshape(1, 8, 8, 1)).values()
    libraries = (str(tmp_path / "lib" / "libdigits.a"), "-ltenon", "-lm")
    client = program(place, CLIENTS / "mace_code.cpp", f"-I{tmp_path}/include", libraries=libraries)
    weights = tmp_path / "model" / "digits.weights.bin"
    calls = str(len(read_manifest(made.folder).nodes))
    for file in ("/dev/null", weights):
        done = run(client, "digits", file, calls, stdin=image.tobytes(), env=broken)
        np.testing.assert_array_equal(np.frombuffer(succeeded(done), np.float32), np.ravel(expected))
    (tmp_path / "short").write_bytes(weights.read_bytes()[:-1])
    assert (
        b"Invalid Arguments: the model's weights have"
        in run(client, "digits", tmp_path / "short", calls, env=broken).stderr
    )
    assert b"no model in code is called 'numbers'" in run(client, "numbers", "/dev/null", calls, env=broken).stderr


def test_quantised_model_in_code(place: Path, broken: dict[str, str], tmp_path: Path) -> None:
    """Programs give and take real numbers, as they do of a model in a file."""
    graph, images = tenon.load(DIGITS / "digits.onnx", outputs=["logits"]), held_out_digits()[0][:8]
    graph.outputs[0].name = "probabilities"  # the scores before the softmax, of which the result is of 8 bits
    whole = profiled(graph)
    whole.outputs = [value for node in whole for value in node.outputs]
    tensors = [{"image": image, **evaluate(whole, {"image": image})} for image in images]
    ranges = {
        name: (min(each[name].min() for each in tensors), max(each[name].max() for each in tensors))
        for name in tensors[0]
        for name in tensors[0]
    }
    in_bytes = quantize_by_ranges(
        graph, {name: (float(a), float(b)) for name, (a, b) in ranges.items()}, scheme="uint8"
    )
    types: dict[str, DataType] = {"image": "quantized", "probabilities": "quantized"}
    bundle = tenon.compile(
        in_bytes, no_tuning=True, profile=True, name="bytes", data_types=types, data_formats={"": "NHWC"}
    )
    bundle.save(tmp_path / "out", ("mace", "library", "weights"))
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "out" / "bytes_mace.tar.gz").read_bytes())) as archive:
        archive.extractall(tmp_path, filter="data")
    libraries = (str(tmp_path / "lib" / "libbytes.a"), "-ltenon", "-lm")
    shutil.copy(CLIENTS / "mace_code.cpp", tmp_path / "mace_bytes.cpp")
    client = program(place, tmp_path / "mace_bytes.cpp", f"-I{tmp_path}/include", libraries=libraries)
    manifest, image = read_manifest(tmp_path / "out"), images[0]
    (given,), (made,) = manifest.inputs, manifest.outputs
    assert given.dtype == made.dtype == "u8"
    assert given.scale is not None
    assert made.scale is not None
    stored = np.clip(np.floor(image / given.scale + (given.zero_point or 0) + 0.5), 0, 255).astype(np.uint8)
    with tenon.open(tmp_path / "out") as engine:
        (expected,) = engine.run(stored.reshape(1, 8, 8, 1)).values()
    assert np.ptp(expected) > 100
    done = run(client, "bytes", "/dev/null", str(len(manifest.nodes)), stdin=image.tobytes(), env=broken)
    real = (expected.ravel().astype(np.float64) - (made.zero_point or 0)) * made.scale
    np.testing.assert_array_equal(np.frombuffer(succeeded(done), np.float32), real.astype(np.float32))


@pytest.mark.slow
def test_factory_of_several_models(place: Path, tmp_path: Path) -> None:
    (tmp_path / "two.yml").write_text(
        DEPLOYMENT.replace("MODEL", str(DIGITS / "digits.onnx")) + SECOND.replace("MODEL", str(DIGITS / "digits.onnx"))
    )
    for made in tenon.convert(read_deployment(tmp_path / "two.yml"), tmp_path / "out"):
        with tarfile.open(fileobj=io.BytesIO((made.folder / f"{made.model.name}_mace.tar.gz").read_bytes())) as archive:
            archive.extractall(tmp_path, filter="data")
    shutil.copy(tmp_path / "out" / "mace_engine_factory.h", tmp_path / "include" / "mace" / "public")
    includes = (f"-I{tmp_path}/include", f"-I{place}/sdk/include")
    (tmp_path / "use.cpp").write_text(
        '#include "mace/public/mace_engine_factory.h"\n#include "mace/public/numbers.h"\n'
        'int main() { return mace::factory_internal::Model("numbers") && mace::digits::GetModelSize() ? 0 : 1; }\n'
    )
    libraries = (f"-L{tmp_path}/lib", "-lnumbers", "-ldigits", "-lm")
    succeeded(run(needed("g++"), *STRICT, *includes, tmp_path / "use.cpp", *libraries, "-o", tmp_path / "use"))
    succeeded(run(tmp_path / "use"))


def test_what_is_exported_and_how_large_it_is(place: Path) -> None:
    needs_plain_build(place / "sdk", "they export symbols of their own")
    header = (place / "sdk" / "include" / "mace" / "public" / "mace_core.h").read_text()
    declared = set(re.findall(r"^MACE_CORE_API .*?(\w+)\(", header, re.MULTILINE))
    library = place / "sdk" / "lib" / "libmace.so"
    listed = succeeded(run(needed("nm"), "-D", "--defined-only", library)).decode()
    assert {line.split()[-1] for line in listed.splitlines()} == declared
    assert library.stat().st_size < 24_000


# ------------------------------------------------------------------------------------------------ mace_run
PORTS = ("--input_node=x", "--output_node=y", "--input_shape=1,6,5,4", "--output_shape=1,6,5,3")


def test_mace_run(place: Path, broken: dict[str, str], tmp_path: Path) -> None:
    command = place / "sdk" / "bin" / "mace_run"
    (tmp_path / "in_x").write_bytes(X.tobytes())
    files = (f"--input_file={tmp_path}/in", "--output_file", f"{tmp_path}/out", f"--model_file={place}/model.tenon")
    done = succeeded(run(command, *PORTS, *files, "-round=3", "--restart_round=2", "--benchmark", env=broken)).decode()
    np.testing.assert_allclose(np.fromfile(tmp_path / "out_y", np.float32), convolved(X).ravel(), atol=1e-6)
    times = re.findall(r"^time +(\S+) +(\S+) +(\S+) +(\S+)$", done, re.MULTILINE)
    assert len(times) == 2
    assert all(float(number) >= 0 for line in times for number in line)
    assert "Sort by Run Order" in done
    assert re.search(r"\| +Conv \|", done)
    quiet = succeeded(run(command, *PORTS, *files, env={**broken, "MACE_CPP_MIN_LOG_LEVEL": "W"})).decode()
    assert quiet.splitlines()[-1].startswith("time ")
    assert len(quiet.splitlines()) == 4


def test_mace_run_on_a_folder(place: Path, broken: dict[str, str], tmp_path: Path) -> None:
    command = place / "sdk" / "bin" / "mace_run"
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    for i in range(2):
        (tmp_path / "in" / f"x_{i}.bin").write_bytes((X * (i + 1)).tobytes())
    folders = (f"--input_dir={tmp_path}/in", f"--output_dir={tmp_path}/out")
    formats = ("--input_data_format=NHWC", "--output_data_format=NCHW", "--output_shape=1,3,6,5", "--nobenchmark")
    succeeded(run(command, *PORTS, *formats, *folders, f"--model_file={place}/model.tenon", env=broken))
    for i in range(2):
        answer = np.fromfile(tmp_path / "out" / f"y_{i}.bin", np.float32).reshape(1, 3, 6, 5)
        np.testing.assert_allclose(answer, turned(convolved(X * (i + 1))), atol=1e-5)


def test_states_need_no_tensor(place: Path, broken: dict[str, str], tmp_path: Path) -> None:
    """A run finds in them what the one before left, but for the run on zeros when the engine is made."""
    weights = {"W": random(1, 12, 5, seed=1), "R": random(1, 12, 4, seed=2)}
    layer = node("GRU", ["x", "W", "R", "", "", "h"], ["y", "hn"], hidden_size=4)
    content = model([layer], {"x": (2, 1, 5), "h": (1, 1, 4)}, ["y", "hn"], weights).SerializeToString()
    bundle = tenon.compile(content, name="gru", no_tuning=True, target="x86-64")
    bundle.save(tmp_path / "gru.tenon")
    x = random(2, 1, 5, seed=3)
    (tmp_path / "in_x").write_bytes(x.tobytes())
    ports = ("--input_node=x", "--input_shape=2,1,5", "--output_node=y", "--output_shape=2,1,1,4")
    files = (f"--input_file={tmp_path}/in", f"--output_file={tmp_path}/out", f"--model_file={tmp_path}/gru.tenon")
    with tenon.open(bundle) as engine:
        results = [engine.run(x)["y"].ravel() for _ in range(4)]  # a run before those that are timed
    assert np.abs(results[3] - results[2]).max() > 1e-4
    for more in ((), ("--fake_warmup",)):
        flags = ("-round=3", "--nobenchmark", *more)
        succeeded(run(place / "sdk" / "bin" / "mace_run", *ports, *files, *flags, env=broken))
        np.testing.assert_allclose(np.fromfile(tmp_path / "out_y", np.float32), results[3], atol=1e-6)


def test_mace_run_refuses(place: Path, broken: dict[str, str], tmp_path: Path) -> None:
    command, model = place / "sdk" / "bin" / "mace_run", f"--model_file={place}/model.tenon"
    assert b"--cpu_affinity_policy" in succeeded(run(command, "--help", env=broken))
    assert b"usage: mace_run" in succeeded(run(command, env=broken))
    for words, why in [
        (("--colour=red",), "unknown command line flag 'colour'"),
        (("--round=many",), "flag 'round' has an illegal value 'many'"),
        (("--round",), "flag 'round' is missing its argument"),
        ((*PORTS[:3], "--output_shape=1,a"), "'1,a' is no shape"),
        ((*PORTS[:3], "--output_shape=1:2"), "outputs' names do not match outputs' shapes"),
        ((*PORTS, f"--input_file={tmp_path}/none", model), "Open input file FAILED"),
        ((*PORTS, "--model_file=/no/such/model"), "Failed to read file: /no/such/model"),
        ((*PORTS, model, "--device=GPU"), "Create engine FAILED: the bundle in memory has code for x86-64 and"),
        ((*PORTS, model, "--input_node=z"), "Create engine FAILED: model has no input 'z'"),
        ((*PORTS, model, "--input_dir=/no/such/folder"), "Open input_dir /no/such/folder FAILED"),
        ((*PORTS, model, f"--input_dir={tmp_path}"), "FAILED: no file in"),
    ]:
        done = run(command, *words, env=broken)
        assert done.returncode == 1, words
        assert why in (done.stdout + done.stderr).decode()


def test_emulated_mace_run(place: Path, tmp_path: Path, broken: dict[str, str]) -> None:
    needs_plain_build(place / "sdk", "it is one for this machine")
    skip_without_device("aarch64")
    system = Path("/usr/aarch64-linux-gnu")
    if not (system / "lib" / "libc.so.6").exists():
        pytest.skip("there is no C library for AArch64 to run programs with (Debian: libc6-arm64-cross)")
    sdk = save_sdk(tmp_path / "sdk", "aarch64")
    sizes = {path.name: path.stat().st_size for path in (sdk / "lib").glob("*.so") if path.is_file()}
    # 4 kB of these verify lists of parts, versions and who owns files of caches, and follow MACE's and Tengine's calls;
    # 9 kB are for GPUs and what devices share, 3 kB for sizes and states, 61 kB for texts, grammars,
    # JSON schemas with patterns and batches, 9 kB for speech.
    assert sum(sizes.values()) < 235_000, sizes
    tenon.compile(place / "model.pb", no_tuning=True, target="aarch64").save(tmp_path / "model.tenon")
    (tmp_path / "in_x").write_bytes(X.tobytes())
    files = (f"--input_file={tmp_path}/in", f"--output_file={tmp_path}/out", f"--model_file={tmp_path}/model.tenon")
    succeeded(run("qemu-aarch64", "-L", system, sdk / "bin" / "mace_run", *PORTS, *files, env=broken))
    np.testing.assert_allclose(np.fromfile(tmp_path / "out_y", np.float32), convolved(X).ravel(), atol=1e-6)
