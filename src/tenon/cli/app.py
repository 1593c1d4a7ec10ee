"""The subcommands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from tenon.options import Emit

from tenon.cli.option_groups import (
    Answers,
    Bundling,
    Compiler,
    Inspecting,
    Json,
    Model,
    PreprocessingOptions,
    Printing,
    Running,
    Shape,
    Sharing,
    Target,
    Tuning,
    Value,
    Verify,
    Weights,
    source_of,
    sources_of,
    with_groups,
)
from tenon.cli.parse import parse_pairs

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Tenon: a trained network in, a standalone bundle of code and weights out.",
)

Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Measured runs.")]
Warmup = Annotated[int, typer.Option("--warmup", min=0, help="Runs before them that are not counted.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        import tenon

        typer.echo(f"tenon {tenon.__version__}")
        raise typer.Exit


@app.command("compile")
@with_groups
def compile_command(
    *,
    model: Model,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the bundle.")],
    emit: Annotated[
        str | None, typer.Option("--emit", help="Parts to add or choose: exe, or a list such as c,header,weights.")
    ] = None,
    preprocessing: PreprocessingOptions,
    options: Bundling,
    printing: Printing,
) -> None:
    """Compile a model to a bundle: header, C source, object, weights, library, manifest and, on request, executable."""
    from tenon.cli.commands import compile_model

    given = {**options.given(), "preprocess": preprocessing.changes()}
    compile_model(model.source(), out, _parts(emit), given, as_json=printing.json)


@app.command("run")
@with_groups
def run_command(
    *,
    model: Model,
    image: Annotated[Path | None, typer.Argument(help="An image file for the model's (only) image input.")] = None,
    image_option: Annotated[Path | None, typer.Option("--image", help="The same as an option.")] = None,
    input: Annotated[
        list[str] | None, typer.Option("--input", metavar="NAME=FILE", help="An input from a .npy file.")
    ] = None,
    preprocessing: PreprocessingOptions,
    answers: Answers,
    sharing: Sharing,
    options: Running,
    printing: Printing,
) -> None:
    """Run a model or a bundle on real input and print the answer."""
    from tenon.cli.run import Feeding, run_model

    feeding = Feeding(image or image_option, preprocessing.changes(), parse_pairs("--input", input))
    run_model(model.source(), options.given(), sharing.among(), feeding, answers, as_json=printing.json)


@app.command("inspect")
@with_groups
def inspect_command(
    *,
    model: Model,
    dot: Annotated[Path | None, typer.Option("--dot", help="Write the optimised graph to this Graphviz file.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the optimised graph as a page for a browser to this file.")
    ] = None,
    text: Annotated[Path | None, typer.Option("--text", help="Write the optimised graph to this text file.")] = None,
    layers: Annotated[bool, typer.Option("--layers", help="List every layer.")] = False,
    options: Inspecting,
    printing: Printing,
) -> None:
    """Show what a model is made of (operators, multiply-accumulates, parameters, peak RAM), or what a bundle holds."""
    from tenon.cli.commands import inspect_model

    files = {kind: file for kind, file in (("dot", dot), ("html", html), ("text", text)) if file}
    inspect_model(model.source(), options.given(), files, layers=layers, as_json=printing.json)


@app.command("benchmark")
@with_groups
def benchmark_command(
    *,
    models: Annotated[list[str] | None, typer.Argument(help="Model files or folders, or folders of bundles.")] = None,
    zoo: Annotated[Path | None, typer.Option("--zoo", help="Time every model in this folder too.")] = None,
    shape: Shape = None,
    value: Value = None,
    rounds: Rounds = 20,
    warmup: Warmup = 3,
    sharing: Sharing,
    options: Running,
    printing: Printing,
) -> None:
    """Time whole networks on random input: min, max, avg, std and median of each."""
    from tenon.cli.benchmark import benchmark
    from tenon.cli.benchmark import zoo as in_folder

    sources = sources_of([*(models or ()), *(in_folder(zoo) if zoo else ())], shape, value)
    benchmark(sources, options.given(), sharing.among(), rounds, warmup, as_json=printing.json)


@app.command("profile")
@with_groups
def profile_command(
    *,
    model: Model,
    rounds: Rounds = 100,
    warmup: Warmup = 10,
    html: Annotated[Path | None, typer.Option("--html", help="Write the profile as a page to this file.")] = None,
    sharing: Sharing,
    options: Running,
    printing: Printing,
) -> None:
    """Time every operator of a network and compare it with what the machine can do."""
    from tenon.cli.profile import profile_model

    profile_model(model.source(), options.given(), sharing.among(), rounds, warmup, html, as_json=printing.json)


@app.command("tune")
@with_groups
def tune_command(
    *,
    models: Annotated[list[str], typer.Argument(help="Model files or folders.")],
    shape: Shape = None,
    value: Value = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="The number of threads to measure with.")] = 1,
    options: Tuning,
    printing: Printing,
) -> None:
    """Measure the ways to compute each layer on this machine; compile uses what was found.  Can be interrupted."""
    from tenon.cli.tune import tune_models

    tune_models(sources_of(models, shape, value), options.given(), threads, as_json=printing.json)


@app.command("bench-op")
@with_groups
def bench_op_command(
    *,
    filter: Annotated[str, typer.Option("--filter", help="A regular expression for whole names.")] = ".*",
    listing: Annotated[bool, typer.Option("--list", help="Print the names only.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="How long to time each.")] = 0.25,
    target: Target = None,
    compiler: Compiler = None,
    printing: Printing,
) -> None:
    """Time single operators in realistic shapes: speed, and percent of the machine's measured peak."""
    from tenon.cli.bench_op import bench_operators

    bench_operators(filter, {"target": target, "compiler": compiler}, seconds, listing=listing, as_json=printing.json)


@app.command("optimize")
@with_groups
def optimize_command(
    *,
    model: Annotated[str, typer.Argument(help="A model's file or folder, an http(s) address, or a config.ini.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A folder, or a file that ends in .onnx or .prototxt.")
    ] = None,
    weights: Weights = None,
    shape: Shape = None,
    value: Value = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A config.ini that says which steps to take on a Caffe net.")
    ] = None,
    without_weights: Annotated[
        bool, typer.Option("--without-weights", help="Keep the shapes of weights but not their numbers, as ONNX.")
    ] = False,
    verify: Verify = False,
    printing: Printing,
) -> None:
    """Write an optimised model: a Caffe net as a Caffe net, anything else as ONNX."""
    from tenon.cli.optimize import rewrite_model

    source = source_of(model, weights, shape, value)
    rewrite_model(source, out, config, without_weights=without_weights, verify=verify, as_json=printing.json)


@app.command("targets")
def targets_command(json: Json = False) -> None:
    """List the machines that a model can be compiled for."""
    from tenon.cli.commands import list_targets

    list_targets(as_json=json)


def _parts(emit: str | None) -> tuple[Emit, ...]:
    """The words of --emit; the bundle refuses those that it does not know."""
    return tuple(cast("Emit", part.strip()) for part in emit.split(",")) if emit else ()
