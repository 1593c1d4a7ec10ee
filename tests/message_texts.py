"""The templates of the messages of ``src/tenon``, read from its sources: "{path}: no such file".

A message is what an exception is made with, and what is given to the functions of ``SAID``; the arguments of a function
that inserts its parameter into a message are messages, too.  What a message inserts is followed, within a module and
through its imports, to the texts that it may be: values of variables, of tables, and what functions return.

Not messages are: those of ``BUGS``, exceptions that users report and do not act upon; and what commands print on
standard output, which is the same in every language, because programs read it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from source_scopes import Module, Scope, by_name, modules

SAID = ("note", "warn", "Problem", "progress", "translated_message", "FileKind")
"""Functions and classes whose arguments are texts for users, besides exceptions."""

BUGS = (
    "InternalError",
    "AssertionError",
    "AttributeError",
    "TypeError",
    "NotImplementedError",
    "IndexError",
    "KeyError",
)
"""Exceptions of faulty programs: a bug in Tenon, or a call from Python with arguments that do not exist."""

LABELS = ("_", "translated", "_section", "_heading", "FileKind")
"""Functions whose arguments are translated as they are, single words, too."""

OF_TABLES = ("get", "values", "items", "format", "removeprefix", "removesuffix", "replace")
"""Methods whose result is a text of the table, or the text, that they belong to."""

CODE = re.compile(
    r"%\[|\(\?P<|\(\?:|&&|#include|\$\w|\\s|\\w|\^#|\t|\{$|@@$|\w\(\{|^\{\.|^  (?:if|node)|^\.\w+ "
    r"|^(?:add|bne|cmp|push|rm|df|echo|find|exec|cat|getprop|grep|uname|getconf|import) "
)
"""Marks of programs, which are run on devices or printed for compilers, and of regular expressions."""

LEAST_LETTERS = 4
"""Letters beside what is inserted that a text has at least: fewer are marks between other texts."""

INSERTED = re.compile(r"\{\w+\}")


def called(call: ast.Call) -> str:
    """The name of the function or method that is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else str(getattr(call.func, "id", ""))


def is_exception(name: str) -> bool:
    """Whether a class has messages for users."""
    return name.endswith("Error") and name not in bugs()


def says(name: str) -> bool:
    """Whether all texts given to a function are for users; those given to ``super().__init__`` may be."""
    return name in SAID or name == "__init__" or is_exception(name)


@lru_cache(maxsize=1)
def bugs() -> set[str]:
    """``BUGS``, and the classes of Tenon that are made of them."""
    bases = {name: each for module in modules().values() for name, each in module.bases.items()}
    known = {*BUGS}
    while more := {name for name, each in bases.items() if known & {*each}} - known:
        known |= more
    return known


