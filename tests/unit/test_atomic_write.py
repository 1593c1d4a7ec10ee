"""Atomic writes: files are complete or absent, for every command and function that writes one."""

from __future__ import annotations

import ast
import errno
import io
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import handmade
import tenon
from caffe_models import caffemodel, head, layer, random
from tenon.atomic_write import scratch, write, write_all, writing
from tenon.cli import main
from tenon.cli.draw import draw
from tenon.cli.program import run_command
from tenon.errors import InputError, TenonWarning
from tenon.formats.model_files.model_file import read
from tenon.machine.toolchain.cache import Cache
from tenon.pipeline import rewrite
from tenon.runtime.answers.boxes import detections_answer
from tenon.runtime.engine.detect import Detection

REPOSITORY = Path(__file__).parents[2]
SOURCE = Path(tenon.__file__).parent
FULL = OSError(errno.ENOSPC, "No space left on device")


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


# ------------------------------------------------------------------------------------------------ the mechanism
def test_write_replaces_files_and_creates_folders(tmp_path: Path) -> None:
    place = tmp_path / "new" / "er" / "file"
    write(place, "één")
    write(place, b"two")
    assert snapshot(tmp_path) == {"new": None, "new/er": None, "new/er/file": b"two"}
    assert stat.S_IMODE(place.stat().st_mode) == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt(), SystemExit(143)], ids=["full", "SIGINT", "SIGTERM"])
def test_errors_keep_the_previous_file(tmp_path: Path, error: BaseException, older: bool) -> None:
    place = tmp_path / "sub" / "file"
    if older:
        write(place, b"old")
    before = snapshot(tmp_path)

    def fail() -> None:
        with writing(place) as file:
            file.write(b"new")
            raise error

    with pytest.raises(InputError if error is FULL else type(error)):
        fail()
    assert snapshot(tmp_path) == before


def test_several_files_are_replaced_together_or_not_at_all(tmp_path: Path) -> None:
    write(tmp_path / "a", b"old")
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match=r"b: cannot be written \(Is a directory\)"):
        write_all({tmp_path / "a": b"new", tmp_path / "b": b"new"})
    assert snapshot(tmp_path) == {"a": b"old", "b": None}


def test_permissions_links_and_devices_are_preserved(tmp_path: Path) -> None:
    write(tmp_path / "file", b"old")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("file")
    write(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    write("/dev/null", b"gone")
    assert Path("/dev/null").is_char_device()


def test_pipes_and_redirected_output_are_written_to(tmp_path: Path) -> None:
    script = "from tenon.atomic_write import write; write('/dev/stdout', b'whole')"
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", script], stdout=out, check=True)
    assert (tmp_path / "out").read_bytes() == b"whole"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"whole"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p.mkdir(), "Is a directory"),
        (lambda p: p.parent.rmdir() or p.parent.write_text("in the way"), "exists|Not a directory"),
    ],
    ids=["folder", "no folder"],
)
def test_paths_that_cannot_be_written(tmp_path: Path, make: Callable[[Path], object], words: str) -> None:
    place = tmp_path / "sub" / "file"
    place.parent.mkdir()
    make(place)
    with pytest.raises(InputError, match=rf"--html .*file: cannot be written \(.*({words}).*\): choose another place"):
        write(place, b"new", "--html")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everything")
def test_read_only_files_are_not_replaced(tmp_path: Path) -> None:
    write(tmp_path / "file", b"old")
    (tmp_path / "file").chmod(0o444)
    with pytest.raises(InputError, match="read-only"):
        write(tmp_path / "file", b"new")


def test_write_to_full_device() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(InputError, match="No space left"):
        write("/dev/full", b"x" * 100_000)


def test_temporary_folders_are_always_removed() -> None:
    def fail() -> None:
        with scratch() as folder:
            folders.append(folder)
            (folder / "deep").mkdir()
            (folder / "deep" / "file").write_bytes(b"")
            raise KeyboardInterrupt

    folders: list[Path] = []
    with pytest.raises(KeyboardInterrupt):
        fail()
    assert not folders[0].exists()


def test_only_atomic_write_opens_files_for_writing() -> None:
    """Every other writer writes into a temporary folder that is moved into place, or removed, as a whole."""
    inside = {
        "atomic_write.py",
        "runtime/bundle/folder.py",
        "runtime/sdk/folder.py",
        "machine/codegen/vulkan/spirv.py",
        "machine/toolchain/compiler.py",
        "runtime/engine/device_here.py",
        "runtime/engine/device_parts.py",
        "runtime/plugins/offload.py",
        "machine/targets/runner.py",
        "runtime/engine/loading.py",
        "runtime/c/wasm_probe.py",
        "formats/wire/reproducible_archives.py",  # tar archives in memory
    }
    writers = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted(SOURCE.rglob("*.py"))
        if str(path.relative_to(SOURCE)) not in inside
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _writes(node)
    ]
    assert not writers


