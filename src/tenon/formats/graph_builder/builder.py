"""Building a graph from a list of layers: what importers other than ONNX's share.

    builder = GraphBuilder(file, name, shapes, inputs, outputs)
    builder.input("data", TensorType(F32, (1, 3, "h", 224)))    # bound by the user's shapes where they say so
    for layer in file's layers, in an order in which they can run:
        with builder.layer(layer.name, layer.type, layer.top):  # errors inside become Problems of this layer
            x = builder[layer.bottom]                           # a Value; RefusedError if no layer made it
            w = builder.constant(array, "weights")
            y = builder.add("Conv", x, w, strides=(2, 2))       # an operator of ops/ by its ONNX name; one Value
            a, b = builder.adds("Split", 2, y, sizes, axis=1)   # several outputs
            builder[layer.top] = y                              # name it; a second assignment shadows the first
    return builder.finish(["prob"])                             # the graph, cut and pruned; raises all Problems

Values are typed as they come whenever the input's shape is bound: ``builder.dims(x)`` gives integers, or raises with a
remedy.  ``builder.ints`` and ``builder.floats`` make small constants.  Nodes that cannot be imported raise
``RefusedError(what, remedy)``.  Cutting is done here: a tensor that the user named with ``inputs`` becomes an input of
the graph as soon as it is assigned, and problems of layers that the chosen outputs do not need are dropped.

Without a weights file the graph has shapes only: ``builder.placeholder(shape)`` stands for weights and marks the graph
as incomplete (``compile`` refuses it and says why).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from tenon.errors import FormatError, InputError, InternalError, Problem, ShapeError
from tenon.formats.graph_builder.errors import RefusedError, no_such_tensors
from tenon.formats.graph_builder.size_number import sized_dims
from tenon.formats.graph_builder.sized_ints import sized_ints
from tenon.network import ops
from tenon.network.graph.bind import ANY_RANK, Shapes, bind_types, remedy
from tenon.network.graph.fixed import bindings, data_for
from tenon.network.graph.graph import Array, Graph, Origin, Value
from tenon.network.graph.random_weights import placeholder
from tenon.network.graph.types import DType, TensorType
from tenon.network.graph.writer import HOSTILE, Mark, Writer, is_known, reason

if TYPE_CHECKING:
    from tenon.formats.model_files.model_file import ModelFile
    from tenon.network.ops.base import Operator


MISSING_WEIGHTS = "its weights were not given; name their file with --weights"


class _SkippedError(RefusedError):
    """A layer cannot be imported because one before it was refused; that one is reported."""


@dataclass
class _ImportedLayer:
    """Values that one layer read and made, for cutting."""

    origin: Origin
    reads: set[str] = field(default_factory=set)
    makes: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class BuilderMark:
    """The state of a ``GraphBuilder``, to return to."""

    writer: Mark
    layers: int
    inputs: int
    scope: dict[str, Value]


class GraphBuilder:
    """A graph under construction.  ``shapes``, ``inputs`` and ``outputs`` are what the user asked for."""

    def __init__(
        self,
        file: ModelFile,
        name: str,
        shapes: Shapes,
        inputs: Sequence[str] | None,
        outputs: Sequence[str] | None,
        model_bytes: int = 0,
    ) -> None:
        self.file = file
        self.graph = Graph(name or file.stem, file.name)
        self.graph.limits = dict(file.limits)
        self.writer = Writer(self.graph, model_bytes or len(file.data))
        self.writer.sizes.use(operator("Identity", {}))
        self.shapes = dict(shapes)
        self.cut_inputs = set(inputs or ())
        self.cut_outputs = list(outputs or ())
        self.scope: dict[str, Value] = {}
        self.states: dict[str, str] = {}
        """Inputs that hold what an output gave in the run before, and these outputs."""
        self._layers: list[_ImportedLayer] = []
        self._here = _ImportedLayer(Origin(file.name))
        self._named: set[Value] = set()
        self._failed: set[Value] = set()
        self._declared: dict[str, TensorType] = {}

    # --------------------------------------------------------------------------------------- attempts
    def mark(self) -> BuilderMark:
        """The present state, for ``restore``."""
        return BuilderMark(self.writer.mark(), len(self._layers), len(self.graph.inputs), dict(self.scope))

    def restore(self, mark: BuilderMark) -> None:
        """Take back everything that was built since then."""
        self.writer.restore(mark.writer)
        self.scope = dict(mark.scope)
        del self._layers[mark.layers :]
        del self.graph.inputs[mark.inputs :]

    def unchanged_since(self, mark: BuilderMark) -> bool:
        """Whether neither a problem was reported nor an input added since then."""
        return len(self.writer.problems) == mark.writer.problems and len(self.graph.inputs) == mark.inputs

    # ----------------------------------------------------------------------------------------- tensors
    def input(self, name: str, type: TensorType) -> Value:
        """A graph input.  Raises InputError and ShapeError when the user's shape does not fit."""
        bound = self._bound(name, type)
        self._declared[name] = type
        value = self._port(name, bound)
        self._named.add(value)
        self.scope[name] = value
        return value

    def _port(self, name: str, type: TensorType) -> Value:
        """A graph input, or the constant that the user fixed it to."""
        given = self.file.values.get(name)
        if given is None:
            return self.writer.sizes.open(self.graph.add_input(self.writer.names.fresh(name), type))
        self.graph.fixed.add(name)
        return self.writer.constant(name, data_for(name, given, type))

    def inputs(self, types: Mapping[str, TensorType]) -> None:
        """Several graph inputs, which may share named dimensions."""
        own = {d for t in types.values() for d in t.shape}
        mine = {k: v for k, v in self.shapes.items() if k in types or k in own}
        for name, type in bind_types(types, {**mine, **bindings(self.file.values, types)}).items():
            self.input(name, type)
            self._declared[name] = types[name]

    def _bound(self, name: str, type: TensorType) -> TensorType:
        mine = {k: v for k, v in self.shapes.items() if k == name or k in type.shape}
        return bind_types({name: type}, {**mine, **bindings(self.file.values, {name: type})})[name]

    @property
    def origin(self) -> Origin:
        """The layer being imported."""
        return self._here.origin

    def __contains__(self, name: str) -> bool:
        return name in self.scope

    def __getitem__(self, name: str) -> Value:
        self._here.reads.add(name)
        if name not in self.scope:
            raise RefusedError(f"reads '{name}', which no earlier layer computes")
        return self.scope[name]

    def __setitem__(self, name: str, value: Value) -> None:
        self._here.makes.add(name)
        if name in self.cut_inputs:
            value = self._cut(name, value)
        elif value not in self._named:
            value.name = self.writer.names.fresh(name)
            self._named.add(value)
        self.scope[name] = value

    def _cut(self, name: str, value: Value) -> Value:
        """A graph input in place of a tensor that a layer made."""
        old = self.scope.get(name)
        if old is not None and old in self.graph.inputs:
            return old
        type = value.type if value.typed else TensorType(DType.F32, (ANY_RANK,))
        return self.input(name, type)

    def constant(self, data: Array, stem: str = "constant") -> Value:
        return self.writer.constant(f"{self._here.origin.layer}_{stem}", data)

    def ints(self, *numbers: int) -> Value:
        """An i64 vector."""
        return sized_ints(self, numbers)

    def floats(self, *numbers: float) -> Value:
        """An f32 vector; of one number it broadcasts against anything."""
        return self.constant(np.array(numbers, np.float32), "floats")

    def scalar(self, number: float) -> Value:
        """An f32 of rank 0."""
        return self.constant(np.array(number, np.float32), "scalar")

    def placeholder(self, shape: Sequence[int], dtype: DType = DType.F32) -> Value:
        """Zeros in place of missing weights; the graph can then be inspected, not compiled."""
        self.graph.incomplete = MISSING_WEIGHTS
        return self.constant(placeholder(tuple(shape), dtype.numpy), "weights")

    def type(self, value: Value) -> TensorType:
        """A value's bound type.  Raises RefusedError when it is not known."""
        if not is_known(value):
            if self._fails(value):
                raise _SkippedError(f"needs '{value.name}', which an earlier layer failed to compute")
            raise RefusedError(
                f"needs the shape of '{value.name}', which is not known", "bind the model's inputs with --shape"
            )
        return value.type

    def rank(self, value: Value) -> int:
        """A value's number of axes.  Raises RefusedError when it is not known."""
        return self.type(value).rank

    def dims(self, value: Value) -> tuple[int, ...]:
        """A value's shape as integers, which are ``SizeNumber`` where only a run knows them.  Raises RefusedError when
        it is not known."""
        dims = self.type(value).dims
        own = self.writer.sizes.extents.get(value)
        return dims if own is None else sized_dims(dims, own)

    def _fails(self, value: Value) -> bool:
        """Whether a value has no type because a layer before it was refused."""
        todo, seen = [value], {value}
        while todo:
            one = todo.pop()
            if one in self._failed:
                self._failed.add(value)
                return True
            before = one.producer.inputs if one.producer is not None else ()
            fresh = [v for v in before if v is not None and not v.typed and v not in seen]
            seen.update(fresh)
            todo += fresh
        return False

    # ------------------------------------------------------------------------------------------ layers
    @contextmanager
    def layer(self, name: str, type: str, *tops: str) -> Iterator[None]:
        """A context manager: nodes made inside belong to this layer, and errors inside become Problems of it.

        ``tops`` are its outputs: those it does not assign are left untyped, so that only this layer is reported.
        """
        outer = self._here
        self._here = _ImportedLayer(Origin(self.file.name, name, type))
        self._layers.append(self._here)
        before = len(self.writer.problems)
        try:
            yield
        except _SkippedError:
            pass
        except RefusedError as refusal:
            self.writer.report(self._here.origin, refusal.what, refusal.remedy)
        except FormatError as error:
            self.writer.report(self._here.origin, str(error))
        except HOSTILE as error:
            self.writer.report(self._here.origin, f"its parameters or inputs are invalid: {reason(error)}")
        finally:
            for top in tops:
                if top and top not in self._here.makes:
                    self[top] = Value(top)
                    self._failed.add(self.scope[top])
            self._here.problems = self.writer.problems[before:]
            self._here = outer

    def add(self, type: str, *inputs: Value | None, **attributes: Any) -> Value:
        """The one (or first) output of a new operator."""
        return self.adds(type, 1, *inputs, **attributes)[0]

    def adds(self, type: str, count: int, *inputs: Value | None, **attributes: Any) -> tuple[Value, ...]:
        """The first ``count`` outputs of a new operator.  Raises RefusedError for an unknown operator."""
        stem = f"{self._here.origin.layer}_{type.lower()}"
        names = [stem] if count == 1 else [f"{stem}_{i}" for i in range(count)]
        given = list(inputs)
        while given and given[-1] is None:
            given.pop()
        before = len(self.writer.problems)
        result = self.writer.add(operator(type, attributes), given, names, self._here.origin)
        if len(self.writer.problems) > before:
            self._failed.update(result)
        return result

    # ---------------------------------------------------------------------------------------- the graph
    def finish(self, outputs: Sequence[str]) -> Graph:
        """The graph with these outputs, or those that the user chose.

        Raises UnsupportedError or ShapeError listing the problems of every layer that they need, FormatError when
        nothing makes an output, InputError for a name or a shape of the user's that matches nothing.
        """
        wanted = self.cut_outputs or list(dict.fromkeys(outputs))
        known = {*self.scope, *(name for layer in self._layers for name in layer.makes)}
        unknown = [n for n in (*sorted(self.cut_inputs), *self.cut_outputs) if n not in known]
        if unknown:
            raise no_such_tensors(self.file.name, unknown, known)
        self._keep_needed(wanted)
        self.writer.finish()
        missing = [name for name in wanted if not self._is_made(name)]
        if missing or not wanted:
            shown = ", ".join(map(repr, missing)) or "at all"
            raise FormatError(f"{self.file.name}: no node computes the output {shown}; the file is damaged")
        self._check_shapes()
        for name in wanted:
            self.graph.outputs.append(self._returned(name, self.scope[name]))
        self.graph.sizes |= self.writer.sizes.ranges
        self.writer.sizes.deliver(Origin(self.file.name))
        self.writer.finish()  # an input that is returned as it is may be too large
        self.graph.prune()
        self._check_reads()
        if self.cut_inputs:
            self.graph.inputs = [v for v in self.graph.inputs if v.name in self.cut_inputs or self.graph.used(v)]
        check_outputs(self.graph)
        self._record_states(wanted)
        return self.graph

    def _record_states(self, outputs: Sequence[str]) -> None:
        """Note the states whose input and output are both left, and of one type."""
        types = {v.name: v.type for v in self.graph.inputs}
        for before, after in self.states.items():
            if before in types and after in outputs:
                type = self.graph.outputs[outputs.index(after)].type
                if (type.dtype, type.shape) == (types[before].dtype, types[before].shape):
                    self.graph.states[before] = outputs.index(after)

    def _is_made(self, name: str) -> bool:
        """Whether a tensor is an input, a constant or what a node computes, not just declared by its layer."""
        value = self.scope.get(name)
        return value is not None and (value.producer is not None or value.constant or value in self.graph.inputs)

    def _keep_needed(self, wanted: Sequence[str]) -> None:
        """Drop the problems of layers that the outputs do not need."""
        needed = set(wanted)
        kept: list[Problem] = []
        for layer in reversed(self._layers):
            if layer.makes & needed or not layer.makes:
                kept = [*layer.problems, *kept]
                needed = (needed - layer.makes) | layer.reads
                needed -= self.cut_inputs
        if len(kept) < len(self.writer.problems):
            inside = {id(p) for layer in self._layers for p in layer.problems}
            self.writer.problems = [p for p in self.writer.problems if id(p) not in inside] + kept

    def _check_shapes(self) -> None:
        """Raise InputError for a name given with --shape that is neither an input nor one of its dimensions."""
        dims = {d for t in self._declared.values() for d in t.shape if isinstance(d, str)}
        for name in self.shapes:
            if name not in self._declared and name not in dims and not self.cut_inputs:
                have = ", ".join(repr(n) for n in (*self._declared, *sorted(dims)))
                raise InputError(f"{self.file.name}: no input or dimension is called '{name}'; the model has {have}")

    def _check_reads(self) -> None:
        """Raise FormatError for a tensor that a layer declared and did not compute, where another one reads it."""
        inputs = set(self.graph.inputs)
        for node in self.graph:
            for value in node.inputs:
                if value is not None and value.producer is None and not value.constant and value not in inputs:
                    what = f"{node.origin} reads '{value.name}', which no node computes"
                    raise FormatError(f"{self.file.name}: {what}; the file is damaged")

    def _returned(self, name: str, value: Value) -> Value:
        """``value`` as the output ``name``."""
        if value in self.graph.inputs or self.graph.is_output(value) or value.constant:
            (value,) = self.writer.add(operator("Identity", {}), [value], [name], Origin(self.file.name, name))
        if name not in ("", value.name):
            for other in self.graph.values():
                if other.name == name and other is not value:
                    other.name = self.writer.names.fresh(name)
            value.name = name
        return value


