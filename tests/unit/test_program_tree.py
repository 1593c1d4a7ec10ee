"""Programs with loops and branches, built by hand and run as C: at once, by threads, timed, and by libtenon."""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from libtenon import sdk_for_clients
from tenon.compilation import resolved
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.codegen.threads import firsts, straight
from tenon.machine.kernel_ir.build import Builder
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.plan.lifetimes import lifetimes
from tenon.machine.plan.program import (
    Advance,
    Branch,
    Call,
    Carried,
    Item,
    Memory,
    Place,
    Port,
    Program,
    Region,
    Repeat,
    mapped,
    walk,
)
from tenon.machine.plan.text import show_program
from tenon.machine.proofs.regions import RegionError, prove_regions
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType, tensor
from tenon.options import Options
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.device import RemoteBundle

ROWS, SIZE, OUTER, INNER, MOST = 5, 24, 3, 4, 3
ROW = SIZE * 4
X, Y, COUNT, CHOICE, Z, GRID = 0, 512, 1024, 1088, 1152, 1280
STATE, NEW, COUNTERS = 0, 128, 256


def elementwise(name: str, value: Callable[..., Any], operands: int) -> Kernel:
    """A kernel over SIZE elements that threads can share."""
    k = Builder(name, f"{name} of {SIZE} elements")
    read = [k.param(f"x{i}", SIZE) for i in range(operands)]
    out = k.param("y", SIZE, out=True)
    with k.loop("i", SIZE, kind="parallel") as i:
        out[i] = value(*(x[i] for x in read))
    return k.done()


ZERO = elementwise("zero", lambda: 0.0, 0)
COPY = elementwise("copy", lambda x: x, 1)
ADD = elementwise("add", lambda a, b: a + b * 0.5, 2)
DOUBLE = elementwise("double_it", lambda x: x * 2.0, 1)
NEGATE = elementwise("negate", lambda x: x * -1.0, 1)


def at(region: Region, offset: int, *advances: Advance) -> Place:
    return Place(region, offset, advances=advances)


def call(kernel: Kernel, *args: Place) -> Call:
    return Call(kernel, args, kernel.name, kernel.name.title(), macs=SIZE)


def program(threads: int) -> Program:
    """A recurrence over the rows of x with a branch in its body, from the last row to the first in y; a loop whose
    count is an input; and a nest of two loops, which fills a grid with multiples of row 0."""
    act, mut = Region.ACTIVATIONS, Region.MUTABLE
    state, new, z = at(act, STATE), at(act, NEW), at(mut, Z)
    counters = [at(act, COUNTERS + 64 * i) for i in range(4)]
    forwards, backwards = Advance(0, ROW, ROWS), Advance(0, -ROW, ROWS)
    choice = Branch(
        at(mut, CHOICE),
        (
            (call(DOUBLE, new, at(mut, Y + (ROWS - 1) * ROW, backwards)),),
            (call(COPY, new, at(mut, Y + (ROWS - 1) * ROW, backwards)),),
            (),
        ),
    )
    recurrence = (call(ADD, state, at(mut, X, forwards), new), choice, call(COPY, new, state))
    cell = at(mut, GRID, Advance(0, INNER * ROW, OUTER), Advance(1, ROW, INNER))
    items = (
        call(ZERO, state),
        Repeat(ROWS, recurrence, counters[0], (Carried(state, ROW),)),
        call(COPY, state, z),
        Repeat(at(mut, COUNT), (call(DOUBLE, z, z),), counters[1], (Carried(z, ROW),), limit=MOST),
        Repeat(
            OUTER,
            (
                Repeat(INNER, (call(COPY, state, cell), call(NEGATE, state, state)), counters[2]),
                call(DOUBLE, state, state),
            ),
            counters[3],
            (Carried(state, ROW),),
        ),
    )
    inputs = (
        Port("x", tensor(DType.F32, ROWS, SIZE), X),
        Port("count", tensor(DType.I64, 1), COUNT),
        Port("choice", tensor(DType.U8, 1), CHOICE),
    )
    outputs = (
        Port("y", tensor(DType.F32, ROWS, SIZE), Y),
        Port("z", tensor(DType.F32, SIZE), Z),
        Port("grid", tensor(DType.F32, OUTER, INNER, SIZE), GRID),
    )
    memory = Memory(0, GRID + OUTER * INNER * ROW, COUNTERS + 256, 0)
    return Program("looped", inputs, outputs, items, (), memory, threads)