def _writes(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    texts = [a.value for a in (*call.args, *(k.value for k in call.keywords)) if isinstance(a, ast.Constant)]
    opens = name in ("open", "fdopen") and any(
        isinstance(t, str) and re.fullmatch("[rwaxbt+]*[wax+][bt+]*", t) for t in texts
    )
    return opens or name in ("write_bytes", "write_text", "tofile", "mkstemp", "mkdtemp", "TemporaryDirectory")


# --------------------------------------------------------------------------------------------- every command
PROTOTXT = head(1, 2, 5, 5) + layer(
    "Convolution", 'convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } }'
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "optimize": ("optimize", "IN/net.onnx", "-o", "OUT/net.onnx"),
    "optimize Caffe": ("optimize", "IN/caffe.prototxt", "-o", "OUT/caffe.prototxt"),
    "inspect": ("inspect", "IN/net.onnx", "--dot", "OUT/net.dot"),
    "inspect text": ("inspect", "IN/net.onnx", "--text", "OUT/net.txt"),
    "run": ("run", "IN/bundle", "--input", "IN/x.npy", "--output", "OUT/y.npz"),
    "profile": ("profile", "IN/bundle", "--rounds", "1", "--html", "OUT/page.html"),
    "compile": ("compile", "IN/net.onnx", "-o", "OUT/bundle"),
}
UNCOMPILED = ("optimize", "optimize Caffe", "inspect", "inspect text")


@pytest.fixture(scope="module")
def input_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The input files of the commands."""
    folder = tmp_path_factory.mktemp("ready")
    (folder / "net.onnx").write_bytes((REPOSITORY / "examples/digits/digits.onnx").read_bytes())
    (folder / "caffe.prototxt").write_text(PROTOTXT)
    (folder / "caffe.caffemodel").write_bytes(caffemodel({"it": [random(4, 2, 3, 3), random(4)]}))
    np.save(folder / "x.npy", np.zeros((1, 1, 8, 8), np.float32))
    tenon.compile(folder / "net.onnx", profile=True).save(folder / "bundle")
    return folder


def words(name: str, input_files: Path, out: Path) -> list[str]:
    return [w.replace("IN/", f"{input_files}/").replace("OUT/", f"{out}/") for w in COMMANDS[name]]


def status_of(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["tenon", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_on_a_full_disk(
    name: str, input_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They fail with one message, and existing output is unchanged."""
    assert status_of(words(name, input_files, tmp_path), monkeypatch) == 0
    before = snapshot(tmp_path)
    assert before
    _fill_the_disk(tmp_path, monkeypatch)
    assert status_of(words(name, input_files, tmp_path), monkeypatch) == 2
    assert "No space left on device" in " ".join(capsys.readouterr().err.split())
    assert snapshot(tmp_path) == before


def test_images_and_calls_on_a_full_disk(input_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo = tmp_path / "photo.png"
    Image.fromarray(np.arange(3000, dtype=np.uint16).astype(np.uint8).reshape(20, 50, 3)).save(photo)
    bundle = handmade.bundle()
    bundle.save(tmp_path / "bundle")
    before = snapshot(tmp_path)
    _fill_the_disk(tmp_path, monkeypatch)
    calls: list[Callable[[], object]] = [
        lambda: draw(photo, detections_answer([], []), photo),
        lambda: bundle.save(tmp_path / "bundle"),
        lambda: bundle.save(tmp_path / "other"),
        lambda: rewrite(input_files / "net.onnx", tmp_path / "net.onnx"),
    ]
    for call in calls:
        with pytest.raises(InputError, match="No space left on device"):
            call()
        assert snapshot(tmp_path) == before
    with pytest.warns(TenonWarning, match="nothing is kept"):
        Cache(tmp_path / "cache").put("0123", b"content")
    monkeypatch.setattr("tenon.formats.model_files.download._fetch", lambda url, progress: (b"model", True))
    assert read("http://example.com/net.onnx", cache=tmp_path / "fetched").data == b"model"
    assert snapshot(tmp_path) == before


def _fill_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files can be made in the folder, but nothing can be written to them."""
    real = io.open

    class Full(io.RawIOBase):
        def __init__(self, file: Any) -> None:
            self.file = file

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            raise FULL

        def close(self) -> None:
            self.file.close()
            super().close()

    def opened(path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        file = real(path, mode, *arguments, **named)
        inside = not isinstance(path, int) and folder in Path(path).parents
        return Full(file) if inside and set(mode) & {*"wax+"} else file

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr("builtins.open", opened)


LIMITED = """
import resource, sys
from tenon.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))  # bytes of any file; Python ignores SIGXFSZ
sys.argv[0] = "tenon"
main()
"""


@pytest.mark.parametrize("name", UNCOMPILED)
def test_commands_exceeding_the_file_size_limit(name: str, input_files: Path, tmp_path: Path) -> None:
    """As above, with errors of the operating system (RLIMIT_FSIZE)."""
    command = [sys.executable, "-c", LIMITED, *words(name, input_files, tmp_path)]
    for place in COMMANDS[name][-1:]:
        write(place.replace("OUT/", f"{tmp_path}/"), b"old")
    before = snapshot(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "TMPDIR": str(tmp_path)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (process.returncode, "File too large" in " ".join(process.stderr.split())) == (2, True), process.stderr
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["net.onnx", "caffe.prototxt"])
def test_optimize_onto_its_own_input(
    name: str, input_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(input_files, tmp_path / "in")
    place = str(tmp_path / "in" / name)
    assert status_of(["optimize", place, "-o", place], monkeypatch) == 0
    once = snapshot(tmp_path / "in")
    assert tenon.load(place).inputs
    assert status_of(["optimize", place, "-o", place], monkeypatch) == 0
    assert snapshot(tmp_path / "in").keys() == once.keys()
    _fill_the_disk(tmp_path / "in", monkeypatch)
    before = snapshot(tmp_path / "in")
    assert status_of(["optimize", place, "-o", place], monkeypatch) == 2
    assert snapshot(tmp_path / "in") == before


def test_drawing_detections_into_the_input_image(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.new("RGB", (60, 40), (255, 255, 255)).save(photo)
    draw(photo, detections_answer([Detection(1, 0.9, (5.0, 5.0, 50.0, 30.0))], ["a", "b"]), photo)
    with Image.open(photo) as drawn:
        assert drawn.size == (60, 40)
        assert np.asarray(drawn).min() < 255


# ----------------------------------------------------------------------------------------------------- signals
def test_commands_leave_the_handling_of_signals() -> None:
    """A program that calls commands has its own handling of signals afterwards, also where one failed."""
    numbers = signal.SIGTERM, signal.SIGHUP
    for status in (0, 2):
        inside = list[object]()

        def command(inside: list[object] = inside, status: int = status) -> int:
            inside.extend(map(signal.getsignal, numbers))
            if status:
                raise InputError("no")
            return status

        assert run_command("tenon", command) == status
        assert signal.SIG_DFL not in inside
        assert list(map(signal.getsignal, numbers)) == [signal.SIG_DFL] * 2


@pytest.mark.parametrize(
    ("number", "delay"),
    [
        pytest.param(number, delay, marks=() if i == j else pytest.mark.slow)
        for i, number in enumerate([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
        for j, delay in enumerate([0.0, 0.2, 0.7])
    ],
)
def test_signals_leave_nothing(number: signal.Signals, delay: float, tmp_path: Path) -> None:
    """The signal is sent ``delay`` seconds after the first temporary folder appears."""
    places = {name: tmp_path / name for name in ("tmp", "cache", "out")}
    for place in places.values():
        place.mkdir()
    model = tmp_path / f"{number}{delay}.onnx"  # the name is part of the code, so the object is in no cache
    model.write_bytes((REPOSITORY / "examples/digits/digits.onnx").read_bytes())
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "TMPDIR": str(places["tmp"]),
        "TENON_CACHE": str(places["cache"]),
    }
    command = [sys.executable, "-m", "tenon", "compile", str(model), "-o", str(places["out"] / "bundle")]
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not any(places["tmp"].iterdir()) and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.005)
    time.sleep(delay)
    child.send_signal(number)
    child.communicate(timeout=60)
    written = {p.name for p in places["out"].iterdir()}
    if written:  # it finished before the signal; while the interpreter exits, signals have their default action
        assert written == {"bundle"}
    else:
        assert child.returncode == (130 if number == signal.SIGINT else 128 + number)
    assert not list(places["tmp"].iterdir())
    assert not list(places["cache"].rglob(".tenon-*"))
