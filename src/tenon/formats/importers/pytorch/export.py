"""PyTorch modules and exported programs, by torch.export.  torch itself is imported only when one is given.

Inputs bear the names of the module's arguments; outputs are called ``output``, or ``output_0``, ``output_1`` ...
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from tenon.errors import InputError, ModelError, Problem, UnsupportedError
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.pytorch.ops import OPERATORS
from tenon.formats.importers.pytorch.program import (
    ProgramRef,
    PytorchCall,
    PytorchGraph,
    PytorchProgram,
    operator_name,
)
from tenon.formats.importers.pytorch.walk import graph_of
from tenon.formats.model_files.model_file import ModelFile
from tenon.network.graph.arrays import as_array
from tenon.network.graph.fixed import Values, arrays, check_names
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import DType

_MODEL_BYTES = 1 << 28
"""The most bytes that constants may be folded to, since a module has no file."""


def load(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    values: Values | None = None,
) -> Graph:
    """The graph of a ``torch.nn.Module`` (in its evaluation mode) or of a ``torch.export.ExportedProgram``.

    ``example_inputs`` are tensors or arrays of the shapes that the module is to be compiled for; a program of fixed
    shapes needs none.  Raises InputError when a module comes without them, ModelError when torch cannot export it,
    UnsupportedError as other formats do.
    """
    torch = import_module("torch")
    exported, name = model, type(model).__name__
    if hasattr(model, "graph_signature"):
        name = "module"
        if example_inputs is not None:
            exported = _exported(torch, model.module(), example_inputs)
    elif example_inputs is None:
        raise InputError("a torch module needs example_inputs=(tensor, ...) of the shapes to compile for")
    else:
        exported = _exported(torch, model, example_inputs)
    program = _ExportReader(torch, _decomposed(torch, exported), name).program
    for port, (shape, _) in program.inputs.items():
        if not all(isinstance(d, int) for d in shape):
            what = "its shape has dimensions without a value; give example_inputs of the shapes to compile for"
            raise UnsupportedError("the torch program", [Problem(port, what)])
    try:
        file = ModelFile(name, b"", values=arrays(values))
        graph = graph_of(program, file, {}, inputs, outputs, _MODEL_BYTES)
    except RefusedError as refusal:
        raise UnsupportedError("the torch program", [Problem(name, refusal.what, refusal.remedy)]) from None
    check_names(file.values, [*graph.fixed, *(v.name for v in graph.inputs)], "the torch program")
    return graph


def _exported(torch: Any, module: Any, example_inputs: Sequence[Any]) -> Any:
    given = [example_inputs] if isinstance(example_inputs, torch.Tensor | np.ndarray) else example_inputs
    tensors = tuple(_tensor(torch, f"example {i}", x) for i, x in enumerate(given))
    training = module.training and not hasattr(module, "graph")  # an exported program's module has one mode only
    try:
        return torch.export.export(module.eval() if training else module, tensors)
    except Exception as error:  # whatever torch meets in the user's code
        raise ModelError(f"torch.export cannot export {type(module).__name__}: {error}") from error
    finally:
        if training:
            module.train()


def _tensor(torch: Any, name: str, given: Any) -> Any:
    """Arrays of any library as torch's tensors; numbers and whatever else a module takes stay."""
    array = not isinstance(given, torch.Tensor) and any(hasattr(given, a) for a in ("__dlpack__", "__array__"))
    return torch.from_numpy(as_array(name, given)) if array else given


def _decomposed(torch: Any, program: Any) -> Any:
    """The program in the operators known here and, for the rest, in torch's core ones."""
    table = torch.export.default_decompositions()
    for overload in list(table):
        if operator_name(str(overload)) in OPERATORS:
            table.pop(overload)
    try:
        return program.run_decompositions(table)
    except Exception as error:
        raise ModelError(f"torch cannot decompose the program: {error}") from error


