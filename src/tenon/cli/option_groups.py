"""Options that several subcommands share: each is declared once, in the group that it belongs to.

A group is a dataclass whose fields are options.  A subcommand under ``with_groups`` takes a group as one parameter;
the command line shows the group's fields in its place.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from tenon.cli.parse import (
    parse_assignments,
    parse_bindings,
    parse_head,
    parse_list,
    parse_numbers,
    parse_processors,
    parse_size,
    parse_values,
)

if TYPE_CHECKING:
    from tenon.cli.model_source import Source, Threads
    from tenon.engine.processors import Cores

Command = Callable[..., None]


def with_groups(command: Command) -> Command:
    """The command with every parameter that is a group replaced by the options of that group."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{f.name: values.pop(f.name) for f in fields(kind)})
        command(**values)

    parameters = [
        option
        for parameter in inspect.signature(command).parameters.values()
        for option in (
            _options_of(groups[parameter.name])
            if parameter.name in groups
            else [parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)]
        )
    ]
    flat.__annotations__ = {p.name: p.annotation for p in parameters}
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    return flat


def _options_of(group: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for option in fields(group):
        default = inspect.Parameter.empty if option.default is MISSING else option.default
        yield inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[option.name]
        )


# ---------------------------------------------------------------------------------- the model
Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=DIMS",
        help="Bind an input (x=1,3,224,224) or a dimension (batch=1); a name given again makes one more binding.",
    ),
]
Value = Annotated[
    list[str] | None,
    typer.Option(
        "--value", metavar="NAME=VALUE", help="Fix an input: a number (sr=16000), a list (x=1,2,3) or a .npy file."
    ),
]
Weights = Annotated[
    str | None, typer.Option("--weights", help="The second file (or folder) of a model that is kept in two.")
]


@dataclass(frozen=True)
class Model:
    """The model that a command is about."""

    model: Annotated[
        str,
        typer.Argument(help="A model's file or folder, an http(s) address, or (to run, time or inspect) a bundle's."),
    ]
    weights: Weights = None
    shape: Shape = None
    value: Value = None
    sha256: Annotated[str | None, typer.Option("--sha256", help="Refuse a model file with another checksum.")] = None
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TENSORS", help="Cut the model: begin at these, as in conv1,scale.")
    ] = None
    end: Annotated[str | None, typer.Option("--to", metavar="TENSORS", help="Cut the model: end at these.")] = None

    def source(self) -> Source:
        whole = source_of(self.model, self.weights, self.shape, self.value, self.sha256)
        return replace(whole, inputs=parse_list(self.begin), outputs=parse_list(self.end))


def source_of(
    model: str,
    weights: str | None = None,
    shape: list[str] | None = None,
    value: list[str] | None = None,
    sha256: str | None = None,
) -> Source:
    from tenon.cli.model_source import Source

    return Source(model, weights, sha256, parse_bindings(shape), parse_values(value))


def sources_of(models: list[str], shape: list[str] | None, value: list[str] | None) -> list[Source]:
    """Models that share the bindings of ``shape`` and what ``value`` fixes."""
    return [source_of(model, shape=shape, value=value) for model in models]


# ---------------------------------------------------------------------------------- how to compile


def _completed_target(incomplete: str) -> list[str]:
    """Targets whose names begin so, for a shell that completes a command."""
    from tenon.targets import targets

    return [name for name in ("host", *sorted(targets())) if name.startswith(incomplete)]


Target = Annotated[
    str | None,
    typer.Option("--target", help="The machine to compile for; see 'tenon targets'.", autocompletion=_completed_target),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Check every pass: the graph it leaves, and what that computes.")
]
Compiler = Annotated[str | None, typer.Option("--compiler", help="A gcc or clang to use instead of zig.")]


NoTuning = Annotated[
    bool, typer.Option("--no-tuning", help="Leave what 'tenon tune' measured aside: estimates choose algorithms.")
]


@dataclass(frozen=True)
class PlanOptions:
    """How a model is optimised and planned.  The fields of this and its heirs have the names of ``Options``."""

    target: Target = None
    optimize: Annotated[int | None, typer.Option("-O", min=0, max=2, help="Optimisation of the graph: 0, 1 or 2.")] = (
        None
    )
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision", help="fp32, or fp16 or bf16: weights in 16 bits; bf16 computed in where it can be."
        ),
    ] = None

    def overrides(self) -> dict[str, Any]:
        """What the user chose, as overrides for ``Options.from_environment``; a flag not given leaves it open."""
        values = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        if "compile_preprocess" in values:
            values["compile_preprocess"] = parse_size("--compile-preprocess", values["compile_preprocess"])
        if "head" in values:
            values["head"] = parse_head(values["head"])
        for name, option in (("data_formats", "--data-format"), ("data_types", "--data-type")):
            if name in values:
                values[name] = parse_assignments(option, values[name])
        if "ranges" in values:
            texts = parse_assignments("--range", values["ranges"])
            values["ranges"] = {name: parse_numbers("--range", text) for name, text in texts.items()}
        return values


@dataclass(frozen=True)
class InspectOptions(PlanOptions):
    """And looked at."""

    no_tuning: NoTuning = False


@dataclass(frozen=True)
class BuildOptions(PlanOptions):
    """And compiled."""

    compiler: Compiler = None
    verify: Verify = False
    data_formats: Annotated[
        list[str] | None,
        typer.Option("--data-format", metavar="[NAME=]FORMAT", help="An image, or all, as NHWC or NCHW; or NONE."),
    ] = None
    data_types: Annotated[
        list[str] | None,
        typer.Option("--data-type", metavar="NAME=TYPE", help="An input or output as float16, int32, uint8, ..."),
    ] = None
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="[NAME=]LOW,HIGH", help="What numbers an input holds, for random ones."),
    ] = None


