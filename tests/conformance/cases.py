"""The conformance cases of the installed ``onnx`` package, as models with data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.exact import expected

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""The suites of ``onnx.backend.test`` that hold single operators or small networks."""


@dataclass(frozen=True, eq=False)
class Conformance:
    """One case: a model with inputs and expected outputs.

    A tensor is an array, a sequence a list of such, an absent optional None.  A result is right within
    ``rtol * |expected| + atol``, ONNX's own tolerances.
    """

    name: str
    kind: str
    operator: str
    model: bytes
    data: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...]
    rtol: float
    atol: float


def cases() -> Iterator[Conformance]:
    """Every case of every kind, node cases first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from _generated()
        for kind in KINDS[1:]:
            yield from _stored(kind)


def _generated() -> Iterator[Conformance]:
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        assert case.model is not None
        assert case.data_sets is not None
        data = tuple(
            (tuple(inputs), expected(case.name, inputs, outputs, case.rtol, case.atol))
            for inputs, outputs in case.data_sets
        )
        yield Conformance(
            case.name,
            "node",
            _operator(case.name, case.model),
            case.model.SerializeToString(),
            data,
            case.rtol,
            case.atol,
        )


def _stored(kind: str) -> Iterator[Conformance]:
    import onnx
    from onnx.backend.test.loader import load_model_tests

    for case in load_model_tests(kind=kind):
        assert case.model_dir is not None
        folder = Path(case.model_dir)
        model = onnx.load(folder / "model.onnx")
        data = tuple(_data_set(model, place) for place in sorted(folder.glob("test_data_set_*")))
        yield Conformance(
            case.name, kind, _operator(case.name, model), model.SerializeToString(), data, case.rtol, case.atol
        )


def _data_set(model: Any, folder: Path) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    def read(stem: str, infos: Any) -> tuple[Any, ...]:
        files = (folder / f"{stem}_{i}.pb" for i in range(len(infos)))
        return tuple(_value(f.read_bytes(), info) for f, info in zip(files, infos, strict=True) if f.is_file())

    return read("input", model.graph.input), read("output", model.graph.output)


def _value(data: bytes, info: Any) -> Any:
    import onnx
    from onnx import numpy_helper

    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if kind == "optional_type":
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _operator(name: str, model: Any) -> str:
    """The operator under test: its only node's, or the function whose body it is."""
    types = [node.op_type for node in model.graph.node]
    if len(types) == 1:
        return str(types[0])
    stem = name.removeprefix("test_").split("_expanded")[0].replace("_", "")
    known = sorted(_operators(), key=len, reverse=True)
    return next((t for t in known if stem.startswith(t.lower())), max(types, key=types.count))


def _operators() -> set[str]:
    from onnx.defs import get_all_schemas

    return {schema.name for schema in get_all_schemas()}
