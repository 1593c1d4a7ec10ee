"""Programs for devices: kernels, and the host program with tables of the steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path

import tenon
from tenon.errors import InputError, Problem, UnsupportedError
from tenon.machine.codegen.backend import Backend, KernelLaunch, SourceFile, TextUnit, steps_of, unsupported
from tenon.machine.codegen.comments import call_comment
from tenon.machine.codegen.gpu.dialect import MoreArguments
from tenon.machine.codegen.gpu.entry_points import entry_points
from tenon.machine.codegen.gpu.language import DeviceLanguage
from tenon.machine.codegen.gpu.launches import (
    check_function,
    counted_calls,
    depths,
    host_checks,
    host_files,
    launch_function,
    most_loops,
    reads_numbers,
)
from tenon.machine.codegen.gpu.memory_objects import SECOND, ImageOperands, Objects
from tenon.machine.codegen.gpu.shaders import Shaders, binding_tables, multiple_of_16, steps_of_shaders
from tenon.machine.codegen.gpu.words import WordC
from tenon.machine.codegen.reset import reset, reset_text
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.text import show as kernel_text
from tenon.machine.kernel_ir.work_groups import WorkGroups, buffer_bytes
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import Place, Port, Program, Region

_RUNTIME = Path(tenon.__file__).parent / "runtime" / "c"
_LARGEST = 2**31 - 1
_APART = 16
"""Bytes of which arrays that the host states begin at multiples."""
_AT_RUN_TIME = "this target has no loops whose number of iterations is known only at run time"
_ANOTHER = "compile it for another target"
_POSIX = "#define _POSIX_C_SOURCE 200809L"
_FIRST = ("device_network.c", "device_options.c", "device_cache.c")
_STREAM_CALLS = ("device_queue_run(device, inputs, stream)", "device_wait(device, stream)", "device_tensors(device)")
LOADER = {"libdl.so.2": ("dlopen", "dlsym")}
"""What the host program calls besides the C library: it opens the driver's library when it runs."""


def print_unit(
    language: DeviceLanguage,
    backend: Backend,
    programs: Sequence[Program],
    header: str,
    *,
    banner: str = "",
    options: str = "",
) -> TextUnit:
    """The files of the programs; ``options`` are lines for ``runtime/c/device_options.c``.

    Raises UnsupportedError with all layers whose kernels the language cannot express, InputError for a region that its
    indices cannot reach.
    """
    for program in programs:
        require_runnable(language, backend, program)
    printed = _print_kernels if language.dialect.pointers else _print_shaders
    steps, text, groups, images, tables = printed(language, backend, programs)
    name = programs[0].name
    files = (
        SourceFile(
            f"{name}.c",
            "c",
            _host(language, programs, steps, text, groups, images, tables, header, banner, options),
            "c",
        ),
        SourceFile(f"{name}{language.suffix}", language.name, f"{banner}{text}\n"),
    )
    return TextUnit(files, steps, tuple((*entry_points(language, p.name), *reset(p)) for p in programs), LOADER)


_Steps = tuple[tuple[KernelLaunch, ...], ...]
_Printed = tuple[_Steps, str, list[int], list[list[int]], list[list[str]]]
"""The steps of each program, the text of all kernels, the threads of the work groups of each (none where the text says
them), the images that each step of each program can read, as bits, and tables of each program besides those that all
have."""


def _print_shaders(language: DeviceLanguage, backend: Backend, programs: Sequence[Program]) -> _Printed:
    """An entry for each different kernel."""
    assert issubclass(language.dialect, WordC)
    steps = tuple(steps_of_shaders(program, backend) for program in programs)
    shaders, loops = Shaders(language.dialect()), most_loops(programs)
    tables = [binding_tables(p, own, shaders, loops) for p, own in zip(programs, steps, strict=True)]
    return steps, shaders.text(), shaders.groups, [[0] * len(own) for own in steps], tables


