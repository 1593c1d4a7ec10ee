"""The standalone executable: input files of every kind, preprocessing, output and errors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import handmade
import onnx_models
import tenon
from command_line import run_main
from handmade import expected
from real import shared
from tenon.cli import main
from tenon.errors import InputError
from tenon.machine.toolchain.compiler import Compiler
from tenon.network.graph.preprocessing import Preprocessing
from tenon.runtime.engine.image import read_image

X = np.arange(0, 250, 25, dtype=np.float32).reshape(1, 1, 2, 5)
PGM = b"P5 5 2 255\n" + X.astype(np.uint8).tobytes()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Linked against the C library of the default compiler, which is built and cached on first use."""
    folder = tmp_path_factory.mktemp("bundle") / "out"
    bundle = handmade.bundle(shape=X.shape, emit=("exe",), preprocessing=Preprocessing())
    assert bundle.save(folder) == folder.resolve()
    first = (folder / "affine").read_bytes()
    bundle.save(folder)
    assert (folder / "affine").read_bytes() == first
    return folder / "affine"


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _answer(program: Path, *arguments: str) -> np.ndarray:
    command = [str(program), *arguments, "--raw-output", "y.bin"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return np.fromfile("y.bin", np.float32).reshape(X.shape)


def test_raw_npy_and_image_inputs(program: Path) -> None:
    X.tofile("x.raw")
    np.save("x.npy", X)
    Path("x.pgm").write_bytes(PGM)
    for name in ("x.raw", "x.npy", "x.pgm", "x=x.npy"):
        np.testing.assert_array_equal(_answer(program, name), expected(X), name)


def test_mean_and_scale(program: Path) -> None:
    Path("x.pgm").write_bytes(PGM)
    got = _answer(program, "--mean", "50", "--scale", "0.5", "x.pgm")
    np.testing.assert_array_equal(got, expected((X - 50) * np.float32(0.5)))


def test_colour_images_are_converted_to_grey(program: Path) -> None:
    rgb = np.random.default_rng(3).integers(0, 256, (2, 5, 3), np.uint8)
    Path("x.ppm").write_bytes(b"P6 5 2 255\n" + rgb.tobytes())
    grey = (rgb @ np.array([19595, 38470, 7471]) + 32768 >> 16).astype(np.float32)
    np.testing.assert_array_equal(_answer(program, "x.ppm"), expected(grey.reshape(X.shape)))


def test_printed_outputs(program: Path) -> None:
    X.tofile("x.raw")
    run = [str(program), "x.raw", "--top", "2", "--repeat", "3"]
    result = subprocess.run(run, capture_output=True, text=True, check=True)
    assert re.match(r"latency: min \d+\.\d{3} ms, median \d+\.\d{3} ms of 3 runs\n", result.stdout)
    assert result.stdout.endswith("y f32[1,1,2,5]\n       9  459\n       8  408\n")
    for option in ("--help", "-h"):
        usage = subprocess.run([program, option], capture_output=True, text=True, check=True)
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
        (lambda: PGM, ["f", "--mean", "1,2,3"], "input 'x' has 1 channel: give --mean and --scale one number"),
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
def test_bad_input_gives_a_one_line_error(program: Path, make: object, arguments: list[str], words: str) -> None:
    if callable(make):
        Path("f").write_bytes(make())
    result = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stderr.startswith("affine: ")
    assert result.stderr.count("\n") == 1


# ---------------------------------------------------------------------------------------------- preprocessing
def _network(dims: tuple[int, ...]) -> bytes:
    """A convolution over the image, or its equivalent for channels-last input."""
    axes = (0, 3, 1, 2) if len(dims) == 4 and dims[3] == 3 else (0, 1, 2, 3)
    weights = onnx_models.random(4, 3, 3, 3)
    nodes = [
        onnx_models.node("Transpose", ["x"], ["t"], perm=axes),
        onnx_models.node("Conv", ["t", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    return bytes(onnx_models.model(nodes, {"x": dims}, ["y"], {"w": weights}).SerializeToString())


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Images that are larger, smaller, of another aspect ratio, grey, and as BMP files."""
    rng, paths = np.random.default_rng(0), []
    for name, shape in (("a.ppm", (50, 80, 3)), ("b.ppm", (9, 7, 3)), ("c.pgm", (33, 33)), ("d.bmp", (61, 30, 3))):
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(tmp_path / name)
        paths.append(tmp_path / name)
    return paths


MEAN, SCALE = (103.9, 116.8, 123.7), (1 / 58.4, 1 / 57.1, 1 / 57.4)


@pytest.mark.parametrize(
    ("dims", "options"),
    [
        ((1, 3, 24, 32), {"preprocess": {"mean": MEAN, "scale": SCALE, "channels": "bgr"}}),
        ((1, 24, 32, 3), {"preprocess": {"fit": "letterbox", "scale": 1 / 255, "border": 7}}),
        ((1, 3, 24, 32), {"preprocess": {"fit": "crop", "resize": 40, "sampling": "bilinear", "mean": 127.5}}),
        ((1, 3, 24, 32), {"preprocess": {"fit": "crop", "mean": MEAN}, "compile_preprocess": (40, 40)}),
        ((1, 3, 24, 32), {}),
    ],
    ids=["stretch", "letterbox", "crop", "compiled in", "none"],
)
def test_recorded_preprocessing_is_applied(
    dims: tuple[int, ...], options: dict[str, Any], photos: list[Path], tmp_path: Path
) -> None:
    """The executable's output for an image equals that of ``Engine.run``, bit for bit."""
    bundle = tenon.compile(_network(dims), name="net", **options)
    folder = bundle.save(tmp_path / "out", (*bundle.parts, "exe"))
    _compared(folder, photos)


def _compared(folder: Path, photos: list[Path]) -> None:
    with tenon.open(folder) as engine:
        ((name, array),) = engine.inputs.items()
        for photo in photos:
            seen = read_image(photo, array.shape, engine.manifest.preprocessing[name], array.dtype)
            expected = b"".join(a.tobytes() for a in engine.run({name: seen.pixels}).values())
            program = [str(folder / engine.name), str(photo), "--raw-output", "y.bin"]
            subprocess.run(program, check=True, capture_output=True)
            assert Path("y.bin").read_bytes() == expected, photo.name


HEAD = {
    "kind": "ssd",
    "strides": (8, 16, 32, 64),
    "sizes": ((10, 16, 24), (32, 48), (64, 96), (128, 192, 256)),
    "variances": (0.1, 0.2),
}


def _lines(*command: object) -> list[str]:
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=True).stdout.splitlines()


def _tenon_run(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    """The lines that `tenon run` prints, without the time."""
    capsys.readouterr()
    assert run_main(main, ["run", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()[:-1]


def test_real_detector(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A detector, on images of another size than its input: the outputs' bits, and the detections that are printed."""
    model, cat = shared("models/caffe/RFB-320"), shared("models/images/coral_cat.bmp")
    faces = shared("models/images/rfb_faces_test.jpg")
    labels = ("background", "face")
    how = {"mean": 127, "scale": 1 / 128, "fit": "letterbox"}
    bundle = tenon.compile(model, preprocess=how, head=HEAD, name="faces", labels=labels)
    folder = bundle.save(tmp_path / "out", (*bundle.parts, "exe"))
    _compared(folder, [cat, faces])
    for photo, options, least in ((cat, (), 0), (faces, ("--threshold", "0.1", "--overlap", "0.9"), 6)):
        expected = _tenon_run(capsys, folder, photo, *options)
        assert _lines(folder / "faces", photo, *options) == expected
        assert int(expected[-1].split()[0]) >= least
    Path("names.txt").write_bytes("Hintergrund\r\nein längerer Name\n".encode())
    expected = _tenon_run(capsys, folder, faces, "--labels", "names.txt")
    assert "ein längerer Name" in expected[1]
    assert expected[-1] == "5 found"
    assert _lines(folder / "faces", faces, "--labels", "names.txt") == expected
    raw = subprocess.run([folder / "faces", faces, "--threshold", "2"], capture_output=True, text=True, check=False)
    assert (raw.returncode, raw.stderr) == (2, "faces: --threshold takes a number from 0 to 1, not '2'\n")


def test_real_classifier_prints_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The best classes of a photo, as `tenon run` prints them; quantised outputs with their sign."""
    model = shared("models/tflite_int8/coral_mobilenet/mobilenet_v1_0.25_128_quant.tflite")
    labels = shared("models/tflite_int8/coral_mobilenet/imagenet_labels.txt").read_text().splitlines()
    bundle = tenon.compile(model, name="net", labels=labels)
    folder = bundle.save(tmp_path / "out", (*bundle.parts, "exe"))
    cat = shared("models/images/coral_cat.bmp")
    expected = _tenon_run(capsys, folder, cat)[1:]
    assert len(expected) == 5
    assert "cat" in expected[0]
    assert _lines(folder / "net", cat)[1:] == expected


def test_signed_outputs(tmp_path: Path) -> None:
    nodes = [onnx_models.node("Cast", ["x"], ["y"], to=3)]  # int8
    bundle = tenon.compile(onnx_models.model(nodes, {"x": (1, 3)}, ["y"]).SerializeToString(), name="net")
    folder = bundle.save(tmp_path / "out", ("exe",))
    np.array([[-3, 5, -128]], np.float32).tofile("x.raw")
    assert [float(line.split()[1]) for line in _lines(folder / "net", "x.raw")[1:]] == [-3, 5, -128]


def test_mean_and_scale_override_the_recorded_ones(photos: list[Path], tmp_path: Path) -> None:
    recorded = {"mean": MEAN, "scale": SCALE, "channels": "bgr"}
    bundle = tenon.compile(_network((1, 3, 8, 8)), name="net", preprocess=recorded)
    folder = bundle.save(tmp_path / "out", (*bundle.parts, "exe"))
    command = [str(folder / "net"), str(photos[0]), "--mean", "1,2,3", "--raw-output", "y.bin"]
    subprocess.run(command, check=True, capture_output=True)
    with tenon.open(folder) as engine:
        preprocessing = engine.manifest.preprocessing["x"].changed({"mean": (1, 2, 3)})
        answer = engine.run(read_image(photos[0], (1, 3, 8, 8), preprocessing).pixels)
    assert Path("y.bin").read_bytes() == b"".join(a.tobytes() for a in answer.values())


def test_images_for_other_inputs_are_rejected(photos: list[Path], tmp_path: Path) -> None:
    """As in Python: images for inputs without image preprocessing are rejected."""
    bundle = tenon.compile(_network((2, 3, 8, 8)), name="net")
    folder = bundle.save(tmp_path / "out", ("exe",))
    result = subprocess.run([str(folder / "net"), str(photos[0])], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert "is an image and input 'x' cannot hold one" in result.stderr


def test_only_networks_with_image_inputs_have_decoders(photos: list[Path], tmp_path: Path) -> None:
    """Programs for other networks are smaller, and still say what is wrong with an image."""
    sizes = []
    for name, dims in (("pictures", (1, 3, 8, 8)), ("others", (2, 3, 8, 8))):
        program = tenon.compile(_network(dims), name=name).save(tmp_path / name, ("exe",)) / name
        sizes.append(program.stat().st_size)
    assert sizes[1] < sizes[0] - 20_000
    for content, words in (
        (photos[0].read_bytes(), "cannot hold one"),
        (b"P5", "has 2 bytes and input 'x' takes 1536"),
    ):
        Path("f").write_bytes(content)
        result = subprocess.run([program, "f"], capture_output=True, text=True, check=False)
        assert (result.returncode, words in result.stderr) == (2, True)


def test_mean_with_wrong_number_of_channels_is_rejected(tmp_path: Path) -> None:
    bundle = handmade.bundle(shape=X.shape, emit=("exe",), preprocessing=Preprocessing(mean=(1.0, 2.0, 3.0)))
    with pytest.raises(InputError, match=r"mean has 3 values for 1 channel"):
        bundle.save(tmp_path / "out")


# ------------------------------------------------------------------------------------------------------- output
def test_output_is_written_atomically(program: Path) -> None:
    X.tofile("x.raw")
    _answer(program, "x.raw")
    before = Path("y.bin").stat().st_ino
    Path("link.bin").symlink_to("y.bin")
    Path("y.bin").chmod(0o600)
    command = [str(program), "x.raw", "--raw-output"]
    subprocess.run([*command, "link.bin"], check=True, capture_output=True)
    assert Path("link.bin").is_symlink()
    assert Path("y.bin").stat().st_ino != before
    assert Path("y.bin").stat().st_mode & 0o777 == 0o600
    shown = subprocess.run([*command, "/dev/stdout"], check=True, capture_output=True).stdout
    assert expected(X).tobytes() in shown
    assert sorted(p.name for p in Path().iterdir()) == ["link.bin", "x.raw", "y.bin"]


def test_output_on_a_full_disk(program: Path) -> None:
    """The error is reported also if the output replaces the input file."""
    X.tofile("x.raw")
    limit = "import os, resource, signal, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8)); "
    start = limit + "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", start, str(program), "x.raw", "--raw-output", "x.raw"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "cannot write x.raw: File too large" in result.stderr
    assert [p.name for p in Path().iterdir()] == ["x.raw"]
    np.testing.assert_array_equal(np.fromfile("x.raw", np.float32).reshape(X.shape), X)


@pytest.mark.slow
def test_the_first_executable_for_a_target_says_that_it_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a link that makes nothing: a C library takes a minute to build."""
    monkeypatch.setattr(Compiler, "link", lambda *_: b"")
    told: list[str] = []
    for name in ("first", "second"):
        bundle = handmade.bundle("aarch64", tmp_path / "cache")
        bundle.save(tmp_path / name, emit=("exe",), progress=told.append)
    assert told == ["building the C library for aarch64-linux-musl, once; this can take minutes"]
