"""Programs in languages without pointers: an entry for each different kernel, and the operands of each step."""

from __future__ import annotations

from collections.abc import Sequence

from tenon.errors import Problem, UnsupportedError
from tenon.machine.codegen.backend import Backend, KernelLaunch, steps_of
from tenon.machine.codegen.gpu.words import GROUP, OPERANDS, WordC
from tenon.machine.kernel_ir.loops import Buffer, Kernel
from tenon.machine.plan.program import Place, Program, Region

_Key = tuple[Kernel, bool, bool, tuple[Region, ...]]


class Shaders:
    """The different kernels of programs, in the order in which steps first use them.

    ``groups`` are the threads of the work groups of each.
    """

    def __init__(self, dialect: WordC) -> None:
        self.dialect = dialect
        self.entries: list[str] = []
        self.groups: list[int] = []
        self.numbers: dict[_Key, int] = {}

    def number(self, step: KernelLaunch) -> int:
        """The number of the entry that runs a step."""
        aligned = all(map(multiple_of_16, step.call.args))
        key = step.call.kernel, step.work_items is not None, aligned, tuple(place.region for place in step.call.args)
        if key not in self.numbers:
            self.numbers[key] = len(self.entries)
            self.dialect.aligned = aligned
            self.dialect.regions = {b.name: p.region for b, p in _operands(step)}
            name = self.dialect.kernel(step.call.kernel, step.work_items)
            self.entries.append(self.dialect.entry(len(self.entries), name, step))
            self.groups.append(step.groups.size if step.groups else GROUP)
        return self.numbers[key]

    def text(self) -> str:
        """The program."""
        return self.dialect.program(self.entries)


def multiple_of_16(place: Place) -> bool:
    """Whether an operand lies at a multiple of 16 bytes, in every iteration of the loops around its step."""
    return not any(n % 16 for n in (place.offset, *(a.step for a in place.advances)))


def steps_of_shaders(program: Program, backend: Backend) -> tuple[KernelLaunch, ...]:
    """The steps of a program.  Raises UnsupportedError for kernels with too many operands."""
    problems = [
        Problem(f"{call.op} '{call.layer}'", f"its kernel has {len(call.args)} operands, more than {OPERANDS}")
        for call in program.calls
        if len(call.args) > OPERANDS
    ]
    if problems:
        raise UnsupportedError(program.name, problems)
    return steps_of(program, backend, lambda kernel, _: kernel.name)


def binding_tables(program: Program, steps: Sequence[KernelLaunch], shaders: Shaders, loops: int) -> list[str]:
    """C tables: for every step its shader, its operands, and whether it waits for the steps before.

    ``loops`` is the length of the list of an operand's movements, one for each loop around a step.
    """
    operands, bindings = list[str](), list[str]()
    for step in steps:
        own = [f"  {{{at}, {{{', '.join(map(str, moved))}}}}}," for at, moved in placed_operands(step, loops)]
        bindings.append(f"  {{{shaders.number(step)}, {len(operands)}, {len(own)}, {int(step.barrier)}}},")
        operands += own
    return [
        "\n".join([f"static const DeviceOperand {program.name}_operands[] = {{", *operands, "  {0, {0}},", "};"]),
        "\n".join([f"static const DeviceBinding {program.name}_bindings[] = {{", *bindings, "  {0, 0, 0, 0},", "};"]),
    ]


def _operands(step: KernelLaunch) -> list[tuple[Buffer, Place]]:
    return list(zip(step.call.kernel.params, step.call.args, strict=True))


def placed_operands(step: KernelLaunch, loops: int = 0) -> list[tuple[int, list[int]]]:
    """For each operand of a step the number of its first element, and by how many elements each loop around the step
    moves it, for at least ``loops`` loops."""
    return [_placed(buffer, place, loops) for buffer, place in _operands(step)]


def _placed(buffer: Buffer, place: Place, loops: int) -> tuple[int, list[int]]:
    size = buffer.type.bytes
    count = max([loops, *(a.depth + 1 for a in place.advances)])
    moved = [sum(a.step for a in place.advances if a.depth == depth) // size for depth in range(count)]
    return place.offset // size, moved
