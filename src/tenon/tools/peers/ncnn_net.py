"""ncnn networks in ncnn."""

from __future__ import annotations

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.tools.peers.base import Feeds, Interface, OutputsOnly, first_module, partner, same_interface


class Ncnn(OutputsOnly):
    """A net of a .param and a .bin, in f32."""

    def __init__(self, file: str, weights: str | None = None, like: Interface | None = None) -> None:
        self._ncnn, self._file = first_module("ncnn"), file
        known = same_interface(like, "ncnn", file)
        self.inputs, self.outputs = list(known.inputs), list(known.outputs)
        self._net = self._ncnn.Net()
        for option in ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic", "use_bf16_storage"):
            setattr(self._net.opt, option, False)
        if self._net.load_param(partner(file, ".param")) or self._net.load_model(weights or partner(file, ".bin")):
            raise InputError(f"ncnn:{file}: ncnn cannot load it")

    def run(self, sample: Feeds) -> dict[str, Array]:
        extractor = self._net.create_extractor()
        for name, array in sample.items():
            plain = array[0] if array.ndim > 1 and array.shape[0] == 1 else array  # ncnn has no batch
            extractor.input(name, self._ncnn.Mat(np.ascontiguousarray(plain, np.float32)).clone())
        outputs = {}
        for name in self.outputs:
            status, array = extractor.extract(name)
            if status:
                raise InputError(f"ncnn:{self._file}: it has no output '{name}'")
            outputs[name] = np.array(array)
        return outputs
