"""Structural rules of the source tree."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import tenon
from tenon.importers import FORMATS
from tenon.ops import registry

SOURCE = Path(tenon.__file__).parent
ORDER = [
    "runtime",
    "errors",
    "input_file",
    "atomic_write",
    "private_files",
    "validation",
    "ir",
    "options",
    "kernels",
    "algorithms",
    "ops",
    "wire",
    "model_files",
    "graph_builder",
    "decompositions",
    "importers",
    "exporters",
    "passes",
    "plan",
    "codegen",
    "targets",
    "toolchain",
    "web",
    "bundle",
    "sdk",
    "engine",
    "cluster",
    "tune",
    "pipeline",
    "plugins",
    "metrics",
    "peers",
    "quantization",
    "deployment",
    "devices",
    "cli",
    "compat",
]
"""Rooms in the order in which data passes through them; imports point only to rooms before one's own."""


def modules() -> list[Path]:
    return [p for p in sorted(SOURCE.rglob("*.py")) if p.relative_to(SOURCE).stem[:2] != "__" or p.parent != SOURCE]


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Packages that a module imports, at its top or inside functions; imports for type checkers only do not count."""
    targets = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "tenon" else [f"tenon.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        targets |= {name.split(".")[1] for name in names if name.startswith("tenon.")}
    return targets


def test_every_package_is_listed_in_the_order() -> None:
    assert {room(p) for p in modules()} == set(ORDER)


def test_imports_point_upwards() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path in modules()
        for other in imported(path)
        if other in ORDER and ORDER.index(other) > ORDER.index(room(path))
    ]
    assert not wrong


def test_importers_do_not_import_each_other() -> None:
    importers = SOURCE / "importers"
    formats = {p.name for p in importers.iterdir() if p.is_dir()} - {"shared", "__pycache__"}
    for path in importers.glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tenon.importers."):
                other = str(node.module).split(".")[2]
                assert other == path.parent.name or other not in formats, f"{path} imports {node.module}"


def test_every_format_is_a_package() -> None:
    modules = {format.module for format in FORMATS.values()}
    formats = {p.name for p in (SOURCE / "importers").iterdir() if p.is_dir()} - {"shared", "__pycache__"}
    assert modules == {f"tenon.importers.{format}.load" for format in formats}


def test_class_names_of_importers_are_unique() -> None:
    """Classes without an underscore, which other files may import."""
    rooms = ("wire", "model_files", "graph_builder", "decompositions", "importers", "exporters")
    names = Counter(
        node.name
        for name in rooms
        for path in (SOURCE / name).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in names.items() if count > 1]


def names_of(path: Path) -> str:
    return "tenon." + ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def test_modules_have_no_import_cycles() -> None:
    """Imports inside functions and for type checkers count too."""
    known = {names_of(p): p for p in SOURCE.rglob("*.py")}
    arrows: dict[str, set[str]] = {}
    for name, path in known.items():
        imports = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = {f"{node.module}.{a.name}" for a in node.names} & set(known)
                imports |= parts or ({node.module} & set(known))
        arrows[name] = imports - {name}
    while ends := [name for name, to in arrows.items() if not to & set(arrows)]:
        for name in ends:
            del arrows[name]
    assert not {name: sorted(to & set(arrows)) for name, to in arrows.items()}


def test_operators_do_not_refer_to_targets() -> None:
    for path in [p for room in ("ops", "algorithms", "kernels") for p in SOURCE.glob(f"{room}/*.py")]:
        assert not imported(path) & {"targets", "toolchain", "codegen"}, path


def test_public_names() -> None:
    assert sorted(tenon.__all__) == [
        "Bundle", "Engine", "Graph", "Options", "TenonError", "__version__",
        "compile", "convert", "detect", "evaluate", "inspect", "load", "open", "quantize", "read_deployment", "targets",
    ]  # fmt: skip
    for name in tenon.__all__:
        assert getattr(tenon, name) is not None


def test_sizes_of_files() -> None:
    long = {str(p.relative_to(SOURCE)): n for p in modules() if (n := len(p.read_text().splitlines())) > 600}
    assert not long


def test_no_modules_named_utils() -> None:
    ours = [path for path in SOURCE.rglob("*") if "include" not in path.parts]  # headers that programs name are given
    assert not [p for p in ours if p.stem in ("utils", "misc", "common", "helpers")]


def test_only_options_reads_the_environment() -> None:
    readers = {p.name for p in modules() if "os.environ" in p.read_text() or "getenv" in p.read_text()}
    assert readers <= {"options.py"}


def test_number_of_core_operators_is_as_documented() -> None:
    stated = re.search(r"`ops/` has at most (\d+) operators", (SOURCE.parents[1] / "ARCHITECTURE.md").read_text())
    assert stated
    assert len(registry()) <= int(stated[1]), "a new operator should be a composition of others; else say so there"


def test_packed_weights_do_not_depend_on_blas() -> None:
    """The same model gives the same bytes on every machine; the order of summation in BLAS depends on the processor."""
    for path in [p for room in ("kernels", "algorithms", "plan", "bundle") for p in SOURCE.glob(f"{room}/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = node.func.attr
                assert called not in ("tensordot", "matmul", "dot", "inner", "vdot"), f"{path}:{node.lineno}"
                if called == "einsum":
                    assert "optimize" not in {k.arg for k in node.keywords}, f"{path}:{node.lineno}"
            assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)), path
