"""TFLite files in LiteRT, or its predecessor tflite_runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType, TensorType
from tenon.tools.peers.base import Feeds, Interface, Scale, first_module, real


class LiteRt:
    """A TFLite file in LiteRT, by its reference kernels, which keep all tensors."""

    def __init__(self, file: str, weights: str | None = None, like: Interface | None = None) -> None:
        module = first_module("ai_edge_litert.interpreter", "tflite_runtime.interpreter")
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
        sizes = {d["name"]: int(np.prod(d["shape"])) for d in self._interpreter.get_tensor_details() if d["name"]}
        return {name: size for name, size in sizes.items() if name not in self._ins}

    def ask(self, names: Sequence[str]) -> None:
        wanted = set(names)
        self._details |= {d["name"]: d for d in self._interpreter.get_tensor_details() if d["name"] in wanted}

    def run(self, sample: Feeds) -> dict[str, Array]:
        for name, array in sample.items():
            self._interpreter.set_tensor(self._ins[name]["index"], array)
        self._interpreter.invoke()
        return {n: real(self._interpreter.get_tensor(d["index"]), _quant(d)) for n, d in self._details.items()}

    def close(self) -> None:
        self._interpreter = None


def _quant(details: Any) -> Scale | None:
    scale, zero = details["quantization"]
    return (float(scale), int(zero)) if scale and np.dtype(details["dtype"]).kind in "iu" else None
