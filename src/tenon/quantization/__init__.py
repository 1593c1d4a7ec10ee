"""Post-training quantisation."""

from __future__ import annotations

from tenon.quantization.comparison import Comparison, compare
from tenon.quantization.post_training import Quantized, quantize
from tenon.quantization.ranges import METHODS
from tenon.quantization.recipe import ROUNDING
from tenon.quantization.report import Noise, Point, Report, WeightNoise
from tenon.quantization.scheme import SCHEMES, Scheme

__all__ = [
    "METHODS", "ROUNDING", "SCHEMES", "Comparison", "Noise", "Point", "Quantized", "Report", "Scheme", "WeightNoise",
    "compare", "quantize",
]  # fmt: skip
