"""The subcommands and their options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from tenon.options import Emit

from tenon.cli.command import Command, CommandGroup
from tenon.cli.generation_options import GenerationOptions, Prompt
from tenon.cli.groups import with_groups
from tenon.cli.language_commands import register as register_language_commands
from tenon.cli.live_options import LiveOptions
from tenon.cli.option_groups import (
    Begin,
    BundleOptions,
    Cluster,
    Compiler,
    DeviceOptions,
    DevicesFile,
    End,
    InspectOptions,
    Json,
    KeyOptions,
    Limits,
    Model,
    OutputOptions,
    PreprocessOptions,
    PrintOptions,
    RunOptions,
    Shape,
    SignatureOptions,
    Target,
    ThreadOptions,
    TuneOptions,
    Value,
    Verify,
    Weights,
    source_of,
    sources_of,
)
from tenon.cli.parse import parse_list, parse_pairs
from tenon.cli.program import version as program_version
from tenon.cli.protection_commands import register
from tenon.cli.sample_commands import compare_command, evaluate_command, quantize_command, validate_command
from tenon.cli.speech_options import SpeechOptions
from tenon.cli.unused_options import refuse
from tenon.errors import InputError

APP: dict[str, Any] = {
    "cls": CommandGroup,
    "context_settings": {"help_option_names": ["-h", "--help"]},
    "no_args_is_help": True,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
    "help": "Tenon compiles trained neural networks to standalone bundles of C code and weights.",
}
app = typer.Typer(**APP)

Rounds = Annotated[int, typer.Option("--rounds", min=1, help="Measured runs.")]
Format = Annotated[
    str, typer.Option("--format", help="How the results are printed: as a list, or as a predecessor's tables.")
]
Warmup = Annotated[int, typer.Option("--warmup", min=0, help="Warm-up runs before the measurement.")]


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(program_version())
        raise typer.Exit


@app.command("compile")
@with_groups
def compile_command(
    *,
    model: Model,
    out: Annotated[
        Path,
        typer.Option("-o", "--out", "--output", help="Folder of the bundle; or a single file, if it ends in .tenon."),
    ],
    emit: Annotated[
        list[str] | None,
        typer.Option(
            "--emit",
            metavar="PARTS",
            help="In addition to the usual parts: txt (weights to include), exe, html, npm, image, text, a, single-c, "
            "h, cmake, arduino, platformio, espidf, zephyr, cmsis, swift, android, tar, serial, micro, mace; or a list "
            "of parts: c, header, o, so, weights, ir.",
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option("--report", help="Also write an HTML page: memory, sizes, layers, graph, times, validation."),
    ] = None,
    encrypt: Annotated[
        bool, typer.Option("--encrypt", help="Encrypt the .tenon file, with the key that opens encrypted models.")
    ] = False,
    offload: Annotated[
        list[str] | None,
        typer.Option(
            "--offload",
            metavar="LIBRARY[=ARGUMENT]",
            help="The plug-in of a device that runs the parts which it supports, or a GPU target for what is faster "
            "there (opencl=measured: by times that are measured here); repeat it for several.",
        ),
    ] = None,
    device_of: Annotated[
        list[str] | None,
        typer.Option(
            "--device-of",
            metavar="LAYER=DEVICE",
            help="Run a layer, or all of an operator, on a device of --offload or on the cpu (conv1=opencl, "
            "Softmax=cpu, block3.*=npu).",
        ),
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option(
            "--grammar",
            metavar="FILE",
            help="Texts follow a JSON schema (.json) or GBNF grammar, unless told otherwise.",
        ),
    ] = None,
    dump: Annotated[
        Path | None,
        typer.Option(
            "--dump", metavar="DIR", help="Also write all stages as text: graphs, rules, plan, kernels, code."
        ),
    ] = None,
    preprocessing: PreprocessOptions,
    options: BundleOptions,
    printing: PrintOptions,
) -> None:
    """Compile a model to a bundle: header, C source, object, weights, library, manifest and, on request, executable.

    The first executable for a system (--emit exe) also builds a C library, which takes about a minute and is kept.
    """
    from tenon.cli.commands import WrittenFiles, compile_model

    given = {**options.overrides(), "preprocess": preprocessing.overrides()}
    if grammar is not None:
        from tenon.runtime.text.grammar import read_rules

        given["grammar"] = read_rules(grammar)
    devices, gpu = (tuple(offload or ()), tuple(device_of or ())), given.pop("gpu", {})
    written = WrittenFiles(out, _parts(emit), report, encrypt, *devices, dump, gpu)
    compile_model(model.source(), written, given, as_json=printing.json)


@app.command("run")
@with_groups
def run_command(
    *,
    model: Model,
    signed: SignatureOptions,
    image: Annotated[
        str | None,
        typer.Argument(help="An image, sound (.wav) or video file, or a video stream (rtsp://...)."),
    ] = None,
    image_option: Annotated[Path | None, typer.Option("--image", help="The image file, as an option.")] = None,
    input: Annotated[
        list[str] | None, typer.Option("--input", metavar="NAME=FILE", help="An input from a .npy file.")
    ] = None,
    prompt: Prompt = None,
    live: LiveOptions,
    preprocessing: PreprocessOptions,
    outputs: OutputOptions,
    generation: GenerationOptions,
    speech: SpeechOptions,
    threads: ThreadOptions,
    options: RunOptions,
    device: DeviceOptions,
    printing: PrintOptions,
) -> None:
    """Run a model or bundle on an image, sound, video, camera, text or .npy files and print the answer."""
    from tenon.cli.input_files import InputFiles
    from tenon.cli.run import run_model

    if image and image_option:
        raise InputError(f"--image {image_option}: the image {image} is given already")
    files = InputFiles(image or image_option, preprocessing.overrides(), parse_pairs("--input", input), live)
    signed.demand_bundles(model.model)
    where = device.choice()
    if prompt is not None and files.image is not None:
        from tenon.cli.image_texts import complete_image

        inputs = {"input": files.arrays, **vars(replace(live, crop=None))}
        refuse({**inputs, **vars(outputs), **vars(speech), **vars(device)}, "--prompt is given a text as answer")
        asked = (options.overrides(), threads.selected(), prompt, files, generation.overrides())
        return complete_image(model.source(), *asked, as_json=printing.json)
    if prompt is not None:
        from tenon.cli.language_models import complete

        inputs = {"image": files.given, "input": files.arrays, **files.preprocess, **vars(live)}
        refuse({**inputs, **vars(outputs), **vars(speech), **vars(device)}, "--prompt is given a text as answer")
        given = (options.overrides(), threads.selected(), prompt, generation.overrides())
        return complete(model.source(), *given, as_json=printing.json)
    generation.refuse("no text is generated: give one to go on with (--prompt)")
    if speech.given:
        from tenon.cli.texts import run_texts

        inputs = {"input": files.arrays, **vars(live), **vars(outputs), **vars(device)}
        refuse(inputs, "--text is spoken or embedded", ("output",))
        how = (options.overrides(), threads.selected(), speech, files, outputs.output)
        return run_texts(model.source(), *how, as_json=printing.json)
    given_files = (options.overrides(), threads.selected(), files, outputs, where)
    return run_model(model.source(), *given_files, speech, as_json=printing.json)


@app.command("verify")
@with_groups
def verify_command(*, model: Model, signed: SignatureOptions, options: RunOptions, printing: PrintOptions) -> None:
    """Run a quantised model, or a bundle of one, on a fixed input and compare the answer's digest with the references'.

    A model is compiled for --target and run there, by an emulator if need be.
    """
    from tenon.cli.verify import verify_model

    signed.demand_bundles(model.model)
    verify_model(model.source(), options.overrides(), as_json=printing.json)


@app.command("inspect")
@with_groups
def inspect_command(
    *,
    model: Model,
    signed: SignatureOptions,
    dot: Annotated[Path | None, typer.Option("--dot", help="Write the optimised graph to this Graphviz file.")] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write the optimised graph as an HTML page to this file.")
    ] = None,
    text: Annotated[Path | None, typer.Option("--text", help="Write the optimised graph to this text file.")] = None,
    layers: Annotated[bool, typer.Option("--layers", help="List every layer.")] = False,
    options: InspectOptions,
    printing: PrintOptions,
) -> None:
    """Show the operators, multiply-accumulates, parameters and peak RAM of a model, or the contents of a bundle."""
    from tenon.cli.commands import inspect_model

    files = {kind: file for kind, file in (("dot", dot), ("html", html), ("text", text)) if file}
    signed.demand_bundles(model.model)
    inspect_model(model.source(), options.overrides(), files, layers=layers, as_json=printing.json)


@app.command("benchmark")
@with_groups
def benchmark_command(
    *,
    models: Annotated[list[str] | None, typer.Argument(help="Model files or folders, or folders of bundles.")] = None,
    zoo: Annotated[Path | None, typer.Option("--zoo", help="Also time every model in this folder.")] = None,
    shape: Shape = None,
    value: Value = None,
    limits: Limits = None,
    key: KeyOptions,
    signed: SignatureOptions,
    rounds: Rounds = 20,
    warmup: Warmup = 3,
    streams: Annotated[
        int | None,
        typer.Option("--streams", min=1, help="Run this many inputs at once, with one copy of the weights."),
    ] = None,
    threads: ThreadOptions,
    options: RunOptions,
    device: DeviceOptions,
    format: Format = "plain",
    printing: PrintOptions,
) -> None:
    """Time whole networks on random input: the median of each, and how far the runs differ.

    For a --target that an emulator runs, count the instructions of one run instead.
    """
    from tenon.cli.benchmark import benchmark, models_in
    from tenon.cli.benchmark_rows import TimingSettings

    sources = sources_of([*(models or ()), *(models_in(zoo) if zoo else ())], shape, value, limits)
    where = device.choice()
    signed.demand_bundles(*(source.model for source in sources))
    how = (TimingSettings(rounds, warmup, threads.selected(), streams), where, format)
    benchmark(sources, options.overrides(), *how, as_json=printing.json)


@app.command("profile")
@with_groups
def profile_command(
    *,
    model: Model,
    signed: SignatureOptions,
    rounds: Rounds = 100,
    warmup: Warmup = 10,
    html: Annotated[Path | None, typer.Option("--html", help="Write the profile as an HTML page to this file.")] = None,
    threads: ThreadOptions,
    options: RunOptions,
    device: DeviceOptions,
    format: Format = "plain",
    printing: PrintOptions,
) -> None:
    """Time every operator of a network and compare it with the peak of the machine."""
    from tenon.cli.profile import profile_model

    how = (threads.selected(), rounds, warmup, html, device.choice(), format)
    signed.demand_bundles(model.model)
    profile_model(model.source(), options.overrides(), *how, as_json=printing.json)


@app.command("tune")
@with_groups
def tune_command(
    *,
    models: Annotated[list[str], typer.Argument(help="Model files or folders.")],
    shape: Shape = None,
    value: Value = None,
    limits: Limits = None,
    key: KeyOptions,
    threads: Annotated[int, typer.Option("--threads", min=1, help="The number of threads to measure with.")] = 1,
    options: TuneOptions,
    device: DeviceOptions,
    cluster: Cluster = None,
    gpu_parameters: Annotated[
        Path | None,
        typer.Option(
            "--gpu-parameters",
            metavar="FILE",
            help="Measure sizes of work groups, too, and add them to this file (on GPUs).",
        ),
    ] = None,
    printing: PrintOptions,
) -> None:
    """Measure the candidate algorithms of each layer, for use by compile.  Can be interrupted and resumed."""
    from tenon.cli.tune import tune_models

    how = (threads, device.choice(), cluster)
    given = {**options.overrides(), "gpu_parameters": gpu_parameters}
    tune_models(sources_of(models, shape, value, limits), given, *how, as_json=printing.json)


@app.command("bench-op")
@with_groups
def bench_op_command(
    *,
    filter: Annotated[
        str, typer.Option("--filter", metavar="REGEX", help="Regular expression that matches whole names.")
    ] = ".*",
    listing: Annotated[bool, typer.Option("--list", help="Print the names only.")] = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0, help="Measuring time per operator.")] = 0.25,
    target: Target = None,
    compiler: Compiler = None,
    printing: PrintOptions,
) -> None:
    """Time single operators with realistic shapes: speed, and percent of the machine's measured peak."""
    from tenon.cli.bench_op import bench_operators

    bench_operators(filter, {"target": target, "compiler": compiler}, seconds, listing=listing, as_json=printing.json)


