"""Post-training quantisation."""

from __future__ import annotations

from tenon.quantization.quantize import Quantized, quantize

__all__ = ["Quantized", "quantize"]
