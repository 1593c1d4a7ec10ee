"""The modules of ``src/tenon`` as syntax trees: their functions, what is assigned in these, calls and imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import tenon

SOURCE = Path(tenon.__file__).parent

REASONS = ("why", "reason", "fault", "remedy", "wrong", "hint", "broken", "explained")
"""Names of variables, and beginnings of names of functions, for a part of a message."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Scope:
    """A function, or a module outside of its functions: the values of its variables, and the scope around it."""

    function: Function | None
    around: Scope | None
    values: dict[str, list[ast.expr]] = field(default_factory=dict)
    results: list[ast.expr] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name if self.function else ""

    def reasons(self) -> Iterator[ast.expr]:
        """The values of variables that hold a part of a message, by their names, and results of functions of such
        names."""
        for name, values in self.values.items():
            if name in REASONS:
                yield from values
        if self.name.lstrip("_").startswith(REASONS):
            yield from self.texts()

    def texts(self) -> list[ast.expr]:
        """The results that the function's annotation calls a text."""
        annotation = self.function and self.function.returns
        return self.results if annotation and "str" in ast.unparse(annotation) else []

    @cached_property
    def parameters(self) -> list[str]:
        """The names of the parameters that have a place, without ``self``."""
        given = [*self.function.args.posonlyargs, *self.function.args.args] if self.function else []
        return [each.arg for each in given if each.arg not in ("self", "cls")]

    @cached_property
    def texts_given(self) -> set[str]:
        """The parameters that are texts by their annotation."""
        arguments = self.function.args if self.function else ast.arguments([], [], None, [], [], None, [])
        given = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        return {each.arg for each in given if each.annotation and "str" in ast.unparse(each.annotation)}


@dataclass(eq=False)
class Module:
    """A module: its functions by name, the values of its variables, and what it imports from others of Tenon."""

    tree: ast.Module
    functions: dict[str, list[Scope]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    calls: list[tuple[ast.Call, Scope]] = field(default_factory=list)
    bases: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.scope = Scope(None, None)
        self._visit(self.tree, self.scope)

    def _visit(self, node: ast.AST, scope: Scope) -> None:
        for child in ast.iter_child_nodes(node):
            inner = scope
            match child:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    inner = Scope(child, scope)
                    self.functions.setdefault(child.name, []).append(inner)
                case ast.ClassDef(name=name, bases=bases):
                    self.bases[name] = [base.id for base in bases if isinstance(base, ast.Name)]
                case ast.Call():
                    self.calls.append((child, scope))
                case ast.Return(value=ast.expr() as value) | ast.Yield(value=ast.expr() as value):
                    scope.results.append(value)
                case ast.ImportFrom(module=str(module)) if module.startswith("tenon"):
                    self.imports |= {each.asname or each.name: (module, each.name) for each in child.names}
                case _:
                    for name, value in _assigned(child):
                        scope.values.setdefault(name, []).append(value)
            if not isinstance(child, ast.Name | ast.Constant | ast.operator | ast.expr_context):
                self._visit(child, inner)


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names that a statement or comprehension gives values to."""
    match node:
        case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _pairs(target, value)
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield from _pairs(target, value)
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield from _pairs(target, ast.Subscript(value, ast.Slice(), ast.Load()))
        case _:
            pass


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Names with their values."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple):
        for place, name in enumerate(target.elts):
            yield from _pairs(name, ast.Subscript(value, ast.Constant(place), ast.Load()))


@lru_cache(maxsize=1)
def modules() -> dict[str, Module]:
    """All modules of Tenon, by name."""
    read = {}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(("tenon", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        read[name] = Module(ast.parse(path.read_text(encoding="utf-8")))
    return read


@lru_cache(maxsize=1)
def by_name() -> dict[str, list[tuple[Module, Scope]]]:
    """All functions and methods by name, with their modules."""
    known: dict[str, list[tuple[Module, Scope]]] = {}
    for module in modules().values():
        for name, functions in module.functions.items():
            known.setdefault(name, []).extend((module, function) for function in functions)
    return known
