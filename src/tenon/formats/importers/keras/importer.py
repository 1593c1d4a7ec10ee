"""A layer of a Keras model as the functions that import it see it, and the loop over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

from tenon.errors import FormatError, ShapeError
from tenon.formats.decompositions.channels_last import ChannelsLast
from tenon.formats.graph_builder.errors import RefusedError, unknown
from tenon.formats.graph_builder.node_context import AttributeName, NodeContext, Outputs
from tenon.formats.importers.keras.weights import KerasWeights
from tenon.network.graph.bind import remedy
from tenon.network.graph.graph import Array, Graph, Value
from tenon.network.graph.types import F32, DType, TensorType, tensor
from tenon.network.graph.writer import is_known

MODELS = frozenset({"Functional", "Model", "Sequential"})

MAX_DEPTH = 16
"""Models within models."""


class KerasImporter:
    """The import of one file."""

    def __init__(self, builder: ChannelsLast, version: int, functions: Mapping[str, LayerFunction]) -> None:
        self.builder = builder
        self.file = builder.file
        self.version = version
        self.functions = functions
        self.names: dict[Value, str] = {}
        self.states: list[str] = []
        """Outputs that are the states of the next run."""
        self.builder.remember()

    def run(self, config: Mapping[str, Any], weights: KerasWeights) -> Graph:
        """Raises ModelError listing every problem."""
        if config["class_name"] not in MODELS:
            raise FormatError(
                f"{self.file.name}: a model of the class {config['class_name']} is defined by code, which is not in "
                "the file; rebuild it as a functional model and save that"
            )
        outputs = list[Value]()
        for value in self.model(config, weights, None, "", 0):
            outputs.append(self.again(value) if value in outputs or value in self.builder.graph.inputs else value)
        return self.builder.finish([*(self.name_of(value) for value in outputs), *self.states])

    def again(self, value: Value) -> Value:
        """A copy, for an output that is given more than once or is an input."""
        copy = self.builder.add("Identity", value)
        self.builder[copy.name] = copy
        return copy

    def name_of(self, value: Value) -> str:
        """The builder's name of a value."""
        names = self.names
        if value not in names or self.builder.scope.get(names[value]) is not value:
            names.update({other: name for name, other in self.builder.scope.items()})
        return names.get(value, value.name)

    def read(self, values: Sequence[Value]) -> None:
        """Record what the present layer reads."""
        for name in map(self.name_of, values):
            if name in self.builder:
                self.builder[name]

    def model(
        self, model: Mapping[str, Any], weights: KerasWeights, inputs: Sequence[Value] | None, prefix: str, depth: int
    ) -> list[Value]:
        """The outputs of a model applied to ``inputs``, or to new inputs of the graph."""
        if depth > MAX_DEPTH:
            raise FormatError(f"{self.file.name}: models are nested more than {MAX_DEPTH} deep")
        config = _part(model, "config", dict, list)
        config = {"layers": config} if isinstance(config, list) else config
        layers = [_Entry(entry, weights) for entry in _part(config, "layers", list)]
        weights.enter([(layer.kind, layer.name) for layer in layers])
        walk = _ModelCaller(self, layers, prefix, depth)
        if model["class_name"] == "Sequential":
            return walk.sequence(config, inputs)
        return walk.graph(config, inputs)

    def input(self, name: str, shape: Sequence[int | None], dtype: str) -> Value:
        """A new input of the graph; an unknown batch is one.  Raises ShapeError while other extents are unknown."""
        dims = [n if n is not None else 1 if i == 0 else f"{name}_dim_{i}" for i, n in enumerate(shape)]
        if not all(isinstance(d, str) or (isinstance(d, int) and d > 0) for d in dims):
            raise FormatError(f"{self.file.name}: input '{name}' has the impossible shape {list(shape)}")
        known = {t.numpy.name: t for t in DType if t is not DType.Q8}
        value = self.builder.input(name, TensorType(known.get(dtype, DType.F32), tuple(dims)))
        if not value.type.bound:
            why = f"input '{name}' has dimensions without a value: {value.type}"
            raise ShapeError(f"{self.file.name}: {why} ({remedy(name, value.type)})")
        return value


