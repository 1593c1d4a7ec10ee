"""libtenon: C clients on all forms of bundles, misuse, damage, sanitizers, and other machines."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tenon
from command_line import run_main
from libtenon import (
    BUILDS,
    CLIENTS,
    LIBC_OF_CLIENT,
    START_OF_AARCH64,
    VALGRIND,
    checked,
    client,
    needed,
    needs_loadable_build,
    needs_plain_build,
    run,
    sanitized_client,
    sanitizer_flags,
    sdk_for_clients,
    succeeded,
)
from on_targets import skip_without_device
from real import DIGITS, held_out_digits
from tenon.cli import main
from tenon.errors import BundleError, InputError, ToolchainError
from tenon.machine.targets import find
from tenon.machine.toolchain.compiler import zig
from tenon.machine.toolchain.stub_library import stub_library
from tenon.runtime.bundle import read_manifest
from tenon.runtime.bundle.checksum import checksum
from tenon.runtime.bundle.container import Container
from tenon.runtime.bundle.layout import layout, layout_source
from tenon.runtime.bundle.writer import save_container
from tenon.runtime.sdk import save_sdk
from tenon.runtime.sdk.libtenon import RUNTIME

MODEL = DIGITS / "digits.onnx"
FORMS = ("digits", "digits.tenon", "fat.tenon", "memory:digits.tenon")
pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")

(OK, HANDLE, ARGUMENT, NOT_FOUND, SIZE, DAMAGED, MACHINE, _, SYSTEM, BUSY, STATE, UNSUPPORTED, NO_COMPILER) = range(13)


@pytest.fixture(scope="module", params=BUILDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an SDK for this machine, and the digits network in all forms."""
    folder = tmp_path_factory.mktemp("libtenon")
    sdk_for_clients(folder, request.param)
    bundle = tenon.compile(MODEL, no_tuning=True, target="x86-64-avx2" if platform.machine() == "x86_64" else "host")
    bundle.save(folder / "digits", ("library", "weights"))
    bundle.save(folder / "digits.tenon")
    other = tenon.compile(MODEL, no_tuning=True, target="aarch64" if platform.machine() == "x86_64" else "x86-64")
    save_container(folder / "fat.tenon", [other, bundle])
    return folder


@pytest.fixture(scope="module")
def run_bundle(place: Path) -> Path:
    return client("run_bundle", place / "sdk", place)


@pytest.fixture(scope="module")
def image() -> bytes:
    return bytes(held_out_digits()[0][0].tobytes())


@pytest.fixture(scope="module")
def expected(place: Path, image: bytes) -> bytes:
    with tenon.open(place / "digits") as engine:
        (answer,) = engine.run(np.frombuffer(image, np.float32).reshape(1, 1, 8, 8)).values()
    return bytes(answer.tobytes())


# ------------------------------------------------------------------------------------------------ clients
@pytest.mark.parametrize("form", FORMS)
def test_client_gives_the_answer_of_python(
    form: str, place: Path, run_bundle: Path, image: bytes, expected: bytes
) -> None:
    path = form.replace("memory:", f"memory:{place}/") if form.startswith("memory:") else str(place / form)
    assert succeeded(run(run_bundle, path, stdin=image)) == expected


@pytest.mark.parametrize("form", ["digits.tenon", "fat.tenon"])
def test_python_opens_single_files(form: str, place: Path, image: bytes, expected: bytes) -> None:
    with tenon.open(place / form, verify=True) as engine:
        (answer,) = engine.run(np.frombuffer(image, np.float32).reshape(1, 1, 8, 8)).values()
    assert answer.tobytes() == expected


def test_valgrind_finds_nothing(place: Path, run_bundle: Path, image: bytes, expected: bytes) -> None:
    needs_plain_build(place / "sdk", "valgrind takes its place")
    needed("valgrind")
    assert succeeded(run(*VALGRIND, run_bundle, place / "digits.tenon", stdin=image)) == expected


@pytest.mark.parametrize("sanitizers", ["address,undefined", pytest.param("thread", marks=pytest.mark.slow)])
def test_sanitizers_find_nothing(sanitizers: str, place: Path, image: bytes, expected: bytes, tmp_path: Path) -> None:
    needs_plain_build(place / "sdk", "it compiles the libraries itself")
    program = sanitized_client("run_bundle", tmp_path, sanitizers)
    for form in ("digits", "fat.tenon"):
        assert succeeded(run(program, place / form, stdin=image)) == expected


