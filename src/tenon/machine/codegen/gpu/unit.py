"""Programs for devices: kernels, and the host program with tables of the steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

import tenon
from tenon.errors import InputError, Problem, UnsupportedError
from tenon.machine.codegen.backend import Backend, KernelLaunch, SourceFile, TextUnit, steps_of, unsupported
from tenon.machine.codegen.gpu.entry_kernels import EntryKernel, EntryKernels, stated_bytes
from tenon.machine.codegen.gpu.entry_points import entry_points
from tenon.machine.codegen.gpu.language import DeviceLanguage
from tenon.machine.codegen.gpu.launch_order import order_tables
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
from tenon.machine.codegen.gpu.memory_objects import ImageOperands
from tenon.machine.codegen.gpu.shaders import Shaders, binding_tables, multiple_of_16, steps_of_shaders
from tenon.machine.codegen.gpu.words import WordC
from tenon.machine.codegen.reset import reset, reset_text
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.text import show as kernel_text
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import Port, Program, Region

_RUNTIME = Path(tenon.__file__).parent / "runtime" / "c"
_LARGEST = 2**31 - 1
_AT_RUN_TIME = "this target has no loops whose number of iterations is known only at run time"
_ANOTHER = "compile it for another target"
_POSIX = "#define _POSIX_C_SOURCE 200809L"
_FIRST = ("device_network.c", "device_options.c", "device_cache.c")
_STREAM_CALLS = ("device_queue_run(device, inputs, stream)", "device_wait(device, stream)", "device_tensors(device)")
LOADER = {"libdl.so.2": ("dlopen", "dlsym")}
"""Functions that the host program calls besides the C library: it opens the driver's library when it runs."""


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
    steps, text, groups, kernels, images, tables = printed(language, backend, programs)
    name = programs[0].name
    files = (
        SourceFile(
            f"{name}.c",
            "c",
            _host(language, programs, steps, text, groups, kernels, images, tables, header, banner, options),
            "c",
        ),
        SourceFile(f"{name}{language.suffix}", language.name, f"{banner}{text}\n"),
    )
    return TextUnit(files, steps, tuple((*entry_points(language, p.name), *reset(p)) for p in programs), LOADER)


_Steps = tuple[tuple[KernelLaunch, ...], ...]
_Printed = tuple[_Steps, str, list[int], list[list[EntryKernel]], list[list[int]], list[list[str]]]
"""The steps of each program, the text of all kernels, the threads of the work groups of each (none where the text says
them), the kernel of each step of each program and the images that it can read, as bits, and tables of each program
besides those that all have."""


def _print_shaders(language: DeviceLanguage, backend: Backend, programs: Sequence[Program]) -> _Printed:
    """An entry for each different kernel."""
    assert issubclass(language.dialect, WordC)
    steps = tuple(steps_of_shaders(program, backend) for program in programs)
    shaders, loops = Shaders(language.dialect()), most_loops(programs)
    tables = [binding_tables(p, own, shaders, loops) for p, own in zip(programs, steps, strict=True)]
    kernels = [
        [EntryKernel(_kernel_name(p, i)) for i in range(len(own))] for p, own in zip(programs, steps, strict=True)
    ]
    return steps, shaders.text(), shaders.groups, kernels, [[0] * len(own) for own in steps], tables


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
    entries, images = EntryKernels(language, early=_early(language, programs[0])), [list[int]() for _ in programs]
    for p, own, objects, numbers in zip(programs, steps, operands.objects, images, strict=True):
        for i, (step, loops) in enumerate(zip(own, depths(p.items), strict=True)):
            more = dialect.more_arguments(step.function, objects[i])
            entries.add(_kernel_name(p, i), step, loops, more, objects[i])
            numbers.append(more.images)
    of_steps = entries.of_steps()
    kernels = [[of_steps[_kernel_name(p, i)] for i in range(len(p.calls))] for p in programs]
    return steps, "\n".join([dialect.text(), *entries.lines()]), [], kernels, images, [[] for _ in programs]


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


def _host(
    language: DeviceLanguage,
    programs: Sequence[Program],
    steps: Sequence[Sequence[KernelLaunch]],
    text: str,
    groups: Sequence[int],
    kernels: Sequence[Sequence[EntryKernel]],
    images: Sequence[Sequence[int]],
    tables: Sequence[Sequence[str]],
    header: str,
    banner: str,
    options: str,
) -> str:
    """The C file that programs call."""
    each = zip(programs, steps, kernels, images, tables, strict=True)
    networks = [line for p, s, k, i, t in each for line in _network(language, p, s, k, i, t)]
    most = max([1, *(len(kernel.offsets) for own in kernels for kernel in own)])
    embedded = language.embedded(text, groups)
    numbers = host_files(programs)
    last = [*([language.reads] if numbers else []), "device_queue.c", *numbers]
    return "\n".join(
        [
            f"{banner}{_POSIX}",
            f'#include "{header}"',
            "",
            embedded,
            f"enum {{ DEVICE_LOOPS = {most_loops(programs)}, DEVICE_OFFSETS = {most} }};",
            f'static const char DEVICE_DIGEST[] = "{sha256(embedded.encode()).hexdigest()}"; /* of the kernels */',
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
    kernels: Sequence[EntryKernel],
    images: Sequence[int],
    tables: Sequence[str],
) -> list[str]:
    """The tables and entry points of a program; ``kernels`` are those of its steps, ``images`` those that each step can
    read, as bits, and ``tables`` those of its operands, in languages without pointers."""
    name, memory, checks = program.name, program.memory, host_checks(program)
    rows, offsets = list[str](), list[int]()
    for step, kernel, loops, read in zip(steps, kernels, depths(program.items), images, strict=True):
        rows.append(
            f'{{"{kernel.name}", {_threads(step)}, {loops}, "{kernel_key(step)}", {read:#x}, '
            f"{stated_bytes(language, step.groups)}, {len(offsets)}, {len(kernel.offsets)}}}"
        )
        offsets += kernel.offsets
    sizes = f"{{{memory.constant}, {memory.mutable}, {memory.activations}}}"
    once, create, create_with, run, timed, facts, destroy, message, *more = (
        e.prototype for e in entry_points(language, name)
    )
    counts = f"{len(steps)}, {len(program.inputs)}, {len(program.outputs)}"
    launch = f"{name}_launch, {int(reads_numbers(program))}, {f'{name}_checked' if checks else 'NULL'}"
    bound = f"{name}_bindings, {name}_operands" if tables else "NULL, NULL"
    order = order_tables(program) if language.graphs else []
    waits = f"{name}_waited, {name}_ends" if order else "NULL, NULL"
    return [
        _table("DeviceStep", f"{name}_steps", [*rows, '{"", 0, 0, 0, "", 0, 0, 0, 0}']),
        _table("int", f"{name}_offsets", [*map(str, offsets), "0"]),
        _table("DevicePort", f"{name}_inputs", _ports(program.inputs)),
        _table("DevicePort", f"{name}_outputs", _ports(program.outputs)),
        *tables,
        *order,
        *launch_function(program),
        *check_function(name, checks),
        f"static const DeviceNetwork {name}_network = {{",
        f"  {name}_steps, {name}_offsets, {name}_inputs, {name}_outputs, {counts}, {sizes}, {launch}, {bound},",
        f"  {waits}, {int(_early(language, program))},",
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


def _early(language: DeviceLanguage, program: Program) -> bool:
    """Whether kernels begin before those that they depend on have ended."""
    return bool(language.waits) and program.launch is not None and program.launch.early


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
