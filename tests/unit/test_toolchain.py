"""Compilers, the object cache, and reading sizes of objects."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import handmade
from on_targets import COMPILED
from tenon.errors import TenonError, TenonWarning, ToolchainError
from tenon.machine.targets import find as find_target
from tenon.machine.toolchain import compiler
from tenon.machine.toolchain.cache import LARGEST, Cache, key
from tenon.machine.toolchain.size import sizes
from tenon.options import Options
from tenon.runtime.bundle.libraries import library
from tenon.runtime.bundle.link import IMAGES, program_objects, runtime_objects

SOURCE = {"k.c": b"float k(float x);\nfloat k(float x) { return x * 3.0f + 1.0f; }\n"}


@pytest.fixture
def zig(tmp_path: Path) -> compiler.Compiler:
    return compiler.zig(tmp_path / "cache")


@pytest.mark.parametrize("target", COMPILED)
def test_zig_compiles_for_every_target(target: str, zig: compiler.Compiler) -> None:
    assert sizes(zig.compile(SOURCE, "k.c", find_target(target))).code > 0


@pytest.mark.parametrize("target", ["mips", "s390x", "windows-x86_64", "windows-arm64", "macos-arm64", "riscv32imc"])
def test_sizes_in_every_object_format(target: str, zig: compiler.Compiler) -> None:
    source = (
        b"extern const char one[]; extern char two[]; const char one[1024] = {1}; char two[3000];\n" + SOURCE["k.c"]
    )
    bare = sizes(zig.compile(SOURCE, "k.c", find_target(target)))
    more = sizes(zig.compile({"k.c": source}, "k.c", find_target(target)))
    assert 0 < more.code == bare.code
    assert more.zeroed - bare.zeroed == 3000
    assert 1024 <= more.data - bare.data < 1024 + 16, "at most padding for the array's alignment besides"


def test_objects_do_not_depend_on_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for place in ("one", "two/deeper"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)
        bundle = handmade.bundle(cache=Path("cache"))
        made.append((bundle.object, bundle.library))
    assert made[0] == made[1]


def test_second_compilation_uses_the_cache(zig: compiler.Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    first = zig.compile(SOURCE, "k.c", find_target("aarch64"))
    monkeypatch.setattr(subprocess, "Popen", _never)
    assert zig.compile(SOURCE, "k.c", find_target("aarch64")) == first
    with pytest.raises(AssertionError, match="ran"):
        zig.compile(SOURCE, "k.c", find_target("armv7"))


def _never(*_: object, **__: object) -> None:
    raise AssertionError("the compiler ran")


def test_damaged_entry_is_a_miss(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    store.put(key(["a"]), b"content")
    assert store.get(key(["a"])) == b"content"
    path = next(path for path in tmp_path.rglob("*") if path.is_file())
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:10], b"", whole[:-1] + b"X"):
        path.write_bytes(damaged)
        assert store.get(key(["a"])) is None


def test_key_parts_are_separated() -> None:
    assert key(["ab", "c"]) != key(["a", "bc"])


def test_huge_results_are_not_cached(tmp_path: Path) -> None:
    Cache(tmp_path / "c").put(key(["a"]), bytes(LARGEST + 1))
    assert not (tmp_path / "c").exists()


def test_concurrent_writers_of_one_entry(tmp_path: Path) -> None:
    store, name, content = Cache(tmp_path), key(["a"]), os.urandom(100_000)

    def work(_: int) -> bytes | None:
        store.put(name, content)
        return store.get(name)

    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(work, range(64)))
    assert read == [content] * 64
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_full_disk_in_the_cache_is_not_fatal(zig: compiler.Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(TenonWarning, match=r"objects cannot be written \(No space left on device\).*TENON_CACHE"):
        assert zig.compile(SOURCE, "k.c", find_target("aarch64"))
    assert not [path for path in zig.folder.rglob("*") if path.is_file() and path.parent.name != "zig"]


def test_cache_that_cannot_be_written_is_not_fatal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(TenonWarning, match="cannot be written"):
        assert compiler.zig(tmp_path / "file").compile(SOURCE, "k.c", find_target("aarch64"))


def test_zig_without_its_own_cache_on_a_full_disk(tmp_path: Path) -> None:
    """A compiler that fails like zig on a full disk, unless its cache is in its working directory."""
    program = tmp_path / "zig"
    program.write_text(
        '#!/bin/sh\n[ "${ZIG_GLOBAL_CACHE_DIR#"$PWD"}" = "$ZIG_GLOBAL_CACHE_DIR" ] && '
        "{ echo unable to write: NoSpaceLeft >&2; exit 1; }\nfor out; do :; done; echo made >$out\n"
    )
    program.chmod(0o755)
    zig = compiler.Compiler((str(program),), "zig", "", tmp_path / "cache")
    with pytest.warns(TenonWarning, match="zig cannot be written"):
        assert zig.compile(SOURCE, "k.c", find_target("aarch64")) == b"made\n"


def test_no_room_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that fails in whatever way on a full disk."""
    program = tmp_path / "cc"
    program.write_text("#!/bin/sh\nkill -ABRT $$\n")
    program.chmod(0o755)
    failing = compiler.Compiler((str(program),), "cc", "", tmp_path / "cache")
    with pytest.raises(ToolchainError, match="the C compiler failed with exit status -6"):
        failing.compile(SOURCE, "k.c", find_target("host"))
    room = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: room)
    with pytest.raises(ToolchainError, match=r"no room for temporary files in .*: make room, or set TMPDIR"):
        failing.compile(SOURCE, "k.c", find_target("host"))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc")
