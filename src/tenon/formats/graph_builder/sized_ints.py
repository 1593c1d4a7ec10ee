"""Vectors of integers, some of which only a run knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from tenon.formats.graph_builder.size_number import SizeNumber
from tenon.network.graph.graph import Array, Value
from tenon.network.graph.sizes import expression
from tenon.network.graph.types import I64, TensorType
from tenon.network.graph.writer import Writer


class IntsBuilder(Protocol):
    """A builder that adds constants to a graph and has its writer."""

    @property
    def writer(self) -> Writer: ...

    def constant(self, data: Array, stem: str = "constant") -> Value: ...


def sized_ints(builder: IntsBuilder, numbers: Sequence[Any]) -> Value:
    """An i64 vector of integers and ``SizeNumber``."""
    if not any(isinstance(n, SizeNumber) for n in numbers):
        return builder.constant(np.array(numbers, np.int64), "ints")
    elements = np.empty(len(numbers), object)
    elements[:] = [n.expression if isinstance(n, SizeNumber) else expression(int(n)) for n in numbers]
    name = builder.writer.fresh("ints")
    return builder.writer.sizes.symbolic_value(name, TensorType(I64, (len(numbers),)), elements)
