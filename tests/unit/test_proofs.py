"""Kernels in text form that the proofs must reject, beside similar correct kernels."""

from __future__ import annotations

import pytest

from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.index import Index, Var
from tenon.machine.kernel_ir.loops import Alloc, Buffer, Const, Kernel, Let, Load, Loop, Prefetch, Ref, Store, Type
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.proofs.bounds import STACK, OutOfRangeError, prove
from tenon.network.graph.types import F32


def kernel(body: str, sizes: str = "", params: str = "const x: f32[4], global y: f32[64]") -> Kernel:
    return parse(f"kernel k({sizes}{params}) {{\n{body}\n}}\n")


ONE = "1.0: f32"
DIVIDES = "divides a negative number"
UNWRITTEN = "is read before it is written"

QUOTIENTS = {
    "sound": ("for v < 8 { y[v] = load x[(v + 3 // 4)] }", ""),
    "index": ("for v < 4 { y[v] = load x[(v + -1 // 4) + 1] }", DIVIDES),
    # the minimum dividend is 1, the minimum quotient 0
    "below": ("for v < 8 { y[v] = load x[(v + 1 // 5) + -1] }", "starts 1 before 0"),
    # (v - 5) mod 4 with floor division is 0..3; truncated as in C, it is -3..3
    "nested": ("for v < 8 { y[v] = load x[(8*v + -32*(v + -5 // 4) + -40 // 8)] }", DIVIDES),
    "remainder": ("for v < 8 { y[v] = load x[(v + -5 % 4)] }", DIVIDES),
    "bound": ("for v < 8 { for u < (v + -5 // 4) + 3 { y[v] = load x[u] } }", DIVIDES),
    "test": ("for v < 8 { if (v + -5 // 4) >= 0 { y[v] = load x[0] } }", DIVIDES),
    "test of a value": (f"for v < 8 {{ y[v] = when((v + -5 // 4) >= 0; load x[0]; {ONE}) }}", DIVIDES),
    "store": ("for v < 8 { y[(v + -5 // 4) + 2] = load x[0] }", DIVIDES),
    "prefetch": ("for v < 8 { prefetch x[(v + -5 // 4)] y[v] = load x[0] }", DIVIDES),
    # a condition guards the conditions after it, not those before it
    "protected": ("for v < 8 { if v + -5 >= 0, -1*(v + -5 // 4) >= 0 { y[v] = load x[0] } }", ""),
    "too late": ("for v < 8 { if -1*(v + -5 // 4) >= 0, v + -5 >= 0 { y[v] = load x[0] } }", DIVIDES),
}