def test_without_zig_gcc_compiles_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.warns(TenonWarning, match="zig is not installed .*: gcc compiles instead"):
        chosen = compiler.find(Options(cache=tmp_path))
    assert Path(chosen.command[0]).name == "gcc"
    assert chosen.compile(SOURCE, "k.c", find_target("host"))[:4] == b"\x7fELF"
    with pytest.raises(ToolchainError, match="install zig, which compiles for all"):
        chosen.compile(SOURCE, "k.c", find_target("wasm32"))


def test_missing_zig_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match="pip install ziglang"):
        compiler.find(Options(cache=tmp_path))


@pytest.mark.parametrize(("program", "words"), [("no-such-cc", "no C compiler 'no-such-cc'"), ("true", "not a C comp")])
def test_missing_or_wrong_compiler(program: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=words):
        compiler.find(Options(compiler=program, cache=tmp_path))


def test_compiler_errors_show_command_and_output(zig: compiler.Compiler) -> None:
    with pytest.raises(ToolchainError) as caught:
        zig.compile({"k.c": b"int k(void) { return missing; }\n"}, "k.c", find_target("aarch64"))
    text = str(caught.value)
    assert "-target aarch64-linux-musl" in text
    assert "missing" in text
    assert "remedy:" in text


def test_warnings_are_errors(zig: compiler.Compiler) -> None:
    with pytest.raises(ToolchainError, match="unused"):
        zig.compile({"k.c": b"static int k(void) { return 1; }\n"}, "k.c", find_target("aarch64"))


def test_null_target_has_no_machine_code(zig: compiler.Compiler) -> None:
    with pytest.raises(ToolchainError, match="no machine code"):
        zig.compile(SOURCE, "k.c", find_target("null"))


@pytest.mark.parametrize("program", ["gcc", "clang"])
def test_named_compiler_is_used_for_its_own_machine_only(program: str, tmp_path: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    chosen = compiler.named(program, tmp_path)
    host, other = ("x86-64", "aarch64") if chosen.triple.startswith("x86_64") else ("aarch64", "x86-64")
    assert sizes(chosen.compile(SOURCE, "k.c", find_target(host))).functions.keys() == {"k"}
    with pytest.raises(ToolchainError, match=f"not for target {other}"):
        chosen.compile(SOURCE, "k.c", find_target(other))


@pytest.mark.parametrize(
    ("program", "name"),
    [
        pytest.param(program, name, marks=() if i % 3 == j else pytest.mark.slow)
        for i, name in enumerate(("send", "fail", "Port", "ROW", "x"))
        for j, program in enumerate(("gcc", "clang", None))
    ],
)
def test_runtime_compiles_with_every_compiler_and_network_name(program: str | None, name: str, tmp_path: Path) -> None:
    if program and shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    bundle = handmade.bundle(cache=tmp_path, compiler=program, name=name)
    for main in ("main.c", "probe.c"):
        objects = program_objects(bundle.compiler, bundle.target, main, name, b"", bundle.header, b"")
        assert sizes(objects["main.o"]).code > 0
    sources = (*IMAGES, "program_images.c", "no_images.c", "labels.c", "messages.c")
    assert all(sizes(made).code > 0 for made in runtime_objects(bundle.compiler, bundle.target, sources).values())


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no gcc")
def test_compilers_that_guard_memory_add_no_calls(tmp_path: Path) -> None:
    """Debian's gcc does not, Ubuntu's does: its objects would need a C library, and one of a certain version."""
    made = compiler.named("gcc", tmp_path)
    guards = ("-fstack-protector-all", "-D_FORTIFY_SOURCE=2")
    guarding = replace(made, command=(*made.command, *guards))
    source = b"""#include <stdio.h>
int f(int n, char *s);
int f(int n, char *s) {
  volatile char a[64];
  char b[9];
  a[n & 63] = 1;
  snprintf(b, (size_t)n, "%s", s);
  return a[0] + b[n & 7];
}
"""
    target = find_target("x86-64" if made.triple.startswith("x86_64") else "aarch64")
    assert b"_chk" not in guarding.compile({"f.c": source}, "f.c", target)


def test_sizes_of_functions_and_sections(zig: compiler.Compiler) -> None:
    source = {
        "k.c": b"int k(int i);\nstatic int seen[100];\nstatic const int t[4] = {3, 1, 4, 1};\n"
        b"int k(int i) { seen[i & 63]++; return t[i & 3] + seen[1]; }\n"
    }
    for target in ("x86-64", "armv7"):
        measured = sizes(zig.compile(source, "k.c", find_target(target)))
        assert measured.functions.keys() == {"k"}
        assert measured.functions["k"] <= measured.code
        assert measured.data >= 16
        assert measured.zeroed >= 256


def test_sizes_of_a_wasm_module(tmp_path: Path) -> None:
    bundle = handmade.bundle("wasm32", tmp_path)
    module = library(bundle.compiler, bundle.target, [bundle.name], bundle.object, "")
    assert 0 < sizes(module).code < len(module)


def test_damaged_objects_are_rejected(zig: compiler.Compiler) -> None:
    for target in ("x86-64", "armv7", "wasm32", "mips", "windows-x86_64", "macos-arm64"):
        whole = zig.compile(SOURCE, "k.c", find_target(target))
        for end in range(0, len(whole), 7):
            try:
                sizes(whole[:end])
            except TenonError:
                continue
            assert target == "wasm32"  # a module truncated between two sections is valid
    with pytest.raises(ToolchainError, match=r"not an ELF|damaged"):
        sizes(b"MZ")
