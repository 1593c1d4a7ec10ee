"""devices.yml: keys of Tenon and MACE, problems with their lines, selection; the target for what a device says."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from real import ROOT
from tenon.errors import DeviceError, InputError, ToolchainError
from tenon.machine.targets import targets
from tenon.tools.deployment.mace_config import TARGETS
from tenon.tools.devices import DeviceSpec, RemoteRunner, ask, config, find_devices, read_devices, target_of
from tenon.tools.devices.deploy import deploy, rollback, state
from tenon.tools.devices.link import LostError
from tenon.tools.devices.remote import Connection, RemoteSession

MACE = """\
devices:
  nanopi:
    target_abis: [arm64, armhf]
    target_socs: RK3399
    models: FriendlyElec Nanopi M4
    address: 10.0.0.0
    username: user
    password: '123456'
  raspberry:
    target_abis: [armv7l]
    target_socs: BCM2837, BCM2835
    address: 10.0.0.1
    username: user
    system: arm_linux
    device_name: rpi3
  phone: {system: android, address: '0123', target_abis: 'armeabi-v7a,arm64-v8a'}
  here: {system: host}
"""


@pytest.fixture(autouse=True)
def _no_adb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "serials", lambda: ["plugged"])


def written(folder: Path, text: str) -> Path:
    path = folder / "devices.yml"
    path.write_text(text)
    return path


def test_keys_of_mace(tmp_path: Path) -> None:
    nano, pi, phone, here = read_devices(written(tmp_path, MACE))
    assert nano == DeviceSpec(
        "nanopi",
        "ssh",
        "10.0.0.0",
        "user",
        password="123456",
        abis=("arm64", "armhf"),
        socs=("RK3399",),
        model="FriendlyElec Nanopi M4",
    )
    assert (pi.name, pi.transport, pi.socs) == ("rpi3", "ssh", ("BCM2837", "BCM2835"))
    assert (phone.transport, phone.address, phone.place) == ("adb", "0123", "/data/local/tmp/tenon")
    assert (here.transport, here.shell, here.where) == ("shell", ("sh", "-c"), "sh")
    assert "123456" not in repr(nano), "a password is not shown"
    assert [target_of(spec, None).name for spec in (nano, pi, phone)] == ["aarch64", "armv7", TARGETS["armeabi-v7a"]]


def test_keys_of_tenon(tmp_path: Path) -> None:
    text = """\
devices:
  pi:
    {address: pi.local, port: 2222, key: ~/.ssh/id, timeout: 3, retries: 0, folder: /opt/tenon/, target: raspberry-pi-5}
  box: {shell: docker exec -i box sh -c, command: [qemu-aarch64, -cpu, max]}
  jump: {address: far, ssh_options: {ProxyJump: gate, Compression: yes}}
"""
    pi, box, jump = read_devices(written(tmp_path, text))
    assert (pi.where, pi.timeout, pi.retries, pi.place) == ("pi.local:2222", 3.0, 0, "/opt/tenon")
    assert Path(pi.key) == Path("~/.ssh/id").expanduser()
    assert target_of(pi, None).name == "cortex-a76"
    assert (box.shell[-2:], box.command, box.emulates) == (("sh", "-c"), ("qemu-aarch64", "-cpu", "max"), True)
    assert dict(jump.ssh_options) == {"ProxyJump": "gate", "Compression": "yes"}


def test_documented_file(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "howto" / "devices.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    transports = {spec.name: spec.transport for spec in read_devices(written(tmp_path, text))}
    assert transports == {"pi5": "ssh", "phone": "adb", "box": "shell", "emulated": "shell"}


def test_documented_keys() -> None:
    page = (ROOT / "docs" / "howto" / "devices.md").read_text().partition("## Keys")[2].partition("\n## ")[0]
    keys = {key for row in re.findall(r"^\| (`.*?) \|", page, re.M) for key in re.findall(r"`(\w+)`", row)}
    assert keys == set(config.DeviceSection.model_fields)


def test_every_problem_is_listed_with_its_line(tmp_path: Path) -> None:
    text = """\
devices:
  a:
    adress: 10.0.0.1
  b:
    address: -oProxyCommand=x
    port: 70000
  c: {address: x, target: raspbery-pi-4}
  d: {address: x, target_abis: mips}
  e: 3
