"""Devices behind a real OpenSSH server on loopback, which is a small AArch64 machine under qemu-user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import yaml

import handmade
from command_line import run_main
from on_targets import skip_without_device
from onnx_models import model, node
from ssh_server import SshServer, ssh_server
from tenon.cli import main
from tenon.errors import DeviceError
from tenon.runtime.bundle.encrypted_files import encrypt
from tenon.runtime.engine.device import RemoteBundle
from tenon.tools.devices import RemoteRunner, ask, find_devices, read_devices, target_of
from tenon.tools.devices import remote as remote_module
from tenon.tools.devices.deploy import deploy, state
from tenon.tools.devices.link import LostError
from tenon.tools.devices.remote import Connection

X = np.linspace(-3, 3, 10, dtype=np.float32).reshape(1, 10)


@pytest.fixture(scope="module")
def pi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("pi")) as server:
        yield server


@pytest.fixture(autouse=True)
def _clean(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "pi" in request.fixturenames:
        server: SshServer = request.getfixturevalue("pi")
        server.before.unlink(missing_ok=True)
        shutil.rmtree(server.home / ".tenon", ignore_errors=True)


def written(folder: Path, pi: SshServer, **changes: object) -> Path:
    path = folder / "devices.yml"
    path.write_text(yaml.safe_dump({"devices": {"pi5": {**pi.keys(**changes), "target_socs": "BCM2712"}}}))
    return path


@contextmanager
def connected(folder: Path, pi: SshServer, **changes: object) -> Iterator[Connection]:
    with RemoteRunner(read_devices(written(folder, pi, **changes))[0]).connected() as connection:
        yield connection


def left(pi: SshServer) -> list[str]:
    """The files on the device."""
    return sorted(str(path.relative_to(pi.home / ".tenon")) for path in (pi.home / ".tenon").rglob("*"))


def network(folder: Path) -> str:
    made = model([node("Relu", ["x"], ["y"])], {"x": [1, 8]}, ["y"])
    (folder / "net.onnx").write_bytes(made.SerializeToString())
    np.save(folder / "x.npy", np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8))
    return str(folder / "net.onnx")


# ------------------------------------------------------------------------------------------------- runs
def test_a_device_says_what_it_is(pi: SshServer, tmp_path: Path) -> None:
    with connected(tmp_path, pi) as device:
        facts = ask(device)
    assert (facts.machine, facts.temperature, facts.clock, facts.processors) == ("aarch64", 47.3, 2400.0, 4)
    assert facts.model == "Raspberry Pi 5 Model B Rev 1.0"
    assert facts.space is not None
    assert target_of(device.spec, facts).name == "cortex-a76"


def test_push_run_pull_and_time(pi: SshServer, tmp_path: Path) -> None:
    skip_without_device("aarch64")
    with connected(tmp_path, pi) as device:
        with RemoteBundle(handmade.bundle("aarch64", rounds=3), device) as engine:
            for feed in (np.round(X), np.round(X + 1)):
                np.testing.assert_array_equal(engine.run([feed])[0]["y"], handmade.expected(feed, 3))
            assert engine.time(2).min > 0
        with device.session() as session:
            odd = "a 'b\" $HOME\\ .bin"
            session.push({odd: bytes(range(256))})
            assert session.pull(odd) == bytes(range(256))
    assert left(pi) == []


@pytest.mark.slow
def test_commands_on_a_device(pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_device("aarch64")
    file, x = network(tmp_path), str(tmp_path / "x.npy")
    where = ["--devices", str(written(tmp_path, pi)), "--json"]

    def shown(*words: str) -> Any:
        capsys.readouterr()
        assert run_main(main, [*words, *where]) == 0
        return json.loads(capsys.readouterr().out)

    ran = shown("run", file, "--input", x, "--device", "pi5", "--output", str(tmp_path / "y.npz"))
    assert ran["runner"] == "device pi5"
    with np.load(tmp_path / "y.npz") as outputs:
        np.testing.assert_array_equal(outputs["y"], np.maximum(np.load(x), 0))
    timed = shown("benchmark", file, "--rounds", "2", "--warmup", "0", "--device", "BCM2712")
    assert (timed["device"], timed["networks"][0]["rounds"], timed["networks"][0]["target"]) == ("pi5", 2, "cortex-a76")
    assert timed["conditions"] == "temperature 47.3 to 47.3 C, clock 2400 of 2400 MHz"
    (listed,) = [each for each in shown("devices") if each["name"] == "pi5"]
    assert (listed["state"], listed["target"], listed["facts"]["temperature"]) == ("ready", "cortex-a76", 47.3)
    assert left(pi) == []


@pytest.mark.slow
def test_validation_on_a_device(pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_device("aarch64")
    file, words = network(tmp_path), ["--devices", str(written(tmp_path, pi)), "--device", "pi5", "--json"]
    words += ["--data", str(tmp_path / "x.npy"), "--against", "onnxruntime"]
    assert run_main(main, ["validate", file, *words]) == 0
    assert json.loads(capsys.readouterr().out)["passed"]


@pytest.mark.slow
def test_layers_on_a_device(pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first layer there that differs from the one of another model, whose weights are negated."""
    skip_without_device("aarch64")
    weights = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Softmax", ["m"], ["y"], axis=-1)]
    np.save(tmp_path / "x.npy", np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8))
    for name, sign in (("net", 1), ("other", -1)):
        made = model(nodes, {"x": [1, 8]}, ["y"], {"w": sign * weights})
        (tmp_path / f"{name}.onnx").write_bytes(made.SerializeToString())
    words = ["validate", str(tmp_path / "net.onnx"), "--data", str(tmp_path / "x.npy"), "--layers", "--json"]
    words += ["--devices", str(written(tmp_path, pi)), "--device", "pi5", "--against"]
    assert run_main(main, [*words, "onnxruntime"]) == 0
    layers = json.loads(capsys.readouterr().out)["inside"]
    assert [each["name"] for each in layers["layers"]] == ["m", "y"]
    assert layers["first_wrong"] is None
    assert run_main(main, [*words, f"onnxruntime:{tmp_path / 'other.onnx'}"]) == 2
    wrong = json.loads(capsys.readouterr().out)["inside"]["divergence"]
    assert (wrong["layer"], wrong["shape"]) == ("m", [1, 5])
    np.testing.assert_allclose(wrong["got"]["elements"], -np.array(wrong["wanted"]["elements"]), rtol=1e-5)
    assert left(pi) == []


