"""The standalone executable on files of every kind."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import handmade
from handmade import expected

X = np.arange(0, 250, 25, dtype=np.float32).reshape(1, 1, 2, 5)
PGM = b"P5 5 2 255\n" + X.astype(np.uint8).tobytes()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Linked against the C library that the default compiler keeps in the user's cache: seconds, the first time."""
    folder = tmp_path_factory.mktemp("bundle") / "out"
    bundle = handmade.bundle(shape=X.shape, emit=("exe",))
    assert bundle.save(folder) == folder.resolve()
    first = (folder / "affine").read_bytes()
    bundle.save(folder)
    assert (folder / "affine").read_bytes() == first
    return folder / "affine"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _answer(program: Path, *arguments: str) -> np.ndarray:
    command = [str(program), *arguments, "--raw-output", "y.bin"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return np.fromfile("y.bin", np.float32).reshape(X.shape)


def test_raw_npy_and_images(program: Path) -> None:
    X.tofile("x.raw")
    np.save("x.npy", X)
    Path("x.pgm").write_bytes(PGM)
    for name in ("x.raw", "x.npy", "x.pgm", "x=x.npy"):
        np.testing.assert_array_equal(_answer(program, name), expected(X), name)


def test_mean_and_scale(program: Path) -> None:
    Path("x.pgm").write_bytes(PGM)
    got = _answer(program, "--mean", "50", "--scale", "0.5,1,1", "x.pgm")
    np.testing.assert_array_equal(got, expected((X - 50) * np.float32(0.5)))


def test_colour_becomes_grey(program: Path) -> None:
    rgb = np.random.default_rng(3).integers(0, 256, (2, 5, 3), np.uint8)
    Path("x.ppm").write_bytes(b"P6 5 2 255\n" + rgb.tobytes())
    grey = (rgb @ np.array([0.299, 0.587, 0.114])).astype(np.float32)
    # the program sums in its own order
    np.testing.assert_allclose(_answer(program, "x.ppm"), expected(grey.reshape(X.shape)), rtol=1e-6)


def test_what_is_printed(program: Path) -> None:
    X.tofile("x.raw")
    run = [str(program), "x.raw", "--top", "2", "--repeat", "3"]
    result = subprocess.run(run, capture_output=True, text=True, check=True)
    assert re.match(r"latency: min \d+\.\d{3} ms, median \d+\.\d{3} ms of 3 runs\n", result.stdout)
    assert result.stdout.endswith("y f32[1,1,2,5]\n       9  459\n       8  408\n")
    usage = subprocess.run([program, "--help"], capture_output=True, text=True, check=True)
    assert "x  f32[1,1,2,5]" in usage.stdout


def _npy(array: np.ndarray) -> bytes:
    np.save("made.npy", array)
    return Path("made.npy").read_bytes()


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (None, [], "no file for input 'x'"),
        (None, ["none"], "cannot open none: No such file"),
        (None, ["."], "Is a directory"),
        (None, ["--top"], "--top needs a value"),
        (None, ["--top", "0", "f"], "from 1 to 1000000, not '0'"),
        (None, ["--repeat", "2x", "f"], "not '2x'"),
        (None, ["--mean", "1,2", "f"], "one number or three, not '1,2'"),
        (None, ["--mean", "1,2,3,4", "f"], "one number or three"),
        (None, ["--novel", "1", "f"], "no option --novel"),
        (lambda: b"", ["f"], "f is empty"),
        (lambda: bytes(39), ["f"], "f has 39 bytes and input 'x' takes 40"),
        (lambda: bytes(3_000_000), ["f"], "f has more than"),
        (lambda: bytes(40), ["f", "f"], "2 files given and this network has 1"),
        (lambda: bytes(40), ["f", "x=f"], "input 'x' is given twice"),
        (lambda: b"P5 5 3 255\n" + bytes(15), ["f"], "5 pixels wide and 3 high and input 'x' takes 5 by 2: resize"),
        (lambda: PGM[:-1], ["f"], "f: the image is truncated"),
        (lambda: _npy(X.astype(np.float64)), ["f"], "holds f8 and input 'x' takes f4: convert"),
        (lambda: _npy(X.astype(">f4")), ["f"], "big-endian"),
        (lambda: _npy(np.asfortranarray(X)), ["f"], "Fortran order"),
        (lambda: _npy(X.reshape(2, 5)), ["f"], "has shape (2, 5) and input 'x' takes another"),
        (lambda: _npy(X)[:-1], ["f"], "holds 39 bytes of data and input 'x' takes 40"),
        (lambda: _npy(X)[:20], ["f"], "truncated .npy"),
        (lambda: _npy(X)[:9], ["f"], "truncated .npy"),
        (lambda: _npy(X).replace(b"descr", b"other"), ["f"], "damaged .npy"),
        (lambda: bytes(40), ["f", "--raw-output", "no/such"], "cannot write no/such"),
    ],
)
def test_one_clear_line_on_bad_input(program: Path, make: object, arguments: list[str], words: str) -> None:
    if callable(make):
        Path("f").write_bytes(make())
    result = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.startswith("affine: ")
    assert result.stderr.count("\n") == 1
