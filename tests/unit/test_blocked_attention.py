"""Attention on processors, of blocks of queries and of one: results, proofs, and what is chosen by estimate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from check_kernels import check
from interpret import interpret
from tenon.machine.algorithms.attention import attends, gains, time_apart, time_in_one
from tenon.machine.kernel_ir.parse import parse
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernels import attention_tiles, row_attention
from tenon.machine.kernels.attention_tiles import places, scratch
from tenon.machine.kernels.blocked_attention import blocked_attention
from tenon.machine.kernels.head_sizes import HeadSizes, MaskSizes
from tenon.machine.kernels.machine import Machine
from tenon.machine.proofs.bounds import OutOfRangeError, prove
from tenon.machine.targets import find
from tenon.network.graph.types import DType
from tenon.network.ops.head_attention import HeadAttention

BASE = HeadSizes(2, 11, 21, 6, 0.3)
MACHINES = {"lanes1": Machine(), "lanes4": Machine(lanes=4, registers=16), "lanes8": Machine(lanes=8, registers=32)}
CASES = {
    "plain": (BASE, {}),
    "batches": (replace(BASE, merged=True, batch=2, keys=5, values=9), {}),
    "one_query": (replace(BASE, queries=1), {}),
    "squares": (replace(BASE, queries=9, depth=8), {}),
    "causal": (replace(BASE, causal=True, keys=11), {}),
    "window": (replace(BASE, causal=True, window=4, softcap=2.0), {}),
    "added": (replace(BASE, mask=MaskSizes(1, 1, 21, 11)), {}),
    "chosen": (replace(BASE, mask=MaskSizes(1, 2, 21, 11, DType.BOOL), fill=-1e9), {}),
    "keys_only": (replace(BASE, mask=MaskSizes(1, 1, 21, 1)), {}),
    "counted": (replace(BASE, group=2, length=True), {"length": 13}),
    "cache": (replace(BASE, queries=3, group=2, length=True, causal=True, past=True), {"length": 13, "past": 10}),
    "window_of_cache": (replace(BASE, length=True, causal=True, past=True, window=5), {"length": 13, "past": 2}),
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Several blocks of keys in few of them."""
    blocked_attention.cache_clear()
    monkeypatch.setattr(attention_tiles, "_BLOCK", 8)
    yield
    blocked_attention.cache_clear()


