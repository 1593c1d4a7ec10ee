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

from installed import environment, tenon_script
from real import ROOT
from tenon.targets import find

README = ROOT / "README.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIME = re.compile(r"\b\d+(\.\d+)? (s|ms|µs|us)\b")
TOLERANCE = 0.1
"""Code grows and shrinks a little with every change to the generator; a page that is off by more has grown stale."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A writable copy of the files of a checkout."""
    if find("host").name not in ("x86-64-avx2", "x86-64-avx512", "x86-64-avx512-vnni"):
        pytest.skip("the output in the README is that of an x86-64 with AVX2")
    made = tmp_path_factory.mktemp("readme")
    (made / "examples").symlink_to(ROOT / "examples")
    (made / "main.c").write_text(program("c"))
    return made


def program(language: str) -> str:
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


def run(command: str, folder: Path) -> str:
    """The output of a shell command, in the environment that the page activates."""
    path = f"{tenon_script().parent}{os.pathsep}{os.environ['PATH']}"
    env = environment(PATH=path, TENON_TARGET="x86-64-avx2", TENON_NO_TUNING="1")
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def alike(shown: str, now: str) -> bool:
    """Whether two outputs are equal, ignoring times and, within the tolerance, differences of numbers."""
    ours, theirs = (TIME.sub("(time)", text).split() for text in (shown, now))
    return len(ours) == len(theirs) and all(map(_same, ours, theirs))


def _same(a: str, b: str) -> bool:
    try:
        return abs(float(a) - float(b)) <= TOLERANCE * abs(float(b)) + 1e-6
    except ValueError:
        return a == b


def test_comparison_sees_differences() -> None:
    assert alike("weights 33.8 KiB in 0.3 s", "weights 34.0 KiB in 1.7 s")
    assert not alike("weights 33.8 KiB", "weights 43.8 KiB")
    assert not alike("weights 33.8 KiB", "code 33.8 KiB")
    assert not alike("weights 33.8 KiB", "weights 33.8 KiB more")


def test_output_of_commands_is_as_shown(folder: Path, update_golden: bool) -> None:
    wrong: list[str] = []

    def checked(block: re.Match[str]) -> str:
        told = []
        for part in re.split(r"^(?=\$ )", block[1], flags=re.MULTILINE):
            if not part:
                continue
            command, _, shown = part.partition("\n")
            now = run(command.removeprefix("$ "), folder)
            if not alike(shown, now):
                wrong.append(f"{command}\n{now}")
            told.append(f"{command}\n" + "".join(f"{line.rstrip()}\n" for line in now.splitlines()))
        return "```console\n" + "".join(told) + "```"

    text = README.read_text()
    assert len(BLOCK.findall(text)) >= 4
    updated = BLOCK.sub(checked, text)
    if update_golden:
        README.write_text(updated)
    else:
        assert not wrong, "\n".join(["README.md is stale: run this test with --update-golden", *wrong])


def test_first_commands_need_only_existing_files() -> None:
    """Paths are files of the project; installing and activating come before the first command."""
    text = README.read_text()
    assert 0 < text.index("bin/activate") < text.index("pip install") < text.index("$ tenon")
    for command in re.findall(r"^\$ (tenon .*)$", text, re.MULTILINE):
        for word in command.split():
            if "/" in word and word != "out/":
                assert (ROOT / word).exists(), command


def test_python_program(folder: Path) -> None:
    code = program("python") + "\nassert answer.shape == (1, 10)\nassert abs(answer.sum() - 1) < 1e-5\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_files_named_in_the_readme_exist() -> None:
    text = re.sub(BLOCK, "", README.read_text())
    for path in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in path or (ROOT / path).exists(), path
    for path in re.findall(r"`((?:scripts|examples|docs|bench)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
    assert np.all([(ROOT / "scripts" / name).exists() for name in ("demo", "test", "install")])
