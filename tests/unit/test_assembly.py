"""Frames and calls read from assembly, and the bound of the stack that follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenon.errors import InternalError
from tenon.machine.targets import find
from tenon.machine.toolchain import compiler
from tenon.machine.toolchain.assembly import LIBRARY_FRAME, StackFrame, frames, stack_bound

SOURCE = b"""
int outside(int *p);
#define ESCAPES(a) __asm__ volatile("" : : "r"(a) : "memory")
__attribute__((noinline)) static void leaf(int *p, int n) { int a[100]; ESCAPES(a); p[0] = a[n]; }
__attribute__((noinline)) static void middle(int *p) { int b[20]; ESCAPES(b); leaf(p, b[3]); p[1] = b[4]; }
__attribute__((noinline)) static void aligned(int *p) {
  int d[8] __attribute__((aligned(64)));
  ESCAPES(d);
  p[1] = d[4];
}
int entry(int *p);
int entry(int *p) { int c[50]; ESCAPES(c); leaf(p, 3); middle(p); return c[0]; }
int other(int *p);
int other(int *p) { aligned(p); return outside(p) + 1; }
"""


@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "cortex-m55", "riscv32imc"])
def test_frames_of_nested_calls_add_up(target: str, tmp_path: Path) -> None:
    text = compiler.zig(tmp_path).assembly({"k.c": SOURCE}, "k.c", find(target))
    frame_of = frames(text)
    assert frame_of["entry"].calls == {"leaf", "middle"}
    assert frame_of["other"].calls == {"outside", "aligned"}
    assert frame_of["aligned"].size >= 32 + 64 - 8, "with what aligning takes"
    assert 400 <= frame_of["leaf"].size < 480
    assert 80 <= frame_of["middle"].size < 120
    assert 200 <= frame_of["entry"].size < 250
    assert stack_bound(frame_of, "entry") == sum(frame_of[name].size for name in ("entry", "middle", "leaf"))
    assert stack_bound(frame_of, "other") == frame_of["other"].size + LIBRARY_FRAME


def test_sizes_of_every_number_of_bytes() -> None:
    lines = [
        'one:\n\t.section\t.stack_sizes,"o",%progbits,.text\n\t.long\t.Lfunc_begin0\n\t.byte\t48',
        'two:\n\tbl\tone  @ comment\n\t.section\t.stack_sizes,"o",%progbits,.text\n\t.long\t0\n\t.ascii\t"\\270\\003"',
        'four:\n\t.section\t.stack_sizes,"o",@progbits,.text\n\t.word\t0\n\t.ascii\t"\\200A"',
        'tab:\n\t.section\t.stack_sizes,"o",@progbits,.text\n\t.word\t0\n\t.ascii\t"\\200\\t"',
        'quoted:\n\t.section\t.stack_sizes,"o",@progbits,.text\n\t.word\t0\n\t.ascii\t"\\200\\""',
    ]
    frame_of = frames("\n".join(lines))
    assert {name: frame.size for name, frame in frame_of.items()} == {
        "one": 48,
        "two": 440,
        "four": ord("A") << 7,
        "tab": 9 << 7,
        "quoted": ord('"') << 7,
    }
    assert frame_of["two"].calls == {"one"}


def test_recursion_has_no_bound() -> None:
    functions = {"a": StackFrame(8, frozenset({"b"})), "b": StackFrame(8, frozenset({"a"}))}
    with pytest.raises(InternalError, match="a calls itself"):
        stack_bound(functions, "a")
