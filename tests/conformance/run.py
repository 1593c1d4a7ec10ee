"""One conformance case: import, compile, run through the bundle's entry point, compare."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tenon
from conformance.cases import Conformance
from tenon.errors import ModelError
from tenon.machine.toolchain.compiler import Compiler
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.strings import decoded, encoded, width

_ROUNDING = {"bfloat16": 2 * 2.0**-7, "float16": 2 * 2.0**-10}
"""Two units in the last place, relative to the least number that has them."""

FLAGS = ("-O1",)
"""Cases are compiled faster than shipped bundles are; the code they are compiled from is the same."""


class Wrong(Exception):  # noqa: N818  it is a verdict
    """The results of the compiled network differ from those expected by ONNX."""


def run(case: Conformance, compiler: str) -> tuple[str, ...]:
    """Raises Wrong or an error of tenon; returns the inputs that had to be bound to their values.

    Inputs that a shape depends on (the importer names them) are bound when compiling, as initializers of the model. All
    other inputs are given at run time. The width of strings is that of the longest in the case's inputs.
    """
    names = ports(case.model)
    bound: tuple[str, ...] = ()
    for inputs, outputs in case.data:
        feeds = flat(zip(names[0], inputs, strict=False))
        expected = dict(zip(names[1], outputs, strict=False))
        graph, bound = imported(case, feeds)
        actual = results(graph, feeds, compiler)
        for name, value in expected.items():
            compare(f"output '{name}'", _gathered(actual, name, value), value, case.rtol, case.atol)
    return bound


def flat(pairs: Iterable[tuple[str, Any]]) -> dict[str, Array]:
    """Tensors by name; those of a sequence x are x[0], x[1] ..."""
    tensors: dict[str, Array] = {}
    for name, value in pairs:
        if isinstance(value, list | tuple):
            tensors.update({f"{name}[{i}]": tensor(v) for i, v in enumerate(value)})
        elif value is not None:
            tensors[name] = tensor(value)
    return tensors


def _gathered(outputs: dict[str, Array], name: str, like: Any) -> Any:
    """The output of this name; a list if a sequence is expected."""
    if not isinstance(like, list | tuple):
        return outputs.get(name)
    return [array for key, array in outputs.items() if key.startswith(f"{name}[")]


def tensor(value: Any) -> Array:
    """A value of a case as an array; values of types that NumPy lacks are TensorProtos."""
    from onnx import TensorProto, numpy_helper

    array = numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
    return decoded(encoded(array)) if array.dtype.kind in "OSU" else array


def ports(model: bytes) -> tuple[list[str], list[str]]:
    """The names of a model's inputs and outputs."""
    import onnx

    graph = onnx.ModelProto.FromString(model).graph
    return [v.name for v in graph.input], [v.name for v in graph.output]


def imported(case: Conformance, feeds: dict[str, Array]) -> tuple[Graph, tuple[str, ...]]:
    """The case's graph, and the inputs bound to their values."""
    shapes: dict[str, Any] = {name: value.shape for name, value in feeds.items()}
    shapes |= {f"{name}.width": width(value.reshape(-1)) for name, value in feeds.items() if value.dtype == object}
    bound: dict[str, Array] = {}
    while True:
        free = {name: shape for name, shape in shapes.items() if name.removesuffix(".width") not in bound}
        try:
            return tenon.load(with_values(case.model, bound), shapes=free), tuple(bound)
        except ModelError as error:
            needed = [name for name in error.needs if name in feeds and name not in bound]
            if not needed:
                raise
            bound.update({name: feeds[name] for name in needed})


def with_values(model: bytes, values: dict[str, Array]) -> bytes:
    """The model with these inputs as initializers."""
    import onnx
    from onnx import numpy_helper

    if not values:
        return model
    proto = onnx.ModelProto.FromString(model)
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in values.items())
    return bytes(proto.SerializeToString())


def results(graph: Graph, feeds: dict[str, Array], compiler: str) -> dict[str, Array]:
    """The outputs of the compiled graph."""
    bundle = tenon.compile(graph, compiler=compiler, name="net")
    with tempfile.TemporaryDirectory(prefix="tenon-") as place:
        bundle.__dict__["compiler"] = _FastCompiler(bundle.compiler)
        engine = tenon.open(bundle.save(Path(place) / "net", ("library", "weights")))
        return engine.run({name: feeds[name] for name in engine.inputs})


class _FastCompiler:
    """The compiler with flags for fast compilation."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler

    def compile(self, files: Any, name: str, target: Any, extra: Sequence[str] = ()) -> bytes:
        return self.compiler.compile(files, name, target, (*extra, *FLAGS))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compiler, name)


def compare(what: str, got: Any, expected: Any, rtol: float, atol: float) -> None:
    """Raises Wrong where ``got`` is not ``expected`` within the tolerance."""
    if isinstance(expected, list | tuple):
        if not isinstance(got, list) or len(got) != len(expected):
            raise Wrong(f"{what}: {got} where a sequence of {len(expected)} is expected")
        for i, (a, b) in enumerate(zip(got, expected, strict=True)):
            compare(f"{what}[{i}]", a, b, rtol, atol)
        return
    if expected is None or got is None:
        if expected is not got:
            raise Wrong(f"{what}: {got} where {expected} is expected")
        return
    expected = tensor(expected)
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise Wrong(f"{what}: {got.dtype}{list(got.shape)} where {expected.dtype}{list(expected.shape)} is expected")
    exact = got.dtype.kind in "iubOSU"
    a, b = (got, expected) if exact else (_wide(got), _wide(expected))
    # Expected 16-bit values include the rounding of intermediate results in ONNX's own implementation.
    rtol = max(rtol, _ROUNDING.get(got.dtype.name, 0.0))
    right = a == b if exact else np.isclose(a, b, rtol, atol, equal_nan=True)
    if not np.all(right):
        at = tuple(int(i) for i in np.argwhere(~np.asarray(right))[0])
        count = int(np.size(right) - np.count_nonzero(right))
        raise Wrong(f"{what}: {count} of {np.size(right)} differ, first {list(at)}: {a[at]} instead of {b[at]}")


def _wide(a: Array) -> Array:
    return a if a.dtype.kind == "c" else a.astype(np.float64)