@pytest.mark.slow
def test_profile_on_a_device(pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_device("aarch64")
    words = ["--devices", str(written(tmp_path, pi)), "--device", "pi5", "--rounds", "2", "--json"]
    assert run_main(main, ["profile", network(tmp_path), *words]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == "cortex-a76"


@pytest.mark.parametrize(
    "form",
    [pytest.param("bundle", marks=pytest.mark.slow), pytest.param("library", marks=pytest.mark.slow), "net.tenon"],
)
def test_saved_bundles_on_a_device(
    pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """A folder with its object, one with its library only, and one file for several targets."""
    skip_without_device("aarch64")
    file, saved, x = network(tmp_path), str(tmp_path / form), str(tmp_path / "x.npy")
    targets = ["--target", "cortex-a76"] if form != "net.tenon" else ["--target", "x86-64,aarch64"]
    emit = ["--emit", "manifest,weights,library"] if form == "library" else []
    assert run_main(main, ["compile", file, *targets, *emit, "-o", saved]) == 0
    where = ["--device", "pi5", "--devices", str(written(tmp_path, pi)), "--json"]

    def shown(*words: str) -> Any:
        capsys.readouterr()
        assert run_main(main, [*words, *where]) == 0
        return json.loads(capsys.readouterr().out)

    ran = shown("run", saved, "--input", x, "--output", str(tmp_path / "y.npz"))
    assert ran["runner"] == "device pi5"
    with np.load(tmp_path / "y.npz") as outputs:
        np.testing.assert_array_equal(outputs["y"], np.maximum(np.load(x), 0))
    np.savez(tmp_path / "right.npz", y=np.maximum(np.load(x), 0))
    assert shown("validate", saved, "--data", x, "--expected", str(tmp_path / "right.npz"))["passed"]
    if form == "bundle":
        timed = shown("benchmark", saved, "--rounds", "2", "--warmup", "0")
        assert (timed["device"], timed["networks"][0]["target"]) == ("pi5", "cortex-a76")
        assert shown("validate", saved, "--data", x, "--against", f"onnxruntime:{file}")["passed"]
    assert left(pi) == []


@pytest.mark.slow
def test_profile_of_a_saved_bundle(pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skip_without_device("aarch64")
    words = ["--devices", str(written(tmp_path, pi)), "--device", "pi5"]
    saved = str(tmp_path / "bundle")
    for more, status in (([], 2), (["--profile"], 0)):
        assert run_main(main, ["compile", network(tmp_path), "--target", "cortex-a76", *more, "-o", saved]) == 0
        assert run_main(main, ["profile", saved, *words, "--rounds", "2"]) == status
    assert "compile the model again with --profile" in capsys.readouterr().err


def test_bundles_that_a_device_does_not_run(pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    devices = ["--device", "pi5", "--devices", str(written(tmp_path, pi))]
    saved = str(tmp_path / "bundle")
    handmade.bundle("x86-64").save(saved, emit=("manifest", "weights"))
    np.save(tmp_path / "x.npy", X)
    inputs = ["--input", str(tmp_path / "x.npy")]
    wrong = (
        "tenon: the bundle is for x86-64, but device 'pi5' takes code for cortex-a76: compile the model for cortex-a76"
    )
    for words in (
        ["run", saved, *inputs],
        ["deploy", saved],
        ["validate", saved, "--data", inputs[1], "--expected", inputs[1]],
    ):
        assert run_main(main, [*words, *devices]) == 2
        assert capsys.readouterr().err.splitlines()[-1:] == [wrong]
    handmade.bundle("aarch64").save(saved, emit=("manifest", "weights"))
    assert run_main(main, ["run", saved, *inputs, *devices]) == 2
    assert "was saved without code: save it with its object or library" in capsys.readouterr().err
    assert run_main(main, ["validate", saved, "--data", inputs[1], "--against", "onnxruntime", *devices]) == 2
    assert "name the model's file, too: --against onnxruntime:FILE" in capsys.readouterr().err
    assert run_main(main, ["run", saved, *inputs, "--threads", "2", *devices]) == 2
    assert "runs in one thread" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- faults
def test_a_cut_in_the_middle_of_a_run(pi: SshServer, tmp_path: Path) -> None:
    with connected(tmp_path, pi, command="env") as device, device.session() as session:
        session.push({"slow": b"#!/bin/sh\nsleep 30\n"})
        pi.before.write_text('case "$SSH_ORIGINAL_COMMAND" in *./slow*) kill -9 $PPID ;; esac\n')
        with pytest.raises(LostError, match=r"device 'pi5' \(\w+@127.0.0.1:\d+\) does not answer: ") as caught:
            session.run("slow")
        assert str(caught.value).count("\n") == 0


def test_a_broken_link_is_opened_again(pi: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "_PAUSE", 0.0)
    pi.before.write_text(f'if [ ! -e "{tmp_path}/once" ]; then touch "{tmp_path}/once"; kill -9 $PPID; fi\n')
    with connected(tmp_path, pi, retries=1) as device:
        assert device.check("echo here") == "here"
    assert (tmp_path / "once").exists()
    (tmp_path / "once").unlink()
    with connected(tmp_path, pi, retries=0) as device, pytest.raises(LostError):
        device.check("echo here")


def test_a_program_that_does_not_end(pi: SshServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "SECONDS", 1)
    with connected(tmp_path, pi, command="env") as device, device.session() as session:
        session.push({"slow": b"#!/bin/sh\nsleep 30\ntouch ended\n"})
        with pytest.raises(DeviceError, match="slow did not end within 1 s on device 'pi5'"):
            session.run("slow")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"key": "other"}, r"Permission denied.*: name a key that it accepts with 'key', or .*ssh-copy-id"),
        ({"ssh_options": {"UserKnownHostsFile": "/dev/null"}}, "connect once with ssh to accept its host key"),
        ({"port": 1}, "Connection refused: see that it is on and its address in devices.yml right"),
    ],
)
def test_devices_that_do_not_let_in(
    pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    if "key" in changes:
        changes = {"key": str(tmp_path / "other")}
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", changes["key"]], check=True)
    with pytest.raises(LostError, match=words), connected(tmp_path, pi, **changes):
        pass
    assert run_main(main, ["devices", "pi5", "--devices", str(tmp_path / "devices.yml"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["facts"]) == ("unreachable", None)


def test_a_password_is_given_to_ssh(pi: SshServer, tmp_path: Path) -> None:
    """The password is a key's: the server of the tests has no users of its own.  ssh asks for both in the same way."""
    key = tmp_path / "locked"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "it's $1", "-f", str(key)], check=True)
    with (pi.root / "authorized_keys").open("a") as accepted:
        accepted.write(key.with_suffix(".pub").read_text())
    with connected(tmp_path, pi, key=str(key), password="it's $1") as device:
        assert device.check("echo in") == "in"
    with pytest.raises(LostError, match="Permission denied"), connected(tmp_path, pi, key=str(key), password="no"):
        pass


def test_a_password_does_not_answer_for_an_unknown_host(pi: SshServer, tmp_path: Path) -> None:
    options = {"UserKnownHostsFile": str(tmp_path / "known"), "GlobalKnownHostsFile": "/dev/null"}
    began = perf_counter()
    with (
        pytest.raises(LostError, match=r"Host key verification failed.*connect once with ssh"),
        connected(tmp_path, pi, password="yes", ssh_options=options),
    ):
        pass
    assert perf_counter() - began < 10
    assert not (tmp_path / "known").exists()


@pytest.fixture
def full(pi: SshServer) -> Iterator[None]:
    """The device's file system has 64 KiB."""
    place = pi.home / ".tenon"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], capture_output=True)
    if os.geteuid() or made.returncode:
        pytest.skip("only root can make a small file system")
    yield
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_device(pi: SshServer, full: None, tmp_path: Path) -> None:
    words = r"device 'pi5': cannot write to .*: \d+ bytes are free, 200000 are needed: make room there, or name another"
    with connected(tmp_path, pi) as device:
        deploy(device, "net", {"a": b"1"})
        before = left(pi)
        with pytest.raises(DeviceError, match=words):
            deploy(device, "net", {"a": bytes(200_000)})
        assert left(pi) == before
        with pytest.raises(DeviceError, match=words), device.session() as session:
            session.push({"a": bytes(200_000)})
        assert left(pi) == before


