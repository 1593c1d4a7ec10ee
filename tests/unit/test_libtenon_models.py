"""libtenon on models instead of bundles: compiled once, kept by content, and clear errors without a compiler."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

import tenon
from libtenon import BUILDS, client, needs_plain_build, run, sdk_for_clients, succeeded
from real import DIGITS, held_out_digits

MODEL = DIGITS / "digits.onnx"
IMAGE = held_out_digits()[0][0]
pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")


@pytest.fixture(scope="module", params=BUILDS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return client("run_bundle", sdk_for_clients(folder, request.param), folder)


def environment(place: Path, compiler: str, **more: str) -> dict[str, str]:
    return {**os.environ, "TENON": compiler, "TENON_CACHE": str(place / "cache"), "TENON_NO_TUNING": "1", **more}


def counting_compiler(place: Path) -> str:
    """Tenon, behind a script that notes each start in ``starts``."""
    script = place / "compiler"
    objects = tenon.Options.from_environment().cache
    script.write_text(
        f'#!/bin/sh\necho start >> "{place}/starts"\nTENON_CACHE="{objects}" exec "{sys.executable}" -m tenon "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def expected() -> bytes:
    with tenon.open(tenon.compile(MODEL, no_tuning=True)) as engine:
        (answer,) = engine.run(IMAGE).values()
    return bytes(answer.tobytes())


def test_two_programs_compile_a_model_once_and_later_ones_never(program: Path, tmp_path: Path) -> None:
    env = environment(tmp_path, counting_compiler(tmp_path))
    pipe = subprocess.PIPE
    both = [subprocess.Popen([program, MODEL], stdin=pipe, stdout=pipe, stderr=pipe, env=env) for _ in range(2)]
    for child in both:
        out, err = child.communicate(IMAGE.tobytes())
        assert child.returncode == 0, err.decode()
        assert out == expected()
    assert (tmp_path / "starts").read_text() == "start\n"
    without = environment(tmp_path, "/bin/false")
    assert succeeded(run(program, MODEL, stdin=IMAGE.tobytes(), env=without)) == expected()
    left = sorted(path.suffix for path in (tmp_path / "cache" / "models").iterdir())
    assert left == [".lock", ".tenon"], "nothing else stays"

    (bundle,) = (tmp_path / "cache" / "models").glob("*.tenon")
    content = bytearray(bundle.read_bytes())
    content[len(content) // 2] ^= 1
    bundle.write_bytes(content)
    damaged = run(program, MODEL, stdin=IMAGE.tobytes(), env=without)
    assert b"TENON_DAMAGED" in damaged.stderr
    assert not bundle.exists(), "the next opening compiles again"


def test_threads_of_a_program_compile_a_model_once(program: Path, tmp_path: Path) -> None:
    made = client("many_threads", program.parent / "sdk", tmp_path)
    env = environment(tmp_path, counting_compiler(tmp_path))
    assert succeeded(run(made, MODEL, "4", stdin=IMAGE.tobytes(), env=env)) == expected()
    assert (tmp_path / "starts").read_text() == "start\n"


def test_a_model_in_memory(program: Path, tmp_path: Path) -> None:
    env = environment(tmp_path, counting_compiler(tmp_path))
    assert succeeded(run(program, f"memory:{MODEL}", stdin=IMAGE.tobytes(), env=env)) == expected()
    assert sorted(path.suffix for path in (tmp_path / "cache" / "models").iterdir()) == [".lock", ".tenon"]


@pytest.mark.parametrize("form", [pytest.param("", marks=pytest.mark.slow), "memory:"])
def test_shapes_that_no_binding_has(form: str, program: Path, tmp_path: Path) -> None:
    """The model is compiled for them; shapes that it had before are not compiled again."""
    env = environment(tmp_path, counting_compiler(tmp_path))
    made = client("select_shapes", program.parent / "sdk", tmp_path)
    images = np.ascontiguousarray(np.stack([image.reshape(1, 8, 8) for image in held_out_digits()[0][:3]]))
    with tenon.open(tenon.compile(MODEL, no_tuning=True, shapes={"image": images.shape})) as engine:
        (three,) = engine.run(images).values()
    with tenon.open(tenon.compile(MODEL, no_tuning=True)) as engine:
        (one,) = engine.run(images[:1]).values()
    answers = np.frombuffer(succeeded(run(made, f"{form}{MODEL}", stdin=images.tobytes(), env=env)), np.float32)
    np.testing.assert_array_equal(answers, np.concatenate([three, one, three]).ravel())
    assert (tmp_path / "starts").read_text() == "start\n" * 2


@pytest.mark.parametrize(
    ("compiler", "status", "text"),
    [
        ("/no/such/tenon", "TENON_NO_COMPILER", "compile it first: tenon compile"),
        ("", "TENON_NO_COMPILER", "no tenon in PATH"),
        ("#!/bin/sh\necho 'operator Foo is not supported' >&2\nexit 2\n", "TENON_COMPILE_FAILED", "operator Foo"),
        ("#!/bin/sh\nexit 0\n", "TENON_COMPILE_FAILED", "cannot be compiled"),
        ("#!/bin/sh\nkill -9 $$\n", "TENON_COMPILE_FAILED", "the compiler was ended"),
    ],
)
def test_errors_of_the_compiler(program: Path, tmp_path: Path, compiler: str, status: str, text: str) -> None:
    if compiler.startswith("#!"):
        script = tmp_path / "compiler"
        script.write_text(compiler)
        script.chmod(0o755)
        compiler = str(script)
    env = environment(tmp_path, compiler, PATH="/no/such/folder")
    done = run(program, MODEL, stdin=IMAGE.tobytes(), env=env)
    assert done.returncode == 1
    assert status in done.stderr.decode()
    assert text in done.stderr.decode()
    assert not list((tmp_path / "cache" / "models").glob("*.tenon"))


def is_alive(process: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_a_compiler_that_hangs_is_ended(program: Path, tmp_path: Path) -> None:
    import ctypes

    needs_plain_build(program.parent / "sdk", "it loads the library into Python")
    script = tmp_path / "compiler"
    script.write_text(f'#!/bin/sh\nsleep 60 &\necho $! > "{tmp_path}/child"\nwait\n')
    script.chmod(0o755)
    code = (
        "import ctypes, sys\n"
        "library = ctypes.CDLL(sys.argv[1])\n"
        "library.tenon_last_error.restype = ctypes.c_char_p\n"
        "options = (ctypes.c_int32 * 16)(64)\n"
        "options[15] = 1\n"
        "print(library.tenon_bundle_open(sys.argv[2].encode(), options, ctypes.byref(ctypes.c_void_p())))\n"
        "print(library.tenon_last_error().decode())\n"
    )
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        pytest.skip("the struct is laid out for 64 bits here")
    library = program.parent / "sdk" / "lib" / "libtenon.so"
    text = succeeded(run(sys.executable, "-c", code, library, MODEL, env=environment(tmp_path, str(script)))).decode()
    assert text.startswith("14\n"), text
    assert "more than 1 s" in text
    child = int((tmp_path / "child").read_text())
    deadline = monotonic() + 10  # a killed process is gone when it is next scheduled
    while is_alive(child) and monotonic() < deadline:
        sleep(0.02)
    assert not is_alive(child)
