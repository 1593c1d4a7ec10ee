"""The stages, in order.  This is the only file that knows it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from tenon import frontends, passes
from tenon.bundle import Bundle, Origin
from tenon.bundle.names import identifier
from tenon.codegen.unit import source
from tenon.engine import Engine
from tenon.engine.engine import open_bundle
from tenon.errors import ModelError
from tenon.ir.bind import Shapes, bind
from tenon.ir.graph import Graph
from tenon.options import Options
from tenon.plan.describe import Description, describe
from tenon.plan.lower import plan
from tenon.plan.program import Program
from tenon.plan.sites import Setting
from tenon.targets import Target, find

Model = str | PathLike[str] | bytes
"""A path, an http(s) address, or the bytes of a model file."""

Progress = Callable[[str], None]
"""Called with the name of each stage as it begins."""


def load(
    model: Model,
    *,
    shapes: Shapes | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    sha256: str | None = None,
    weights: Model | None = None,
) -> Graph:
    """Read a model: a path, an http(s) address or the bytes of a file.

    Of a format of two files either may be given, or their folder; ``weights`` names the second file where it does not
    lie beside the first under its usual name.
    ``shapes`` binds input shapes by input name or single dimensions by their name; ``inputs`` and ``outputs`` cut
    the model at those tensors.  A graph whose dimensions are not all bound can be inspected, not compiled.
    Raises ModelError: FormatError for a broken file, UnsupportedError listing all that Tenon lacks, ShapeError.
    """
    return frontends.load(model, shapes=shapes, inputs=inputs, outputs=outputs, sha256=sha256, weights=weights)


def compile(
    model: Model | Graph,
    options: Options | None = None,
    *,
    shapes: Shapes | None = None,
    weights: Model | None = None,
    progress: Progress = lambda stage: None,
    **changes: Any,
) -> Bundle:
    """Compile a model, or a graph that ``load`` gave, for a target.

    ``changes`` are fields of ``Options`` (``target="aarch64"``, ``name="net"``); what is neither there nor in
    ``options`` comes from the environment.  Machine code is made when the bundle is saved.
    Raises ModelError, and InputError for bad options.
    """
    chosen = _options(options, changes)
    target = find(chosen.target)
    progress("read")
    given = model if isinstance(model, Graph) else load(model, shapes=shapes, weights=weights)
    if given.incomplete:
        raise ModelError(f"{given.source or given.name}: cannot be compiled: {given.incomplete}")
    name = chosen.name or identifier(given.name)
    _, program = _planned(given, target, chosen, name, shapes, progress)
    progress("generate")
    return Bundle(program, source(program, f"{name}.h", profile=chosen.profile), target, chosen, _origin(model, given))


def inspect(
    model: Model | Graph,
    options: Options | None = None,
    *,
    shapes: Shapes | None = None,
    weights: Model | None = None,
    progress: Progress = lambda stage: None,
    **changes: Any,
) -> tuple[Description, Graph | None]:
    """What a model is made of, and the graph that would be compiled (None while dimensions are unbound)."""
    chosen = _options(options, changes)
    given = model if isinstance(model, Graph) else load(model, shapes=shapes, weights=weights)
    if not shapes and not all(v.type.bound for v in given.inputs):
        return describe(given), None
    graph, program = _planned(given, find(chosen.target), chosen, given.name, shapes, progress)
    return describe(bind(given, shapes) if shapes else given, program), graph


def open(bundle: str | Path | Bundle) -> Engine:
    """An engine that runs a bundle: a folder that ``Bundle.save`` or ``tenon compile`` wrote, or one in memory.

    Raises BundleError for a damaged bundle or one made for another machine.
    """
    return open_bundle(bundle)


def _planned(
    given: Graph, target: Target, options: Options, name: str, shapes: Shapes | None, progress: Progress
) -> tuple[Graph, Program]:
    """The optimised graph, as it stands before layouts, and the program that it becomes."""
    bound = all(v.type.bound for v in given.inputs) and not shapes
    graph = given.copy() if bound else bind(given, shapes)
    progress("optimise")
    passes.optimize(graph, verify=options.verify, level=options.optimize)
    progress("plan")
    return graph, plan(graph.copy(), Setting(target.machine), name)


def _options(options: Options | None, changes: dict[str, Any]) -> Options:
    if options is None:
        return Options.from_environment(**changes)
    return Options(**{**options.model_dump(), **changes}) if changes else options


def _origin(model: Model | Graph, graph: Graph) -> Origin | None:
    if isinstance(model, Graph):
        return None
    file, _ = frontends.find(model)
    return Origin(file=Path(file.name).name, sha256=hashlib.sha256(file.data).hexdigest())
