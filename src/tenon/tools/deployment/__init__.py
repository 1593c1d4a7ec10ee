"""Deployment files: several models, and what is to be made of each, in one YAML file.

Two forms are read: Tenon's own (``tenon_config``) and MACE's (``mace_config``).  Both become a ``Deployment``, which
``convert`` turns into bundles.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tenon.tools.deployment.base import DeployedModel, Deployment
from tenon.tools.deployment.conversion import Converted, convert
from tenon.tools.deployment.evaluation import Accuracy, evaluate
from tenon.tools.deployment.mace_config import is_mace, read_mace
from tenon.tools.deployment.running import time_deployment
from tenon.tools.deployment.tenon_config import read_tenon
from tenon.tools.deployment.validate_deployment import ModelValidation, validate_deployment
from tenon.tools.deployment.yaml_document import read_yaml

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
    "validate_deployment",
]


def read_deployment(path: Path | str, environment: Mapping[str, str] | None = None) -> Deployment:
    """Read a deployment file of either form; ``environment`` has the variables that ${NAME} stands for.

    Raises InputError that lists every problem of the file with its line, FormatError for what is not YAML.
    """
    document = read_yaml(Path(path), environment)
    content = document.content
    return read_mace(document) if isinstance(content, Mapping) and is_mace(content) else read_tenon(document)