def _part(description: Mapping[str, Any], key: str, *kinds: type) -> Any:
    """The entry of a description under ``key``.  Raises RefusedError if it is of none of these types."""
    part = description.get(key)
    if not isinstance(part, kinds):
        raise RefusedError(f"the model's description has no {key} where it should; the file is damaged")
    return part


class _Entry:
    """A layer of a model's description."""

    def __init__(self, entry: Mapping[str, Any], weights: KerasWeights) -> None:
        if not isinstance(entry, dict) or "class_name" not in entry or "config" not in entry:
            raise RefusedError("the model's description has a layer without a class or a config; the file is damaged")
        function = str(entry.get("module", "")).startswith(("keras.src.ops", "keras.ops"))
        self.entry, self.kind = entry, f"{'ops.' if function else ''}{entry['class_name']}"
        self.config: Mapping[str, Any] = entry["config"] if isinstance(entry["config"], dict) else {"layers": []}
        self.name = str(entry.get("name") or self.config.get("name") or self.kind.lower())
        self.weights = weights

    @property
    def calls(self) -> list[list[tuple[str, int, int]]]:
        """For each time that the layer is applied, where its inputs come from: (layer, call, output)."""
        nodes = self.entry.get("inbound_nodes") or []
        return [list(_histories(node)) for node in nodes]

    def is_function(self, call: int) -> bool:
        """Whether the operands of a call stand side by side and not in a list, as those of merging layers do; .h5
        files do not distinguish functions from layers."""
        nodes = self.entry.get("inbound_nodes") or []
        args = nodes[call].get("args", []) if call < len(nodes) and isinstance(nodes[call], dict) else []
        return len(args) == 2 and not any(isinstance(a, list) for a in args)

    def call_options(self, call: int) -> dict[str, Any]:
        """The options of a call: its flags, and all arguments of a function."""
        nodes = self.entry.get("inbound_nodes") or []
        node = nodes[call] if 0 <= call < len(nodes) else {}
        if self.kind.startswith("ops.") and isinstance(node, dict):
            return {"args": node.get("args", []), "kwargs": node.get("kwargs", {})}
        return dict(_flags(node))


_CALL_OPTIONS = frozenset({"use_causal_mask", "return_attention_scores"})
"""Options of a call beyond its layer's settings."""


