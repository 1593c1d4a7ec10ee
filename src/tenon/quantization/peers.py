"""Models in other runtimes, where these are installed, to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.ir.graph import Array
from tenon.ir.types import DType, TensorType
from tenon.quantization.samples import Sample

PEERS = ("litert", "onnxruntime")
"""Runtimes by the prefix of a network's name."""

Scale = tuple[float, int]


def peer(runtime: str, file: str) -> OnnxRuntime | LiteRt:
    """The model in ``file``, loaded by one of ``PEERS``.  Raises InputError if it is not installed, or refuses it."""
    if not Path(file).is_file():
        raise InputError(f"{runtime}:{file}: there is no such file")
    made = OnnxRuntime if runtime == "onnxruntime" else LiteRt
    try:
        return made(file)
    except (RuntimeError, ValueError, OSError) as error:
        raise InputError(f"{runtime}:{file}: {runtime} cannot run it: {str(error).splitlines()[0]}") from None
    except Exception as error:
        if type(error).__module__.startswith("onnxruntime"):
            raise InputError(f"{file}: {runtime} cannot run it: {str(error).splitlines()[0]}") from None
        raise


def _module(*names: str) -> Any:
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            continue
    raise InputError(f"{names[0].partition('.')[0]} is not installed in this Python: pip install it to compare with it")


class OnnxRuntime:
    """An ONNX file in ONNX Runtime, on the processor."""

    def __init__(self, file: str) -> None:
        self._runtime, self._file = _module("onnxruntime"), file
        self._session = self._open(file)
        self.inputs = [(i.name, _onnx_type(file, i), None) for i in self._session.get_inputs()]
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

    def run(self, sample: Sample) -> dict[str, Array]:
        names = [*self.outputs, *self._asked]
        return dict(zip(names, self._session.run(names, dict(sample)), strict=True))

    def close(self) -> None:
        self._session = None


def _onnx_type(file: str, given: Any) -> TensorType:
    names = {"float": "float32", "double": "float64"}
    kind = given.type.removeprefix("tensor(").removesuffix(")")
    if not all(isinstance(n, int) for n in given.shape):
        raise InputError(f"{file}: input '{given.name}' has the shape {given.shape}: bind it in the file first")
    return TensorType(DType.of(np.dtype(names.get(kind, kind))), tuple(given.shape))


class LiteRt:
    """A TFLite file in LiteRT, by its reference kernels, which keep all tensors."""

    def __init__(self, file: str) -> None:
        module = _module("ai_edge_litert.interpreter", "tflite_runtime.interpreter")
        kinds = getattr(module, "OpResolverType", None)
        chosen = {"experimental_op_resolver_type": kinds.BUILTIN_REF} if kinds is not None else {}
        self._interpreter = module.Interpreter(file, experimental_preserve_all_tensors=True, **chosen)
        self._interpreter.allocate_tensors()
        ins, outs = self._interpreter.get_input_details(), self._interpreter.get_output_details()
        self._ins = {d["name"]: d for d in ins}
        self.inputs = [
            (d["name"], TensorType(DType.of(np.dtype(d["dtype"])), tuple(map(int, d["shape"]))), _quant(d)) for d in ins
        ]
        self.outputs = [d["name"] for d in outs]
        self._details = {d["name"]: d for d in outs}
        self._constant = set[str]()

    def tensors(self) -> dict[str, int]:
        found = {d["name"]: int(np.prod(d["shape"])) for d in self._interpreter.get_tensor_details() if d["name"]}
        return {name: size for name, size in found.items() if name not in self._ins}

    def ask(self, names: Sequence[str]) -> None:
        wanted = set(names)
        self._details |= {d["name"]: d for d in self._interpreter.get_tensor_details() if d["name"] in wanted}

    def run(self, sample: Sample) -> dict[str, Array]:
        for name, array in sample.items():
            self._interpreter.set_tensor(self._ins[name]["index"], array)
        self._interpreter.invoke()
        return {n: _real(self._interpreter.get_tensor(d["index"]), _quant(d)) for n, d in self._details.items()}

    def close(self) -> None:
        self._interpreter = None


def _quant(details: Any) -> Scale | None:
    scale, zero = details["quantization"]
    return (float(scale), int(zero)) if scale and np.dtype(details["dtype"]).kind in "iu" else None


def _real(array: Array, scale: Scale | None) -> Array:
    return array if scale is None else (array.astype(np.float32) - scale[1]) * np.float32(scale[0])
