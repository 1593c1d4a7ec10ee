"""Post-training quantisation."""

from __future__ import annotations

from tenon.tools.quantization.comparison import Comparison, compare
from tenon.tools.quantization.post_training import Quantized, quantize
from tenon.tools.quantization.ranges import METHODS
from tenon.tools.quantization.recipe import ROUNDING
from tenon.tools.quantization.report import Noise, Point, Report, WeightNoise
from tenon.tools.quantization.scheme import SCHEMES, Scheme

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
