"""Post-training quantisation, and what it costs in accuracy (docs/howto/quantise.md)."""

from __future__ import annotations

from tenon.tools.quantization import (
    METHODS,
    ROUNDING,
    SCHEMES,
    Comparison,
    Noise,
    Point,
    Quantized,
    Report,
    Scheme,
    WeightNoise,
    compare,
    quantize,
)

__all__ = [
    "METHODS",
    "ROUNDING",
    "SCHEMES",
    "Comparison",
    "Noise",
    "Point",
    "Quantized",
    "Report",
    "Scheme",
    "WeightNoise",
    "compare",
    "quantize",
]
