"""The house rules that a program can check."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import tenon
from tenon.frontends.keras.layers import ACTIVATIONS
from tenon.frontends.keras.layers import LAYERS as KERAS
from tenon.frontends.mxnet.ops import OPERATORS as MXNET
from tenon.frontends.ncnn.layers import LAYERS as NCNN
from tenon.frontends.paddle.ops import OPERATORS as PADDLE
from tenon.frontends.pytorch.ops import OPERATORS as PYTORCH
from tenon.frontends.tensorflow.loops import CONTROL
from tenon.frontends.tensorflow.ops import OPERATORS as TENSORFLOW
from tenon.ops import registry

SOURCE = Path(tenon.__file__).parent
ORDER = [
    "errors", "input_file", "writing", "validation", "ir", "options", "kernels", "ops", "frontends", "passes", "plan",
    "codegen", "targets", "toolchain", "bundle", "engine", "tune", "pipeline", "cli",
]  # fmt: skip
"""Rooms in the order in which data passes through them; imports point only to rooms before one's own."""


def modules() -> list[Path]:
    return [p for p in sorted(SOURCE.rglob("*.py")) if p.relative_to(SOURCE).stem[:2] != "__" or p.parent != SOURCE]


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Rooms that a module imports, at its top or inside functions; imports for type checkers only do not count."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "tenon" else [f"tenon.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("tenon.")}
    return found


def test_every_room_is_in_the_order() -> None:
    assert {room(p) for p in modules()} == set(ORDER)


def test_imports_point_up() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path in modules()
        for other in imported(path)
        if other in ORDER and ORDER.index(other) > ORDER.index(room(path))
    ]
    assert not wrong


def test_formats_know_nothing_of_each_other() -> None:
    frontends = SOURCE / "frontends"
    formats = {p.name for p in frontends.iterdir() if p.is_dir()} - {"wire", "__pycache__"}
    for path in frontends.glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tenon.frontends."):
                other = str(node.module).split(".")[2]
                assert other == path.parent.name or other not in formats, f"{path} imports {node.module}"


def names_of(path: Path) -> str:
    return "tenon." + ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports inside functions and for type checkers count too."""
    known = {names_of(p): p for p in SOURCE.rglob("*.py")}
    arrows: dict[str, set[str]] = {}
    for name, path in known.items():
        found = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = {f"{node.module}.{a.name}" for a in node.names} & set(known)
                found |= parts or ({node.module} & set(known))
        arrows[name] = found - {name}
    while ends := [name for name, to in arrows.items() if not to & set(arrows)]:
        for name in ends:
            del arrows[name]
    assert not {name: sorted(to & set(arrows)) for name, to in arrows.items()}


def test_operators_name_no_target() -> None:
    for path in [*SOURCE.glob("ops/*.py"), *SOURCE.glob("kernels/*.py")]:
        assert not imported(path) & {"targets", "toolchain", "codegen"}, path


def test_public_names() -> None:
    assert sorted(tenon.__all__) == [
        "Bundle", "Engine", "Graph", "Options", "TenonError", "__version__",
        "compile", "detect", "inspect", "load", "open", "targets",
    ]  # fmt: skip
    for name in tenon.__all__:
        assert getattr(tenon, name) is not None


def test_sizes_of_files() -> None:
    long = {str(p.relative_to(SOURCE)): n for p in modules() if (n := len(p.read_text().splitlines())) > 600}
    assert not long


def code_lines(path: Path) -> int:
    """Lines that hold code: no blanks, comments, docstrings or imports."""
    text = path.read_text()
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        explains = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.stmt) and (explains or isinstance(node, ast.Import | ast.ImportFrom)):
            held.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(held)


NO_CODE = frozenset({
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
})  # fmt: skip

LARGEST_IMPORTER = 800
VOCABULARIES: dict[str, tuple[int, Iterable[str]]] = {
    "keras": (9, [*KERAS, *ACTIVATIONS]), "mxnet": (5, MXNET), "ncnn": (11, NCNN), "paddle": (5, PADDLE),
    "pytorch": (5, PYTORCH), "tensorflow": (5, [*TENSORFLOW, *CONTROL]),
}  # fmt: skip
"""Formats of which some hundred layers or more are read, and how many lines each of these may take instead: operators
of a framework are smaller than layers that read their own options and weights."""

APART = {
    "caffe/schema.py": "the fields of caffe.proto, a table",
    "caffe/upgrade.py": "nets of older versions of Caffe made nets of today",
    "caffe/optimize.py": "nets rewritten as nets, for `tenon optimize`",
    "paddle/pir.py": "programs of Paddle 3 made programs of 2, mostly a table of names",
    "tflite/fixed_point.py": "gemmlowp's arithmetic of 16 bits, exact to the last integer",
    "tflite/integer_lstm.py": "LiteRT's kernel of integers, exact to the last one",
    "tflite/fourier.py": "of TensorFlow Lite Micro's library for sound, exact to the last integer",
    "tflite/signal.py": "of the same library",
    "tflite/streams.py": "of the same library",
}
"""Files that are counted apart from their importers, and what they are."""


def importers() -> dict[str, int]:
    """Code lines of each format; ONNX is none of them: its operators are our own vocabulary, and all are there."""
    frontends, found = SOURCE / "frontends", Counter[str]()
    assert all((frontends / name).is_file() for name in APART)
    for path in sorted(frontends.glob("*/*.py")):
        format = path.parent.name
        if format not in ("onnx", "wire") and f"{format}/{path.name}" not in APART:
            found[format] += code_lines(path)
    return found


def test_sizes_of_importers() -> None:
    limits = {name: lines * len(list(table)) for name, (lines, table) in VOCABULARIES.items()}
    long = {
        format: f"{lines} of {limit}"
        for format, lines in importers().items()
        if lines > (limit := max(LARGEST_IMPORTER, limits.get(format, 0)))
    }
    assert not long, "share what other formats say alike, or make rows of functions"


def test_no_junk_drawers() -> None:
    assert not [p for p in SOURCE.rglob("*") if p.stem in ("utils", "misc", "common", "helpers")]


def test_environment_is_read_in_one_place() -> None:
    readers = {p.name for p in modules() if "os.environ" in p.read_text() or "getenv" in p.read_text()}
    assert readers <= {"options.py"}


def test_the_core_of_operators_is_as_small_as_stated() -> None:
    stated = re.search(r"`ops/` has (\d+) operators", (SOURCE.parents[1] / "ARCHITECTURE.md").read_text())
    assert stated
    assert len(registry()) == int(stated[1]), "a new operator should be a composition of others; else say so there"


def test_packed_weights_do_not_depend_on_blas() -> None:
    """The same model gives the same bytes on every machine; BLAS adds in another order on another processor."""
    for path in [*SOURCE.glob("kernels/*.py"), *SOURCE.glob("plan/*.py"), *SOURCE.glob("bundle/*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = node.func.attr
                assert called not in ("tensordot", "matmul", "dot", "inner", "vdot"), f"{path}:{node.lineno}"
                if called == "einsum":
                    assert "optimize" not in {k.arg for k in node.keywords}, f"{path}:{node.lineno}"
            assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)), path
