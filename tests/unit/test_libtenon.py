"""libtenon: C clients on all forms of bundles, misuse, damage, sanitizers, and other machines."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tenon
from libtenon import client, needed, run, sanitized_client, succeeded
from real import DIGITS, held_out_digits
from tenon.bundle.writer import save_container
from tenon.sdk import save_sdk

MODEL = DIGITS / "digits.onnx"
FORMS = ("digits", "digits.tenon", "fat.tenon", "memory:digits.tenon")
pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")

(OK, HANDLE, ARGUMENT, NOT_FOUND, SIZE, DAMAGED, MACHINE, _, SYSTEM, BUSY, STATE, UNSUPPORTED, NO_COMPILER) = range(13)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an SDK for this machine, and the digits network in all forms."""
    folder = tmp_path_factory.mktemp("libtenon")
    save_sdk(folder / "sdk")
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
    check = (needed("valgrind"), "-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite")
    assert succeeded(run(*check, run_bundle, place / "digits.tenon", stdin=image)) == expected


@pytest.mark.parametrize("sanitizers", ["address,undefined", pytest.param("thread", marks=pytest.mark.slow)])
def test_sanitizers_find_nothing(sanitizers: str, place: Path, image: bytes, expected: bytes, tmp_path: Path) -> None:
    program = sanitized_client("run_bundle", tmp_path, sanitizers)
    for form in ("digits", "fat.tenon"):
        assert succeeded(run(program, place / form, stdin=image)) == expected


def test_damaged_files_are_refused(place: Path, tmp_path: Path) -> None:
    """TENON_FUZZ is the number of damaged copies."""
    program = sanitized_client("damaged_bundles", tmp_path, "address,undefined")
    count = os.environ.get("TENON_FUZZ", "600")
    text = succeeded(run(program, place / "digits.tenon", count)).decode()
    opened, damaged = (int(part.split()[0]) for part in text.split(", ")[:2])
    assert damaged > opened, text


# ------------------------------------------------------------------------------------------------ misuse
class Api:
    """The C API through ctypes, with a bundle, an engine, and handles of ended ones."""

    def __init__(self, place: Path) -> None:
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
