"""Programs for browsers: one module in JavaScript, with the kernels as text and tables of the steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tenon
from tenon.errors import InternalError, Problem, UnsupportedError
from tenon.gpu_options import USUAL, GpuOptions
from tenon.machine.codegen.backend import EntryPoint, KernelLaunch, SourceFile, TextUnit
from tenon.machine.codegen.gpu.backend import DeviceBackend
from tenon.machine.codegen.gpu.language import DeviceLanguage
from tenon.machine.codegen.gpu.shaders import Shaders, placed_operands, steps_of_shaders
from tenon.machine.codegen.gpu.unit import require_runnable
from tenon.machine.codegen.reset import initial_bytes
from tenon.machine.codegen.webgpu.dialect import Wgsl
from tenon.machine.plan.program import Branch, Call, Item, Port, Program, Region, Repeat, SizeCheck
from tenon.network.graph.types import DType

_HOST = Path(tenon.__file__).parent / "runtime" / "web" / "webgpu_queue.js"
_NO_SIZES = "this target has no i64, in which a run gets its sizes"
LANGUAGE = DeviceLanguage("webgpu", ".wgsl", "WGSL", Wgsl, (), lambda text, _: text)


class WebGpu(DeviceBackend):
    """The host program is in JavaScript: nothing is compiled before the browser does."""

    def __init__(self) -> None:
        super().__init__(LANGUAGE, lacks=frozenset({DType.F64, DType.I64, DType.U64}))

    def entry_points(self, name: str, *, profile: bool = False) -> tuple[EntryPoint, ...]:
        """There are none in C."""
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
        """A module that exports ``create`` of each program, and a file with the kernels for readers."""
        for program in programs:
            require_runnable(LANGUAGE, self, program)
            _require_fixed_sizes(program)
        steps = tuple(steps_of_shaders(program, self) for program in programs)
        shaders = Shaders(Wgsl())
        networks = {p.name: _network(p, own, shaders) for p, own in zip(programs, steps, strict=True)}
        text, name = shaders.text(), programs[0].name
        module = "\n".join(
            [
                f"{banner}const KERNELS = {json.dumps(text)};",
                f"const NETWORKS = {json.dumps(networks)};",
                _HOST.read_text(),
            ]
        )
        files = (SourceFile(f"{name}.js", "javascript", module), SourceFile(f"{name}.wgsl", "webgpu", banner + text))
        return TextUnit(files, steps, ((),) * len(programs))


def _require_fixed_sizes(program: Program) -> None:
    if problems := [Problem(f"size '{check.name}'", _NO_SIZES, "compile it for wasm32") for check in program.checks]:
        raise UnsupportedError(program.name, problems)


def _network(program: Program, steps: Sequence[KernelLaunch], shaders: Shaders) -> dict[str, Any]:
    """The tables that the host reads: sizes of the regions, ports, and the launches in order."""
    memory = program.memory
    return {
        "sizes": [memory.constant, memory.mutable, memory.activations],
        "inputs": [[port.offset, port.type.nbytes] for port in program.inputs],
        "outputs": [[port.offset, port.type.nbytes] for port in program.outputs],
        "states": [_state(port) for port in program.inputs if port.state],
        "steps": [_step(step, shaders) for step in steps],
        "items": list(_items(program.items, iter(range(len(steps))))),
    }


def _state(port: Port) -> list[Any]:
    """Offset and bytes of a state, and the bytes of its initial content."""
    return [port.offset, port.type.nbytes, initial_bytes(port.initial, port.type.dtype)]


def _step(step: KernelLaunch, shaders: Shaders) -> dict[str, Any]:
    number = shaders.number(step)
    threads = step.groups.count * step.groups.size if step.groups else step.work_items.length if step.work_items else 1
    groups = -(-threads // shaders.groups[number])
    return {"entry": number, "groups": groups, "operands": placed_operands(step)}


def _items(items: Iterable[Item], numbers: Iterator[int]) -> Iterator[object]:
    """A number for each step, {count, body} for each loop, {region, offset, steps, bodies} for each branch: ``steps``
    are bytes by which the loops around it move what decides."""
    for item in items:
        match item:
            case Call():
                yield next(numbers)
            case Repeat(count=count, body=body):
                yield {"count": count, "body": list(_items(body, numbers))}
            case Branch(condition=place, bodies=bodies):
                count = max((advance.depth + 1 for advance in place.advances), default=0)
                steps = [sum(a.step for a in place.advances if a.depth == depth) for depth in range(count)]
                where = {"region": list(Region).index(place.region), "offset": place.offset, "steps": steps}
                yield {**where, "bodies": [list(_items(body, numbers)) for body in bodies]}
            case SizeCheck():
                raise InternalError("a size to check was not refused")
