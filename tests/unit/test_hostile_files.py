"""Pipes and devices as input files, decompression bombs, and file names that are not UTF-8."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import pytest
from onnx import helper

import tenon
from onnx_models import gated
from tenon.errors import FormatError, InputError, ResourceError, UnsupportedError
from tenon.formats import importers
from tenon.formats.model_files import model_file
from tenon.formats.wire import archive
from tenon.formats.wire.archive import Archive
from tenon.input_file import is_regular, matching_names, read_regular
from tenon.network.graph import writer
from tenon.network.ops.unroll import unrolled
from tenon.runtime.engine.image import read_image

TENON = Path(sys.executable).with_name("tenon")
SMALL = gated().SerializeToString()


@contextmanager
def watched(seconds: float = 20) -> Iterator[None]:
    """On a timeout, print every thread's stack and end the process."""
    import faulthandler

    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


# ---------------------------------------------------------------------------------------- special files
@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    os.mkfifo(path)
    return path


READERS: list[Callable[[Path], object]] = [
    lambda path: tenon.load(path),
    lambda path: tenon.load(SMALL, weights=path),
    lambda path: read_image(path, (1, 3, 8, 8)),
    lambda path: read_regular(path),
]


@pytest.mark.parametrize("read", READERS, ids=["model", "weights", "image", "file"])
def test_pipes_are_rejected_without_waiting(pipe: Path, read: Callable[[Path], object]) -> None:
    with watched(), pytest.raises(InputError, match=r"m\.onnx: it is a pipe, not a regular file"):
        read(pipe)


@pytest.mark.parametrize("read", READERS, ids=["model", "weights", "image", "file"])
def test_endless_devices_are_rejected(read: Callable[[Path], object]) -> None:
    with watched(), pytest.raises(InputError, match="/dev/zero: it is a character device"):
        read(Path("/dev/zero"))


def test_pipe_is_not_used_as_weights_file(tmp_path: Path) -> None:
    (tmp_path / "net.param").write_text("7767517\n1 1\nInput data 0 1 data 0=4 1=4 2=3\n")
    os.mkfifo(tmp_path / "net.bin")
    with watched():
        assert tenon.load(tmp_path / "net.param").incomplete


@pytest.mark.parametrize("command", [["run", "MODEL", "--input", "PIPE"], ["run", "MODEL", "--labels", "PIPE"]])
def test_pipes_on_the_command_line(pipe: Path, tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "net.onnx").write_bytes(SMALL)
    words = [{"MODEL": str(tmp_path / "net.onnx"), "PIPE": str(pipe)}.get(word, word) for word in command]
    done = subprocess.run([TENON, *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "pipe" in done.stderr or "nothing to run on" in done.stderr


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "", "http://[bad/", "http://"])
def test_invalid_file_names(name: str) -> None:
    with pytest.raises(InputError):
        tenon.load(name)


# ----------------------------------------------------------------------------------------- expansion
def doubling_functions(count: int) -> bytes:
    """Functions that each call the previous one twice: 2**count nodes ("billion laughs")."""
    functions, opsets = [], [helper.make_opsetid("", 21), helper.make_opsetid("d", 1)]
    for i in range(count):
        inner, domain = ("Relu", "") if i == 0 else (f"F{i - 1}", "d")
        nodes = [helper.make_node(inner, [a], [b], domain=domain) for a, b in (("a", "t"), ("t", "b"))]
        functions.append(helper.make_function("d", f"F{i}", ["a"], ["b"], nodes, opsets))
    x, y = (helper.make_tensor_value_info(name, 1, [4]) for name in "xy")
    graph = helper.make_graph([helper.make_node(f"F{count - 1}", ["x"], ["y"], domain="d")], "g", [x], [y])
    made = helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)
    return bytes(made.SerializeToString())


def nested_loops(depth: int, iterations: int) -> bytes:
    """Loops of ``iterations`` iterations inside each other."""
    body = [helper.make_node("Relu", ["s"], ["r"])]
    for _ in range(depth):
        ports = [("i", onnx.TensorProto.INT64, []), ("c", onnx.TensorProto.BOOL, []), ("s", 1, [4])]
        given = [helper.make_tensor_value_info(*port) for port in ports]
        made = [
            helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("r", 1, [4]),
        ]
        graph = helper.make_graph(body, "body", given, made)
        body = [
            helper.make_node(
                "Constant", [], ["n"], value=helper.make_tensor("n", onnx.TensorProto.INT64, [], [iterations])
            ),
            helper.make_node("Loop", ["n", "", "s"], ["r"], body=graph),
        ]
    x, y = (helper.make_tensor_value_info(name, 1, [4]) for name in "sr")
    opsets = [helper.make_opsetid("", 21)]
    return bytes(helper.make_model(helper.make_graph(body, "g", [x], [y]), opset_imports=opsets).SerializeToString())


def test_exponential_expansion_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is lowered so that the test is fast."""
    monkeypatch.setattr(writer, "MOST_NODES", 2**10)
    with watched(60), pytest.raises(UnsupportedError, match="expand to more than 1024 nodes") as caught:
        importers.load(doubling_functions(40))
    assert len(caught.value.problems) == 1


def test_nested_loops_stay_loops() -> None:
    """There are 10**15 iterations, of which none is computed or copied."""
    with watched(60):
        (node,) = importers.load(nested_loops(5, 1000))
    assert node.op.name == "Scan"


def test_exponential_expansion_of_loops_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where loops have to be unrolled."""
    monkeypatch.setattr(writer, "MOST_NODES", 2**10)
    graph = importers.load(nested_loops(5, 1000))
    with watched(60), pytest.raises(UnsupportedError, match=r"expand to \d+ nodes, more than 1024"):
        unrolled(graph)


