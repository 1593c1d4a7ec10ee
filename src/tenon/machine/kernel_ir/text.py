"""Loop IR kernels as text: ``show`` prints one, ``loop_parse.parse`` reads it back.

    kernel scale(n < 5; const x: f32[n, 16], global y: f32[n, 16]) {
      for i < n {
        let t: f32x8 = load x[i, 0]: f32x8
        y[i, 0] = mul(t, broadcast(2.0: f32): f32x8)
      }
    }

Statements are those of ``loops``: let, a store, copy, commit, wait, prefetch, alloc, barrier, for, if, outline,
instruction, call.  A
loop's kind stands before its variable unless it is serial; a variable with several bounds is ``i < min(a, b)``.
Operations show their type only where it does not follow from their arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from tenon.machine.kernel_ir.index import Atom, Index, Var
from tenon.machine.kernel_ir.loops import (
    BLOCKS,
    OPS,
    Alloc,
    AsyncCopy,
    Barrier,
    Bind,
    Buffer,
    CallSource,
    Commit,
    Const,
    Expr,
    Guarded,
    If,
    Instruction,
    Kernel,
    Let,
    Load,
    Loop,
    Op,
    Outline,
    Prefetch,
    Ref,
    Stmt,
    Store,
    Type,
    Wait,
)
from tenon.network.graph.types import DType

_MASKS = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}


def show(kernel: Kernel) -> str:
    """The text of a kernel."""
    params = ", ".join(_buffer(b) for b in kernel.params)
    sizes = ", ".join(_var(v) for v in kernel.sizes) + "; " if kernel.sizes else ""
    body = "\n".join(_block(kernel.body, "  "))
    return f"kernel {kernel.name}({sizes}{params}) {{\n{body}\n}}\n"


def show_index(i: Index) -> str:
    """An index with every quotient and remainder in parentheses."""
    terms = [_atom(a) if k == 1 else f"{k}*{_atom(a)}" for a, k in i.terms]
    return " + ".join(terms + ([str(i.const)] if i.const or not terms else []))


def _atom(atom: Atom) -> str:
    if isinstance(atom, Var):
        return atom.name
    return f"({show_index(atom.of)} {'%' if atom.rest else '//'} {atom.by})"


def _indices(at: tuple[Index, ...]) -> str:
    return ", ".join(map(show_index, at))


def _facts(facts: tuple[Index, ...]) -> str:
    return ", ".join(f"{show_index(f)} >= 0" for f in facts)


def _buffer(b: Buffer) -> str:
    return f"{b.space} {b.name}: {b.type}[{_indices(b.shape)}]"


def _var(v: Var) -> str:
    bounds = _indices(v.below)
    return f"{v.name} < " + (f"min({bounds})" if len(v.below) > 1 else bounds)


def derived_type(name: str, args: tuple[Expr, ...]) -> Type | None:
    """The type that an operation has by its row of the table; None where the row leaves it open."""
    first = args[0].type
    match OPS[name].result:
        case "same":
            return first
        case "arg1":
            return args[1].type
        case "mask":
            return Type(_MASKS[first.dtype.bytes], first.lanes)
        case "scalar":
            return Type(first.dtype)
    return None


def show_expr(e: Expr) -> str:
    """A value as text."""
    match e:
        case Const():
            return f"{e.value!r}: {e.type}"
        case Ref():
            return e.name
        case Load():
            suffix = "" if e.type == e.buffer.type else f": {e.type}"
            return f"load {e.buffer.name}[{_indices(e.index)}]{suffix}"
        case Guarded():
            return f"when({_facts(e.facts)}; {show_expr(e.value)}; {show_expr(e.other)})"
        case Op():
            suffix = "" if e.type == derived_type(e.name, e.args) else f": {e.type}"
            return f"{e.name}({', '.join(map(show_expr, e.args))}){suffix}"
    raise TypeError(f"{type(e).__name__} is not an expression of the loop IR")


def _block(body: tuple[Stmt, ...], indent: str) -> Iterator[str]:
    for s in body:
        match s:
            case Let():
                yield f"{indent}let {s.ref.name}: {s.ref.type} = {show_expr(s.value)}"
            case Store():
                word = "copy " if isinstance(s, AsyncCopy) else ""
                yield f"{indent}{word}{s.buffer.name}[{_indices(s.index)}] = {show_expr(s.value)}"
            case Prefetch():
                yield f"{indent}prefetch {s.buffer.name}[{_indices(s.index)}]"
            case Alloc():
                yield f"{indent}alloc {_buffer(s.buffer)}"
            case Barrier():
                yield f"{indent}barrier{' cluster' if s.cluster else ''}"
            case Commit():
                yield f"{indent}commit"
            case Wait():
                yield f"{indent}wait {s.groups}"
            case CallSource():
                operands = ", ".join([*(b.name for b in s.buffers), *map(show_expr, s.numbers)])
                yield f"{indent}call {s.function}({operands}) {json.dumps(s.source)}"
            case Loop() | Bind() | If() | Outline() | Instruction():
                yield f"{indent}{_head(s)} {{"
                yield from _block(s.body, indent + "  ")
                yield f"{indent}}}"


def _head(s: BLOCKS) -> str:
    match s:
        case Bind():
            return f"bind {_var(s.var)} = {show_expr(s.value)}"
        case Loop():
            return f"for {'' if s.kind == 'serial' else s.kind + ' '}{_var(s.var)}"
        case If():
            return f"if {_facts(s.facts)}"
        case Instruction():
            operands = ", ".join(f"{buffer.name}[{_indices(at)}]" for buffer, at in s.operands)
            return f"instruction {json.dumps(s.name)}({operands}; {', '.join(map(str, s.numbers))})"
        case Outline():
            return f"outline {json.dumps(s.name)}"
