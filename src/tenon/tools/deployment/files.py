"""Files that a deployment names: where they are, and that all of them can be had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tenon.errors import InputError, TenonError
from tenon.formats.model_files.model_file import read
from tenon.tools.deployment.base import DeployedModel

ADDRESSES = ("http://", "https://")


def located(folder: Path, name: str) -> str:
    """An address or absolute path as it is, another path relative to the folder of the deployment file."""
    return name if name.lower().startswith(ADDRESSES) else str(folder / Path(name).expanduser())


def fetch_models(models: Sequence[DeployedModel], progress: Callable[[str], None] = lambda stage: None) -> None:
    """Download models at addresses, and check the SHA-256 of every file, and that all other files are there.

    Raises InputError that lists every file that is missing, cannot be downloaded or has another SHA-256.
    """
    problems: dict[str, None] = {}
    for model in models:
        source = model.source
        both = (
            (source.file, source.sha256, "model", "sha256"),
            (source.weights, source.weights_sha256, "weights", "weights_sha256"),
        )
        for file, sha256, key, checksum in both:
            if file is None:
                continue
            progress(f"{model.name}: read {Path(file).name}")
            try:
                read(file, sha256)
            except TenonError as error:
                there = sha256 is not None and Path(file).is_file()
                problems[f"{model.at(*([checksum] if there else []), key)}: {error}"] = None
        for file in _others(model):
            if not file.lower().startswith(ADDRESSES) and not Path(file).exists():
                problems[f"{model.at(file)}: {file}: there is no such file"] = None
    if problems:
        raise InputError("\n".join(problems))


def _others(model: DeployedModel) -> Sequence[str]:
    """The files that a deployment names beside the model's own."""
    data = [file for port in (*model.inputs, *model.outputs) for file in port.data]
    return (*data, *model.needed)
