"""``check_kernels`` on the kernels of all operator cases, and on kernels with faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from check_kernels import FaultError, check
from compiled import lowered_steps
from lowered import MACHINES, Ask
from operator_cases import selected, sweep
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.text import show
from tenon.machine.proofs.bounds import ConflictError, prove
from tenon.network.ops.base import Case

ASKS = (Ask(), Ask(blocked=True), Ask(blocked=True, surplus=1))


def kernels(machine: str, cases: Sequence[Case]) -> Iterator[Kernel]:
    """The distinct kernels of the cases in all placements."""
    seen = set()
    for case in cases:
        for ask in ASKS:
            for step in lowered_steps(case, MACHINES[machine], ask):
                if (text := show(step.kernel)) not in seen:
                    seen.add(text)
                    yield step.kernel


def fault(text: str) -> str:
    """The kind of the fault; empty if there is none."""
    try:
        check(text)
    except FaultError as fault:
        return str(fault.args[0])
    return ""


@pytest.mark.parametrize(("selection", "machine"), sweep())
def test_both_proofs_agree_on_every_kernel(selection: str, machine: str) -> None:
    """They agree on which kernels need to run on one thread, too."""
    count = accesses = 0
    cases = selected(selection)
    for kernel in kernels(machine, cases):
        text = show(kernel)
        try:
            prove(kernel)
            accesses += check(text)
        except ConflictError:
            assert fault(text) in ("", "threads"), text
        count += 1
    assert count > (len(cases) if "::" in selection else 0)
    assert accesses >= count  # Size only stores


ONE = "1.0: f32"
FAULTY = {
    "past the end": ("range", "for i < 5 { y[i] = load x[i] }"),
    "before 0": ("range", "for i < 4 { y[i] = load x[i + -1] }"),
    "past a row": ("range", "y[0] = load x[2]: f32x4"),
    "read-only": ("range", f"x[0] = {ONE}"),
    "bound": ("range", "bind c < 6 = load x[0] { y[0] = load x[c] }"),
    "empty range": ("range", "for i < 3 { bind c < i = load x[0] { y[0] = load x[c] } }"),
    "quotient": ("divide", "for v < 8 { for u < (v + -5 // 4) + 3 { y[v] = load x[u] } }"),
    "another cell": ("unwritten", f"alloc register r: f32[2] r[0] = {ONE} y[0] = load r[1]"),
    "maybe no iteration": (
        "unwritten",
        f"for n < 3 {{ alloc register r: f32[1] for i < n {{ r[0] = {ONE} }} y[n] = load r[0] }}",
    ),
    "in the iteration before": (
        "unwritten",
        f"for i < 3 {{ alloc register r: f32[1] if i + -1 >= 0 {{ y[i] = load r[0] }} r[0] = {ONE} }}",
    ),
    "if the data say so": (
        "unwritten",
        f"alloc register r: f32[1] bind c < 2 = load x[0] {{ if c + -1 >= 0 {{ r[0] = {ONE} }} }} y[0] = load r[0]",
    ),
    "what the data chose": (
        "unwritten",
        f"alloc stack r: f32[2] bind c < 2 = load x[0] {{ r[c] = {ONE} }}"
        " bind d < 2 = load x[0] { y[0] = load r[d] }",
    ),
    "after its block": ("scope", f"for i < 2 {{ alloc register r: f32[1] r[0] = {ONE} }} y[0] = load r[0]"),
    "another function's value": ("scope", 'let t: f32 = load x[0] outline "part" { y[0] = t }'),
    "large stack": ("limit", f"alloc stack r: f32[65537] r[0] = {ONE} y[0] = load r[0]"),
    "far prefetch": ("limit", "for i < 4 { prefetch x[1000000000*i] }"),
    "two writers": ("threads", f"for parallel i < 4 {{ y[0] = {ONE} }}"),
    "a reader": ("threads", "for parallel i < 4 { y[i] = load y[i + 1] }"),
    "neighbours": ("threads", f"for parallel i < 4 {{ for j < 2 {{ y[i + j] = {ONE} }} }}"),
    "two passes": ("threads", f"for n < 2 {{ for parallel i < 4 {{ y[n + i] = {ONE} }} }}"),
    "every thread": (
        "threads",
        f"for parallel i < 2 {{ y[i] = {ONE} for parallel j < 2 {{ y[2*i + j + 2] = {ONE} }} }}",
    ),
    "carried": ("threads", f"alloc stack r: f32[1] for parallel i < 2 {{ r[0] = {ONE} y[i] = load r[0] }}"),
}
CORRECT = {
    "same value": f"alloc stack r: f32[2] bind c < 2 = load x[0] {{ r[c] = {ONE} y[0] = load r[c] }}",
    "in order": f"alloc stack r: f32[9] r[0] = {ONE} for i < 8 {{ r[i + 1] = load r[i] }}",
    "apart": f"for parallel i < 2 {{ for parallel j < 2 {{ y[2*i + j] = {ONE} }} }}",
    "two tests": (
        f"for n < 4 {{ alloc register r: f32[1] if n + -2 >= 0 {{ r[0] = {ONE} }}"
        f" if -1*n + 1 >= 0 {{ r[0] = {ONE} }} y[n] = load r[0] }}"
    ),
}


def text(body: str) -> str:
    return f"kernel k(const x: f32[4], global y: f32[64]) {{ {body} }}"


@pytest.mark.parametrize("name", FAULTY)
def test_faults_are_detected(name: str) -> None:
    kind, body = FAULTY[name]
    assert fault(text(body)) == kind


@pytest.mark.parametrize("name", CORRECT)
def test_correct_kernels_pass(name: str) -> None:
    assert check(text(CORRECT[name])) > 0


def test_sizes_are_checked_at_their_extremes() -> None:
    good = "kernel k(n < 9; const x: f32[n], global y: f32[n]) { for i < n { y[i] = load x[i] } }"
    assert check(good) == 4  # no iterations for n = 0
    with pytest.raises(FaultError):
        check(good.replace("i < n", "i < 4"))
