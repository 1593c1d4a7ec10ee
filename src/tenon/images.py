"""Images as inputs of networks, in Python."""

from __future__ import annotations

from tenon.network.graph.preprocessing import Preprocessing
from tenon.runtime.engine.image import read_image

__all__ = ["Preprocessing", "read_image"]