def expected(x: Array, count: int, choice: int) -> dict[str, Array]:
    y, state = np.zeros((ROWS, SIZE), np.float32), np.zeros(SIZE, np.float32)
    for row in range(ROWS):
        state = state + x[row] * np.float32(0.5)
        if choice < 2:
            y[ROWS - 1 - row] = state if choice else state * 2
    z, grid = state * np.float32(2**count), np.zeros((OUTER, INNER, SIZE), np.float32)
    for row in range(OUTER):
        for column in range(INNER):
            grid[row, column] = state
            state = -state
        state = state * 2
    return {"y": y, "z": z, "grid": grid}


def bundle(threads: int, target: str = "host") -> Bundle:
    chosen, made = find(target), program(threads)
    unit = find_backend(chosen.backend).program([made], "looped.h", profile=True)
    return Bundle(made, unit, resolved(Options(target=target, profile=True), chosen))


def feeds(count: int, choice: int) -> dict[str, Array]:
    x = np.random.default_rng(7).normal(0, 1, (ROWS, SIZE)).astype(np.float32)
    return {"x": x, "count": np.array([count], np.int64), "choice": np.array([choice], np.uint8)}


CASES = [(0, 0), (3, 1), (1, 2), (2, 200)]


@pytest.mark.usefixtures("every_kernel_divided")
@pytest.mark.parametrize("threads", [1, 3])
def test_runs_and_timed_runs(threads: int) -> None:
    made = bundle(threads)
    assert ("TENON_SLICE" in made.source) == (threads > 1)
    with tenon.open(made, threads=threads) as engine:
        for count, choice in CASES:
            given = feeds(count, choice)
            right = expected(given["x"], count, choice)
            for timed in (False, True):
                for array in engine.outputs.values():
                    array[...] = 0
                results = engine.run(given)
                if timed:
                    for array in engine.outputs.values():
                        array[...] = 0
                    ticks = engine.timestamps().astype(np.int64)
                    assert len(ticks) == len(made.program.calls) + 1
                    assert (np.diff(ticks) >= 0).all()
                    results = {name: array.copy() for name, array in engine.outputs.items()}
                for name, array in right.items():
                    np.testing.assert_array_equal(results[name], array, f"{name} {count} {choice} {timed}")


class Regions:
    """The three memory regions of a run, with its inputs."""

    def __init__(self, made: Program, given: dict[str, Array]) -> None:
        sizes = (made.memory.constant, made.memory.mutable, made.memory.activations)
        arrays = [np.full(size + 64, 0xFF, np.uint8) for size in sizes]
        self.arrays = [array[-array.ctypes.data % 64 :] for array in arrays]
        self.pointers = [ctypes.c_void_p(array.ctypes.data) for array in self.arrays]
        for port in made.inputs:
            raw = given[port.name].reshape(-1).view(np.uint8)
            self.arrays[1][port.offset : port.offset + raw.size] = raw

    def output(self, port: Port) -> Array:
        raw = self.arrays[1][port.offset : port.offset + port.type.nbytes]
        return raw.view(np.float32).reshape(port.type.dims)


