"""Paddle's inference models in Paddle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tenon.errors import InputError
from tenon.ir.graph import Array
from tenon.peers.base import Feeds, Interface, OutputsOnly, first_module, partner, same_interface


class Paddle(OutputsOnly):
    """A .pdmodel or .json and its .pdiparams."""

    def __init__(self, file: str, weights: str | None = None, like: Interface | None = None) -> None:
        inference = first_module("paddle.inference")
        known = same_interface(like, "paddle", file)
        self.inputs, self.outputs = list(known.inputs), list(known.outputs)
        suffix = Path(file).suffix
        program = file if suffix != ".pdiparams" else partner(file, ".pdmodel")
        self._predictor = inference.create_predictor(inference.Config(program, weights or partner(file, ".pdiparams")))

    def run(self, sample: Feeds) -> dict[str, Array]:
        for name, (mine, *_) in zip(self._predictor.get_input_names(), self.inputs, strict=True):
            self._predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(sample[mine]))
        self._predictor.run()
        names = self._predictor.get_output_names()
        if len(names) != len(self.outputs):
            raise InputError(f"paddle: it has {len(names)} outputs, the model {len(self.outputs)}")
        rows = (self._predictor.get_output_handle(name).copy_to_cpu() for name in names)
        return dict(zip(self.outputs, rows, strict=True))
