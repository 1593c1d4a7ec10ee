"""Structural rules of the source tree."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import tenon
from tenon.formats.importers import FORMATS
from tenon.network.ops import registry

pytestmark = pytest.mark.quick

SOURCE = Path(tenon.__file__).parent
ROOT = SOURCE.parents[1]
PAGES = [ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]
WINGS = ("network", "formats", "machine", "runtime", "tools", "compat", "cli")
"""Folders of the package, each with the rooms of one subject; ``compat`` and ``cli`` are one room each."""
ORDER = [
    "runtime/c",
    "errors",
    "input_file",
    "atomic_write",
    "private_files",
    "validation",
    "gpu_options",
    "network/graph",
    "options",
    "machine/isa",
    "machine/kernel_ir",
    "machine/kernels",
    "machine/algorithms",
    "network/ops",
    "formats/wire",
    "formats/model_files",
    "formats/graph_builder",
    "formats/decompositions",
    "formats/importers",
    "formats/exporters",
    "network/passes",
    "machine/plan",
    "machine/proofs",
    "machine/codegen",
    "machine/object_formats",
    "machine/targets",
    "machine/toolchain",
    "compilation",
    "runtime/web",
    "runtime/text",
    "runtime/bundle",
    "runtime/sdk",
    "runtime/engine",
    "runtime/speech",
    "runtime/answers",
    "tools/cluster",
    "tools/tune",
    "pipeline",
    "runtime/generation",
    "runtime/plugins",
    "tools/metrics",
    "tools/peers",
    "tools/quantization",
    "tools/deployment",
    "tools/devices",
    "tools/server",
    "cli",
    "compat",
]
"""Rooms in the order in which data passes through them; imports point only to rooms before one's own."""
PUBLIC = ["deployment", "devices", "images", "metrics", "plugins", "quantization", "speech"]
"""Modules that give names of the rooms to programs; nothing inside imports them."""


def modules() -> list[Path]:
    """All modules but the package itself, its wings and what is public."""
    tops = {"__init__", "__main__", *PUBLIC}
    above = [p for p in SOURCE.glob("*.py") if p.stem in tops] + [SOURCE / wing / "__init__.py" for wing in WINGS[:5]]
    return [p for p in sorted(SOURCE.rglob("*.py")) if p not in above]


def room_of(parts: Sequence[str]) -> str:
    """The room of a dotted or slashed path inside the package."""
    return "/".join(parts[: 2 if parts[0] in WINGS and parts[0] not in ORDER else 1])


def room(path: Path) -> str:
    return room_of(path.relative_to(SOURCE).with_suffix("").parts)


@cache
def syntax(path: Path) -> ast.Module:
    """The syntax tree of a file, which several tests walk."""
    return ast.parse(path.read_text())


@cache
def imported(path: Path) -> set[str]:
    """Rooms that a module imports, at its top or inside functions; imports for type checkers only do not count."""
    targets = set()
    for node in ast.walk(syntax(path)):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            deep = node.module != "tenon" and node.module.removeprefix("tenon.") not in WINGS
            names = [node.module] if deep else [f"{node.module}.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        targets |= {room_of(name.split(".")[1:]) for name in names if name.startswith("tenon.")}
    return targets


def test_every_package_is_listed_in_the_order() -> None:
    assert {room(p) for p in modules()} == set(ORDER)
    assert {p.parent.name for p in SOURCE.glob("*/__init__.py")} == set(WINGS)


def test_imports_point_upwards() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path in modules()
        for other in imported(path)
        if other in ORDER and ORDER.index(other) > ORDER.index(room(path))
    ]
    assert not wrong


def test_importers_do_not_import_each_other() -> None:
    importers = SOURCE / "formats" / "importers"
    formats = {p.name for p in importers.iterdir() if p.is_dir()} - {"shared", "__pycache__"}
    for path in importers.glob("*/*.py"):
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tenon.formats.importers."):
                other = str(node.module).split(".")[3]
                assert other == path.parent.name or other not in formats, f"{path} imports {node.module}"


def test_every_format_is_a_package() -> None:
    modules = {format.module for format in FORMATS.values()}
    formats = {p.name for p in (SOURCE / "formats" / "importers").iterdir() if p.is_dir()} - {"shared", "__pycache__"}
    assert modules == {f"tenon.formats.importers.{format}.load" for format in formats}