def _print_kernels(language: DeviceLanguage, backend: Backend, programs: Sequence[Program]) -> _Printed:
    """One text of all kernels."""
    dialect, names = language.dialect(), dict[tuple[Kernel, bool], str]()
    dialect.taken |= {_kernel_name(p, i) for p in programs for i in range(len(p.calls))}

    # By operands: kernels of work items are printed with more parallel loops than calls have.
    loose = {call.kernel.params for p in programs for call in p.calls if not all(map(multiple_of_16, call.args))}
    operands = ImageOperands(programs)

    def printed(kernel: Kernel, slices: WorkItems | None) -> str:
        key, params = (kernel, slices is not None), kernel.params
        dialect.aligned, dialect.weights = params not in loose, operands.weights[params]
        dialect.as_images = operands.readable[params]
        names[key] = names.get(key) or dialect.kernel(kernel, slices)
        return names[key]

    steps = tuple(steps_of(program, backend, printed) for program in programs)
    launched, images = list[str](), [list[int]() for _ in programs]
    for p, own, objects, numbers in zip(programs, steps, operands.objects, images, strict=True):
        for i, (step, loops) in enumerate(zip(own, depths(p.items), strict=True)):
            more = dialect.more_arguments(step.function, objects[i])
            launched += _kernel(language, p, i, step, loops, more, objects[i])
            numbers.append(more.images)
    return steps, "\n".join([dialect.text(), *launched]), [], images, [[] for _ in programs]


def require_runnable(language: DeviceLanguage, backend: Backend, program: Program) -> None:
    """Raises UnsupportedError with all layers that the backend cannot run, InputError for too large a region."""
    _require_supported(language, backend, program)
    _require_small(language, program)


def _require_supported(language: DeviceLanguage, backend: Backend, program: Program) -> None:
    decided = set() if language.reads else {id(c) for item in program.items for c in counted_calls(item)}
    problems = [
        Problem(f"{call.op} '{call.layer}'", reason, _ANOTHER)
        for call in program.calls
        for reason in [*unsupported(backend, call.kernel), *([_AT_RUN_TIME] if id(call) in decided else [])]
    ]
    if problems:
        raise UnsupportedError(program.name, list(dict.fromkeys(problems)))


def _require_small(language: DeviceLanguage, program: Program) -> None:
    memory = program.memory
    for region, size in zip(Region, (memory.constant, memory.mutable, memory.activations), strict=True):
        if size > _LARGEST:
            raise InputError(
                f"{program.name} needs {size:,} bytes of {region}, and kernels in {language.title} can index "
                f"{_LARGEST:,}: compile it for another target"
            )


def _kernel_name(program: Program, number: int) -> str:
    return f"{program.name}_step_{number}"


def _kernel(
    language: DeviceLanguage,
    program: Program,
    number: int,
    step: KernelLaunch,
    loops: int,
    more: MoreArguments,
    objects: Objects,
) -> list[str]:
    """The kernel that runs one work item of a step, or one thread of a work group; ``more`` follows its parameters and
    the arguments of the function that it calls, whose operands lie in ``objects``."""
    words = dict.fromkeys(Region, language.region) | {Region.CONSTANT: language.constant_region}
    regions = ", ".join(f"{word}{region}" for region, word in words.items())
    items = step.work_items
    counters = "".join(f", const int {_counter(depth)}" for depth in range(loops)) + more.parameters
    pairs = zip(objects, step.call.args, strict=True)
    memory = [more.second if at == SECOND else str(place.region) for at, place in pairs]
    operands = [
        f"({language.dialect.pointer_type(buffer)}){_aligned_address(language, place, at)}"
        for buffer, place, at in zip(step.call.kernel.params, step.call.args, memory, strict=True)
    ] + (["item", "item + 1"] if items else [])
    if (groups := step.groups) is not None:
        operands += [*(b.name for b in groups.shared), language.block.format(size=groups.size), language.thread]
        limits = language.bounds.format(size=groups.size)
        limits += language.clusters.format(size=groups.cluster_size) if groups.cluster else ""
        return [
            call_comment(step.call),
            f"{language.kernel} {limits}{_kernel_name(program, number)}({regions}{counters}) {{",
            *_shared(language, groups),
            f"  {step.function}({', '.join(operands)}{more.arguments});",
            "}",
        ]
    guard = [f"  if (item >= {items.length}) return;"] if items else []
    number_of_item = [f"  const int item = {language.item};"] if items else []
    return [
        call_comment(step.call),
        f"{language.kernel} {_kernel_name(program, number)}({regions}{counters}) {{",
        *number_of_item,
        *guard,
        f"  {step.function}({', '.join(operands)}{more.arguments});",
        "}",
    ]


