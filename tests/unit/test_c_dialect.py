"""Generated C compared with the interpreter on the kernels of every operator case, bit for bit without contraction; and
that every compiler accepts it without warnings.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from compiled import Library, build_libraries, lowered_steps
from covering_cases import covering
from lowered import MACHINES, Ask, make_site, run_lowered, settle
from on_targets import COMPILED, ONE_OF_EACH_MACHINE, X86
from operator_cases import LOWERED, selected, sweep
from tenon.errors import ToolchainError
from tenon.machine.codegen.c.c99 import C99
from tenon.machine.codegen.c.dialect import C
from tenon.machine.codegen.c.strict import StrictC, strict_machine
from tenon.machine.kernels.machine import Machine
from tenon.machine.targets import targets
from tenon.machine.targets.host_cpu import runs_here
from tenon.machine.toolchain.compiler import BASE_FLAGS, Compiler, zig
from tenon.network.ops.base import Case, Step
from tenon.network.ops.conv import Conv

ASK = Ask(blocked=True, surplus=1)
COMPILERS = {
    "gcc": ("gcc",),
    "clang": ("clang",),
    "zig": (sys.executable, "-m", "ziglang", "cc"),
}


def compiler(name: str) -> Compiler:
    """Skips the test where it is not installed."""
    command = COMPILERS[name]
    if importlib.util.find_spec("ziglang") is None if name == "zig" else shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return Compiler(command, name, "" if name == "zig" else "x86_64-linux-gnu", Path())


def command(name: str, target: str, *flags: str) -> list[str]:
    """The compiler's command for ``target``, without contraction to fused multiply-adds.  Skips the test where the
    compiler is older than the target's instructions."""
    row = targets()[target]
    machine = compiler(name).machine_flags(row)
    how = [*COMPILERS[name], *machine, *row.flags, "-fno-math-errno", "-ffp-contract=off", *flags]
    tried = subprocess.run([*how, "-E", "-x", "c", "/dev/null"], capture_output=True, text=True, check=False)
    if lacking := re.search(r"(?:unknown argument|unrecognized command-line option).*?(-m[\w-]+)", tried.stderr):
        pytest.skip(f"this {name} is too old for {lacking[1]}")
    return how


def assert_same(machine: Machine, how: Sequence[str], folder: Path, cases: list[Case], dialect: type[C99] = C) -> int:
    """Compare compiled C with the interpreter, bit for bit; returns the number of cases compared."""
    groups = build_libraries(cases, machine, ASK, folder, how, dialect=dialect)
    lowered = [(library, case) for library, part in groups for case in part]
    for library, case in lowered:
        arguments = (case.op, case.arrays(), machine, case.constant, ASK)
        for a, b in zip(run_lowered(*arguments, library), run_lowered(*arguments), strict=True):
            x, y = (each.view(np.uint8) if each.dtype.isbuiltin != 1 else each for each in (a, b))
            np.testing.assert_array_equal(x, y, err_msg=f"{case.op} {case.label}")
    return len(lowered)


