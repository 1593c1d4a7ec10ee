"""Sizes that a run chooses are checked by the entry point, plain, by threads, timed, on devices, and by libtenon."""

from __future__ import annotations

import ctypes
import platform
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tenon
from libtenon import sdk_for_clients
from sized import LARGEST, LENGTHS, ROWS, planes, positive_plus_one, rows
from tenon.errors import InputError, InternalError, ShapeError, UnsupportedError
from tenon.machine.codegen.threads import firsts
from tenon.machine.plan.program import SIZE_OUT_OF_RANGE, Place, Program, Region, SizeCheck
from tenon.machine.plan.text import show_program
from tenon.machine.proofs.regions import RegionError, prove_regions
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Array
from tenon.network.graph.size_range import Size, SizeRange
from tenon.network.graph.verify import verify
from tenon.runtime.bundle import Bundle

RIGHT, WRONG = (4, 8, 20), (-(2**62), -4, 0, 3, 5, 28, 2**62)
"""Lengths that ``rows(computed=True)`` takes, and that it does not; 24 is in the range, but makes n 48."""


def regions(bundle: Bundle, length: int) -> list[Array]:
    """The memory of a run, for an input of ones."""
    memory, (x, size) = bundle.program.memory, bundle.program.inputs
    constant, mutable, activations = (
        np.zeros(n + 64, np.uint8) for n in (memory.constant, memory.mutable, memory.activations)
    )
    mutable[x.offset : x.offset + x.type.nbytes].view(np.float32)[:] = 1
    mutable[size.offset : size.offset + 8].view(np.int64)[:] = length
    return [constant, mutable, activations]


def at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return tenon.compile(rows(computed=True), threads=3, profile=True, target="x86-64", no_tuning=True)


