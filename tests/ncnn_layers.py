"""Single layers of ncnn, with most combinations of their options."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tenon.network.graph.graph import Array

Shape = tuple[int, ...]
FLAT: Shape = (30,)
ROWS: Shape = (8, 10)
IMAGE: Shape = (6, 8, 10)
TALL: Shape = (8, 4, 6)
VOLUME: Shape = (3, 4, 5, 6)
RNG = np.random.default_rng(5)


class Case(NamedTuple):
    """A layer, its options, its inputs (one shape, or several shapes and arrays), its weights, the number of its
    outputs. Inputs given as shapes are random numbers between ``low`` and ``high``; ``close`` is the tolerance,
    relative to the largest magnitude of ncnn's result.
    """

    kind: str
    options: str
    inputs: Shape | Sequence[Shape | Array]
    weights: bytes = b""
    tops: int = 1
    low: float = -1.0
    high: float = 1.0
    close: float = 1e-5


def plain(count: int, low: float = -1.0, high: float = 1.0) -> bytes:
    return RNG.uniform(low, high, count).astype("<f4").tobytes()


def flagged(count: int) -> bytes:
    return bytes(4) + plain(count)


def fp16_weights(count: int) -> bytes:
    """fp16 weights."""
    return struct.pack("<I", 0x01306B47) + RNG.uniform(-1, 1, count).astype("<f2").tobytes() + bytes(2 * count % 4)


def table_weights(count: int) -> bytes:
    """Weights as indices into a table."""
    return b"\1\0\0\0" + plain(256) + RNG.integers(0, 256, count, np.uint8).tobytes() + bytes(-count % 4)


def int8_weights(count: int) -> bytes:
    """int8 weights, after their flag, padded to 32 bits."""
    return struct.pack("<I", 0x000D4B38) + RNG.integers(-127, 128, count, np.int8).tobytes() + bytes(-count % 4)


def exact(*shape: int) -> Array:
    """Integers over 127, with a maximum of 1 in every row, so that int8 represents them exactly."""
    x = RNG.integers(-127, 128, shape).astype(np.float32)
    x[..., 0] = 127
    return np.asarray(x / np.float32(127), np.float32)


def scales(count: int) -> bytes:
    """The dequantisation scales of int8 weights with a range of 1."""
    return plain(count, 127.0, 200.0)


SCALE = np.array([127], "<f4").tobytes()
"""The scale of the input of a layer of eight bits."""


def priors(count: int) -> Array:
    """Boxes and their variances."""
    low = RNG.uniform(0, 0.6, (count, 2))
    boxes = np.concatenate([low, low + RNG.uniform(0.1, 0.4, (count, 2))], 1)
    return np.stack([boxes.ravel(), np.tile([0.1, 0.1, 0.2, 0.2], count)]).astype(np.float32)


def probabilities(rows: int, classes: int) -> Array:
    """Rows of scores that sum to 1."""
    return RNG.dirichlet(np.ones(classes), rows).astype(np.float32)


def letters(equation: str) -> str:
    return f"-23300={len(equation)}," + ",".join(str(ord(c)) for c in equation)


def gates(inputs: int, units: int, count: int, biases: int, sides: int) -> bytes:
    """Weights of a recurrent layer: of the inputs, the biases, of the states."""
    return b"".join(flagged(sides * n * units) for n in (count * inputs, biases, count * units))


CASES = [
    Case(
        "Convolution",
        "0=5 1=3 11=2 2=1 3=2 13=1 4=1 14=0 15=2 16=1 5=1 6=180 9=2 -23310=1,0.3",
        IMAGE,
        flagged(180) + plain(5),
    ),
    Case("Convolution", "0=5 1=3 3=2 4=-233 5=1 6=270 9=3 -23310=2,-0.2,0.4", IMAGE, flagged(270) + plain(5)),
    Case("Convolution", "0=5 1=3 4=1 18=0.5 5=0 6=270", IMAGE, flagged(270)),
    Case("ConvolutionDepthWise", "0=6 1=3 4=1 5=1 6=54 7=6 9=6 -23310=2,0.2,0.5", IMAGE, flagged(54) + plain(6)),
    Case("ConvolutionDepthWise", "0=4 1=3 4=1 5=1 6=108 7=2", IMAGE, flagged(108) + plain(4)),
    Case("Convolution1D", "0=5 1=3 4=1 5=1 6=120", ROWS, flagged(120) + plain(5)),
    Case("Deconvolution", "0=5 1=4 3=2 4=1 5=1 6=480", IMAGE, flagged(480) + plain(5)),
    Case("Deconvolution", "0=5 1=3 3=2 4=1 18=1 5=1 6=270", IMAGE, flagged(270) + plain(5)),
    Case("DeconvolutionDepthWise", "0=6 1=4 3=2 4=1 5=1 6=96 7=6", IMAGE, flagged(96) + plain(6)),
    Case("InnerProduct", "0=7 1=1 2=3360", IMAGE, flagged(3360) + plain(7)),
    Case("InnerProduct", "0=7 1=1 2=70", ROWS, flagged(70) + plain(7)),
    *(
        Case("Pooling", f"0={t} {rest}", IMAGE)
        for t in (0, 1)
        for rest in ("1=3 2=2 3=1", "1=3 2=2 3=0 5=1", "1=3 2=2 5=2", "4=1", "1=3 2=2 3=1 6=1", "7=1 8=5 18=4")
    ),
    *(Case("Permute", f"0={k}", IMAGE) for k in range(6)),
    Case("Permute", "0=1", ROWS),
    *(Case("Reshape", o, IMAGE) for o in ("0=4 1=-1", "0=-1 1=0 2=3", "0=-1")),
    *(
        Case("Slice", o, IMAGE, tops=int(o[7]))
        for o in ("-23300=2,-233,-233 1=0", "-23300=3,2,-233,-233 1=2", "-23300=2,2,-233 1=-1")
    ),
    *(Case("Interp", o, IMAGE) for o in ("0=1 1=2.0 2=1.5", "0=2 1=2.0 2=2.0", "0=2 3=5 4=7 6=1", "0=3 3=16 4=20")),
    Case("ShuffleChannel", "0=3", IMAGE),
    Case("ShuffleChannel", "0=3 1=1", IMAGE),
    Case("PixelShuffle", "0=2", TALL),
    Case("PixelShuffle", "0=2 1=1", TALL),
    Case("Reorg", "0=2", IMAGE),
    Case("Reorg", "0=2 1=1", IMAGE),
    *(Case("Padding", o, IMAGE) for o in ("0=1 1=2 2=3 3=0 4=0 5=0.7", "0=1 1=2 2=3 3=1 4=1", "0=1 1=2 2=3 3=1 4=2")),
    *(Case("Crop", o, IMAGE) for o in ("0=2 1=1 2=1 3=5 4=4 5=3", "-23309=2,1,2 -23310=2,5,7 -23311=2,0,2")),
    *(Case("Reduction", f"0={k} 1=0 -23303=1,0 4=1 5=1", IMAGE, low=0.1) for k in (0, 1, 2, 3, 4, 5, 7, 8)),
    Case("Reduction", "0=3 1=1 2=0.5 4=0 5=1", IMAGE, low=0.1),
    Case("Reduction", "0=3 1=0 -23303=2,1,2 4=0 5=1", IMAGE, low=0.1),
    *(Case("UnaryOp", f"0={k}", IMAGE, low=0.1) for k in (0, 1, 2, 3, 4, 5, 7, 15, 16)),
    Case("Softmax", "0=0 1=1", IMAGE),
    Case("Softmax", "0=-1 1=1", IMAGE),
    Case("LayerNorm", "0=10 1=0.001 2=1", IMAGE, plain(20)),
    Case("GroupNorm", "0=3 1=6 2=0.001 3=1", IMAGE, plain(12)),
    Case("InstanceNorm", "0=6 1=0.001 2=1", IMAGE, plain(12)),
    Case("Normalize", "0=0 1=0 2=0.0001 3=6 4=1 9=0", IMAGE, plain(6)),
    Case("Normalize", "0=1 1=1 2=0.0001 3=1 4=1 9=1", IMAGE, plain(1)),
    Case("MVN", "0=1 1=0 2=0.0001", IMAGE),
    Case("MVN", "0=1 1=1 2=0.0001", IMAGE),
    Case("LRN", "0=0 1=3 2=0.5 3=0.75 4=2.0", IMAGE),
    Case("BatchNorm", "0=6 1=0.001", IMAGE, plain(12) + plain(6, 0.5, 1.5) + plain(6)),
    Case("Scale", "0=6 1=1", IMAGE, plain(12)),
    Case("PReLU", "0=6", IMAGE, plain(6)),
    Case("Power", "0=2.0 1=0.5 2=1.0", IMAGE),
    Case("Exp", "0=2.0 1=0.5 2=0.1", IMAGE),
    Case("GLU", "0=0", IMAGE),
    Case("GELU", "0=0", IMAGE),
    Case("Mish", "", IMAGE),
    Case("BinaryOp", "0=7 1=1 2=0.5", IMAGE),
    Case("ExpandDims", "-23303=1,1", ROWS),
    Case("Squeeze", "0=0 1=1", (6, 1, 10)),
    Case("Tile", "0=0 1=2", IMAGE),
    # ---------------------------------------------------------------------------------------- elementwise
    *(
        Case(kind, options, VOLUME, low=-4.0, high=4.0)
        for kind, options in (
            ("AbsVal", ""),
            ("BNLL", ""),
            ("CELU", ""),
            ("CELU", "0=0.7"),
            ("Clip", ""),
            ("Clip", "0=-0.5 1=1.5"),
            ("ELU", ""),
            ("ELU", "0=1.0"),
            ("Erf", ""),
            ("HardSigmoid", ""),
            ("HardSigmoid", "0=0.3 1=0.4"),
            ("HardSwish", ""),
            ("HardSwish", "0=0.1666667"),
            ("ReLU", ""),
            ("ReLU", "0=0.1"),
            ("SELU", ""),
            ("SELU", "0=1.5 1=0.9"),
            ("Shrink", ""),
            ("Shrink", "0=0.1 1=0.4"),
            ("Sigmoid", ""),
            ("Softplus", ""),
            ("Swish", ""),
            ("TanH", ""),
            ("Threshold", "0=0.3"),
            ("GELU", "0=1"),
            ("GELU", ""),
            ("Mish", ""),
            ("Dropout", "0=0.5"),
        )
    ),
    *(Case("Log", options, IMAGE, low=0.1) for options in ("", "0=10.0 1=0.5 2=2.0")),
    Case("Bias", "0=6", IMAGE, plain(6)),
    Case("Bias", "0=3", VOLUME, plain(3)),
    Case("Bias", "0=30", FLAT, plain(30)),
    Case("Scale", "0=-233", [IMAGE, (6,)]),
    Case("Scale", "0=3 1=1", VOLUME, plain(6)),
    Case("PReLU", "0=8", ROWS, plain(8)),
    Case("BatchNorm", "0=3", VOLUME, plain(6) + plain(3, 0.5, 1.5) + plain(3)),
    *(
        Case("Eltwise", o, [IMAGE] * n)
        for o, n in (("0=0", 2), ("0=1", 3), ("0=2", 3), ("0=1 -23301=3,0.5,-1.0,2.0", 3))
    ),
    *(Case("BinaryOp", f"0={k}", [IMAGE, IMAGE], low=0.1) for k in range(10)),
    *(Case("BinaryOp", f"0={k} 1=1 2=0.7", IMAGE, low=0.1) for k in range(10)),
    *(
        Case("BinaryOp", "0=1", pair)
        for pair in (
            [IMAGE, (6,)],
            [(6,), IMAGE],
            [IMAGE, (10,)],
            [IMAGE, (6, 8)],
            [IMAGE, (1,)],
            [IMAGE, (6, 1, 1)],
            [IMAGE, (1, 8, 10)],
            [(6, 1, 10), (1, 8, 1)],
            [ROWS, (8,)],
            [ROWS, (10,)],
            [VOLUME, (3,)],
            [VOLUME, (3, 4)],
            [VOLUME, (3, 4, 5)],
            [VOLUME, (3, 1, 5, 1)],
            [(6, 6, 6), (6,)],
        )
    ),
    *(Case("UnaryOp", f"0={k}", IMAGE, low=0.1, high=0.9) for k in range(20)),
    *(Case("UnaryOp", f"0={k}", VOLUME, low=-9.7, high=9.3) for k in (0, 1, 2, 3, 4, 18, 19)),
    *(Case("Reduction", f"0={k} 1=0 -23303=2,1,-1 4=1 5=1 2=0.5", VOLUME, low=0.1) for k in range(11)),
    Case("Scale", "0=8 1=1", ROWS, plain(16)),
    Case("Scale", "0=30", FLAT, plain(30)),
    Case("BatchNorm", "0=8", ROWS, plain(16) + plain(8, 0.5, 1.5) + plain(8)),
    Case("BatchNorm", "0=30 1=0.1", FLAT, plain(60) + plain(30, 0.5, 1.5) + plain(30)),
    Case("PReLU", "0=30", FLAT, plain(30)),
    Case("PReLU", "0=1", ROWS, plain(1)),
    Case("PReLU", "0=3", VOLUME, plain(3)),
    Case("Bias", "0=8", ROWS, plain(8)),
    *(Case("BinaryOp", f"0={k}", [IMAGE, IMAGE], low=0.1) for k in (12, 13, 15, 16)),
    *(Case("BinaryOp", f"0={k}", [IMAGE, IMAGE]) for k in (12, 13)),
    *(Case("UnaryOp", f"0={k}", IMAGE, low=0.1, high=0.9) for k in (20, 22, 23, 24, 26)),
    Case("UnaryOp", "0=25", IMAGE, low=1.1, high=3.0),
    *(Case("Exp", o, IMAGE) for o in ("", "0=3.0 1=2.0 2=0.5")),
    *(Case("Power", o, IMAGE, low=0.1) for o in ("", "0=0.5", "0=-1.0 1=2.0 2=0.1")),
    *(
        Case("Reduction", f"0=3 1={o}", s)
        for o in ("1", "1 4=1", "0 -23303=1,0 5=1", "0 -23303=1,-1 5=1 4=1")
        for s in (FLAT, ROWS, IMAGE, VOLUME)
    ),
    Case("Softplus", "", FLAT, low=-40.0, high=40.0),
    *(
        Case(k, "", FLAT, low=-30.0, high=30.0)
        for k in ("Mish", "Swish", "Sigmoid", "TanH", "BNLL", "GELU", "Erf", "SELU", "CELU", "ELU")
    ),
    # ------------------------------------------------------------------------------------------------------ windows
    Case("ConvolutionDepthWise1D", "0=8 1=3 4=1 5=1 6=24 7=8 9=1", ROWS, flagged(24) + plain(8)),
    Case("ConvolutionDepthWise1D", "0=4 1=3 2=2 3=2 4=1 15=2 6=48 7=2", ROWS, flagged(48)),
    Case("Convolution1D", "0=5 1=3 2=2 3=2 4=-233 5=1 6=120", ROWS, flagged(120) + plain(5)),
    Case("Convolution3D", "0=4 1=3 11=2 21=3 2=1 3=2 13=1 23=1 4=1 5=1 6=216 9=1", VOLUME, flagged(216) + plain(4)),
    Case("Convolution3D", "0=4 1=3 4=-234 5=1 6=324", VOLUME, flagged(324) + plain(4)),
    Case("Convolution3D", "0=4 1=2 2=2 4=1 15=2 16=0 17=3 14=2 24=0 18=0.5 6=96", VOLUME, flagged(96)),
    Case("ConvolutionDepthWise3D", "0=3 1=3 4=1 5=1 6=81 7=3", VOLUME, flagged(81) + plain(3)),
    Case("ConvolutionDepthWise3D", "0=6 1=2 3=2 6=96 7=3", (6, 4, 5, 6), flagged(96)),
    Case("Deconvolution1D", "0=5 1=4 3=2 4=1 5=1 6=160", ROWS, flagged(160) + plain(5)),
    Case("Deconvolution1D", "0=5 1=3 2=2 3=3 18=2 6=120 9=1", ROWS, flagged(120)),
    Case("Deconvolution1D", "0=5 1=4 3=2 4=-233 20=20 6=160", ROWS, flagged(160)),
    Case("Deconvolution1D", "0=5 1=5 3=2 4=-234 20=20 6=200", ROWS, flagged(200)),
    Case("DeconvolutionDepthWise1D", "0=8 1=4 3=2 4=1 5=1 6=32 7=8", ROWS, flagged(32) + plain(8)),
    Case("DeconvolutionDepthWise1D", "0=4 1=3 3=2 5=1 6=48 7=2 9=2 -23310=1,0.1", ROWS, flagged(48) + plain(4)),
    Case("Deconvolution", "0=5 1=5 3=2 4=-233 20=20 21=16 5=1 6=750", IMAGE, flagged(750) + plain(5)),
    Case("Deconvolution", "0=5 1=3 11=2 2=2 3=2 13=3 4=1 14=0 15=2 16=1 18=1 19=2 6=180", IMAGE, flagged(180)),
    Case("DeconvolutionDepthWise", "0=4 1=3 3=2 4=1 5=1 6=108 7=2", IMAGE, flagged(108) + plain(4)),
    Case("Deconvolution3D", "0=4 1=3 11=2 21=3 3=2 13=1 4=1 5=1 6=216", VOLUME, flagged(216) + plain(4)),
    Case("Deconvolution3D", "0=4 1=2 2=2 3=2 18=1 19=1 20=1 6=96 9=1", VOLUME, flagged(96)),
    Case("Deconvolution3D", "0=4 1=3 3=2 4=1 15=0 16=2 17=1 14=0 24=2 6=324", VOLUME, flagged(324)),
    Case("Deconvolution3D", "0=2 1=3 3=2 4=-233 25=12 26=10 27=8 6=162", VOLUME, flagged(162)),
    Case("DeconvolutionDepthWise3D", "0=3 1=3 3=2 4=1 5=1 6=81 7=3", VOLUME, flagged(81) + plain(3)),
    Case("DeconvolutionDepthWise3D", "0=6 1=2 3=2 6=96 7=3", (6, 4, 5, 6), flagged(96)),
    Case("Convolution", "0=5 1=3 5=1 4=1 19=1", [IMAGE, (5, 6, 3, 3), (5,)]),
    Case("ConvolutionDepthWise", "0=6 1=3 4=1 7=6 19=1", [IMAGE, (6, 1, 3, 3)]),
    Case("Convolution1D", "0=5 1=3 5=1 19=1", [ROWS, (5, 8, 3), (5,)]),
    Case("ConvolutionDepthWise1D", "0=8 1=3 7=8 19=1", [ROWS, (8, 1, 3)]),
    Case("Deconvolution", "0=5 1=3 5=1 3=2 28=1", [IMAGE, (6, 5, 3, 3), (5,)]),
    Case("DeconvolutionDepthWise", "0=6 1=3 3=2 7=6 28=1", [IMAGE, (6, 1, 3, 3)]),
    Case("Deconvolution1D", "0=5 1=3 3=2 28=1", [ROWS, (8, 5, 3)]),
    Case("DeconvolutionDepthWise1D", "0=8 1=3 3=2 7=8 28=1", [ROWS, (8, 1, 3)]),
    *(
        Case("Convolution", f"0=5 1=3 4=1 5=1 6=270 9={k} -23310=2,0.2,0.5", IMAGE, flagged(270) + plain(5))
        for k in range(7)
    ),
    Case("DeformableConv2D", "0=4 1=3 4=1 5=1 6=216", [IMAGE, (18, 8, 10)], flagged(216) + plain(4)),
    Case("DeformableConv2D", "0=4 1=3 3=2 2=2 4=2 6=216 9=1", [IMAGE, (18, 4, 5), (9, 4, 5)], flagged(216)),
    *(
        Case("Pooling1D", f"0={t} {rest}", ROWS)
        for t in (0, 1)
        for rest in (
            "1=3 2=2 3=1",
            "1=3 2=2 5=1",
            "1=3 2=2 5=2",
            "1=3 2=2 5=3",
            "4=1",
            "1=4 2=3 3=1 14=2 6=1",
            "7=1 8=4",
        )
    ),
    *(
        Case("Pooling3D", f"0={t} {rest}", VOLUME)
        for t in (0, 1)
        for rest in (
            "1=3 2=2 3=1",
            "1=3 11=2 21=2 2=2 5=1",
            "1=3 2=2 5=2",
            "1=3 2=2 5=3",
            "4=1",
            "1=3 2=2 3=1 6=1",
            "7=1 8=5 18=-233 28=2",
            "1=2 12=1 22=3 2=2 3=1 13=0 14=0 15=1 23=0 16=1",
        )
    ),
    *(Case("Pooling", f"0={t} 1=3 2=2 5=3", IMAGE) for t in (0, 1)),
    *(Case("SPP", f"0={t} 1={n}", IMAGE) for t in (0, 1) for n in (1, 3)),
    Case("StatisticsPooling", "", IMAGE),
    Case("StatisticsPooling", "0=1", IMAGE),
    Case("Unfold", "1=3 11=2 2=2 3=2 4=1 14=2", IMAGE),
    Case("Unfold", "1=3 3=2 4=1 18=0.5", IMAGE),
    Case("Fold", "1=3 4=1 20=4 21=5", (18, 20)),
    Case("Fold", "1=3 11=2 2=2 3=2 4=1 15=2 20=10 21=8", (12, 4 * 5)),
    Case("Convolution", "0=7 1=1 5=1 6=210", FLAT, flagged(210) + plain(7)),
    Case("Convolution", "0=6 1=3 4=-234 5=1 6=324 3=2", IMAGE, flagged(324) + plain(6)),
    Case("Convolution", "0=16 1=3 4=1 5=1 6=2304", (16, 8, 10), flagged(2304) + plain(16)),
    *(Case("StatisticsPooling", "0=1", s) for s in (FLAT, ROWS)),
    # ------------------------------------------------------------------------------------------------- data movement
    *(Case("ArgMax", o, shape) for o in ("0=1 1=3", "0=0 1=4", "") for shape in (FLAT, IMAGE)),
    *(
        Case("Concat", f"0={axis}", shapes)
        for axis, shapes in (
            (0, [(4, 8, 10), (8, 8, 10), (3, 8, 10)]),
            (1, [(6, 3, 10), (6, 8, 10)]),
            (-1, [(6, 8, 3), IMAGE]),
            (0, [(8, 10), (3, 10)]),
            (1, [(8, 10), (8, 4)]),
            (0, [(4,), (8,)]),
        )
    ),
    *(Case("Concat", f"0={axis}", [VOLUME, VOLUME]) for axis in (0, 1, 2, 3, -2)),
    Case("CopyTo", "0=2 1=2 2=1", [IMAGE, (3, 4, 5)]),
    Case("CopyTo", "-23309=3,1,-6,2 -23311=3,0,1,2", [IMAGE, (3, 4, 5)]),
    Case("CopyTo", "-23309=2,-233,2 -23311=2,0,2", [IMAGE, (3, 8, 5)]),
    Case("CopyTo", "0=1 1=2 13=1 2=0", [VOLUME, (3, 2, 3, 4)]),
    Case("CopyTo", "0=3", [FLAT, (7,)]),
    *(Case("CumulativeSum", f"0={axis}", shape) for shape in (FLAT, ROWS, IMAGE) for axis in range(-1, len(shape))),
    *(Case("Diag", f"0={k}", shape) for k in (-2, 0, 1) for shape in ((4,), ROWS)),
    *(Case("Flatten", "", shape) for shape in (FLAT, ROWS, IMAGE, VOLUME)),
    *(
        Case("Flip", o, shape)
        for o, shape in (
            ("-23300=1,0", FLAT),
            ("-23300=1,-1", ROWS),
            ("-23300=2,0,-1", IMAGE),
            ("-23300=2,1,3", VOLUME),
            ("-23300=3,0,1,2", IMAGE),
        )
    ),
    *(
        Case("GridSample", f"0={mode} 1={pad} 2={corners}", [IMAGE, (4, 5, 2)], low=-1.3, high=1.3)
        for mode in (1, 2, 3)
        for pad in (1, 2, 3)
        for corners in (0, 1)
    ),
    Case("GridSample", "0=1 1=1 2=0 3=1", [IMAGE, (2, 4, 5)], low=-1.3, high=1.3),
    *(Case("Permute", f"0={k}", VOLUME) for k in range(24)),
    *(Case("Slice", f"-23300=2,1,-233 1={axis}", VOLUME, tops=2) for axis in range(4)),
    Case("Slice", "-23302=2,2,5 1=1", IMAGE, tops=3),
    *(
        Case("Reshape", o, shape)
        for o, shape in (
            ("0=6 1=5 11=4 2=3", (12, 5, 6)),
            ("0=0 1=-1", VOLUME),
            ("0=5 1=6 11=2 2=-1", VOLUME),
            ("0=-1", VOLUME),
            ("0=8 1=10 2=-1", IMAGE),
        )
    ),
    *(Case("Softmax", f"0={axis} 1=1", shape) for shape in (FLAT, ROWS, IMAGE, VOLUME) for axis in range(len(shape))),
    *(
        Case("Padding", o, VOLUME)
        for o in ("0=1 1=2 2=3 3=0 4=0 5=0.7 7=1 8=2", "0=1 1=2 2=1 3=1 4=1", "0=1 1=2 2=1 3=1 4=2")
    ),
    *(Case("Padding", f"0=1 1=2 2=1 3=1 4={k} 7=1 8=2", VOLUME) for k in (1, 2)),
    Case("Padding", "0=1 1=2 2=3 3=1 6=6", IMAGE, plain(6)),
    Case("Padding", "0=1 1=0 2=2 3=1 5=0.5 7=2 8=1", IMAGE),
    Case("Padding", "2=2 3=1 4=2", FLAT),
    Case("Padding", "0=1 1=2 2=2 3=1 4=1", ROWS),
    Case("Crop", "0=1 1=2 2=1", [IMAGE, (3, 4, 5)]),
    Case("Crop", "0=1 1=2 13=1 2=0 3=3 4=2 14=2 5=-233", VOLUME),
    Case("Crop", "-23309=3,1,-4,0 -23310=3,3,-1,-233 -23311=3,0,1,3", VOLUME),
    *(Case("Squeeze", o, (1, 5, 1, 6)) for o in ("-23303=1,0", "-23303=2,0,2", "1=1", "2=1 1=1", "11=1 2=1")),
    *(
        Case("ExpandDims", f"-23303={o}", shape)
        for o, shape in (("1,0", IMAGE), ("1,-1", IMAGE), ("2,0,2", ROWS), ("1,1", FLAT), ("2,0,1", FLAT))
    ),
    *(
        Case("Tile", o, shape)
        for o, shape in (
            ("-23302=3,2,1,3", IMAGE),
            ("-23302=2,2,3", IMAGE),
            ("-23302=3,2,2,1", ROWS),
            ("0=2 1=3", VOLUME),
        )
    ),
    *(
        Case("Interp", o, shape)
        for o, shape in (
            ("0=1 3=5 4=7", FLAT),
            ("0=2 2=1.5 1=1.0", ROWS),
            ("0=3 3=1 4=16", ROWS),
            ("0=3 1=0.5 2=1.7", IMAGE),
            ("0=3 3=16 4=20 6=1", IMAGE),
            ("0=1 3=5 4=13", IMAGE),
            ("0=2 3=5 4=13", IMAGE),
        )
    ),
    Case("Interp", "0=2 5=1", [IMAGE, (2, 12, 15)]),
    Case("GLU", "0=-1", (3, 4, 5, 8)),
    Case("MatMul", "", [(4, 6), (6, 3)]),
    *(
        Case("MatMul", f"0={turn}", pair)
        for turn, pair in (
            (1, [(4, 6), (3, 6)]),
            (0, [(2, 4, 6), (2, 6, 3)]),
            (1, [(2, 4, 6), (2, 3, 6)]),
            (0, [(2, 4, 6), (6, 3)]),
            (0, [(2, 3, 4, 6), (2, 3, 6, 5)]),
            (0, [(2, 3, 4, 6), (1, 3, 6, 5)]),
            (0, [(6,), (6, 3)]),
            (0, [(4, 6), (6,)]),
            (0, [(6,), (6,)]),
            (0, [(2, 4, 6), (6,)]),
            (0, [(6,), (2, 6, 3)]),
            (0, [(2, 3, 4, 6), (3, 6, 5)]),
            (0, [(1, 4, 6), (2, 6, 3)]),
            (1, [(2, 3, 4, 6), (5, 6)]),
            (0, [(4, 6), (2, 6, 3)]),
        )
    ),
    Case("MemoryData", "0=5 1=4", [], plain(20)),
    Case("MemoryData", "0=5 1=4 11=3 2=2", [], plain(120)),
    Case("MemoryData", "0=5 1=4 2=3 21=0", [], flagged(60)),
    Case("Cast", "0=1 1=1", IMAGE),
    Case("Noop", "", IMAGE),
    Case("DeepCopy", "", IMAGE),
    Case("Packing", "0=1", IMAGE),
    Case("Split", "", IMAGE, tops=3),
    *(
        Case("Spectrogram", o, (50,), close=1e-4)
        for o in (
            "0=16 1=0 2=4",
            "0=16 1=1 2=5 3=12 4=1",
            "0=16 1=2 2=4 3=16 4=2 7=1",
            "0=16 1=2 7=2 4=1 5=0 8=0",
            "0=16 1=2 4=1 6=0",
            "0=16 1=2 4=1 6=1",
            "0=15 1=1 2=4 3=11 4=1 8=0 7=2",
        )
    ),
    *(Case("GLU", f"0={axis}", shape) for shape in ((30,), (8, 10), (6, 8, 10)) for axis in range(len(shape))),
    *(Case("Permute", f"0={k}", ROWS) for k in (0, 1)),
    Case("Permute", "0=0", FLAT),
    *(
        Case("Interp", o, IMAGE)
        for o in ("0=1 3=16 4=20 6=1", "0=2 3=16 4=20 6=1", "0=3 1=2.0 2=2.0 6=1", "0=1 1=0.5 2=0.5", "0=2 1=0.3 2=0.7")
    ),
    *(Case("Interp", o, ROWS) for o in ("0=1 3=1 4=7", "0=2 3=1 4=17 6=1")),
    Case("Interp", "0=2 1=2.0 2=3.0", FLAT),
    *(Case("ShuffleChannel", o, (8, 4, 6)) for o in ("0=2", "0=4 1=1")),
    *(Case("Slice", f"-23300=3,2,-233,-233 1={a}", s, tops=3) for s in (FLAT, ROWS) for a in range(len(s))),
    Case("Slice", "-23302=2,2,-1 1=-1", VOLUME, tops=3),
    *(
        Case("Crop", o, s)
        for o, s in (("0=3 3=10", FLAT), ("0=1 1=2 3=5 4=3", ROWS), ("-23309=1,-4 -23310=1,-1 -23311=1,-1", ROWS))
    ),
    Case("Crop", "0=1 1=2", [ROWS, (3, 4)]),
    Case("Crop", "0=1 1=2 13=1 2=0", [VOLUME, (2, 2, 2, 3)]),
    Case("Concat", "0=0", [FLAT]),
    *(
        Case("GridSample", f"0={mode} 1={pad} 2={k}", [VOLUME, (3, 4, 5, 3)], low=-1.3, high=1.3)
        for mode in (1, 2)
        for pad in (1, 2, 3)
        for k in (0, 1)
    ),
    Case("GridSample", "0=1 1=1 2=0 3=1", [VOLUME, (3, 3, 4, 5)], low=-1.3, high=1.3),
    *(
        Case("Spectrogram", o, (100,), close=1e-4)
        for o in ("0=20 1=2", "0=20 1=2 2=7 3=9 4=1 5=1 6=2 7=1", "0=32 1=1 2=8 3=25 4=2 7=2 8=1 6=1")
    ),
    # ---------------------------------------------------------------------------------- matrices, norms and sequences
    *(
        Case(kind, f"0=7 1={5 * 7 * n * (1 + (way == 2))} 2={way}", (6, 5), gates(5, 7, n, b, 1 + (way == 2)))
        for kind, n, b in (("LSTM", 4, 4), ("GRU", 3, 4), ("RNN", 1, 1))
        for way in (0, 1, 2)
    ),
    *(
        Case(
            kind,
            f"0=7 1={5 * 7 * n * sides} 2={way}",
            [(6, 5), *[(sides, 7)] * states],
            gates(5, 7, n, b, sides),
            tops=1 + states,
        )
        for kind, n, b, states in (("LSTM", 4, 4, 2), ("GRU", 3, 4, 1), ("RNN", 1, 1, 1))
        for way, sides in ((0, 1), (1, 1), (2, 2))
    ),
    *(
        Case(
            kind,
            f"0=7 1={5 * 7 * n * (1 + (way == 2))} 2={way}",
            (6, 5),
            gates(5, 7, n, b, 1 + (way == 2)),
            tops=1 + states,
        )
        for kind, n, b, states in (("LSTM", 4, 4, 2), ("GRU", 3, 4, 1), ("RNN", 1, 1, 1))
        for way in (0, 2)
    ),
    *(
        Case(
            "MultiHeadAttention",
            f"0=8 1=2 2=48 3=5 4=4 5={mask}",
            [(3, 6), (7, 5), (7, 4), *more],
            flagged(48) + plain(8) + flagged(40) + plain(8) + flagged(32) + plain(8) + flagged(48) + plain(6),
        )
        for mask, more in ((0, []), (1, [(3, 7)]), (1, [(2, 3, 7)]))
    ),
    *(
        Case("MultiHeadAttention", f"0=8 1=2 2=64 {o}", inputs, (flagged(64) + plain(8)) * 4, tops=tops)
        for o, inputs, tops in (
            ("", [(5, 8)], 1),
            ("6=0.3", [(5, 8), (7, 8)], 1),
            ("5=1", [(5, 8), (5, 5)], 1),
            ("5=1", [(5, 8), (7, 8), (5, 7)], 1),
            ("7=1", [(5, 8), (2, 3, 4), (2, 3, 4)], 3),
            ("7=1 5=1", [(5, 8), (5, 8), (2, 3, 4), (2, 3, 4)], 3),
            ("7=1", [(5, 8), (7, 8), (2, 3, 4), (2, 3, 4)], 3),
        )
    ),
    *(
        Case("SDPA", o, inputs, tops=tops)
        for o, inputs, tops in (
            ("", [(4, 3, 8), (2, 5, 8), (2, 5, 6)], 1),
            ("6=0.3", [(4, 3, 8), (4, 5, 8), (4, 5, 6)], 1),
            ("5=1", [(4, 3, 8), (2, 5, 8), (2, 5, 6), (3, 5)], 1),
            ("5=1", [(4, 3, 8), (2, 5, 8), (2, 5, 6), (4, 3, 5)], 1),
        )
    ),
    *(Case("RotaryEmbed", f"0={k}", [(2, 3, 8), (3, n), (3, n)]) for k, n in ((0, 4), (1, 4), (0, 8))),
    *(
        Case("Einsum", letters(e), inputs)
        for e, inputs in (
            ("ik,kj->ij", [(4, 6), (6, 3)]),
            ("ijl,ilk->ijk", [(2, 4, 6), (2, 6, 3)]),
            ("ij,ij->i", [(4, 6), (4, 6)]),
            ("ii->i", [(4, 4)]),
            ("i,j->ij", [(4,), (6,)]),
            ("ijk->i", [(2, 4, 6)]),
            ("ik,kl,lj->ij", [(4, 6), (6, 3), (3, 5)]),
            ("ij,kl->ijkl", [(2, 3), (4, 5)]),
            ("ijkl->ijk", [VOLUME]),
        )
    ),
    *(
        Case("Embed", f"0=4 1=7 2={bias} 3=28", [np.array([3, 0, 9, 5], np.int32)], flagged(28) + plain(4 * bias))
        for bias in (0, 1)
    ),
    *(
        Case("RMSNorm", f"0={size} 1=0.01 2={affine}", IMAGE, plain(size * affine))
        for size, affine in ((10, 1), (80, 1), (10, 0))
    ),
    *(
        Case("LayerNorm", f"0={size} 1=0.01 2={affine}", IMAGE, plain(2 * size * affine))
        for size, affine in ((80, 1), (10, 0))
    ),
    *(
        Case("Gemm", o, inputs, weights)
        for o, inputs, weights in (
            ("", [(4, 6), (6, 3)], b""),
            ("0=0.5 1=2.0", [(4, 6), (6, 3), (4, 3)], b""),
            ("2=1 3=1", [(6, 4), (3, 6)], b""),
            ("1=2.0", [(4, 6), (6, 3), (3,)], b""),
            ("", [(4, 6), (6, 3), (4,)], b""),
            ("", [(4, 6), (6, 3), (1,)], b""),
            ("", [(4, 6), (6, 3), (4, 1)], b""),
            ("", [(4, 6), (6, 3), (1, 3)], b""),
            ("", [(3, 6), (6, 3), (3,)], b""),
            ("14=1", [(4, 6), (6, 3), (3,)], b""),
            ("11=1", [(4, 6), (6, 3)], b""),
            ("", [(4, 1, 6), (6, 1, 3)], b""),
            ("3=1 5=1 6=1 8=7 9=6 10=4", [(4, 6)], flagged(42) + flagged(7)),
            ("3=1 5=1 6=1 8=7 9=6 10=0 1=0.5 0=3.0", [(4, 6)], flagged(42) + flagged(1)),
            ("2=1 4=1 6=1 7=4 9=6 10=1", [(6, 3)], flagged(24) + flagged(4)),
            ("4=1 6=1 7=4 9=6 10=2 14=1", [(6, 3)], flagged(24) + flagged(4)),
            ("4=1 5=1 6=1 7=4 8=3 9=6 10=3", [], flagged(24) + flagged(18) + flagged(12)),
            ("6=1 7=4 8=3 9=6 10=-1", [(4, 6), (6, 3)], b""),
        )
    ),
    Case("GroupNorm", "0=3 1=3 2=0.001 3=0", VOLUME),
    Case("GroupNorm", "0=2 1=8 2=0.001 3=1", ROWS, plain(16)),
    Case("GroupNorm", "0=5 1=30 2=0.001 3=1", FLAT, plain(60)),
    Case("InstanceNorm", "0=3 1=0.001 2=0", IMAGE),
    Case("InstanceNorm", "0=3 1=0.001 2=1", VOLUME, plain(6)),
    Case("InstanceNorm", "0=6 1=0.001 2=0", IMAGE),
    Case("InstanceNorm", "0=0 1=0.001 2=0", IMAGE),
    Case("LayerNorm", "0=10 1=0.001 2=1", ROWS, plain(20)),
    Case("LayerNorm", "0=30 1=0.001 2=1", FLAT, plain(60)),
    Case("LayerNorm", "0=6 1=0.001 2=1", VOLUME, plain(12)),
    Case("RMSNorm", "0=10 1=0.001 2=1", ROWS, plain(10)),
    Case("RMSNorm", "0=30 1=0.001 2=1", FLAT, plain(30)),
    *(
        Case("Normalize", f"0={a} 1=1 2=0.01 3=1 4={b} 9={m}", IMAGE, plain(1))
        for a in (0, 1)
        for b in (0, 1)
        for m in (0, 1, 2)
    ),
    Case("Normalize", "0=1 1=0 2=0.01 3=6 4=0 9=2", IMAGE, plain(6)),
    *(Case("MVN", f"0={a} 1={b} 2=0.01", IMAGE) for a in (0, 1) for b in (0, 1)),
    Case("LRN", "0=1 1=3 2=0.5 3=0.75 4=2.0", IMAGE),
    Case("LRN", "0=0 1=5 2=0.5 3=0.75", IMAGE),
    Case("InnerProduct", "0=7 1=0 2=210", FLAT, flagged(210)),
    Case("InnerProduct", "0=7 1=1 2=560", ROWS, flagged(560) + plain(7)),
    *(Case("InnerProduct", f"0=7 1=1 2=210 9={k} -23310=2,0.2,0.5", FLAT, flagged(210) + plain(7)) for k in range(7)),
    Case("InnerProduct", "0=7 1=1 2=2520", VOLUME, flagged(2520) + plain(7)),
    Case("SDPA", "18=2", [(4, 3, 8), (2, 5, 8), (2, 5, 6)], close=0.02),
    *(Case("RotaryEmbed", f"0={k}", [(2, 3, 8), (3, 8), (3, 8)]) for k in (0, 1)),
    *(
        Case("Gemm", o, i)
        for o, i in (
            ("0=2.0 1=0.5 2=1 3=1", [(6, 4), (3, 6), (3,)]),
            ("", [(1, 6), (6, 3), (3,)]),
            ("", [(4, 6), (6, 1), (4,)]),
            ("14=1 11=1", [(4, 6), (6, 3), (4, 3)]),
        )
    ),
    # ---------------------------------------------------------------------------------------------------- detectors
    *(
        Case("PSROIPooling", o, [(12, 8, 10), np.array(r, np.float32)])
        for o, r in (("0=2 1=2 2=1.0 3=3", [1, 1, 7, 6]), ("0=2 1=2 2=0.5 3=3", [0, 3, 16, 15]))
    ),
    *(
        Case("ROIPooling", o, [IMAGE, np.array(r, np.float32)])
        for o, r in (("0=2 1=3 2=1.0", [1, 1, 7, 6]), ("0=3 1=2 2=0.5", [0, 3, 16, 15]))
    ),
    *(
        Case("ROIAlign", o, [IMAGE, np.array(r, np.float32)])
        for o, r in (("0=2 1=3 2=1.0 3=2 4=1 5=1", [1, 1, 7, 6]), ("0=3 1=2 2=0.5 3=0 4=0 5=1", [0.5, 3, 16.3, 15]))
    ),
    *(
        Case("PriorBox", o, inputs)
        for o, inputs in (
            ("-23300=1,12.0 -23301=1,20.0 -23302=1,2.0 7=1 8=0 9=-233 10=-233 13=0.5", [(1, 2, 3), (3, 40, 60)]),
            (
                "-23300=2,12.0,20.0 -23301=2,20.0,30.0 -23302=2,2.0,3.0 7=0 8=1 9=60 10=40 11=16 12=20 13=0.5 "
                "3=0.2 6=0.3",
                [(1, 2, 3), (3, 40, 60)],
            ),
            ("-23300=2,0.2,0.3 -23302=2,1.0,4.0 9=-233 10=-233 13=0.5", [(1, 2, 4)]),
            ("-23300=2,0.2,0.3 -23302=2,1.0,4.0 9=-233 10=-233 11=-233 12=-233 13=0.5 8=1", [(1, 2, 4)]),
        )
    ),
    Case("YoloDetectionOutput", "0=4 1=3 2=0.2 3=0.45 -23304=6,1.0,2.0,2.5,1.5,3.0,3.0", (27, 4, 5), low=-2, high=2),
    Case(
        "Yolov3DetectionOutput",
        "0=3 1=2 2=0.4 3=0.3 -23304=6,10.0,14.0,23.0,27.0,37.0,58.0 -23305=4,1.0,2.0,0.0,1.0 -23306=2,32.0,16.0",
        [(16, 2, 3), (16, 4, 6)],
        low=-2.0,
        high=2.0,
    ),
    *(
        Case("DetectionOutput", f"0=3 1=0.3 2=50 3={k} 4=0.3", [(80,), probabilities(20, 3).ravel(), priors(20)])
        for k in (4, 30)
    ),
    *(
        Case(
            "DetectionOutput",
            f"0=-233 1=0.3 2=50 3={k} 4=0.3 5=0.2",
            [(80,), probabilities(20, 3).T.copy(), priors(20)[0].reshape(20, 4)],
        )
        for k in (4, 30)
    ),
    # ----------------------------------------------------------------------------------------- compressed weights
    Case("InnerProduct", "0=7 1=1 2=210", FLAT, fp16_weights(210) + plain(7)),
    Case("InnerProduct", "0=7 1=0 2=210", FLAT, table_weights(210)),
    Case("Convolution", "0=5 1=3 5=1 6=270", IMAGE, fp16_weights(270) + plain(5)),
    Case("Convolution", "0=5 1=3 5=1 6=270", IMAGE, table_weights(270) + plain(5)),
    Case("Embed", "0=4 1=7 2=1 3=28", [np.array([3, 0, 9, 5], np.int32)], fp16_weights(28) + plain(4)),
    Case("MemoryData", "0=5 1=3 21=0", [], fp16_weights(15)),
    Case("LSTM", "0=7 1=140 2=0", (6, 5), fp16_weights(140) + fp16_weights(28) + fp16_weights(196)),
    Case("Deconvolution", "0=5 1=4 3=2 4=1 5=1 6=480", IMAGE, table_weights(480) + plain(5)),
    # -------------------------------------------------------- int8; inputs are exact in int8, or are rounded to it
    Case(
        "Convolution",
        "0=5 1=3 4=1 5=1 6=270 8=2 9=1",
        [exact(*IMAGE)],
        int8_weights(270) + plain(5) + scales(5) + SCALE,
    ),
    Case("Convolution", "0=8 1=1 5=1 6=64 8=2", [exact(*TALL)], int8_weights(64) + plain(8) + scales(8) + SCALE),
    Case(
        "ConvolutionDepthWise",
        "0=6 1=3 4=1 5=1 6=54 7=6 8=1",
        [exact(*IMAGE)],
        int8_weights(54) + plain(6) + scales(6) + SCALE,
    ),
    Case(
        "ConvolutionDepthWise",
        "0=8 1=3 3=2 4=-233 6=72 7=8 8=1",
        [exact(*TALL)],
        int8_weights(72) + scales(8) + SCALE,
        close=5e-4,
    ),  # for eight channels ncnn has an error of 1e-4
    *(
        Case(
            "Convolution",
            f"0=8 1=3 4=1 6=576 8=2 9={k} -23310=2,0.2,0.5",
            [exact(*TALL)],
            int8_weights(576) + scales(8) + SCALE,
        )
        for k in (2, 3, 4, 6)
    ),
    Case(
        "ConvolutionDepthWise", "0=4 1=3 4=1 5=0 6=108 7=2 8=2", [exact(*IMAGE)], int8_weights(108) + scales(1) + SCALE
    ),
    Case("InnerProduct", "0=7 1=1 2=3360 8=2", [exact(*IMAGE)], int8_weights(3360) + plain(7) + scales(7) + SCALE),
    Case("InnerProduct", "0=7 1=1 2=70 8=2 9=1", [exact(*ROWS)], int8_weights(70) + plain(7) + scales(7) + SCALE),
    Case("Embed", "0=4 1=7 2=1 3=28 18=2", [np.array([3, 0, 9, 5], np.int32)], int8_weights(28) + plain(4) + scales(1)),
    Case("Gemm", "3=1 5=1 6=1 8=7 9=6 10=4 18=2", [exact(4, 6)], int8_weights(42) + flagged(7) + scales(1)),
    Case("Gemm", "2=1 4=1 6=1 7=4 9=6 10=-1 18=2", [exact(3, 6).T.copy()], int8_weights(24) + scales(4), close=0.02),
    *(
        Case(
            kind,
            f"0=7 1={5 * 7 * n * (1 + (way == 2))} 2={way} 8=2",
            [exact(6, 5)],
            int8_weights(s * n * 35)
            + flagged(s * b * 7)
            + int8_weights(s * n * 49)
            + scales(s * n * 7)
            + scales(s * n * 7),
            close=0.02,
        )
        for kind, n, b in (("LSTM", 4, 4), ("GRU", 3, 4), ("RNN", 1, 1))
        for way, s in ((0, 1), (1, 1), (2, 2))
    ),
    *(
        Case(
            kind,
            f"0=7 1={5 * 7 * n * s} 2={way} 8=2",
            [exact(6, 5), *[(s, 7)] * states],
            int8_weights(s * n * 35)
            + flagged(s * b * 7)
            + int8_weights(s * n * 49)
            + scales(s * n * 7)
            + scales(s * n * 7),
            tops=1 + states,
            close=0.02,
        )
        for kind, n, b, states in (("LSTM", 4, 4, 2), ("GRU", 3, 4, 1), ("RNN", 1, 1, 1))
        for way, s in ((0, 1), (1, 1), (2, 2))
    ),
    Case("Gemm", "18=2", [exact(4, 6), exact(6, 3)], close=0.02),
    Case(
        "Gemm",
        "4=1 5=1 6=1 7=4 8=3 9=6 10=3 18=2",
        [],
        int8_weights(24) + int8_weights(18) + flagged(12) + scales(4) + scales(1),
        close=0.02,
    ),
    Case(
        "MultiHeadAttention",
        "0=8 1=2 2=48 3=5 4=4 5=1 18=2",
        [exact(3, 6), exact(7, 5), exact(7, 4), (3, 7)],
        b"".join(int8_weights(n) + plain(m) for n, m in ((48, 8), (40, 8), (32, 8), (48, 6))) + scales(25),
        close=0.02,
    ),
    Case(
        "MultiHeadAttention",
        "0=8 1=2 2=64 18=2",
        [exact(5, 8)],
        (int8_weights(64) + plain(8)) * 4 + scales(25),
        close=0.02,
    ),
]


def blobs(case: Case) -> list[Array]:
    """The inputs of the layer, without batch dimension."""
    several = [case.inputs] if isinstance(case.inputs, tuple) else case.inputs
    rng = np.random.default_rng(3)
    drawn = [x if isinstance(x, np.ndarray) else rng.uniform(case.low, case.high, x) for x in several]
    return [x.astype(np.float32) if x.dtype == np.float64 else x for x in drawn]


def param(case: Case) -> bytes:
    """The net of one layer, from ``in0``, ``in1``... to ``out0``, ``out1``..."""
    read = [x.shape for x in blobs(case)]
    ids = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}
    lines = [
        f"Input x{i} 0 1 in{i} " + " ".join(f"{id}={n}" for id, n in zip(ids[len(shape)], shape, strict=True))
        for i, shape in enumerate(read)
    ]
    names = [*(f"in{i}" for i in range(len(read))), *(f"out{i}" for i in range(case.tops))]
    lines.append(f"{case.kind} layer {len(read)} {case.tops} {' '.join(names)} {case.options}")
    return "\n".join(["7767517", f"{len(lines)} {len(names)}", *lines, ""]).encode()
