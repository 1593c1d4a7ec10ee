"""PyTorch's .pt2 archives (``torch.export.save``) without torch: a description in JSON and weights as raw bytes.

Sources: torch/_export/serde/schema.py and torch/export/pt2_archive of pytorch/pytorch.  Parts that are pickles (sample
inputs, the weights of archives from before torch 2.8) are never read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tenon.errors import FormatError, InputError, ModelError
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.pytorch.node import TYPES
from tenon.formats.importers.pytorch.program import (
    ProgramRef,
    PytorchCall,
    PytorchGraph,
    PytorchProgram,
    Shape,
    operator_name,
)
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.archive import SIGNATURE, Archive
from tenon.network.graph.bind import Shapes
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.types import DType
from tenon.network.graph.writer import reason

KINDS = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
    13: "bfloat16",
}
"""Element types of the description."""

_PICKLE = "PyTorch's .pt and .pth files are pickles, which are never opened"
_REMEDY = (
    "save with torch.export.save(torch.export.export(module, inputs), 'net.pt2'), or give tenon.compile the module"
)

_DECOMPOSE = (
    "take it apart with torch: torch.export.save(program.run_decompositions(), 'net.pt2'); or cut the model around it "
    "with --from and --to"
)


def recognise(file: ModelFile) -> bool:
    """An archive with a part ``archive_format``, or one of torch's pickles, to say what to do about it."""
    if file.suffix in (".pt", ".pth", ".pt2"):
        return True
    return file.data.startswith(SIGNATURE) and b"/archive_format" in file.data[-(1 << 16) :]


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of an exported program.  See ``importers.load`` for errors."""
    from tenon.formats.importers.pytorch.walk import graph_of

    try:
        return graph_of(_ArchiveReader(file).program, file, shapes, inputs, outputs)
    except (ModelError, InputError) as error:
        if isinstance(error, FormatError) and not str(error).startswith(file.name):
            raise FormatError(f"{file.name}: {error}") from error
        raise
    except RefusedError as error:
        raise FormatError(f"{file.name}: {error.what}") from error
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError, StopIteration) as error:
        raise FormatError(f"{file.name}: the program's description is damaged: {reason(error)}") from error


class _ArchiveReader:
    def __init__(self, file: ModelFile) -> None:
        if not file.data.startswith(SIGNATURE):
            raise FormatError(f"{_PICKLE}; {_REMEDY}")
        self.archive = Archive(file.data)
        models = [n for n in self.archive.names if n.endswith(".json") and "/models/" in n]
        if len(models) != 1:
            why = _PICKLE if not models else f"it holds {len(models)} programs"
            raise FormatError(f"it has no single program of torch 2.8 or newer in it ({why}); {_REMEDY}")
        self.root = models[0].split("/models/")[0]
        module = self.archive.json(models[0])["graph_module"]
        self.graph, self.signature = module["graph"], module["signature"]
        self.stored = {**self.configuration("weights"), **self.configuration("constants")}
        self.program = PytorchProgram(file.stem, remedy=_DECOMPOSE)
        self.buffers: dict[str, str] = {}
        self.calls = self.program.calls
        self.ports()
        self.nodes(self.graph, "")
        self.returned()

    def configuration(self, what: str) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """The part that holds each stored tensor, and its description, by the tensor's name."""
        name = f"{self.root}/data/{what}/model_{what}_config.json"
        if name not in self.archive.names:
            return {}
        rows = self.archive.json(name)["config"]
        return {key: (f"{self.root}/data/{what}/{row['path_name']}", row) for key, row in rows.items()}

    # -------------------------------------------------------------------------------------- tensors
    def ports(self) -> None:
        for spec in self.signature["input_specs"]:
            ((kind, body),) = spec.items()
            argument = body["arg"]
            if kind == "user_input":
                if "as_tensor" in argument:
                    name = argument["as_tensor"]["name"]
                    self.program.inputs[name] = self.described(self.graph, name)
            elif "name" in argument:
                target = next(v for k, v in body.items() if k.endswith("_name"))
                self.program.constants[argument["name"]] = self.tensor(target)
                self.buffers[target] = argument["name"]

    def described(self, graph: Mapping[str, Any], name: str) -> tuple[Shape, str]:
        meta = graph["tensor_values"][name]
        return [_extent(size) for size in meta["sizes"]], KINDS.get(meta["dtype"], "unknown")

    def tensor(self, name: str) -> Callable[[], Array]:
        def read() -> Array:
            if name not in self.stored:
                raise RefusedError(f"its weight '{name}' is not in the file")
            part, row = self.stored[name]
            if row.get("use_pickle"):
                raise RefusedError(f"its weight '{name}' is kept as a pickle, which is never opened")
            return _strided(self.archive.read(part), row["tensor_meta"])

        return read

    # ---------------------------------------------------------------------------------------- calls
    def nodes(self, graph: Mapping[str, Any], prefix: str) -> None:
        for node in graph["nodes"]:
            operator = operator_name(node["target"])
            if operator in _WRAPPERS:
                self.inlined(node, prefix)
                continue
            named = ((a["name"] or str(i), a["arg"]) for i, a in enumerate(node["inputs"]))
            arguments = {name: self.value(argument, prefix) for name, argument in named}
            results = [prefix + name if name else "" for name in _names(node["outputs"])]
            if not any(results):
                continue  # an assertion
            first = next(r for r in results if r).removeprefix(prefix)
            shape, kind = self.described(graph, first) if first in graph["tensor_values"] else (["unknown"], "")
            name = prefix + str(node.get("name") or first)
            self.calls.append(PytorchCall(operator, name, arguments, results, shape, kind))

    def inlined(self, node: Mapping[str, Any], prefix: str) -> None:
        """The body of ``with torch.no_grad():`` and its like, in the place of the call."""
        given = [a["arg"] for a in node["inputs"]]
        at = next(i for i, a in enumerate(given) if "as_graph" in a)
        body = given[at]["as_graph"]["graph"]
        inner = f"{prefix}{given[at]['as_graph']['name']}/"
        for port, argument in zip(body["inputs"], given[at + 1 :], strict=True):
            self.identity(inner + port["as_tensor"]["name"], self.value(argument, prefix), body, port)
        self.nodes(body, inner)
        for outer, result in zip(_names(node["outputs"]), body["outputs"], strict=False):
            if outer:
                self.identity(prefix + outer, self.value(result, inner), body, result)

    def identity(self, name: str, value: Any, graph: Mapping[str, Any], like: Mapping[str, Any]) -> None:
        shape, kind = self.described(graph, like["as_tensor"]["name"])
        self.calls.append(PytorchCall("alias", name, {"self": value}, [name], shape, kind))

    def body(self, given: Mapping[str, Any], prefix: str) -> PytorchGraph:
        """A graph among the arguments of a call."""
        graph, inner, outside = given["graph"], f"{prefix}{given['name']}/", self.calls
        self.calls = []
        self.nodes(graph, inner)
        calls, self.calls = self.calls, outside
        inputs = [inner + port.get("as_tensor", {}).get("name", "") for port in graph["inputs"]]
        return PytorchGraph(inputs, calls, [self.value(each, inner) for each in graph["outputs"]])

    def value(self, argument: Mapping[str, Any], prefix: str) -> Any:
        """An argument: the union of the schema as plain values, tensors as ``ProgramRef``."""
        ((kind, given),) = [(k, v) for k, v in argument.items() if v is not None or k == "as_none"][:1] or [("", None)]
        match kind:
            case "as_tensor":
                return ProgramRef(prefix + given["name"])
            case "as_tensors":
                return [ProgramRef(prefix + t["name"]) for t in given]
            case "as_optional_tensors":
                return [self.value(t, prefix) for t in given]
            case "as_graph":
                return self.body(given, prefix)
            case "as_sym_int":
                return _extent(given)
            case "as_sym_ints":
                return [_extent(size) for size in given]
            case "as_int" | "as_ints" | "as_float" | "as_floats" | "as_bool" | "as_bools" | "as_string":
                return given
        return None  # element types, layouts, devices: the result's description says what matters here

    def returned(self) -> None:
        for spec in self.signature["output_specs"]:
            argument = spec.get("user_output", {}).get("arg", {})
            if "as_tensor" in argument:
                self.program.outputs.append(argument["as_tensor"]["name"])
            if written := spec.get("buffer_mutation"):
                self.program.kept[self.buffers[written["buffer_name"]]] = written["arg"]["name"]


