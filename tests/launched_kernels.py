"""Kernel calls of operator cases, recorded in the interpreter to be run elsewhere in one program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiled import lowered_steps
from interpret import interpret
from lowered import Ask, NotLoweredError, run_lowered
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.codegen.backend import unsupported
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.plan.program import ALIGNMENT, Call, Memory, Place, Port, Program, Region
from tenon.machine.targets import find
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType, tensor
from tenon.network.ops.base import Case

ASK = Ask(blocked=True, surplus=1)


@dataclass
class Launched:
    """A kernel call of a case: its operands before, after it on a device, and after it in the interpreter."""

    label: str
    kernel: Kernel
    before: list[Array]
    after: list[Array]
    expected: list[Array] = field(default_factory=list)

    def check_integers(self) -> None:
        """Each call starts from what the interpreter left, so that a result says nothing of the calls before."""
        for buffer, after, expected in zip(self.kernel.params, self.after, self.expected, strict=True):
            if expected.dtype.kind in "iu" and buffer.type.dtype.carrier is buffer.type.dtype:
                np.testing.assert_array_equal(after, expected, err_msg=f"{self.label}: {self.kernel.name}")


def recorded(case: Case, target: str = "opencl") -> list[Launched]:
    """The kernel calls of a case."""
    calls: list[Launched] = []

    def execute(kernel: Kernel, views: list[Array]) -> None:
        calls.append(Launched(f"{case.op} {case.label}", kernel, [view.copy() for view in views], []))
        interpret(kernel, views)
        calls[-1].expected[:] = [view.copy() for view in views]

    run_lowered(case.op, case.arrays(), find(target).machine, case.constant, ASK, execute)
    return calls


def program_of(
    calls: Sequence[Launched], start: int = 0, ordered: Callable[[Array], Array] = lambda view: view
) -> tuple[Program, bytes]:
    """One program of the calls, whose memory is its input and its output, and that memory before; operands lie from
    ``start`` on, in the byte order that ``ordered`` gives them."""
    steps, parts, end = [], [bytes(start)], start
    for i, each in enumerate(calls):
        places = []
        for view in each.before:
            places.append(Place(Region.MUTABLE, end))
            parts.append(ordered(view).tobytes() + bytes(-view.nbytes % ALIGNMENT))
            end += len(parts[-1])
        steps.append(Call(each.kernel, tuple(places), f"call{i}", each.label))
    port = Port("memory", tensor(DType.U8, end), 0)
    return Program("cases", (port,), (port,), tuple(steps), (), Memory(0, end, 0, 0)), b"".join(parts)


def keep_after(calls: Sequence[Launched], program: Program, memory: Array) -> None:
    """Give every call its operands in the memory of the program after its run."""
    for each, step in zip(calls, program.calls, strict=True):
        for view, place in zip(each.before, step.args, strict=True):
            each.after.append(memory[place.offset : place.offset + view.nbytes].view(view.dtype))


def result(case: Case, calls: Sequence[Launched], target: str) -> list[Array]:
    """The results of a case whose kernels left ``calls`` in memory."""
    waiting = iter(calls)

    def execute(kernel: Kernel, views: list[Array]) -> None:
        for buffer, view, after in zip(kernel.params, views, next(waiting).after, strict=True):
            if buffer.space != "const":
                view[:] = after

    return run_lowered(case.op, case.arrays(), find(target).machine, case.constant, ASK, execute)


def assert_close(a: Array, b: Array, case: Case) -> None:
    """Integers are equal; floats within the case's tolerance of the largest magnitude."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    if a.dtype.isbuiltin != 1:  # a storage format
        a, b = a.astype(np.float32), b.astype(np.float32)
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=0)) if a.dtype.kind == "f" else 0.0
    np.testing.assert_allclose(a, b, rtol=0, atol=case.tolerance * largest, err_msg=f"{case.op} {case.label}")


def can_run(case: Case, target: str) -> bool:
    """Whether the target has kernels for a case, and its language expresses them."""
    row = find(target)
    try:
        backend, steps = find_backend(row.backend), lowered_steps(case, row.machine, ASK)
    except NotLoweredError:  # such operators are listed in test_lowering
        return False
    return not any(reason for step in steps for reason in unsupported(backend, step.kernel))
