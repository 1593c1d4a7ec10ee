"""Every command and every public name of the installed package, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import tenon as package
from installed import environment, succeeds, tenon, tenon_script
from real import DIGITS, held_out_digits
from tenon.cli.app import app
from tenon.runtime.bundle.delta import delta
from tenon.runtime.bundle.encrypted_files import encrypt
from tflite_models import quantised_convolution

MODEL = str(DIGITS / "digits.onnx")
COMMANDS: dict[str, list[str]] = {
    "compile": ["compile", MODEL, "-o", "out"],
    "run": ["run", MODEL, str(DIGITS / "held_out.png"), "--top", "2"],
    "inspect": ["inspect", MODEL],
    "benchmark": ["benchmark", MODEL, "--rounds", "3", "--warmup", "1"],
    "profile": ["profile", MODEL, "--rounds", "3", "--warmup", "1"],
    "tune": ["tune", MODEL, "--table", "tuning.sqlite"],
    "bench-op": ["bench-op", "--filter", "Relu.*", "--seconds", "0"],
    "optimize": ["optimize", MODEL, "-o", "smaller.onnx"],
    "targets": ["targets"],
    "verify": ["verify", "quantised.tflite"],
    "quantize": ["quantize", MODEL, "--data", "samples.npy", "-o", "int8.onnx", "--method", "min-max"],
    "compare": ["compare", MODEL, MODEL, "--data", "samples.npy"],
    "convert": ["convert", "--config", "deploy.yml"],
    "devices": ["devices", "here", "--devices", "devices.yml"],
    "deploy": ["deploy", MODEL, "--device", "here", "--devices", "devices.yml"],
    "sdk": ["sdk", "-o", "sdk"],
    "encrypt": ["encrypt", "net.tenon", "--key-file", "key", "-o", "a.tenon"],
    "decrypt": ["decrypt", "sealed.tenon", "--key-file", "key", "-o", "a.tenon"],
    "sign": ["sign", "net.tenon", "--key-file", "private.pem", "-o", "a.tenon"],
    "sbom": ["sbom", "net.tenon", "-o", "sbom.json"],
    "delta": ["delta", "net.tenon", "sealed.tenon", "-o", "a.delta"],
    "patch": ["patch", "net.tenon", "b.delta", "-o", "a.tenon"],
    "evaluate": ["evaluate", MODEL, "--data", "samples.npy", "--ground-truth", "classes.txt"],
    "validate": ["validate", MODEL, "--data", "samples.npy", "--against", "onnxruntime"],
}
"""A call of every command that ends well, in a folder that has a quantised model and samples."""

CONVERSATIONS = ("chat", "serve")
"""Commands that go on until the user ends them: tests/unit/test_language_commands.py."""

PUBLIC = [name for name in package.__all__ if name != "__version__"]


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A bundle, the same encrypted, a delta between the two, and the keys."""
    folder, key = tmp_path_factory.mktemp("protected"), bytes(range(32))
    package.compile(MODEL).save(folder / "net.tenon")
    (folder / "sealed.tenon").write_bytes(encrypt(folder / "net.tenon", key))
    (folder / "b.delta").write_bytes(delta(folder / "net.tenon", folder / "sealed.tenon"))
    (folder / "key").write_bytes(key)
    private = Ed25519PrivateKey.from_private_bytes(key)
    (folder / "private.pem").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, protected: dict[str, bytes]) -> None:
    for name, content in protected.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "quantised.tflite").write_bytes(quantised_convolution())
    (tmp_path / "deploy.yml").write_text(json.dumps({"models": {"digits": {"model": MODEL}}}))
    here = {"shell": "sh -c", "folder": str(tmp_path / "device")}
    (tmp_path / "devices.yml").write_text(json.dumps({"devices": {"here": here}}))
    np.save(tmp_path / "samples.npy", np.concatenate(held_out_digits()[0][:4]))
    (tmp_path / "classes.txt").write_text("1\n2\n3\n4\n")


