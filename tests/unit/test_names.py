"""Rules of names, docstrings and formatting."""

from __future__ import annotations

import ast
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tenon

pytestmark = pytest.mark.quick

SOURCE = Path(tenon.__file__).parent
TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"
KERNELS = {
    "ByteAttention",
    "ByteSoftmax",
    "Conv",
    "IntegerConv",
    "IntegerMatMul",
    "IntegerSigmoid",
    "LogSoftmax",
    "Lookup",
    "LookupSoftmax",
    "Pointwise",
    "Softmax",
}
"""The parameters of a kernel have the name of the operator that it computes, one in ``kernels``, one in ``ops``."""
SHARED = {
    "If": "a statement of the loop IR, and ONNX's operator",
    "Mask": "an operator, and the head of masks of objects",
    "Size": "tenon.Size, a dimension that every run chooses, is public; the other is ONNX's operator",
    "TopK": "tenon.metrics.TopK is public; the other is ONNX's operator",
}
"""Names of two classes each, with what these mean; nothing is added without a reason."""
BROKEN = re.compile(r"(Of|That of|Those of) ")
"""A sentence that cannot be read without the name of what it describes."""


@cache
def texts_of(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(folder.rglob("*.py"))}


@cache
def classes() -> dict[str, list[str]]:
    """The files of each class name, private ones included."""
    places = defaultdict(list)
    for path, text in texts_of(SOURCE).items():
        for name in re.findall(r"^[ \t]*class (\w+)[(:\[]", text, re.MULTILINE):
            places[name].append(str(path.relative_to(SOURCE)))
    return places


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Docstrings, those of constants included: every statement that is a string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def unformatted(path: Path) -> int:
    if "fmt:" not in path.read_text():
        return 0
    with path.open("rb") as file:
        comments = [t.string for t in tokenize.tokenize(file.readline) if t.type == tokenize.COMMENT]
    return sum(bool(re.match(r"#\s*fmt:\s*(skip|off)", comment)) for comment in comments)


@pytest.mark.parametrize("folder", [SOURCE, TESTS, DOCS], ids=["source", "tests", "docs"])
def test_locals_are_named_after_what_they_hold(folder: Path) -> None:
    named = [
        f"{path.relative_to(folder)}:{getattr(node, 'lineno', 1)}"
        for path, text in texts_of(folder).items()
        if re.search(r"\bfound\b", text)
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Name) and node.id == "found" and not isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.arg) and node.arg == "found")
    ]
    assert not named, "a local called 'found' does not say what it holds"


def test_docstrings_are_sentences_that_stand_alone() -> None:
    broken = [
        f"{path.relative_to(SOURCE)}:{line}: {docstring[:60]}"
        for path, text in texts_of(SOURCE).items()
        if BROKEN.search(text)
        for line, docstring in texts(ast.parse(text))
        if BROKEN.match(docstring)
    ]
    assert not broken, broken


@pytest.mark.parametrize("folder", [SOURCE, TESTS, DOCS], ids=["source", "tests", "docs"])
def test_everything_is_formatted(folder: Path) -> None:
    left_out = {str(path.relative_to(folder)): count for path in texts_of(folder) if (count := unformatted(path))}
    assert not left_out, f"statements with 'fmt: skip' or 'fmt: off': {left_out}"


def test_class_names_have_one_meaning() -> None:
    several = {name: where for name, where in classes().items() if len(where) > 1}
    assert several.keys() <= KERNELS | SHARED.keys(), {n: several[n] for n in several.keys() - KERNELS - SHARED.keys()}
    assert all(len(where) == 2 for where in several.values()), "a name has two classes at most"
    assert not (KERNELS | SHARED.keys()) - several.keys(), "these have become unique: remove them from the lists"


def test_kernels_that_share_a_name_belong_to_an_operator() -> None:
    for name in KERNELS:
        assert {where.split("/")[1] for where in classes()[name]} == {"kernels", "ops"}, name
