"""Targets are found by their files, and all lists of targets are generated from their rows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tenon.cli.list_targets import list_targets
from tenon.errors import InputError, InternalError
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets import find, host_cpu, registry, targets
from tenon.machine.targets.base import Group, Host, Target
from tenon.machine.targets.describe import how_tested, machine_code
from tenon.machine.targets.host import host, missing, runner_of
from tenon.machine.targets.registry import products
from tenon.machine.targets.runner import Local, qemu_user
from tenon.machine.targets.wine import Wine

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "targets.md"
HEAD = """\
# Targets

Written by `scripts/test tests/unit/test_targets.py --update-golden`; do not edit. A target is a row in a file of
`src/tenon/machine/targets`; `CONTRIBUTING.md` says how to add one. `tenon targets` prints the same, and what this
machine can run. Pages with the commands from a model to a running program:
[Raspberry Pi](../tutorials/raspberry-pi.md), [Linux](../tutorials/linux.md), [Android](../tutorials/android.md),
[STM32](../tutorials/stm32.md),
[ESP32-C3](../tutorials/esp32-c3.md), [iOS and macOS](../tutorials/apple.md), [Windows](../tutorials/windows.md),
[browser](../tutorials/browser.md).

`host` is the one of them that asks for the most features among those that the machine at hand has. Vectors are of that
many f32 elements. Programs of the targets that the machine at hand does not execute run on an emulator, in tests as
well as for the commands that take `--target`. Weights, inputs and outputs are in the byte order of the target:
little-endian unless the row says big-endian.

`opencl`, `vulkan` and `cuda` run all operators on GPUs, a thread for each independent iteration of a kernel, or work
groups with shared memory; `webgpu` those without 64-bit numbers, in browsers ([GPUs](gpu.md)).