def test_class_names_of_importers_are_unique() -> None:
    """Classes without an underscore, which other files may import."""
    names = Counter(
        node.name
        for path in (SOURCE / "formats").rglob("*.py")
        for node in ast.walk(syntax(path))
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
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = {f"{node.module}.{a.name}" for a in node.names} & set(known)
                imports |= parts or ({node.module} & set(known))
        arrows[name] = imports - {name}
    while ends := [name for name, to in arrows.items() if not to & set(arrows)]:
        for name in ends:
            del arrows[name]
    assert not {name: sorted(to & set(arrows)) for name, to in arrows.items()}


def test_operators_do_not_refer_to_targets() -> None:
    rooms = ("network/ops", "machine/algorithms", "machine/kernels")
    for path in [p for room in rooms for p in SOURCE.glob(f"{room}/*.py")]:
        assert not imported(path) & {"machine/targets", "machine/toolchain", "machine/codegen"}, path


def test_public_names() -> None:
    assert sorted(tenon.__all__) == [
        "Bundle",
        "Engine",
        "Generator",
        "Graph",
        "Options",
        "Size",
        "TenonError",
        "__version__",
        "compile",
        "convert",
        "detect",
        "evaluate",
        "generate",
        "inspect",
        "load",
        "open",
        "quantize",
        "read_deployment",
        "targets",
    ]
    for name in tenon.__all__:
        assert getattr(tenon, name) is not None


@pytest.mark.parametrize("name", PUBLIC)
def test_public_modules(name: str) -> None:
    module = import_module(f"tenon.{name}")
    assert all(getattr(module, each) is not None for each in module.__all__)
    inside = [str(p.relative_to(SOURCE)) for p in modules() if f"tenon/{name}" in {f"tenon/{r}" for r in imported(p)}]
    assert not inside, "rooms import each other, not what is public"


def test_sizes_of_files() -> None:
    long = {str(p.relative_to(SOURCE)): n for p in modules() if (n := len(p.read_text().splitlines())) > 600}
    assert not long


def test_no_modules_named_utils() -> None:
    ours = [path for path in SOURCE.rglob("*") if "include" not in path.parts]  # headers that programs name are given
    assert not [p for p in ours if p.stem in ("utils", "misc", "common", "helpers")]


def test_only_options_reads_the_environment() -> None:
    readers = {p.name for p in modules() if "os.environ" in p.read_text() or "getenv" in p.read_text()}
    assert readers <= {"options.py"}


def test_the_map_lists_the_packages_in_their_order() -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("\n## The map\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w/]+)` \|", table, re.M) == ORDER
    rooms = (ROOT / "docs" / "design" / "rooms.md").read_text()
    assert re.findall(r"^\| `([\w/]+)/` \|", rooms, re.M) == [room for room in ORDER if (SOURCE / room).is_dir()]


def test_design_pages_are_linked_and_their_links_lead_somewhere() -> None:
    linked = set()
    for page in PAGES:
        targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
        linked |= {(page.parent / target).resolve() for target in targets}
    assert not [path for path in linked if not path.exists()]
    assert set(PAGES) - {ROOT / "ARCHITECTURE.md"} <= linked


def test_design_pages_name_modules_that_exist() -> None:
    """``plan.layouts`` is a module of a package or a name in it; ``machine/plan/`` is a folder."""
    rooms = {room.rpartition("/")[2]: room for room in ORDER if "/" in room and room != "runtime/c"}
    for page in PAGES:
        text = page.read_text()
        for room, name in re.findall(rf"`({'|'.join(rooms)})\.(?!(?:c|h|py|yml)\b)(\w+)", text):
            package = import_module(f"tenon.{rooms[room]}".replace("/", "."))
            assert any((SOURCE / rooms[room]).glob(f"{name}*")) or hasattr(package, name), f"{page}: {room}.{name}"
        for path in re.findall(rf"`((?:{'|'.join(WINGS)})/[\w/.]+)`", text):
            assert (SOURCE / path).exists(), f"{page}: {path}"


def test_number_of_core_operators_is_as_documented() -> None:
    stated = re.search(r"`ops/` has at most (\d+) operators", (ROOT / "docs" / "design" / "operators.md").read_text())
    assert stated
    core = [op for op in registry().values() if op.__module__.startswith("tenon.network.ops.")]  # not of plug-ins
    assert len(core) <= int(stated[1]), "a new operator should be a composition of others; else say so there"


ROOMS_OF_WEIGHTS = ("machine/kernels", "machine/algorithms", "machine/plan", "runtime/bundle")


def test_packed_weights_do_not_depend_on_blas() -> None:
    """The same model gives the same bytes on every machine; the order of summation in BLAS depends on the processor."""
    for path in [p for room in ROOMS_OF_WEIGHTS for p in SOURCE.glob(f"{room}/*.py")]:
        for node in ast.walk(syntax(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = node.func.attr
                assert called not in ("tensordot", "matmul", "dot", "inner", "vdot"), f"{path}:{node.lineno}"
                if called == "einsum":
                    assert "optimize" not in {k.arg for k in node.keywords}, f"{path}:{node.lineno}"
            assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)), path
