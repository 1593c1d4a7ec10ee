"""Deployment files: several models, and what is to be made of each, in one YAML file (docs/reference/deployment.md)."""

from __future__ import annotations

from tenon.tools import deployment as _room
from tenon.tools.deployment import *  # noqa: F403
from tenon.tools.deployment.validate import validate

__all__ = ["validate"]
__all__ += _room.__all__
