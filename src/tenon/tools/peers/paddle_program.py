"""Paddle's inference models in Paddle."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.tools.peers.base import Feeds, Interface, OutputsOnly, first_module, partner, same_interface


class Paddle(OutputsOnly):
    """A .pdmodel or .json and its .pdiparams, or the folder of a ``__model__`` with a file for each parameter."""

    def __init__(self, file: str, weights: str | None = None, like: Interface | None = None) -> None:
        inference = first_module("paddle.inference")
        known = same_interface(like, "paddle", file)
        self.inputs, self.outputs = list(known.inputs), list(known.outputs)
        self._predictor = inference.create_predictor(inference.Config(*_files(file, weights)))

    def run(self, sample: Feeds) -> dict[str, Array]:
        for name, (mine, *_) in zip(self._predictor.get_input_names(), self.inputs, strict=True):
            self._predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(sample[mine]))
        self._predictor.run()
        names = self._predictor.get_output_names()
        if len(names) != len(self.outputs):
            raise InputError(f"paddle: it has {len(names)} outputs, the model {len(self.outputs)}")
        rows = (self._predictor.get_output_handle(name).copy_to_cpu() for name in names)
        return dict(zip(self.outputs, rows, strict=True))


def _files(file: str, weights: str | None) -> tuple[str, ...]:
    """The program and its parameters, or the folder of both."""
    path = Path(file)
    folder = path if path.is_dir() else path.parent
    if weights is None and (path.is_dir() or path.name == "__model__") and (folder / "__model__").is_file():
        return (str(folder),)
    if path.is_dir():
        programs = [*path.glob("*.pdmodel"), *path.glob("*.json")]
        if len(programs) != 1:
            raise InputError(f"paddle:{file}: it has {len(programs)} programs: name one")
        file = str(programs[0])
    program = file if path.suffix != ".pdiparams" else partner(file, ".pdmodel")
    return program, weights or partner(file, ".pdiparams")