def _shared(language: DeviceLanguage, groups: WorkGroups) -> Iterator[str]:
    """The declarations of memory that the threads of a block share."""
    stated, offset = _stated(language, groups), 0
    if stated:
        yield f"  {language.stated}"
    for b in groups.shared:
        size, name, dtype = buffer_bytes(b), b.name, language.dialect.names[b.type.dtype]
        if stated:
            yield f"  {dtype} *const {name} = ({dtype} *)(shared_memory + {offset});"
        else:
            yield f"  {language.shared.format(type=dtype, name=name, size=size // b.type.dtype.bytes)}"
        offset += -(-size // _APART) * _APART


def _stated(language: DeviceLanguage, groups: WorkGroups | None) -> int:
    """The bytes that threads of a block share, if the host has to state them, else 0."""
    total = sum(-(-buffer_bytes(b) // _APART) * _APART for b in groups.shared) if groups else 0
    return total if total > language.declared else 0


def _aligned_address(language: DeviceLanguage, place: Place, memory: str) -> str:
    """The address of an operand, with what its compiler needs to know to load several elements at once."""
    address = _address(place, memory)
    return language.aligned.format(address=address) if multiple_of_16(place) else address


def _address(place: Place, memory: str) -> str:
    moved = "".join(f" + (long){_counter(a.depth)} * {a.step}" for a in place.advances)
    offset = f" + {place.offset}" if place.offset else ""
    return f"({memory}{offset}{moved})" if offset or moved else memory


def _counter(depth: int) -> str:
    """The number of the iteration of a loop around a step."""
    return f"iteration{depth}"


def _host(
    language: DeviceLanguage,
    programs: Sequence[Program],
    steps: Sequence[Sequence[KernelLaunch]],
    text: str,
    groups: Sequence[int],
    images: Sequence[Sequence[int]],
    tables: Sequence[Sequence[str]],
    header: str,
    banner: str,
    options: str,
) -> str:
    """The C file that programs call."""
    each = zip(programs, steps, images, tables, strict=True)
    networks = [text for p, own, read, more in each for text in _network(language, p, own, read, more)]
    kernels = language.embedded(text, groups)
    numbers = host_files(programs)
    last = [*([language.reads] if numbers else []), "device_queue.c", *numbers]
    return "\n".join(
        [
            f"{banner}{_POSIX}",
            f'#include "{header}"',
            "",
            kernels,
            f"enum {{ DEVICE_LOOPS = {most_loops(programs)} }};",
            f'static const char DEVICE_DIGEST[] = "{sha256(kernels.encode()).hexdigest()}"; /* of the kernels */',
            f"static const char DEVICE_OPTIONS[] = {json.dumps(options)};",
            "",
            *((_RUNTIME / file).read_text() for file in (*_FIRST, *language.host, *last)),
            *networks,
            "",
        ]
    )


def _network(
    language: DeviceLanguage,
    program: Program,
    steps: Sequence[KernelLaunch],
    images: Sequence[int],
    tables: Sequence[str],
) -> list[str]:
    """The tables and entry points of a program; ``images`` are those that each step can read, as bits, and ``tables``
    those of its operands, in languages without pointers."""
    name, memory, checks = program.name, program.memory, host_checks(program)
    rows = [
        f'{{"{_kernel_name(program, i)}", {_threads(s)}, {loops}, "{kernel_key(s)}", {read:#x}, '
        f"{_stated(language, s.groups)}}}"
        for i, (s, loops, read) in enumerate(zip(steps, depths(program.items), images, strict=True))
    ]
    sizes = f"{{{memory.constant}, {memory.mutable}, {memory.activations}}}"
    once, create, create_with, run, timed, facts, destroy, message, *more = (
        e.prototype for e in entry_points(language, name)
    )
    counts = f"{len(steps)}, {len(program.inputs)}, {len(program.outputs)}"
    launch = f"{name}_launch, {int(reads_numbers(program))}, {f'{name}_checked' if checks else 'NULL'}"
    bound = f"{name}_bindings, {name}_operands" if tables else "NULL, NULL"
    return [
        _table("DeviceStep", f"{name}_steps", [*rows, '{"", 0, 0, 0, "", 0, 0}']),
        _table("DevicePort", f"{name}_inputs", _ports(program.inputs)),
        _table("DevicePort", f"{name}_outputs", _ports(program.outputs)),
        *tables,
        *launch_function(program),
        *check_function(name, checks),
        f"static const DeviceNetwork {name}_network = {{",
        f"  {name}_steps, {name}_inputs, {name}_outputs, {counts}, {sizes}, {launch}, {bound},",
        "};\n",
        f"{create} {{\n  return device_create(&{name}_network, {Region.CONSTANT}, NULL, status);\n}}\n",
        f"{create_with} {{\n  return device_create(&{name}_network, {Region.CONSTANT}, options, status);\n}}\n",
        f"{run} {{\n  return device_checked_run(device, {Region.MUTABLE});\n}}\n",
        f"{timed} {{\n  return device_times(device, {Region.MUTABLE}, nanoseconds);\n}}\n",
        f"{facts} {{\n  return device_facts();\n}}\n",
        f"{destroy} {{\n  device_destroy(device);\n}}\n",
        f"{message} {{\n  return device_message;\n}}\n",
        *(f"{entry} {{\n  return {call};\n}}\n" for entry, call in zip(more, _STREAM_CALLS, strict=False)),
        f"{once} {{",
        "  int status = 0;",
        f"  DeviceQueue *device = device_create(&{name}_network, {Region.CONSTANT}, NULL, &status);",
        f"  (void){Region.ACTIVATIONS};",
        f"  if (device) status = device_checked_run(device, {Region.MUTABLE});",
        "  device_destroy(device);",
        "  return status;",
        "}",
        *reset_text(program),
    ]


def kernel_key(step: KernelLaunch) -> str:
    """The same for equal kernels with as many threads, whatever network they are of: what is measured of one holds for
    all."""
    text = kernel_text(step.call.kernel).removeprefix(f"kernel {step.call.kernel.name}")
    return sha256(f"{_threads(step)} {text}".encode()).hexdigest()[:16]


def _threads(step: KernelLaunch) -> str:
    """The threads of a launch, and of a work group: 0 where any number will do."""
    if (groups := step.groups) is not None:
        return f"{groups.count * groups.size}, {groups.size}"
    return f"{step.work_items.length if step.work_items else 1}, 0"


def _ports(ports: Iterable[Port]) -> list[str]:
    """Rows of a table, of which the last stands for no port: C has no empty tables."""
    return [*(f"{{{port.offset}, {port.type.nbytes}}}" for port in ports), "{0, 0}"]


def _table(type: str, name: str, rows: Sequence[str]) -> str:
    lines = "\n".join(f"  {row}," for row in rows)
    return f"static const {type} {name}[] = {{\n{lines}\n}};"
