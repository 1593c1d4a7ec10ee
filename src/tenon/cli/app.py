"""The subcommands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

if TYPE_CHECKING:
    from tenon.cli.opening import Threads
    from tenon.engine.processors import Cores
    from tenon.options import Emit

from tenon.cli.words import parse_numbers, parse_pairs, parse_shapes

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Tenon: a trained network in, a standalone bundle of code and weights out.",
)

Model = Annotated[
    str, typer.Argument(help="A model's file or folder, an http(s) address, or (for run) the folder of a bundle.")
]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=DIMS", help="Bind an input (x=1,3,224,224) or a dimension (batch=1)."),
]
Target = Annotated[str | None, typer.Option("--target", help="The machine to compile for; see 'tenon targets'.")]
Precision = Annotated[
    str | None,
    typer.Option("--precision", help="fp32, or fp16 or bf16: weights in 16 bits; bf16 computed in where it can be."),
]
Level = Annotated[int | None, typer.Option("-O", min=0, max=2, help="Optimisation of the graph: 0, 1 or 2.")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show the traceback of an error.")]
Sha = Annotated[str | None, typer.Option("--sha256", help="Refuse a model file with another checksum.")]
Weights = Annotated[
    str | None, typer.Option("--weights", help="The second file (or folder) of a model that is kept in two.")
]
Compiler = Annotated[str | None, typer.Option("--compiler", help="A gcc or clang to use instead of zig.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        import tenon

        typer.echo(f"tenon {tenon.__version__}")
        raise typer.Exit


@app.command("compile")
def compile_command(
    model: Model,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the bundle.")],
    weights: Weights = None,
    target: Target = None,
    shape: Shape = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the entry point and the files.")] = None,
    emit: Annotated[
        str | None, typer.Option("--emit", help="Parts to add or choose: exe, or a list such as c,header,weights.")
    ] = None,
    level: Level = None,
    precision: Precision = None,
    winograd: Annotated[
        int | None, typer.Option("--winograd", help="Largest Winograd tile: 4, 2, or 0 for none.")
    ] = None,
    strassen: Annotated[int | None, typer.Option("--strassen", help="Levels of Strassen: 2, 1, or 0.")] = None,
    max_winograd_error: Annotated[
        float | None, typer.Option("--max-winograd-error", min=0, help="Largest error over RMS that Winograd may add.")
    ] = None,
    max_weights: Annotated[
        int | None, typer.Option("--max-weights", min=0, help="Most bytes of all weights, as packed.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="The most threads that the bundle can be run with.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check the graph after every pass.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Add the entry point that 'tenon profile' times.")] = False,
    compiler: Compiler = None,
    sha256: Sha = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Compile a model to a bundle: header, C source, object, weights, library, manifest and, on request, executable."""
    from tenon.cli.commands import compile_model
    from tenon.cli.opening import Source

    options = {
        "target": target,
        "name": name,
        "optimize": level,
        "threads": threads,
        "precision": precision,
        "verify": verify or None,
        "winograd": winograd,
        "strassen": strassen,
        "max_winograd_error": max_winograd_error,
        "max_weights": max_weights,
        "profile": profile or None,
        "compiler": compiler,
    }
    compile_model(Source(model, weights, sha256, parse_shapes(shape)), out, _parts(emit), options, as_json=json)


