"""The graph that a program of ATen calls makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.graph_builder.errors import RefusedError, unknown
from tenon.formats.importers.pytorch.control import CONTROL, ControlCall
from tenon.formats.importers.pytorch.node import TYPES, PytorchNode
from tenon.formats.importers.pytorch.ops import MOVEMENT, OPERATORS
from tenon.formats.importers.pytorch.program import ProgramRef, PytorchCall, PytorchProgram, Shape
from tenon.formats.importers.pytorch.views import Views, is_view
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import DType, TensorType


def graph_of(
    program: PytorchProgram,
    file: ModelFile,
    shapes: Shapes,
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    model_bytes: int = 0,
) -> Graph:
    """Outputs are called ``output``, or ``output_0``, ``output_1`` ...  See ``importers.load`` for errors."""
    builder = GraphBuilder(file, program.name, shapes, inputs, outputs, model_bytes)
    walk = _CallImporter(builder, program)
    builder.inputs({name: _type(name, *given) for name, given in program.inputs.items()})
    kept = _kept(program)
    for name in kept:
        _add_state(builder, name, program.constants[name]())
    for call in program.calls:
        walk.call(call)
    return builder.finish([*walk.returned(program.outputs), *walk.states_after(kept)])


def _kept(program: PytorchProgram) -> dict[str, str]:
    """The buffers that a run changes, and the result that each holds after it: itself where calls write to it."""
    kept, bases = dict(program.kept), dict[str, str]()
    for call in program.calls:
        operand = next(_refs(call.arguments.values()), "")
        base, written = bases.get(operand, operand), _writes(call.operator)
        if written or is_view(call.operator):
            bases.update(dict.fromkeys(call.results, base))
        if written and base in program.constants:
            kept.setdefault(base, base)
    return kept


def _writes(operator: str) -> bool:
    """Whether an operator writes its result to its first operand."""
    return operator.endswith("_") and not operator.endswith("__")


def _add_state(builder: GraphBuilder, name: str, data: Array) -> None:
    """An input of the graph for a buffer that a run changes, with its content before the first run."""
    builder.input(name, TensorType(DType.of(data.dtype), data.shape))
    flat = data.reshape(-1)
    if flat.any():
        builder.graph.initial[name] = tuple((flat[:1] if (flat == flat[0]).all() else flat).tolist())


def _type(name: str, shape: Shape, kind: str) -> TensorType:
    if kind not in TYPES:
        raise RefusedError(f"elements of type {kind} are not supported, and '{name}' has them")
    dims = tuple(d if isinstance(d, int) else f"{name}_{d}" for d in shape)
    return TensorType(DType(TYPES[kind]), dims)


class _CallImporter:
    def __init__(self, builder: GraphBuilder, program: PytorchProgram) -> None:
        self.builder, self.program = builder, program
        self.views = Views(builder)

    def call(self, call: PytorchCall) -> None:
        results = [name for name in call.results if name]
        with self.builder.layer(call.name, call.operator, *results):
            name, inside = call.operator, _writes(call.operator)
            name = name.removesuffix("_") if inside else name
            if name in CONTROL:
                self.assign(call.results, CONTROL[name](ControlCall(self, call)))
                return
            if name not in OPERATORS and name.removesuffix("_copy") in MOVEMENT:
                name = name.removesuffix("_copy")
            arguments = {key: self.value(given) for key, given in call.arguments.items()}
            if name not in OPERATORS:
                raise unknown(name, OPERATORS, remedy=self.program.remedy)
            if not all(isinstance(d, int) for d in call.shape):
                raise RefusedError("its shape is not known when compiling", "export with fixed shapes")
            read = [i for i, result in enumerate(call.results) if result]
            shape = tuple(int(d) for d in call.shape)
            outputs = OPERATORS[name](PytorchNode(self.builder, name, arguments, (shape, call.kind), read))
            self.assign(call.results, [outputs] if isinstance(outputs, Value) else outputs)
            operand = next(_refs(call.arguments.values()), "")
            if inside and results and self.builder[results[0]] is not self.builder[operand]:
                self.views.write(operand, self.builder[results[0]])
            self.views.note(name, operand, arguments, results)

    def assign(self, results: Sequence[str], values: Sequence[Value]) -> None:
        for result, value in zip(results, values, strict=False):
            if result:
                self.builder[result] = value

    def value(self, given: Any) -> Any:
        if isinstance(given, ProgramRef):
            if given.name not in self.builder and given.name in self.program.constants:
                self.builder[given.name] = self.builder.constant(self.program.constants[given.name](), given.name)
            self.views.check(given.name)
            return self.builder[given.name]
        return [self.value(item) for item in given] if isinstance(given, list | tuple) else given

    def returned(self, results: Sequence[str]) -> list[str]:
        names = ["output"] if len(results) == 1 else [f"output_{i}" for i in range(len(results))]
        for result, name in zip(results, names, strict=True):
            with self.builder.layer(name, "output", name):
                self.builder[name] = self.builder.add("Identity", self.value(ProgramRef(result)))
        return names

    def states_after(self, kept: Mapping[str, str]) -> list[str]:
        """The outputs with what buffers hold after a run, by their names with "_out" behind."""
        for name, result in kept.items():
            after = f"{name}_out"
            with self.builder.layer(after, "buffer", after):
                self.builder[after] = self.builder.add("Identity", self.value(ProgramRef(result)))
            self.builder.states[name] = after
        return [f"{name}_out" for name in kept]


def _refs(given: Iterable[Any]) -> Iterator[str]:
    for item in given:
        if isinstance(item, ProgramRef):
            yield item.name
        elif isinstance(item, list | tuple):
            yield from _refs(item)
