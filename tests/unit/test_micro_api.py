"""MACE Micro's C++ API (--emit micro): programs in its manner on this machine and on an emulated Cortex-M4, misuse."""

from __future__ import annotations

import io
import os
import platform
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tenon
from libtenon import BUILDS, CLIENTS, checked, needed, needs_plain_build, run, sanitizer_flags, succeeded
from on_targets import skip_without_device
from real import DIGITS, held_out_digits
from tenon.machine.targets.host import runner_of
from tenon.runtime.bundle.link import link_freestanding
from tenon.runtime.sdk.libtenon import RUNTIME

MODEL = DIGITS / "digits.onnx"
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "from-mace-micro.md"
CPP98 = ("-std=c++98", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fno-exceptions", "-fno-rtti")
IMAGE = held_out_digits()[0][0]
ROUNDING = 1e-5
"""Other compilers, for other processors, fuse other products and sums."""

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")


def unpacked(bundle: tenon.Bundle, folder: Path) -> Path:
    bundle.save(folder / "out", ("micro",))
    content = (folder / "out" / f"{bundle.name}_micro.tar.gz").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module", params=BUILDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked package, built by its CMake project into build/libmicro.a and build/libmodel_digits.a."""
    bundle = tenon.compile(MODEL, no_tuning=True, threads=1)
    folder = unpacked(bundle, tmp_path_factory.mktemp("micro"))
    options = ("-DCMAKE_C_COMPILER_WORKS=1", "-DCMAKE_CXX_COMPILER_WORKS=1", "-DCMAKE_CXX_STANDARD=98")
    if request.param:
        (folder / "sanitizers").write_text(request.param)
    flags = sanitizer_flags(folder)
    checks = (f"-DCMAKE_C_FLAGS={' '.join(flags)}", f"-DCMAKE_CXX_FLAGS={' '.join((*CPP98[1:], *flags))}")
    succeeded(run(needed("cmake"), "-S", folder, "-B", folder / "build", *options, *checks))
    succeeded(run("cmake", "--build", folder / "build"))
    return folder


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    with tenon.open(tenon.compile(MODEL, no_tuning=True, threads=1)) as engine:
        return np.asarray(engine.run(IMAGE)["probabilities"]).ravel()


def program(place: Path, source: Path, compiler: str, *flags: str) -> Path:
    libraries = (f"-L{place}/build", "-lmodel_digits", "-lmicro", "-lm")
    flags = (*flags, *sanitizer_flags(place))
    succeeded(run(needed(compiler), *flags, f"-I{place}/include", source, *libraries, "-o", place / source.stem))
    return checked(place / source.stem, place)


def rows_of_misuse() -> Iterator[tuple[str, int]]:
    """The cases that the page lists, with the codes that it promises."""
    codes = {"SUCCESS": 0, "INVALID_ARGS": 1, "UNSUPPORTED": 3, "RUNTIME_ERROR": 4}
    for cases, code in re.findall(r"^\| .* \| ((?:`\w+`(?:, )?)+) \| `MACE_(\w+)` \|$", PAGE.read_text(), re.MULTILINE):
        yield from ((case, codes[code]) for case in re.findall(r"`(\w+)`", cases))


def test_answers_and_misuse(place: Path, expected: np.ndarray) -> None:
    client = program(place, CLIENTS / "micro_client.cpp", "g++", *CPP98)
    text = succeeded(run(client, place / "model" / "digits.bin", stdin=IMAGE.tobytes())).decode()
    lines = [line.split() for line in text.splitlines()]
    scores = [np.array(words[1:], np.float32) for words in lines if words[0] == "scores"]
    assert len(scores) == 3
    for answer in scores:
        np.testing.assert_allclose(answer, expected, rtol=ROUNDING)
    assert {words[0]: int(words[1]) for words in lines if words[0] != "scores"} == dict(rows_of_misuse())


def test_program_of_the_documentation(place: Path, expected: np.ndarray, tmp_path: Path) -> None:
    """In C, by the functions of the C interface."""
    (tmp_path / "program.c").write_text(PAGE.read_text().split("```c\n")[1].split("```")[0])
    made = program(place, tmp_path / "program.c", "gcc", "-std=c99", "-Wall", "-Wextra", "-Werror")
    words = succeeded(run(made, stdin=IMAGE.tobytes())).decode().split()
    np.testing.assert_allclose(np.array(words, np.float32), expected, rtol=ROUNDING)


MAIN = """
#include <stdio.h>
int main() {
  static float image[64];
  if (fread(image, sizeof(float), 64, stdin) != 64) return 1;
  const float *scores = classify(image);
  for (int i = 0; i < 10; i++) printf("%.9g\\n", static_cast<double>(scores[i]));
  return 0;
}
"""


def test_function_of_the_documentation(place: Path, expected: np.ndarray, tmp_path: Path) -> None:
    """In C++, with the names and the shape of the digits network."""
    text = PAGE.read_text().split("```cpp\n")[1].split("```")[0]
    text = text.replace("namespace net", "namespace digits").replace("micro::net::", "micro::digits::")
    text = text.replace("{1, 28, 28, 1}", "{1, 1, 8, 8}").replace('"micro.h"', '"micro.h"\n#include <stddef.h>')
    (tmp_path / "function.cpp").write_text(text + MAIN)
    made = program(place, tmp_path / "function.cpp", "g++", *CPP98)
    words = succeeded(run(made, stdin=IMAGE.tobytes())).decode().split()
    np.testing.assert_allclose(np.array(words, np.float32), expected, rtol=ROUNDING)


@pytest.mark.parametrize("example", ["classifier", "runtime_load_model"])
def test_examples_of_mace(example: str, tmp_path: Path) -> None:
    """MACE's own programs, unchanged, on its image of a 4; MACE_SOURCES names a checkout of its repository."""
    examples = Path(os.environ.get("MACE_SOURCES", "/nowhere")) / "micro" / "examples"
    model = Path(__file__).parents[3] / "shared" / "models" / "onnx" / "mnist" / "mnist.onnx"
    if not (examples / example / "main.cc").is_file() or not model.is_file():
        pytest.skip("MACE_SOURCES names no folder with MACE's sources, or the collection of real models is not there")
    bundle = tenon.compile(model, no_tuning=True, threads=1, name="mnist", data_formats={"": "NHWC"})
    folder = unpacked(bundle, tmp_path)
    names = ("-DMICRO_MODEL_NAME=mnist", "-DMICRO_DATA_NAME=mnist", f"-I{folder}/include", f"-I{examples}")
    for file in ("mnist", "mnist_weights"):
        succeeded(
            run(
                needed("gcc"),
                "-O1",
                "-DTENON_ANY_FLAGS",
                "-c",
                folder / "src" / f"{file}.c",
                "-o",
                tmp_path / f"{file}.o",
            )
        )
    engine = [folder / "src" / file for file in ("micro.cc", "mnist_engine.cc")]
    objects = [tmp_path / "mnist.o", tmp_path / "mnist_weights.o"]
    succeeded(run(needed("g++"), *names, examples / example / "main.cc", *engine, *objects, "-o", tmp_path / "program"))
    text = succeeded(run(tmp_path / "program", folder / "model" / "mnist.bin")).decode()
    scores = [float(line.split(": ")[1]) for line in text.splitlines()]
    assert (len(scores), int(np.argmax(scores))) == (10, 4)


def test_engine_needs_neither_heap_nor_runtime_library(place: Path) -> None:
    needs_plain_build(place, "they need a library")
    for library in ("libmicro.a", "libmodel_digits.a"):
        listed = succeeded(run(needed("nm"), "-u", place / "build" / library)).decode().splitlines()
        missing = {line.split()[-1] for line in listed if line.startswith(" ")}
        own = {name for name in missing if "micro" in name or "digits" in name}
        assert missing - own <= {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_"}, library


def test_emulated_cortex_m4(expected: np.ndarray, tmp_path: Path) -> None:
    """The engine and the generated code, in place of the network of probe.c."""
    skip_without_device("cortex-m4")
    bundle = tenon.compile(MODEL, no_tuning=True, target="cortex-m4")
    folder, target, compiler = unpacked(bundle, tmp_path), bundle.target, bundle.compiler
    texts = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    texts |= {Path(name).name: content for name, content in texts.items() if name.startswith("src/")}
    texts |= {"network.h": (RUNTIME / "network.h").read_bytes(), "probe.c": (RUNTIME / "probe.c").read_bytes()}
    texts["board.cc"] = (CLIENTS / "micro_board.cpp").read_bytes()
    flat = {name: content for name, content in texts.items() if name.count("/") < 2}
    own = ("micro.h", "micro/codegen/digits/micro_engine_factory.h", "micro/codegen/digits/micro_engine_c_interface.h")
    machine = (*compiler.machine_flags(target), *target.flags, "-O2", "-g0", f"-I{folder}/include")
    plain = (*CPP98, "-ffreestanding", "-fno-sanitize=all", "-x", "c++")
    objects = {
        f"{name}.o": compiler.run(flat, (*machine, *plain, "-c", f"{name}.cc"), "out.o")
        for name in ("micro", "digits_engine", "board")
    }
    assert all((folder / "include" / name).is_file() for name in own)
    for name in ("digits.c", "digits_weights.c", "probe.c"):
        objects[f"{Path(name).stem}.o"] = compiler.compile(flat, name, target)
    files = {**objects, "target.ld": target.linker_script.encode()}
    image = link_freestanding(compiler, target, files, ("-static", "-T", "target.ld"))
    runner = runner_of(target)
    assert runner is not None
    with runner.session() as session:
        session.push({"program": image, "input.bin": IMAGE.tobytes() + bytes(40)})
        done = session.run("program", ())
        assert done.status == 0, done.message
        answer = session.pull("output.bin")
    np.testing.assert_allclose(np.frombuffer(answer, np.float32)[64:], expected, rtol=ROUNDING)
