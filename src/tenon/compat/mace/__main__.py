"""``python -m tenon.compat.mace COMMAND``: MACE's commands, with its options."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tenon
from tenon.cli.program import run_command
from tenon.cli.translation import translated_message
from tenon.cli.validate import check_validations
from tenon.compat.mace.devices import add_options, opened_device, selected_devices
from tenon.compat.mace.encrypt import add_options as add_encrypt_options
from tenon.compat.mace.encrypt import encrypted_models, single_model
from tenon.compat.mace.quantize_stat import log_line, range_file
from tenon.compat.mace.validation_output import print_validations
from tenon.errors import InputError
from tenon.formats.wire.stored_files import known_key
from tenon.network.ops.unroll import unrolled
from tenon.tools.deployment import Deployment, time_deployment, validate_deployment
from tenon.tools.deployment.mace_config import TARGETS, with_micro
from tenon.tools.deployment.running import Opener
from tenon.tools.quantization.by_ranges import calibrated_ranges
from tenon.tools.quantization.samples import read_samples

_RUNS = 1 << 20
"""Most samples of a folder."""


def main(words: Sequence[str] | None = None) -> int:
    """The exit status: 2 for errors, which are one message."""
    parser = _parser()
    arguments, others = parser.parse_known_args(words)
    if others:
        _progress(f"without effect: {shlex.join(others)}")
    return run_command(arguments.command, lambda: _COMMANDS[arguments.command](arguments))


def _convert(arguments: argparse.Namespace) -> None:
    """A bundle for every model and ABI of MACE's YAML, in OUTPUT/MODEL/TARGET."""
    deployment, models, targets = _asked(arguments)
    if arguments.enable_micro:
        deployment = replace(deployment, models=tuple(with_micro(model) for model in deployment.models))
    for made in tenon.convert(deployment, arguments.output, models=models, targets=targets, progress=_progress):
        print(made.folder)


def _encrypt(arguments: argparse.Namespace) -> None:
    """Bundles without names of layers; with a key, in encrypted files OUTPUT/MODEL/TARGET.tenon."""
    deployment, models, targets = _asked(arguments)
    key = known_key(Path(arguments.key_file) if arguments.key_file else None)
    if key is None:
        _progress("no key (--key_file, TENON_KEY_FILE): nothing is encrypted")
    for path in encrypted_models(
        deployment,
        Path(arguments.output),
        key,
        models=models,
        targets=targets,
        obfuscate=not arguments.no_obfuscate,
        progress=_progress,
    ):
        print(path)


def _validate(arguments: argparse.Namespace) -> None:
    """Every model beside the framework of its platform, or recorded outputs; and its accuracy scripts."""
    deployment, models, targets = _asked(arguments)
    for open_on, chosen, device in _places(arguments, targets):
        validations = validate_deployment(
            deployment,
            models=models,
            targets=chosen,
            threshold=arguments.validate_threshold,
            progress=_progress,
            open_on=open_on,
            device=device,
        )
        print_validations(validations)
        check_validations(arguments.config, validations)


def _run(arguments: argparse.Namespace) -> None:
    """Times of every model, on every device that is asked for, and the validation with --validate."""
    deployment, models, targets = _asked(arguments)
    rounds, warmup = max(1, arguments.round), int(arguments.command == "benchmark" or arguments.benchmark)
    for open_on, chosen, _ in _places(arguments, targets):
        for each in time_deployment(
            deployment,
            models=models,
            targets=chosen,
            rounds=rounds,
            warmup=3 * warmup,
            open_on=open_on,
            progress=_progress,
        ):
            times, where = each.times, f" on {each.where}" if open_on or each.emulated else ""
            print(
                f"{each.model} {each.target}: avg {times.mean:.3f} ms, min {times.min:.3f} ms, max {times.max:.3f} ms, "
                f"{rounds} run(s){where}{', an emulator' if each.emulated else ''}"
            )
    if arguments.validate:
        _validate(arguments)


def _places(
    arguments: argparse.Namespace, targets: Sequence[str]
) -> Iterator[tuple[Opener | None, Sequence[str], str]]:
    """The opener of bundles, targets and name of every device that is asked for; None and "" for this machine."""
    devices = selected_devices(arguments)
    if not devices:
        yield None, targets, ""
    for spec in devices:
        with opened_device(spec, arguments) as (open_on, target):
            yield open_on, [target], spec.name


def _asked(arguments: argparse.Namespace) -> tuple[Deployment, list[str], list[str]]:
    """The deployment, the models that are asked for, and the targets of the ABIs."""
    abis = [abi.strip() for abi in arguments.target_abis.split(",") if abi.strip()]
    if unknown := [abi for abi in abis if abi not in TARGETS]:
        raise InputError(f"--target_abis {unknown[0]}: choose of {', '.join(TARGETS)}")
    targets = [TARGETS[abi] for abi in abis]
    if not arguments.config:
        return single_model(arguments, targets), [], targets
    deployment = tenon.read_deployment(arguments.config)
    for model in deployment.models:
        for note in model.notes:
            _progress(f"{model.name}: {note}")
    return deployment, [arguments.model_name] if arguments.model_name else [], targets