WRITTEN = {
    "one cell": (f"alloc register r: f32[2] r[0] = {ONE} y[0] = load r[0]", ""),
    "another cell": (f"alloc register r: f32[2] r[0] = {ONE} y[0] = load r[1]", UNWRITTEN),
    "every cell": (
        f"alloc register r: f32[3] for unroll i < 3 {{ r[i] = {ONE} }} for unroll j < 3 {{ y[j] = load r[j] }}",
        "",
    ),
    "one too few": (
        f"alloc register r: f32[3] for unroll i < 2 {{ r[i] = {ONE} }} for unroll j < 3 {{ y[j] = load r[j] }}",
        UNWRITTEN,
    ),
    "a column": (
        "alloc register r: f32[2, 3] for unroll i < 2 {"
        f" for unroll j < 3 {{ r[i, j] = {ONE} }} for unroll m < 3 {{ y[m] = load r[i, m] }} }}",
        "",
    ),
    "another column": (
        "alloc register r: f32[3, 3] for unroll i < 2 {"
        f" for unroll j < 3 {{ r[i, j] = {ONE} }} for unroll m < 3 {{ y[m] = load r[i + 1, m] }} }}",
        UNWRITTEN,
    ),
    "a diagonal": (
        f"alloc register r: f32[2, 2] for unroll i < 2 {{ r[i, i] = {ONE} }} y[0] = load r[0, 1]",
        UNWRITTEN,
    ),
    "every second": (f"alloc stack r: f32[8] for i < 4 {{ r[2*i] = {ONE} }} y[0] = load r[1]", UNWRITTEN),
    "whole vectors": (
        "alloc stack r: f32[8] for i < 2 { r[4*i] = broadcast(1.0: f32): f32x4 } for j < 8 { y[j] = load r[j] }",
        "",
    ),
    "too narrow vectors": (
        "alloc stack r: f32[8] for i < 2 { r[4*i] = broadcast(1.0: f32): f32x2 } for j < 8 { y[j] = load r[j] }",
        UNWRITTEN,
    ),
    "before the loop": (f"alloc register r: f32[1] r[0] = {ONE} for i < 4 {{ y[i] = load r[0] }}", ""),
    "an iteration before": (
        f"alloc register r: f32[1] for i < 4 {{ y[i] = load r[0] r[0] = {ONE} }}",
        UNWRITTEN,
    ),
    "a loop that runs": (f"alloc register r: f32[1] for i < 4 {{ r[0] = {ONE} }} y[0] = load r[0]", ""),
    "a loop that may not run": (
        f"for n < 5 {{ alloc register r: f32[1] for i < n {{ r[0] = {ONE} }} y[n] = load r[0] }}",
        UNWRITTEN,
    ),
    "a shorter loop": (
        f"for n < 5 {{ alloc stack r: f32[8] for i < n + 1 {{ r[i] = {ONE} }} y[n] = load r[1] }}",
        UNWRITTEN,
    ),
    "a loop as long": (
        f"for n < 5 {{ alloc stack r: f32[8] for i < n + 2 {{ r[i] = {ONE} }} y[n] = load r[1] }}",
        "",
    ),
    "in a test": (
        f"for n < 5 {{ alloc register r: f32[1] if n + -3 >= 0 {{ r[0] = {ONE} }} y[n] = load r[0] }}",
        UNWRITTEN,
    ),
    "in the same test": (
        f"for n < 5 {{ alloc register r: f32[1] if n + -3 >= 0 {{ r[0] = {ONE} }}"
        " if n + -3 >= 0 { y[n] = load r[0] } }",
        "",
    ),
    "in a wider test": (
        f"for n < 5 {{ alloc register r: f32[1] if n + -3 >= 0 {{ r[0] = {ONE} }}"
        " if n + -2 >= 0 { y[n] = load r[0] } }",
        UNWRITTEN,
    ),
    "in a test of another iteration": (
        "alloc register r: f32[1]"
        f" for n < 5 {{ if n + -3 >= 0 {{ r[0] = {ONE} }} }} for m < 5 {{ if m + -3 >= 0 {{ y[m] = load r[0] }} }}",
        UNWRITTEN,
    ),
    "never": ("alloc stack r: f32[4] y[0] = load r[0]", UNWRITTEN),
    "new in each iteration": (
        f"for i < 4 {{ alloc register r: f32[1] if i >= 0, -1*i >= 0 {{ r[0] = {ONE} }} y[i] = load r[0] }}",
        UNWRITTEN,
    ),
    "by another thread": (
        f"for parallel i < 4 {{ alloc stack r: f32[4] for parallel j < 4 {{ r[0] = {ONE} }} y[i] = load r[0] }}",
        r"carries a value|before it is written",
    ),
}

LIMITS = {
    "small stack": (f"alloc stack r: f32[{STACK // 4}] r[0] = {ONE} y[0] = load r[0]", ""),
    "large stack": (f"alloc stack r: f32[{STACK // 4 + 1}] r[0] = {ONE} y[0] = load r[0]", "bytes of stack, more than"),
    "two stack arrays": (
        f"alloc stack r: f32[{STACK // 4}] alloc stack s: f32[1] s[0] = {ONE} y[0] = load s[0]",
        "bytes of stack, more than",
    ),
    "near prefetch": ("for i < 4 { prefetch x[1000*i] y[i] = load x[i] }", ""),
    "far prefetch": ("for i < 4 { prefetch x[1000000000*i] y[i] = load x[i] }", "more than 31 bits"),
    "wide test": ("for i < 4 { for j < 4 { if 1000000000*i + -7*j >= 0 { y[i] = load x[i] } } }", "more than 31 bits"),
    "wide bound": ("for i < 4 { for j < min(4, 1000000000*i) { y[i] = load x[j] } }", "more than 31 bits"),
    "long loop": (f"for i < {2**31} {{ y[0] = load x[0] }}", "more than 31 bits"),
    "register in a loop": (
        f"alloc register r: f32[4] for i < 4 {{ r[i] = {ONE} y[i] = load r[i] }}",
        "known only when it runs",
    ),
    "vector of six": ("y[0] = broadcast(1.0: f32): f32x6", "does not fit"),
    "unrolled as long as another": (f"for n < 5 {{ for unroll i < n {{ y[i] = {ONE} }} }}", "no constant number"),
    "scalar of a vector register": (
        "alloc register r: f32x4[1] r[0] = broadcast(1.0: f32): f32x4 y[0] = load r[0]: f32",
        "does not fit",
    ),
    "another element type": ("y[0] = load x[0]: i32", "does not fit"),
}