def operands(s: HeadSizes, length: int | None, past: int | None) -> list[Any]:
    """Inputs of the operator; keys and values from ``length`` on are NaN."""
    rng = np.random.default_rng(0)
    heads = ((s.count, s.queries, s.depth), *((s.count // s.group, s.keys, n) for n in (s.depth, s.channels)))
    q, k, v = (rng.standard_normal((s.batch, *dims)).astype(np.float32) for dims in heads)
    if length is not None:
        k[:, :, length:] = v[:, :, length:] = np.nan
    mask: Any = None
    if s.mask is not None:
        mask = rng.standard_normal((s.mask.batch, s.mask.heads, s.mask.keys, s.mask.queries)).astype(np.float32)
        mask = mask > 0 if s.mask.dtype is DType.BOOL else mask
    numbers = (None if n is None else np.array(n, np.int64) for n in (length, past))
    return [q, k, v, mask, *numbers]


def arguments(s: HeadSizes, machine: Machine, inputs: list[Any]) -> list[Any]:
    """The kernel's arguments but the results; scratch memory is NaN."""
    given = [a.reshape(1) if a.ndim == 0 else a for a in inputs if a is not None]
    numbers = [np.arange(places(s), dtype=np.int32)] if s.causal else []
    room = [np.full(shape, np.nan, np.float32) for _, shape in scratch(s, machine)]
    return [*given, *numbers, *room]


SWEEP = [(name, "lanes4") for name in CASES] + [(name, lanes) for name in ("cache", "added") for lanes in MACHINES]


@pytest.mark.parametrize(("name", "lanes"), sorted(set(SWEEP)))
def test_results(name: str, lanes: str) -> None:
    (s, numbers), machine = CASES[name], MACHINES[lanes]
    inputs = operands(s, numbers.get("length"), numbers.get("past"))
    op = HeadAttention(s.scale, s.merged, s.causal, s.window, s.softcap, s.fill)
    expected = op.reference(*inputs)
    kernel, y = blocked_attention(s, machine), np.zeros(expected.shape, np.float32)
    interpret(kernel, [*arguments(s, machine, inputs), y])
    np.testing.assert_allclose(y, expected, atol=1e-6)
    assert prove(kernel) > 0


def test_the_second_check_accepts_what_is_proved() -> None:
    assert check(show(blocked_attention(CASES["cache"][0], MACHINES["lanes4"]))) > 0


def test_a_loop_past_the_keys_is_refused() -> None:
    """The planted fault: values of one key less than the loops read."""
    text = show(blocked_attention(replace(BASE, keys=8), Machine()))
    faulty = text.replace("const v: f32[1, 2, 8, 6]", "const v: f32[1, 2, 7, 6]")
    assert faulty != text
    with pytest.raises(OutOfRangeError, match="load of v, dimension 2: passes the end by 1"):
        prove(parse(faulty))


ROW = HeadSizes(2, 1, 21, 6, 0.3)
ROWS = {
    "plain": (ROW, {}, 1),
    "shared": (replace(ROW, count=4, group=4, values=9, merged=True), {}, 1),
    "chosen": (
        replace(ROW, length=True, group=2, mask=MaskSizes(1, 2, 21, 1, DType.BOOL), fill=-1e9, softcap=2.0),
        {"length": 17},
        1,
    ),
    "window": (
        replace(ROW, length=True, causal=True, past=True, window=7, mask=MaskSizes(1, 1, 21, 1)),
        {"length": 19, "past": 15},
        1,
    ),
    "parts": (replace(ROW, length=True, causal=True, past=True, batch=2), {"length": 19, "past": 15}, 2),
    "parts_past_the_last_key": (replace(ROW, length=True), {"length": 9}, 3),
}


@pytest.mark.parametrize("lanes", ["lanes1", "lanes8"])
@pytest.mark.parametrize("name", ROWS)
def test_results_of_one_query(name: str, lanes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_attention, "BLOCK", 8)
    (s, numbers, parts), machine = ROWS[name], MACHINES[lanes]
    inputs = operands(s, numbers.get("length"), numbers.get("past"))
    op = HeadAttention(s.scale, s.merged, s.causal, s.window, s.softcap, s.fill)
    expected = op.reference(*inputs)
    kernel, y = row_attention.row_attention.__wrapped__(s, machine, parts), np.zeros(expected.shape, np.float32)
    given = [a.reshape(1) if a.ndim == 0 else a for a in inputs if a is not None]
    room = [np.full(shape, np.nan, np.float32) for _, shape in row_attention.row_scratch(s, parts)]
    results = [np.full(shape, np.nan, np.float32) for _, shape in row_attention.parts_shapes(s, parts)]
    interpret(kernel, [*given, *room, *([y] if parts == 1 else results)])
    assert prove(kernel) > 0
    if parts > 1:
        join = row_attention.joined_parts(s, machine, parts)
        interpret(join, [*results, y])
        assert prove(join) > 0
    np.testing.assert_allclose(y, expected, atol=1e-6)


def test_parts_of_keys_do_not_depend_on_threads() -> None:
    assert row_attention.parts_of(replace(ROW, count=8, keys=2048)) == 4
    assert row_attention.parts_of(replace(ROW, count=8, group=8, keys=2048)) == 8
    assert row_attention.parts_of(replace(ROW, count=64, keys=2048)) == 1


def test_rows_of_lowest_scores_are_averages() -> None:
    """Scores of the lowest number everywhere are equal, as those of keys that padding hides."""
    s = replace(BASE, mask=MaskSizes(1, 1, 21, 11, DType.BOOL), fill=float(np.finfo(np.float32).min))
    inputs = operands(s, None, None)
    inputs[3] = np.zeros_like(inputs[3])
    y = np.zeros(s.result, np.float32)
    interpret(blocked_attention(s, MACHINES["lanes4"]), [*arguments(s, MACHINES["lanes4"], inputs), y])
    np.testing.assert_allclose(y, np.broadcast_to(inputs[2].mean(2, keepdims=True), y.shape), atol=1e-6)


def test_long_attention_is_one_kernel_by_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    machine = find("x86-64-avx512").machine
    long = HeadSizes(8, 512, 512, 64, 0.125)
    assert gains(long, machine)
    assert gains(replace(long, queries=1), machine)
    assert gains(replace(long, queries=49, keys=49, depth=32, count=4), machine)
    assert 1.05 < time_apart(long, machine) / time_in_one(long, machine) < 1.3
    assert 0.5 < time_in_one(replace(long, causal=True), machine) / time_in_one(long, machine) < 0.65
    assert not attends(replace(long, dtype=DType.F16), machine)


@pytest.mark.parametrize("threads", [2, 4, 16])
def test_several_threads_gain_as_one_does(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products whose work is divided once, and threads that meet between the operators."""
    monkeypatch.undo()
    machine = find("x86-64-avx512").machine
    long, many = HeadSizes(8, 512, 512, 64, 0.125), replace(machine, threads=threads)
    assert gains(long, many)
    assert gains(replace(long, queries=1), many)
    ratios = [time_apart(long, each) / time_in_one(long, each) for each in (machine, many)]
    assert ratios[1] == pytest.approx(ratios[0], rel=0.1)


def test_fewer_blocks_than_threads_are_products_and_a_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    machine = find("x86-64-avx512").machine
    few = HeadSizes(4, 5, 2048, 64, 0.125)
    assert gains(few, machine)
    assert not gains(few, replace(machine, threads=16))


def test_transpositions_around_attention_count_in_its_favour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three heads of a vision transformer, whose results are merged: one kernel in place of five."""
    monkeypatch.undo()
    machine = replace(find("x86-64-avx512").machine, threads=4)
    apart, merged = (time_apart(HeadSizes(3, 197, 197, 64, 0.125, merged=m), machine) for m in (False, True))
    assert 1.02 < merged / apart < 1.1
    assert gains(HeadSizes(3, 197, 197, 64, 0.125, merged=True), machine)