@pytest.mark.usefixtures("every_kernel_divided")
@pytest.mark.parametrize("parts", [2, 3, 12])
def test_parts_in_any_order(parts: int, tmp_path: Path) -> None:
    """Each phase by parts from the last to the first, for two runs at the same time: entry points keep nothing."""
    made = bundle(3)
    made.save(tmp_path / "looped", ("library", "weights"))
    library = ctypes.CDLL(str(next((tmp_path / "looped").glob("liblooped*"))))
    given = [feeds(count, choice) for count, choice in CASES[:2]]
    runs = [Regions(made.program, each) for each in given]
    phases = dict.fromkeys(runs, -1)
    while phases:
        for run in list(phases):
            phases[run] = library.looped_next(*run.pointers, phases[run])
            if phases[run] < 0:
                del phases[run]
                continue
            for part in reversed(range(parts)):
                library.looped_phase(*run.pointers, phases[run], part, parts, part % 3)
    for run, each, (count, choice) in zip(runs, given, CASES, strict=False):
        right = expected(each["x"], count, choice)
        for port in made.program.outputs:
            np.testing.assert_array_equal(run.output(port), right[port.name])


@pytest.mark.parametrize("target", ["aarch64", "cortex-m4", "riscv32"])
def test_other_machines(target: str) -> None:
    made = bundle(1, target)
    with RemoteBundle(made) as device:
        for count, choice in CASES[:2]:
            given = feeds(count, choice)
            (results,) = device.run([given])
            for name, array in expected(given["x"], count, choice).items():
                np.testing.assert_array_equal(results[name], array)


def test_sources_are_clean(tmp_path: Path) -> None:
    """No warnings, in C99 without extensions."""
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    text = find_backend("c.strict").program([program(3)], "stdint.h", profile=True).files[0].text
    (tmp_path / "looped.c").write_text(text)
    flags = ["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-Wno-missing-prototypes", "-O2"]
    subprocess.run([gcc, *flags, "-c", "looped.c"], cwd=tmp_path, check=True)


def test_walks() -> None:
    made = program(1)
    calls = [(each.kernel.name, times) for each, times in walk(made.items)]
    assert calls[:3] == [("zero", 1), ("add", ROWS), ("double_it", ROWS)]
    assert calls[-3:] == [("copy", OUTER * INNER), ("negate", OUTER * INNER), ("double_it", OUTER)]
    assert [each for each, _ in walk(made.items)] == list(made.calls)
    assert made.macs == SIZE * sum(made.times)
    assert sum(map(len, straight(made.items))) == len(made.calls)
    assert firsts(made.items) == {1, 2, 3, 4, 5, 6, 7, 9}
    kept = mapped(made.items, lambda each: None if each.kernel is NEGATE else each)
    assert "negate" not in [each.kernel.name for each, _ in walk(kept)]
    assert show_program(made).count("repeat") == 4
    text = find_backend("ir_text").program([made], "").files[0].text
    assert text.count("repeat") == 4
    assert text.count("branch") == 3


def moved(call: Call, **changes: Any) -> Call:
    """The call with other ways in which its moving operands move."""
    args = [replace(p, advances=tuple(replace(a, **changes) for a in p.advances)) for p in call.args]
    return replace(call, args=tuple(args))


def changed(items: tuple[Item, ...], kind: type[Item], change: Callable[[Any], Item]) -> tuple[Item, ...]:
    """A tree in which items of a kind are changed."""

    def one(item: Item) -> Item:
        if isinstance(item, Repeat):
            item = replace(item, body=changed(item.body, kind, change))
        elif isinstance(item, Branch):
            item = replace(item, bodies=tuple(changed(body, kind, change) for body in item.bodies))
        return change(item) if isinstance(item, kind) else item

    return tuple(map(one, items))


