"""Programs for OpenCL: one text of kernels, one kernel per step, and the host program with tables of the steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import tenon
from tenon.errors import InputError, Problem, UnsupportedError
from tenon.machine.codegen.backend import Backend, KernelLaunch, SourceFile, TextUnit, steps_of, unsupported
from tenon.machine.codegen.comments import call_comment
from tenon.machine.codegen.opencl.dialect import OpenCLC
from tenon.machine.codegen.opencl.entry_points import entry_points
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernel_ir.work_items import WorkItems
from tenon.machine.plan.program import Call, Place, Port, Program, Region

_QUEUE = Path(tenon.__file__).parent / "runtime" / "c" / "opencl_queue.c"
_LARGEST = 2**31 - 1
_IN_A_LOOP = "this target has no loops and branches around kernels"
LIBRARY = "libOpenCL.so.1"


def print_unit(backend: Backend, programs: Sequence[Program], header: str, *, banner: str = "") -> TextUnit:
    """The files of the programs.  Raises UnsupportedError with all layers whose kernels OpenCL C cannot express,
    InputError for a region that its indices cannot reach."""
    for program in programs:
        _require_supported(backend, program)
        _require_small(program)
    dialect, names = OpenCLC(), dict[tuple[Kernel, bool], str]()
    dialect.taken |= {_kernel_name(p, i) for p in programs for i in range(len(p.calls))}

    def printed(kernel: Kernel, slices: WorkItems | None) -> str:
        key = kernel, slices is not None
        names[key] = names.get(key) or dialect.kernel(kernel, slices)
        return names[key]

    steps = tuple(steps_of(program, backend, printed) for program in programs)
    launched = [
        text
        for p, own in zip(programs, steps, strict=True)
        for i, step in enumerate(own)
        for text in _kernel(p, i, step)
    ]
    kernels = "\n".join([dialect.text(), *launched])
    name = programs[0].name
    files = (
        SourceFile(f"{name}.c", "c", _host(programs, steps, kernels, header, banner), "c"),
        SourceFile(f"{name}.cl", "opencl", f"{banner}{kernels}\n"),
    )
    return TextUnit(files, steps, tuple(entry_points(p.name) for p in programs), {LIBRARY: _called()})


def _require_supported(backend: Backend, program: Program) -> None:
    straight = [item for item in program.items if isinstance(item, Call)]
    problems = [
        Problem(f"{call.op} '{call.layer}'", reason, "compile it for another target")
        for call in program.calls
        for reason in [*unsupported(backend, call.kernel), *([] if call in straight else [_IN_A_LOOP])]
    ]
    if problems:
        raise UnsupportedError(program.name, list(dict.fromkeys(problems)))


def _require_small(program: Program) -> None:
    memory = program.memory
    for region, size in zip(Region, (memory.constant, memory.mutable, memory.activations), strict=True):
        if size > _LARGEST:
            raise InputError(
                f"{program.name} needs {size:,} bytes of {region}, and kernels of OpenCL can index {_LARGEST:,}: "
                "compile it for another target"
            )


def _kernel_name(program: Program, number: int) -> str:
    return f"{program.name}_step_{number}"


def _kernel(program: Program, number: int, step: KernelLaunch) -> list[str]:
    """The kernel that runs one work item of a step."""
    regions = ", ".join(f"__global {'const ' * (region is Region.CONSTANT)}uchar *{region}" for region in Region)
    items = step.work_items
    operands = [
        f"({OpenCLC.pointer_type(buffer)}){_address(place)}"
        for buffer, place in zip(step.call.kernel.params, step.call.args, strict=True)
    ] + (["item", "item + 1"] if items else [])
    guard = [f"  if (item >= {items.length}) return;"] if items else []
    number_of_item = ["  const int item = (int)get_global_id(0);"] if items else []
    return [
        call_comment(step.call),
        f"__kernel void {_kernel_name(program, number)}({regions}) {{",
        *number_of_item,
        *guard,
        f"  {step.function}({', '.join(operands)});",
        "}",
    ]


def _address(place: Place) -> str:
    return f"({place.region} + {place.offset})" if place.offset else str(place.region)


def _host(
    programs: Sequence[Program], steps: Sequence[Sequence[KernelLaunch]], kernels: str, header: str, banner: str
) -> str:
    """The C file that programs call."""
    quoted = "\n".join(f"  {json.dumps(line + chr(10))}," for line in kernels.splitlines())
    networks = [text for p, own in zip(programs, steps, strict=True) for text in _network(p, own)]
    return "\n".join(
        [
            f'{banner}#include "{header}"',
            "",
            f"static const char *opencl_text[] = {{\n{quoted}\n}};",
            "",
            _QUEUE.read_text(),
            *networks,
            "",
        ]
    )


def _network(program: Program, steps: Sequence[KernelLaunch]) -> list[str]:
    """The tables and entry points of a program."""
    name, memory = program.name, program.memory
    rows = [
        f'{{"{_kernel_name(program, i)}", {s.work_items.length if s.work_items else 1}}}' for i, s in enumerate(steps)
    ]
    sizes = f"{{{memory.constant}, {memory.mutable}, {memory.activations}}}"
    once, create, run, destroy = (entry.prototype for entry in entry_points(name))
    counts = f"{len(steps)}, {len(program.inputs)}, {len(program.outputs)}"
    return [
        _table("OpenCLStep", f"{name}_steps", [*rows, '{"", 0}']),
        _table("OpenCLPort", f"{name}_inputs", _ports(program.inputs)),
        _table("OpenCLPort", f"{name}_outputs", _ports(program.outputs)),
        f"static const OpenCLNetwork {name}_network = {{",
        f"  {name}_steps, {name}_inputs, {name}_outputs, {counts}, {sizes},",
        "};\n",
        f"{create} {{\n  return opencl_create(&{name}_network, {Region.CONSTANT}, status);\n}}\n",
        f"{run} {{\n  return opencl_run(device, {Region.MUTABLE});\n}}\n",
        f"{destroy} {{\n  opencl_destroy(device);\n}}\n",
        f"{once} {{",
        "  int status = 0;",
        f"  OpenCLDevice *device = opencl_create(&{name}_network, {Region.CONSTANT}, &status);",
        f"  (void){Region.ACTIVATIONS};",
        f"  if (device) status = opencl_run(device, {Region.MUTABLE});",
        "  opencl_destroy(device);",
        "  return status;",
        "}",
    ]


def _ports(ports: Iterable[Port]) -> list[str]:
    """Rows of a table, of which the last stands for no port: C has no empty tables."""
    return [*(f"{{{port.offset}, {port.type.nbytes}}}" for port in ports), "{0, 0}"]


def _table(type: str, name: str, rows: Sequence[str]) -> str:
    lines = "\n".join(f"  {row}," for row in rows)
    return f"static const {type} {name}[] = {{\n{lines}\n}};"


def _called() -> tuple[str, ...]:
    """The functions of OpenCL that the host program calls."""
    declared = (line.split("(")[0].split()[-1].lstrip("*") for line in _QUEUE.read_text().splitlines() if "(" in line)
    return tuple(name for name in dict.fromkeys(declared) if name.startswith("cl"))
