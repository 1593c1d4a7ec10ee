"""Caffe and Darknet networks in OpenCV's dnn module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.ir.graph import Array
from tenon.peers.base import Feeds, Interface, OutputsOnly, first_module, partner, same_interface


class OpenCv(OutputsOnly):
    """A net of a .prototxt and a .caffemodel, or of a .cfg and .weights, in f32."""

    def __init__(self, file: str, weights: str | None = None, like: Interface | None = None) -> None:
        cv2 = first_module("cv2")
        self._error = cv2.error
        known = same_interface(like, "opencv", file)
        self.inputs, self.outputs = list(known.inputs), list(known.outputs)
        try:
            if Path(file).suffix in (".cfg", ".weights"):
                reader: Any = getattr(cv2.dnn, "readNetFromDarknet", None)
                names = partner(file, ".cfg"), weights or partner(file, ".weights")
            else:
                reader = getattr(cv2.dnn, "readNetFromCaffe", None)
                names = partner(file, ".prototxt"), weights or partner(file, ".caffemodel")
            if reader is None:
                raise InputError(
                    f"opencv:{file}: this OpenCV no longer reads the format: pip install 'opencv-python<5'"
                )
            self._net = reader(*names)
        except cv2.error as error:
            raise _refused(file, error) from None
        self._file = file
        ends = list(self._net.getUnconnectedOutLayersNames())
        if len(ends) != len(self.outputs):
            raise InputError(f"opencv:{file}: it has {len(ends)} outputs, the model {len(self.outputs)}")
        same = set(ends) == set(self.outputs)
        self._ends = {name: name if same else end for name, end in zip(self.outputs, ends, strict=True)}

    def run(self, sample: Feeds) -> dict[str, Array]:
        try:
            for name, array in sample.items():
                self._net.setInput(np.ascontiguousarray(array, np.float32), name if len(sample) > 1 else "")
            found = self._net.forward(list(self._ends.values()))
        except self._error as error:
            raise _refused(self._file, error) from None
        return dict(zip(self._ends, map(np.array, found), strict=True))


def _refused(file: str, error: Exception) -> InputError:
    return InputError(f"opencv:{file}: OpenCV cannot run it: {' '.join(str(error).split())[:200]}")
