"""PyTorch modules and exported programs, by torch.export.  torch itself is imported only when one is given.

Inputs bear the names of the module's arguments; outputs are called ``output``, or ``output_0``, ``output_1`` ...
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from tenon.errors import InputError, ModelError, Problem, UnsupportedError
from tenon.frontends.net import Net
from tenon.frontends.pytorch.ops import OPERATORS, Context
from tenon.frontends.refused import RefusedError
from tenon.frontends.source import ModelFile
from tenon.ir.graph import Array, Graph, Value
from tenon.ir.types import DType, TensorType
from tenon.ir.writer import is_known


def is_torch(model: object) -> bool:
    """Whether a model is a module or an exported program of torch, without importing it."""
    kinds = type(model).__mro__
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in kinds}
    return bool(names & {"torch.nn.modules.module.Module", "torch.export.exported_program.ExportedProgram"})


def load(
    model: Any,
    example_inputs: Sequence[Any] | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> Graph:
    """The graph of a ``torch.nn.Module`` (in its evaluation mode) or of a ``torch.export.ExportedProgram``.

    ``example_inputs`` are tensors or arrays of the shapes that the module is to be compiled for.  Raises InputError
    when a module comes without them, ModelError when torch cannot export it, UnsupportedError as other formats do.
    """
    torch = import_module("torch")
    if hasattr(model, "graph_signature"):
        program, name = model, "module"
    else:
        if example_inputs is None:
            raise InputError("a torch module needs example_inputs=(tensor, ...) of the shapes to compile for")
        program, name = _exported(torch, model, example_inputs), type(model).__name__
    program = _decomposed(torch, program)
    net = Net(ModelFile(name, b""), name, {}, inputs, outputs, 1 << 28)
    return _Program(torch, net, program).load()


def _exported(torch: Any, module: Any, example_inputs: Sequence[Any]) -> Any:
    given = [example_inputs] if isinstance(example_inputs, torch.Tensor | np.ndarray) else example_inputs
    tensors = tuple(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in given)
    was_training = module.training
    try:
        return torch.export.export(module.eval(), tensors)
    except Exception as error:  # whatever torch meets in the user's code
        raise ModelError(f"torch.export cannot export {type(module).__name__}: {error}") from error
    finally:
        module.train(was_training)


def _decomposed(torch: Any, program: Any) -> Any:
    """The program in the operators known here and, for the rest, in torch's core ones."""
    table = torch.export.default_decompositions()
    for overload in list(table):
        if _name(overload) in OPERATORS:
            table.pop(overload)
    return program.run_decompositions(table)


def _name(target: Any) -> str:
    """``conv2d`` of the overload ``aten.conv2d.default``."""
    return str(getattr(target, "overloadpacket", target)).removeprefix("aten.")