def test_nested_functions_within_the_limit_load() -> None:
    assert len(list(importers.load(doubling_functions(8)))) == 256


def zipped(size: int) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        file.writestr("data", bytes(size))
    return out.getvalue()


def test_archive_with_a_compression_ratio_of_1000() -> None:
    data = zipped(archive.SMALL_BYTES + 1)
    assert len(data) < 100_000
    with pytest.raises(FormatError, match="unpack to more than 32 times its size"):
        Archive(data).read("data")
    assert len(Archive(zipped(1 << 20)).read("data")) == 1 << 20


def test_size_limit_applies_to_the_sum_of_members() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for i in range(5):
            file.writestr(f"part{i}", bytes(archive.SMALL_BYTES // 4))
    bomb = Archive(out.getvalue())
    assert sum(len(bomb.read(f"part{i}")) for i in range(4)) == archive.SMALL_BYTES
    with pytest.raises(FormatError, match="unpack to more"):
        bomb.read("part4")


@pytest.mark.parametrize(
    "header", ["{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }", "{'descr'", "["]
)
def test_damaged_npy_files(tmp_path: Path, header: str) -> None:
    (tmp_path / "net.onnx").write_bytes(SMALL)
    text = header.ljust(117) + "\n"
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())
    command = [str(TENON), "run", str(tmp_path / "net.onnx"), "--input", str(tmp_path / "x.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "x.npy" in done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------ names that are not UTF-8
PLAIN = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


INVALID, ACCENTED = b"net\xff.onnx", "naïve.onnx".encode()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (ACCENTED, ["inspect"]),
        (INVALID, ["inspect", "--json"]),
        (INVALID, ["compile", "-o", "out"]),
        (ACCENTED, ["compile", "-o", "out"]),
        (INVALID, ["profile", "--rounds", "1", "--html", "p.html"]),
    ],
)
def test_file_names_without_utf8(tmp_path: Path, name: bytes, words: list[str]) -> None:
    path = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118  # Path takes no bytes
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(SMALL)
    command = [os.fsencode(TENON), words[0].encode(), path, *(word.encode() for word in words[1:])]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False, cwd=tmp_path, env=PLAIN)
    assert done.returncode == 0, done.stderr
    if words[0] == "compile":
        manifest = json.loads((tmp_path / "out" / "manifest.json").read_text("utf-8"))
        assert manifest["origin"]["file"] == name.decode("utf-8", "backslashreplace")


def test_weights_file_with_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path)
    for part in (b"a\xff.bin", b"a\xff.param"):
        with open(os.path.join(folder, part), "wb") as file:  # noqa: PTH118, PTH123
            file.write(part)
    output = model_file.read(os.fsdecode(os.path.join(folder, b"a\xff.param")))  # noqa: PTH118
    assert output.name == "a\\xff.param"
    assert output.partner("its weights", "{stem}.bin").data == b"a\xff.bin"


@pytest.mark.parametrize("words", [["inspect", "--dot", "/dev/null/x"], ["optimize", "-o", "y" * 300 + ".onnx"]])
def test_system_errors_give_one_message(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "net.onnx").write_bytes(SMALL)
    command = [str(TENON), words[0], str(tmp_path / "net.onnx"), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr.startswith("tenon: "), "Traceback" in done.stderr) == (2, True, False)


def test_out_of_memory_gives_one_message(tmp_path: Path) -> None:
    import resource

    x, y = (helper.make_tensor_value_info(name, 1, [1, 1 << 28]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    (tmp_path / "net.onnx").write_bytes(helper.make_model(graph).SerializeToString())

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (3 << 29, 3 << 29))

    command = [str(TENON), "benchmark", str(tmp_path / "net.onnx"), "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, preexec_fn=limited)
    assert (done.returncode, done.stderr.startswith("tenon: "), "Traceback" in done.stderr) == (2, True, False)


def test_concurrent_loads_have_separate_limits() -> None:
    """Limits are counted for each load, not for the process."""
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(len(list(importers.load(doubling_functions(6))))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [64] * 4


@pytest.mark.parametrize("folder", ["a\0b", "x" * 5000, "/dev/full/x", "/dev/null"])
def test_invalid_folders(folder: str) -> None:
    with pytest.raises(tenon.TenonError):
        tenon.compile(SMALL).save(folder)


@pytest.mark.parametrize("error", [MemoryError(), OSError(28, "No space left on device", "f"), RecursionError()])
def test_system_errors_are_converted(error: Exception) -> None:
    def fails(stage: str) -> None:
        raise error

    with pytest.raises(ResourceError) as caught:
        tenon.compile(SMALL, progress=fails)
    assert str(caught.value)
    assert caught.value.__cause__ is error


def test_broken_pipe_errors_are_not_converted() -> None:
    def fails(stage: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        tenon.compile(SMALL, progress=fails)


def test_links_in_circles_beside_a_model_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "loop.bin").symlink_to("loop.bin")
    assert not is_regular(tmp_path / "loop.bin")
    assert matching_names(tmp_path, "*.bin") == ["loop.bin"]
