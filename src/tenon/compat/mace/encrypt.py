"""MACE's ``encrypt.py``: bundles without the names of their layers and, which MACE's does not do, encrypted."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import tenon
from tenon.atomic_write import scratch, write
from tenon.errors import InputError
from tenon.runtime.bundle.encrypted_files import encrypt
from tenon.tools.deployment import Deployment
from tenon.tools.deployment.base import DeployedModel, ModelSource


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model_file", default="", help="a model of MACE (.pb), instead of a YAML file")
    parser.add_argument("--params_file", default="", help="its weights (.data)")
    parser.add_argument("--no_obfuscate", action="store_true", help="keep the names of layers")
    parser.add_argument("--output", default="build", help="folder for the bundles")
    parser.add_argument("--key_file", default="", help="the key: 32 bytes or 64 hexadecimal digits; not in MACE")


def single_model(arguments: argparse.Namespace, targets: Sequence[str]) -> Deployment:
    """The model of --model_file and --params_file.  Raises InputError if no file is named."""
    if not arguments.model_file:
        raise InputError("name the models by --config, or one by --model_file and --params_file")
    source = ModelSource(arguments.model_file, weights=arguments.params_file or None)
    name = arguments.model_name or Path(arguments.model_file).stem
    model = DeployedModel(name, source, targets=tuple(targets) or ("host",))
    return Deployment(Path(arguments.model_file), name, (model,))


def encrypted_models(
    deployment: Deployment,
    out: Path,
    key: bytes | None,
    *,
    models: Sequence[str],
    targets: Sequence[str],
    obfuscate: bool,
    progress: Callable[[str], None],
) -> Iterator[Path]:
    """Write ``out``/MODEL/TARGET.tenon, encrypted; without a key the folders ``out``/MODEL/TARGET.  Yields each path.

    With ``obfuscate``, names of layers are left out, otherwise kept, whatever the deployment says.
    """
    chosen = replace(deployment, models=tuple(_named(model, obfuscate, key) for model in deployment.models))
    if key is None:
        made = tenon.convert(chosen, out, models=models, targets=targets, progress=progress)
        yield from (each.folder for each in made)
        return
    with scratch() as folder:
        for each in tenon.convert(chosen, folder, models=models, targets=targets, progress=progress):
            path = out / each.model.name / f"{each.target}.tenon"
            write(path, encrypt(each.folder, key), "--output")
            yield path


def _named(model: DeployedModel, obfuscate: bool, key: bytes | None) -> DeployedModel:
    """The model with or without the names of its layers; packages for other build systems cannot be encrypted."""
    options = {**model.options, "obfuscate": "layers" if obfuscate else None}
    return replace(model, options={name: value for name, value in options.items() if key is None or name != "emit"})
