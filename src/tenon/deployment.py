"""Deployment files: several models, and what is to be made of each, in one YAML file (docs/reference/deployment.md)."""

from __future__ import annotations

from tenon.tools.deployment import (
    Accuracy,
    Converted,
    DeployedModel,
    Deployment,
    ModelValidation,
    convert,
    evaluate,
    read_deployment,
    time_deployment,
    validate_deployment,
)
from tenon.tools.deployment.validate import validate

__all__ = [
    "Accuracy",
    "Converted",
    "DeployedModel",
    "Deployment",
    "ModelValidation",
    "convert",
    "evaluate",
    "read_deployment",
    "time_deployment",
    "validate",
    "validate_deployment",
]
