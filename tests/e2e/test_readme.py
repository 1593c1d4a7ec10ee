"""Runs the commands and programs in README.md and compares their output and sizes with those shown there.

``--update-golden`` replaces the shown output by the current one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from browser import browser
from documented import CONSOLE, alike, blocks, check_page, shell
from installed import environment, tenon_script
from programs import needed
from real import ROOT
from tenon.machine.targets import find

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writable copy of the files of a checkout."""
    if find("host").name not in ("x86-64-avx2", "x86-64-avx512", "x86-64-avx512-vnni", "x86-64-avx512-vbmi"):
        pytest.skip("the output in the README is that of an x86-64 with AVX2")
    needed("qemu-system-arm")
    made = tmp_path_factory.mktemp("readme")
    (made / "examples").symlink_to(ROOT / "examples")
    (made / "main.c").write_text(program("c"))
    return made


def program(language: str) -> str:
    (code,) = blocks(README, language)
    return code


def run(command: str, folder: Path) -> str:
    """The output of a shell command, in the environment that the page activates."""
    path = f"{tenon_script().parent}{os.pathsep}{os.environ['PATH']}"
    return shell(command, folder, environment(PATH=path, TENON_TARGET="x86-64-avx2", TENON_NO_TUNING="1"))


def test_comparison_sees_differences() -> None:
    assert alike("weights 33.8 KiB in 0.3 s", "weights 34.0 KiB in 1.7 s")
    assert not alike("weights 33.8 KiB", "weights 43.8 KiB")
    assert not alike("weights 33.8 KiB", "code 33.8 KiB")
    assert not alike("weights 33.8 KiB", "weights 33.8 KiB more")
    assert not alike("26,267 instructions", "36,267 instructions")
    assert alike("net/004ca7661de8/a.bin 0992f459f6e3", "net/5f0c6dd9a1be/a.bin 004ca7661de8")
    assert not alike("net 004ca7661de8", "net 04ca7661de8")
    assert not alike("123456789012 bytes", "523456789012 bytes")
    assert alike("image inf dB", "image inf dB")
    assert not alike("image inf dB", "image 45.1 dB")


def test_output_of_commands_is_as_shown(folder: Path, update_golden: bool) -> None:
    assert len(blocks(README, "console")) >= 3
    check_page(README, lambda command: run(command, folder), update=update_golden, test="tests/e2e/test_readme.py")


def test_first_commands_need_only_existing_files() -> None:
    """Paths are files of the project; installing and activating come before the first command."""
    text = README.read_text()
    assert 0 < text.index("bin/activate") < text.index("pip install") < text.index("$ tenon")
    for command in re.findall(r"^\$ (tenon .*)$", text, re.MULTILINE):
        for word in command.split():
            if "/" in word and word not in ("out/", "out/digits"):
                assert (ROOT / word).exists(), command


def test_python_program(folder: Path) -> None:
    code = program("python") + "\nassert answer.shape == (1, 10)\nassert abs(answer.sum() - 1) < 1e-5\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_files_named_in_the_readme_exist() -> None:
    text = re.sub(CONSOLE, "", README.read_text())
    for path in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in path or (ROOT / path).exists(), path
    for path in re.findall(r"`((?:scripts|examples|docs|bench)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
    assert np.all([(ROOT / "scripts" / name).exists() for name in ("demo", "test", "install")])


def test_readme_is_short() -> None:
    """It is a screen and a half."""
    assert len(README.read_text().splitlines()) <= 112


def test_picture_is_made_by_the_script(tmp_path: Path) -> None:
    """The picture has the size that the script gives it, and is small."""
    browser()
    command = [sys.executable, str(ROOT / "docs" / "pictures.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown = ROOT / "docs" / "_static" / "report.png"
    with Image.open(tmp_path / "report.png") as now, Image.open(shown) as then:
        assert now.size == then.size
        difference = np.abs(np.asarray(now.convert("L"), float) - np.asarray(then.convert("L"), float))
    assert (difference > 64).mean() < 0.05, "the picture is stale: run python docs/pictures.py"
    assert shown.stat().st_size < 150_000
