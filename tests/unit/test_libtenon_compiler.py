"""How libtenon starts the compiler of models, and which files of its cache it trusts."""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from libtenon import BUILDS, client, run, sdk_for_clients, succeeded
from tenon.options import Options

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")
WEIGHT = 1234.5
OTHER_USER = 65534


@pytest.fixture(scope="module", params=BUILDS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return client("open_model", sdk_for_clients(folder, request.param), folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = relu(x * weights)."""
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 64]) for name in "xy")
    weights = numpy_helper.from_array(np.full(64, WEIGHT, np.float32), "w")
    save_graph(helper.make_graph(nodes, "g", [x], [y], [weights]), path)
    return path


def save_graph(graph: onnx.GraphProto, path: Path) -> None:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def sum_of(names: Sequence[str], path: Path) -> None:
    """y = the sum of vectors."""
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in (*names, "y")]
    save_graph(helper.make_graph([helper.make_node("Sum", names, ["y"])], "g", ports[:-1], ports[-1:]), path)


def script(place: Path, name: str, text: str) -> Path:
    path = place / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def tenon_script(place: Path) -> Path:
    objects = Options.from_environment().cache
    return script(place, "tenon.sh", f'TENON_CACHE="{objects}" exec "{sys.executable}" -m tenon "$@"')


def environment(place: Path, compiler: Path | None = None, **more: str) -> dict[str, str]:
    compiler = compiler or tenon_script(place)
    return {**os.environ, "TENON": str(compiler), "TENON_CACHE": str(place / "cache"), "TENON_NO_TUNING": "1", **more}


def entry_of(place: Path) -> Path:
    (entry,) = (place / "cache" / "models").glob("*.tenon")
    return entry


def test_all_of_300_shapes_reach_the_compiler(program: Path, model: Path, tmp_path: Path) -> None:
    compiler = script(tmp_path, "compiler", f'printf "%s\\n" "$@" > "{tmp_path}/words"; cat > "{tmp_path}/key"; exit 2')
    (tmp_path / "model.key").write_text("5a" * 32)
    done = run(program, model, "shapes=300", f"key={tmp_path}/model.key", env=environment(tmp_path, compiler))
    assert b"cannot be compiled" in done.stderr
    words = (tmp_path / "words").read_text().splitlines()
    assert [word for word in words if word.startswith("--shape")] == [f"--shape=x={i},64" for i in range(1, 301)]
    assert words[-3:] == ["--key-file", "/dev/stdin", "--encrypt"]
    assert (tmp_path / "key").read_bytes() == b"\x5a" * 32


def test_a_key_and_many_shapes_give_an_encrypted_entry(program: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "model.key").write_text("5a" * 32)
    env = environment(tmp_path)
    assert succeeded(run(program, model, "shapes=65", f"key={tmp_path}/model.key", env=env)) == b"65\n"
    assert struct.pack("<f", WEIGHT) * 4 not in entry_of(tmp_path).read_bytes()


def test_shapes_of_many_inputs_with_long_names(program: Path, tmp_path: Path) -> None:
    names = [f"{i:03}{'a' * 400}" for i in range(70)]
    sum_of(names, tmp_path / "sum.onnx")
    assert succeeded(run(program, tmp_path / "sum.onnx", "inputs=70", env=environment(tmp_path))) == b"1\n"


def test_mace_run_with_many_inputs(program: Path, tmp_path: Path) -> None:
    """An input may have another shape than the model's, for which it is compiled again."""
    names = [f"x{i}" for i in range(70)]
    sum_of(names, tmp_path / "sum.onnx")
    for name in names:
        np.ones(3, np.float32).tofile(tmp_path / f"in_{name}")
    flags = {
        "model_file": tmp_path / "sum.onnx",
        "input_node": ",".join(names),
        "input_shape": ":".join(["3"] * 70),
        "output_node": "y",
        "output_shape": "3",
        "input_file": tmp_path / "in",
        "output_file": tmp_path / "out",
        "benchmark": "true",
    }
    command = program.parent / "sdk" / "bin" / "mace_run"
    done = run(command, *(f"--{name}={value}" for name, value in flags.items()), env=environment(tmp_path))
    succeeded(done)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out_y", np.float32), [70] * 3)


@pytest.mark.parametrize("how", ["ignore", "collect"])
def test_programs_that_take_the_status_of_children(how: str, program: Path, model: Path, tmp_path: Path) -> None:
    assert succeeded(run(program, model, how, env=environment(tmp_path))) == b"1\n"
    failing = script(tmp_path, "failing", "echo 'operator Foo' >&2; exit 2")
    shutil.rmtree(tmp_path / "cache")
    assert b"operator Foo" in run(program, model, how, env=environment(tmp_path, failing)).stderr


@pytest.mark.parametrize("name", ["-net.onnx", "--help"])
def test_names_that_begin_with_a_dash(name: str, program: Path, model: Path, tmp_path: Path) -> None:
    shutil.copy(model, tmp_path / name)
    env = environment(tmp_path, TENON_CACHE="-cache")
    done = subprocess.run([program, name], cwd=tmp_path, env=env, capture_output=True, check=False)
    assert succeeded(done) == b"1\n"


def test_the_working_folder_has_no_modules_and_programs(program: Path, model: Path, tmp_path: Path) -> None:
    """Neither python3 nor PATH look there."""
    (tmp_path / "tenon.py").write_text("open('executed', 'w')\n")
    script(tmp_path, "tenon", "touch executed")
    env = {**environment(tmp_path), "PATH": "::.:/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    del env["TENON"]
    done = subprocess.run([program, model], cwd=tmp_path, env=env, capture_output=True, check=False)
    assert not (tmp_path / "executed").exists()
    assert done.returncode == 0 or b"TENON_NO_COMPILER" in done.stderr or b"no tenon in PATH" in done.stderr


def test_a_program_that_cannot_be_executed(program: Path, model: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/no/such/interpreter\n")
    compiler.chmod(0o755)
    assert b"there is no compiler" in run(program, model, env=environment(tmp_path, compiler)).stderr
    compiler.write_bytes(b"\x7fELF of nothing")
    assert b"cannot start" in run(program, model, env=environment(tmp_path, compiler)).stderr


@pytest.mark.parametrize("kind", ["symlink", "link"])
def test_a_log_is_a_new_file(kind: str, program: Path, model: Path, tmp_path: Path) -> None:
    env = environment(tmp_path)
    succeeded(run(program, model, env=env))
    log = entry_of(tmp_path).with_suffix(".log")
    entry_of(tmp_path).unlink()
    precious = tmp_path / "precious"
    precious.write_text("content")
    log.symlink_to(precious) if kind == "symlink" else log.hardlink_to(precious)
    succeeded(run(program, model, env=env))
    assert precious.read_text() == "content"


def test_what_others_may_write_is_compiled_again(program: Path, model: Path, tmp_path: Path) -> None:
    env = environment(tmp_path)
    succeeded(run(program, model, env=env))
    entry = entry_of(tmp_path)
    good = entry.read_bytes()
    entry.write_bytes(b"something else")
    entry.chmod(0o666)
    assert succeeded(run(program, model, env=env)) == b"1\n"
    assert entry.read_bytes() == good
    moved = entry.rename(tmp_path / "moved")
    entry.symlink_to(moved)
    succeeded(run(program, model, env=env))
    assert not entry.is_symlink()


def test_an_entry_is_private_with_any_mask(program: Path, model: Path, tmp_path: Path) -> None:
    command: list[str | Path] = ["sh", "-c", 'umask 000; exec "$0" "$1"', program, model]
    assert succeeded(subprocess.run(command, env=environment(tmp_path), capture_output=True, check=False)) == b"1\n"
    for path in (entry_of(tmp_path), entry_of(tmp_path).parent):
        assert not path.stat().st_mode & 0o022, path


def test_a_folder_that_others_may_write_is_no_cache(program: Path, model: Path, tmp_path: Path) -> None:
    env = environment(tmp_path)
    succeeded(run(program, model, env=env))
    (tmp_path / "cache" / "models").chmod(0o777)
    assert b"chmod go-w" in run(program, model, env=env).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
def test_files_of_another_user_are_not_loaded(program: Path, model: Path, tmp_path: Path) -> None:
    env = environment(tmp_path)
    succeeded(run(program, model, env=env))
    entry = entry_of(tmp_path)
    os.chown(entry, OTHER_USER, -1)
    succeeded(run(program, model, env=env))
    assert entry.stat().st_uid == os.geteuid(), "it was compiled again"
    os.chown(entry.parent, OTHER_USER, -1)
    assert b"belongs to another user" in run(program, model, env=env).stderr
