"""Bundles for OpenCL: operators on whatever device there is, compared with their references; whole networks; errors."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import tenon
from compiled import lowered_steps
from interpret import interpret
from lowered import Ask, run_lowered
from operator_cases import LOWERED
from real import DIGITS, held_out_digits
from tenon.compilation import resolved
from tenon.errors import InputError, UnsupportedError
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.codegen.backend import unsupported
from tenon.machine.codegen.opencl.unit import LIBRARY
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.plan.program import ALIGNMENT, Call, Memory, Place, Port, Program, Region, Repeat
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType, tensor
from tenon.network.ops.base import Case
from tenon.options import Options
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine import open_bundle

ASK = Ask(blocked=True, surplus=1)
FAMILIES = {
    "pointwise": ("activation", "bits", "comparison", "elementwise", "pointwise", "trigonometry"),
    "reduction": ("normalize", "reduce", "softmax"),
    "product": ("einsum", "matmul"),
}
"""The modules of ``ops`` with the operators that the target is for."""
SHARE = {"pointwise": 6, "reduction": 6, "product": 1, "other": 30}
"""One case in so many runs by default (a driver compiles a kernel in about half a second); with -m slow, all."""


@lru_cache(maxsize=1)
def why_not() -> str:
    """Why nothing runs on OpenCL here; empty if it does."""
    try:
        loader = ctypes.CDLL(LIBRARY)
    except OSError:
        return f"{LIBRARY} is not installed"
    count = ctypes.c_uint()
    status = loader.clGetPlatformIDs(0, None, ctypes.byref(count))
    return "" if status == 0 and count.value else "there is no OpenCL platform (Debian's pocl-opencl-icd is one)"


@pytest.fixture
def device() -> None:
    """Skips the test where there is no OpenCL device."""
    if reason := why_not():
        pytest.skip(reason)


# ------------------------------------------------------------------------------------------ operators
@dataclass
class Launched:
    """A kernel call of a case: its operands before, in the interpreter, and after, on the device."""

    kernel: Kernel
    before: list[Array]
    after: list[Array]


def recorded(case: Case) -> list[Launched]:
    """The kernel calls of a case."""
    calls: list[Launched] = []

    def execute(kernel: Kernel, views: list[Array]) -> None:
        calls.append(Launched(kernel, [view.copy() for view in views], []))
        interpret(kernel, views)

    run_lowered(case.op, case.arrays(), find("opencl").machine, case.constant, ASK, execute)
    return calls


def launch(calls: Sequence[Launched]) -> None:
    """Run the kernels in one program, whose memory is its input and its output; gives every call its operands after."""
    steps, parts, end = [], list[bytes](), 0
    for i, each in enumerate(calls):
        places = []
        for view in each.before:
            places.append(Place(Region.MUTABLE, end))
            parts.append(view.tobytes() + bytes(-view.nbytes % ALIGNMENT))
            end += len(parts[-1])
        steps.append(Call(each.kernel, tuple(places), f"call{i}", "case"))
    port = Port("memory", tensor(DType.U8, end), 0)
    program = Program("cases", (port,), (port,), tuple(steps), (), Memory(0, end, 0, 0))
    with open_bundle(Bundle.of(program, resolved(Options(target="opencl"), find("opencl")))) as engine:
        memory = engine.run({"memory": np.frombuffer(b"".join(parts), np.uint8)})["memory"]
    for each, step in zip(calls, steps, strict=True):
        for view, place in zip(each.before, step.args, strict=True):
            each.after.append(memory[place.offset : place.offset + view.nbytes].view(view.dtype))


def result(case: Case, calls: Sequence[Launched]) -> list[Array]:
    """The results of a case whose kernels left ``calls`` in memory."""
    waiting = iter(calls)

    def execute(kernel: Kernel, views: list[Array]) -> None:
        for buffer, view, after in zip(kernel.params, views, next(waiting).after, strict=True):
            if buffer.space != "const":
                view[:] = after

    return run_lowered(case.op, case.arrays(), find("opencl").machine, case.constant, ASK, execute)


def assert_close(a: Array, b: Array, case: Case) -> None:
    """Integers are equal; floats within the case's tolerance of the largest magnitude."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    if a.dtype.isbuiltin != 1:  # a storage format
        a, b = a.astype(np.float32), b.astype(np.float32)
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0)) if a.dtype.kind == "f" else 0.0
    np.testing.assert_allclose(a, b, rtol=0, atol=case.tolerance * largest, err_msg=f"{case.op} {case.label}")


