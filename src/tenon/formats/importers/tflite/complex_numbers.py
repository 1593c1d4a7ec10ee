"""Fourier transforms of TFLite and the operators that read their complex results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenon.formats.decompositions.onnx_operator import decomposed
from tenon.formats.graph_builder.errors import RefusedError
from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.formats.importers.tflite.variables import Argument, Complex
from tenon.network.graph.graph import Value

LONGEST = 1 << 13
"""Samples of a transform, which is a product with a table of as many rows and columns."""


def _rfft_2d(node: TfliteNode) -> Sequence[Argument]:
    """The spectrum of the last two axes: of real numbers along the last one, then of these along the other."""
    builder, lengths = node.builder, node.constant_integers(1)
    dims = builder.dims(node.x)
    if len(lengths) != 2 or len(dims) < 2 or not all(0 < n <= LONGEST for n in lengths):
        raise RefusedError(f"a transform of {lengths} samples of {list(dims)} is not supported")
    rank, (rows, columns) = len(dims), lengths
    x = builder.reshape(node.x, (*dims, 1))
    (y,) = decomposed(builder, "DFT", [x, builder.ints(columns), builder.ints(rank - 1)], onesided=1)
    if (dims[-2], rows) != (1, 1):
        (y,) = decomposed(builder, "DFT", [y, builder.ints(rows), builder.ints(rank - 2)])
    real, imaginary = builder.unpack(y, rank)
    return [Complex(real, imaginary)]


def _magnitude(node: TfliteNode) -> Value:
    builder, z = node.builder, node.complex_input()
    return builder.add("Sqrt", builder.add("Add", builder.square(z.real), builder.square(z.imaginary)))


COMPLEX: dict[str, Callable[[TfliteNode], Value | Sequence[Argument]]] = {
    "COMPLEX_ABS": _magnitude,
    "IMAG": lambda node: node.complex_input().imaginary,
    "REAL": lambda node: node.complex_input().real,
    "RFFT2D": _rfft_2d,
}
