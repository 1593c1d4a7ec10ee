"""The backend that prints the loop IR: kernels as text (``kernel_ir.text``), and the steps that call them.

For developers of kernels: ``tenon compile --emit ir`` writes it beside the C of any target. It cannot be compiled;
``kernel_ir.parse.parse`` parses each kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tenon.gpu_options import USUAL, GpuOptions
from tenon.machine.codegen.backend import (
    Backend,
    EntryPoint,
    KernelLaunch,
    Launch,
    SourceFile,
    TextUnit,
    require_supported,
    steps_of,
)
from tenon.machine.codegen.comments import call_facts
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.text import show
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import Branch, Call, Item, Program, Repeat, SizeCheck
from tenon.machine.plan.text import branch_head, check_text, repeat_head, show_place
from tenon.network.graph.types import DType


class IRText:
    """All memory spaces and loop kinds can be printed; a step names its kernel and the addresses of its operands."""

    launch: Launch = "call"
    spaces = frozenset({"global", "const", "scratch", "shared", "cluster", "stack", "register"})
    operations = None
    calls_c = True
    lacks = frozenset[DType]()
    loops = frozenset({"serial", "unroll", "parallel", "block", "cluster", "thread"})

    def kernel(self, kernel: Kernel) -> str:
        """The kernel's text."""
        require_supported(self, kernel)
        return show(kernel)

    def entry_points(self, name: str, *, profile: bool = False) -> tuple[EntryPoint, ...]:
        """There are none."""
        return ()

    def program(
        self,
        programs: Sequence[Program],
        header: str,
        *,
        profile: bool = False,
        banner: str = "",
        gpu: GpuOptions = USUAL,
    ) -> TextUnit:
        """All kernels, each once, then the steps of each program; there are no entry points, so that of the
        options none changes anything."""
        kernels: dict[Kernel, str] = {}
        texts: dict[str, str] = {}  # names by what follows them

        def printed(kernel: Kernel, slices: WorkItems | None) -> str:
            if kernel not in kernels:
                name, text = kernel.name, self.kernel(kernel).removeprefix(f"kernel {kernel.name}")
                while text not in texts and name in texts.values():
                    name = _next(name, kernel.name)
                kernels[kernel] = texts.setdefault(text, name)
            return kernels[kernel]

        steps = tuple(steps_of(p, self, printed) for p in programs)
        shown = [f"kernel {name}{text}" for text, name in texts.items()]
        listed = [_program(p, own) for p, own in zip(programs, steps, strict=True)]
        text = banner + "\n".join([*shown, *listed])
        return TextUnit((SourceFile(f"{programs[0].name}.ir", "ir", text),), steps, ((),) * len(programs))


def _next(name: str, stem: str) -> str:
    number = name.removeprefix(stem).removeprefix("_")
    return f"{stem}_{int(number or 1) + 1}"


def _program(program: Program, steps: Sequence[KernelLaunch]) -> str:
    lines = [f"program {program.name}() {{", *_items(program.items, iter(steps), "  "), "}", ""]
    return "\n".join(lines)


def _items(items: Iterable[Item], steps: Iterator[KernelLaunch], margin: str) -> Iterator[str]:
    inner = margin + "  "
    for item in items:
        match item:
            case Call():
                yield from (margin + line for line in _step(next(steps)))
            case Repeat():
                yield f"{margin}{repeat_head(item)} {{"
                yield from _items(item.body, steps, inner)
                yield margin + "}"
            case Branch():
                for number, body in enumerate(item.bodies):
                    yield f"{margin}{branch_head(item, number)} {{"
                    yield from _items(body, steps, inner)
                    yield margin + "}"
            case SizeCheck():
                yield margin + check_text(item)


def _step(step: KernelLaunch) -> Iterator[str]:
    if step.barrier:
        yield "barrier"
    buffers, places = step.call.kernel.params, step.call.args
    operands = ", ".join(f"{b.name} = {show_place(p)}" for b, p in zip(buffers, places, strict=True))
    items = f" over {step.work_items.length} work items" if step.work_items else ""
    yield f"// {call_facts(step.call)}"
    yield f"{step.function}({operands}){items}"


BACKEND: Backend = IRText()