def cases_of(family: str) -> list[Case]:
    """The cases of a family's operators, or of those of no family."""
    families = {module: name for name, modules in FAMILIES.items() for module in modules}
    cases = LOWERED.values()
    return [c for c in cases if families.get(type(c.op).__module__.rpartition(".")[2], "other") == family]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["sample", "every"])
@pytest.mark.parametrize("family", SHARE)
def test_operators_give_what_their_references_do(family: str, every: bool) -> None:
    cases = cases_of(family)[:: 1 if every else SHARE[family]]
    able = [case for case in cases if can_run(case)]
    assert len(able) > 15
    assert able == cases or family == "other", "a family that the target is for has cases that it refuses"
    for start in range(0, len(able), 40):
        batch = [(case, recorded(case)) for case in able[start : start + 40]]
        launch([call for _, calls in batch for call in calls])
        for case, calls in batch:
            for a, b in zip(result(case, calls), case.op.evaluate(case.arrays()), strict=True):
                assert_close(a, b, case)


def can_run(case: Case) -> bool:
    """Whether OpenCL C expresses a case's kernels."""
    backend, steps = find_backend("opencl"), lowered_steps(case, find("opencl").machine, ASK)
    return not any(reason for step in steps for reason in unsupported(backend, step.kernel))


def test_words_of_the_language_can_be_names() -> None:
    """``half`` is a value of DetectionPostProcess, ``constant`` the kernel of Range."""
    for operator, word in (("DetectionPostProcess", "half"), ("Range", "constant")):
        text = find_backend("opencl").program([recorded_program([operator])], "cases.h").files[1].text
        assert text.index(f"\n#define {word} {word}_\n") < text.index("__kernel")


# ------------------------------------------------------------------------------------------- networks
@pytest.fixture(scope="module")
def digits() -> Bundle:
    return tenon.compile(DIGITS / "digits.onnx", target="opencl", no_tuning=True)


@pytest.mark.usefixtures("device")
def test_a_network_runs_as_on_the_processor(digits: Bundle, tmp_path: Path) -> None:
    images, _ = held_out_digits()
    usual = tenon.compile(DIGITS / "digits.onnx", target="x86-64", no_tuning=True)
    folder = digits.save(tmp_path / "out")
    with open_bundle(folder) as engine, open_bundle(usual) as other:
        for image in images[:8]:
            a, b = (each.run(image)["probabilities"] for each in (engine, other))
            np.testing.assert_allclose(a, b, atol=1e-6)
    with open_bundle(folder) as engine, engine.fork() as twin:
        a, b = (each.run(images[0])["probabilities"] for each in (engine, twin))
        np.testing.assert_array_equal(a, b)


@pytest.mark.usefixtures("device")
def test_the_entry_point_of_all_bundles_works_alone(digits: Bundle, tmp_path: Path) -> None:
    """``int digits(constantWeight, mutableWeight, activations)``, for programs that know no device queue."""
    images, _ = held_out_digits()
    folder, memory = digits.save(tmp_path / "out"), digits.program.memory
    library = ctypes.CDLL(str(folder / "libdigits.so"))
    weights, tensors = np.frombuffer(digits.weights, np.uint8), np.zeros(memory.mutable, np.uint8)
    tensors[: images[0].nbytes] = images[0].astype(np.float32).reshape(-1).view(np.uint8)
    assert library.digits(weights.ctypes.data_as(ctypes.c_void_p), tensors.ctypes.data_as(ctypes.c_void_p), None) == 0
    with open_bundle(folder) as engine:
        expected = engine.run(images[0])["probabilities"]
    offset = digits.program.outputs[0].offset
    np.testing.assert_array_equal(tensors[offset : offset + 40].view(np.float32), expected.reshape(-1))


@pytest.mark.usefixtures("device")
def test_bindings_share_weights() -> None:
    """Each binding has its own steps, over one copy of the weights."""
    shapes = [{"image": (1, 1, 8, 8)}, {"image": (2, 1, 8, 8)}]
    images, _ = held_out_digits()
    batch = np.concatenate(images[:2])
    with open_bundle(tenon.compile(DIGITS / "digits.onnx", target="opencl", no_tuning=True, shapes=shapes)) as engine:
        both = engine.run(batch)["probabilities"]
        each = [engine.run(image)["probabilities"] for image in images[:2]]
    np.testing.assert_allclose(both, np.concatenate(each), atol=1e-6)


