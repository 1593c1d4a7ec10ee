"""Code and weights in sections that a linker script places: tightly coupled memory, external flash."""

from __future__ import annotations

import re
import subprocess
import tarfile
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import tenon
from installed import succeeds
from on_targets import skip_without_device
from programs import needed
from real import DIGITS, held_out_digits
from tenon.errors import InputError
from tenon.machine.codegen.c import split_units
from tenon.options import Emit, Options
from tenon.runtime.engine.device import RemoteBundle

MODEL = DIGITS / "digits.onnx"
SCRIPT = """\
MEMORY {
  ITCM (rx)     : ORIGIN = 0x00000000, LENGTH = 64K
  FLASH (rx)    : ORIGIN = 0x08000000, LENGTH = 128K
  EXTERNAL (r)  : ORIGIN = 0x90000000, LENGTH = 8M
  DTCM (rw)     : ORIGIN = 0x20000000, LENGTH = 128K
}
ENTRY(start)
SECTIONS {
  .text : { *(.text .text.*) *(.rodata .rodata.*) } > FLASH
  .ARM.exidx : { *(.ARM.exidx .ARM.exidx.*) } > FLASH
  .fast_code : { *(.fast_code) } > ITCM AT > FLASH
  .external : { *(.external) } > EXTERNAL
  .data : { *(.data .data.*) } > DTCM AT > FLASH
  .bss (NOLOAD) : { *(.bss .bss.* COMMON) } > DTCM
}
"""
MAIN = """\
#include "digits_weights.h"
TENON_MEM_ALIGN(64) static uint8_t tensors[DIGITS_MUTABLE_MEM_SIZE], scratch[DIGITS_ACTIVATIONS_MEM_SIZE];
void start(void);
void start(void) { for (;;) digits_run(tensors, scratch); }
void *memset(void *to, int value, __SIZE_TYPE__ count);
__attribute__((optimize("no-tree-loop-distribute-patterns"))) void *memset(void *to, int value, __SIZE_TYPE__ count) {
  for (unsigned char *p = to; count--;) *p++ = (unsigned char)value;
  return to;
}
"""
REGIONS = {"ITCM": range(0x10000), "FLASH": range(0x08000000, 0x08020000), "EXTERNAL": range(0x90000000, 0x90800000)}


def options(target: str, *, placed: bool = True, c99: Literal["gnu", "strict"] = "gnu") -> Options:
    code, weights = (".fast_code", ".external") if placed else (None, None)
    return Options(target=target, code_section=code, weights_section=weights, c99=c99, no_tuning=True)


def linked(folder: Path, form: Emit, *, placed: bool = True) -> dict[str, int]:
    """The addresses of the symbols of firmware that is linked with a package, from the linker's map and from nm."""
    gcc, nm = needed("arm-none-eabi-gcc"), needed("nm")
    bundle = tenon.compile(MODEL, options("stm32h7", placed=placed))
    bundle.save(folder / "out", ("header", form, "platformio"))
    with tarfile.open(next((folder / "out").glob("*platformio.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    (folder / "main.c").write_text(MAIN)
    (folder / "memory.ld").write_text(SCRIPT)
    flags = "-mcpu=cortex-m7 -mthumb -mfloat-abi=hard -mfpu=fpv5-d16 -O2 -Iinclude -nostdlib"
    code = {
        "archive": ["out/libdigits.a"],
        "object": ["out/digits.o", "src/digits_weights.c"],
        "platformio": ["src/digits.c", "src/digits_weights.c"],
        "single-c": ["out/digits_single.c"],
    }[form]
    words = [gcc, *flags.split(), "main.c", *code, "-T", "memory.ld", "-lgcc", "-Wl,-Map=firmware.map"]
    done = subprocess.run([*words, "-o", "firmware.elf"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    listed = subprocess.run([nm, "firmware.elf"], cwd=folder, capture_output=True, text=True, check=True).stdout
    return {name: int(address, 16) for address, name in re.findall(r"^(\w+) \w (\w+)$", listed, re.MULTILINE)}


@pytest.mark.parametrize("form", ["archive", "object", "platformio", "single-c"])
def test_a_linker_script_places_code_and_weights(form: Emit, tmp_path: Path) -> None:
    symbols = linked(tmp_path, form)
    kernels = [name for name in symbols if re.match(r"(conv|matmul|softmax|halo|reorder)", name)]
    assert len(kernels) >= 6
    for name in ("digits", *kernels):
        assert symbols[name] in REGIONS["ITCM"], name
    assert symbols["digits_weights"] in REGIONS["EXTERNAL"]
    assert symbols["digits_weights"] % 64 == 0
    assert symbols["start"] in REGIONS["FLASH"]
    text = (tmp_path / "firmware.map").read_text()
    sizes = {name: int(size, 16) for name, size in re.findall(r"^(\.\w+) +0x\w+ +(0x\w+)", text, re.MULTILINE)}
    assert sizes[".external"] >= tenon.compile(MODEL, target="stm32h7", no_tuning=True).program.memory.constant
    assert 2000 < sizes[".fast_code"] < 20000


def test_without_options_they_are_where_the_compiler_puts_them(tmp_path: Path) -> None:
    symbols = linked(tmp_path, "archive", placed=False)
    assert symbols["digits"] in REGIONS["FLASH"]
    assert symbols["digits_weights"] in REGIONS["FLASH"]


def test_results_and_bounds_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not change where the code is compiled in pieces, either."""
    skip_without_device("cortex-m4")
    (image, *_), _ = held_out_digits()
    usual, placed = (tenon.compile(MODEL, options("cortex-m4", placed=placed)) for placed in (False, True))
    assert placed.bounds == usual.bounds
    (expected,) = RemoteBundle(usual).run([image])
    monkeypatch.setattr(split_units, "_SIZE", 4000)
    assert len(placed.unit.split()) > 2
    (answer,) = RemoteBundle(placed).run([image])
    np.testing.assert_array_equal(answer["probabilities"], expected["probabilities"])


@pytest.mark.parametrize("dialect", ["gnu", "strict"])
def test_every_function_of_the_source_has_the_section(dialect: Literal["gnu", "strict"], tmp_path: Path) -> None:
    folder = tenon.compile(MODEL, options("cortex-m7", c99=dialect)).save(tmp_path / "out")
    printed = subprocess.run(
        [needed("readelf"), "-SW", "digits.o"], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    code = {name: int(size, 16) for name, size in re.findall(r"\] (\.\S+) +PROGBITS +\w+ \w+ (\w+).* AX ", printed)}
    assert code[".fast_code"] > 2000
    assert sum(code.values()) == code[".fast_code"]


def test_targets_whose_objects_are_not_elf() -> None:
    with pytest.raises(InputError, match="objects for target macos-arm64 are not ELF: leave out code_section"):
        tenon.compile(MODEL, target="macos-arm64", code_section=".fast")
    with pytest.raises(InputError, match="weights_section='a b'"):
        tenon.compile(MODEL, target="cortex-m4", weights_section="a b")


def test_options_of_the_command(tmp_path: Path) -> None:
    words = ("--code-section", ".itcm", "--weights-section", ".qspi", "--emit", "single-c", "--no-tuning")
    succeeds("compile", MODEL, "--target", "cortex-m7", *words, "-o", tmp_path / "out")
    text = (tmp_path / "out/digits_single.c").read_text()
    assert 'section(".itcm")' in text
    assert "const uint8_t digits_weights" in text.partition('__attribute__((section(".qspi")))')[2]
    assert "code_section=.itcm, weights_section=.qspi" in text