def _progress(stage: str) -> None:
    print(translated_message(stage), file=sys.stderr)


def _print_range_file(arguments: argparse.Namespace) -> None:
    """The ranges of all runs in a log."""
    if not arguments.log_file:
        raise InputError("--log_file is missing: give the output of a run with --quantize_stat")
    ratio = arguments.enhance_ratio if arguments.enhance else None
    print("\n".join(range_file(Path(arguments.log_file), arguments.percentile, ratio)))


def _quantize(arguments: argparse.Namespace) -> None:
    """A model quantised by a range file, as the keys of a YAML file with these names ask for."""
    ranges = arguments.quantize_range_file
    made = tenon.quantize(
        arguments.model_file,
        scheme=arguments.quantize_schema,
        ranges=ranges,
        change_concat_ranges=arguments.change_concat_ranges,
    )
    made.save(arguments.output)
    print(arguments.output)


def _print_log(arguments: argparse.Namespace) -> None:
    """The ranges of each sample, as a run of MACE with --quantize_stat prints them."""
    graph = unrolled(tenon.load(arguments.model_file))
    for sample in read_samples(graph, arguments.input_dir, _RUNS):
        for name, pair in calibrated_ranges(graph, [sample]).items():
            print(log_line(name, *pair))


_COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "convert": _convert,
    "encrypt": _encrypt,
    "run": _run,
    "benchmark": _run,
    "validate": _validate,
    "quantize_stat": _print_range_file,
    "quantize_range_file": _quantize,
    "tensor_ranges": _print_log,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tenon.compat.mace", description="MACE's tools for models and ranges."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    convert = _deployment_parser(commands, "convert", "a deployment file to bundles")
    convert.add_argument("--output", default="build", help="folder for the bundles")
    convert.add_argument("--enable_micro", action="store_true", help="also engines for microcontrollers")
    encrypted = _deployment_parser(commands, "encrypt", "bundles without names of layers, encrypted", required=False)
    add_encrypt_options(encrypted)
    validate = _deployment_parser(commands, "validate", "compare models with their frameworks, or recorded outputs")
    validate.add_argument("--validate_threshold", type=float, help="least cosine similarity, instead of the file's")
    add_options(validate)
    for name, rounds, text in (("run", 1, "run models on random input"), ("benchmark", 100, "time models")):
        run = _deployment_parser(commands, name, text)
        add_options(run)
        run.add_argument("--round", type=int, default=rounds, help="number of runs")
        run.add_argument("--benchmark", action="store_true", help="with warm-up runs")
        run.add_argument("--validate", action="store_true", help="validate, too")
        run.add_argument("--validate_threshold", type=float, help="least cosine similarity, instead of the file's")
    stat = commands.add_parser("quantize_stat", help="a log of ranges to a quantize_range_file, on standard output")
    stat.add_argument("--log_file", default="", help="path of the log that records ranges of tensors")
    stat.add_argument("--percentile", type=int, default=0, help="percent of the runs to leave out at either end")
    stat.add_argument("--enhance", action="store_true", help="narrow ranges that few runs need")
    stat.add_argument("--enhance_ratio", type=int, default=10, help="by how much that must pay")
    known = commands.add_parser("quantize_range_file", help="quantise a model by the ranges of such a file")
    known.add_argument("--model_file", required=True)
    known.add_argument("--quantize_range_file", required=True, help="lines of tensor@@least,greatest")
    known.add_argument("--quantize_schema", default="uint8", choices=("uint8", "int8"))
    known.add_argument("--change_concat_ranges", action="store_true", help="one range for all that is concatenated")
    known.add_argument("--output", required=True, help="an .onnx, .tflite or .tmfile file")
    log = commands.add_parser("tensor_ranges", help="run a model on samples, and print such a log")
    log.add_argument("--model_file", required=True)
    log.add_argument("--input_dir", required=True, help="a folder of samples, or what tenon quantize --data takes")
    return parser


def _deployment_parser(commands: Any, name: str, text: str, *, required: bool = True) -> argparse.ArgumentParser:
    """A command for the models of a deployment file; options of MACE's that it does not have are ignored, as there."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text)
    parser.add_argument("--config", required=required, default="", help="the YAML file")
    parser.add_argument("--model_name", default="", help="only this model of the file")
    parser.add_argument(
        "--target_abis", "--target_abi", default="", help="these instead of the file's, separated by commas"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
