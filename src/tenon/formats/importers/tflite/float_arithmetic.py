"""Arithmetic on f32 values of one TFLite operator."""

from __future__ import annotations

from tenon.formats.importers.tflite.importer import TfliteNode
from tenon.network.graph.graph import Value


class FloatArithmetic:
    """Arithmetic on f32 values of one layer."""

    def __init__(self, node: TfliteNode) -> None:
        self.builder = node.builder

    def of(self, type: str, *operands: Value | float) -> Value:
        given = (self.builder.scalar(v) if isinstance(v, int | float) else v for v in operands)
        return self.builder.add(type, *given)

    def sum(self, *terms: Value | float) -> Value:
        total = terms[0]
        for term in terms[1:]:
            total = self.of("Add", total, term)
        assert isinstance(total, Value)
        return total

    def rotated(self, x: Value, y: Value, sine: Value, cosine: Value) -> tuple[Value, Value]:
        """A point turned by an angle."""
        first = self.of("Sub", self.of("Mul", x, cosine), self.of("Mul", y, sine))
        return first, self.of("Add", self.of("Mul", x, sine), self.of("Mul", y, cosine))
