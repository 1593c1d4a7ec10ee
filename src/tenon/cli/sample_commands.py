"""The subcommands that run models on samples: quantize, compare, validate, evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tenon.cli.groups import with_groups
from tenon.cli.option_groups import (
    Cluster,
    DeviceOptions,
    KeyOptions,
    Model,
    PreprocessOptions,
    PrintOptions,
    RunOptions,
    SignatureOptions,
    ThreadCount,
    ThreadOptions,
    source_of,
)
from tenon.cli.repeated import repeated_words
from tenon.cli.sample_options import (
    ContractOptions,
    Data,
    Focus,
    GroundTruth,
    OptionalData,
    RangeFileOptions,
    RepairOptions,
    Report,
    Samples,
    SchemeOptions,
    Seed,
)
from tenon.cli.unused_options import refuse

_OF_CONTRACTS = {
    "min_sqnr",
    "max_drop",
    "metric",
    "ground_truth",
    "mixed_types",
    "report",
    "pareto",
    "save_ranges",
    "ranges_format",
    "json",
    "verbose",
}
"""Arguments that a command for one mixture of types of layers leaves out."""


def with_focus(preprocess: PreprocessOptions, *, focus: bool) -> dict[str, Any]:
    """How images of samples become inputs."""
    return {**preprocess.overrides(), **({"focus": True} if focus else {})}


@with_groups
def quantize_command(
    *,
    context: typer.Context,
    model: Model,
    data: OptionalData = None,
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            "--output",
            help="The .onnx, .tflite or .tmfile file to write, or the bundle for --target: a folder or a .tenon file.",
        ),
    ],
    samples: Samples = 128,
    seed: Seed = 0,
    scheme: SchemeOptions,
    saved: RangeFileOptions,
    repairs: RepairOptions,
    contract: ContractOptions,
    report: Report = None,
    pareto: Annotated[
        Path | None,
        typer.Option(
            "--pareto", help="Write a page of what was tried for --min-sqnr or --max-drop: cost and accuracy."
        ),
    ] = None,
    preprocess: PreprocessOptions,
    focus: Focus = False,
    threads: ThreadCount = 1,
    cluster: Cluster = None,
    printing: PrintOptions,
) -> None:
    """Quantise a float model to 8-bit integers, calibrated on samples; writes ONNX, TFLite or tmfile."""
    from tenon.cli.quantize import quantize_model

    words = repeated_words(context, _OF_CONTRACTS)
    settings = {
        "data": data,
        "samples": samples,
        "seed": seed,
        **scheme.settings(),
        **vars(repairs),
        **contract.settings(),
        "preprocess": with_focus(preprocess, focus=focus),
        "threads": threads,
        "cluster": cluster,
    }
    told = {"as_json": printing.json, "verbose": printing.verbose}
    quantize_model(model.source(), out, settings, report, pareto, saved.file(), words=words, **told)


@with_groups
def compare_command(
    *,
    first: Annotated[str, typer.Argument(help="A model, a bundle, onnxruntime:FILE, litert:FILE or TARGET:FILE.")],
    second: Annotated[str, typer.Argument(help="Another one, which is measured by the first.")],
    key: KeyOptions,
    signed: SignatureOptions,
    data: Data,
    samples: Samples = 32,
    seed: Seed = 0,
    layers: Annotated[bool, typer.Option("--layers", help="Compare tensors of the same name, too.")] = False,
    arithmetic: Annotated[str | None, typer.Option("--arithmetic", help="How quantised models are computed.")] = None,
    report: Report = None,
    preprocess: PreprocessOptions,
    focus: Focus = False,
    threads: ThreadCount = 1,
    printing: PrintOptions,
) -> None:
    """Compare what two of {model, bundle, model in another runtime} compute on the same samples."""
    from tenon.cli.compare import compare_networks

    settings = {
        "samples": samples,
        "seed": seed,
        "layers": layers,
        "arithmetic": arithmetic,
        "preprocess": with_focus(preprocess, focus=focus),
        "threads": threads,
    }
    if not any(source_of(network).bundle for network in (first, second)):
        signed.demand_bundles(first)
    compare_networks(first, second, data, settings, report, as_json=printing.json)


@with_groups
def validate_command(
    *,
    model: Model,
    signed: SignatureOptions,
    data: OptionalData = None,
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="RUNTIME",
            help="The runtime to compare with: onnxruntime, litert, opencv, ncnn, paddle, tensorflow or torch, or a "
            "target (host); with :FILE for another file there.",
        ),
    ] = None,
    expected: Annotated[
        Path | None, typer.Option("--expected", metavar="FILE", help="Recorded outputs: an .npz file by output name.")
    ] = None,
    threshold: Annotated[float | None, typer.Option("--threshold", help="Least cosine similarity.")] = None,
    min_sqnr: Annotated[
        float | None,
        typer.Option("--min-sqnr", metavar="DB", help="Least signal-to-quantisation-noise ratio."),
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option("--max-error", help="Largest error over the largest magnitude."),
    ] = None,
    samples: Samples = 8,
    seed: Seed = 0,
    layers: Annotated[
        bool, typer.Option("--layers", help="Compare layers, too, and name the first wrong one.")
    ] = False,
    names: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME", help="Of a deployment file only this model; may be repeated."),
    ] = None,
    preprocess: PreprocessOptions,
    options: RunOptions,
    device: DeviceOptions,
    printing: PrintOptions,
) -> None:
    """Compare a compiled model, on --target, with its source framework or with recorded outputs.

    Of a deployment file (.yml), all models are compared on the inputs that it names, each on its targets.
    """
    from tenon.cli.validate import validate_config, validate_model

    signed.demand_bundles(model.model)
    if model.model.endswith((".yml", ".yaml")):
        rest = {
            "data": data,
            "against": against,
            "expected": expected,
            **vars(preprocess),
            **vars(model),
            **vars(options),
        }
        refuse(rest, f"{model.model} states models, inputs and options", ("model", "target", "key_file"))
        chosen = {
            "models": names or [],
            "threshold": threshold,
            "min_sqnr": min_sqnr,
            "max_error": max_error,
            "layers": layers,
            "seed": seed,
        }
        return validate_config(Path(model.model), chosen, options.target, device.choice(), as_json=printing.json)
    refuse({"model": names}, "it selects models of a deployment file (.yml)")
    settings = {"samples": samples, "seed": seed, "layers": layers, "preprocess": preprocess.overrides()}
    where, limits = device.choice(), (threshold, min_sqnr, max_error)
    return validate_model(
        model.source(), options.overrides(), data, against, expected, settings, limits, where, as_json=printing.json
    )


@with_groups
def evaluate_command(
    *,
    model: Model,
    signed: SignatureOptions,
    data: OptionalData = None,
    metric: Annotated[
        str,
        typer.Option(
            "--metric",
            metavar="METRIC",
            help="top1, top5, auc, map, wer, perplexity, MODULE:NAME of a plug-in, or a script of MACE's.",
        ),
    ] = "top1",
    ground_truth: GroundTruth = None,
    reference: Annotated[
        str | None,
        typer.Option("--reference", metavar="MODEL", help="With perplexity: a model with the same tokens to compare."),
    ] = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="Number of samples.")] = None,
    seed: Seed = 0,
    preprocess: PreprocessOptions,
    threads: ThreadOptions,
    options: RunOptions,
    device: DeviceOptions,
    cluster: Cluster = None,
    printing: PrintOptions,
) -> None:
    """Measure the accuracy of a model or bundle, on --target, on samples whose truth is known."""
    from tenon.cli.device_choice import HERE
    from tenon.cli.evaluate import evaluate_model, evaluate_text

    settings = {
        "cluster": cluster,
        "data": data,
        "metric": metric,
        "ground_truth": ground_truth,
        "samples": samples,
        "seed": seed,
        "preprocess": preprocess.overrides(),
    }
    where = device.choice()
    signed.demand_bundles(model.model)
    if metric == "perplexity":
        others = {"cluster": cluster, "ground_truth": ground_truth, **preprocess.overrides(), "device": where != HERE}
        refuse(others, "--metric perplexity reads a text, here")
        evaluate_text(
            model.source(),
            options.overrides(),
            threads.selected(),
            data,
            source_of(reference) if reference else None,
            samples,
            as_json=printing.json,
        )
        return
    refuse({"reference": reference}, "it is compared with by --metric perplexity")
    evaluate_model(model.source(), options.overrides(), threads.selected(), settings, where, as_json=printing.json)
