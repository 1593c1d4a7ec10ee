"""TensorFlow and Keras models in TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.ir.graph import Array
from tenon.peers.base import Feeds, Interface, OutputsOnly, first_module, same_interface


class TensorFlow(OutputsOnly):
    """A Keras file, a SavedModel's folder, or a frozen graph."""

    def __init__(self, file: str, weights: str | None = None, like: Interface | None = None) -> None:
        tf, path = first_module("tensorflow"), Path(file)
        known = same_interface(like, "tensorflow", file)
        self.inputs, self.outputs = list(known.inputs), list(known.outputs)
        if path.suffix in (".keras", ".h5", ".hdf5"):
            model = tf.keras.models.load_model(file, compile=False)
            self._call: Any = lambda arrays: model(arrays if len(arrays) > 1 else arrays[0], training=False)
        elif path.is_dir() or path.name == "saved_model.pb":
            function = tf.saved_model.load(str(path if path.is_dir() else path.parent)).signatures["serving_default"]
            keys = list(function.structured_input_signature[1])
            self._call = lambda arrays: function(**dict(zip(keys, map(tf.constant, arrays), strict=True)))
        else:
            self._call = _frozen(tf, path, [name for name, *_ in self.inputs], self.outputs)

    def run(self, sample: Feeds) -> dict[str, Array]:
        answer = self._call([sample[name] for name, *_ in self.inputs])
        rows = list(answer.values()) if isinstance(answer, dict) else answer
        rows = list(rows) if isinstance(rows, list | tuple) else [rows]
        if len(rows) != len(self.outputs):
            raise InputError(f"tensorflow: it has {len(rows)} outputs, the model {len(self.outputs)}")
        return {name: np.asarray(row) for name, row in zip(self.outputs, rows, strict=True)}


def _frozen(tf: Any, path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """A GraphDef as a function of its inputs."""
    definition = tf.compat.v1.GraphDef()
    definition.ParseFromString(path.read_bytes())
    names = [name if ":" in name else f"{name}:0" for name in (*inputs, *outputs)]
    wrapped = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(definition, name=""), [])
    elements = [wrapped.graph.get_tensor_by_name(name) for name in names]
    pruned = wrapped.prune(elements[: len(inputs)], elements[len(inputs) :])
    return lambda arrays: pruned(*map(tf.constant, arrays))