@app.command("optimize")
@with_groups
def optimize_command(
    *,
    model: Annotated[str, typer.Argument(help="A model's file or folder, an http(s) address, or a config.ini.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="A folder, or a file: .onnx, .tflite, .tmfile, .prototxt.")
    ] = None,
    weights: Weights = None,
    shape: Shape = None,
    value: Value = None,
    limits: Limits = None,
    begin: Begin = None,
    end: End = None,
    key: KeyOptions,
    config: Annotated[
        Path | None, typer.Option("--config", help="A config.ini with the optimisation steps for a Caffe net.")
    ] = None,
    without_weights: Annotated[
        bool, typer.Option("--without-weights", help="Write the weights' shapes without their values (ONNX).")
    ] = False,
    verify: Verify = False,
    printing: PrintOptions,
) -> None:
    """Write an optimised model: Caffe nets as Caffe, other models as ONNX, or as the name of --out says."""
    from tenon.cli.optimize import rewrite_model

    if model.lower().endswith(".ini"):
        rest = {"out": out, "weights": weights, "shape": shape, "value": value, "config": config, "verify": verify}
        rest |= {"without_weights": without_weights, "limits": limits, "begin": begin, "end": end}
        refuse(rest, f"{model} names the files and steps of a Caffe net")
    whole = source_of(model, weights, shape, value, limits=limits)
    source = replace(whole, inputs=parse_list(begin), outputs=parse_list(end))
    rewrite_model(source, out, config, without_weights=without_weights, verify=verify, as_json=printing.json)


app.command("quantize")(quantize_command)
app.command("compare")(compare_command)
app.command("validate")(validate_command)
app.command("evaluate")(evaluate_command)


@app.command("convert")
@with_groups
def convert_command(
    *,
    config: Annotated[
        Path,
        typer.Option("--config", metavar="FILE", help="Deployment file (YAML): models and what to make of each."),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", "--output", help="Folder for the bundles.")] = Path("build"),
    names: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="Only this model of the file; may be repeated.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="NAME", help="For this target instead of the file's; may be repeated."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only read the file and import its models.")] = False,
    key: KeyOptions,
    json: Json = False,
) -> None:
    """Compile all models of a deployment file, which may be one of MACE's, for all of their targets."""
    from tenon.cli.convert import convert_deployment

    convert_deployment(config, out, names or [], target or [], check=check, as_json=json)


@app.command("targets")
def targets_command(json: Json = False) -> None:
    """List the targets that models can be compiled for: what each is, how it is tested, and whether it runs here."""
    from tenon.cli.list_targets import list_targets

    list_targets(as_json=json)


@app.command("devices")
def devices_command(
    *,
    names: Annotated[list[str] | None, typer.Argument(help="Names or SoCs of devices; all if there are none.")] = None,
    devices: DevicesFile = None,
    json: Json = False,
) -> None:
    """List devices: whether each answers, and what it is."""
    from tenon.cli.deploy import list_devices

    list_devices(names or [], devices, as_json=json)


@app.command("deploy")
@with_groups
def deploy_command(
    *,
    model: Model,
    signed: SignatureOptions,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", metavar="NAME", help="A device, its SoC, or all; may be repeated."),
    ] = None,
    devices: DevicesFile = None,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Versions that stay on a device.")] = 3,
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Go back to the version before; MODEL is the bundle's name.")
    ] = False,
    options: BundleOptions,
    printing: PrintOptions,
) -> None:
    """Compile a model for devices, push the bundle, run it there, and make it current; a bundle is pushed as it is."""
    from tenon.cli.deploy import deploy_to_devices
    from tenon.runtime.engine.files import check_demanded_signature

    given = (device or [], devices, options.overrides())
    if not rollback:
        signed.demand_bundles(model.model)
        check_demanded_signature(model.model)
    deploy_to_devices(model.source(), *given, keep=keep, back=rollback, as_json=printing.json)


