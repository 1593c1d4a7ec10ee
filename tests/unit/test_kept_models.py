"""Compiled models that commands keep: they are opened again exactly while nothing that they depend on has changed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon.cli
from command_line import run_main
from small_models import ncnn_net
from tenon.cli import compiled_models
from tenon.errors import TenonWarning, warn
from tenon.formats.wire.encryption import encrypt_content


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENON_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones(4, np.float32))


def _save(path: Path, factor: float, *, external: bool = False) -> Path:
    """y = x * factor."""
    scale = numpy_helper.from_array(np.full(4, factor, np.float32), "s")
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Mul", ["x", "s"], ["y"])], "g", ports[:1], ports[1:], [scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options: dict[str, Any] = {"save_as_external_data": True, "location": "net.data", "size_threshold": 0}
    onnx.save(model, path, **(options if external else {}))
    return path


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> float:
    """The first result of a run with --json."""
    assert run_main(tenon.cli.main, ["run", *words, "--json"]) == 0
    return float(next(iter(json.loads(capsys.readouterr().out)["top"].values()))[0]["value"])


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were compiled."""
    import tenon.cli.model_source as module

    compiled, compile = list[str](), module._compiled

    def counting(source: Any, *arguments: Any, **keywords: Any) -> Any:
        compiled.append(source.name)
        return compile(source, *arguments, **keywords)

    monkeypatch.setattr(module, "_compiled", counting)
    return compiled


def test_an_unchanged_model_is_not_compiled_again(capsys: pytest.CaptureFixture[str], compilations: list[str]) -> None:
    _save(Path("net.onnx"), 2)
    assert [_run(capsys, "net.onnx", "--input", "x=x.npy") for _ in range(3)] == [2, 2, 2]
    assert compilations == ["net.onnx"]
    assert _run(capsys, str(Path("net.onnx").resolve()), "--input", "x=x.npy") == 2
    assert compilations == ["net.onnx"]


def test_a_changed_model_is_compiled_again(capsys: pytest.CaptureFixture[str], compilations: list[str]) -> None:
    """A change of the same size and time is noticed, too."""
    path = _save(Path("net.onnx"), 2)
    assert _run(capsys, "net.onnx", "--input", "x=x.npy") == 2
    status = path.stat()
    _save(path, 3)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert _run(capsys, "net.onnx", "--input", "x=x.npy") == 3
    assert len(compilations) == 2


def test_a_touched_model_is_compared_by_content(capsys: pytest.CaptureFixture[str], compilations: list[str]) -> None:
    path = _save(Path("net.onnx"), 2)
    _run(capsys, "net.onnx", "--input", "x=x.npy")
    os.utime(path, (1, 1))
    assert _run(capsys, "net.onnx", "--input", "x=x.npy") == 2
    assert len(compilations) == 1


def test_a_changed_file_beside_the_model_counts(capsys: pytest.CaptureFixture[str], compilations: list[str]) -> None:
    _save(Path("net.onnx"), 2, external=True)
    assert _run(capsys, "net.onnx", "--input", "x=x.npy") == 2
    Path("net.data").write_bytes(np.full(4, 5, np.float32).tobytes())
    assert _run(capsys, "net.onnx", "--input", "x=x.npy") == 5
    assert len(compilations) == 2


def test_a_new_file_beside_the_model_counts(capsys: pytest.CaptureFixture[str], compilations: list[str]) -> None:
    """A second file that could be the weights is an error, as it is without a cache."""
    Path("net.param").write_bytes(ncnn_net("InnerProduct fc 1 1 data y 0=1 1=0 2=36", shape="0=6 1=3 2=2"))
    Path("net.bin").write_bytes(bytes(4) + np.ones(36, np.float32).tobytes())
    np.save("image.npy", np.ones((1, 2, 3, 6), np.float32))
    words = ("net.param", "--input", "data=image.npy")
    assert [_run(capsys, *words) for _ in range(2)] == [36, 36]
    assert len(compilations) == 1
    Path("net.bin").unlink()
    assert run_main(tenon.cli.main, ["run", *words]) == 2
    assert "weights" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["-O", "0"], ["--threads", "2"], ["--precision", "fp16"], ["--shape", "x=4"], ["--compiler", "gcc"]]
)
def test_options_have_bundles_of_their_own(
    capsys: pytest.CaptureFixture[str], compilations: list[str], words: list[str]
) -> None:
    _save(Path("net.onnx"), 2)
    for _ in range(2):
        _run(capsys, "net.onnx", "--input", "x=x.npy")
        _run(capsys, "net.onnx", "--input", "x=x.npy", *words)
    assert len(compilations) == 2


@pytest.mark.parametrize("words", [["--verify"], ["--target", "aarch64"]])
def test_what_is_not_kept(capsys: pytest.CaptureFixture[str], words: list[str], tmp_path: Path) -> None:
    """Passes are verified every time, and a bundle for another processor is not opened here."""
    _save(Path("net.onnx"), 2)
    assert run_main(tenon.cli.main, ["run", "net.onnx", "--input", "x=x.npy", *words]) in (
        0,
        2,
    )  # 2: no emulator
    assert not list((tmp_path / "cache").glob("compiled/*.tenon"))