_WRAPPERS = {"higher_order.wrap_with_set_grad_enabled", "higher_order.wrap_with_autocast"}


def _extent(size: Mapping[str, Any]) -> int | str:
    """An extent, or the expression of one that is not fixed."""
    if "as_int" in size:
        return int(size["as_int"])
    return str(size.get("as_name") or size.get("as_expr", {}).get("expr_str", "unknown"))


def _names(outputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of a call's results; "" for what is no tensor."""
    names = []
    for output in outputs:
        if "as_tensors" in output:
            names += [t["name"] for t in output["as_tensors"]]
        else:
            names.append(output.get("as_tensor", {}).get("name", ""))
    return names


def _strided(data: bytes, meta: Mapping[str, Any]) -> Array:
    """A tensor within its storage.  Raises FormatError when it reaches beyond it."""
    if meta["dtype"] not in KINDS:
        raise RefusedError(f"weights of the element type {meta['dtype']} are not supported")
    dtype = DType(TYPES[KINDS[meta["dtype"]]]).numpy
    sizes, strides = ([int(n["as_int"]) for n in meta[key]] for key in ("sizes", "strides"))
    offset = int(meta["storage_offset"]["as_int"])
    if len(strides) != len(sizes) or min([*sizes, *strides, offset]) < 0:
        raise FormatError(f"a weight has the impossible shape {sizes} with the strides {strides}")
    if math.prod(sizes) == 0:
        return np.zeros(sizes, dtype)
    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    whole = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
    if last >= whole.size or math.prod(sizes) > whole.size:
        raise FormatError(f"a weight of shape {sizes} does not fit the {len(data)} bytes that are stored")
    steps = [s * dtype.itemsize for s in strides]
    return np.array(np.lib.stride_tricks.as_strided(whole[offset:], sizes, steps), order="C")