def test_every_command_is_tested() -> None:
    command = typer.main.get_command(app)
    assert {*COMMANDS, *CONVERSATIONS} == set(command.list_commands(command.context_class(command)))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_json_output_of_every_command(name: str, tmp_path: Path) -> None:
    json.loads(succeeds(*COMMANDS[name], "--json", cwd=tmp_path))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_fits_a_terminal(name: str, tmp_path: Path) -> None:
    more = ["--layers"] if name == "inspect" else []
    (tmp_path / "digits.onnx").write_bytes(Path(MODEL).read_bytes())  # a short name wherever the project is
    command = [word.replace(MODEL, "digits.onnx") for word in COMMANDS[name]]
    output = succeeds(*command, *more, cwd=tmp_path, COLUMNS="80")
    assert output
    output = output.replace(str(tmp_path), "FOLDER")  # a path stays on its line, however long
    assert max(map(len, output.splitlines())) <= 80
    assert max(map(len, succeeds(name, "--help", COLUMNS="80").splitlines())) <= 80


@pytest.mark.parametrize("name", ["run", "benchmark", "profile"])
def test_commands_compile_for_the_given_threads(name: str, tmp_path: Path) -> None:
    succeeds(*COMMANDS[name], "--threads", "9", cwd=tmp_path)
    done = tenon(*COMMANDS[name], "--threads", "257", cwd=tmp_path)
    assert (done.returncode, "256" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


def test_number_of_threads_is_in_the_manifest(tmp_path: Path) -> None:
    succeeds("compile", MODEL, "-o", "out", "--threads", "2", cwd=tmp_path)
    done = tenon("benchmark", "out", "--threads", "9", cwd=tmp_path)
    assert done.returncode == 2
    assert "compile the model again with threads=9" in done.stderr


@pytest.mark.parametrize("name", [*COMMANDS, *CONVERSATIONS])
def test_every_command_has_help(name: str) -> None:
    assert f"Usage: tenon {name}" in succeeds(name, "--help")


def test_python_m_tenon() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tenon", "--version"], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == f"tenon {package.__version__}\n" == succeeds("--version")


def test_bad_input_gives_one_error_message(tmp_path: Path) -> None:
    done = tenon("inspect", "absent.onnx", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tenon: absent.onnx")
    assert "Traceback" not in done.stderr


def test_unusable_cache_is_a_warning(tmp_path: Path) -> None:
    """A file at the path of the cache folder: neither objects nor measured times can be cached, and all commands still
    work.
    """
    (tmp_path / "cache").write_text("in the way")
    done = tenon("compile", MODEL, "-o", "out", cwd=tmp_path, TENON_CACHE="cache")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("tenon: warning: the cache ")
    assert "Traceback" not in done.stderr
    done = tenon("compile", MODEL, "-o", "out", "--no-tuning", cwd=tmp_path, TENON_TUNING=str(DIGITS / "held_out.png"))
    assert (done.returncode, done.stderr) == (0, "")
    done = tenon("compile", MODEL, "-o", "out", cwd=tmp_path, TENON_TUNING=str(DIGITS / "held_out.png"))
    assert done.returncode == 0
    assert done.stderr.count("not a usable tuning table") == done.stderr.count("\n") == 1


def test_inspect_bundle(tmp_path: Path) -> None:
    succeeds("compile", MODEL, "-o", "out", "--mean", "1", "--threads", "2", cwd=tmp_path)
    output = succeeds("inspect", "out", "--layers", cwd=tmp_path, COLUMNS="100")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert max(map(len, output.splitlines())) <= 100
    for words in (
        f"bundle digits for {manifest['target']['name']}",
        "input  image  f32[1,1,8,8]  preprocessing: rgb, stretch, mean 1,",
        "output  probabilities  f32[1,10]",
        "1 to 2",
        "digits.onnx (onnx)",
        manifest["origin"]["sha256"],
        "optimize=2",
        "conv2",
    ):
        assert words in output
    for name, record in manifest["files"].items():
        assert re.search(rf"{re.escape(name)} +{record['bytes']} +{record['sha256'][:16]} +ok", output)
    data = json.loads(succeeds("inspect", "out", "--json", cwd=tmp_path))
    assert {name: value for name, value in data.items() if name != "states"} == manifest
    assert set(data["states"].values()) == {"ok"}


def test_inspect_damaged_bundle(tmp_path: Path) -> None:
    out = package.compile(MODEL).save(tmp_path / "out")
    with (out / "digits.c").open("a") as file:
        file.write("\n")
    (out / "digits.weights.bin").unlink()
    done = tenon("inspect", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert "digits.c is damaged, digits.weights.bin is missing" in done.stderr
    assert " ok" in done.stdout
    done = tenon("inspect", "out", "--dot", "graph.dot", cwd=tmp_path)
    assert (done.returncode, "contains no graph" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("tenon ins", {"inspect"}),
        ("tenon compile --target armv7", {"armv7"}),
        ("tenon b", {"benchmark", "bench-op"}),
        ("tenon compile --no-", {"--no-tuning"}),
        ("tenon compile --precision b", {"bf16"}),
        ("tenon profile --format m", {"mace"}),
        ("tenon run --he", {"--head", "--help"}),
    ],
)
def test_completion_in_bash(line: str, wanted: set[str], tmp_path: Path) -> None:
    """Installed as documented, then called as bash does when Tab is pressed."""
    words = line.split()
    script = (
        "tenon --install-completion >/dev/null && . ~/.bashrc && complete -p tenon >/dev/null || exit 9\n"
        f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n_tenon_completion tenon\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    path = f"{tenon_script().parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=tmp_path,
        env=environment(HOME=str(tmp_path), PATH=path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == wanted


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_has_a_script_for_each_shell(shell: str) -> None:
    output = succeeds(_TENON_COMPLETE=f"source_{shell}")
    assert "_TENON_COMPLETE" in output
    assert "tenon" in output


_USES = f"""
import numpy as np
def use(name):
    import tenon
    public = getattr(tenon, name)
    if name == "targets":
        assert "aarch64" in public(), public
        assert set(public()) == set(__import__("tenon.machine.targets", fromlist=["targets"]).targets())
    elif name == "inspect":
        assert public({MODEL!r}, target="null")[0].macs > 0
    elif name == "load":
        assert isinstance(public({MODEL!r}), tenon.Graph)
    elif name == "compile":
        assert isinstance(public({MODEL!r}), tenon.Bundle)
    elif name == "open":
        with public(tenon.compile({MODEL!r})) as engine:
            assert isinstance(engine, tenon.Engine)
            answer = engine.run(np.zeros((1, 1, 8, 8), np.float32))["probabilities"]
            assert abs(answer.sum() - 1) < 1e-5
    elif name == "Options":
        assert public(target="aarch64").target == "aarch64"
    elif name == "TenonError":
        try:
            tenon.load("absent.onnx")
        except public:
            pass
    else:
        assert callable(public), name
"""


def _python(code: str) -> None:
    tenon_script()
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


_EACH_FIRST = """
import os, sys
def identity(name):
    import tenon
    public = getattr(tenon, name)
    return getattr(public, "__module__", ""), getattr(public, "__qualname__", repr(public))
def alone(first):
    use(first)
    return {name: identity(name) for name in every}
results = []
for first in firsts:
    read, write = os.pipe()
    if not os.fork():
        try:
            os.write(write, repr(sorted(alone(first).items())).encode())
        except BaseException as error:
            print(first, "first:", repr(error), file=sys.stderr)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as end:
        results.append(end.read())
    os.wait()
assert results[0]
assert len(set(results)) == 1, results
"""


@pytest.mark.parametrize("firsts", [PUBLIC[::4], pytest.param(PUBLIC, marks=pytest.mark.slow)])
def test_public_names_can_be_imported_in_every_order(firsts: list[str]) -> None:
    """Each name first (every fourth by default), in a process that has imported nothing of the package, then all names:
    imports of submodules must not shadow any public name, so that the names are the same objects in every order.
    """
    _python(f"{_USES}\nfirsts, every = {firsts!r}, {PUBLIC!r}{_EACH_FIRST}")


def test_public_names_after_every_submodule() -> None:
    _python(
        f"{_USES}\nimport importlib, pkgutil, tenon\nbefore = {{n: getattr(tenon, n) for n in {PUBLIC!r}}}\n"
        "for found in pkgutil.walk_packages(tenon.__path__, 'tenon.'):\n"
        "    found.name.endswith('__main__') or importlib.import_module(found.name)\n"
        f"assert all(getattr(tenon, n) is before[n] for n in {PUBLIC!r})\n"
        f"for name in {PUBLIC!r}: use(name)"
    )


def test_public_names_are_not_shadowed_by_submodules() -> None:
    _python(
        f"{_USES}\nimport tenon.machine.targets\nfrom tenon import targets\nassert targets is tenon.machine.targets\n"
        f"for name in {PUBLIC!r}: use(name)"
    )


def test_example_in_the_package_docstring(tmp_path: Path) -> None:
    """Executes the example in the docstring of the package."""
    bundle = package.compile(MODEL)
    bundle.save(tmp_path / "out")
    with package.open(tmp_path / "out") as engine:
        assert engine.run({"image": np.zeros((1, 1, 8, 8), np.float32)})["probabilities"].shape == (1, 10)
