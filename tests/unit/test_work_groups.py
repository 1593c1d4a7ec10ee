"""Kernels in work groups: what the proofs refuse, what all of them mean, and what backends print."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from check_kernels import FaultError, check
from interpret import interpret
from loop_operations import KernelError
from tenon.errors import InternalError
from tenon.machine.codegen.backend import find
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.spaces import MemorySpace
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_groups import work_groups
from tenon.machine.proofs.bounds import ConflictError, OutOfRangeError, prove
from tenon.network.graph.graph import Array

REVERSED = """
kernel reversed(const x: f32[2, 4], global y: f32[2, 4]) {
  for block b < 2 {
    alloc shared s: f32[4]
    for thread t < 4 { s[t] = load x[b, t] barrier y[b, t] = load s[-1*t + 3] }
  }
}"""
STAGES = """
kernel stages(const x: f32[8, 64], global y: f32[64]) {
  alloc shared s: f32[2, 64]
  for thread t < 64 {
    alloc register a: f32[1]
    a[0] = 0.0: f32
    for k < 8 {
      s[(k % 2), t] = load x[k, t]
      barrier
      a[0] = add(load a[0], load s[(k % 2), -1*t + 63])
    }
    y[t] = load a[0]
  }
}"""
TREE = """
kernel tree(const x: f32[2, 4], global y: f32[2]) {
  for block b < 2 {
    alloc shared s: f32[4]
    for thread t < 4 {
      s[t] = load x[b, t]
      barrier
      if -1*t + 1 >= 0 { s[t] = add(load s[t], load s[t + 2]) }
      barrier
      if -1*t >= 0 { y[b] = add(load s[0], load s[1]) }
    }
  }
}"""
STRIPS = """
kernel strips(const x: f32[6, 7], global y: f32[6, 7]) {
  alloc shared s: f32[6, 7]
  for thread t < 16 {
    for i < 3 {
      if 41 + -1*t + -16*i >= 0 { s[(t + 16*i // 7), (t + 16*i % 7)] = load x[(t + 16*i // 7), (t + 16*i % 7)] }
    }
    barrier
    for i < 3 {
      if 41 + -1*t + -16*i >= 0 {
        y[(t + 16*i // 7), (t + 16*i % 7)] = load s[(41 + -1*t + -16*i // 7), (41 + -1*t + -16*i % 7)]
      }
    }
  }
}"""
VECTORS = """
kernel vectors(const x: f32[2, 16], global y: f32[2, 16]) {
  for block b < 2 {
    alloc shared s: f32[4, 4]
    for thread t < 4 {
      alloc register r: f32x4[1]
      r[0] = when(-1*t + 2 >= 0; load x[b, 4*t]: f32x4; broadcast(0.0: f32): f32x4)
      s[t, 0] = load r[0]
      barrier
      y[b, 4*t] = vector4(load s[-1*t + 3, 0], load s[-1*t + 3, 1], load s[-1*t + 3, 2], 1.0: f32): f32x4
    }
  }
}"""
NESTED = """
kernel nested(const x: f32[3, 2, 4, 8], global y: f32[3, 2, 4, 8]) {
  for block i < 3 { for block j < 2 {
    alloc shared s: f32[4, 8]
    for thread u < 4 { for thread v < 8 {
      s[u, v] = load x[i, j, u, v]
      barrier
      y[i, j, u, v] = load s[-1*u + 3, -1*v + 7]
    } }
  } }
}"""
HALVES = """
kernel halves(const x: f32[3, 4], global y: f32[3, 4]) {
  for block b < 3 {
    alloc shared s: f32[4]
    for thread t < 4 {
      for n < 2 {
        barrier
        if 1 + -1*b + -1*n >= 0 { s[t] = load x[b, t] barrier y[b, t] = load s[-1*t + 3] }
      }
    }
  }
}"""
CORRECT = {
    "halves": HALVES,
    "reversed": REVERSED,
    "stages": STAGES,
    "tree": TREE,
    "strips": STRIPS,
    "vectors": VECTORS,
    "nested": NESTED,
}
RACE = "two threads may write and read one element of s between two barriers"
EXCHANGE = 'instruction "shuffle_xor"(s[t]; 1)'
STRIP = "if 41 + -1*t + -16*i >= 0 { s"
FAULTY = {
    "no barrier": (REVERSED, "barrier", "", RACE),
    "barrier under a test of the thread": (
        REVERSED,
        "barrier",
        "if -1*t + 2 >= 0 { barrier }",
        "a barrier stands under a test",
    ),
    "barrier of an instruction, which orders its own accesses alone": (
        REVERSED,
        "barrier",
        f"{EXCHANGE} {{ barrier }}",
        RACE,
    ),
    "instruction with a barrier under a test of the thread": (
        REVERSED,
        "barrier",
        f"barrier if -1*t + 2 >= 0 {{ {EXCHANGE} {{ barrier }} }}",
        "a barrier stands under a test",
    ),
    "exchanges through one element": (
        REVERSED,
        "barrier y[b, t] = load s[-1*t + 3]",
        f"{EXCHANGE} {{ barrier y[b, t] = load s[-1*t + 3] }} {EXCHANGE} {{ s[t] = 1.0: f32 barrier }}",
        RACE,
    ),
    "barrier in a loop bounded by the thread": (
        REVERSED,
        "barrier",
        "for i < t + 1 { barrier }",
        "a barrier stands in loop i",
    ),
    "barrier under a value from data": (
        REVERSED,
        "barrier",
        "bind c < 3 = load x[b, t] { barrier }",
        "a barrier stands under the value c",
    ),
    "barrier under a test of the block and the thread": (
        HALVES,
        "1 + -1*b",
        "1 + -1*b + -1*t",
        "a barrier stands under a test",
    ),
    "no barrier before a test of the block": (HALVES, "barrier\n        if", "if", RACE),
    "no barrier under a test of the block": (HALVES, "t] barrier", "t]", RACE),
    "read behind a test of the block": (
        HALVES,
        "y[b, t] = load s[-1*t + 3] }",
        "} barrier y[b, t] = load s[-1*t + 3]",
        "shared s is read before it is written",
    ),
    "tail against head": (STAGES, "s[(k % 2)", "s[0", RACE),
    "same stage in the next round": (STAGES, "s[(k % 2), t] =", "s[(k + 1 % 2), t] =", "shared s is read before"),
    "index past the tile": (REVERSED, "-1*t + 3", "-1*t + 4", "load of s, dimension 0: passes the end by 1"),
    "too much shared memory": (REVERSED, "s: f32[4]", "s: f32[16000]", "64000 bytes of shared memory, more than 49152"),
    "read before written": (REVERSED, "s[t] =", "s[0] =", "shared s is read before it is written"),
    "half of the strips": (
        STRIPS,
        f"for i < 3 {{\n      {STRIP}",
        f"for i < 2 {{ {STRIP}",
        "shared s is read before it is written",
    ),
    "strips stored under another test": (
        STRIPS,
        STRIP,
        STRIP.replace("41", "40"),
        "shared s is read before it is written",
    ),
    "test of a step of the tree": (TREE, "-1*t + 1 >= 0", "-1*t + 2 >= 0", "passes the end by 1"),
    "step of the tree": (TREE, "load s[t + 2]", "load s[t + 1]", RACE),
    "no barrier in the tree": (TREE, "barrier\n      if -1*t >= 0", "if -1*t >= 0", RACE),
    "one thread against all": (
        TREE,
        "y[b] = add(load s[0], load s[1])",
        "s[1] = 0.0: f32 } if t + -1 >= 0 { s[t] = load s[1]",
        RACE,
    ),
    "blocks": (REVERSED, "y[b, t]", "y[0, t]", "two blocks may write one element of y"),
    "blocks read what another writes": (
        REVERSED,
        "barrier y[b, t] = load s[-1*t + 3]",
        "barrier y[b, t] = load y[0, t]",
        "two blocks may write and read",
    ),
    "two threads write": (REVERSED, "y[b, t]", "y[b, (t // 2)]", "two threads may write one element of y"),
    "vector that is not aligned": (VECTORS, "x[b, 4*t]", "x[b, 3*t]", "4 elements that may not be aligned"),
    "nest of threads": (NESTED, "barrier", "", RACE),
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_kernels_are_proved(name: str) -> None:
    kernel = parse(CORRECT[name])
    assert show(parse(show(kernel))) == show(kernel)
    assert prove(kernel) > 0


@pytest.mark.parametrize("name", FAULTY)
def test_faults_are_refused(name: str) -> None:
    text, line, faulty, message = FAULTY[name]
    assert line in text
    with pytest.raises(OutOfRangeError, match=message.replace("[", r"\[")):
        prove(parse(text.replace(line, faulty)))


KINDS = {
    "a barrier stands": "barrier",
    "two ": "threads",
    "shared memory, more": "limit",
    "read before": "unwritten",
    "passes the end": "range",
}


@pytest.mark.parametrize("name", CORRECT)
def test_correct_kernels_pass_the_second_check(name: str) -> None:
    assert check(show(parse(CORRECT[name]))) > 0


@pytest.mark.parametrize("name", [name for name in FAULTY if name != "vector that is not aligned"])
def test_faults_are_found_by_the_second_check(name: str) -> None:
    text, line, faulty, message = FAULTY[name]
    kinds = {kind for words, kind in KINDS.items() if words in message}
    with pytest.raises(FaultError) as fault:
        check(show(parse(text.replace(line, faulty))))
    assert fault.value.args[0] in (kinds | {"threads"} if "unwritten" in kinds else kinds | {"unwritten"})


def test_races_are_conflicts() -> None:
    with pytest.raises(ConflictError):
        prove(parse(REVERSED.replace("barrier", "")))


def test_shared_memory_is_that_of_the_machine() -> None:
    kernel = parse(STAGES)
    assert prove(kernel, spaces=(MemorySpace("shared", 512),))
    with pytest.raises(OutOfRangeError, match="512 bytes of shared memory, more than 511"):
        prove(kernel, spaces=(MemorySpace("shared", 511),))
    with pytest.raises(OutOfRangeError, match="shared memory, which the machine has not"):
        prove(kernel, spaces=())


def data(text: str) -> list[Array]:
    rng = np.random.default_rng(1)
    shapes = [[extent.const for extent in buffer.shape] for buffer in parse(text).params]
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def test_the_interpreter_runs_threads_between_barriers() -> None:
    meanings: list[tuple[str, Callable[[Array], Array]]] = [
        (REVERSED, lambda x: x[:, ::-1]),
        (STAGES, lambda x: x.sum(0)[::-1]),
        (TREE, lambda x: x.sum(1)),
        (STRIPS, lambda x: x.reshape(-1)[::-1].reshape(x.shape)),
        (NESTED, lambda x: x[..., ::-1, ::-1]),
    ]
    for text, expected in meanings:
        x, y = data(text)
        interpret(parse(text), [x, y])
        np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    ["no barrier", "tail against head", "step of the tree", "no barrier in the tree", "blocks", "two threads write"],
)
def test_the_interpreter_finds_races(name: str) -> None:
    text, line, faulty, _ = FAULTY[name]
    with pytest.raises(KernelError, match=r"touched by two threads|read before it is written"):
        interpret(parse(text.replace(line, faulty)), data(text))


def test_loops_that_make_no_launch_are_refused() -> None:
    for line, faulty, message in (
        ("for thread t < 4 {", "for thread t < 4 { for parallel i < 2 { }", "a parallel loop inside of a thread"),
        ("for thread t < 4 {", "for thread t < 4 { alloc shared r: f32[4]", "a thread allocates the shared r"),
        ("alloc shared s: f32[4]", "alloc shared s: f32[4] s[0] = 1.0: f32", "more than one loop over threads"),
        ("for block b < 2", "for block b < min(2, 3)", "no constant number"),
    ):
        assert line in REVERSED
        with pytest.raises(InternalError, match=message):
            prove(parse(REVERSED.replace(line, faulty)))


def test_work_groups_are_counted() -> None:
    groups = work_groups(parse(NESTED))
    assert groups is not None
    assert (groups.count, groups.size, groups.shared_bytes) == (6, 32, 128)
    assert [groups.place(v) for v in (*groups.blocks, *groups.threads)] == [(2, 3), (1, 2), (8, 4), (1, 8)]


@pytest.mark.parametrize("language", ["cuda", "opencl", "vulkan"])
def test_languages_print_work_groups(language: str) -> None:
    text = find(language).kernel(parse(NESTED))
    for line in (
        "const int i = block_number / 2;",
        "const int j = block_number % 2;",
        "const int u = thread_number / 8;",
        "const int v = thread_number % 8;",
    ):
        assert line in text
    with pytest.raises(InternalError, match="this target has no shared memory"):
        find("c").kernel(parse(NESTED))
