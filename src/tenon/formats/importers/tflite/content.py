"""The content of a TFLite file: sub-graphs of operators on numbered tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tenon.network.graph.graph import Array
from tenon.network.graph.types import DType, Quant, TensorType


@dataclass(frozen=True)
class TfliteTensor:
    """A tensor of the file; ``data`` is set for constants.  ``broken`` says why it cannot be used."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    quant: Quant | None
    data: Array | None
    broken: str = ""

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape, quant=self.quant)


@dataclass(frozen=True)
class TfliteOperation:
    """An operator of the file; operands are numbers of tensors, -1 is absent."""

    type: str
    options: Mapping[str, Any]
    custom: bytes
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...] = ()
    version: int = 1


@dataclass(frozen=True)
class TfliteGraph:
    """A sub-graph of a file."""

    name: str
    tensors: list[TfliteTensor]
    operations: list[TfliteOperation]
    inputs: list[int]
    outputs: list[int]
