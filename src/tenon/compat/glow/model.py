"""The model and the bundle that a command line of Glow's asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import tenon
from tenon.atomic_write import write
from tenon.compat.glow.bundle import GlowBundle, bundle_of, object_files
from tenon.compat.glow.model_input import ModelInput, model_input
from tenon.compat.glow.names import legal_name
from tenon.compat.glow.options import Arguments
from tenon.compat.glow.target import target_name
from tenon.errors import InputError
from tenon.input_file import read_regular
from tenon.machine.targets import targets
from tenon.network import ops
from tenon.network.graph.dot import to_dot
from tenon.network.graph.graph import Graph, Origin, Value
from tenon.network.graph.preprocessing import planes
from tenon.network.graph.types import DType, Quant, TensorType
from tenon.network.graph.writer import Names
from tenon.network.ops.unroll import unrolled
from tenon.options import DataType, OptionKeywords, Precision
from tenon.tools.quantization.by_ranges import profiled, quantize_by_ranges
from tenon.tools.quantization.glow_profile import GlowProfile, GlowRange, graph_hash
from tenon.tools.quantization.glow_profile import parse as parse_profile
from tenon.tools.quantization.relative_entropy import least_entropy_range

_SCHEMES = {
    "asymmetric": "int8-per-tensor",
    "symmetric": "int8-symmetric",
    "symmetric_with_uint8": "uint8",
    "symmetric_with_power2_scale": "int8-power-of-two",
}


def load(arguments: Arguments) -> Graph:
    """The graph of ``-model``, with the shapes and quantised types of ``-model-input``, and as many images at a time as
    ``-minibatch`` says.

    Raises InputError and ModelError.
    """
    paths = arguments.lists.get("model", [])
    if not paths:
        raise InputError("no model: give its file or folder with -model=PATH")
    if len(paths) > 2:
        raise InputError(f"-model is given {len(paths)} times: a model has one file, or two")
    inputs = _inputs(arguments)
    shapes: dict[str, int | Sequence[int]] = {given.name: given.shape for given in inputs if given.shape}
    shapes |= dict(map(_symbol, arguments.lists.get("onnx-define-symbol", [])))
    graph = tenon.load(paths[0], weights=paths[1] if len(paths) > 1 else None, shapes=shapes)
    batch = arguments.number("minibatch", 1)
    if batch < 1:
        raise InputError(f"-minibatch={batch}: at least 1 image is needed")
    if batch > 1:
        ports = [value for value in graph.inputs if (value.name in shapes or not inputs) and planes(value.type.dims)]
        ports = ports or [value for value in graph.inputs if planes(value.type.dims)]
        shapes |= {value.name: (batch, *value.type.dims[1:]) for value in ports}
        graph = tenon.load(paths[0], weights=paths[1] if len(paths) > 1 else None, shapes=shapes)
    names = [value.name for value in graph.inputs]
    if unknown := [given.name for given in inputs if given.name not in names]:
        raise InputError(f"-model-input={unknown[0]}: the model has {', '.join(map(repr, names))}")
    for given in inputs:
        if given.scale is not None:
            _quantise_input(graph, given)
    return unrolled(graph)


def options(arguments: Arguments, target: str) -> OptionKeywords:
    """The options of ``tenon.compile`` that the command line asks for."""
    types: dict[str, DataType] = {
        given.name: given.type
        for given in _inputs(arguments)
        if given.type is not None and given.scale is None and given.type != "float32"
    }
    precision: Precision = "fp32"
    if "convert-to-fp16" in arguments.flags:
        precision = "bf16" if arguments.chosen("fp16-format", ("fp16", "bfloat16")) == "bfloat16" else "fp16"
    arithmetic: OptionKeywords = {"arithmetic": "litert"} if _wide(arguments) else {}
    return {"target": target, "data_types": types, "precision": precision, "verify": False, **arithmetic}


def quantised(arguments: Arguments, graph: Graph) -> Graph:
    """The graph quantised by ``-load-profile``; the same graph if that is not given.

    Raises InputError for a profile of another graph, and for a layer left in float if ``-assert-all-nodes-quantized``
    asks for none.
    """
    path = arguments.get("load-profile")
    return by_profile(arguments, graph, loaded_profile(path, graph)) if path else graph


def loaded_profile(path: str, graph: Graph) -> GlowProfile:
    """The profile of a file.  Raises InputError for that of another graph."""
    profile = parse_profile(read_regular(Path(path)).decode("utf-8", "replace"), path)
    if profile.graph_hash != graph_hash(graph):
        raise InputError(f"{path}: Graph hash mismatch! Profile the same model with inputs of the same shapes")
    return profile


def by_profile(arguments: Arguments, graph: Graph, profile: GlowProfile) -> Graph:
    """The graph quantised by the ranges of a profile, as the other options say.  Raises InputError."""
    scheme = _scheme(arguments)
    kept = _kept_kinds(arguments)
    floats = profiled(graph) if kept else graph  # whose results have the names that quantisation knows
    exclude = [node.output.name for node in floats if node.op.name.lower() in kept]
    ranges = {name.removesuffix(":0"): _range(arguments, observed) for name, observed in profile.ranges.items()}
    made = quantize_by_ranges(graph, ranges, scheme=scheme, exclude=exclude)
    if "assert-all-nodes-quantized" in arguments.flags:
        arithmetic = options(arguments, "host").get("arithmetic")
        left = tenon.inspect(made, target=_target(arguments), arithmetic=arithmetic)[0].left_in_float
        excluded = {str(node.origin.layer) for node in floats if node.output.name in exclude}
        reasons = [(where, why) for where, why in left if where not in excluded]
        if wrong := [f"{where} ({why})" for where, why in reasons if why.split()[0].lower() not in kept]:
            raise InputError(f"-assert-all-nodes-quantized: left in float: {', '.join(wrong)}")
    return made


_KINDS = {
    "avgpool": ("averagepool", "globalaveragepool"),
    "batchedreducemean": ("reducemean",),
    "batchmatmul": ("matmul",),
    "convolution": ("conv",),
    "convtranspose": ("convtranspose",),
    "fullyconnected": ("gemm", "matmul"),
}
"""Kinds of Glow's nodes that have other names here, in small letters."""