def check_outputs(graph: Graph) -> None:
    """Raise ShapeError if nothing is left to compute: all outputs are known, and none has an element."""
    if not graph.inputs or not all(v.typed and v.type.bound and v.type.size for v in graph.inputs):
        return
    if graph.outputs and all(v.constant and not v.type.size for v in graph.outputs):
        names = ", ".join(repr(v.name) for v in graph.outputs)
        shapes = ", ".join(f"'{v.name}' {v.type}" for v in graph.inputs)
        raise ShapeError(
            f"{graph.source or graph.name}: the output {names} is empty, whatever the inputs {shapes} hold: bind the "
            "shapes that the model is meant for with --shape, and check what is fixed with --value"
        )


def required_input(builder: GraphBuilder, name: str, type: TensorType) -> Value:
    """A graph input in a format whose layers need shapes.  Raises ShapeError while its shape is not all known."""
    value = builder.input(name, type)
    if not value.type.bound:
        hint = remedy(name, value.type)
        raise ShapeError(f"{builder.file.name}: the file does not say the shape of '{name}': {hint}")
    return value


def operator(type: str, attributes: Mapping[str, Any]) -> Operator:
    """The operator of that name.  Raises RefusedError when Tenon lacks it, InternalError for wrong attributes."""
    operator_class = ops.lookup(type)
    if operator_class is None:
        near = difflib.get_close_matches(type, ops.registry(), 1, 0.75)
        raise RefusedError(
            f"needs the operator {type}, which is not supported", f"the nearest is {near[0]}" if near else ""
        )
    known = {f.name: str(f.type) for f in fields(operator_class)}
    foreign = [name for name in attributes if name not in known]
    if foreign:
        raise InternalError(f"{type} has no attribute {', '.join(foreign)}; it has {', '.join(known)}")
    return operator_class(**{name: _plain(value, known[name]) for name, value in attributes.items()})


def _plain(value: Any, annotation: str) -> Any:
    """An attribute as operators hold it: tuples of Python numbers."""
    if isinstance(value, list | tuple | np.ndarray):
        return tuple(v.item() if isinstance(v, np.generic) else v for v in value)
    value = value.item() if isinstance(value, np.generic) else value
    return float(value) if annotation == "float" else value
