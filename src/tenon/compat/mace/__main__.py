"""``python -m tenon.compat.mace convert|quantize_stat|tensor_ranges``: MACE's options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import tenon
from tenon.compat.mace.quantize_stat import log_line, range_file
from tenon.deployment.mace_config import TARGETS
from tenon.errors import SYSTEM_ERRORS, InputError, TenonError, explained
from tenon.quantization.by_ranges import calibrated_ranges
from tenon.quantization.samples import read_samples

_RUNS = 1 << 20
"""Most samples of a folder."""


def main(words: Sequence[str] | None = None) -> int:
    """The exit status: 2 for errors, which are one message."""
    parser = _parser()
    arguments, _ = parser.parse_known_args(words)
    try:
        if arguments.command == "quantize_stat" and not arguments.log_file:
            raise InputError("--log_file is missing: give the output of a run with --quantize_stat")
        if arguments.command == "convert":
            _convert(arguments)
        elif arguments.command == "quantize_stat":
            ratio = arguments.enhance_ratio if arguments.enhance else None
            print("\n".join(range_file(Path(arguments.log_file), arguments.percentile, ratio)))
        else:
            _log(arguments.model_file, arguments.input_dir)
    except (TenonError, *SYSTEM_ERRORS) as error:
        print(f"{arguments.command}: {explained(error)}", file=sys.stderr)
        return 2
    return 0


def _convert(arguments: argparse.Namespace) -> None:
    """A bundle for every model and ABI of MACE's YAML, in OUTPUT/MODEL/TARGET."""
    abis = [abi.strip() for abi in arguments.target_abis.split(",") if abi.strip()]
    if unknown := [abi for abi in abis if abi not in TARGETS]:
        raise InputError(f"--target_abis {unknown[0]}: choose of {', '.join(TARGETS)}")
    deployment = tenon.read_deployment(arguments.config)
    for model in deployment.models:
        for note in model.notes:
            print(f"{model.name}: {note}", file=sys.stderr)
    targets = [TARGETS[abi] for abi in abis]
    for made in tenon.convert(deployment, arguments.output, targets=targets, progress=partial(print, file=sys.stderr)):
        print(made.folder)


def _log(model: str, folder: str) -> None:
    """The ranges of each sample, as a run of MACE with --quantize_stat prints them."""
    graph = tenon.load(model)
    for sample in read_samples(graph, folder, _RUNS):
        for name, pair in calibrated_ranges(graph, [sample]).items():
            print(log_line(name, *pair))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tenon.compat.mace", description="MACE's tools for models and ranges."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    convert = commands.add_parser("convert", help="a deployment file to bundles")
    convert.add_argument("--config", required=True, help="the YAML file")
    convert.add_argument("--output", default="build", help="folder for the bundles")
    convert.add_argument("--target_abis", default="", help="these instead of the file's, separated by commas")
    stat = commands.add_parser("quantize_stat", help="a log of ranges to a quantize_range_file, on standard output")
    stat.add_argument("--log_file", default="", help="path of the log that records ranges of tensors")
    stat.add_argument("--percentile", type=int, default=0, help="percent of the runs to leave out at either end")
    stat.add_argument("--enhance", action="store_true", help="narrow ranges that few runs need")
    stat.add_argument("--enhance_ratio", type=int, default=10, help="by how much that must pay")
    log = commands.add_parser("tensor_ranges", help="run a model on samples, and print such a log")
    log.add_argument("--model_file", required=True)
    log.add_argument("--input_dir", required=True, help="a folder of samples, or what tenon quantize --data takes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
