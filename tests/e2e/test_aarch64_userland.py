"""Devices that are a whole AArch64 userland behind ssh: nothing there is of this machine but the kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from aarch64_userland import aarch64_userland
from command_line import run_main
from on_targets import skip_without_device
from onnx_models import model, node
from ssh_server import SshServer, ssh_server
from tenon.cli import main
from tenon.tools.devices import RemoteRunner, ask, read_devices, target_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    folder = tmp_path_factory.mktemp("userland")
    with ssh_server(tmp_path_factory.mktemp("pi"), aarch64_userland(folder)) as server:
        yield server


def written(folder: Path, pi: SshServer) -> Path:
    (folder / "devices.yml").write_text(yaml.safe_dump({"devices": {"pi5": pi.keys()}}))
    return folder / "devices.yml"


def test_what_the_userland_says(pi: SshServer, tmp_path: Path) -> None:
    with RemoteRunner(read_devices(written(tmp_path, pi))[0]).connected() as device:
        assert device.check("uname -m") == "aarch64"
        # the program that runs the command is an ELF file for AArch64 (e_machine 183)
        assert device.fetch("/bin/busybox")[18:20] == b"\xb7\0"
        facts = ask(device)
    assert (facts.machine, facts.system, facts.temperature, facts.clock) == ("aarch64", "linux", 47.3, 2400.0)
    assert target_of(device.spec, facts).name == "cortex-a76"
    assert facts.space
    assert not device.spec.emulates, "programs need no command in front of them there"


def test_programs_and_deployment_in_the_userland(
    pi: SshServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    skip_without_device("aarch64")
    file = str(tmp_path / "net.onnx")
    Path(file).write_bytes(model([node("Relu", ["x"], ["y"])], {"x": [1, 8]}, ["y"]).SerializeToString())
    x = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)
    np.save(tmp_path / "x.npy", x)
    where = ["--devices", str(written(tmp_path, pi)), "--device", "pi5", "--json"]

    def shown(*words: str) -> Any:
        capsys.readouterr()
        assert run_main(main, [*words, *where]) == 0
        return json.loads(capsys.readouterr().out)

    shown("run", file, "--input", str(tmp_path / "x.npy"), "--output", str(tmp_path / "y.npz"))
    with np.load(tmp_path / "y.npz") as outputs:
        np.testing.assert_array_equal(outputs["y"], np.maximum(x, 0))
    (row,) = shown("deploy", file)
    folder = pi.home / row["folder"]
    assert folder.resolve().name == row["version"]
    with RemoteRunner(read_devices(tmp_path / "devices.yml")[0]).connected() as device:
        device.send(row["folder"], {"x.npy": (tmp_path / "x.npy").read_bytes()})
        device.check(f"cd {row['folder']} && ./net x.npy --raw-output y.bin")
    np.testing.assert_array_equal(np.fromfile(folder / "y.bin", np.float32), np.maximum(x, 0).ravel())
    run_main(main, ["compile", file, "--target", "aarch64", "--name", "net", "-o", str(tmp_path / "net.tenon")])
    (again,) = shown("deploy", str(tmp_path / "net.tenon"))
    assert (again["previous"], again["name"]) == (row["version"], "net")
