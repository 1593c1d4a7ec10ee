"""The parts of models for speech to text, as they are cut out of a model file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenon.formats.decompositions.transformers.caches import CROSS

ENCODER: Mapping[str, Any] = {"outputs": (CROSS,), "shapes": {}}
"""The arguments of ``tenon.compile`` for the part that hears."""

DECODER: Mapping[str, Any] = {"inputs": (CROSS,), "shapes": {"length": 1}}
"""Options for the part that writes, a token in a run."""