@app.command("sdk")
def sdk_command(
    *,
    out: Annotated[Path, typer.Option("-o", "--out", "--output", help="The folder to write.")],
    target: Target = None,
    compiler: Compiler = None,
    json: Json = False,
) -> None:
    """Build libtenon, the C library that runs bundles, for a target, with headers, CMake and pkg-config files.

    The first time for a target takes a minute or two; what is compiled is kept.
    """
    from tenon.cli.sdk import write_sdk

    write_sdk(target, compiler, out, as_json=json)


register(app)
register_language_commands(app)
for _info in app.registered_commands:
    _info.cls = Command


def _parts(emit: list[str] | None) -> tuple[Emit, ...]:
    """The parts named by --emit; ``Bundle.save`` rejects unknown ones."""
    from tenon.options import EMIT_ALIASES

    parts = [part.strip() for text in emit or () for part in text.split(",")]
    return tuple(EMIT_ALIASES.get(part, cast("Emit", part)) for part in parts)


def only_command(app: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """The app with the one command that the command line names, where it begins with one: typer resolves the options of
    all commands that it has, which takes longer than parsing."""
    named = [command for command in app.registered_commands if words and command.name == words[0]]
    if not named:
        return app
    single = typer.Typer(**APP)
    single.callback(invoke_without_command=True)(root)
    single.registered_commands = named
    return single
