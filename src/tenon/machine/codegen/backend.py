"""The interface of a backend: what prints programs of the loop IR in one language, and what one step of them is.

A backend is a module of this package whose ``BACKEND`` has the methods of ``Backend``; a target names it
(``targets.base.Target.backend``).  Everything before it (plan, proofs, work items, barriers) is the same for all:

    program  -> steps    one per kernel call, in order, with the work items that run in parallel and the barriers
    steps    -> unit     printed functions as objects: text, comment, which functions each calls
    unit     -> text     what users read and compile, or parts of it that a compiler can work on at the same time
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol

from tenon.errors import InternalError
from tenon.machine.codegen.threads import Sharing, barriers
from tenon.machine.kernel_ir.loops import Alloc, Barrier, Bind, If, Kernel, Loop, Outline, Stmt
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import Call, Program

Launch = Literal["call", "grid"]
"""How a step runs: "call" is a function call, whose work items threads take in slices; "grid" is a launch with one
thread of a grid for each work item."""


@dataclass(frozen=True)
class Step:
    """One kernel call of a program, as a backend runs it.

    ``function`` is the printed kernel.  ``work_items`` numbers its parallel iterations; where it is None, one thread
    runs them all (a grid of one).  With a ``barrier``, every step before must have ended everywhere: threads wait for
    each other; a GPU's queue, which runs launches in order, needs nothing.
    """

    call: Call
    function: str
    work_items: WorkItems | None
    barrier: bool


class Unit(Protocol):
    """A printed translation unit."""

    @property
    def steps(self) -> tuple[tuple[Step, ...], ...]:
        """The steps of each program in it."""

    def text(self) -> str:
        """The whole source file."""

    def split(self) -> list[str]:
        """Source texts to be compiled separately and linked; ``[text()]`` where that gains nothing.

        How many there are depends on the unit alone, so that the same program gives the same object everywhere.
        """


@dataclass(frozen=True)
class TextUnit:
    """A unit that is a text and nothing else: it is never split."""

    source: str
    steps: tuple[tuple[Step, ...], ...] = ()

    def text(self) -> str:
        """The text itself."""
        return self.source

    def split(self) -> list[str]:
        """The text, whole."""
        return [self.source]


class Backend(Protocol):
    """Prints kernels and programs.  ``spaces`` are the memory spaces and ``loops`` the loop kinds
    (``kernel_ir.loops``) that its kernels may use; a kernel with others is an InternalError, as it belongs to another
    target."""

    @property
    def launch(self) -> Launch: ...

    @property
    def spaces(self) -> frozenset[str]: ...

    @property
    def loops(self) -> frozenset[str]: ...

    def kernel(self, kernel: Kernel) -> str:
        """The text of one kernel, with all that it needs.  Raises InternalError for one that the backend cannot run."""

    def program(self, programs: Sequence[Program], header: str, *, profile: bool = False, banner: str = "") -> Unit:
        """One unit with the entry points of all ``programs``; equal kernels are there once.

        ``header`` is the name of the bundle's header; ``profile`` asks for entry points that run a single step;
        ``banner`` is a comment on top.
        Every kernel is proved first (``proofs.bounds``); raises OutOfRangeError if a proof fails.
        """


def find(name: str) -> Backend:
    """The backend of that name.  Raises InternalError if there is none."""
    try:
        found: Backend = import_module(f"tenon.machine.codegen.{name}").BACKEND
    except (ModuleNotFoundError, AttributeError):
        raise InternalError(f"no backend '{name}': a module tenon.machine.codegen.{name} with BACKEND") from None
    return found


def steps_of(
    program: Program, backend: Backend, printed: Callable[[Kernel, WorkItems | None], str]
) -> tuple[Step, ...]:
    """The steps of a program, its kernels proved; ``printed`` prints a kernel (with slices of its work items, if those
    are shared) and returns its function's name."""
    sharing = Sharing(program.threads)
    parts = [sharing.part(call) for call in program.calls]
    for part in parts:
        require_supported(backend, part.call.kernel)
    return tuple(
        Step(part.call, printed(part.call.kernel, part.slices), part.slices, barrier)
        for part, barrier in zip(parts, barriers(parts), strict=True)
    )


def require_supported(backend: Backend, kernel: Kernel) -> None:
    """Raises InternalError for a memory space, a loop kind or a barrier that the backend's machines do not have."""
    statements = list(_walk(kernel.body))
    buffers = (*kernel.params, *(s.buffer for s in statements if isinstance(s, Alloc)))
    for space in {b.space for b in buffers} - backend.spaces:
        raise InternalError(f"kernel {kernel.name}: this target has no {space} memory")
    for s in statements:
        if isinstance(s, Loop) and s.kind not in backend.loops:
            raise InternalError(f"kernel {kernel.name}: this target has no {s.kind} loops")
        if isinstance(s, Barrier) and not any(kind.startswith("thread.") for kind in backend.loops):
            raise InternalError(f"kernel {kernel.name}: this target has no barriers inside a kernel")


def _walk(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    for s in body:
        yield s
        if isinstance(s, Loop | Bind | If | Outline):
            yield from _walk(s.body)