ROWS = {
    f"{group}: {name}": row
    for group, rows in (("quotient", QUOTIENTS), ("written", WRITTEN), ("limit", LIMITS))
    for name, row in rows.items()
}


@pytest.mark.parametrize("name", ROWS)
def test_accepted_and_rejected_kernels(name: str) -> None:
    body, message = ROWS[name]
    if message:
        with pytest.raises(OutOfRangeError, match=message):
            prove(kernel(body))
    else:
        assert prove(kernel(body)) > 0


def test_sizes_are_in_scope_and_small() -> None:
    params = "const x: f32[n], global y: f32[n]"
    assert prove(kernel("for i < n { y[i] = load x[i] }", "n < 1000; ", params)) == 2
    with pytest.raises(OutOfRangeError, match="more than 31 bits"):
        prove(kernel("for i < 4 { y[i] = 1.0: f32 }", f"n < {2**31 + 1}; "))


X, Y = (Buffer(name, Type(F32), (Index((), 4),), space) for name, space in (("x", "const"), ("y", "global")))
LOOP = Var("i", (Index((), 4),), 1)
AT = (Index(((LOOP, 1),)),)
ZERO = (Index(),)
LOAD, VALUE = Load(X, ZERO, Type(F32)), Ref("t", Type(F32))
NUMBER = Const(1.0, Type(F32))
LOCAL = Buffer("r", Type(F32), (Index((), 1),), "stack")


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (Kernel("k", (Y,), (), (Store(Y, ZERO, LOAD),)), "x is used where it is not in scope"),
        (Kernel("k", (Y,), (), (Prefetch(X, ZERO), Store(Y, ZERO, NUMBER))), "x is used where it is not in scope"),
        (Kernel("k", (X, Y), (), (Store(Y, AT, LOAD),)), "i is used where it is not in scope"),
        (Kernel("k", (X, Y), (), (Loop(LOOP, (Store(Y, AT, LOAD),)), Store(Y, AT, LOAD))), "i is used where"),
        (Kernel("k", (X, Y), (), (Loop(LOOP, (Loop(LOOP, (Store(Y, AT, LOAD),)),)),)), "i is the name of two things"),
        (Kernel("k", (X, Y), (), (Store(Y, ZERO, VALUE),)), "t is used where"),
        (Kernel("k", (X, Y), (), (Loop(LOOP, (Let(VALUE, LOAD),)), Store(Y, ZERO, VALUE))), "t is used where"),
        (Kernel("k", (X, Y), (), (Loop(LOOP, (Alloc(LOCAL),)), Store(LOCAL, ZERO, NUMBER))), "r is used where"),
        (Kernel("k", (X, Y), (), (Alloc(Buffer("x", Type(F32), ZERO, "stack")),)), "x is the name of two things"),
    ],
)
def test_names_are_used_in_scope(kernel: Kernel, message: str) -> None:
    with pytest.raises(OutOfRangeError, match=message):
        prove(kernel)


@pytest.mark.parametrize("what", ["value", "register"])
def test_outlined_functions_cannot_use_values_of_their_caller(what: str) -> None:
    k = Builder("k")
    x, y = k.param("x", 4), k.param("y", 4, out=True)
    value = k.let("t", x[0]) if what == "value" else None
    tile = k.local("r", 1)
    tile[0] = 1.0
    with k.outline("part"):
        y[0] = tile[0] if value is None else value
    with pytest.raises(OutOfRangeError, match=r"[tr] is used where it is not in scope"):
        prove(k.done())
