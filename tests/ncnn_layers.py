"""Single layers of ncnn, over most options of most of them."""

from __future__ import annotations

import numpy as np

IMAGE, ROWS, TALL = (6, 8, 10), (8, 10), (8, 4, 6)
RNG = np.random.default_rng(5)


def plain(count: int, low: float = -1.0, high: float = 1.0) -> bytes:
    return RNG.uniform(low, high, count).astype("<f4").tobytes()


def marked(count: int) -> bytes:
    return bytes(4) + plain(count)


Row = tuple[str, str, tuple[int, ...], bytes]
CASES: list[Row] = [
    (
        "Convolution",
        "0=5 1=3 11=2 2=1 3=2 13=1 4=1 14=0 15=2 16=1 5=1 6=180 9=2 -23310=1,0.3",
        IMAGE,
        marked(180) + plain(5),
    ),
    ("Convolution", "0=5 1=3 3=2 4=-233 5=1 6=270 9=3 -23310=2,-0.2,0.4", IMAGE, marked(270) + plain(5)),
    ("Convolution", "0=5 1=3 4=1 18=0.5 5=0 6=270", IMAGE, marked(270)),
    ("ConvolutionDepthWise", "0=6 1=3 4=1 5=1 6=54 7=6 9=6 -23310=2,0.2,0.5", IMAGE, marked(54) + plain(6)),
    ("ConvolutionDepthWise", "0=4 1=3 4=1 5=1 6=108 7=2", IMAGE, marked(108) + plain(4)),
    ("Convolution1D", "0=5 1=3 4=1 5=1 6=120", ROWS, marked(120) + plain(5)),
    ("Deconvolution", "0=5 1=4 3=2 4=1 5=1 6=480", IMAGE, marked(480) + plain(5)),
    ("Deconvolution", "0=5 1=3 3=2 4=1 18=1 5=1 6=270", IMAGE, marked(270) + plain(5)),
    ("DeconvolutionDepthWise", "0=6 1=4 3=2 4=1 5=1 6=96 7=6", IMAGE, marked(96) + plain(6)),
    ("InnerProduct", "0=7 1=1 2=3360", IMAGE, marked(3360) + plain(7)),
    ("InnerProduct", "0=7 1=1 2=70", ROWS, marked(70) + plain(7)),
    *(
        ("Pooling", f"0={t} {rest}", IMAGE, b"")
        for t in (0, 1)
        for rest in ("1=3 2=2 3=1", "1=3 2=2 3=0 5=1", "1=3 2=2 5=2", "4=1", "1=3 2=2 3=1 6=1", "7=1 8=5 18=4")
    ),
    *(("Permute", f"0={k}", IMAGE, b"") for k in range(6)),
    ("Permute", "0=1", ROWS, b""),
    *(("Reshape", o, IMAGE, b"") for o in ("0=4 1=-1", "0=-1 1=0 2=3", "0=-1")),
    *(("Slice", o, IMAGE, b"") for o in ("-23300=2,-233,-233 1=0", "-23300=3,2,-233,-233 1=2", "-23300=2,2,-233 1=-1")),
    *(("Interp", o, IMAGE, b"") for o in ("0=1 1=2.0 2=1.5", "0=2 1=2.0 2=2.0", "0=2 3=5 4=7 6=1", "0=3 3=16 4=20")),
    ("ShuffleChannel", "0=3", IMAGE, b""),
    ("ShuffleChannel", "0=3 1=1", IMAGE, b""),
    ("PixelShuffle", "0=2", TALL, b""),
    ("PixelShuffle", "0=2 1=1", TALL, b""),
    ("Reorg", "0=2", IMAGE, b""),
    ("Reorg", "0=2 1=1", IMAGE, b""),
    *(("Padding", o, IMAGE, b"") for o in ("0=1 1=2 2=3 3=0 4=0 5=0.7", "0=1 1=2 2=3 3=1 4=1", "0=1 1=2 2=3 3=1 4=2")),
    *(("Crop", o, IMAGE, b"") for o in ("0=2 1=1 2=1 3=5 4=4 5=3", "-23309=2,1,2 -23310=2,5,7 -23311=2,0,2")),
    *(("Reduction", f"0={k} 1=0 -23303=1,0 4=1 5=1", IMAGE, b"") for k in (0, 1, 2, 3, 4, 5, 7, 8)),
    ("Reduction", "0=3 1=1 2=0.5 4=0 5=1", IMAGE, b""),
    ("Reduction", "0=3 1=0 -23303=2,1,2 4=0 5=1", IMAGE, b""),
    *(("UnaryOp", f"0={k}", IMAGE, b"") for k in (0, 1, 2, 3, 4, 5, 7, 15, 16)),
    ("Softmax", "0=0 1=1", IMAGE, b""),
    ("Softmax", "0=-1 1=1", IMAGE, b""),
    ("LayerNorm", "0=10 1=0.001 2=1", IMAGE, plain(20)),
    ("GroupNorm", "0=3 1=6 2=0.001 3=1", IMAGE, plain(12)),
    ("InstanceNorm", "0=6 1=0.001 2=1", IMAGE, plain(12)),
    ("Normalize", "0=0 1=0 2=0.0001 3=6 4=1 9=0", IMAGE, plain(6)),
    ("Normalize", "0=1 1=1 2=0.0001 3=1 4=1 9=1", IMAGE, plain(1)),
    ("MVN", "0=1 1=0 2=0.0001", IMAGE, b""),
    ("MVN", "0=1 1=1 2=0.0001", IMAGE, b""),
    ("LRN", "0=0 1=3 2=0.5 3=0.75 4=2.0", IMAGE, b""),
    ("BatchNorm", "0=6 1=0.001", IMAGE, plain(12) + plain(6, 0.5, 1.5) + plain(6)),
    ("Scale", "0=6 1=1", IMAGE, plain(12)),
    ("PReLU", "0=6", IMAGE, plain(6)),
    ("Power", "0=2.0 1=0.5 2=1.0", IMAGE, b""),
    ("Exp", "0=2.0 1=0.5 2=0.1", IMAGE, b""),
    ("GLU", "0=0", IMAGE, b""),
    ("GELU", "0=0", IMAGE, b""),
    ("Mish", "", IMAGE, b""),
    ("BinaryOp", "0=7 1=1 2=0.5", IMAGE, b""),
    ("ExpandDims", "-23303=1,1", ROWS, b""),
    ("Squeeze", "0=0 1=1", (6, 1, 10), b""),
    ("Tile", "0=0 1=2", IMAGE, b""),
]


def param(row: Row) -> bytes:
    """The net of one layer, from ``data`` to ``out0``, ``out1``..."""
    kind, options, shape, _ = row
    tops = outputs(row)
    dims = " ".join(f"{id}={n}" for id, n in zip((2, 1, 0)[3 - len(shape) :], shape, strict=True))
    outs = " ".join(f"out{i}" for i in range(tops))
    return f"7767517\n2 {1 + tops}\nInput in 0 1 data {dims}\n{kind} layer 1 {tops} data {outs} {options}\n".encode()


def outputs(row: Row) -> int:
    return int(row[1].split("=")[1].split(",")[0]) if row[0] == "Slice" else 1
