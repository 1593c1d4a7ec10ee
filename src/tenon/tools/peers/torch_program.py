"""Exported programs of PyTorch in PyTorch."""

from __future__ import annotations

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.tools.peers.base import Feeds, Interface, OutputsOnly, first_module, same_interface


class Torch(OutputsOnly):
    """A .pt2 file."""

    def __init__(self, file: str, weights: str | None = None, like: Interface | None = None) -> None:
        self._torch = first_module("torch")
        known = same_interface(like, "torch", file)
        self.inputs, self.outputs = list(known.inputs), list(known.outputs)
        self._module = self._torch.export.load(file).module()

    def run(self, sample: Feeds) -> dict[str, Array]:
        with self._torch.no_grad():
            answer = self._module(*(self._torch.from_numpy(sample[name].copy()) for name, *_ in self.inputs))
        rows = list(answer) if isinstance(answer, list | tuple) else [answer]
        if len(rows) != len(self.outputs):
            raise InputError(f"torch: it has {len(rows)} outputs, the model {len(self.outputs)}")
        return {name: np.asarray(row.detach().cpu()) for name, row in zip(self.outputs, rows, strict=True)}
