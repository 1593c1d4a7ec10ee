"""Post-training quantisation, and what it costs in accuracy (docs/reference/quantisation.md)."""

from __future__ import annotations

from tenon.tools import quantization as _room
from tenon.tools.quantization import *  # noqa: F403

__all__ = _room.__all__
