"""Collects what the report on a build shows (``tenon compile --report``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import tenon
from tenon.cli.graph_page import page as graph_page
from tenon.cli.model_source import ModelArgument
from tenon.cli.profile_page import page as profile_page
from tenon.cli.report_page import BuildReport, Checked, page
from tenon.machine.plan.lifetimes import lifetimes
from tenon.machine.targets.host_cpu import runs_here
from tenon.machine.toolchain.size import sizes
from tenon.network.graph.evaluate import evaluate
from tenon.network.graph.graph import Graph
from tenon.options import Options
from tenon.pipeline import inspect
from tenon.runtime.bundle import Bundle
from tenon.runtime.engine.compare import cosine_similarity, relative_error, signal_to_noise
from tenon.runtime.engine.profile import profile
from tenon.runtime.engine.timing import fill_randomly, value_ranges

MOST_MACS = 2_000_000_000
"""Largest network that is validated: the references take about a second for it."""

_ROUNDS, _WARMUP = 20, 3


def report_page(
    source: ModelArgument, bundle: Bundle, options: Mapping[str, Any], progress: Callable[[str], None]
) -> str:
    """The page on a bundle that was compiled from ``source`` with these options."""
    progress("report")
    graph = source.load(progress)
    description, optimised = inspect(graph, Options.from_environment(**options))
    manifest = bundle.manifest({}, compiled=bundle.target.format.compiled)
    report = BuildReport(
        manifest,
        lifetimes(bundle.program),
        sizes(bundle.object) if bundle.target.format.compiled else None,
        graph_page(optimised or graph, bundle.placement),
        left_in_float=description.left_in_float,
    )
    if not runs_here(bundle.target.name):
        return page(
            replace(report, left_out=[f"Times and validation: this machine does not run {bundle.target.name}."])
        )
    left_out = []
    progress("profile")
    timed = tenon.compile(graph, Options.from_environment(**{**options, "profile": True}))
    with tenon.open(timed) as engine:
        times = profile_page(profile(engine, _ROUNDS, _WARMUP, manifest.name))
    progress("validate")
    if sum(step.macs for step in manifest.nodes) > MOST_MACS:
        left_out.append("Validation: the references of the operators are too slow for this network (tenon validate).")
        return page(replace(report, profile=times, left_out=left_out))
    checked = _checked(graph, bundle)
    if not checked:
        left_out.append("Validation: inputs or outputs are not those of the model (--data-format, --obfuscate, ...).")
    return page(replace(report, profile=times, checked=checked, left_out=left_out))


def _checked(graph: Graph, bundle: Bundle) -> list[Checked]:
    """The outputs on random data, compared with those of the imported graph; nothing where they are others."""
    with tenon.open(bundle) as engine:
        ports = {port.name: (port.dtype, port.shape) for port in engine.manifest.inputs}
        if ports != {v.name: (str(v.type.dtype), v.type.dims) for v in graph.inputs} or engine.manifest.bindings:
            return []
        fill_randomly(engine.inputs, value_ranges(engine.manifest.inputs))
        feeds = {name: array.copy() for name, array in engine.inputs.items()}
        outputs = engine.run(feeds)
    wanted = evaluate(graph, feeds)
    return [
        Checked(
            name,
            cosine_similarity(array, wanted[name]),
            signal_to_noise(array, wanted[name]),
            relative_error(array, wanted[name]),
        )
        for name, array in outputs.items()
        if name in wanted
    ]
