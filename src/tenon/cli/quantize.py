"""``tenon quantize``: post-training quantisation."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import tenon
from tenon.atomic_write import write
from tenon.cli.console import console, note, print_json, size, steps
from tenon.cli.model_source import ModelArgument
from tenon.cli.noise_page import agreement_text, decibels, page
from tenon.cli.noise_table import print_noise, without_infinity
from tenon.cli.unused_options import refuse
from tenon.errors import InputError
from tenon.formats.exporters.save import ENDINGS
from tenon.options import Options
from tenon.pipeline import find_target
from tenon.runtime.bundle.container import SUFFIX
from tenon.runtime.bundle.names import library_name
from tenon.runtime.bundle.writer import save_container
from tenon.tools.quantization import Quantized, Report
from tenon.tools.quantization.default_scheme import AUTO
from tenon.tools.quantization.mixed_precision import TYPES
from tenon.tools.quantization.post_training import SEPARATE

OF_TMFILES = "int8-symmetric"
"""The scheme of .tmfile files where none is asked for: Tengine's int8 has no zero points."""

WORST = 5
"""Tensors that are printed."""

NOISY = 20.0
"""dB of an output below which the remedy is printed: boxes of detectors move there, and close answers change."""


FEW = 10
"""Samples below which neither the ranges that they give nor the figures of the report say much."""


def quantize_model(
    source: ModelArgument,
    out: Path,
    settings: Mapping[str, Any],
    report: Path | None,
    pareto: Path | None,
    ranges: tuple[Path, str] | None = None,
    *,
    words: Sequence[str],
    as_json: bool,
    verbose: bool = False,
) -> None:
    """Quantise, save, and write and print the report; ``ranges`` are a file for those of tensors, and its format,
    ``words`` the command without a contract.  With ``verbose`` everything that was tried is printed, too."""
    if settings["min_sqnr"] is None and settings["max_drop"] is None:
        refuse({"pareto": pareto}, "it shows what a search for --min-sqnr or --max-drop tried: give one of these, too")
        mixture = None if tuple(settings["mixed_types"]) == TYPES else settings["mixed_types"]
        judged = {"metric": settings["metric"], "ground_truth": settings["ground_truth"], "mixed_types": mixture}
        refuse(judged, "give --min-sqnr or --max-drop, too")
    check_ending(out, settings["target"])
    if out.suffix.lower() == ".tmfile" and settings["scheme"] == AUTO:
        settings = {**settings, "scheme": OF_TMFILES}
    separate = out.suffix.lower() in SEPARATE
    began = perf_counter()
    with steps(f"quantising {source.name}") as step:

        def progress(stage: str) -> None:
            step(stage, 0, None)

        graph = source.load(progress)
        made = tenon.quantize(
            graph,
            step=step,
            separate_activations=separate,
            **settings,
        )
        progress("write")
        written = _write(made, out, settings["target"], progress)
        if ranges is not None:
            made.save_ranges(*ranges)
    plain = without_infinity(made.report)
    if 0 < (count := made.report.samples) < FEW:
        note(f"few samples ({count}): ranges and report are reliable with about a hundred typical ones (--data)")
    if report is not None:
        text = (
            _page(source.name, made.report, plain) if report.suffix == ".html" else json.dumps(plain, indent=2) + "\n"
        )
        write(report, text, "--report")
    if pareto is not None:
        from tenon.cli.pareto_page import pareto_page

        if made.report.scheme_reason:  # another target, or no contract, might decide otherwise
            words = [*words, "--scheme", made.report.scheme]
        write(pareto, pareto_page(source.name, made.report, *_commands(words, out, settings["target"])), "--pareto")
    if as_json:
        return print_json(plain)
    console.print(f"{out}  {size(written)} in {perf_counter() - began:.1f} s", markup=False, soft_wrap=True)
    return _print(made.report, verbose=verbose)


def check_ending(out: Path, target: str) -> None:
    """Raises InputError unless ``out`` is a name of a model file, or of a bundle that ``target`` has."""
    if out.suffix.lower() not in ("", SUFFIX, *ENDINGS) and not out.is_dir():
        known = ", ".join((*ENDINGS, SUFFIX))
        raise InputError(f"{out}: give a name that ends in {known}, or a folder for a bundle")
    if out.suffix == SUFFIX and not _loaded(target):
        raise InputError(f"{out}: target {target} has no library for a {SUFFIX} file: give a folder")


