"""The interface of a backend: what prints programs of the loop IR in one language, and what one step of them is.

A backend is a module of this package whose ``BACKEND`` has the methods of ``Backend``; a target names it
(``targets.base.Target.backend``).  Everything before it (plan, proofs, work items, barriers) is the same for all:

    program  -> steps    one per kernel call, in order, with the work items that run in parallel and the barriers;
                         loops and branches are those of the program's tree
    steps    -> unit     printed functions as objects: text, comment, which functions each calls
    unit     -> files    what users read and compile, and the entry points that the bundle's header declares
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal, Protocol

from tenon.errors import InputError, InternalError
from tenon.gpu_options import USUAL, GpuOptions
from tenon.machine.codegen.threads import Sharing, barriers, firsts
from tenon.machine.kernel_ir.loops import Alloc, Barrier, CallSource, Kernel, Loop
from tenon.machine.kernel_ir.walk import operations, statements, types
from tenon.machine.kernel_ir.work_groups import WorkGroups, work_groups
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import Call, Program, Region, repeats
from tenon.machine.proofs.needed import prove_needed
from tenon.machine.proofs.regions import prove_regions
from tenon.network.graph.types import DType

Launch = Literal["call", "grid"]
"""How a step runs: "call" is a function call, whose work items threads take in slices; "grid" is a launch with one
thread of a grid for each work item, or of the work groups of a kernel that has them."""


@dataclass(frozen=True)
class KernelLaunch:
    """One kernel call of a program, as a backend runs it; those of a program stand in the order of ``Program.calls``.

    ``function`` is the printed kernel.  ``work_items`` numbers its parallel iterations; where it is None, one thread
    runs them all (a grid of one), unless the kernel is a launch of work ``groups``.  With a ``barrier``, every step
    before must have ended everywhere: threads wait for each other; a GPU's queue, which runs launches in order, needs
    nothing.
    """

    call: Call
    function: str
    work_items: WorkItems | None
    barrier: bool

    @property
    def groups(self) -> WorkGroups | None:
        """The work groups of the launch; None where ``work_items`` say what runs."""
        return work_groups(self.call.kernel)


@dataclass(frozen=True)
class SourceFile:
    """A generated file.  ``compiler`` says what compiles it: "c" is the target's C compiler; a file without one is for
    readers, or for what runs the bundle."""

    name: str
    language: Literal["c", "opencl", "cuda", "vulkan", "webgpu", "javascript", "ir"]
    text: str
    compiler: Literal["c", ""] = ""


@dataclass(frozen=True)
class EntryPoint:
    """A C function of a unit that programs call, as the bundle's header declares it.

    It takes the addresses of ``regions``, which its caller supplies, and then ``parameters``; ``about`` is the comment
    of its declaration, ``macros`` are numbers that its callers need, by their names without the program's.
    """

    name: str
    regions: tuple[Region, ...] = tuple(Region)
    parameters: tuple[str, ...] = ()
    returns: str = "int"
    about: str = ""
    macros: tuple[tuple[str, int], ...] = ()

    @property
    def prototype(self) -> str:
        """The declaration without a semicolon."""
        parts = [part for part in (region_parameters(self.regions), ", ".join(self.parameters)) if part]
        head = f"{self.returns}{'' if self.returns.endswith('*') else ' '}{self.name}"
        line = f"{head}({', '.join(parts)})"
        return line if len(line) <= _LONGEST else f"{head}({_NEXT.join(parts)})"


_LONGEST = 100
_NEXT = ",\n  "


def region_parameters(regions: Sequence[Region] = tuple(Region)) -> str:
    """The parameters that point to regions: weights are only read, so that they can stay in flash."""
    return ", ".join(f"{'const ' * (region is Region.CONSTANT)}uint8_t *{region}" for region in regions)


class Unit(Protocol):
    """The source files that a backend prints for the programs of a bundle, with their entry points."""

    @property
    def steps(self) -> tuple[tuple[KernelLaunch, ...], ...]:
        """The steps of each program in it."""

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """All files that users get; the first has the entry points."""

    @property
    def entry_points(self) -> tuple[tuple[EntryPoint, ...], ...]:
        """The entry points of each program; the first runs it once on the three regions and returns 0."""

    @property
    def libraries(self) -> Mapping[str, tuple[str, ...]]:
        """The shared libraries that its code calls besides the C library, and the functions that it calls."""

    def split(self) -> list[str]:
        """C texts to be compiled separately and linked; the text of the first file where that gains nothing.

        How many there are depends on the unit alone, so that the same program gives the same object everywhere.
        """

    def placed(self, section: str) -> Unit:
        """The same code with every function in a section of that name.  Raises InputError if it has no sections."""

    def without_names(self) -> Unit:
        """The same code without names and comments that tell of the model."""


@dataclass(frozen=True)
class TextUnit:
    """A unit that consists of whole files."""

    files: tuple[SourceFile, ...]
    steps: tuple[tuple[KernelLaunch, ...], ...] = ()
    entry_points: tuple[tuple[EntryPoint, ...], ...] = ()
    libraries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def split(self) -> list[str]:
        """The files that a C compiler compiles."""
        return [file.text for file in self.files if file.compiler == "c"]

    def placed(self, section: str) -> TextUnit:
        raise InputError(f"this target's code has no sections: leave out code_section={section} (--code-section)")

    def without_names(self) -> TextUnit:
        """The same: texts are left as they are."""
        return self


class Backend(Protocol):
    """Prints kernels and programs.  ``spaces`` are the memory spaces, ``loops`` the loop kinds and ``operations`` the
    primitives (``kernel_ir.loops``; None: all) that its kernels may use, and ``calls_c`` says whether they may call C
    functions; a kernel with others is an InternalError, as it belongs to another target."""

    @property
    def launch(self) -> Launch: ...

    @property
    def spaces(self) -> frozenset[str]: ...

    @property
    def loops(self) -> frozenset[str]: ...

    @property
    def operations(self) -> frozenset[str] | None: ...

    @property
    def lacks(self) -> frozenset[DType]:
        """Types that no value of a kernel may have."""

    @property
    def calls_c(self) -> bool: ...

    def kernel(self, kernel: Kernel) -> str:
        """The text of one kernel, with all that it needs.  Raises InternalError for one that the backend cannot run."""

    def entry_points(self, name: str, *, profile: bool = False) -> tuple[EntryPoint, ...]:
        """The entry points that any program of that name has, without what depends on the program."""

    def program(
        self,
        programs: Sequence[Program],
        header: str,
        *,
        profile: bool = False,
        banner: str = "",
        gpu: GpuOptions = USUAL,
    ) -> Unit:
        """One unit with the entry points of all ``programs``; equal kernels are there once.

        ``header`` is the name of the bundle's header; ``profile`` asks for entry points that run a single step;
        ``banner`` is a comment on top; ``gpu`` are the options of a GPU, unless the caller has others.
        Every kernel is proved first (``proofs.bounds``); raises OutOfRangeError if a proof fails.
        """


def find(name: str) -> Backend:
    """The backend of that name.  Raises InternalError if there is none."""
    try:
        backend: Backend = import_module(f"tenon.machine.codegen.{name}").BACKEND
    except (ModuleNotFoundError, AttributeError):
        raise InternalError(f"no backend '{name}': a module tenon.machine.codegen.{name} with BACKEND") from None
    return backend


def steps_of(
    program: Program, backend: Backend, printed: Callable[[Kernel, WorkItems | None], str]
) -> tuple[KernelLaunch, ...]:
    """The steps of a program, its kernels proved; ``printed`` prints a kernel (with slices of its work items, if those
    are shared) and returns its function's name."""
    prove_regions(program)
    grid = backend.launch == "grid"
    sharing = Sharing(program.threads, grid=grid, launch=program.launch, spaces=program.spaces)
    parts = [sharing.part(call) for call in program.calls]
    for kernel, cut in {(call.kernel, call.cut) for call in program.calls}:
        if cut is not None:
            prove_needed(kernel, cut)
    for kernel in {id(part.call.kernel): part.call.kernel for part in parts}.values():
        require_supported(backend, kernel)
    starts = firsts(program.items) | ({0} if grid and any(repeats(program.items)) else frozenset())
    return tuple(
        KernelLaunch(part.call, printed(part.call.kernel, part.slices), part.slices, barrier)
        for part, barrier in zip(parts, barriers(parts, starts, grid=grid), strict=True)
    )