"""
    with pytest.raises(InputError) as caught:
        read_devices(path := written(tmp_path, text))
    lines = [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]
    assert lines[0] == "3: devices.a.adress: there is no such key; did you mean 'address'?"
    assert [line.split(": ")[:2] for line in lines[1:]] == [
        ["6", "devices.b.port"],
        ["7", "devices.c.target"],
        ["8", "devices.d.target_abis"],
        ["9", "devices.e"],
    ]
    for wrong, words in (
        ("{username: pi}", "required"),
        ("{address: 0123}", "in quotes"),
        ("{address: -oProxyCommand=x}", "must not begin"),
    ):
        with pytest.raises(InputError, match=words):
            read_devices(written(tmp_path, f"devices: {{a: {wrong}}}"))


def test_devices_are_found_by_name_address_and_soc(tmp_path: Path) -> None:
    path = written(tmp_path, MACE)

    def names(*words: str) -> list[str]:
        return [spec.name for spec in find_devices(words, path)]

    assert names("nanopi") == names("10.0.0.0") == names("rk3399") == names("user@10.0.0.0") == ["nanopi"]
    assert names("bcm2835", "nanopi", "rpi3") == ["rpi3", "nanopi"]
    assert names("all") == ["nanopi", "rpi3", "phone", "here", "plugged"]
    assert find_devices(["plugged"], path)[0].transport == "adb"
    with pytest.raises(InputError, match="no device 'pi': there are nanopi, rpi3, phone, here, plugged"):
        names("pi")


I8MM = " ".join(host.features) if (host := targets()["aarch64-i8mm"].host) else ""
AVX2 = " ".join(host.features) if (host := targets()["x86-64-avx2"].host) else ""


class Told(Connection):
    """A device that answers with a text."""

    def __init__(self, spec: DeviceSpec, text: str) -> None:
        super().__init__(spec, None)  # type: ignore[arg-type]  # no link is opened
        self.told = text

    def check(self, command: str) -> str:
        return self.told

    def free(self, folder: str) -> int | None:
        return None


def said(**facts: str) -> str:
    return "\n".join(f"tenon-fact:{name}\r\n{value}\r" for name, value in facts.items())


@pytest.mark.parametrize(
    ("facts", "target"),
    [
        ({"machine": "x86_64", "cpuinfo": "flags : fpu sse2"}, "x86-64"),
        ({"machine": "x86_64", "cpuinfo": "flags\t\t: sse2 avx2 bmi2 fma f16c " + AVX2}, "x86-64-avx2"),
        ({"machine": "aarch64", "cpuinfo": "Features : fp asimd"}, "aarch64"),
        ({"machine": "aarch64", "cpuinfo": "Features : asimd asimddp"}, "aarch64-dotprod"),
        ({"machine": "aarch64", "cpuinfo": "Features : asimd\nCPU part : 0xd08\nCPU part : 0xd08"}, "cortex-a72"),
        ({"machine": "aarch64", "cpuinfo": "Features : asimd\nCPU part : 0xd03\nCPU part : 0xd08"}, "aarch64"),
        ({"machine": "aarch64", "cpuinfo": f"Features : {I8MM}\nCPU part : 0xd0b"}, "aarch64-i8mm"),
        ({"machine": "aarch64", "bits": "32"}, "armv7"),
        ({"machine": "armv7l"}, "armv7"),
        ({"machine": "armv6l"}, "armv6"),
        ({"machine": "riscv64"}, "riscv64"),
        ({"machine": "riscv64", "cpuinfo": "hart : 0\nisa : rv64imafdc_zicsr"}, "riscv64"),
        ({"machine": "riscv64", "cpuinfo": "hart : 0\nisa : rv64imafdcv_zicsr"}, "riscv64-v"),
        ({"machine": "riscv64", "cpuinfo": "hart : 0\nisa : rv64imafdcv_zfh_zvfh"}, "riscv64-v-fp16"),
        ({"machine": "aarch64", "platform": "kona"}, "android-arm64"),
        ({"machine": "aarch64", "platform": "kona", "bits": "32"}, "android-armv7"),
        ({"machine": "x86_64", "platform": "ranchu"}, "android-x86_64"),
    ],
)
def test_targets_of_what_devices_say(facts: dict[str, str], target: str) -> None:
    spec = DeviceSpec("it")
    facts_of_device = ask(Told(spec, said(system="Linux", **facts)))
    assert target_of(spec, facts_of_device).name == target


def test_a_device_that_no_target_suits() -> None:
    spec = DeviceSpec("it")
    with pytest.raises(InputError, match=r"'it': no target suits it .*a pdp11.*: give its 'target' in devices\.yml"):
        target_of(spec, ask(Told(spec, said(system="Linux", machine="pdp11"))))


def test_facts_in_their_units() -> None:
    text = said(
        temperature="41000\n52500\n", clock="600000\n1800000", highest="1800000", memory="MemAvailable: 2048 kB"
    )
    facts = ask(Told(DeviceSpec("it", model="Nanopi"), text))
    assert (facts.temperature, facts.clock, facts.highest_clock, facts.memory) == (52.5, 1800.0, 1800.0, 2 << 20)
    assert (facts.model, facts.processors, facts.space) == ("Nanopi", None, None)


@pytest.mark.parametrize(("transport", "package"), [("ssh", "openssh-client"), ("adb", "adb")])
def test_a_missing_program_names_its_package(transport: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    spec = DeviceSpec("it", "ssh" if transport == "ssh" else "adb", "nowhere")
    with pytest.raises(ToolchainError, match=f"apt-get install {package}"), RemoteRunner(spec).connected():
        pass


# ------------------------------------------------------------------------------------------------- a local shell
@contextmanager
def local(folder: Path, **changes: object) -> Iterator[Connection]:
    spec = DeviceSpec("box", "shell", folder=str(folder / "place"), retries=0, **changes)  # type: ignore[arg-type]
    with RemoteRunner(spec).connected() as connection:
        yield connection


def test_push_run_and_pull_over_a_shell(tmp_path: Path) -> None:
    odd = "a 'b\" $HOME.bin"
    with local(tmp_path, command=("env", "X=7")) as device, device.session() as session:
        session.push({odd: bytes(range(256)), "go": b'#!/bin/sh\necho "$X $1"; echo why >&2; exit 3\n'})
        done = session.run("go", ["a b"])
        assert (done.status, done.message) == (3, "7 a b\nwhy")
        assert session.pull(odd) == bytes(range(256))
        with pytest.raises(DeviceError, match=r"device 'box': .*/none cannot be read: .*No such file"):
            session.pull("none")
    assert list((tmp_path / "place").iterdir()) == []


def test_a_shell_that_dies_is_a_lost_device(tmp_path: Path) -> None:
    with local(tmp_path) as device, pytest.raises(LostError, match=r"device 'box' \(sh\) does not answer: "):
        device.call("kill -9 $$")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("a file")
    with (
        local(tmp_path) as device,
        pytest.raises(DeviceError, match=r"cannot write to .*place: .*: see its permissions, or name another 'folder'"),
        device.session(),
    ):
        pass


# ------------------------------------------------------------------------------------------------- versions
def test_versions_are_kept_and_rolled_back(tmp_path: Path) -> None:
    with local(tmp_path) as device:
        made = []
        for content in (b"1", b"2", b"3", b"4"):
            made.append(deploy(device, "net", {"a": content, "b c": b"x"}, executable="a", keep=3))
            os.utime(made[-1].folder, (len(made), len(made)))  # a second apart
        assert [each.previous for each in made] == ["", *(each.version for each in made[:-1])]
        assert state(device, "net") == (made[3].version, [each.version for each in made[:0:-1]])
        assert (Path(made[3].folder) / "a").read_bytes() == b"4"
        assert (Path(made[3].folder) / "a").stat().st_mode & 0o777 == 0o755
        again = deploy(device, "net", {"a": b"4", "b c": b"x"})
        assert (again.pushed, again.version) == (0, made[3].version)
        assert rollback(device, "net").version == made[2].version == state(device, "net")[0]
        assert (Path(made[3].folder) / "a").read_bytes() == b"3"
        with pytest.raises(InputError, match="device 'box' has no earlier version of 'other'"):
            rollback(device, "other")


def test_a_check_that_fails_changes_nothing(tmp_path: Path) -> None:
    with local(tmp_path) as device:
        first = deploy(device, "net", {"a": b"1"})
        before = sorted(tmp_path.rglob("*"))

        def check(session: RemoteSession) -> None:
            assert session.pull("a") == b"2"
            raise DeviceError("wrong")

        with pytest.raises(DeviceError, match="wrong"):
            deploy(device, "net", {"a": b"2"}, check=check)
        assert sorted(tmp_path.rglob("*")) == before
        assert state(device, "net") == (first.version, [first.version])


def test_a_file_that_changed_on_its_way(tmp_path: Path) -> None:
    shell = tmp_path / "shell"
    shell.write_text(
        '#!/bin/sh\ncase "$1" in *sha256sum*) echo 2 > "$(ls -d '
        + str(tmp_path)
        + '/place/bundles/net/incoming-*)/a" ;; esac\nsh -c "$1"\n'
    )
    shell.chmod(0o755)
    with (
        local(tmp_path, shell=(str(shell),)) as device,
        pytest.raises(DeviceError, match=r"incoming-\w+/a is not what was sent: deploy again"),
    ):
        deploy(device, "net", {"a": b"1"})
    assert list((tmp_path / "place" / "bundles" / "net").iterdir()) == []
