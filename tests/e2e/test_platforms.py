"""Runs the commands in the pages of docs/tutorials for devices, on emulators, and compares their output.

``--update-golden`` replaces the shown output by the current one. Where a command reaches a device, or is the tool of a
development kit that is not installed, ``tests/stand_ins`` has a program of its name that uses an emulator.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from documented import blocks, check_page, shell
from installed import environment, tenon_script
from on_targets import skip_without_device
from programs import PATH, needed
from real import ROOT
from tenon.machine.targets import find

PAGES = ROOT / "docs" / "tutorials"
STAND_INS = ROOT / "tests" / "stand_ins"
ANSWER = re.compile(r"digit 7, probability 99 %|^ *7 +0\.994", re.MULTILINE)
"""The answer of every program for the example's image, and of executables for the example's file."""

NEEDED = {
    "raspberry-pi": ("qemu-aarch64",),
    "linux": ("qemu-riscv64",),
    "android": ("qemu-aarch64", "unzip"),
    "stm32": ("qemu-system-arm", "arm-none-eabi-gcc", "make"),
    "arduino": ("qemu-system-arm", "arm-none-eabi-g++", "unzip"),
    "zephyr": ("qemu-system-arm", "arm-none-eabi-gcc", "cmake", "make", "unzip"),
    "nrf52840": ("qemu-system-arm", "arm-none-eabi-gcc", "cmake", "make", "unzip"),
    "rp2040": ("qemu-system-arm", "arm-none-eabi-g++", "cmake", "make"),
    "esp32-c3": ("qemu-system-riscv32", "cmake", "make", "unzip"),
    "apple": ("file", "unzip"),
    "windows": ("wine64",),
}
"""The programs that each page's commands run, or that stand for such."""

QUICK = ("stm32", "arduino", "zephyr", "nrf52840", "rp2040")
"""The others link with C libraries, which zig builds once for each system, in minutes."""

EMULATOR = {"raspberry-pi": "qemu-aarch64", "android": "qemu-aarch64", "linux": "qemu-riscv64"}
"""The emulators of the programs that are copied to the page's device."""


def run_page(name: str, folder: Path, *, update: bool) -> list[str]:
    """The outputs of a page's commands for a device."""
    for program in NEEDED[name]:
        needed(program)
    if name == "linux":
        skip_without_device("linux-x86_64")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("components", "build"))
    (folder / "device").mkdir()
    env = environment(
        PATH=os.pathsep.join((str(STAND_INS), str(tenon_script().parent), PATH)),
        TENON_NO_TUNING="1",
        DEVICE=str(folder / "device"),
        EMULATOR=EMULATOR.get(name, "false"),
        PICO_SDK_PATH=str(STAND_INS / "pico_sdk"),
        WINEPREFIX=str(folder / "wine"),
        WINEDEBUG="-all",
    )
    page = PAGES / f"{name}.md"
    return check_page(page, lambda line: shell(line, folder, env), update=update, test="tests/e2e/test_platforms.py")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NEEDED])
def test_commands_of_a_page(name: str, tmp_path: Path, update_golden: bool) -> None:
    told = run_page(name, tmp_path, update=update_golden)
    if EMULATOR.get(name) or name in QUICK:
        assert ANSWER.search("\n".join(told)), told
    elif name == "windows":
        assert len(ANSWER.findall("\n".join(blocks(PAGES / f"{name}.md", "console")))) == 2


@pytest.mark.slow
def test_swift_code_names_what_the_package_declares(tmp_path: Path) -> None:
    """Clang imports the C module and finds every name of the network in the page's Swift code."""
    clang = needed("clang")
    (code,) = blocks(PAGES / "apple.md", "swift")
    names = sorted(set(re.findall(r"\b(?:DIGITS|digits)_\w+", code)))
    assert "digits_run" in names
    command = "tenon compile examples/digits/digits.onnx --target ios --emit swift -o out && unzip -q out/*.zip"
    assert command.partition(" -o")[0] in "".join(blocks(PAGES / "apple.md", "console"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    env = environment(PATH=os.pathsep.join((str(tenon_script().parent), PATH)))
    shell(command, tmp_path, env)
    uses = "".join(f"  (void)({name});\n" for name in names)
    (tmp_path / "use.c").write_text(f"#pragma clang module import digits\nvoid use(void) {{\n{uses}}}\n")
    include = "digits/Sources/digits/include"
    modules = f"-ffreestanding -fmodules -fmodules-cache-path=modules -Werror=implicit-function-declaration -I{include}"
    shell(f"{clang} --target=arm64-apple-ios12.0 {modules} -fsyntax-only use.c", tmp_path, env)
    sources = "digits/Sources/digits/*.c"
    shell(f"{clang} --target=arm64-apple-ios12.0 -O0 -I{include} -fsyntax-only -ffreestanding {sources}", tmp_path, env)


def test_pages_are_linked_and_name_what_exists() -> None:
    for page in [PAGES / f"{name}.md" for name in NEEDED]:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / path).exists(), f"{page.name}: {path}"
        for target in re.findall(r"--target ([\w-]+)", text):
            assert find(target)
        for source in re.findall(r"\b(examples/[\w/.-]+\.\w+)", text):
            assert (ROOT / source).exists() or "/build/" in source, f"{page.name}: {source}"


def test_pixels_are_those_of_the_image_file() -> None:
    """The image in C and Java is the example's file."""
    pixels = list((ROOT / "examples/digits/seven.pgm").read_bytes()[-64:])
    for path in ("examples/digits/seven.h", "examples/android/app/src/main/java/org/tenon/example/Digits.java"):
        text = (ROOT / path).read_text(encoding="utf-8")
        (numbers,) = re.findall(r"(?:seven\[64\]|SEVEN) = \{([\d\s,]+)\}", text)
        assert [int(n) for n in numbers.replace(",", " ").split()] == pixels, path


def test_commands_that_fail_are_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo 1 thing\n2 things\n```\n\n```sh\nfalse\n```\n")
    with pytest.raises(AssertionError, match="false"):
        check_page(page, lambda line: shell(line, tmp_path, os.environ), update=False, test="it")
    page.write_text(page.read_text().replace("false", "true"))
    with pytest.raises(AssertionError, match=r"page\.md is stale: run it with --update-golden"):
        check_page(page, lambda line: shell(line, tmp_path, os.environ), update=False, test="it")
    check_page(page, lambda line: shell(line, tmp_path, os.environ), update=True, test="it")
    assert "1 thing\n```" in page.read_text()
