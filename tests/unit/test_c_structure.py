"""The C libraries of ``runtime/c/``: calls and includes without cycles, and which library knows which."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from c_files import bodies, calls, includes, shared_functions
from libtenon import needed, run, succeeded
from tenon.machine.targets import find
from tenon.runtime.bundle.link import IMAGES
from tenon.runtime.sdk import tengine
from tenon.runtime.sdk.libtenon import RUNTIME, target_rows

LIBRARIES = ("libtenon", "tengine", "mace")
BASE = {"errors.h", "handle.h", "memory_pool.h", "platform.h"}
"""The headers of libtenon that the libraries over it include: their shared libraries contain these files as well."""


def sources(library: str, other_system: str = "_windows") -> list[Path]:
    """The C files of a library without those for the ``other_system``."""
    return [path for path in sorted((RUNTIME / library).glob("*.c")) if not path.stem.endswith(other_system)]


def assert_acyclic(graph: Mapping[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


@pytest.mark.parametrize("other_system", ["_windows", "_posix"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_files_call_each_other_without_cycles(library: str, other_system: str) -> None:
    graph = calls(sources(library, other_system))
    assert sum(map(len, graph.values())) >= len(graph) - 1, "the functions are not found"
    assert_acyclic(graph)


@pytest.mark.parametrize("library", LIBRARIES)
def test_headers_include_each_other_without_cycles(library: str) -> None:
    assert_acyclic({path.name: includes(path.read_text()) for path in (RUNTIME / library).glob("*.h")})


@pytest.mark.parametrize("library", LIBRARIES)
def test_files_include_the_headers_that_declare_their_functions(library: str) -> None:
    headers = {path.name: path.read_text() for path in (RUNTIME / library).glob("*.h")}

    def reached(name: str) -> set[str]:
        direct = includes(headers[name]) & headers.keys()
        return {name}.union(*map(reached, direct))

    for path in sources(library):
        text = path.read_text()
        seen = "".join(headers[name] for name in set().union(*map(reached, includes(text) & headers.keys())))
        own = {name for name in shared_functions(text) if name.startswith(("tn_", "tg_", "mc_", "mr_"))} - {"tn_fail"}
        assert own <= set(re.findall(r"\w+", seen)), (path.name, own)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_other_compilers_have_no_warnings(library: str, compiler: str, tmp_path: Path) -> None:
    """zig's are errors whenever a library is built."""
    (tmp_path / "target_rows.h").write_text(target_rows(find("x86-64")))
    (tmp_path / "operator_rows.h").write_text(tengine.operator_rows())
    folders = (tmp_path, RUNTIME / "libtenon", RUNTIME, RUNTIME / "include", RUNTIME / "include" / "mace" / "public")
    warnings = ("-Wall", "-Wextra", "-Wmissing-prototypes", "-Wcast-qual", "-Wundef", "-Werror", "-fsyntax-only")
    includes = [f"-I{folder}" for folder in folders]
    succeeded(run(needed(compiler), "-std=gnu99", "-O1", *warnings, *includes, *sources(library)))


def test_libtenon_knows_no_library_over_it() -> None:
    for path in (RUNTIME / "libtenon").iterdir():
        assert not re.search(r"(?i)tengine|mace|\b(tg|mc|mr)_", path.read_text()), path.name


@pytest.mark.parametrize("library", ["tengine", "mace"])
def test_libraries_over_libtenon_include_only_its_base(library: str) -> None:
    own = {path.name for path in (RUNTIME / "libtenon").glob("*.h")}
    for path in (RUNTIME / library).iterdir():
        assert includes(path.read_text()) & own <= BASE, path.name


def test_a_cycle_is_noticed(tmp_path: Path) -> None:
    texts = {
        "a.c": 'int tn_a(int n) { return n ? tn_b("}") : 0; }\n',
        "b.c": "/* { */\nint tn_b(int n) {\n  for (; n; n--) { tn_c(); }\n  return n;\n}\n",
        "c.c": 'EXPORT("e") void tn_e(void (*f)(int)) { f(1); }\n'
        "static int tn_d(void) { return 0; }\nint tn_c(void);\nint tn_c(void) { return tn_a(tn_d()); }\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    graph = calls(sorted(tmp_path.iterdir()))
    assert graph == {"a.c": {"b.c"}, "b.c": {"c.c"}, "c.c": {"a.c"}}
    assert bodies(texts["c.c"]) == ["tn_e", "tn_d", "tn_c"]
    with pytest.raises(AssertionError, match=r"a\.c <- "):
        assert_acyclic(graph)


@pytest.mark.parametrize(
    "programs", [("main.c", "program_images.c", "labels.c", "messages.c"), ("web.c", "web_library.c")]
)
def test_files_of_programs_call_each_other_without_cycles(programs: tuple[str, ...]) -> None:
    graph = calls([RUNTIME / name for name in (*programs, *IMAGES)])
    assert "detect.c" in set().union(*(graph[name] for name in programs))
    assert_acyclic(graph)


def test_headers_of_c_define_no_functions() -> None:
    """Headers of C++ in include/ do: what they inline keeps C++ out of the interface of the shared libraries."""
    headers = [path for path in RUNTIME.rglob("*.h") if "include" not in path.relative_to(RUNTIME).parts]
    assert len(headers) > 40
    assert {path.name: bodies(path.read_text()) for path in headers if bodies(path.read_text())} == {}


def test_files_with_extensions_of_glibc_parse_no_numbers_by_it() -> None:
    """``_GNU_SOURCE`` makes strtol and scanf other functions since glibc 2.38, which older ones do not have."""
    files = [path for path in RUNTIME.rglob("*.c") if "#define _GNU_SOURCE" in path.read_text()]
    assert files
    parsing = re.compile(r"\b(?:strto\w+|ato[il]+|v?[fs]?scanf)\(")
    assert not [path.name for path in files if parsing.search(path.read_text())]