def _flags(node: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        yield from ((key, value) for key, value in node.items() if key in _CALL_OPTIONS)
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _flags(value)


def _histories(node: Any) -> Iterator[tuple[str, int, int]]:
    """The tensors that a call reads, as either Keras writes them."""
    if isinstance(node, dict):
        history = node.get("config", {}).get("keras_history") if node.get("class_name") == "__keras_tensor__" else None
        if history is not None:
            yield str(history[0]), int(history[1]), int(history[2])
        else:
            for value in node.values():
                yield from _histories(value)
    elif isinstance(node, list):
        if len(node) >= 3 and isinstance(node[0], str) and isinstance(node[1], int) and isinstance(node[2], int):
            yield node[0], node[1], node[2]
            yield from (h for value in node[3:] for h in _histories(value))
        else:
            for value in node:
                yield from _histories(value)


def _end_tensors(given: Any) -> list[tuple[str, int, int]]:
    """Where a model begins or ends; of a dictionary in the order of its keys."""
    if isinstance(given, dict):
        return [history for key in sorted(given) for history in _end_tensors(given[key])]
    return list(_histories(given))


class _ModelCaller:
    """Applying the layers of one model."""

    def __init__(self, importer: KerasImporter, layers: Sequence[_Entry], prefix: str, depth: int) -> None:
        self.importer = importer
        self.builder = importer.builder
        self.layers = layers
        self.prefix, self.depth = prefix, depth
        self.made: dict[tuple[str, int], list[Value]] = {}

    def sequence(self, config: Mapping[str, Any], inputs: Sequence[Value] | None) -> list[Value]:
        layers = list(self.layers)
        first = layers[0]
        given = list(inputs) if inputs is not None else [self.first_input(config, first)]
        if first.kind == "InputLayer":
            layers = layers[1:]
        for layer in layers:
            given = self.apply(layer, given, 0)
        return given

    def first_input(self, config: Mapping[str, Any], first: _Entry) -> Value:
        shape = None
        for holder in (first.config, config, _inner(first.config)):
            shape = shape or next((holder[k] for k in _SHAPES if holder.get(k)), None)
        if shape is None:
            raise FormatError(
                f"{self.importer.file.name}: the model does not say what shape its input has; build it with an "
                "Input layer and save it again"
            )
        name = first.name if first.kind == "InputLayer" else f"{first.name}_input"
        return self.importer.input(name, shape, _dtype(first.config))

    def graph(self, config: Mapping[str, Any], inputs: Sequence[Value] | None) -> list[Value]:
        starts = [name for name, _, _ in _end_tensors(_part(config, "input_layers", list, dict))]
        if inputs is not None:
            self.made.update({(name, 0): [value] for name, value in zip(starts, inputs, strict=True)})
        else:
            by_name = {layer.name: layer for layer in self.layers}
            for name in starts:
                layer = by_name.get(name)
                if layer is None:
                    raise FormatError(f"{self.importer.file.name}: the input '{name}' is no layer; the file is damaged")
                shape = next((layer.config[k] for k in _SHAPES if layer.config.get(k)), None)
                if shape is None:
                    raise FormatError(f"{self.importer.file.name}: the input '{name}' has no shape")
                self.made[name, 0] = [self.importer.input(name, shape, _dtype(layer.config))]
        end_tensors = _end_tensors(_part(config, "output_layers", list, dict))
        calls = self.recounted(end_tensors)
        waiting = [
            (layer, i, call)
            for layer in self.layers
            for i, call in enumerate(calls[layer.name])
            if (layer.name, i) not in self.made
        ]
        while waiting:
            ready = [w for w in waiting if all((name, n) in self.made for name, n, _ in w[2])]
            if not ready:
                stuck = ", ".join(sorted({layer.name for layer, _, _ in waiting})[:5])
                raise FormatError(f"{self.importer.file.name}: the inputs of {stuck} do not exist; the file is damaged")
            for layer, i, call in ready:
                values = [self.output(*history) for history in call]
                self.made[layer.name, i] = self.apply(layer, values, i)
            done = {(layer.name, i) for layer, i, _ in ready}
            waiting = [w for w in waiting if (w[0].name, w[1]) not in done]
        return [self.output(name, self.counted(name, call), i) for name, call, i in end_tensors]

    def counted(self, name: str, call: int) -> int:
        """The index of a call of a layer, where its number comes from what Keras 3 lists as a model's outputs."""
        layer = next((layer for layer in self.layers if layer.name == name), None)
        offset = self.importer.version >= 3 and layer is not None and layer.kind in ("Functional", "Model")
        return max(0, call - offset)

    def recounted(self, end_tensors: list[tuple[str, int, int]]) -> dict[str, list[list[tuple[str, int, int]]]]:
        """Tensors that each call of a layer reads.  Keras before 3 counts the calls of nested models from one, as these
        have been applied to inputs of their own before; ``ends`` are then counted anew in place."""
        calls = {layer.name: layer.calls for layer in self.layers}
        if self.importer.version >= 3:
            return calls
        read = {(name, i) for nodes in calls.values() for node in nodes for name, i, _ in node}
        read |= {(name, i) for name, i, _ in end_tensors}
        late = {layer.name for layer in self.layers if layer.kind in MODELS and (layer.name, 0) not in read}

        def shifted(histories: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
            return [(name, i - (name in late), k) for name, i, k in histories]

        end_tensors[:] = shifted(end_tensors)
        return {name: [shifted(node) for node in nodes] for name, nodes in calls.items()}

    def output(self, name: str, call: int, output: int) -> Value:
        values = self.made.get((name, call), [])
        if not 0 <= output < len(values):
            raise FormatError(f"{self.importer.file.name}: '{name}' has no output {output}; the file is damaged")
        return values[output]

    def apply(self, layer: _Entry, values: list[Value], call: int) -> list[Value]:
        """A layer's outputs; errors are recorded by the builder."""
        name = f"{self.prefix}{layer.name}{f':{call}' if call else ''}"
        if layer.kind in MODELS:
            inner = layer.weights.inside(layer.name)
            return self.importer.model(layer.entry, inner, values, f"{name}/", self.depth + 1)
        outputs: list[Value] = []
        names = [name]
        with self.builder.layer(name, layer.kind, name):
            self.importer.read(values)
            outputs = self.results(layer, values, call)
            names += [f"{name}:{i}" for i in range(1, len(outputs))]
            for key, value in zip(names, outputs, strict=False):
                self.builder[key] = value
        return [self.builder.scope[key] for key in names if key in self.builder.scope]

    def results(self, layer: _Entry, values: list[Value], call: int) -> list[Value]:
        functions = self.importer.functions
        if f"ops.{layer.kind}" in functions and (layer.kind not in functions or layer.is_function(call)):
            layer.kind = f"ops.{layer.kind}"
        import_node = functions.get(layer.kind)
        if import_node is None:
            raise unknown(layer.kind, self.importer.functions, "layer", _REMEDIES.get(layer.kind, ""))
        if not all(is_known(v) for v in values):
            return []  # the layer that did not make it has been reported
        config = {**layer.config, **layer.call_options(call)}
        result = import_node(KerasLayer(self.importer, layer.kind, config, layer.weights.of(layer.name), values))
        return [result] if isinstance(result, Value) else list(result)


_SHAPES = ("batch_input_shape", "batch_shape", "build_input_shape")

_REMEDIES = {
    "Lambda": "it holds Python code, which is never run; replace it by layers",
    "Masking": "pad and mask outside of the net",
}


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
    layer = config.get("layer")
    return layer.get("config", {}) if isinstance(layer, dict) else {}


def _dtype(config: Mapping[str, Any]) -> str:
    dtype = config.get("dtype", "float32")
    return dtype if isinstance(dtype, str) else "float32"


class KerasLayer(NodeContext):
    """A layer as the functions of ``keras.layers`` see it: ``config`` by attribute, weights by role."""

    builder: ChannelsLast
    inputs: list[Value]

    def __init__(
        self,
        importer: KerasImporter,
        kind: str,
        config: Mapping[str, Any],
        weights: KerasWeights,
        inputs: Sequence[Value],
    ) -> None:
        super().__init__(importer.builder, list(inputs), config)
        self.importer = importer
        self.kind = kind
        self.config = config
        self.weights = weights

    def get(self, name: str, default: Any = None) -> Any:
        """A setting as it is; the default for None too."""
        value = self.config.get(name)
        return default if value is None else value

    @property
    def rank(self) -> int:
        return self.builder.type(self.x).rank

    def arrays(self, *roles: str) -> list[Array]:
        """The weights of these roles, in the order in which Keras makes them.  Raises RefusedError."""
        return self.weights.arrays(roles)

    def per_axis(self, name: AttributeName, count: int, default: int = 1) -> list[int]:
        values = super().per_axis(name, count, default)
        if len(values) != count:
            raise RefusedError(f"{name}={self.attribute(name)} does not fit {count} axes")
        return values

    @property
    def first(self) -> bool:
        """Whether channels come first."""
        return bool(self.get("data_format", "channels_last") == "channels_first")

    def state(self, name: str, *dims: int) -> Value:
        """A new input of the graph: what the layer kept of the run before."""
        stem = f"{self.builder.origin.layer}_{name}"
        names = chain([stem], (f"{stem}_{i}" for i in count(1)))
        return self.builder.input(next(n for n in names if n not in self.builder.scope), tensor(F32, *dims))

    def next_state(self, before: Value, after: Value) -> None:
        """Let a new output of the graph be the state in the next run."""
        name = f"{before.name}_out"
        self.builder[name] = self.builder.add("Identity", after)
        self.importer.states.append(name)
        self.builder.states[before.name] = name

    def inner(self, entry: Mapping[str, Any], weights: KerasWeights, inputs: Sequence[Value]) -> KerasLayer:
        """A layer that this one wraps."""
        return KerasLayer(self.importer, str(entry["class_name"]), entry["config"], weights, inputs)


LayerFunction = Callable[[KerasLayer], Outputs]
