"""Bundles for several targets in one file: which target's code is taken on which processor, in C and Python."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

import pytest

import tenon
from libtenon import CLIENTS, needed, run, succeeded
from on_targets import skip_without_device
from onnx_models import model, node
from real import ROOT
from tenon.machine.targets import find, host_cpu, targets
from tenon.machine.toolchain.compiler import zig
from tenon.runtime.bundle.container import Container, container
from tenon.runtime.sdk import save_sdk
from tenon.runtime.sdk.libtenon import RUNTIME, hosted
from tenon.runtime.sdk.linking import link_program

NETWORK = model([node("Relu", ["x"], ["y"])], {"x": [1, 8]}, ["y"], {}).SerializeToString()
PROCESSOR = (RUNTIME / "libtenon" / "processor.c").read_text()


def fat(base: str, names: tuple[str, ...]) -> bytes:
    """A file whose targets all have the code of the first, which every machine of the family runs."""
    bundle = tenon.compile(NETWORK, name="net", target=base, no_tuning=True)
    files = bundle.loaded_files()
    manifest = bundle.manifest({n: c for n, c in files.items() if n != "manifest.json"}, compiled=True)
    made = {
        name: {**files, "manifest.json": manifest._replace(target=manifest.target._replace(name=name)).text().encode()}
        for name in names
    }
    return container(made)


def emulated(target: str, place: Path) -> Path:
    """The client, for a machine that QEMU emulates, beside libtenon."""
    sdk = save_sdk(place / target, target)
    compiler, row = zig(tenon.Options.from_environment().cache), hosted(find(target))
    texts = {"opened_target.c": (CLIENTS / "opened_target.c").read_bytes()}
    texts["tenon.h"] = (sdk / "include" / "tenon.h").read_bytes()
    library = {"libtenon.so.1": (sdk / "lib" / "libtenon.so.1").read_bytes()}
    program = sdk / "bin" / "opened_target"
    program.parent.mkdir(exist_ok=True)
    program.write_bytes(
        link_program(compiler, row, {"client.o": compiler.compile(texts, "opened_target.c", row)}, library)
    )
    program.chmod(0o755)
    return program


ARM = (
    *("aarch64", "aarch64-dotprod", "aarch64-fp16", "aarch64-bf16"),
    *("aarch64-sve256", "aarch64-sve128", "cortex-a53"),
)


def test_processor_decides_on_aarch64(tmp_path: Path) -> None:
    """By the hardware capabilities; code for registers of SVE or SME of another length is never taken."""
    skip_without_device("aarch64")
    system = Path("/usr/aarch64-linux-gnu")
    if not (system / "lib" / "libc.so.6").exists():
        pytest.skip("there is no C library for AArch64 to run programs with (Debian: libc6-arm64-cross)")
    program, path, plain = emulated("aarch64", tmp_path), tmp_path / "fat.tenon", tmp_path / "plain.tenon"
    path.write_bytes(fat("aarch64", ARM))
    plain.write_bytes(fat("aarch64", ("aarch64-sve256", "aarch64-sve128", "aarch64-sme")))

    def taken(file: Path, processor: str, **environment: str) -> str:
        words = ("qemu-aarch64", "-cpu", processor, "-L", system, program, file)
        return run(*words, env={**os.environ, **environment}).stdout.decode().strip()

    assert taken(path, "cortex-a53") in ("aarch64", "cortex-a53")
    assert taken(path, "cortex-a76") == "aarch64-fp16"
    assert taken(path, "max,sve256=on,sve-default-vector-length=32") in ("aarch64-bf16", "aarch64-sve256")
    assert taken(path, "max,sme=off,sve=off") == "aarch64-bf16"
    assert taken(plain, "max,sve128=on,sve-default-vector-length=16") == "aarch64-sve128"
    assert taken(plain, "max,sve256=on,sve-default-vector-length=32") == "aarch64-sve256"
    assert "none for this machine" in taken(plain, "max,sve512=on,sve-default-vector-length=64")
    assert "none for this machine" in taken(plain, "cortex-a53")
    longer = "max,sve512=on,sve-default-vector-length=64,sme512=on,sme-default-vector-length=64"
    assert taken(plain, longer) == "aarch64-sme"
    assert taken(path, "cortex-a76", TENON_OPEN_TARGET="aarch64") == "aarch64"


def c_library_of_riscv() -> Path:
    """The folder of the C library; skips the test where programs for RISC-V cannot be run."""
    skip_without_device("riscv64")
    system = Path("/usr/riscv64-linux-gnu")
    if not (system / "lib" / "libc.so.6").exists():
        pytest.skip("there is no C library for RISC-V to run programs with (Debian: libc6-riscv64-cross)")
    return system


@pytest.mark.slow
def test_processor_decides_on_riscv(tmp_path: Path) -> None:
    """QEMU before 8.1 has no riscv_hwprobe, as Linux before 6.4: without it the code without vectors is taken."""
    system = c_library_of_riscv()
    program, path = emulated("riscv64", tmp_path), tmp_path / "fat.tenon"
    path.write_bytes(fat("riscv64", ("riscv64", "riscv64-v")))

    def taken(processor: str, **environment: str) -> str:
        words = ("qemu-riscv64", "-cpu", processor, "-L", system, program, path)
        return run(*words, env={**os.environ, **environment}).stdout.decode().strip()

    assert taken("rv64,v=false") == "riscv64"
    assert taken("rv64,v=true") in ("riscv64", "riscv64-v")
    assert taken("rv64,v=true", TENON_OPEN_TARGET="riscv64") == "riscv64"


@pytest.mark.slow
def test_answers_of_riscv_hwprobe_decide(tmp_path: Path) -> None:
    """A stand-in answers in place of the system, whose call QEMU has since 8.1 only; bit 2 is V, 30 is Zvfh."""
    system = c_library_of_riscv()
    program, path, stand_in = emulated("riscv64", tmp_path), tmp_path / "fat.tenon", tmp_path / "stand_in.so"
    path.write_bytes(fat("riscv64", ("riscv64", "riscv64-v")))
    source, machine = ROOT / "tests" / "c" / "riscv_hwprobe.c", ("-target", "riscv64-linux-gnu")
    succeeded(run(sys.executable, "-m", "ziglang", "cc", *machine, "-shared", "-fPIC", source, "-o", stand_in))

    def taken(*environment: str) -> str:
        given = [word for each in (f"LD_PRELOAD={stand_in}", *environment) for word in ("-E", each)]
        return run("qemu-riscv64", "-cpu", "rv64,v=true", "-L", system, *given, program, path).stdout.decode().strip()

    assert taken() == "riscv64"
    assert taken(f"HWPROBE={1 << 2}") == "riscv64-v"
    assert taken(f"HWPROBE={1 << 30}") == "riscv64"
    assert taken(f"HWPROBE={1 << 2}", "TENON_OPEN_TARGET=riscv64") == "riscv64"


@pytest.mark.parametrize("family", ["x86-64", "aarch64", "riscv64"])
def test_libtenon_knows_all_features_that_targets_ask_for(family: str) -> None:
    known = {*re.findall(r'\{"(\w+)", ', PROCESSOR), "sve256", "sve512", "sve128", "sve1024", "sve2048", "sme512"}
    asked = {
        feature for row in targets().values() if row.host and row.host.family == family for feature in row.host.features
    }
    assert asked <= known


def test_libtenon_and_python_see_the_same_processor(tmp_path: Path) -> None:
    """cpuid on x86-64, the auxiliary vector on AArch64; /proc/cpuinfo in Python."""
    if platform.system() != "Linux":
        pytest.skip("Python knows the features of the processor on Linux only")
    main = "int main(void) { char text[4096]; tn_processor_features(text, sizeof text); puts(text); }\n"
    (tmp_path / "main.c").write_text(f"{PROCESSOR}\n{main}")
    includes = [f"-I{RUNTIME / folder}" for folder in ("libtenon", "include")]
    flags = ("-std=gnu99", "-Wall", "-Wextra", "-Werror", *includes)
    succeeded(run(needed("gcc"), *flags, tmp_path / "main.c", "-o", tmp_path / "main"))
    seen = set(succeeded(run(tmp_path / "main")).decode().split())
    named = set(re.findall(r'\{"(\w+)", ', PROCESSOR))
    assert seen & named == host_cpu.flags() & named if platform.machine() == "x86_64" else seen <= host_cpu.flags()


def test_files_of_several_targets_are_chosen_from_in_python(tmp_path: Path) -> None:
    path = tmp_path / "fat.tenon"
    own = find("host").name
    path.write_bytes(fat(own, (own, "aarch64-sve128", "riscv64")))
    assert Container(str(path)).targets == (own, "aarch64-sve128", "riscv64")
    with tenon.open(path) as engine:
        assert engine.manifest.target.name == own
