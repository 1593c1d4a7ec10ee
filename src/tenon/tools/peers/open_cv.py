"""Caffe and Darknet networks in OpenCV's dnn module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tenon.errors import InputError
from tenon.network.graph.graph import Array
from tenon.tools.peers.base import Feeds, Interface, OutputsOnly, first_module, partner, same_interface
from tenon.tools.peers.open_cv_heads import DetectionHeads, without_threshold


class OpenCv(OutputsOnly):
    """A net of a .prototxt and a .caffemodel, or of a .cfg and .weights, in f32."""

    def __init__(self, file: str, weights: str | None = None, like: Interface | None = None) -> None:
        cv2 = first_module("cv2")
        self._error = cv2.error
        known = same_interface(like, "opencv", file)
        self.inputs, self.outputs = list(known.inputs), list(known.outputs)
        try:
            self._net = _read(cv2, file, weights)
        except cv2.error as error:
            raise _refused(file, error) from None
        self._file = file
        ends = list(self._net.getUnconnectedOutLayersNames())
        self._heads: DetectionHeads | None = None
        if self.outputs[len(ends) :] == ["boxes", "scores"]:
            self._heads = DetectionHeads(self._net, ends)
            self._asked = self._heads.layers
            return
        if len(ends) != len(self.outputs):
            raise InputError(f"opencv:{file}: it has {len(ends)} outputs, the model {len(self.outputs)}")
        self._asked = self.outputs if set(ends) == set(self.outputs) else ends

    def run(self, sample: Feeds) -> dict[str, Array]:
        try:
            for name, array in sample.items():
                self._net.setInput(np.ascontiguousarray(array, np.float32), name if len(sample) > 1 else "")
            results = [np.array(each) for each in self._net.forward(self._asked)]
        except self._error as error:
            raise _refused(self._file, error) from None
        rows = results if self._heads is None else self._heads.outputs(results)
        return dict(zip(self.outputs, rows, strict=True))


def _read(cv2: Any, file: str, weights: str | None) -> Any:
    """The network, of a .cfg with heads that show every box."""
    darknet = Path(file).suffix in (".cfg", ".weights")
    reader = getattr(cv2.dnn, "readNetFromDarknet" if darknet else "readNetFromCaffe", None)
    if reader is None:
        raise InputError(f"opencv:{file}: this OpenCV no longer reads the format: pip install 'opencv-python<5'")
    if not darknet:
        return reader(partner(file, ".prototxt"), weights or partner(file, ".caffemodel"))
    cfg = without_threshold(Path(partner(file, ".cfg")).read_bytes())
    content = Path(weights or partner(file, ".weights")).read_bytes()
    return reader(np.frombuffer(cfg, np.uint8), np.frombuffer(content, np.uint8))


def _refused(file: str, error: Exception) -> InputError:
    return InputError(f"opencv:{file}: OpenCV cannot run it: {' '.join(str(error).split())[:200]}")
