"""Programs for Linux on other processors, linked with a part of the C library."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import tenon
from on_targets import EMULATED, skip_without_device
from real import DIGITS
from tenon.machine.targets import find
from tenon.machine.targets.host import runner_of
from tenon.machine.targets.runner import Local
from tenon.machine.toolchain import compiler, musl
from tenon.runtime.bundle import link
from tenon.runtime.bundle.manifest_parts import tensor
from tenon.runtime.bundle.preprocessing import classes_source

TARGETS = [name for name in EMULATED if "-linux-musl" in find(name).triple and find(name).c_library]


@pytest.mark.parametrize("target", TARGETS)
def test_the_sources_are_there(target: str, tmp_path: Path) -> None:
    zig = compiler.zig(tmp_path)
    assert musl.available(zig, find(target))
    listed = sum(len(names.split()) for names in musl.SOURCES.values())
    for_few = 4  # atomics and __aeabi_read_tp are of 32-bit Arm, fenv-hf and fenv-sf of architectures without floats
    assert len(list(musl.files(zig, find(target)))) >= listed - for_few


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_programs_with_a_part_of_the_c_library(target: str, tmp_path: Path) -> None:
    """They decode an image, share work among threads, print, and complain: all that they call is there."""
    skip_without_device(target)
    made = tenon.compile(DIGITS / "digits.onnx", target=target, threads=2, no_tuning=True)
    parts = made.name, made.object, made.header, made.weights
    objects = link.program_objects(made.compiler, made.target, "main.c", *parts, threaded=True)
    outputs = tuple(map(tensor, made.program.outputs))
    tables = {**made._tables(), "classes_table": classes_source(outputs, other=False)}
    objects |= link.table_objects(made.compiler, made.target, tables)
    sources = (*link.IMAGES, "program_images.c", "classes.c", "labels.c", "messages.c")
    objects |= link.runtime_objects(made.compiler, made.target, sources)
    objects |= musl.c_library(made.compiler, made.target)
    program = tmp_path / "digits"
    program.write_bytes(made.compiler.link(objects, made.target, musl.LINK_FLAGS))
    program.chmod(0o700)
    runner = runner_of(made.target)
    assert isinstance(runner, Local)
    run = [*runner.words, str(program), str(DIGITS / "seven.pgm"), "--threads", "2"]
    done = subprocess.run(run, check=False, capture_output=True, text=True)
    if "decode_save_opc" in done.stderr:
        pytest.skip("this QEMU ends with a failed assertion of its own where vectors of f64 become integers (7.2 does)")
    assert done.returncode == 0, done.stderr
    assert re.search(r"probabilities f32\[1,10\]\n +7 +0\.99", done.stdout)
    missing = subprocess.run([*run[:-3], "nothing.npy"], check=False, capture_output=True, text=True)
    assert missing.returncode == 2
    assert "No such file" in missing.stderr
