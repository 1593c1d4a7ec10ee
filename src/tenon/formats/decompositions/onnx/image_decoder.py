"""ImageDecoder of uncompressed images: the position of each pixel follows from the size of the file.

A BMP of 24 bits has 54 bytes of header, then rows from the bottom up, blue first, each padded to 4 bytes.  A binary
PNM (PPM, PGM) has a header of text, then rows from the top down.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tenon.formats.decompositions.onnx.node import OnnxNode
from tenon.formats.decompositions.strings.text import where
from tenon.formats.graph_builder.errors import RefusedError
from tenon.network.graph.graph import Value
from tenon.network.graph.types import DType

_CHANNELS = {"RGB": 3, "BGR": 3, "Grayscale": 1}
_REMEDY = "decode the image in the application and cut the model after it with --input"


@dataclass(frozen=True)
class _File:
    """A storage layout of an image.  ``header`` is the beginning of the file; None is any byte."""

    name: str
    header: tuple[int | None, ...]
    row: int  # bytes
    bottom_up: bool
    channels: str  # in their order, as pixel_format calls it

    def size(self, height: int) -> int:
        return len(self.header) + height * self.row


def _bmp(height: int, width: int) -> _File:
    known = struct.pack("<IIiiHHI", 54, 40, width, height, 1, 24, 0)  # where pixels begin ... how they are compressed
    header = (*b"BM", *(None,) * 8, *known, *(None,) * 20)
    return _File("BMP of 24 bits", header, -(-3 * width // 4) * 4, True, "BGR")


def _pnm(height: int, width: int, kind: str, channels: str) -> _File:
    header = f"{kind}\n{width} {height}\n255\n".encode()
    return _File(f"binary PNM ({kind})", tuple(header), width * _CHANNELS[channels], False, channels)


def _files(height: int, width: int, count: int) -> Sequence[_File]:
    """The layouts of an image with ``count`` channels."""
    if count == 1:
        return [_pnm(height, width, "P5", "Grayscale")]
    return [_bmp(height, width), _pnm(height, width, "P6", "RGB")]


def image_decoder(node: OnnxNode) -> Sequence[Value]:
    """The pixels u8 [H, W, C] of the file u8 [N]; all zeros if its header does not match its size.

    Raises RefusedError for all but uncompressed images of a declared size.
    """
    dims, format = node.dims_of(0), node.attributes.get("pixel_format", "RGB")
    if len(dims) != 1 or node.input(0).type.dtype is not DType.U8:
        raise RefusedError("it reads the bytes of a file, u8[N], and nothing else", _REMEDY)
    if format not in _CHANNELS:
        raise RefusedError(f"pixel_format '{format}' is none of {', '.join(_CHANNELS)}", _REMEDY)
    shape = node.builder.declared_shape()
    if shape is None or len(shape) != 3 or shape[2] != _CHANNELS[format] or min(shape) < 1 or max(shape) >= 2**15:
        what = f"the model must declare the shape of its output, [height, width, {_CHANNELS[format]}]"
        raise RefusedError(what, f"declare it, or {_REMEDY}")
    height, width, count = shape
    files = _files(height, width, count)
    file = next((f for f in files if f.size(height) == dims[0]), None)
    if file is None:
        able = ", ".join(f"{f.name}: {f.size(height)}" for f in files)
        what = f"{dims[0]} bytes are no uncompressed image of {width} x {height} pixels that Tenon decodes ({able})"
        raise RefusedError(what, _REMEDY)
    pixels = _pixels(node, file, shape, reverse=file.channels != format)
    return [where(node, _begins(node, file), pixels, node.constant(np.array(0, np.uint8), "nothing"))]


def _begins(node: OnnxNode, file: _File) -> Value:
    """Whether the file's header matches."""
    known = [(i, byte) for i, byte in enumerate(file.header) if byte is not None]
    at, bytes = (np.array(column) for column in zip(*known, strict=True))
    header = node.add("Gather", node.input(0), node.constant(at, "header"), axis=0)
    same = node.add("Equal", header, node.constant(bytes.astype(np.uint8), "expected"))
    every = node.add("ReduceMin", node.add("Cast", same, to="i32"), node.int_constant("all", [0]), keepdims=0)
    return node.add("Cast", every, to="bool")


def _pixels(node: OnnxNode, file: _File, shape: tuple[int, ...], reverse: bool) -> Value:
    """Rows from the top down, with the channels in the reverse of the file's order or as they are."""
    height, width, count = shape
    x = _cut(node, node.input(0), (0, len(file.header), file.size(height), 1))
    x = node.add("Reshape", x, node.int_constant("rows", [height, file.row]))
    if file.row != width * count:
        x = _cut(node, x, (1, 0, width * count, 1))
    x = node.add("Reshape", x, node.int_constant("pixels", shape))
    flipped_axes = [axis for axis, turn in ((0, file.bottom_up), (2, reverse)) if turn]
    return _cut(node, x, *((axis, -1, -(2**31), -1) for axis in flipped_axes)) if flipped_axes else x


def _cut(node: OnnxNode, x: Value, *ranges: tuple[int, int, int, int]) -> Value:
    """Slices: axis, start, end, step."""
    axes, starts, ends, steps = zip(*ranges, strict=True)
    named = (("starts", starts), ("ends", ends), ("axes", axes), ("steps", steps))
    return node.add("Slice", x, *(node.int_constant(stem, values) for stem, values in named))
