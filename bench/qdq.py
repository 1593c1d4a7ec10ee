"""QDQ models of the networks in f32, made by onnxruntime's quantiser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

TYPES = {"u8": QuantType.QUInt8, "i8": QuantType.QInt8}


class RandomImages(CalibrationDataReader):  # type: ignore[misc]
    """A few inputs of random numbers: from -2 to 2, or with ``normal`` of that distribution."""

    def __init__(self, path: Path, count: int = 3, *, normal: bool = False) -> None:
        given = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs()
        rng = np.random.default_rng(0)
        shapes = {each.name: [d if isinstance(d, int) else 1 for d in each.shape] for each in given}
        draw = rng.standard_normal if normal else lambda shape: rng.uniform(-2, 2, shape)
        self.left = iter([{n: draw(shape).astype(np.float32) for n, shape in shapes.items()} for _ in range(count)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.left, None)


def quantise(whole: Path, narrow: Path, activations: str = "u8", *, normal: bool = False) -> None:
    """Write ``whole`` as a QDQ model: weights per channel, calibrated on random numbers (see ``RandomImages``)."""
    narrow.parent.mkdir(parents=True, exist_ok=True)
    quantize_static(
        whole, narrow, RandomImages(whole, normal=normal), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=TYPES[activations], weight_type=QuantType.QInt8,
    )  # fmt: skip