def _kept_kinds(arguments: Arguments) -> set[str]:
    """Operators of ``-keep-original-precision-for-nodes``, in small letters.  Raises InputError for unknown ones."""
    given = arguments.lists.get("keep-original-precision-for-nodes", [])
    known, kept = {name.lower() for name in ops.registry()}, set[str]()
    for word in (word for text in given for word in text.split(",") if word):
        kinds = _KINDS.get(word.lower(), (word.lower(),))
        if not known.issuperset(kinds):
            raise InputError(f"-keep-original-precision-for-nodes={word}: there is no such kind of node")
        kept.update(kinds)
    return kept


def _scheme(arguments: Arguments) -> str:
    """Tenon's scheme for ``-quantization-schema``, ``-quantization-precision`` and ``-enable-channelwise``."""
    arguments.chosen("quantization-precision-bias", ("Int32",))
    schema = arguments.chosen("quantization-schema", tuple(_SCHEMES))
    if _wide(arguments):
        if schema not in ("asymmetric", "symmetric"):
            raise InputError(f"-quantization-precision=Int16: with -quantization-schema={schema} there are 8 bits only")
        return "int16x8"
    channelwise = schema == "asymmetric" and "enable-channelwise" in arguments.flags
    return "int8" if channelwise else _SCHEMES[schema]


def _wide(arguments: Arguments) -> bool:
    """Whether activations take 16 bits."""
    return arguments.chosen("quantization-precision", ("Int8", "Int16")) == "Int16"


def _range(arguments: Arguments, observed: GlowRange) -> tuple[float, float]:
    """The range of a tensor by ``-quantization-calibration``."""
    schema = arguments.chosen("quantization-schema", tuple(_SCHEMES))
    if arguments.chosen("quantization-calibration", ("none", "KL")) == "none":
        return observed.least, observed.greatest
    symmetric = schema != "asymmetric" and not (schema == "symmetric_with_uint8" and observed.least >= 0)
    return least_entropy_range(observed.histogram, observed.least, observed.greatest, symmetric=symmetric)