@dataclass(frozen=True)
class RunOptions(BuildOptions):
    """And run."""

    no_tuning: NoTuning = False

    head: Annotated[
        str | None,
        typer.Option(
            "--head", metavar="'KIND KEY=VALUE ...'", help="How outputs list detections, as in 'ssd strides=8,16 "
            "sizes=10/16,32/48' (docs/images.md).",
        ),
    ] = None  # fmt: skip


@dataclass(frozen=True)
class BundleOptions(RunOptions):
    """And made into a bundle."""

    name: Annotated[str | None, typer.Option("--name", help="Name of the entry point and the files.")] = None
    winograd: Annotated[int | None, typer.Option("--winograd", help="Largest Winograd tile: 4, 2, or 0 for none.")] = (
        None
    )
    strassen: Annotated[int | None, typer.Option("--strassen", help="Levels of Strassen: 2, 1, or 0.")] = None
    dot2: Annotated[
        float | None, typer.Option("--dot2", min=0, help="Time of a product of pairs of bf16, in multiply-adds of f32.")
    ] = None
    max_winograd_error: Annotated[
        float | None, typer.Option("--max-winograd-error", min=0, help="Largest error over RMS that Winograd may add.")
    ] = None
    max_weights: Annotated[
        int | None, typer.Option("--max-weights", min=0, help="Most bytes of all weights, as packed.")
    ] = None
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="The most threads that the bundle can be run with.")
    ] = None
    profile: Annotated[bool, typer.Option("--profile", help="Add the entry point that 'tenon profile' times.")] = False
    compile_preprocess: Annotated[
        str | None,
        typer.Option(
            "--compile-preprocess",
            metavar="HxW",
            help="Let the input take image bytes [H, W, channels], preprocessing compiled in.",
        ),
    ] = None


@dataclass(frozen=True)
class TuneOptions(BuildOptions):
    """And tuned."""

    tuning: Annotated[Path | None, typer.Option("--table", help="The table to read and extend.")] = None


# ---------------------------------------------------------------------------------- preprocessing
@dataclass(frozen=True)
class PreprocessOptions:
    """How an image becomes an input.  All fields but ``bgr`` are named as in ``ir.preprocessing.Preprocessing``."""

    mean: Annotated[
        str | None, typer.Option("--mean", help="Subtracted from pixels: one number or one per channel.")
    ] = None
    scale: Annotated[
        str | None, typer.Option("--scale", help="Multiplies pixels after --mean; 1/255 is a number too.")
    ] = None
    channels: Annotated[str | None, typer.Option("--channels", help="Their order: rgb or bgr.")] = None
    bgr: Annotated[bool, typer.Option("--bgr", help="The same as --channels bgr.")] = False
    fit: Annotated[
        str | None, typer.Option("--fit", help="stretch, crop (the middle) or letterbox (whole, with a border).")
    ] = None
    resize: Annotated[
        int | None, typer.Option("--resize", min=1, help="With --fit crop: the shorter side before the cut, as in 256.")
    ] = None
    border: Annotated[
        int | None, typer.Option("--border", min=0, max=255, help="With --fit letterbox: the value around the image.")
    ] = None
    sampling: Annotated[
        str | None, typer.Option("--sampling", help="How pixels are resized: smooth, bilinear or nearest.")
    ] = None

    def overrides(self) -> dict[str, Any]:
        """The given options, as ``Options.preprocess`` takes them."""
        fields: dict[str, Any] = {name: value for name, value in vars(self).items() if value is not None}
        if fields.pop("bgr"):
            fields["channels"] = "bgr"
        numbers: dict[str, Any] = {
            name: parse_numbers(f"--{name}", fields[name]) for name in ("mean", "scale") if name in fields
        }
        return {**fields, **numbers}


# ---------------------------------------------------------------------------------- how to run and to print
@dataclass(frozen=True)
class ThreadOptions:
    """The threads and processors of a run."""

    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads that share a run.")] = 1
    affinity: Annotated[str | None, typer.Option("--affinity", help="Processors to run on, as in 0,1 or 0-3.")] = None
    cores: Annotated[str, typer.Option("--cores", help="Cores to run on: all (0), big (1) or little (2).")] = "all"

    def selected(self) -> Threads:
        """The kind of cores may be given by its number; ``tenon.open`` refuses unknown ones."""
        from tenon.cli.model_source import Threads

        kind = {"0": "all", "1": "big", "2": "little"}.get(self.cores, self.cores)
        return Threads(self.threads, parse_processors(self.affinity), cast("Cores", kind))


@dataclass(frozen=True)
class OutputOptions:
    """What is shown of a network's outputs."""

    top: Annotated[int, typer.Option("--top", min=0, help="Print the TOP largest values of each output.")] = 5
    labels: Annotated[Path | None, typer.Option("--labels", help="A text file with one class name per line.")] = None
    output: Annotated[Path | None, typer.Option("--output", help="Write all outputs to this .npz file.")] = None
    draw: Annotated[Path | None, typer.Option("--draw", help="Draw a detector's boxes into this image.")] = None
    threshold: Annotated[float, typer.Option("--threshold", help="Least score of a detection.")] = 0.5
    overlap: Annotated[
        float, typer.Option("--overlap", min=0, max=1, help="Boxes of one class that overlap more are one thing.")
    ] = 0.45


Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]


@dataclass(frozen=True)
class PrintOptions:
    """How answers and errors look."""

    json: Json = False
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show the traceback of an error.")] = False
