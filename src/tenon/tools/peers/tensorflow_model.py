"""TensorFlow and Keras models in TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.tools.peers.base import Feeds, Interface, OutputsOnly, first_module, same_interface


class TensorFlow(OutputsOnly):
    """A Keras file, a SavedModel's folder, or a frozen graph."""

    def __init__(self, file: str, weights: str | None = None, like: Interface | None = None) -> None:
        tf, path = first_module("tensorflow"), Path(file)
        known = same_interface(like, "tensorflow", file)
        self.inputs, self.outputs = list(known.inputs), list(known.outputs)
        if path.suffix in (".keras", ".h5", ".hdf5"):
            model = tf.keras.models.load_model(file, compile=False, custom_objects=_older_layers(tf))
            self._call: Any = lambda arrays: model(arrays if len(arrays) > 1 else arrays[0], training=False)
        elif path.is_dir() or path.name == "saved_model.pb":
            self._call = _saved(tf, str(path if path.is_dir() else path.parent))
        else:
            self._call = _frozen(tf, path, [name for name, *_ in self.inputs], self.outputs)

    def run(self, sample: Feeds) -> dict[str, Array]:
        answer = self._call([sample[name] for name, *_ in self.inputs])
        if isinstance(answer, dict):
            answer = [answer[n] for n in self.outputs] if set(self.outputs) == set(answer) else list(answer.values())
        rows = answer
        rows = list(rows) if isinstance(rows, list | tuple) else [rows]
        if len(rows) != len(self.outputs):
            raise InputError(f"tensorflow: it has {len(rows)} outputs, the model {len(self.outputs)}")
        return {name: np.asarray(row) for name, row in zip(self.outputs, rows, strict=True)}


def _saved(tf: Any, folder: str) -> Any:
    """The serving function of a SavedModel."""
    try:
        function = tf.saved_model.load(folder).signatures["serving_default"]
    except AttributeError:  # state of an optimiser of Keras 2, which Keras 3 does not restore
        return _in_session(tf, folder)
    keys = list(function.structured_input_signature[1])
    return lambda arrays: function(**dict(zip(keys, map(tf.constant, arrays), strict=True)))


def _in_session(tf: Any, folder: str) -> Any:
    """The same by the loader of TensorFlow 1, which restores the graph of the function only."""
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph)
    with graph.as_default():
        loaded = tf.compat.v1.saved_model.load(session, ["serve"], folder)
    signature = loaded.signature_def["serving_default"]
    inputs, outputs = ([side[key].name for key in sorted(side)] for side in (signature.inputs, signature.outputs))
    return lambda arrays: session.run(outputs, dict(zip(inputs, arrays, strict=True)))


def _older_layers(tf: Any) -> dict[str, Any]:
    """Layers that Keras 2 saved with arguments that Keras 3 refuses: "groups" of a depthwise convolution, always 1."""
    layer = tf.keras.layers.DepthwiseConv2D

    def from_config(cls: Any, config: dict[str, Any]) -> Any:
        return cls(**{name: value for name, value in config.items() if name != "groups"})

    return {"DepthwiseConv2D": type("DepthwiseConv2D", (layer,), {"from_config": classmethod(from_config)})}


def _frozen(tf: Any, path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """A GraphDef as a function of its inputs."""
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(path.read_bytes())
    names = [name if ":" in name else f"{name}:0" for name in (*inputs, *outputs)]
    wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(definition, name=""), [])
    elements = [wrapped.graph.get_tensor_by_name(name) for name in names]
    pruned = wrapped.prune(elements[: len(inputs)], elements[len(inputs) :])
    return lambda arrays: pruned(*map(tf.constant, arrays))