def _loaded(target: str) -> bool:
    """Whether bundles for a target have a library, as single files need one."""
    return library_name("", find_target(Options.from_environment(target=target))) is not None


def _write(made: Quantized, out: Path, target: str, progress: Callable[[str], None]) -> int:
    """Write the model, or a bundle of it for the target; returns its bytes."""
    if out.suffix.lower() in ENDINGS:
        made.save(out)
        return out.stat().st_size
    bundle = made.compile(target, progress)
    if out.suffix == SUFFIX:
        save_container(out, [bundle])
        return out.stat().st_size
    return sum(file.stat().st_size for file in bundle.save(out, progress=progress).iterdir())


def _commands(words: Sequence[str], out: Path, target: str) -> tuple[str, str]:
    """The command without a contract, which layers of other types follow, and the one that makes the bundle of what it
    writes ("" if it writes a bundle)."""
    made = out.with_suffix(SUFFIX if _loaded(target) else "")
    bundle = ["tenon", "compile", str(out), "-o", str(made), "--target", target]
    return shlex.join(words), shlex.join(bundle) if out.suffix.lower() in ENDINGS else ""


def _print(report: Report, *, verbose: bool = False) -> None:
    reason = f" ({report.scheme_reason})" if report.scheme_reason else ""
    corrections = f", {', '.join(report.applied)}" if report.applied else ""
    console.print(f"scheme {report.scheme}{reason}, ranges by {report.method}{corrections}", markup=False)
    tried = report.repairs | report.methods
    if verbose:
        _print_trials(report, tried)
    if report.wide:
        console.print(f"in 16 bits: {', '.join(report.wide)}", markup=False)
    if report.fp16:
        console.print(f"in fp16 (compile with --precision fp16): {', '.join(report.fp16)}", markup=False)
    if report.floats:
        console.print(f"in float: {', '.join(report.floats)}", markup=False)
    if report.agreement is not None:
        console.print(agreement_text(report.agreement, report.agreement_error, report.samples), markup=False)
    if report.outputs:  # with samples
        print_noise("output", report.outputs)
        print_noise("worst tensors", sorted(report.tensors, key=lambda noise: noise.sqnr)[:WORST])
    if not report.points:  # of a search for a contract
        _print_remedy(report)
    if tried and not verbose:
        console.print(f"{len(tried)} recipes were tried: -v lists them", markup=False)


def _print_trials(report: Report, tried: Mapping[str, float]) -> None:
    """Print the gain at the outputs of each correction and each kind of ranges."""
    for name, gain in tried.items():
        kept = "  (kept)" if name in (*report.applied, report.method) else ""
        before = f" ({report.without[name]:.1f} dB without)" if name in report.without else ""
        console.print(f"{name or 'as calibrated'}: {gain:.1f} dB{before}{kept}", markup=False)


def _print_remedy(report: Report) -> None:
    noisy = [each for each in report.outputs if each.sqnr < NOISY]
    if noisy:
        worst = min(noisy, key=lambda each: each.sqnr)
        console.print(
            f"output '{worst.name}' is noisy ({worst.sqnr:.1f} dB): --min-sqnr {NOISY + 5:.0f} gives as few layers as "
            "that takes 16 bits, fp16 or float",
            markup=False,
        )


def _page(name: str, report: Report, data: Mapping[str, Any]) -> str:
    cards = [
        (
            decibels(min((each.sqnr for each in report.outputs), default=float("nan"))),
            "SQNR of the outputs before softmax",
        ),
        (report.scheme, "scheme" + (f": {report.scheme_reason}" if report.scheme_reason else "")),
        (report.method, "ranges of activations"),
        (", ".join(report.applied) or "none", "repairs"),
    ]
    if report.agreement is not None and report.agreement_error is not None:
        share = f"{100 * report.agreement:.1f} +- {100 * report.agreement_error:.1f} %"
        cards.insert(1, (share, "same largest output as in float"))
    return page(
        f"{name}: quantisation",
        f"{report.samples} samples; in float: {', '.join(report.floats) or 'no product'}; "
        f"in 16 bits: {', '.join(report.wide) or 'no product'}; in fp16: {', '.join(report.fp16) or 'no product'}",
        cards,
        {"Outputs": report.outputs, "Tensors": report.tensors},
        report.weights,
        report.repairs | report.methods,
        data,
        without=report.without,
        kept=(*report.applied, report.method),
    )
