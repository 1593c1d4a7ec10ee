"""``tenon evaluate``: accuracy on samples whose truth is known."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from tenon.cli.console import console, print_json, stages, table
from tenon.cli.device_choice import HERE, DeviceChoice
from tenon.cli.model_source import ModelArgument, Threads, compiled, open_engine, open_engine_or_device
from tenon.cli.noise_table import without_infinity
from tenon.errors import InputError
from tenon.input_file import read_regular
from tenon.tools.deployment.evaluation import Accuracy, evaluate


def evaluate_model(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    settings: Mapping[str, Any],
    where: DeviceChoice = HERE,
    *,
    as_json: bool,
) -> None:
    """Print the results, as a table or JSON."""
    if settings.get("cluster") is not None:
        if where != HERE:
            raise InputError("--cluster and --device exclude each other: a device runs one program at a time")
        with stages(f"evaluating {source.name}") as progress:
            bundle = compiled(source, options, progress)
            accuracy = evaluate(bundle, step=lambda done: progress(f"sample {done}"), **settings)
        return _print(accuracy, as_json=as_json)
    with (
        where.connected(options) as (runner, chosen),
        open_engine_or_device(source, chosen, threads, runner=runner) as engine,
        stages(f"evaluating {source.name}") as progress,
    ):
        accuracy = evaluate(engine, step=lambda done: progress(f"sample {done}"), **settings)
    return _print(accuracy, as_json=as_json)


def _print(accuracy: Accuracy, *, as_json: bool) -> None:
    if as_json:
        return print_json(without_infinity(accuracy))
    shown = table("metric", "%", "standard error", right=(1, 2))
    for name, value in accuracy.results.items():
        error = f"{100 * accuracy.errors[name]:.2f}" if name in accuracy.errors else ""
        shown.add_row(name, f"{100 * value:.2f}", error)
    console.print(shown)
    console.print(f"{accuracy.samples} sample(s)", markup=False)
    return None


def evaluate_text(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    data: str | None,
    reference: ModelArgument | None,
    tokens: int | None,
    *,
    as_json: bool,
) -> None:
    """Print how well a language model predicts a text; without a reference, a model whose weights ``options`` round is
    compared with itself as it was."""
    from tenon.runtime.generation.perplexity import perplexity

    if data is None:
        raise InputError("the perplexity is that of a text: give its file (--data)")
    content = read_regular(data).decode("utf-8", "replace")
    plain = dict(options)
    if reference is None and plain.get("weight_format") not in (None, "fp32") and not source.bundle:
        plain["weight_format"], plain["max_weight_error"] = None, None
        reference = source
    elif reference is not None and (reference.bundle or source.bundle):
        plain = {"target": options.get("target")}
    with ExitStack() as stack:
        engine = stack.enter_context(open_engine(source, options, threads))
        other = None if reference is None else stack.enter_context(open_engine(reference, plain, threads))
        progress = stack.enter_context(stages(f"evaluating {source.name}"))
        result = perplexity(
            engine, content, reference=other, tokens=tokens, step=lambda done: progress(f"token {done}")
        )
    if as_json:
        return print_json({name: value for name, value in vars(result).items() if value is not None})
    shown = table("metric", "value", right=(1,))
    shown.add_row("perplexity", f"{result.perplexity:.4f} ± {result.error:.4f}")
    if result.reference is not None:
        shown.add_row("perplexity of the reference", f"{result.reference:.4f}")
        shown.add_row("mean divergence from it, nats", f"{result.divergence:.6f}")
        shown.add_row("same most probable token, %", f"{100 * (result.agreement or 0):.2f}")
    console.print(shown)
    console.print(f"{result.tokens} token(s)", markup=False)
    return None