class _ExportReader:
    """An exported program as a PytorchProgram."""

    def __init__(self, torch: Any, exported: Any, name: str) -> None:
        self.torch, self.exported = torch, exported
        self.program = PytorchProgram(name)
        specs = {s.arg.name: s for s in exported.graph_signature.input_specs if hasattr(s.arg, "name")}
        for node in exported.graph_module.graph.nodes:
            if node.op == "placeholder" and node.name in specs:
                self.placeholder(node, specs[node.name])
            elif node.op == "get_attr":
                self.constant(node.name, getattr(exported.graph_module, node.target))
            elif node.op == "call_function" and node.target is not operator.getitem and node.users:
                self.program.calls.append(self.call(node, exported.graph_module, ""))
            elif node.op == "output":
                self.program.outputs = self.returned(node.args[0])

    def placeholder(self, node: Any, spec: Any) -> None:
        if spec.kind.name == "USER_INPUT":
            if self.torch.is_tensor(node.meta.get("val")):
                self.program.inputs[node.name] = self.described(node.meta["val"])
            return
        stored = self.exported.state_dict.get(spec.target)
        self.constant(node.name, self.exported.constants.get(spec.target) if stored is None else stored)

    def constant(self, name: str, tensor: Any) -> None:
        if self.torch.is_tensor(tensor):  # else the body of a condition or a loop
            self.program.constants[name] = self.array(tensor)

    def array(self, tensor: Any) -> Callable[[], Array]:
        def read() -> Array:
            plain = tensor.detach().cpu().contiguous()
            if plain.dtype == self.torch.bfloat16:
                return np.array(plain.view(self.torch.int16).numpy()).view(DType.BF16.numpy)
            return np.array(plain.numpy())

        return read

    def described(self, tensor: Any) -> tuple[Sequence[int | str], str]:
        """Shape and element type of a tensor as torch found them."""
        kind = str(tensor.dtype).removeprefix("torch.")
        return tuple(d if isinstance(d, int) else str(d) for d in tensor.shape), kind

    def body(self, module: Any, prefix: str) -> PytorchGraph:
        """A graph among the arguments of a call."""
        inputs, calls, outputs = list[str](), list[PytorchCall](), list[Any]()
        for node in module.graph.nodes:
            if node.op == "placeholder":
                inputs.append(prefix + node.name)
            elif node.op == "get_attr":
                self.constant(prefix + node.name, getattr(module, node.target))
            elif node.op == "call_function" and node.target is not operator.getitem and node.users:
                calls.append(self.call(node, module, prefix))
            elif node.op == "output":
                results = self.plain(node.args[0], module, prefix)
                outputs = results if isinstance(results, list) else [results]
        return PytorchGraph(inputs, calls, outputs)

    def call(self, node: Any, module: Any, prefix: str) -> PytorchCall:
        """A node of a module's graph, of whose values the names begin with ``prefix``."""
        meta = node.meta.get("val")
        several = isinstance(meta, list | tuple)
        if several:
            picks = {user.args[1]: prefix + user.name for user in node.users if user.target is operator.getitem}
            results = [picks.get(i, "") for i in range(len(meta))]
        else:
            results = [prefix + node.name]
        first = meta[0] if several and meta else meta
        shape, kind = self.described(first) if self.torch.is_tensor(first) else (("unknown",), "")
        target = operator_name(str(node.target))
        if not hasattr(node.target, "_schema"):
            target = f"higher_order.{target.rpartition('.')[2]}"
        arguments = self.arguments(node, module, prefix)
        return PytorchCall(target, prefix + node.name, arguments, results, shape, kind)

    def arguments(self, node: Any, module: Any, prefix: str) -> dict[str, Any]:
        """Arguments by their names in the schema, or by number where there is none; tensors as ``ProgramRef``."""
        if not hasattr(node.target, "_schema"):
            return {str(i): self.plain(value, module, prefix) for i, value in enumerate(node.args)}
        schema = node.target._schema.arguments
        given = {a.name: a.default_value for a in schema if a.has_default_value()}
        given |= dict(zip((a.name for a in schema), node.args, strict=False)) | node.kwargs
        return {name: self.plain(value, module, prefix) for name, value in given.items()}

    def plain(self, given: Any, module: Any, prefix: str) -> Any:
        if hasattr(given, "meta") and hasattr(given, "op"):
            held = getattr(module, given.target, None) if given.op == "get_attr" else None
            if hasattr(held, "graph"):
                return self.body(held, f"{prefix}{given.name}/")
            return ProgramRef(prefix + given.name)
        return [self.plain(item, module, prefix) for item in given] if isinstance(given, list | tuple) else given

    def returned(self, nodes: Sequence[Any]) -> list[str]:
        specs = self.exported.graph_signature.output_specs
        inputs = {s.target: s.arg.name for s in self.exported.graph_signature.input_specs if s.target}
        for node, spec in zip(nodes, specs, strict=False):
            if spec.kind.name == "BUFFER_MUTATION":
                self.program.kept[inputs[spec.target]] = node.name
        return [
            node.name
            for node, spec in zip(nodes, specs, strict=False)
            if spec.kind.name == "USER_OUTPUT" and hasattr(node, "name")
        ]
