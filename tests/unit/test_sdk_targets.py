"""libtenon for the other processors of Linux: built, linked, and run under their emulators."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tenon
from libtenon import CLIENTS, run, succeeded
from on_targets import selected, skip_without_device
from real import DIGITS, held_out_digits
from tenon.machine.targets import find, targets
from tenon.machine.toolchain.compiler import Compiler, zig
from tenon.machine.toolchain.stub_library import stub_library
from tenon.runtime.sdk import save_sdk
from tenon.runtime.sdk.libtenon import hosted
from tenon.runtime.sdk.linking import link_program

IMAGE = held_out_digits()[0][0]
TRIPLES = {row.triple: row.name for row in reversed(targets().values()) if row.object == "elf" and row.runner}
MACHINES = sorted(name for name in TRIPLES.values() if not find(name).freestanding and find(name).c_library)
"""A target of each processor whose programs for Linux can be run."""

GLIBC = {
    "aarch64": "aarch64-linux-gnu",
    "armv7": "arm-linux-gnueabihf",
    "mips": "mips-linux-gnu",
    "mipsel": "mipsel-linux-gnu",
    "powerpc64le": "powerpc64le-linux-gnu",
    "riscv64": "riscv64-linux-gnu",
    "s390x": "s390x-linux-gnu",
}
"""Machines of which Debian has a C library (libc6-...-cross), and its folder."""


def compiler() -> Compiler:
    return zig(tenon.Options.from_environment().cache)


def emulator(target: str) -> str:
    skip_without_device(target)
    name = "ppc" + target.removeprefix("powerpc") if target.startswith("powerpc") else target
    return f"qemu-{'arm' if name.startswith('armv') else name}"


def ordered(target: str, values: np.ndarray) -> np.ndarray:
    """In the byte order of the machine."""
    return values.astype(values.dtype.newbyteorder(">" if find(target).byte_order == "big" else "<"))


def expected() -> np.ndarray:
    with tenon.open(tenon.compile(DIGITS / "digits.onnx", no_tuning=True)) as engine:
        (answer,) = engine.run(IMAGE).values()
    return answer.ravel()


def assert_answer(target: str, done: bytes) -> None:
    answer = np.frombuffer(done, ordered(target, np.zeros(1, np.float32)).dtype)
    np.testing.assert_allclose(answer, expected(), rtol=1e-5, atol=1e-7)  # other instructions


@pytest.mark.slow
@pytest.mark.parametrize("target", MACHINES)
def test_libraries_link(target: str, tmp_path: Path) -> None:
    """All the libraries and commands of an SDK, for each processor of which programs for Linux can be run."""
    sdk = save_sdk(tmp_path / "sdk", target)
    for name in ("lib/libtenon.so.1", "lib/libtengine-lite.so", "lib/libmace.so", "bin/mace_run", "bin/tm_benchmark"):
        assert (sdk / name).read_bytes()[:4] == b"\x7fELF", name


@pytest.mark.parametrize("target", selected(list(GLIBC)))
def test_a_shared_library_opens_a_bundle(target: str, tmp_path: Path) -> None:
    """The machine is one for which Debian has a C library (libc6-...-cross)."""
    command = emulator(target)
    system = Path("/usr", GLIBC[target])
    if not list(system.glob("lib*/libc.so.6")):
        pytest.skip(f"there is no C library for {target} to run programs with (Debian: libc6-...-cross)")
    sdk, row = save_sdk(tmp_path / "sdk", target), hosted(find(target))
    files = {name: (CLIENTS / name).read_bytes() for name in ("run_bundle.c", "require.h")}
    files["tenon.h"] = (sdk / "include" / "tenon.h").read_bytes()
    client = compiler().compile(files, "run_bundle.c", row)
    libraries = {"libtenon.so.1": (sdk / "lib" / "libtenon.so.1").read_bytes()}
    libraries["more.so"] = stub_library(client, "libm.so.6", ("exit", "stdin"))  # in any library
    program = sdk / "bin" / "run_bundle"
    with_glibc = replace(row, triple=row.triple.replace("-musl", "-gnu"))  # its loader
    program.write_bytes(link_program(compiler(), with_glibc, {"client.o": client}, libraries))
    program.chmod(0o755)
    tenon.compile(DIGITS / "digits.onnx", no_tuning=True, target=target).save(tmp_path / "digits.tenon")
    stdin = ordered(target, IMAGE).tobytes()
    assert_answer(target, succeeded(run(command, "-L", system, program, tmp_path / "digits.tenon", stdin=stdin)))
