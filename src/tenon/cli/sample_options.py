"""Options of the subcommands that run models on samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tenon.cli.option_groups import Target
from tenon.cli.unused_options import refuse

_DATA = typer.Option(
    "--data",
    metavar="DATA",
    help="Samples: a folder of images, .npy or .wav files, a .npy or .npz file, or MODULE:FUNCTION.",
)
Data = Annotated[str, _DATA]
OptionalData = Annotated[str | None, _DATA]
Samples = Annotated[int, typer.Option("--samples", min=1, help="Number of samples.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Chooses the samples, if there are more.")]
Focus = Annotated[
    bool,
    typer.Option(
        "--focus", help="Images of twice the size, even and odd rows and columns as channels: YOLOv5's focus layer."
    ),
]
GroundTruth = Annotated[
    Path | None,
    typer.Option(
        "--ground-truth",
        metavar="FILE",
        help="What is true of each sample: an .npy, .npz, .json or .txt file, in their order or by file name.",
    ),
]
Report = Annotated[
    Path | None, typer.Option("--report", help="Write the report: a page if it ends in .html, else JSON.")
]


@dataclass(frozen=True)
class SchemeOptions:
    """Options of the layers, the scheme and the ranges.  Fields are named as the arguments of ``tenon.quantize``."""

    scheme: Annotated[
        str,
        typer.Option("--scheme", help="What to quantise to; auto: by --target."),
    ] = "auto"
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="How the ranges of activations follow from the samples; auto: the best of these.",
        ),
    ] = "auto"
    ranges: Annotated[
        Path | None,
        typer.Option("--ranges", metavar="FILE", help="Known ranges: YAML, or a file of Tengine, MACE or Glow."),
    ] = None
    change_concat_ranges: Annotated[
        bool,
        typer.Option("--change-concat-ranges", help="One range for a concatenation and all that it joins."),
    ] = False
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="LAYER", help="A layer to leave in float; may be repeated.")
    ] = None
    int16: Annotated[
        list[str] | None,
        typer.Option("--int16", metavar="LAYER", help="A layer to give activations of 16 bits; may be repeated."),
    ] = None
    fp16: Annotated[
        list[str] | None, typer.Option("--fp16", metavar="LAYER", help="A layer to compute in fp16; may be repeated.")
    ] = None

    def settings(self) -> dict[str, Any]:
        """Arguments of ``tenon.quantize``."""
        return {**vars(self), "exclude": self.exclude or [], "int16": self.int16 or [], "fp16": self.fp16 or []}


@dataclass(frozen=True)
class RepairOptions:
    """Options of the repairs that make the loss smaller.  Fields are named as the arguments of ``tenon.quantize``."""

    bias_correction: Annotated[
        bool, typer.Option("--bias-correction/--no-bias-correction", help="Put the means of channels back.")
    ] = True
    range_search: Annotated[
        bool, typer.Option("--range-search/--no-range-search", help="Try narrower and wider ranges of each tensor.")
    ] = True
    equalisation: Annotated[
        bool | None,
        typer.Option("--equalisation/--no-equalisation", help="Scale channels to similar ranges."),
    ] = None
    rounding: Annotated[str, typer.Option("--rounding", help="How weights are rounded; auto: the best of these.")] = (
        "auto"
    )


@dataclass(frozen=True)
class ContractOptions:
    """Options of the accuracy that must be kept.  Fields are named as the arguments of ``tenon.quantize``."""

    min_sqnr: Annotated[
        float | None,
        typer.Option(
            "--min-sqnr", metavar="DB", help="Leave layers in float or 16 bits until the outputs have this SQNR."
        ),
    ] = None
    max_drop: Annotated[
        float | None,
        typer.Option(
            "--max-drop", metavar="POINTS", help="Leave layers in float or 16 bits until the metric drops no further."
        ),
    ] = None
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric",
            metavar="METRIC",
            help="What --max-drop is about: top1, top5, auc, wer, or MODULE:NAME of a plug-in.",
        ),
    ] = None
    ground_truth: GroundTruth = None
    mixed_types: Annotated[
        str,
        typer.Option(
            "--mixed-types",
            metavar="TYPES",
            help="What layers may be instead for a contract, of int16, fp16 and float.",
        ),
    ] = "int16,fp16,float"
    target: Target = None

    def settings(self) -> dict[str, Any]:
        """Arguments of ``tenon.quantize``."""
        types = tuple(part.strip() for part in self.mixed_types.split(","))
        return {**vars(self), "target": self.target or "host", "mixed_types": types}


@dataclass(frozen=True)
class RangeFileOptions:
    """The file that the ranges of tensors are written to."""

    save_ranges: Annotated[
        Path | None,
        typer.Option(
            "--save-ranges", metavar="FILE", help="Write the ranges: Tengine's if it ends in .scale, MACE's in .range."
        ),
    ] = None
    ranges_format: Annotated[str, typer.Option("--ranges-format", help="The format of --save-ranges.")] = ""

    def file(self) -> tuple[Path, str] | None:
        """The file and its format.  Raises InputError for a format without a file."""
        if self.save_ranges is None:
            refuse({"ranges_format": self.ranges_format}, "it is the format of --save-ranges: name the file")
        return (self.save_ranges, self.ranges_format) if self.save_ranges is not None else None