def test_damaged_files_are_refused(place: Path, tmp_path: Path) -> None:
    """TENON_FUZZ is the number of damaged copies."""
    needs_plain_build(place / "sdk", "it compiles the libraries itself")
    program = sanitized_client("damaged_bundles", tmp_path, "address,undefined")
    count = os.environ.get("TENON_FUZZ", "600")
    text = succeeded(run(program, place / "digits.tenon", count)).decode()
    opened, damaged = (int(part.split()[0]) for part in text.split(", ")[:2])
    assert damaged > opened, text


def test_checksums_are_those_of_python(place: Path, tmp_path: Path) -> None:
    needs_plain_build(place / "sdk", "it compiles the libraries itself")
    program = sanitized_client("checksums", tmp_path, "address,undefined")
    row = 65536
    sizes = (0, 1, 8, 13, 16384, 16389, row - 1, row, row + 7, 4 * row, 7 * row + 40_003, 9 * row + 65_530)
    data = np.random.default_rng(1).integers(0, 256, max(sizes), np.uint8).tobytes()
    lines = succeeded(run(program, *map(str, sizes), stdin=data)).decode().splitlines()
    assert lines == [checksum(data[:size]) for size in sizes]


# ------------------------------------------------------------------------------------------------ misuse
class Api:
    """The C API through ctypes, with a bundle, an engine, and handles of ended ones."""

    def __init__(self, place: Path) -> None:
        needs_loadable_build(place / "sdk")
        self.library = ctypes.CDLL(str(place / "sdk" / "lib" / "libtenon.so"))
        self.library.tenon_last_error.restype = ctypes.c_char_p
        self.place = place
        self.bundle, self.closed = self._bundle(), self._bundle()
        self.engine, self.destroyed = self._engine(), self._engine()
        assert self("tenon_bundle_close", self.closed) == OK
        assert self("tenon_engine_destroy", self.destroyed) == OK
        self.room = ctypes.create_string_buffer(4096)
        self.out = ctypes.c_void_p()

    def __call__(self, name: str, *arguments: object) -> int:
        return int(self.library[name](*arguments))

    @property
    def error(self) -> str:
        return str(self.library.tenon_last_error().decode())

    def _bundle(self) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        assert self("tenon_bundle_open", str(self.place / "digits").encode(), None, ctypes.byref(handle)) == OK
        return handle

    def _engine(self) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        assert self("tenon_engine_create", self.bundle, None, ctypes.byref(handle)) == OK
        return handle

    def options(self, **fields: int) -> ctypes.Array[ctypes.c_int32]:
        """TenonEngineOptions as words of 32 bits."""
        words = (ctypes.c_int32 * 10)(40)
        for name, value in fields.items():
            words[{"struct_size": 0, "threads": 2, "cores": 3, "processor_count": 6, "binding": 7}[name]] = value
        return words

    def create(self, **fields: int) -> int:
        return self("tenon_engine_create", self.bundle, self.options(**fields), ctypes.byref(self.out))


@pytest.fixture(scope="module")
def api(place: Path) -> Api:
    return Api(place)


