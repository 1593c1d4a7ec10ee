"""Post-training quantisation."""

from __future__ import annotations

from tenon.quantization.post_training import Quantized, quantize
from tenon.quantization.ranges import METHODS
from tenon.quantization.report import Noise, Report
from tenon.quantization.scheme import SCHEMES, Scheme

__all__ = ["METHODS", "SCHEMES", "Noise", "Quantized", "Report", "Scheme", "quantize"]