# -------------------------------------------------------------------------------------- without a device
def test_a_bundle_has_host_code_and_kernels(digits: Bundle, tmp_path: Path) -> None:
    files = {file.name: file for file in digits.unit.files}
    assert {name: (file.language, file.compiler) for name, file in files.items()} == {
        "digits.c": ("c", "c"),
        "digits.cl": ("opencl", ""),
    }
    assert files["digits.cl"].text.count("__kernel void ") == len(digits.program.calls)
    assert [entry.name for entry in digits.unit.entry_points[0]] == [
        "digits",
        "digits_create",
        "digits_run",
        "digits_destroy",
    ]
    for entry in digits.unit.entry_points[0]:
        assert f"{entry.prototype};\n" in digits.header
        assert f"{entry.prototype} {{\n" in digits.source
    folder = digits.save(tmp_path / "out", ("c", "header"))
    assert {path.name for path in folder.iterdir()} == {"digits.c", "digits.cl", "digits.h", "manifest.json"}


def test_every_step_is_a_launch_of_its_work_items(digits: Bundle) -> None:
    (steps,) = digits.unit.steps
    assert sum(step.work_items is not None for step in steps) >= len(steps) - 1  # softmax of one row has one item
    for i, step in enumerate(steps):
        length = step.work_items.length if step.work_items else 1
        assert f'{{"digits_step_{i}", {length}}},' in digits.source


def test_names_of_the_model_can_be_left_out() -> None:
    hidden = tenon.compile(DIGITS / "digits.onnx", target="opencl", no_tuning=True, obfuscate="all", name="net")
    for file in hidden.unit.files:
        assert not any(name in file.text for name in ("image", "probabilities", "conv3x3", "digits"))


def test_layers_that_cannot_run_are_all_listed() -> None:
    program = recorded_program(["IntegerAdd", "IntegerMul"])
    with pytest.raises(UnsupportedError) as caught:
        find_backend("opencl").program([program], "cases.h")
    assert "IntegerAdd 'call0': this target has no operation sqrdmulh (compile it for another target)" in str(
        caught.value
    )
    assert "IntegerMul 'call1'" in str(caught.value)


def test_loops_around_kernels_are_refused() -> None:
    program = recorded_program(["Relu"])
    loop = Repeat(3, program.items, Place(Region.ACTIVATIONS, 4096))
    with pytest.raises(UnsupportedError, match="Relu 'call0': this target has no loops and branches around kernels"):
        find_backend("opencl").program([replace(program, items=(loop,))], "cases.h")


def recorded_program(operators: Sequence[str]) -> Program:
    """A program of the first case of each operator."""
    calls = []
    for i, operator in enumerate(operators):
        first = next(case for case in LOWERED.values() if case.op.name == operator)
        launched = recorded(first)[0]
        places = tuple(Place(Region.ACTIVATIONS, 4096 * j) for j in range(len(launched.kernel.params)))
        calls.append(Call(launched.kernel, places, f"call{i}", operator))
    return Program("cases", (), (), tuple(calls), (), Memory(0, 0, 1 << 16, 0))


def test_networks_beyond_its_indices_are_refused() -> None:
    program = replace(recorded_program(["Relu"]), memory=Memory(0, 0, 1 << 31, 0))
    with pytest.raises(InputError, match=r"cases needs 2,147,483,648 bytes of activations"):
        find_backend("opencl").program([program], "cases.h")


def test_what_is_not_there_yet_is_refused(digits: Bundle, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leave out --profile"):
        tenon.compile(DIGITS / "digits.onnx", target="opencl", profile=True)
    with pytest.raises(InputError, match="kernels for target opencl are not in C: leave out c99=strict"):
        tenon.compile(DIGITS / "digits.onnx", target="opencl", c99="strict")
    with pytest.raises(InputError, match=r"calls libOpenCL.so.1: leave out --emit exe"):
        digits.save(tmp_path / "out", ("exe",))
    with pytest.raises(InputError, match="target opencl has no threads"):
        tenon.compile(DIGITS / "digits.onnx", target="opencl", threads=2)


@pytest.mark.usefixtures("device")
def test_a_machine_without_device_says_so(digits: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some loaders find drivers in the folder that an environment variable names, instead of /etc."""
    folder = digits.save(tmp_path / "out")
    for name in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    count = f"import ctypes; print(ctypes.CDLL({LIBRARY!r}).clGetPlatformIDs(0, None, ctypes.byref(ctypes.c_uint())))"
    if output_of(count).strip() == "0":
        pytest.skip("this loader finds drivers whatever the environment says")
    message = output_of(f"import tenon; tenon.open({str(folder)!r}).run()")
    assert "'digits' cannot run: there is no OpenCL device: install the driver of one" in message


def output_of(code: str) -> str:
    """What a program in Python prints."""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return process.stdout + process.stderr