def emit(arguments: Arguments, graph: Graph) -> GlowBundle:
    """Write the bundle for ``-emit-bundle``, and the files besides that the options ask for."""
    refuse_unsupported(arguments)
    path = Path(arguments.lists["model"][0])
    network = arguments.get("network-name") or legal_name(path.name if path.is_dir() else path.stem)
    api = arguments.chosen("bundle-api", ("static", "dynamic"))
    instrumented = "instrument-ir" in arguments.flags
    target = _target(arguments)
    made = bundle_of(
        {arguments.get("main-entry-name") or network: graph},
        network,
        api="dynamic" if api == "dynamic" else "static",
        instrumented=instrumented,
        verbose="bundle-api-verbose" in arguments.flags,
        assembly="llvm-save-asm" in arguments.flags,
        objects=object_files([Path(p) for text in arguments.lists.get("bundle-objects", []) for p in text.split(",")]),
        **options(arguments, target),
    )
    made = _positioned(made, arguments.chosen("relocation-model", ("static", "pic")))
    made.save(arguments.get("emit-bundle"))
    if instrumented:
        write("instrument-ir.info", made.info(), "-instrument-ir")
    return made


def dump_graphs(arguments: Arguments, graph: Graph) -> None:
    """Write the Graphviz files of ``-dump-graph-DAG-before-compile`` and ``-dump-graph-DAG``."""
    if before := arguments.get("dump-graph-DAG-before-compile"):
        write(before, to_dot(graph), "-dump-graph-DAG-before-compile")
    if after := arguments.get("dump-graph-DAG"):
        _, optimised = tenon.inspect(graph, target=_target(arguments))
        write(after, to_dot(optimised or graph), "-dump-graph-DAG")


def refuse_unsupported(arguments: Arguments) -> None:
    """Raises InputError for a backend that is not there."""
    backend = arguments.get("backend", "CPU")
    if backend not in ("CPU", "Interpreter"):
        raise InputError(f"-backend={backend}: there is no such backend: write -backend=CPU")


def _symbol(text: str) -> tuple[str, int]:
    """A dimension's name and its extent, as in ``-onnx-define-symbol=batch,1``.  Raises InputError."""
    name, _, number = text.rpartition(",")
    if not name or not number.isdecimal() or int(number) < 1:
        raise InputError(f"-onnx-define-symbol={text}: write NAME,NUMBER, as in batch,1")
    return name, int(number)


def _inputs(arguments: Arguments) -> list[ModelInput]:
    return [model_input(text) for text in arguments.lists.get("model-input", [])]


def _target(arguments: Arguments) -> str:
    return target_name(
        arguments.get("target") or arguments.get("march"),
        arguments.get("mcpu"),
        arguments.lists.get("target-feature", ()),
        arguments.chosen("float-abi", ("default", "soft", "hard")),
    )


def _positioned(made: GlowBundle, model: str) -> GlowBundle:
    """Code for a machine without operating system as position-independent code, if that is asked for; code for others
    always is."""
    if model != "pic" or not targets()[made.entries[0].bundle.target.name].freestanding:
        return made
    entries = []
    for entry in made.entries:
        compilation = entry.bundle.compilation
        target = replace(compilation.target, flags=(*compilation.target.flags, "-fPIC"))
        bundle = replace(entry.bundle, compilation=replace(compilation, target=target))
        entries.append(replace(entry, bundle=bundle))
    return replace(made, entries=tuple(entries))


def _quantise_input(graph: Graph, given: ModelInput) -> None:
    """Let an input take integers that stand for its numbers."""
    at, old = next((i, value) for i, value in enumerate(graph.inputs) if value.name == given.name)
    assert given.scale is not None
    names, first = Names(graph), next(iter(graph), None)
    quant = Quant((given.scale,), (given.offset,))
    new = Value(given.name, TensorType(DType.I8, old.type.dims, quant=quant))
    old.name = names.fresh(f"{given.name}_real")
    scale = graph.constant(names.fresh("scale"), np.array(given.scale, np.float32))
    offset = graph.constant(names.fresh("offset"), np.array(given.offset, np.int8))
    operator = ops.registry()["DequantizeLinear"]()
    origin = Origin(layer=given.name, type="DequantizeLinear")
    node = graph.add(operator, [new, scale, offset], [names.fresh(f"{given.name}_float")], origin, before=first)
    graph.replace(old, node.output)
    graph.inputs[at] = new
