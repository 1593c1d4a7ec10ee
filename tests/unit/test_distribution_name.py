"""The distribution is tenon-nn: another project has the name tenon on the package index."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "src", "scripts", "deploy", "examples", "bench", ".ci", "tests")
FOREIGN = re.compile(r"""\bpip3? install\b[^&|;#$)\n]*?[\s'"]tenon(?=[\['"\s=<>~]|$)""")
"""Installing a distribution called tenon."""


def test_name_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "tenon-nn"
    assert project["scripts"]["tenon"] == "tenon.cli:main"


@pytest.mark.parametrize(
    "text", ["pip install tenon", "pip install 'tenon[encrypt]'", "uv pip install -U tenon==1", "pip install tenon[x]"]
)
def test_the_other_project_is_recognised(text: str) -> None:
    assert FOREIGN.search(text)


@pytest.mark.parametrize(
    "text",
    ["pip install tenon-nn", "pip install '.[encrypt]'", "pip install cryptography", "install -m 755 tenon.sh x"],
)
def test_other_words_are_not(text: str) -> None:
    assert not FOREIGN.search(text)


def test_nothing_installs_another_project() -> None:
    files = [*ROOT.glob("*.md"), *(p for folder in FOLDERS for p in sorted((ROOT / folder).rglob("*")))]
    own = Path(__file__).resolve()
    texts = {
        p: p.read_text(errors="replace")
        for p in files
        if p.is_file() and p.resolve() != own and p.suffix in (".md", ".py", ".sh", ".yml", ".toml", ".c", ".h", "")
    }
    assert len(texts) > 1000
    lines = [(p, line) for p, text in texts.items() for line in text.splitlines() if "install" in line]
    assert not [f"{p}: {line.strip()}" for p, line in lines if FOREIGN.search(line)]


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "deploy.yml").write_text("models: {}\n")
    program = (
        "import sys; sys.modules['yaml'] = None; sys.argv = ['tenon', 'convert', '--config', 'deploy.yml']; "
        "from tenon.cli import main; main()"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install PyYAML" in done.stderr