class _Program:
    """The walk over the nodes of an exported program."""

    def __init__(self, torch: Any, net: Net, program: Any) -> None:
        self.torch, self.net, self.program = torch, net, program
        self.values: dict[str, Value | Sequence[Value]] = {}
        self.missing = False  # whether the arguments just read hold something that could not be made
        self.makers: dict[str, str] = {}  # of a node that picks one of several results: the node that made them

    def load(self) -> Graph:
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs if hasattr(spec.arg, "name")}
        returned: list[str] = []
        for node in self.program.graph_module.graph.nodes:
            if node.op == "placeholder" and node.name in specs:
                self.placeholder(node, specs[node.name])
            elif node.op == "get_attr":
                self.values[node.name] = self.net.constant(self.array(getattr(self.program.graph_module, node.target)))
            elif node.op == "call_function":
                self.call(node)
            elif node.op == "output":
                returned = self.returned(node.args[0])
        return self.net.finish(returned)

    def placeholder(self, node: Any, spec: Any) -> None:
        kind = spec.kind.name
        if kind == "USER_INPUT":
            if self.torch.is_tensor(node.meta.get("val")):
                self.values[node.name] = self.net.input(node.name, self.type(node))
            return
        stored = self.program.state_dict.get(spec.target)
        if stored is None:
            stored = self.program.constants.get(spec.target)
        if stored is not None and self.torch.is_tensor(stored):
            self.values[node.name] = self.net.constant(self.array(stored), node.name)

    def type(self, node: Any) -> TensorType:
        found = node.meta["val"]
        if not all(isinstance(d, int) for d in found.shape):
            raise _refused(node, "dimensions that are not known are not supported; export with fixed shapes")
        name = str(found.dtype).removeprefix("torch.")
        try:
            return TensorType(DType.of(np.dtype(name)), tuple(found.shape))
        except (TypeError, KeyError):
            raise _refused(node, f"elements of type {name} are not supported") from None

    def array(self, tensor: Any) -> Array:
        tensor = tensor.detach().cpu().contiguous()
        if tensor.dtype == self.torch.bfloat16:
            tensor = tensor.float()
        return np.array(tensor.numpy())

    def call(self, node: Any) -> None:
        if node.target is operator.getitem:
            self.makers[node.name] = node.args[0].name
            source = self.values.get(node.args[0].name)
            if source is not None and not isinstance(source, Value) and node.args[1] < len(source):
                self.values[node.name] = source[node.args[1]]
            return
        name = _name(node.target)
        with self.net.layer(node.name, name, node.name):
            self.missing = False
            arguments = self.arguments(node)
            if name not in OPERATORS:
                raise RefusedError("this operator is not supported", "those that are stand in the documentation")
            if self.missing:
                return
            context = Context(self.net, name, arguments, self.result(node))
            made = OPERATORS[name](context)
            self.values[node.name] = made
            first = made if isinstance(made, Value) else made[0]
            if first.producer is not None and is_known(first):
                self.net[node.name] = first

    def arguments(self, node: Any) -> dict[str, Any]:
        """Arguments by their names in the schema, values in place of nodes.  Raises RefusedError."""
        schema = node.target._schema.arguments
        found = {a.name: a.default_value for a in schema if a.has_default_value()}
        found |= dict(zip((a.name for a in schema), node.args, strict=False)) | node.kwargs
        return {name: self.value(given) for name, given in found.items()}

    def value(self, given: Any) -> Any:
        if hasattr(given, "meta") and hasattr(given, "op"):
            maker = self.makers.get(given.name, given.name)
            if maker in self.net:
                _ = self.net[maker]  # so that the net knows which layers an output needs
            self.missing = self.missing or given.name not in self.values
            return self.values.get(given.name)
        if isinstance(given, list | tuple):
            return [self.value(item) for item in given]
        return given

    def result(self, node: Any) -> tuple[tuple[int, ...], str]:
        """Shape and element type of the first result, as torch found them."""
        found = node.meta.get("val")
        found = found[0] if isinstance(found, list | tuple) and found else found
        if not self.torch.is_tensor(found) or not all(isinstance(d, int) for d in found.shape):
            raise RefusedError("its shape is not known when compiling", "export with fixed shapes")
        return tuple(found.shape), str(found.dtype).removeprefix("torch.")

    def returned(self, nodes: Sequence[Any]) -> list[str]:
        specs = self.program.graph_signature.output_specs
        chosen = [node for node, spec in zip(nodes, specs, strict=False)
                  if spec.kind.name == "USER_OUTPUT" and hasattr(node, "name")]  # fmt: skip
        names = ["output"] if len(chosen) == 1 else [f"output_{i}" for i in range(len(chosen))]
        for node, name in zip(chosen, names, strict=True):
            with self.net.layer(name, "output", name):
                self.missing = False
                value = self.value(node)
                if not self.missing:
                    self.net[name] = self.net.add("Identity", value)
        return names


def _refused(node: Any, what: str) -> UnsupportedError:
    return UnsupportedError("the torch program", [Problem(str(node.name), what)])
