"""The kernels that a host launches, in languages with pointers: one for all steps that differ only in where their
operands lie, so that equal layers of a network are compiled once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tenon.machine.codegen.backend import KernelLaunch
from tenon.machine.codegen.comments import call_comment
from tenon.machine.codegen.gpu.dialect import MoreArguments
from tenon.machine.codegen.gpu.language import DeviceLanguage
from tenon.machine.codegen.gpu.memory_objects import SECOND, Objects
from tenon.machine.codegen.gpu.shaders import multiple_of_16
from tenon.machine.kernel_ir.work_groups import WorkGroups, buffer_bytes
from tenon.machine.plan.program import Place, Region

_APART = 16
"""Bytes of which arrays that the host states begin at multiples."""
_NAME, _OFFSETS = "@name", "@offsets"


class EntryKernel(NamedTuple):
    """The kernel of a step, and its arguments that differ between steps: offsets of operands in bytes."""

    name: str
    offsets: tuple[int, ...] = ()


class _AddedStep(NamedTuple):
    name: str
    comment: str
    offsets: tuple[int, ...]


class EntryKernels:
    """The kernels of all steps of some programs, in the order in which steps first run them.  Where they begin
    ``early``, they wait for those that they depend on."""

    def __init__(self, language: DeviceLanguage, *, early: bool) -> None:
        self.language, self.early = language, early
        self._steps = dict[str, list[_AddedStep]]()
        """By the text of a kernel without its name and the offsets of its operands."""

    def add(self, name: str, step: KernelLaunch, loops: int, more: MoreArguments, objects: Objects) -> None:
        """Take a step, inside of so many ``loops``.  ``more`` follows the parameters and the arguments of the function
        that the kernel calls, whose operands lie in ``objects``; ``name`` is that of the kernel if no step before has
        it."""
        text = "\n".join(_kernel(self.language, step, loops, more, objects, early=self.early))
        offsets = tuple(place.offset for place in step.call.args)
        self._steps.setdefault(text, []).append(_AddedStep(name, call_comment(step.call), offsets))

    def lines(self) -> Iterator[str]:
        """The text of all kernels."""
        for text, steps in self._steps.items():
            differing = _differing(steps)
            others = f", and {len(steps) - 1} more */" if len(steps) > 1 else " */"
            yield steps[0].comment.removesuffix(" */") + others
            filled = text.replace(_NAME, steps[0].name)
            filled = filled.replace(_OFFSETS, "".join(f", const int offset{i}" for i in differing))
            for i, offset in enumerate(steps[0].offsets):
                own = f" + offset{i}" if i in differing else f" + {offset}" if offset else ""
                filled = filled.replace(_offset(i), own)
            yield filled

    def of_steps(self) -> dict[str, EntryKernel]:
        """The kernel of each step, by the name that was given for it."""
        kernels = {}
        for steps in self._steps.values():
            differing = _differing(steps)
            for step in steps:
                kernels[step.name] = EntryKernel(steps[0].name, tuple(step.offsets[i] for i in differing))
        return kernels


def _differing(steps: Sequence[_AddedStep]) -> list[int]:
    """The operands that lie at different offsets in some steps."""
    return [i for i, offsets in enumerate(zip(*(step.offsets for step in steps), strict=True)) if len({*offsets}) > 1]


def _offset(operand: int) -> str:
    return f"@offset{operand}@"


def _kernel(
    language: DeviceLanguage, step: KernelLaunch, loops: int, more: MoreArguments, objects: Objects, *, early: bool
) -> Iterator[str]:
    """The kernel that runs one work item of a step, or one thread of a work group."""
    words = dict.fromkeys(Region, language.region) | {Region.CONSTANT: language.constant_region}
    regions = ", ".join(f"{word}{region}" for region, word in words.items())
    items = step.work_items
    parameters = "".join(f", const int {_counter(depth)}" for depth in range(loops)) + _OFFSETS + more.parameters
    memory = [
        more.second if at == SECOND else str(place.region) for at, place in zip(objects, step.call.args, strict=True)
    ]
    operands = [
        f"({language.dialect.pointer_type(buffer)}){_aligned_address(language, place, at, i)}"
        for i, (buffer, place, at) in enumerate(zip(step.call.kernel.params, step.call.args, memory, strict=True))
    ] + (["item", "item + 1"] if items else [])
    groups, limits = step.groups, ""
    if groups is not None:
        operands += [*(b.name for b in groups.shared), language.block.format(size=groups.size), language.thread]
        limits = language.bounds.format(size=groups.size)
        limits += language.clusters.format(size=groups.cluster_size) if groups.cluster else ""
    yield f"{language.kernel} {limits}{_NAME}({regions}{parameters}) {{"
    if early:
        yield f"  {language.waits}"
    if groups is not None:
        yield from _shared(language, groups)
    elif items:
        yield f"  const int item = {language.item};"
        yield f"  if (item >= {items.length}) return;"
    yield f"  {step.function}({', '.join(operands)}{more.arguments});"
    yield "}"


def _shared(language: DeviceLanguage, groups: WorkGroups) -> Iterator[str]:
    """The declarations of memory that the threads of a block share."""
    stated, offset = stated_bytes(language, groups), 0
    if stated:
        yield f"  {language.stated}"
    for b in groups.shared:
        size, name, dtype = buffer_bytes(b), b.name, language.dialect.names[b.type.dtype]
        if stated:
            yield f"  {dtype} *const {name} = ({dtype} *)(shared_memory + {offset});"
        else:
            yield f"  {language.shared.format(type=dtype, name=name, size=size // b.type.dtype.bytes)}"
        offset += -(-size // _APART) * _APART


def stated_bytes(language: DeviceLanguage, groups: WorkGroups | None) -> int:
    """The bytes that threads of a block share, if the host has to state them, else 0."""
    total = sum(-(-buffer_bytes(b) // _APART) * _APART for b in groups.shared) if groups else 0
    return total if total > language.declared else 0


def _aligned_address(language: DeviceLanguage, place: Place, memory: str, operand: int) -> str:
    """The address of an operand, with what its compiler needs to know to load several elements at once."""
    moved = "".join(f" + (long){_counter(a.depth)} * {a.step}" for a in place.advances)
    address = f"({memory}{_offset(operand)}{moved})"
    return language.aligned.format(address=address) if multiple_of_16(place) else address


def _counter(depth: int) -> str:
    """The number of the iteration of a loop around a step."""
    return f"iteration{depth}"