def require_supported(backend: Backend, kernel: Kernel) -> None:
    """Raises InternalError for a kernel that the backend's machines cannot run."""
    for reason in unsupported(backend, kernel):
        raise InternalError(f"kernel {kernel.name}: {reason}")


def unsupported(backend: Backend, kernel: Kernel) -> Iterator[str]:
    """A kernel's needs that the backend's machines do not meet: memory spaces, loop kinds, barriers, operations."""
    inside = list(statements(kernel.body))
    buffers = (*kernel.params, *(s.buffer for s in inside if isinstance(s, Alloc)))
    for space in dict.fromkeys(b.space for b in buffers if b.space not in backend.spaces):
        yield f"this target has no {space} memory"
    for kind in dict.fromkeys(s.kind for s in inside if isinstance(s, Loop) and s.kind not in backend.loops):
        yield f"this target has no {kind} loops"
    if any(isinstance(s, Barrier) for s in inside) and "thread" not in backend.loops:
        yield "this target has no barriers inside a kernel"
    if any(isinstance(s, CallSource) for s in inside) and not backend.calls_c:
        yield "this target cannot call C functions of plug-ins"
    for dtype in sorted(types(kernel) & backend.lacks):
        yield f"this target has no {dtype}"
    for name in sorted(operations(kernel).keys() - backend.operations) if backend.operations is not None else ():
        yield f"this target has no operation {name}"