@dataclass
class Reader:
    """Collects the texts of messages.  ``spoken`` names the parameters of functions that are inserted into messages."""

    spoken: dict[str, set[str]] = field(default_factory=dict)
    texts: dict[str, None] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    def read(self) -> None:
        """Collect all texts, until no further parameter turns out to be a part of a message."""
        for module in modules().values():
            for scope in (module.scope, *(each for several in module.functions.values() for each in several)):
                self._each(scope.reasons(), module, scope)
        calls = [(module, *call) for module in modules().values() for call in module.calls]
        names = {called(call) for _, call, _ in calls}
        calls_now = {name for name in names if name in SAID or name == "__init__" or is_exception(name)} | {
            *self.spoken
        }
        while calls_now:
            before = {name: set(each) for name, each in self.spoken.items()}
            for module, call, scope in calls:
                if called(call) in calls_now:
                    self._each(self.arguments(call, module), module, scope)
            calls_now = {name for name, each in self.spoken.items() if each != before.get(name)}

    def arguments(self, call: ast.Call, module: Module) -> Iterator[ast.expr]:
        """The arguments of a call that are texts for users."""
        name = called(call)
        if says(name):
            yield from (*call.args, *(each.value for each in call.keywords))
            return
        spoken = self.spoken.get(name, set())
        yield from (each.value for each in call.keywords if each.arg in spoken)
        for scope in self._candidates(name, call, module):
            yield from (each for each, own in zip(call.args, scope.parameters, strict=False) if own in spoken)

    def _candidates(self, name: str, call: ast.Call, module: Module) -> list[Scope]:
        """The functions that a call may be of: methods of any class, as their types are not known here."""
        if isinstance(call.func, ast.Attribute):
            return [scope for _, scope in by_name().get(name, [])]
        return self._functions(name, module)[1]

    def _functions(self, name: str, module: Module) -> tuple[Module, list[Scope]]:
        while name not in module.functions and name in module.imports:
            source, name = module.imports[name]
            if source not in modules():
                break
            module = modules()[source]
        return module, module.functions.get(name, [])

    def follow(self, value: ast.expr, module: Module, scope: Scope) -> None:
        """Collect the texts that an expression may be or insert."""
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        match value:
            case ast.Constant(value=str(text)):
                self.add(text)
            case ast.JoinedStr() | ast.BinOp(op=ast.Add()):
                self.add(template(parts(value)))
                inserted = [part.value for part in parts(value) if isinstance(part, ast.FormattedValue)]
                self._each(inserted, module, scope)
            case ast.IfExp(body=one, orelse=other):
                self._each((one, other), module, scope)
            case (
                ast.BoolOp(values=several) | ast.Tuple(elts=several) | ast.List(elts=several) | ast.Dict(values=several)
            ):
                self._each(several, module, scope)
            case ast.Subscript(value=inner, slice=ast.Constant(value=int(place))):
                meant = self._meant(inner, module, scope)
                self._each(elements(meant, place), module, scope)
                for call in meant:
                    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                        source, functions = self._functions(call.func.id, module)
                        for function in functions:
                            self._each(elements(function.texts(), place), source, function)
            case ast.Subscript(value=inner) | ast.Starred(value=inner) | ast.NamedExpr(value=inner):
                self.follow(inner, module, scope)
            case ast.GeneratorExp(elt=inner) | ast.ListComp(elt=inner) | ast.DictComp(value=inner):
                self.follow(inner, module, scope)
            case ast.Call():
                self._call(value, module, scope)
            case ast.Name(id=name):
                self._named(name, module, scope)
            case _:
                pass

    def _each(self, values: Iterable[ast.expr], module: Module, scope: Scope) -> None:
        for value in values:
            self.follow(value, module, scope)

    def _call(self, call: ast.Call, module: Module, scope: Scope) -> None:
        """Follow what a call gives: a part of its arguments, or what the functions return that it may be of."""
        match call.func:
            case (
                ast.Attribute(value=ast.Constant(), attr="join")
                | ast.Name(id="next" | "max" | "min" | "sorted" | "tuple")
            ):
                self._each(call.args, module, scope)
            case ast.Attribute(value=table, attr=attribute) if attribute in OF_TABLES:
                self._each((table, *call.args[1:]), module, scope)
            case ast.Name(id=name):
                source, functions = self._functions(name, module)
                for function in functions:
                    self._each(function.texts(), source, function)
            case ast.Attribute(attr=name) if len(by_name().get(name, [])) == 1:
                ((source, method),) = by_name()[name]
                self._each(method.texts(), source, method)
            case _:
                pass

    def _meant(self, value: ast.expr, module: Module, scope: Scope) -> list[ast.expr]:
        """The expressions that one may stand for, of which one element is needed: values of variables, and of tables in
        them."""
        match value:
            case ast.Name(id=name):
                known = scope.values.get(name) or module.scope.values.get(name, [])
                return [each for inner in known for each in self._meant(inner, module, scope)]
            case ast.Subscript(value=inner):
                return [each for table in self._meant(inner, module, scope) for each in rows(table)]
            case ast.Call(func=ast.Attribute(value=inner, attr="get" | "values")):
                values = [each for table in self._meant(inner, module, scope) for each in rows(table)]
                return values + value.args[1:]
            case ast.Call(func=ast.Attribute(value=inner, attr="items")):
                tables = [table for table in self._meant(inner, module, scope) if isinstance(table, ast.Dict)]
                pairs = [pair for table in tables for pair in zip(table.keys, table.values, strict=True)]
                return [ast.Tuple([ast.Tuple([key, each], ast.Load()) for key, each in pairs if key], ast.Load())]
            case _:
                return [value]

    def _named(self, name: str, module: Module, scope: Scope) -> None:
        around: Scope | None = scope
        while around is not None:
            if name in around.texts_given:
                self.spoken.setdefault(around.name, set()).add(name)
            if name in around.values:
                self._each(around.values[name], module, around)
            if name in around.texts_given or name in around.values:
                return
            around = around.around
        if name in module.imports:
            source, name = module.imports[name]
            if source in modules():
                self._named(name, modules()[source], modules()[source].scope)

    def add(self, text: str) -> None:
        """Collect a text that has words."""
        if is_sentence(text):
            self.texts[text] = None


def rows(table: ast.expr) -> list[ast.expr]:
    """The values of a table that is written out."""
    return (
        table.values if isinstance(table, ast.Dict) else table.elts if isinstance(table, ast.Tuple | ast.List) else []
    )


def elements(values: list[ast.expr], place: int) -> Iterator[ast.expr]:
    """The elements at a place of tuples that are written out."""
    for value in values:
        if isinstance(value, ast.Tuple | ast.List) and -len(value.elts) <= place < len(value.elts):
            yield value.elts[place]


@lru_cache(maxsize=1)
def message_texts() -> tuple[str, ...]:
    """The templates of all messages, and the labels of the command line."""
    reader = Reader()
    reader.read()
    for module in modules().values():
        for call, _ in module.calls:
            if call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value:
                word = str(call.args[0].value)
                if called(call) in LABELS:
                    reader.texts[word] = None
                if called(call) == "progress" and " " not in word:
                    reader.texts[f"{{title}}: {word}"] = None  # a single word is shown with its title only
    return tuple(reader.texts)


def parts(text: ast.expr) -> list[ast.expr]:
    """The parts of an f-string, or of a sum of texts."""
    if isinstance(text, ast.JoinedStr):
        return text.values
    if isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add):
        return [*parts(text.left), *parts(text.right)]
    return [text] if isinstance(text, ast.Constant) else [ast.FormattedValue(text, -1)]


def template(values: list[ast.expr]) -> str:
    """A text with the names of what is inserted."""
    text, names = "", list[str]()
    for value in values:
        if isinstance(value, ast.Constant):
            text += str(value.value)
            continue
        assert isinstance(value, ast.FormattedValue)
        name = _name(value.value)
        while name in names:
            name += "2"
        names.append(name)
        text += "{" + name + "}"
    return text


def _name(inserted: ast.expr) -> str:
    match inserted:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(args=[ast.Name(id=name), *_]) | ast.Subscript(value=ast.Name(id=name)):
            return name
        case _:
            return "value"


def is_sentence(text: str) -> bool:
    """Whether a text has words of its own, besides what it inserts."""
    return (
        " " in text.strip() and not CODE.search(text) and sum(map(str.isalpha, INSERTED.sub("", text))) >= LEAST_LETTERS
    )