@app.command("run")
def run_command(
    model: Model,
    weights: Weights = None,
    image: Annotated[Path | None, typer.Option("--image", help="A picture for the model's (only) image input.")] = None,
    input: Annotated[
        list[str] | None, typer.Option("--input", metavar="NAME=FILE", help="An input from a .npy file.")
    ] = None,
    mean: Annotated[str, typer.Option("--mean", help="Subtracted from pixels: one number, or one per channel.")] = "0",
    scale: Annotated[
        str, typer.Option("--scale", help="Multiplies pixels after --mean: one, or one per channel.")
    ] = "1",
    bgr: Annotated[bool, typer.Option("--bgr", help="Channels are blue, green, red.")] = False,
    top: Annotated[int, typer.Option("--top", min=0, help="Print the TOP largest values of each output.")] = 5,
    labels: Annotated[Path | None, typer.Option("--labels", help="A text file with one class name per line.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write all outputs to this .npz file.")] = None,
    threads: Count = 1,
    affinity: Affinity = None,
    cores: Kind = "all",
    target: Target = None,
    shape: Shape = None,
    level: Level = None,
    precision: Precision = None,
    compiler: Compiler = None,
    sha256: Sha = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a model or a bundle on real input and print the answer."""
    from tenon.cli.commands import run_model
    from tenon.cli.opening import Source

    picture = {"mean": parse_numbers("--mean", mean), "scale": parse_numbers("--scale", scale), "bgr": bgr}
    options = {"target": target, "optimize": level, "precision": precision, "compiler": compiler}
    source = Source(model, weights, sha256, parse_shapes(shape))
    files = parse_pairs("--input", input)
    shared = _threads(threads, affinity, cores)
    run_model(source, options, shared, image, picture, files, top, labels, output, as_json=json)


@app.command("inspect")
def inspect_command(
    model: Model,
    weights: Weights = None,
    shape: Shape = None,
    target: Target = None,
    level: Level = None,
    precision: Precision = None,
    dot: Annotated[Path | None, typer.Option("--dot", help="Write the optimised graph to this Graphviz file.")] = None,
    text: Annotated[Path | None, typer.Option("--text", help="Write the optimised graph to this text file.")] = None,
    layers: Annotated[bool, typer.Option("--layers", help="List every layer.")] = False,
    sha256: Sha = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show what a model is made of: operators, multiply-accumulates, parameters, peak RAM."""
    from tenon.cli.commands import inspect_model
    from tenon.cli.opening import Source

    options = {"target": target, "optimize": level, "precision": precision}
    inspect_model(Source(model, weights, sha256, parse_shapes(shape)), options, dot, text, layers=layers, as_json=json)


Count = Annotated[int, typer.Option("--threads", min=1, help="Threads that share a run.")]
Affinity = Annotated[str | None, typer.Option("--affinity", help="Processors to run on, as in 0,1 or 0-3.")]
Kind = Annotated[str, typer.Option("--cores", help="Cores to run on: all (0), big (1) or little (2).")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Measured runs.")]
Warmup = Annotated[int, typer.Option("--warmup", min=0, help="Runs before them that are not counted.")]


@app.command("benchmark")
def benchmark_command(
    models: Annotated[list[str] | None, typer.Argument(help="Model files or folders, or folders of bundles.")] = None,
    zoo: Annotated[Path | None, typer.Option("--zoo", help="Time every model in this folder too.")] = None,
    rounds: Rounds = 20,
    threads: Count = 1,
    affinity: Affinity = None,
    cores: Kind = "all",
    warmup: Warmup = 3,
    target: Target = None,
    shape: Shape = None,
    level: Level = None,
    precision: Precision = None,
    compiler: Compiler = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Time whole networks on random input: min, max, avg, std and median of each."""
    from tenon.cli.benchmark import benchmark
    from tenon.cli.benchmark import zoo as in_folder
    from tenon.cli.opening import Source

    options = {"target": target, "optimize": level, "precision": precision, "compiler": compiler}
    names = [*(models or ()), *(in_folder(zoo) if zoo else ())]
    sources = [Source(name, shapes=parse_shapes(shape)) for name in names]
    benchmark(sources, options, _threads(threads, affinity, cores), rounds, warmup, as_json=json)


@app.command("profile")
def profile_command(
    model: Model,
    weights: Weights = None,
    rounds: Rounds = 100,
    threads: Count = 1,
    affinity: Affinity = None,
    cores: Kind = "all",
    warmup: Warmup = 10,
    html: Annotated[Path | None, typer.Option("--html", help="Write the profile as a page to this file.")] = None,
    target: Target = None,
    shape: Shape = None,
    level: Level = None,
    precision: Precision = None,
    compiler: Compiler = None,
    sha256: Sha = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Time every operator of a network and compare it with what the machine can do."""
    from tenon.cli.opening import Source
    from tenon.cli.profile import profile_model

    options = {"target": target, "optimize": level, "precision": precision, "compiler": compiler}
    source = Source(model, weights, sha256, parse_shapes(shape))
    profile_model(source, options, _threads(threads, affinity, cores), rounds, warmup, html, as_json=json)


@app.command("tune")
def tune_command(
    models: Annotated[list[str], typer.Argument(help="Model files or folders.")],
    threads: Annotated[int, typer.Option("--threads", min=1, help="The number of threads to measure with.")] = 1,
    path: Annotated[Path | None, typer.Option("--table", help="The table to read and extend.")] = None,
    target: Target = None,
    shape: Shape = None,
    level: Level = None,
    precision: Precision = None,
    compiler: Compiler = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Measure the ways to compute each layer on this machine; compile uses what was found.  Can be interrupted."""
    from tenon.cli.opening import Source
    from tenon.cli.tune import tune_models

    options = {"target": target, "optimize": level, "precision": precision, "compiler": compiler, "tuning": path}
    sources = [Source(name, shapes=parse_shapes(shape)) for name in models]
    tune_models(sources, options, threads, as_json=json)


@app.command("bench-op")
def bench_op_command(
    filter: Annotated[str, typer.Option("--filter", help="A regular expression for whole names.")] = ".*",
    listing: Annotated[bool, typer.Option("--list", help="Print the names only.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="How long to time each.")] = 0.25,
    target: Target = None,
    compiler: Compiler = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Time single operators in realistic shapes: speed, and percent of the machine's measured peak."""
    from tenon.cli.bench_op import bench_operators

    bench_operators(filter, {"target": target, "compiler": compiler}, seconds, listing=listing, as_json=json)


@app.command("optimize")
def optimize_command(
    model: Annotated[str, typer.Argument(help="A model's file or folder, an http(s) address, or a config.ini.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A folder, or a file that ends in .onnx or .prototxt.")
    ] = None,
    weights: Weights = None,
    shape: Shape = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A config.ini that says which steps to take on a Caffe net.")
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Write an optimised model: a Caffe net as a Caffe net, anything else as ONNX."""
    from tenon.cli.opening import Source
    from tenon.cli.optimize import rewrite_model

    rewrite_model(Source(model, weights, None, parse_shapes(shape)), out, config, as_json=json)


@app.command("targets")
def targets_command(json: Json = False) -> None:
    """List the machines that a model can be compiled for."""
    from tenon.cli.commands import list_targets

    list_targets(as_json=json)


def _parts(emit: str | None) -> tuple[Emit, ...]:
    """The words of --emit; the bundle refuses those that it does not know."""
    return tuple(cast("Emit", part.strip()) for part in emit.split(",")) if emit else ()


def _threads(count: int, affinity: str | None, cores: str) -> Threads:
    """The kind of cores may be given by its number; ``tenon.open`` refuses unknown ones."""
    from tenon.cli.opening import Threads
    from tenon.cli.words import parse_processors

    return Threads(
        count, parse_processors(affinity), cast("Cores", {"0": "all", "1": "big", "2": "little"}.get(cores, cores))
    )