Misuse = tuple[str, int, str, Callable[[Api], int]]
SIZED = ctypes.c_size_t
MISUSE: list[Misuse] = [
    # what is wrong, status, a part of the text, call
    ("no path", ARGUMENT, "path is NULL", lambda a: a("tenon_bundle_open", None, None, ctypes.byref(a.out))),
    ("no result", ARGUMENT, "result is NULL", lambda a: a("tenon_bundle_open", b"x", None, None)),
    ("no file", NOT_FOUND, "there is no", lambda a: a("tenon_bundle_open", b"/no/such", None, ctypes.byref(a.out))),
    (
        "a folder without bundle",
        NOT_FOUND,
        "no manifest.json",
        lambda a: a("tenon_bundle_open", str(a.place).encode(), None, ctypes.byref(a.out)),
    ),
    (
        "no data",
        ARGUMENT,
        "data is NULL",
        lambda a: a("tenon_bundle_open_memory", None, SIZED(1), None, ctypes.byref(a.out)),
    ),
    (
        "options without size",
        ARGUMENT,
        "TENON_OPEN_OPTIONS_INIT",
        lambda a: a("tenon_bundle_open", b"x", (ctypes.c_int32 * 32)(), ctypes.byref(a.out)),
    ),
    ("NULL bundle", HANDLE, "is NULL", lambda a: a("tenon_bundle_close", None)),
    ("closed bundle", HANDLE, "closed", lambda a: a("tenon_bundle_close", a.closed)),
    ("closed bundle, memory", HANDLE, "closed", lambda a: a("tenon_bundle_memory", a.closed, a.room)),
    (
        "closed bundle, engine",
        HANDLE,
        "closed",
        lambda a: a("tenon_engine_create", a.closed, None, ctypes.byref(a.out)),
    ),
    ("engine for bundle", HANDLE, "not of this kind (bundle)", lambda a: a("tenon_bundle_memory", a.engine, a.room)),
    ("bundle for engine", HANDLE, "not of this kind (engine)", lambda a: a("tenon_engine_run", a.bundle)),
    ("another pointer", HANDLE, "not of this kind (engine)", lambda a: a("tenon_engine_run", ctypes.byref(a.out))),
    ("closed bundle, count", -1, "closed", lambda a: a("tenon_bundle_input_count", a.closed)),
    ("closed bundle, bindings", -1, "closed", lambda a: a("tenon_bundle_binding_count", a.closed)),
    ("no description", ARGUMENT, "result is NULL", lambda a: a("tenon_bundle_input", a.bundle, 0, 0, None)),
    ("no such input", NOT_FOUND, "no input 1", lambda a: a("tenon_bundle_input", a.bundle, 0, 1, a.room)),
    ("negative input", NOT_FOUND, "no input -1", lambda a: a("tenon_bundle_input", a.bundle, 0, -1, a.room)),
    ("no such output", NOT_FOUND, "no output 7", lambda a: a("tenon_bundle_output", a.bundle, 0, 7, a.room)),
    ("no such binding", NOT_FOUND, "no binding 1", lambda a: a("tenon_bundle_input", a.bundle, 1, 0, a.room)),
    (
        "unknown name",
        NOT_FOUND,
        "the first is 'image'",
        lambda a: a("tenon_bundle_find_input", a.bundle, b"picture", ctypes.byref(a.out)),
    ),
    ("no name", ARGUMENT, "name is NULL", lambda a: a("tenon_bundle_find_output", a.bundle, None, ctypes.byref(a.out))),
    ("no such step", NOT_FOUND, "no step 999", lambda a: a("tenon_bundle_step", a.bundle, 999, a.room)),
    ("no engine result", ARGUMENT, "result is NULL", lambda a: a("tenon_engine_create", a.bundle, None, None)),
    ("engine options without size", ARGUMENT, "TENON_ENGINE_OPTIONS_INIT", lambda a: a.create(struct_size=0)),
    ("too many threads", ARGUMENT, "was made for 1 to", lambda a: a.create(threads=99)),
    ("negative threads", ARGUMENT, "threads is -1", lambda a: a.create(threads=-1)),
    ("unknown cores", ARGUMENT, "cores is 9", lambda a: a.create(cores=9)),
    ("processors without list", ARGUMENT, "processors is NULL", lambda a: a.create(processor_count=2)),
    ("engine of no binding", NOT_FOUND, "no binding 3", lambda a: a.create(binding=3)),
    ("destroyed engine, run", HANDLE, "destroyed", lambda a: a("tenon_engine_run", a.destroyed)),
    ("destroyed twice", HANDLE, "destroyed", lambda a: a("tenon_engine_destroy", a.destroyed)),
    (
        "destroyed engine, asynchronous run",
        HANDLE,
        "destroyed",
        lambda a: a("tenon_engine_run_async", a.destroyed, None, None),
    ),
    ("destroyed engine, wait", HANDLE, "destroyed", lambda a: a("tenon_engine_wait", a.destroyed, ctypes.c_int64(0))),
    ("destroyed engine, binding", -1, "destroyed", lambda a: a("tenon_engine_binding", a.destroyed)),
    ("NULL engine", HANDLE, "is NULL", lambda a: a("tenon_engine_run", None)),
    ("wait without a run", STATE, "no run was started", lambda a: a("tenon_engine_wait", a.engine, ctypes.c_int64(-1))),
    (
        "input too small",
        SIZE,
        "255 bytes and the tensor 256",
        lambda a: a("tenon_engine_set_input", a.engine, 0, a.room, SIZED(255)),
    ),
    ("input NULL", ARGUMENT, "is NULL", lambda a: a("tenon_engine_set_input", a.engine, 0, None, SIZED(256))),
    (
        "input that is not there",
        NOT_FOUND,
        "no input 5",
        lambda a: a("tenon_engine_set_input", a.engine, 5, a.room, SIZED(256)),
    ),
    (
        "output too large",
        SIZE,
        "41 bytes and the tensor 40",
        lambda a: a("tenon_engine_get_output", a.engine, 0, a.room, SIZED(41)),
    ),
    ("bound input too small", SIZE, "8 bytes", lambda a: a("tenon_engine_bind_input", a.engine, 0, a.room, SIZED(8))),
    ("bound output too small", SIZE, "8 bytes", lambda a: a("tenon_engine_bind_output", a.engine, 0, a.room, SIZED(8))),
    ("no place for a pointer", ARGUMENT, "result is NULL", lambda a: a("tenon_engine_input_data", a.engine, 0, None)),
    ("destroyed engine, input", HANDLE, "destroyed", lambda a: a("tenon_engine_input", a.destroyed, 0, a.room)),
    ("no place for an input", ARGUMENT, "result is NULL", lambda a: a("tenon_engine_input", a.engine, 0, None)),
    ("no output 1", NOT_FOUND, "no output 1", lambda a: a("tenon_engine_output", a.engine, 1, a.room)),
    ("no shape", ARGUMENT, "result is NULL", lambda a: a("tenon_engine_output_shape", a.engine, 0, None, None)),
    ("binding out of range", NOT_FOUND, "no binding 1", lambda a: a("tenon_engine_select", a.engine, 1)),
    (
        "other shapes",
        SIZE,
        "--shape",
        lambda a: a("tenon_engine_select_shapes", a.engine, (ctypes.c_int64 * 4)(2, 1, 8, 8), SIZED(4)),
    ),
    (
        "too few extents",
        SIZE,
        "--shape",
        lambda a: a("tenon_engine_select_shapes", a.engine, (ctypes.c_int64 * 2)(1, 1), SIZED(2)),
    ),
    (
        "profile of another bundle",
        UNSUPPORTED,
        "--profile",
        lambda a: a("tenon_engine_profile", a.engine, a.room, SIZED(3)),
    ),
    ("linked without struct", ARGUMENT, "NULL", lambda a: a("tenon_bundle_from_program", None, ctypes.byref(a.out))),
]