# ------------------------------------------------------------------------------------------------- deployment
@pytest.mark.parametrize(
    "where",
    ["sftp-server", pytest.param("sha256sum", marks=pytest.mark.slow), pytest.param("mv ", marks=pytest.mark.slow)],
)
def test_a_cut_in_the_middle_of_a_deployment(pi: SshServer, tmp_path: Path, where: str) -> None:
    """The current version stays, and the next deployment succeeds."""
    with connected(tmp_path, pi) as device:
        first = deploy(device, "net", {"a": b"1"})
        pi.before.write_text(f'case "$SSH_ORIGINAL_COMMAND" in *"{where}"*) kill -9 $PPID; exit 1 ;; esac\n')
        with pytest.raises(LostError):
            deploy(device, "net", {"a": b"2"})
    pi.before.unlink()
    with connected(tmp_path, pi) as device:
        assert state(device, "net") == (first.version, [first.version])
        assert (pi.home / first.folder / "a").read_bytes() == b"1"
        assert deploy(device, "net", {"a": b"2"}).previous == first.version


def test_deploy_command(pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The executable that was pushed runs on the device before it becomes current; wrong answers are refused."""
    skip_without_device("aarch64")
    file, devices = network(tmp_path), str(written(tmp_path, pi))
    words = ["deploy", file, "--device", "pi5", "--devices", devices]
    assert run_main(main, [*words, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["device"], row["name"], row["previous"]) == ("pi5", "net", "")
    there = {path.name for path in (pi.home / row["folder"]).iterdir()}
    assert {"net", "manifest.json", "net.weights.bin"} <= there
    assert not [name for name in there if name.startswith("check")]
    assert run_main(main, words) == 0
    assert "nothing to send" in capsys.readouterr().out

    liar = tmp_path / "liar"
    liar.write_text("#!/bin/sh\nqemu-aarch64 \"$@\"\nprintf '\\377' | dd of=check-out.bin bs=1 seek=3 conv=notrunc\n")
    liar.chmod(0o755)
    written(tmp_path, pi, command=str(liar))
    assert run_main(main, [*words, "--name", "net", "-O", "0", "--profile"]) == 2
    assert "output 'y' of 'net' differs from this machine's: cosine similarity" in capsys.readouterr().err
    assert not [name for name in left(pi) if "incoming" in name]
    with RemoteRunner(find_devices(["pi5"], Path(devices))[0]).connected() as device:
        assert state(device, "net") == (row["version"], [row["version"]])


def test_deploying_saved_bundles(pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They run on the device once before they become current; a file of several targets is pushed as it is."""
    skip_without_device("aarch64")
    devices = ["--device", "pi5", "--devices", str(written(tmp_path, pi))]
    bundle = handmade.bundle("aarch64")
    bundle.save(tmp_path / "affine.tenon")
    assert run_main(main, ["deploy", str(tmp_path / "affine.tenon"), *devices, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    there = pi.home / row["folder"]
    assert (there / "affine.tenon").read_bytes() == (tmp_path / "affine.tenon").read_bytes()
    failing = handmade.with_source(bundle, bundle.source.replace("return 0;", "return 7;"))
    failing.save(tmp_path / "affine", emit=("manifest", "weights", "object"))
    assert run_main(main, ["deploy", str(tmp_path / "affine"), *devices]) == 2
    assert "'affine' on device pi5: the network failed" in capsys.readouterr().err
    assert (pi.home / row["folder"]).resolve().name == row["version"]
    assert not [name for name in left(pi) if "incoming" in name]


def test_encrypted_files_are_run_on_the_device_only_with_their_key(
    pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_device("aarch64")
    devices = ["--device", "pi5", "--devices", str(written(tmp_path, pi))]
    handmade.bundle("aarch64").save(tmp_path / "plain.tenon")
    (tmp_path / "key").write_bytes(bytes(range(32)))
    (tmp_path / "affine.tenon").write_bytes(encrypt(tmp_path / "plain.tenon", tmp_path / "key"))
    assert run_main(main, ["deploy", str(tmp_path / "affine.tenon"), *devices]) == 0
    said = capsys.readouterr()
    assert "is current" in said.out
    assert "affine was not run on pi5: its key is not known here" in said.err
    with_key = ["--key-file", str(tmp_path / "key"), "--json"]
    (tmp_path / "other.tenon").write_bytes((tmp_path / "affine.tenon").read_bytes())
    assert run_main(main, ["deploy", str(tmp_path / "other.tenon"), *devices, *with_key]) == 0
    assert json.loads(capsys.readouterr().out)[0]["checked"] is True
