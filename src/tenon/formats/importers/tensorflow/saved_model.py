"""SavedModel folders: the graph that serves, and the variables beside it.

Variables lie in ``variables/variables.index``, a sorted table of names and offsets, and in data files.  Source:
tensor_bundle.proto.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tenon.errors import FormatError, InputError
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tensorflow.schema import SCHEMA, element_type, shape_of
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.protobuf import DamagedError, Message, varint
from tenon.formats.wire.sorted_table import table
from tenon.formats.wire.stored_files import read_stored
from tenon.input_file import is_regular
from tenon.network.graph.graph import Array

_INDEX = "variables.index"
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SERVING = "serving_default"


def read(file: ModelFile) -> tuple[Message, dict[str, str], dict[str, Array]]:
    """The graph, the tensors that the serving signature returns by its keys, and variables by name.

    Raises FormatError.
    """
    saved = SCHEMA.parse("SavedModel", file.data, file.name)
    if not saved.meta_graphs:
        raise FormatError(f"{file.name}: the SavedModel has no graph; it is truncated or damaged")
    meta = saved.meta_graphs[0]
    signatures = dict(meta.signature)
    chosen = signatures.get(_SERVING) or next((s for k, s in signatures.items() if not k.startswith("__")), None)
    infos = chosen.outputs if chosen is not None else {}
    outputs = {key: info.name.removesuffix(":0") for key, info in sorted(infos.items()) if info.name}
    folder = file.folder / "variables" if file.folder is not None else None
    if folder is None or not is_regular(folder / _INDEX):
        return meta.graph, outputs, {}
    try:
        arrays = variables(folder)
        arrays.update({name: arrays[key] for name, key in restored(meta.graph).items() if key in arrays})
        return meta.graph, outputs, arrays
    except (FormatError, RefusedError, DamagedError, InputError) as error:
        raise FormatError(f"{file.name}: its variables cannot be read: {error}") from error


def variables(folder: Path) -> dict[str, Array]:
    """Every variable of numbers by its name.  Raises FormatError."""
    arrays: dict[str, Array] = {}
    names: dict[str, str] = {}
    shards: dict[str, bytes] = {}
    entries = dict(table(read_stored(folder / _INDEX), _INDEX))
    count = max((SCHEMA.parse("BundleEntry", v, k).shard for k, v in entries.items() if k), default=0) + 1
    for key, value in entries.items():
        if not key:  # the header
            continue
        entry = SCHEMA.parse("BundleEntry", value, key)
        name = f"variables.data-{entry.shard:05d}-of-{count:05d}"
        if name not in shards:
            shards[name] = read_stored(folder / name)
        data = shards[name][entry.offset : entry.offset + entry.size] if entry.offset >= 0 <= entry.size else b""
        if len(data) != entry.size:
            raise FormatError(f"'{key}' lies outside of {name}")
        if key == _OBJECT_GRAPH:
            names = _names(data)
        elif entry.dtype not in (7, 20, 21) and not entry.slices:
            arrays[key] = _array(entry, data, key)
    arrays.update({name: arrays[key] for name, key in names.items() if key in arrays})
    return arrays


def restored(graph: Message) -> dict[str, str]:
    """Keys of variables by the names of their handles, as the graph's own function that restores them has them.

    The names that the table of variables tells are those in the program, of which several may be the same.
    """
    functions = {f.signature.name: f for f in graph.library.function} if graph.library is not None else {}
    handles = {node.name: _handle(node) for node in graph.node if node.op == "VarHandleOp"}
    keys: dict[str, str] = {}
    for node in graph.node:
        called = dict(node.attr).get("f")
        function = functions.get(called.func.name) if called is not None and called.func is not None else None
        if function is not None and any(inner.op == "RestoreV2" for inner in function.node):
            given = dict(zip((a.name for a in function.signature.input), node.input, strict=False))
            keys.update({handles[given[arg]]: key for arg, key in _assigned(function) if given.get(arg) in handles})
    return keys


def _handle(node: Message) -> str:
    shared = dict(node.attr).get("shared_name")
    return (bytes(shared.s).decode("utf-8", "replace") if shared is not None else "") or node.name


def _assigned(function: Message) -> Iterator[tuple[str, str]]:
    """Arguments of a function that restores variables, with the keys whose values they get."""
    nodes = {node.name: node for node in function.node}
    for node in function.node:
        if node.op != "AssignVariableOp" or len(node.input) < 2:
            continue
        source = node.input[1].split(":")
        outputs = nodes.get(source[0])
        if outputs is not None and outputs.op == "Identity" and outputs.input:
            source = outputs.input[0].split(":")
            outputs = nodes.get(source[0])
        if outputs is None or outputs.op != "RestoreV2" or len(outputs.input) < 2 or not source[-1].isdecimal():
            continue
        names = nodes.get(outputs.input[1].split(":")[0])
        value = dict(names.attr).get("value") if names is not None else None
        keys = value.tensor.string_val if value is not None and value.tensor is not None else ()
        if int(source[-1]) < len(keys):
            yield node.input[0], bytes(keys[int(source[-1])]).decode("utf-8", "replace")


def _array(entry: Message, data: bytes, key: str) -> Array:
    dtype, dims = element_type(entry.dtype), shape_of(entry.shape) or ()
    if any(d < 0 for d in dims) or math.prod(dims) * dtype.bytes != len(data):
        raise FormatError(f"'{key}' holds {len(data)} bytes, which does not fit its shape {list(dims)}")
    return np.frombuffer(data, dtype.numpy.newbyteorder("<")).astype(dtype.numpy).reshape(dims)


def _names(data: bytes) -> dict[str, str]:
    """Keys of variables by the names that the graph uses.  The data is a string tensor: length, checksum, text."""
    length, at = varint(data, 0)
    at += 4
    graph = SCHEMA.parse("ObjectGraph", data[at : at + length], _OBJECT_GRAPH)
    return {a.full_name: a.key for node in graph.nodes for a in node.attributes if a.full_name}