OUTSIDE = Place(Region.MUTABLE, GRID + OUTER * INNER * ROW)
FAULTS: dict[str, tuple[type[Item], Callable[[Any], Item], str]] = {
    "a moving operand behind its end": (Call, lambda call: moved(call, count=2), "moves 2 times at most"),
    "an operand before its region": (Call, lambda call: moved(call, step=-ROW), "lies from -"),
    "a loop around nothing": (Call, lambda call: moved(call, depth=2), "of which it is no part"),
    "one iteration more": (Repeat, lambda loop: replace(loop, count=6), "its loop makes 6 iterations"),
    "a loop without a limit": (
        Repeat,
        lambda loop: replace(loop, count=at(Region.MUTABLE, COUNT)),
        "its loop makes 2147483647 iterations",
    ),
    "a limit too far": (
        Repeat,
        lambda loop: replace(loop, count=at(Region.MUTABLE, COUNT), limit=6),
        "its loop makes 6 iterations",
    ),
    "a count outside": (Repeat, lambda loop: replace(loop, count=OUTSIDE, limit=3), "the count of a loop lies from"),
    "a condition outside": (
        Branch,
        lambda branch: replace(branch, condition=OUTSIDE),
        "the condition of a branch lies",
    ),
    "a counter outside": (Repeat, lambda loop: replace(loop, counter=OUTSIDE), "the counter of a loop lies from"),
    "a counter in a state": (
        Repeat,
        lambda loop: replace(loop, counter=at(Region.ACTIVATIONS, STATE)),
        "overwrites the counter of a loop",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_proof_of_regions(fault: str) -> None:
    made = program(1)
    prove_regions(made)
    kind, change, words = FAULTS[fault]
    wrong = replace(made, items=changed(made.items, kind, change))
    with pytest.raises(RegionError, match=words):
        prove_regions(wrong)
    with pytest.raises(RegionError, match=words):
        find_backend("c").program([wrong], "looped.h")


def test_lifetimes_cover_loops() -> None:
    """A value that is alive before a loop that uses it, or is carried between its iterations, lives as long."""
    lives = {(each.offset, each.first): each.last for each in lifetimes(program(1))}
    assert lives == {(STATE, 0): 9, (NEW, 1): 4}


@pytest.mark.usefixtures("every_kernel_divided")
def test_libtenon(tmp_path: Path) -> None:
    if platform.machine() != "x86_64" or shutil.which("gcc") is None:
        pytest.skip("the SDK is compiled for x86-64 here")
    sdk = sdk_for_clients(tmp_path, "")
    path = bundle(3, "x86-64").save(tmp_path / "looped.tenon")
    lib = ctypes.CDLL(str(sdk / "lib" / "libtenon.so"))
    lib.tenon_last_error.restype = ctypes.c_char_p
    handle, size = ctypes.c_void_p(), ctypes.c_size_t
    assert lib.tenon_bundle_open(str(path).encode(), None, ctypes.byref(handle)) == 0, lib.tenon_last_error()
    steps = lib.tenon_bundle_step_count(handle)
    assert steps == len(program(1).calls)
    for threads in (1, 3):
        engine, times = ctypes.c_void_p(), (ctypes.c_uint64 * steps)()
        options = (ctypes.c_int32 * 10)(40, 0, threads)  # TenonEngineOptions as words of 32 bits
        assert lib.tenon_engine_create(handle, options, ctypes.byref(engine)) == 0, lib.tenon_last_error()
        for count, choice in CASES:
            given = feeds(count, choice)
            for number, array in enumerate(given.values()):
                data = array.ctypes.data_as(ctypes.c_void_p)
                assert lib.tenon_engine_set_input(engine, number, data, size(array.nbytes)) == 0
            for timed in (False, True):
                status = lib.tenon_engine_profile(engine, times, size(steps)) if timed else lib.tenon_engine_run(engine)
                assert status == 0, lib.tenon_last_error()
                for number, (name, right) in enumerate(expected(given["x"], count, choice).items()):
                    result = np.zeros_like(right)
                    out = result.ctypes.data_as(ctypes.c_void_p)
                    assert lib.tenon_engine_get_output(engine, number, out, size(result.nbytes)) == 0
                    if name != "y" or choice < 2:
                        np.testing.assert_array_equal(result, right)
            assert sum(times) > 0
        more = np.array([MOST + 1], np.int64)
        assert lib.tenon_engine_set_input(engine, 1, more.ctypes.data_as(ctypes.c_void_p), size(8)) == 0
        for timed in (False, True):
            assert lib.tenon_engine_profile(engine, times, size(steps)) if timed else lib.tenon_engine_run(engine)
            assert b"a loop would run more often" in lib.tenon_last_error()
        assert lib.tenon_engine_destroy(engine) == 0
    assert lib.tenon_bundle_close(handle) == 0