STATUS = {
    -1: "-1",
    ARGUMENT: "TENON_INVALID_ARGUMENT",
    HANDLE: "TENON_INVALID_HANDLE",
    NOT_FOUND: "TENON_NOT_FOUND",
    SIZE: "TENON_WRONG_SIZE",
    STATE: "TENON_WRONG_STATE",
    UNSUPPORTED: "TENON_UNSUPPORTED",
}


def test_table_of_the_documentation() -> None:
    """The page lists these cases, with what the functions return and the messages."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "libtenon.md").read_text()
    table = page.split("| what is wrong | returned | message |\n|---|---|---|\n")[1].split("\n\n")[0]
    assert table.splitlines() == [f"| {what} | `{STATUS[status]}` | `{text}` |" for what, status, text, _ in MISUSE]
    header = (RUNTIME / "include" / "tenon.h").read_text()
    assert all(re.search(rf"\b{name} = {number}\b", header) for number, name in STATUS.items() if number > 0)


@pytest.mark.parametrize(("status", "text", "call"), [row[1:] for row in MISUSE], ids=[row[0] for row in MISUSE])
def test_misuse_gives_a_status_and_a_text(api: Api, status: int, text: str, call: Callable[[Api], int]) -> None:
    assert call(api) == status, api.error
    assert text in api.error
    assert api("tenon_engine_run", api.engine) == OK, "the engine is as it was"


def test_files_damaged_in_a_folder(place: Path, api: Api, tmp_path: Path) -> None:
    for name, status, text in [
        ("manifest.json", DAMAGED, "digest differs"),
        ("libdigits.so", DAMAGED, "libdigits.so is damaged"),
        ("digits.weights.bin", DAMAGED, "digits.weights.bin is damaged"),
    ]:
        folder = tmp_path / name
        folder.mkdir()
        for file in (place / "digits").iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        content = bytearray((folder / name).read_bytes())
        content[content.index(b"0x") if b"0x" in content else len(content) // 2] ^= 1
        (folder / name).write_bytes(content)
        assert api("tenon_bundle_open", str(folder).encode(), None, ctypes.byref(api.out)) == status
        assert text in api.error or name == "manifest.json"
        (folder / name).unlink()
        expected_status = NOT_FOUND if name == "manifest.json" else DAMAGED
        assert api("tenon_bundle_open", str(folder).encode(), None, ctypes.byref(api.out)) == expected_status
        assert name in api.error


@pytest.mark.parametrize(
    ("format", "text"),
    [
        (0, "the bundle has format 0 and this libtenon reads 1: compile the model again"),
        (2, "the bundle has format 2 and this libtenon reads 1: use a newer libtenon"),
    ],
)
def test_bundle_of_another_format(format: int, text: str, place: Path, api: Api, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(place / "digits", tmp_path / "digits"))
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(manifest.replace('"format": 1', f'"format": {format}'))
    assert api("tenon_bundle_open", str(folder).encode(), None, ctypes.byref(api.out)) == DAMAGED
    assert text in api.error


# ------------------------------------------------------------------------------------------------ C++, programs, CMake
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_cpp_wrapper(compiler: str, place: Path, image: bytes, expected: bytes) -> None:
    sdk, program = place / "sdk", place / f"classify_{compiler}"
    if compiler == "clang++":
        needs_plain_build(sdk, "its sanitizers are of gcc")
    strict = ("-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror", *sanitizer_flags(sdk))
    flags = (*strict, f"-I{sdk}/include", f"-L{sdk}/lib", "-ltenon")
    succeeded(run(needed(compiler), CLIENTS / "classify.cpp", *flags, f"-Wl,-rpath,{sdk}/lib", "-o", program))
    checked(program, sdk)
    assert succeeded(run(program, place / "digits.tenon", stdin=image)) == expected
    missing = run(program, "/no/such.tenon", stdin=image)
    assert missing.returncode == 1
    assert missing.stderr == b"TENON_NOT_FOUND: there is no /no/such.tenon\n"


WARNINGS = ("-pedantic", "-Wall", "-Wextra", "-Wundef", "-Werror", "-fsyntax-only")


@pytest.mark.parametrize("standard", ["c99", "c11", "c++98", "c++11", "c++17"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_headers_alone(compiler: str, standard: str, place: Path, tmp_path: Path) -> None:
    """Each public header is a program without warnings; fields of 64 bits need C99's or C++11's integers."""
    needs_plain_build(place / "sdk", "nothing is run")
    language = "c++" if standard.startswith("c++") else "c"
    names = ["tenon.h", "tenon_device.h", "tengine/c_api.h", "tengine_c_api.h"]
    names += {"c++17": ["tenon.hpp", "tengine_cpp_api.h"]}.get(standard, [])
    for number, name in enumerate(names):
        file = tmp_path / f"{number}.{'cpp' if language == 'c++' else 'c'}"
        file.write_text(f'#include "{name}"\n#include "{name}"\n')
        own = ("-Wno-long-long",) if standard == "c++98" else ()
        flags = (f"-std={standard}", *WARNINGS, *own, f"-I{place}/sdk/include")
        succeeded(run(needed(compiler), "-x", language, *flags, file))
    if standard == "c++11":
        file.write_text('#include "tenon.hpp"\n')
        done = run(needed(compiler), "-x", language, *flags, file)
        assert (done.returncode != 0, b"tenon.hpp needs C++17" in done.stderr) == (True, True), done.stderr


def test_program_of_the_documentation_in_cpp(place: Path, image: bytes, expected: bytes, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "libtenon.md").read_text()
    (tmp_path / "program.cpp").write_text(page.split("```cpp\n")[1].split("```")[0])
    sdk, program = place / "sdk", tmp_path / "program"
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Werror", *sanitizer_flags(sdk), f"-I{sdk}/include", f"-L{sdk}/lib")
    linked = ("-ltenon", f"-Wl,-rpath,{sdk}/lib", "-o", program)
    succeeded(run(needed("g++"), tmp_path / "program.cpp", *flags, *linked))
    checked(program, sdk)
    failed = subprocess.run([program], input=image, cwd=tmp_path, capture_output=True, check=False)
    assert (failed.returncode, b"there is no digits.tenon" in failed.stderr) == (1, True)
    shutil.copy(place / "digits.tenon", tmp_path)
    assert succeeded(subprocess.run([program], input=image, cwd=tmp_path, capture_output=True, check=False)) == expected


def test_every_function_is_exported(place: Path) -> None:
    needs_plain_build(place / "sdk", "they export symbols of their own")
    header = (place / "sdk" / "include" / "tenon.h").read_text()
    declared = set(re.findall(r"^TENON_API [\w ]+\**(tenon_\w+)\(", header, re.MULTILINE))
    listed = succeeded(run(needed("nm"), "-D", "--defined-only", place / "sdk" / "lib" / "libtenon.so")).decode()
    assert {line.split()[-1] for line in listed.splitlines()} == declared
    assert len(declared) > 35


def test_linked_bundle(place: Path, image: bytes, expected: bytes, tmp_path: Path) -> None:
    needs_plain_build(place / "sdk", "it links the static library")
    bundle = tenon.compile(MODEL, no_tuning=True, target=read_manifest(place / "digits").target.name)
    folder = bundle.save(tmp_path / "digits", ("header", "object", "weights-text"))
    (tmp_path / "layout.c").write_text(layout_source("digits", layout(bundle.manifest({}, compiled=False))))
    sdk, flags = place / "sdk", ("-std=c99", "-Wall", "-Wextra", "-Werror", "-DTENON_STATIC", f"-I{folder}")
    files = (CLIENTS / "linked_bundle.c", tmp_path / "layout.c", folder / "digits.o", sdk / "lib" / "libtenon.a")
    program = tmp_path / "linked"
    succeeded(run(needed("gcc"), *flags, f"-I{sdk}/include", *files, "-lpthread", "-ldl", "-o", program))
    assert succeeded(run(program, stdin=image)) == expected


def test_program_of_the_documentation_with_pkg_config(
    place: Path, image: bytes, expected: bytes, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "libtenon.md").read_text()
    (tmp_path / "program.c").write_text(page.split("```c\n")[1].split("```")[0])
    env = {**os.environ, "PKG_CONFIG_PATH": str(place / "sdk" / "lib" / "pkgconfig")}
    flags = succeeded(run(needed("pkg-config"), "--cflags", "--libs", "tenon", env=env)).decode().split()
    succeeded(
        run(needed("gcc"), tmp_path / "program.c", *flags, *sanitizer_flags(place / "sdk"), "-o", tmp_path / "program")
    )
    env = {**os.environ, "LD_LIBRARY_PATH": str(place / "sdk" / "lib")}
    program = checked(tmp_path / "program", place / "sdk")
    assert succeeded(run(program, place / "digits.tenon", stdin=image, env=env)) == expected


def test_cmake_package(place: Path, tmp_path: Path) -> None:
    needs_plain_build(place / "sdk", "the project of the test does not ask for them")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.10)\nproject(client C)\nfind_package(tenon 0.1 REQUIRED)\n"
        f"foreach(form tenon static)\n  add_executable(with_${{form}} {CLIENTS}/run_bundle.c)\n"
        "  target_link_libraries(with_${form} tenon::${form})\nendforeach()\n"
    )
    prefix = f"-DCMAKE_PREFIX_PATH={place}/sdk"
    succeeded(run(needed("cmake"), "-S", tmp_path, "-B", tmp_path / "build", prefix))
    succeeded(run("cmake", "--build", tmp_path / "build"))
    for form in ("tenon", "static"):
        assert run(tmp_path / "build" / f"with_{form}").stderr.endswith(b"== 0\n"), (
            "it is started, and misses its argument"
        )


# ------------------------------------------------------------------------------------------------ bindings, profiles
def test_bindings_and_profile(place: Path, tmp_path: Path) -> None:
    shapes = [{"image": (1, 1, 8, 8)}, {"image": (3, 1, 8, 8)}]
    bundle = tenon.compile(MODEL, shapes=shapes, profile=True, no_tuning=True)
    path, api = bundle.save(tmp_path / "digits.tenon"), Api(place)
    handle, engine = ctypes.c_void_p(), ctypes.c_void_p()
    assert api("tenon_bundle_open", str(path).encode(), None, ctypes.byref(handle)) == OK, api.error
    assert api("tenon_bundle_binding_count", handle) == 2
    options = api.options(threads=2)
    assert api("tenon_engine_create", handle, options, ctypes.byref(engine)) == OK, api.error
    images = np.ascontiguousarray(np.stack([image.reshape(1, 8, 8) for image in held_out_digits()[0][:3]]))
    for count in (3, 1, 3):
        given = np.ascontiguousarray(images[:count])
        with tenon.open(path) as reference:
            (right,) = reference.run(given).values()
        answer = np.zeros_like(right)
        wanted = (ctypes.c_int64 * 4)(*given.shape)
        assert api("tenon_engine_select_shapes", engine, wanted, SIZED(4)) == OK, api.error
        data = given.ctypes.data_as(ctypes.c_void_p)
        assert api("tenon_engine_set_input", engine, 0, data, SIZED(given.nbytes)) == OK, api.error
        assert api("tenon_engine_run", engine) == OK, api.error
        out = answer.ctypes.data_as(ctypes.c_void_p)
        assert api("tenon_engine_get_output", engine, 0, out, SIZED(answer.nbytes)) == OK, api.error
        np.testing.assert_array_equal(answer, right)
    steps = api("tenon_bundle_step_count", handle)
    times = (ctypes.c_uint64 * steps)()
    assert api("tenon_engine_profile", engine, times, SIZED(steps)) == STATE, "not of the second binding"
    assert api("tenon_engine_select", engine, 0) == OK
    assert api("tenon_engine_profile", engine, times, SIZED(steps - 1)) == SIZE
    assert api("tenon_engine_profile", engine, times, SIZED(steps)) == OK, api.error
    assert all(times)
    assert api("tenon_engine_destroy", engine) == api("tenon_bundle_close", handle) == OK


# ------------------------------------------------------------------------------------------------ other machines
def test_sdk_is_refused_where_there_is_no_system(tmp_path: Path) -> None:
    for target, why in [
        ("cortex-m4", "no operating system"),
        ("wasm32", "no operating system"),
        ("ios", "no C library"),
    ]:
        with pytest.raises(ToolchainError, match=why):
            save_sdk(tmp_path / "sdk", target)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(InputError, match="is no SDK"):
        save_sdk(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["other"], "nothing is half-written"


def test_single_files_of_other_machines(place: Path, api: Api, tmp_path: Path) -> None:
    (target,) = set(Container(str(place / "fat.tenon")).targets) - {read_manifest(place / "digits").target.name}
    bundle = tenon.compile(MODEL, no_tuning=True, target=target)
    bundle.save(tmp_path / "other.tenon")
    other = str(tmp_path / "other.tenon")
    if platform.machine() != "aarch64":
        assert api("tenon_bundle_open", other.encode(), None, ctypes.byref(api.out)) == MACHINE
        assert f"has code for {target} and none for this machine" in api.error
        with pytest.raises(BundleError, match="none for this machine"):
            tenon.open(other)
    with pytest.raises(InputError, match="leave out --emit"):
        bundle.save(tmp_path / "x.tenon", ("c",))
    content = bytearray(Path(other).read_bytes())
    content[60] ^= 1
    (tmp_path / "damaged.tenon").write_bytes(content)
    with pytest.raises(BundleError, match="digest of its directory"):
        tenon.open(tmp_path / "damaged.tenon")
    (tmp_path / "cut.tenon").write_bytes(content[:-1])
    with pytest.raises(BundleError, match="incomplete"):
        tenon.open(tmp_path / "cut.tenon")


def test_emulated_aarch64(place: Path, image: bytes, expected: bytes) -> None:
    needs_plain_build(place / "sdk", "it is one for this machine")
    skip_without_device("aarch64")
    system = Path("/usr/aarch64-linux-gnu")
    if not (system / "lib" / "libc.so.6").exists():
        pytest.skip("there is no C library for AArch64 to run programs with (Debian: libc6-arm64-cross)")
    sdk = save_sdk(place / "aarch64", "aarch64")
    # 3 kB of these verify lists of parts, versions, and who owns files of caches; 7 kB are for GPUs and
    # networks that several devices share, 1 kB for limits of loops, 3 kB for inputs of changing size, and 1 kB for
    # processors with SME, bf16 and AMX-FP16, and for barriers; 45 kB go on with texts by language models, 9 kB
    # of these by grammars, 24 kB by JSON schemas and 6 kB with several at the same time; 9 kB write down speech.
    assert (sdk / "lib" / "libtenon.so").stat().st_size < 159_000
    target, compiler = find("aarch64"), zig(tenon.Options.from_environment().cache)
    row = replace(target, triple="aarch64-linux-gnu")
    texts = {
        **{name: (CLIENTS / name).read_bytes() for name in ("run_bundle.c", "require.h")},
        "tenon.h": (sdk / "include" / "tenon.h").read_bytes(),
    }
    start = START_OF_AARCH64.encode()
    objects = {
        "client.o": compiler.compile(texts, "run_bundle.c", row),
        "start.o": compiler.compile({"start.c": start}, "start.c", row),
        "libtenon.so": (sdk / "lib" / "libtenon.so").read_bytes(),
    }
    objects["libc.so"] = stub_library(objects["client.o"], "libc.so.6", LIBC_OF_CLIENT)
    flags = ("-nostdlib", "libtenon.so", "libc.so", "-Wl,--dynamic-linker=/lib/ld-linux-aarch64.so.1", "-pie")
    program = place / "run_bundle_aarch64"
    program.write_bytes(compiler.link(objects, row, flags))
    program.chmod(0o755)
    emulator = ("qemu-aarch64", "-L", system, "-E", f"LD_LIBRARY_PATH={sdk}/lib")
    answer = np.frombuffer(succeeded(run(*emulator, program, place / "fat.tenon", stdin=image)), np.float32)
    np.testing.assert_allclose(answer, np.frombuffer(expected, np.float32), rtol=1e-5, atol=1e-7)  # other instructions


# ------------------------------------------------------------------------------------------------ command line
def test_command_line_writes_single_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], image: bytes) -> None:
    out = tmp_path / "net.tenon"
    command = ["compile", str(MODEL), "-o", str(out), "--no-tuning"]
    assert run_main(main, [*command, "--target", "x86-64,aarch64"]) == 0
    assert Container(str(out)).targets == ("x86-64", "aarch64")
    assert run_main(main, ["inspect", str(out), "--json"]) == 0
    text = capsys.readouterr().out
    told = json.loads(text[text.index("{") :])
    assert [each["target"]["name"] for each in told["targets"]] == ["x86-64", "aarch64"]
    assert all(state == "ok" for each in told["targets"] for state in each["states"].values())
    content = bytearray(out.read_bytes())
    place = content.index(Container(str(out)).part("aarch64", "digits.weights.bin").tobytes())
    content[place] ^= 1
    out.write_bytes(content)
    assert run_main(main, ["inspect", str(out)]) == 2
    assert "digits.weights.bin is damaged" in capsys.readouterr().err
    for arguments, why in [
        ([*command, "--emit", "exe"], "leave out --emit"),
        ([*command[:3], str(tmp_path / "folder"), "--target", "x86-64,aarch64"], "several targets go to one file"),
        ([*command, "--target", "x86-64,x86-64"], "a target is named twice"),
    ]:
        assert run_main(main, arguments) == 2
        assert why in " ".join(capsys.readouterr().err.split())


def test_command_line_writes_an_sdk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # the second one replaces the first
        assert run_main(main, ["sdk", "-o", str(tmp_path / "sdk"), "--json"]) == 0
        files = json.loads(capsys.readouterr().out)["files"]
    assert {"include/tenon.h", "include/tenon.hpp", "lib/libtenon.a", "lib/pkgconfig/tenon.pc"} <= files.keys()
    assert run_main(main, ["sdk", "-o", str(tmp_path)]) == 2
    assert "is no SDK" in capsys.readouterr().err
