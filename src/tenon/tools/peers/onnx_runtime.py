"""ONNX files in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType, TensorType
from tenon.tools.peers.base import Feeds, Interface, first_module


class OnnxRuntime:
    """An ONNX file in ONNX Runtime, on the processor."""

    def __init__(self, file: str, weights: str | None = None, like: Interface | None = None) -> None:
        self._runtime, self._file = first_module("onnxruntime"), file
        self._session = self._open(file)
        shapes = {} if like is None else {name: type.dims for name, type, _ in like.inputs}
        self.inputs = [(i.name, _onnx_type(file, i, shapes.get(i.name, ())), None) for i in self._session.get_inputs()]
        self.outputs = [o.name for o in self._session.get_outputs()]
        self._asked: list[str] = []
        self._sizes: dict[str, int] | None = None

    def _open(self, model: Any) -> Any:
        options = self._runtime.SessionOptions()
        options.log_severity_level = 3
        return self._runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def tensors(self) -> dict[str, int]:
        """Tensors whose shapes ONNX's inference finds."""
        if self._sizes is None:
            import onnx

            model = onnx.shape_inference.infer_shapes(onnx.load(self._file))
            self._sizes = {}
            for info in model.graph.value_info:
                dims = [d.dim_value for d in info.type.tensor_type.shape.dim]
                if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT and all(dims):
                    self._sizes[info.name] = int(np.prod(dims))
        return self._sizes

    def ask(self, names: Sequence[str]) -> None:
        if not names:
            return
        import onnx

        model = onnx.load(self._file)
        for name in names:
            model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
        self._session, self._asked = self._open(model.SerializeToString()), list(names)

    def run(self, sample: Feeds) -> dict[str, Array]:
        names = [*self.outputs, *self._asked]
        return dict(zip(names, self._session.run(names, dict(sample)), strict=True))

    def close(self) -> None:
        self._session = None


def _onnx_type(file: str, given: Any, known: Sequence[int]) -> TensorType:
    """The type of an input.  An open dimension is that of the ``known`` shape; without one an open batch is 1."""
    names = {"float": "float32", "double": "float64"}
    kind = given.type.removeprefix("tensor(").removesuffix(")")
    shape = list(given.shape)
    if len(known) == len(shape):
        shape = [k if not isinstance(n, int) else n for n, k in zip(shape, known, strict=True)]
    elif shape and not isinstance(shape[0], int):
        shape[0] = 1
    if not all(isinstance(n, int) for n in shape):
        raise InputError(f"{file}: input '{given.name}' has the shape {given.shape}: bind it in the file first")
    return TensorType(DType.of(np.dtype(names.get(kind, kind))), tuple(shape))
