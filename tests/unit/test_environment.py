"""docs/reference/environment.md lists exactly the environment variables that are read."""

from __future__ import annotations

import re

from real import ROOT
from tenon import options

PAGE = (ROOT / "docs" / "reference" / "environment.md").read_text()


def documented(section: str) -> set[str]:
    """The variables in the table under a heading."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(TENON_\w+)`", text, re.MULTILINE))


def test_variables_of_options() -> None:
    assert documented("When compiling") == set(options._VARIABLES.values()) - {"TENON_CACHE"}
    assert documented("Files") == {"TENON_CACHE"}
    assert documented("Plug-ins") == {*options.PLUGINS, *options.DEVICE_PLUGINS}
    assert {name for name in options._VARIABLES if name not in options.Options.__dataclass_fields__} == set()


def test_variables_of_the_module_that_reads_them() -> None:
    documented = set(re.findall(r"TENON_[A-Z_]+", options.__doc__ or ""))
    assert documented == {*options._VARIABLES.values(), *options.OPENING, *options.PLUGINS, *options.DEVICE_PLUGINS}


def test_variables_of_tests_and_scripts() -> None:
    files = [*(ROOT / "scripts").iterdir(), *(ROOT / "tests").rglob("*.py")]
    read: set[str] = set()
    for path in files:
        text = path.read_text()
        read.update(re.findall(r"\$\{?(TENON_[A-Z_]+)", text))
        read.update(re.findall(r"environ(?:\.get\(|\[)\s*\"(TENON_[A-Z_]+)\"", text))
    assert documented("Tests and scripts of the project") == read - {*options._VARIABLES.values(), *options.OPENING}