@pytest.mark.parametrize("name", ["gcc", pytest.param("zig", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("selection", "machine"), sweep())
def test_c_matches_the_interpreter(selection: str, machine: str, name: str, tmp_path: Path) -> None:
    compiler(name)
    how = [*COMPILERS[name], "-O1", "-march=native", "-ffp-contract=off"]
    cases = selected(selection)
    assert assert_same(MACHINES[machine], how, tmp_path, cases) == len(cases)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_strict_c99_matches_the_interpreter(every: bool, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    machine = strict_machine(targets()["x86-64-avx512-bf16"].machine)
    cases = list(LOWERED.values()) if every else list(covering(machine, ASK))
    how = [gcc, "-O1", "-ffp-contract=off", "-pedantic"]
    assert assert_same(machine, how, tmp_path, cases, StrictC) == len(cases) > 40


class WithoutPointers(StrictC):
    """C in which every access is to an element of a parameter or an array, as in languages without pointers."""

    pointers = False


@pytest.mark.parametrize("share", [24, pytest.param(1, marks=pytest.mark.slow)])
def test_addresses_without_pointers_match_the_interpreter(share: int, tmp_path: Path) -> None:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    machine = strict_machine(targets()["x86-64-avx512-bf16"].machine)
    cases = list(LOWERED.values())[::share]
    how = [gcc, "-O1", "-ffp-contract=off", "-pedantic"]
    assert assert_same(machine, how, tmp_path, cases, WithoutPointers) == len(cases) > 50
    unit = WithoutPointers()
    for case in cases:
        for step in lowered_steps(case, machine, ASK):
            unit.kernel(step.kernel)
    declared = re.findall(r"^ +(?:const )?\w+ \*\w+ =.*", unit.text(), re.MULTILINE)
    assert not declared, declared[:3]
    assert len(re.findall(r"\w+\[\w+_\w+ \+ \d+\]", unit.text())) > 30


BY_TURNS = [(target, ("gcc", "clang")[i % 2]) for i, target in enumerate(X86) if i % 3 == 0]
"""One compiler for every third target; with -m slow, both for all."""


@pytest.mark.parametrize(
    ("target", "name"),
    [
        pytest.param(target, name, marks=() if (target, name) in BY_TURNS else pytest.mark.slow)
        for target in X86
        for name in ("gcc", "clang")
    ],
)
def test_compilers_accept_every_helper(target: str, name: str, tmp_path: Path) -> None:
    """Other compilers than zig, which is used by most other tests."""
    machine = targets()[target].machine
    cases = list(covering(machine, ASK))
    assert len(cases) > 50
    build_libraries(cases, machine, ASK, tmp_path, command(name, target, "-O1"))


def test_assembly_that_a_compiler_lacks_leaves_no_unused_parameters(tmp_path: Path) -> None:
    """Weights that only the assembly fetches ahead are parameters all the same."""
    target = "x86-64-amx"
    machine = targets()[target].machine
    cases = [case for case in covering(machine, ASK) if isinstance(case.op, Conv)]
    how = [word for word in command("gcc", target, "-O0") if not word.startswith("-mamx")]
    built = build_libraries(cases, machine, ASK, tmp_path, how)
    assert sum(len(part) for _, part in built) == len(cases)
    sources = [path.read_text() for path in tmp_path.rglob("kernels.c")]
    assert any("  (void)w_2;" in source for source in sources)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILERS)
@pytest.mark.parametrize("target", X86)
def test_compilers_agree_on_every_case(target: str, name: str, tmp_path: Path) -> None:
    how, machine, cases = command(name, target, "-O3"), targets()[target].machine, list(LOWERED.values())
    if runs_here(target):
        assert assert_same(machine, how, tmp_path, cases) == len(cases)
    else:
        built = build_libraries(cases, machine, ASK, tmp_path, how)
        assert sum(len(part) for _, part in built) == len(cases)


# ------------------------------------------------------------------------------ all algorithms of a convolution
Shape = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]
"""kernel, image, channels, stride"""

NARROW_SHAPES: list[Shape] = list(
    product(((3, 3), (5, 5), (7, 7)), ((7, 3), (3, 7), (4, 4)), ((32, 32), (3, 16)), (1,))
)
SWEEP_SHAPES: list[Shape] = list(
    product(
        ((3, 3), (5, 5), (7, 7), (1, 7), (3, 1)),
        ((7, 3), (1, 1), (3, 7), (2, 2), (4, 4), (5, 5), (6, 6), (8, 8), (14, 14), (1, 9)),
        ((32, 32), (16, 8), (3, 16), (24, 40)),
        (1, 2),
    )
)


def kernels_of(shape: Shape, machine: Machine, most: int) -> Iterator[Step]:
    """The kernels of a convolution by each of the best algorithms."""
    kernel, image, (channels, filters), stride = shape
    op = Conv(pads=(kernel[0] // 2, kernel[1] // 2) * 2, strides=(stride, stride))
    arrays = [np.zeros((1, channels, *image), np.float32), np.full((filters, channels, *kernel), 0.1, np.float32)]
    site = make_site(op, arrays, machine, (1,))
    for algorithm in op.candidates(site)[:most] or (None,):
        yield from op.lower(settle(op, replace(site, algorithm=algorithm)))


def assert_no_warnings(shapes: Sequence[Shape], target: str, most: int, name: str, folder: Path) -> int:
    """Compile kernels in one file with the flags of bundles; returns the number of kernels."""
    library, row = Library(), targets()[target]
    for shape in shapes:
        for step in kernels_of(shape, row.machine, most):
            library.add(step.kernel)
    if (
        name == "zig"
    ):  # zig supports every target; without optimisation, which takes most of the time and gives no further warnings
        source = library.source().replace("#include <math.h>\n", "")  # not available on freestanding targets
        zig(folder).compile({"kernels.c": source.encode()}, "kernels.c", row, ("-O0",))
        return len(library.callers)
    (folder / "kernels.c").write_text(library.source())
    own = [flag for flag in row.flags if not flag.startswith("-m")]  # the others are for another machine's compiler
    flags = [*BASE_FLAGS[:1], "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *own]
    process = subprocess.run([name, *flags, str(folder / "kernels.c")], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[:2000]
    return len(library.callers)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        pytest.param(target, name, marks=() if (i + j) % len(COMPILERS) == 0 else pytest.mark.slow)
        for i, target in enumerate(ONE_OF_EACH_MACHINE)
        for j, name in enumerate(COMPILERS)
    ],
)
def test_convolutions_of_narrow_images_compile(target: str, name: str, tmp_path: Path) -> None:
    """Tiles that extend beyond an image leave unused registers, which must not be printed."""
    compiler(name)
    assert assert_no_warnings(NARROW_SHAPES, target, 1, name, tmp_path) > 10


@pytest.mark.parametrize("name", COMPILERS)
def test_unused_variables_are_errors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that the sweeps detect unused variables."""
    compiler(name)
    bad = "void f(float *p);\nvoid f(float *p) { float v = p[0]; v = v + p[1]; float u = p[2]; p[0] = 0.0f; }\n"
    monkeypatch.setattr(Library, "source", lambda self: bad)
    with pytest.raises((AssertionError, ToolchainError), match=r"-Wunused|-Werror=unused"):
        assert_no_warnings(NARROW_SHAPES[:1], "x86-64", 1, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILERS)
@pytest.mark.parametrize("target", COMPILED)
def test_convolutions_compile_with_every_algorithm(target: str, name: str, tmp_path: Path) -> None:
    compiler(name)
    assert assert_no_warnings(SWEEP_SHAPES, target, 100, name, tmp_path) > 300
