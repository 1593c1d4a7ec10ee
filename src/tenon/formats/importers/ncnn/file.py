"""ncnn's two files: .param, a list of layers as text or binary, and .bin, their weights one after the other.

Formats: "param and model file spec" of the ncnn documentation; src/paramdict.cpp, src/net.cpp and src/modelbin.cpp.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tenon.errors import FormatError
from tenon.formats.importers.unsupported_formats import OLD_PARAM as OLD
from tenon.network.graph.graph import Array

MAGIC = 7767517
MAX_LAYERS = 1 << 20

_TYPES = """
AbsVal ArgMax BatchNorm Bias BNLL Concat Convolution Crop Deconvolution Dropout Eltwise ELU Embed Exp Flatten
InnerProduct Input Log LRN MemoryData MVN Pooling Power PReLU Proposal Reduction ReLU Reshape ROIPooling Scale
Sigmoid Slice Softmax Split SPP TanH Threshold Tile RNN LSTM BinaryOp UnaryOp ConvolutionDepthWise Padding
Squeeze ExpandDims Normalize Permute PriorBox DetectionOutput Interp DeconvolutionDepthWise ShuffleChannel
InstanceNorm Clip Reorg YoloDetectionOutput Quantize Dequantize Yolov3DetectionOutput PSROIPooling ROIAlign
Packing Requantize Cast HardSigmoid SELU HardSwish Noop PixelShuffle DeepCopy Mish StatisticsPooling Swish
Gemm GroupNorm LayerNorm Softplus GRU MultiHeadAttention GELU Convolution1D Pooling1D ConvolutionDepthWise1D
Convolution3D ConvolutionDepthWise3D Pooling3D MatMul Deconvolution1D DeconvolutionDepthWise1D Deconvolution3D
DeconvolutionDepthWise3D Einsum DeformableConv2D GLU Fold Unfold GridSample CumulativeSum
CopyTo Erf Diag CELU Shrink RMSNorm Spectrogram InverseSpectrogram Flip SDPA RotaryEmbed
"""
TYPES = _TYPES.split()
"""Layer types by their numbers in binary files."""


@dataclass(frozen=True)
class LayerRecord:
    """A layer with its options by number: in a text file int, float or a list; in a binary one the four bytes."""

    type: str
    name: str
    bottoms: tuple[str, ...]
    tops: tuple[str, ...]
    options: dict[int, int | float | bytes | list[int | float | bytes]] = field(default_factory=dict)

    def integer(self, id: int, default: int = 0) -> int:
        value = self.options.get(id, default)
        return _integer(value) if not isinstance(value, list) else default

    def number(self, id: int, default: float = 0.0) -> float:
        value = self.options.get(id, default)
        return _number(value) if not isinstance(value, list) else default

    def integers(self, id: int) -> list[int]:
        value = self.options.get(id, [])
        return [_integer(v) for v in value] if isinstance(value, list) else []

    def numbers(self, id: int) -> list[float]:
        """A list of floats, some of which tools write as the integers that have their bits."""
        value = self.options.get(id, [])
        return [_number(_bits(v)) for v in value] if isinstance(value, list) else []


def _integer(value: int | float | bytes) -> int:
    return int(struct.unpack("<i", value)[0]) if isinstance(value, bytes) else int(value)


def _bits(value: int | float | bytes) -> int | float | bytes:
    """The bits of an integer so large that it can only be those of a float: 1077936128 for 3.0."""
    return struct.pack("<i", value) if isinstance(value, int) and 1 << 23 <= abs(value) < 1 << 31 else value


def _number(value: int | float | bytes) -> float:
    return float(struct.unpack("<f", value)[0]) if isinstance(value, bytes) else float(value)


def is_param(data: bytes) -> bool:
    return data[:64].split(b"\n", 1)[0].strip() == str(MAGIC).encode() or data[:4] == struct.pack("<i", MAGIC)


def layers(data: bytes) -> list[LayerRecord]:
    """Raises FormatError."""
    if data[:4] == struct.pack("<i", MAGIC):
        return _binary(data)
    try:
        return _text(data.decode("ascii"))
    except UnicodeDecodeError:
        raise FormatError("not text, and not a binary .param either; the file is damaged") from None


# ------------------------------------------------------------------------------------------------ text
def _text(text: str) -> list[LayerRecord]:
    lines = [line.split() for line in text.splitlines()[1:] if line.strip()]
    if not lines or len(lines[0]) != 2:
        raise FormatError("the second line does not count layers and blobs; the file is damaged")
    records = [_line(tokens) for tokens in lines[1:]]
    if str(len(records)) != lines[0][0]:
        raise FormatError(f"it has {len(records)} layers and announces {lines[0][0]}; the file is truncated or damaged")
    return records


def _line(tokens: Sequence[str]) -> LayerRecord:
    try:
        type = tokens[0]
        name = tokens[1]
        bottoms = int(tokens[2])
        tops = int(tokens[3])
        blobs, options = tokens[4 : 4 + bottoms + tops], tokens[4 + bottoms + tops :]
        if min(bottoms, tops) < 0 or len(blobs) != bottoms + tops:
            raise ValueError
        return LayerRecord(type, name, tuple(blobs[:bottoms]), tuple(blobs[bottoms:]), dict(map(_option, options)))
    except (ValueError, IndexError):
        damage = "the file is damaged" if "=" in " ".join(tokens) else f"or its options lack numbers ({OLD})"
        raise FormatError(f"'{' '.join(tokens)[:80]}' is not a layer; {damage}") from None


def _option(token: str) -> tuple[int, int | float | bytes | list[int | float | bytes]]:
    """``3=1``, ``1=0.5``, ``-23303=2,1,2`` or, of late, ``3=1,2`` for a list.  Raises ValueError."""
    key, equals, value = token.partition("=")
    if not equals:
        raise ValueError
    id, parts = int(key), value.split(",")
    if id <= -23300:
        return -id - 23300, [_plain(part) for part in parts[1 : 1 + int(parts[0])]]
    return id, [_plain(part) for part in parts if part] if len(parts) > 1 else _plain(value)


def _plain(text: str) -> int | float | bytes:
    if not any(c in text for c in ".eE"):
        return int(text)
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


# ---------------------------------------------------------------------------------------------- binary
def _binary(data: bytes) -> list[LayerRecord]:
    tokens = [data[i : i + 4] for i in range(0, len(data) - len(data) % 4, 4)]
    at = 1

    def take(count: int = 1) -> list[bytes]:
        nonlocal at
        if not 0 <= count <= len(tokens) - at:
            raise FormatError("the layers end too early; the file is truncated or damaged")
        at += count
        return tokens[at - count : at]

    def integer() -> int:
        return _integer(take()[0])

    count, _ = integer(), integer()
    if not 0 < count <= min(MAX_LAYERS, len(tokens)):
        raise FormatError(f"{count} layers are impossible; the file is damaged")
    records = []
    for i in range(count):
        number, bottoms, tops = integer(), integer(), integer()
        blobs = [f"blob_{_integer(token)}" for token in take(bottoms) + take(tops)]
        options: dict[int, int | float | bytes | list[int | float | bytes]] = {}
        while (id := integer()) != -233:
            options[-id - 23300 if id <= -23300 else id] = [*take(integer())] if id <= -23300 else take()[0]
        type = TYPES[number] if 0 <= number < len(TYPES) else f"layer type {number}"
        records.append(LayerRecord(type, f"{type}_{i}", tuple(blobs[:bottoms]), tuple(blobs[bottoms:]), options))
    return records


# --------------------------------------------------------------------------------------------- weights
_HALF, _INT8, _RAW = 0x01306B47, 0x000D4B38, 0x0002C056


class NcnnWeights:
    """The .bin file, taken one array after the other; without a file everything is zero."""

    def __init__(self, data: bytes | None) -> None:
        self.given = data is not None
        self._data = memoryview(data or b"")
        self._at = 0

    def _take(self, size: int) -> memoryview:
        if size > len(self._data) - self._at:
            self.given = False  # reported once, for the first layer that lacks them
            raise FormatError("the weights end too early; the .bin is truncated, or belongs to another .param")
        self._at += size
        return self._data[self._at - size : self._at]

    def floats(self, count: int) -> Array:
        """Plain f32, stored without a flag."""
        if not 0 <= count < 2**31:
            raise FormatError(f"{count} weights are impossible; the file is damaged")
        if not self.given:
            return np.broadcast_to(np.float32(0), (count,))
        return np.frombuffer(self._take(4 * count), "<f4").astype(np.float32, copy=False)

    def array(self, count: int) -> Array:
        """f32, or int8 whose scales come later, as its flag says; fp16 and lookup tables are decoded."""
        if not self.given or not 0 <= count < 2**31:
            return self.floats(count)
        mark = int.from_bytes(self._take(4), "little")
        if mark == _HALF:
            return np.frombuffer(self._take(-(-2 * count // 4) * 4), "<f2")[:count].astype(np.float32)
        if mark == _INT8:
            return np.frombuffer(self._take(-(-count // 4) * 4), np.int8)[:count]
        if mark in (0, _RAW):
            return self.floats(count)
        table = self.floats(256)
        return np.asarray(table[np.frombuffer(self._take(-(-count // 4) * 4), np.uint8)[:count]])

    def finish(self) -> None:
        """Raise FormatError if more than an alignment's worth is left."""
        if self.given and len(self._data) - self._at >= 16:
            raise FormatError(
                f"{len(self._data) - self._at} bytes of the .bin are not used; it belongs to another .param"
            )
