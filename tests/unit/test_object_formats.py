"""Object formats: their names of files, and that targets and other packages find them by name only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tenon
from tenon.errors import InternalError
from tenon.machine import object_formats
from tenon.machine.object_formats import ObjectFormat, SharedLibrary
from tenon.machine.targets import targets
from tenon.runtime.bundle import libraries
from tenon.runtime.bundle.names import executable_name, library_name
from tenon.runtime.sdk import linking

pytestmark = pytest.mark.quick

ROOM = Path(object_formats.__file__).parent
FORMATS = {
    path.stem: object_formats.find(path.stem) for path in ROOM.glob("*.py") if path.stem not in ("base", "__init__")
}
_COMPARED = re.compile(r"\bobject (==|!=|in|not in) |\.object\]|\.get\([\w.]*\.object\)")


def test_modules_and_rows_name_the_same_formats() -> None:
    assert {row.object for row in targets().values()} == set(FORMATS)
    assert all(row.format is FORMATS[row.object] for row in targets().values())


def test_unknown_format() -> None:
    with pytest.raises(InternalError, match=r"object_formats\.elf64 with FORMAT"):
        object_formats.find("elf64")


def test_no_other_package_compares_names_of_formats() -> None:
    source = Path(tenon.__file__).parent
    compared = [
        f"{path.relative_to(source)}: {line.strip()}"
        for path in source.rglob("*.py")
        if path.parent != ROOM
        for line in path.read_text().splitlines()
        if _COMPARED.search(line)
    ]
    assert not compared


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_with_libraries_says_how_they_are_linked(name: str) -> None:
    format = FORMATS[name]
    for linked, has in (
        (libraries._linked, format.library_name("net") is not None),
        (linking._shared, format.hosted),
    ):
        assert (linked.dispatch(type(format)) is not linked.dispatch(ObjectFormat)) == has


@pytest.mark.parametrize(
    ("target", "library", "program"),
    [
        ("x86-64", "libnet.so", "net"),
        ("macos-arm64", "libnet.dylib", "net"),
        ("windows-x86_64", "net.dll", "net.exe"),
        ("wasm32", "net.wasm", "net"),
        ("cortex-m4", None, "net"),
        ("null", None, "net"),
    ],
)
def test_file_names(target: str, library: str | None, program: str) -> None:
    row = targets()[target]
    assert (library_name("net", row), executable_name("net", row)) == (library, program)


def test_names_of_shared_libraries() -> None:
    names = {name: format.shared_library("tenon", 1) for name, format in FORMATS.items() if format.hosted}
    assert names == {
        "elf": SharedLibrary("libtenon.so.1", "libtenon.so.1", "libtenon.so"),
        "macho": SharedLibrary("libtenon.1.dylib", "libtenon.1.dylib", "libtenon.dylib"),
        "coff": SharedLibrary("tenon.dll", "tenon.dll", "libtenon.dll.a"),
    }
    assert [name for name, each in names.items() if each.import_library] == ["coff"]
