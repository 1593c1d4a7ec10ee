"""Convolution and matrix product of f16 by cooperative matrices, in work groups (``kernels.matrix_tiled``)."""

from __future__ import annotations

from typing import ClassVar

from tenon.machine.algorithms.tensor_tiled import TensorTiled
from tenon.machine.kernel_ir.loops import Kernel
from tenon.machine.kernels.conv import Conv
from tenon.machine.kernels.matrix_tiled import PRODUCT, MatrixTile, matrix_tiled, pack
from tenon.machine.kernels.tensor_tiled import WarpTile
from tenon.network.graph.graph import Array


class MatrixTiled(TensorTiled):
    """Direct sums by cooperative matrices."""

    name: ClassVar[str] = "matrix-tiled"
    operation: ClassVar[str] = PRODUCT
    shape: ClassVar[type[WarpTile]] = MatrixTile

    def packed(self, weights: Array, s: Conv) -> Array:
        assert isinstance(self.tile, MatrixTile)
        return pack(weights, s, self.tile)

    def kernel(self, s: Conv) -> Kernel:
        assert isinstance(self.tile, MatrixTile)
        return matrix_tiled(s, self.tile)