A chip, board or system is another name of its processor's target: `--target raspberry-pi-5` is `--target cortex-a76`.
"""


def documentation() -> str:
    return "\n".join([HEAD, *(line for group in Group for line in _section(group))])


def _section(group: Group) -> list[str]:
    rows = [(name, row) for name, row in sorted(targets().items()) if row.group is group]
    lines = [f"## {group.capitalize()}", ""]
    titles = "| target | machine | vectors | zig's -target, -mcpu | machine code | runs on | tested |"
    lines += [titles, "|---|---|--:|---|---|---|---|"]
    for name, row in rows:
        zig = f"`{row.triple}`, `{row.cpu}`" if row.triple else ""
        code = ", ".join(machine_code(row)) or "none"
        lines.append(
            f"| `{name}` | {row.about} | {row.machine.lanes} | {zig} | {code} | {_runs_on(row)} | {how_tested(row)} |"
        )
    named = sorted((p for p in products().values() if p.group is group), key=lambda p: p.name)
    if named:
        lines += ["", "| chip, board or system | what it is | target |", "|---|---|---|"]
        lines += [f"| `{p.name}` | {p.about} | `{p.target}` |" for p in named]
    return [*lines, ""]


def _runs_on(row: Target) -> str:
    names = [row.runner.name] if row.runner else []
    if row.host:
        features = " ".join(sorted(row.host.features))
        system = {"darwin": " with macOS", "windows": " with Windows"}.get(row.host.system, "")
        names.insert(0, f"{row.host.family}{system}{f' with {features}' if features else ''}")
    return " or ".join(names) or "nothing"


def test_the_documentation_lists_all_targets(update_golden: bool) -> None:
    if update_golden:
        PAGE.write_text(documentation())
    assert PAGE.read_text() == documentation(), "scripts/test tests/unit/test_targets.py --update-golden"


def test_rows_are_complete() -> None:
    for name, row in targets().items():
        assert row.about, name
        assert row.object == "none" or find_backend(row.backend).entry_points("net"), name
        assert row.object == "none" or row.host or row.runner or row.group is Group.MOBILE, f"{name} runs nowhere"
        assert row.name == name
        assert row.group is not Group.OTHER or row.object == "none", f"{name} has no group"
        assert bool(row.linker_script) == (row.freestanding and row.object == "elf"), name


@pytest.fixture
def new(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    """A new target in a file of its own."""
    row = Target("novel", Machine(lanes=2), "", "", host=Host("novel-processor", frozenset({"vectors"})))
    module = ModuleType("tenon.machine.targets.novel")
    vars(module)["TARGETS"] = (row,)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    files = [*registry._modules(), "novel"]
    monkeypatch.setattr(registry, "_modules", lambda: iter(files))
    for cached in (host, host_cpu.runs_here):
        cached.cache_clear()
    yield row
    for cached in (host, host_cpu.runs_here):
        cached.cache_clear()


def test_new_target_needs_one_file(new: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    assert targets()["novel"] is find("novel") is new
    assert not host_cpu.runs_here("novel")
    assert "this machine lacks its instructions" in missing(new)
    host_cpu.runs_here.cache_clear()
    monkeypatch.setattr(host_cpu, "flags", lambda: frozenset({"vectors", "more"}))
    monkeypatch.setattr("platform.machine", lambda: "novel-processor")
    assert host_cpu.runs_here("novel")
    assert host().name == "novel"
    assert runner_of(new) == Local()
    assert missing(new) == ""


@pytest.mark.usefixtures("new")
def test_names_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [*registry._modules(), "novel"]
    monkeypatch.setattr(registry, "_modules", lambda: iter(files))
    with pytest.raises(InternalError, match="two targets are called novel"):
        targets()


FEATURES = {
    "x86-64": "sse2",
    "x86-64-avx2": "sse2 avx2 fma bmi1 bmi2 f16c",
    "x86-64-avx512": "avx2 fma bmi1 bmi2 f16c avx512f avx512vl avx512bw avx512dq avx512cd",
    "x86-64-avx512-vnni": "avx2 fma bmi1 bmi2 f16c avx512f avx512vl avx512bw avx512dq avx512cd avx512_vnni",
    "x86-64-avx512-vbmi": "avx2 fma bmi1 bmi2 f16c avx512f avx512vl avx512bw avx512dq avx512cd avx512_vnni avx512vbmi",
}


@pytest.mark.parametrize("name", FEATURES)
def test_host_is_the_target_with_the_most_features(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for extra in ("", " avx512_bf16"):
        monkeypatch.setattr(host_cpu, "flags", lambda extra=extra: frozenset((FEATURES[name] + extra).split()))
        host.cache_clear()
        host_cpu.runs_here.cache_clear()
        assert host().name == name
        better = name == "x86-64-avx512-vbmi" and extra
        assert host(bf16=True).name == ("x86-64-avx512-bf16" if better else name)
        assert [n for n in FEATURES if host_cpu.runs_here(n)] == list(FEATURES)[: list(FEATURES).index(name) + 1]
    host.cache_clear()
    host_cpu.runs_here.cache_clear()


def test_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    host.cache_clear()
    assert (host().name, host().triple, host().runner) == ("aarch64", "aarch64-linux-gnu", None)
    assert runner_of(find("aarch64")) == Local()
    monkeypatch.setattr("platform.machine", lambda: "vax")
    host.cache_clear()
    with pytest.raises(InputError, match="no target for a vax host; name one with --target"):
        host()
    host.cache_clear()


def test_unknown_names() -> None:
    assert not host_cpu.runs_here("novel")
    assert not host_cpu.runs_here("")
    with pytest.raises(InputError, match=r"^no target 'novel': 'tenon targets' lists all$"):
        find("novel")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("rasberry pi 4", "raspberry-pi-4"),
        ("x86_64", "x86-64"),
        ("Cortex_M4F", "cortex-m4"),
        ("hots", "host"),
        ("Cortex-M0+", "cortex-m0plus"),
        ("Pico", "rp2040"),
        ("BCM2712", "raspberry-pi-5"),
    ],
)
def test_a_wrong_name_gets_the_nearest(name: str, nearest: str) -> None:
    said = f"no target '{re.escape(name)}'; the nearest is {nearest}( or .*)?: 'tenon targets'"
    with pytest.raises(InputError, match=said):
        find(name)


def test_products_have_the_target_of_their_processor() -> None:
    assert find("raspberry-pi-5") == find("cortex-a76")
    for name, product in products().items():
        assert name not in targets(), "a product must not hide a target"
        assert find(name).name == product.target


def test_targets_command_says_what_runs_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/bin/qemu" if name == "qemu-mips" else None)
    list_targets(as_json=True)
    listed = json.loads(capsys.readouterr().out)
    assert listed["mips"]["runs"] == "emulator"
    assert listed["mips"]["byte_order"] == "big"
    assert (listed["mipsel"]["runs"], listed["ios"]["runs"]) == ("no", "no")
    assert "apt-get install qemu-user" in listed["mipsel"]["missing"]
    assert [row["runs"] for row in listed.values() if row.get("host")] == ["natively"]
    assert listed["esp32-c3"] == {
        "group": "microcontroller",
        "about": products()["esp32-c3"].about,
        "target": "riscv32imc",
    }
    list_targets(as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert {"Desktop and server", "Mobile", "Microcontroller", "Browser"} <= set(lines)
    assert " emulator " in next(line for line in lines if line.startswith("mips "))
    assert " no " in next(line for line in lines if line.startswith("mipsel "))


def test_targets_command_asks_for_the_device_of_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    why = {"cuda": "there is no CUDA driver"}
    monkeypatch.setattr("tenon.cli.list_targets.why_no_device", lambda target: why.get(target.backend, ""))
    list_targets(as_json=True)
    listed = json.loads(capsys.readouterr().out)
    assert (listed["cuda"]["runs"], listed["cuda"]["missing"]) == ("no", "there is no CUDA driver")
    assert listed["opencl"]["missing"] == ""
    list_targets(as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert " no device " in next(line for line in lines if line.startswith("cuda "))
    assert " no device " not in next(line for line in lines if line.startswith("opencl "))


def test_opening_a_bundle_reads_one_file_of_targets() -> None:
    """Opening a bundle must be fast."""
    asked = "x86-64-avx2"
    code = (
        "import sys, tenon.runtime.engine.engine as e; before = set(sys.modules); e.runs_here(" + repr(asked) + ");"
        "print(*sorted(m for m in set(sys.modules) - before if m.startswith('tenon.')))"
    )
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    rows = [name for name in imported if name.startswith("tenon.machine.targets.")]
    assert rows == ["tenon.machine.targets.x86"]
    assert not [name for name in imported if name not in rows and not name.startswith("tenon.machine.isa.")]


def test_linker_script_contains_the_memories_of_the_board() -> None:
    script = find("cortex-m7").linker_script
    assert "CODE (rx) : ORIGIN = 0x00000000, LENGTH = 0x400000" in script
    assert "STACK (rw) : ORIGIN = 0x20000000, LENGTH = 0x400000" in script
    assert "RAM (rw) : ORIGIN = 0x60000000, LENGTH = 0x1000000" in script


def test_row_with_another_name_is_otherwise_equal() -> None:
    assert replace(find("aarch64"), name="mine").machine == find("aarch64").machine


def test_wine_needs_the_processor_and_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows programs are executed by this processor, not emulated: their times are real."""
    runner = find("windows-x86_64").runner
    assert isinstance(runner, Wine)
    assert not runner.emulates
    elsewhere = replace(runner, processor=Host("vax"))
    assert "lacks their instructions" in elsewhere.missing()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "apt-get install wine64" in replace(runner, processor=None).missing()


def test_the_arguments_of_an_emulator_follow_its_version(tmp_path: Path) -> None:
    """QEMU's names for features of RISC-V changed; a version that cannot be told counts as an old one."""
    for version, words in (("7.2.22", ("-old",)), ("8.2.0", ("-new", "-more")), ("11.1.3", ("-new", "-more"))):
        program = tmp_path / version
        program.write_text(f"#!/bin/sh\necho emulator version {version}\n")
        program.chmod(0o700)
        runner = qemu_user(str(program), "-old", newer=("-new", "-more"), since=(8, 2))
        assert runner.words == (str(program), *words)
    assert qemu_user("/no/such/emulator", "-old", newer=("-new",), since=(8, 2)).words[1:] == ("-old",)
    assert qemu_user("emulator", "-only").words == ("emulator", "-only")