@pytest.fixture(scope="module")
def library(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return ctypes.CDLL(str(bundle.save(tmp_path_factory.mktemp("sized") / "rows") / "librows.so"))


@pytest.mark.parametrize("length", [*RIGHT, *WRONG, 24])
def test_entry_points(bundle: Bundle, library: ctypes.CDLL, length: int) -> None:
    """A run ends with a status of its own, before anything that depends on the size is written."""
    expected = 0 if length in RIGHT else SIZE_OUT_OF_RANGE
    for piece in ("", "_phase", "_profile"):
        given = regions(bundle, length)
        status = run(library, piece, given)
        assert status == expected, piece
        y, n = (port.offset for port in bundle.program.outputs)
        assert given[1][n : n + 8].view(np.int64)[0] == (2 * length if length in (*RIGHT, 24) else 0)
        assert given[1][y : y + 4].view(np.float32)[0] == (2 if length in RIGHT else 0)


def run(library: ctypes.CDLL, piece: str, given: list[Array]) -> int:
    if not piece:
        return int(library.rows(*map(at, given)))
    following = getattr(library, {"_phase": "rows_next", "_profile": "rows_profile_next"}[piece])
    number = following(*map(at, given), -1)
    while number >= 0:
        for part in range(3):
            getattr(library, f"rows{piece}")(*map(at, given), number, part, 3)
        number = following(*map(at, given), number)
    return int(-1 - number)


def test_python(bundle: Bundle) -> None:
    """Sizes of inputs are named with their range; a number that the network computes has no name."""
    x = np.ones((ROWS, LARGEST), np.float32)
    with tenon.open(bundle, threads=2) as engine:
        for length in RIGHT:
            engine.inputs["x"][...] = x
            engine.inputs["L"][...] = length
            results = engine.run()
            np.testing.assert_array_equal(results["y"], positive_plus_one(x[:, :length]))
            assert results["n"] == 2 * length
        for length in WRONG:
            engine.inputs["L"][...] = length
            with pytest.raises(InputError, match=rf"size 'L' is {length}.*4\.\.24:4"):
                engine.run()
        engine.inputs["L"][...] = 24
        with pytest.raises(InputError, match="--max"):
            engine.run()


def test_threads_wait_for_checks(bundle: Bundle) -> None:
    """A check of a number that a kernel computes is made when all threads have finished that kernel."""
    assert firsts(bundle.program.items) == {1}
    text = show_program(bundle.program)
    assert "  check that L, the i64 at mutableWeight + 320, is in 4..24:4\n  1 " in text
    assert "\n  check that count, the i64 at" in text


def test_sizes_that_nothing_reads_are_checked() -> None:
    program = tenon.compile(planes(), target="x86-64").program
    assert [check.name for check in program.checks] == ["L", "W"]
    assert [port.extents for port in (*program.inputs[:2], *program.outputs)] == [
        ((1, "L"), (2, "W")),
        ((0, "L"), (1, "W")),
        ((1, "L"), (2, "W")),
    ]


def test_header(bundle: Bundle) -> None:
    words = " ".join(bundle.header.split())
    assert (
        "Returns 0, or 2 where a size is not in the range that it was compiled for: the outputs are then not" in words
    )


@pytest.mark.parametrize(
    "place", [Place(Region.MUTABLE, 1 << 20), Place(Region.MUTABLE, -8), Place(Region.ACTIVATIONS, 0)]
)
def test_planted_faults_are_found(bundle: Bundle, place: Place) -> None:
    """The number that is checked lies within its region."""

    def planted(program: Program) -> Program:
        return replace(program, items=(SizeCheck(place, LENGTHS), *program.items))

    prove_regions(bundle.program)
    with pytest.raises(RegionError, match="the size"):
        prove_regions(planted(bundle.program))


@pytest.mark.parametrize("target", ["opencl", "cuda", "vulkan"])
def test_devices(target: str) -> None:
    """The host checks sizes of inputs first, and reads a number that the device computes between launches."""
    text = tenon.compile(rows(), target=target).source
    assert "if (size < 4 || size > 24 || (size - 4) % 4) return device_failed(DEVICE_WRONG_SIZE" in text
    assert "rows_launch, 0, rows_checked, " in text
    text = tenon.compile(rows(computed=True), target=target).source
    assert "rows_launch, 1, rows_checked, " in text
    assert "if (status == 0 && (size < 0 || size > 40)) status = device_failed(DEVICE_WRONG_SIZE" in text
    assert "static int device_repeats(" not in text


def test_browsers_have_no_sizes() -> None:
    with pytest.raises(UnsupportedError, match=r"size 'L'.*no i64"):
        tenon.compile(planes(), target="webgpu")


def test_ranges() -> None:
    sizes = [n for n in range(-1, 40) if n in SizeRange(4, 24, 4)]
    assert sizes == [4, 8, 12, 16, 20, 24]
    assert str(Size("L", 4, 24, 4)) == "L:4..24:4"
    assert str(Size("L", 1, 9)) == "L:1..9"
    for wrong, why in (((5, 4), "not above"), ((-1, 4), "not above"), ((4, 25, 4), "24"), ((4, 24, 0), "step")):
        with pytest.raises(InputError, match=why):
            Size("L", *wrong)
    with pytest.raises(InputError, match="no name"):
        Size("a b", 1, 2)


def test_reference_refuses_other_numbers() -> None:
    x = np.ones((ROWS, LARGEST), np.float32)
    assert evaluate(rows(), {"x": x, "L": np.array(8)})["n"] == 8
    with pytest.raises(ShapeError, match=r"9 is not in 4\.\.24:4"):
        evaluate(rows(), {"x": x, "L": np.array(9)})


def test_impossible_annotations_are_found() -> None:
    for wrong in ((2, "L"), (1, "y")):
        graph = rows()
        graph.extents = {"x": (wrong,)}
        with pytest.raises(InternalError, match="extents_are_held"):
            verify(graph)
    graph = rows()
    graph.sizes = {"x": LENGTHS}
    with pytest.raises(InternalError, match="extents_are_held"):
        verify(graph)


def test_libtenon(bundle: Bundle, tmp_path: Path) -> None:
    if platform.machine() != "x86_64" or shutil.which("gcc") is None:
        pytest.skip("the SDK is compiled for x86-64 here")
    lib = ctypes.CDLL(str(sdk_for_clients(tmp_path, "") / "lib" / "libtenon.so"))
    lib.tenon_last_error.restype = ctypes.c_char_p
    path = bundle.save(tmp_path / "rows.tenon")
    handle, size = ctypes.c_void_p(), ctypes.c_size_t
    assert lib.tenon_bundle_open(str(path).encode(), None, ctypes.byref(handle)) == 0, lib.tenon_last_error()
    x = np.ones((ROWS, LARGEST), np.float32)
    for threads in (1, 3):
        engine = ctypes.c_void_p()
        options = (ctypes.c_int32 * 10)(40, 0, threads)  # TenonEngineOptions as words of 32 bits
        assert lib.tenon_engine_create(handle, options, ctypes.byref(engine)) == 0, lib.tenon_last_error()
        assert lib.tenon_engine_set_input(engine, 0, at(x), size(x.nbytes)) == 0
        for length in (*RIGHT, *WRONG, 24):
            number = np.array(length)
            assert lib.tenon_engine_set_input(engine, 1, at(number), size(8)) == 0
            status = lib.tenon_engine_run(engine)
            if length in RIGHT:
                shape, rank = (ctypes.c_int64 * 16)(), ctypes.c_int()
                assert lib.tenon_engine_output_shape(engine, 0, shape, ctypes.byref(rank)) == status == 0
                assert list(shape[: rank.value]) == [ROWS, length]
            else:
                assert status == (15 if length == 24 else 4)  # TENON_RUN_FAILED, TENON_WRONG_SIZE
                told = lib.tenon_last_error().decode()
                assert ("--max" if length == 24 else f"the size 'L' is {length}, and was compiled for 4 to 24") in told
        assert lib.tenon_engine_destroy(engine) == 0
    assert lib.tenon_bundle_close(handle) == 0