def test_an_encrypted_model_is_not_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    key = bytes(range(32))
    Path("key").write_bytes(key)
    sealed = encrypt_content(key, _save(Path("net.onnx"), 2).read_bytes())
    Path("net.onnx").write_bytes(sealed)
    assert _run(capsys, "net.onnx", "--input", "x=x.npy", "--key-file", "key") == 2
    assert not list((tmp_path / "cache").glob("compiled/*"))


@pytest.mark.filterwarnings("default::tenon.errors.TenonWarning")
def test_warnings_of_the_import_are_repeated(
    capsys: pytest.CaptureFixture[str], compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import tenon.formats.importers.onnx.load as module

    load = module.load

    def warning(*arguments: Any, **keywords: Any) -> Any:
        warn("a remark on the model")
        return load(*arguments, **keywords)

    monkeypatch.setattr(module, "load", warning)
    _save(Path("net.onnx"), 2)
    for _ in range(2):
        assert run_main(tenon.cli.main, ["run", "net.onnx", "--input", "x=x.npy"]) == 0
        assert capsys.readouterr().err.count("a remark on the model") == 1
    assert len(compilations) == 1


def test_an_open_batch_is_said_each_time(capsys: pytest.CaptureFixture[str], compilations: list[str]) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "net.onnx")
    for _ in range(2):
        assert run_main(tenon.cli.main, ["benchmark", "net.onnx", "--rounds", "1"]) == 0
        assert "the batch of input 'x' is not bound" in " ".join(capsys.readouterr().err.split())
    assert len(compilations) == 1


def test_entries_that_others_may_write_are_not_opened(
    capsys: pytest.CaptureFixture[str], compilations: list[str], tmp_path: Path
) -> None:
    _save(Path("net.onnx"), 2)
    _run(capsys, "net.onnx", "--input", "x=x.npy")
    (entry,) = (tmp_path / "cache" / "compiled").glob("*.tenon")
    assert entry.stat().st_mode & 0o022 == 0
    entry.chmod(0o666)
    assert _run(capsys, "net.onnx", "--input", "x=x.npy") == 2
    assert len(compilations) == 2


def test_a_damaged_entry_is_compiled_again(
    capsys: pytest.CaptureFixture[str], compilations: list[str], tmp_path: Path
) -> None:
    _save(Path("net.onnx"), 2)
    for suffix in (".tenon", ".json"):
        _run(capsys, "net.onnx", "--input", "x=x.npy")
        (entry,) = (tmp_path / "cache" / "compiled").glob(f"*{suffix}")
        entry.write_bytes(b"damaged")
        assert _run(capsys, "net.onnx", "--input", "x=x.npy") == 2
    assert len(compilations) == 3


@pytest.mark.filterwarnings("default::tenon.errors.TenonWarning")
def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "compiled").write_text("a file")
    _save(Path("net.onnx"), 2)
    assert run_main(tenon.cli.main, ["run", "net.onnx", "--input", "x=x.npy"]) == 0
    message = " ".join(capsys.readouterr().err.split())
    assert message.count("cannot be written") == 1
    assert "is not kept there: make room, or set TENON_CACHE" in message


def test_bundles_used_longest_ago_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_models, "BUDGET", 250)
    folder = tmp_path / "kept"
    folder.mkdir()
    for number, age in enumerate((30, 10, 20)):
        path = folder / f"{number}.tenon"
        path.write_bytes(bytes(100))
        os.utime(path, (time.time() - age,) * 2)
    compiled_models._shrink(folder)
    assert sorted(path.name for path in folder.glob("*.tenon")) == ["1.tenon", "2.tenon"]


def test_running_a_kept_model_imports_neither_compiler_nor_devices(tmp_path: Path) -> None:
    _save(Path("net.onnx"), 2)
    words = [sys.executable, "-X", "importtime", "-m", "tenon", "run", "net.onnx", "--input", "x=x.npy"]
    for _ in range(2):
        ended = subprocess.run(words, capture_output=True, text=True, check=True)
    modules = set(re.findall(r"\|\s*(tenon[\w.]*|onnx)$", ended.stderr, re.MULTILINE))
    rooms = {".".join(name.split(".")[1:3]) for name in modules if "." in name}
    assert "runtime.engine" in rooms
    tools = {f"tools.{room}" for room in ("deployment", "devices", "cluster", "quantization")}
    compiler = {"formats.importers", "network.passes", "network.ops", "machine.plan", "machine.codegen"}
    assert not rooms & (tools | compiler)
    assert not [name for name in modules if name == "onnx" or name.startswith("tenon.runtime.bundle.packages")]


def test_tenon_warning_is_the_kind_that_is_kept() -> None:
    with pytest.warns(TenonWarning):
        warn("a remark")
