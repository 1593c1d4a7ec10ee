"""Builds small .pt2 archives in the layout of torch.export.save."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tenon.formats.importers.pytorch.load import KINDS
from tenon.network.graph.graph import Array

NUMBERS = {kind: number for number, kind in KINDS.items()}


def described(shape: Sequence[int], kind: str = "float32", strides: Sequence[int] | None = None) -> dict[str, Any]:
    steps = strides or [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    return {
        "dtype": NUMBERS[kind],
        "sizes": [{"as_int": n} for n in shape],
        "strides": [{"as_int": n} for n in steps],
        "storage_offset": {"as_int": 0},
        "layout": 7,
    }


def argument(given: Any) -> dict[str, Any]:
    """An argument: a string is a tensor's name, a tuple of strings a list of tensors; other values are constants."""
    match given:
        case None:
            return {"as_none": True}
        case str():
            return {"as_tensor": {"name": given}}
        case tuple():
            return {"as_tensors": [{"name": name} for name in given]}
        case list():
            return {"as_floats" if given and isinstance(given[0], float) else "as_ints": given}
        case bool():
            return {"as_bool": given}
        case int():
            return {"as_int": given}
        case dict():
            return given
    return {"as_float": given}


def call(target: str, result: str | tuple[str, ...], **arguments: Any) -> dict[str, Any]:
    """A call of an operator such as ``aten.relu.default``; a tuple of results is a list of tensors."""
    return {
        "target": f"torch.ops.{target}",
        "inputs": [{"name": name, "arg": argument(given), "kind": 1} for name, given in arguments.items()],
        "outputs": [argument(result)],
        "metadata": {},
    }


def body(
    name: str,
    calls: Sequence[Mapping[str, Any]],
    shapes: Mapping[str, Sequence[int]],
    inputs: Sequence[str],
    outputs: Sequence[str],
    kinds: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A graph as an argument of a call."""
    kinds = dict(kinds or {})
    graph = {
        "inputs": [argument(each) for each in inputs],
        "outputs": [argument(each) for each in outputs],
        "nodes": list(calls),
        "tensor_values": {each: described(shape, kinds.get(each, "float32")) for each, shape in shapes.items()},
    }
    return {"as_graph": {"name": name, "graph": graph}}


def numbered(target: str, result: tuple[str, ...], *arguments: Any) -> dict[str, Any]:
    """A call of a higher-order operator, whose arguments have no names; each result is one of its own."""
    made = call(target, "", **{str(i): given for i, given in enumerate(arguments)})
    for each in made["inputs"]:
        each["name"] = ""
    return {**made, "outputs": [argument(each) for each in result]}


def pt2(
    calls: Sequence[Mapping[str, Any]],
    shapes: Mapping[str, Sequence[int]],
    inputs: Sequence[str],
    outputs: Sequence[str],
    weights: Mapping[str, Array] | None = None,
    kinds: Mapping[str, str] | None = None,
    strides: Mapping[str, Sequence[int]] | None = None,
    kept: Mapping[str, str] | None = None,
) -> bytes:
    """An archive; weights have their names in the program, ``shapes`` are those of all other tensors, ``kept`` says
    which tensor a weight holds after a run."""
    weights, kinds, strides = dict(weights or {}), dict(kinds or {}), dict(strides or {})
    values = {name: described(shape, kinds.get(name, "float32")) for name, shape in shapes.items()}
    values |= {name: described(w.shape, w.dtype.name) for name, w in weights.items()}
    specs: list[dict[str, Any]] = [
        {"parameter": {"arg": {"name": name}, "parameter_name": f"net.{name}"}} for name in weights
    ]
    specs += [{"user_input": {"arg": argument(name)}} for name in inputs]
    graph = {
        "inputs": [argument(name) for name in (*weights, *inputs)],
        "outputs": [argument(n) for n in outputs],
        "nodes": list(calls),
        "tensor_values": values,
    }
    returned: list[dict[str, Any]] = [{"user_output": {"arg": argument(n)}} for n in outputs]
    for name, after in (kept or {}).items():
        returned.append({"buffer_mutation": {"arg": {"name": after}, "buffer_name": f"net.{name}"}})
    signature = {"input_specs": specs, "output_specs": returned}
    stored = {
        f"net.{name}": {
            "path_name": f"weight_{i}",
            "is_param": True,
            "use_pickle": False,
            "tensor_meta": described(w.shape, w.dtype.name, strides.get(name)),
        }
        for i, (name, w) in enumerate(weights.items())
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("net/archive_format", "pt2")
        archive.writestr(
            "net/models/model.json", json.dumps({"graph_module": {"graph": graph, "signature": signature}})
        )
        archive.writestr("net/data/weights/model_weights_config.json", json.dumps({"config": stored}))
        for i, w in enumerate(weights.values()):
            archive.writestr(f"net/data/weights/weight_{i}", np.ascontiguousarray(w).tobytes())
    return out.getvalue()
