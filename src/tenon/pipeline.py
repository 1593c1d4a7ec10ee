"""The stages of a compilation, in order: import, optimise, plan, generate."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Unpack, cast

from tenon.atomic_write import write_all
from tenon.compilation import Compilation, resolved
from tenon.errors import InputError, ModelError, Problem, guarded
from tenon.formats import importers
from tenon.formats.importers import Imported
from tenon.formats.importers.pytorch import is_torch
from tenon.formats.wire.encryption import Key
from tenon.formats.wire.stored_files import Transform, stored_as
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.codegen.obfuscate import obfuscated, port_names
from tenon.machine.codegen.speed_up import predicted
from tenon.machine.isa.bf16 import DOT2
from tenon.machine.kernels.machine import for_precision, with_product
from tenon.machine.plan.arithmetic import products_in_f32
from tenon.machine.plan.choose import choose, choose_alike, streaming
from tenon.machine.plan.describe import Description, describe, operators
from tenon.machine.plan.lower import plan
from tenon.machine.plan.lowering_context import Setting
from tenon.machine.plan.narrowing import narrowing, storing
from tenon.machine.plan.ports import rename_extents, with_ports_of
from tenon.machine.plan.program import Memory, Program
from tenon.machine.plan.ram import plan_within
from tenon.machine.plan.stages import UNSEEN, Stages
from tenon.machine.plan.weights import Weighed
from tenon.machine.proofs.needed import with_proved_cuts
from tenon.machine.targets import Target, find
from tenon.machine.targets.float_abi import with_float_abi
from tenon.machine.targets.runner import Runner
from tenon.machine.toolchain.compiler import chosen as chosen_compiler
from tenon.network import passes
from tenon.network.graph.bind import GivenShapes, bind, check_alike, fix, with_open_batches
from tenon.network.graph.fixed import Values, of_bindings
from tenon.network.graph.graph import Graph
from tenon.network.graph.sound_features import read_features
from tenon.network.graph.text_shapes import check_writes, entry_points
from tenon.network.graph.types import DType
from tenon.network.graph.value_bounds import check_bindings, check_ranges, with_limits
from tenon.network.ops.traits import is_quantised
from tenon.network.passes.bodies import with_usable_bodies
from tenon.network.passes.cache_rings import Rings, with_rings
from tenon.network.passes.cache_types import with_cache_type
from tenon.network.passes.detection_outputs import find_heads
from tenon.network.passes.first import first_passes
from tenon.network.passes.heads import with_head
from tenon.network.passes.image_loop import with_image_loop
from tenon.network.passes.integers import to_integers
from tenon.network.passes.integers.digest import expected_digest
from tenon.network.passes.integers.requantised import requantised_moves
from tenon.network.passes.io_adapters import adapted
from tenon.network.passes.precision import states_f16
from tenon.network.passes.preprocessing import compile_in, described
from tenon.network.passes.separable import separable
from tenon.network.passes.size_classes import by_class, chosen_by_size, shapes_by_class
from tenon.network.passes.sound_features import compile_features_in
from tenon.network.passes.states import with_states
from tenon.network.passes.weight_format import StoredWeights
from tenon.options import Emit, OptionKeywords, Options, with_options
from tenon.runtime.answers.description import described_head, is_answer, renamed_outputs, written_head
from tenon.runtime.bundle import Bundle, SourceRecord, Tuned
from tenon.runtime.bundle.banner import banner
from tenon.runtime.bundle.compiler_flags import check
from tenon.runtime.bundle.manifest import BundleTensor
from tenon.runtime.bundle.names import entry_name
from tenon.runtime.bundle.possible_parts import COMPILED, check_parts
from tenon.tools.cluster import open_pool
from tenon.tools.tune.probe import probed
from tenon.tools.tune.search import Bench, LayerTimes, kind_of, search
from tenon.tools.tune.table import TimesTable

Model = str | PathLike[str] | bytes | Any
"""A path, an http(s) address, the bytes of a model file, or a module or exported program of torch."""

Progress = Callable[[str], None]
"""Called with the name of each stage as it begins."""


@guarded
def load(
    model: Model,
    *,
    shapes: GivenShapes | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    sha256: str | None = None,
    weights: Model | None = None,
    values: Values | None = None,
    max: Mapping[str, int] | None = None,
    example_inputs: Sequence[Any] | None = None,
    key: Key | None = None,
    transform: Transform | None = None,
) -> Graph:
    """Read a model: a path, an http(s) address or the bytes of a file; or a module or exported program of torch.

    For formats with two files, give either of them or their folder; ``weights`` is the second file if it is not next to
    the first under its usual name.
    ``shapes`` binds input shapes by input name or single dimensions by their name; a dimension may be a ``tenon.Size``,
    or text such as "L:1..256", which every run chooses.  ``max`` says how large numbers that the model computes can be
    (trip counts, extents), by the names of their tensors.  ``inputs`` and ``outputs`` cut the model at those tensors.
    ``values`` replaces inputs by constants; branches that are not taken then need not be valid.
    A graph with unbound dimensions can be inspected, but not compiled.
    ``example_inputs`` are tensors or arrays with the shapes to export a torch module for.
    ``key`` decrypts encrypted files (32 bytes, a file with them or with 64 hexadecimal digits, or a function that gives
    them; by default that of TENON_KEY or TENON_KEY_FILE); ``transform`` decodes each stored file of
    the model (for example decrypts it).
    Raises ModelError: FormatError for a broken file, UnsupportedError that lists all problems, ShapeError; and
    WrongKeyError.
    """
    if is_torch(model):
        from tenon.formats.importers.pytorch import export

        return export.load(model, example_inputs, inputs, outputs, values)
    return importers.load(
        model,
        shapes=shapes,
        inputs=inputs,
        outputs=outputs,
        sha256=sha256,
        weights=weights,
        values=values,
        limits=max,
        key=key,
        transform=transform,
    )


@guarded
@with_options
def compile(
    model: Model | Graph,
    options: Options | None = None,
    *,
    shapes: GivenShapes | Sequence[GivenShapes] | None = None,
    weights: Model | None = None,
    values: Values | Sequence[Values] | None = None,
    max: Mapping[str, int] | None = None,
    example_inputs: Sequence[Any] | None = None,
    key: Key | None = None,
    transform: Transform | None = None,
    progress: Progress = lambda stage: None,
    rewrite: Callable[[Graph], Graph] = lambda graph: graph,
    stages: Stages = UNSEEN,
    **changes: Unpack[OptionKeywords],
) -> Bundle:
    """Compile a model, or a graph returned by ``load``, for a target.

    ``shapes``, ``values``, ``max``, ``key`` and ``transform`` are as for ``load``; with a list of shapes (and of
    values, if these differ) the bundle supports each of them, with one copy of the weights.  Algorithms are selected
    for the first; the others use the same packing of weights where possible.  A language model without shapes gets two:
    of one token, and of pieces of a text; with one set of shapes for 1 to N tokens, the one of a token is the second.
    ``rewrite`` is applied to the graph of each binding before it is optimised (``plugins.offloaded``, for example).
    ``stages`` is shown the graphs, the plan and the declined rules of each binding.

    ``changes`` are fields of ``Options`` (``target="aarch64"``, ``name="net"``); fields that are neither given there
    nor in ``options`` come from the environment.  Machine code is generated when the bundle is saved.  Raises
    ModelError, and InputError for bad options.
    """
    if is_torch(model):
        model, values = load(model, example_inputs=example_inputs, values=of_bindings(values, 1)[0]), None
    chosen = _options(options, changes)
    compilation = _resolved(chosen)
    check_parts(compilation.emit, compilation.target, zig=not compilation.compiler)
    with stored_as(key, transform):
        return _compiled(model, chosen, compilation, shapes, weights, values, max, progress, rewrite, stages)


@guarded
def check_possible(options: Options, emit: Sequence[Emit] = ()) -> None:
    """Whether options can be carried out for some model: what is impossible is refused before a model is read.

    ``emit`` are parts of a bundle; (): those of the options.  Raises InputError for an unknown target, parts that it
    does not have and options that exclude each other, ToolchainError for a compiler that is missing or for another
    target.
    """
    compilation = _resolved(options)
    parts, target = emit or compilation.emit, compilation.target
    check_parts(parts, target, zig=not compilation.compiler)
    if target.format.compiled and (not parts or COMPILED & set(parts)):
        chosen_compiler(compilation).target_flags(target)


def _compiled(
    model: Model | Graph,
    chosen: Options,
    compilation: Compilation,
    shapes: GivenShapes | Sequence[GivenShapes] | None,
    weights: Model | None,
    values: Values | Sequence[Values] | None,
    limits: Mapping[str, int] | None,
    progress: Progress,
    rewritten: Callable[[Graph], Graph],
    stages: Stages,
) -> Bundle:
    """See ``compile``; ``chosen`` are the options that are about the model and not about what it is compiled to."""
    progress("read")
    classes = shapes_by_class(shapes, chosen.size_classes)
    all_shapes = [shape for own in classes for shape in own]
    cut: dict[str, Any] = {"inputs": chosen.inputs or None, "outputs": chosen.outputs or None}
    given_values = of_bindings(values, len(classes))
    cuts = [{**cut, "values": v, "limits": limits} for v, c in zip(given_values, classes, strict=True) for _ in c]
    whole = [_whole(model, chosen, each["values"], limits) for each in cuts]
    read = None if whole[0] is not None else _read(model, all_shapes[0], weights, cuts[0])
    imported = cast(Graph, whole[0]) if read is None else read.graph
    chunk = compilation.tokens_of_run
    if read is not None and (entries := entry_points(imported, all_shapes, chosen.context, chunk, chosen.sequences)):
        del imported, read  # with their weights
        values = given_values[0]
        return _compiled(model, chosen, compilation, entries, weights, values, limits, progress, rewritten, stages)
    check_writes(imported, chosen.grammar)
    if imported.incomplete:
        raise ModelError(f"{imported.source or imported.name}: cannot be compiled: {imported.incomplete}")
    origin, read = (None if read is None else _source(read)), None  # without the content of its file
    if not compilation.labels:
        compilation = replace(compilation, labels=imported.labels)
    name = entry_name(chosen.prefix, chosen.name, imported.name)
    rest = zip(whole[1:], all_shapes[1:], cuts[1:], strict=True)
    others = (_read(model, shape, weights, each).graph if given is None else given for given, shape, each in rest)
    unnamed = not isinstance(model, Graph)  # bound dimensions have lost their names after loading
    graphs = [
        _bound(graph, None if unnamed else shape) for graph, shape in zip((imported, *others), all_shapes, strict=True)
    ]
    check_bindings([own[0] for own in by_class(graphs, classes)])
    answers = bool(chosen.head) and is_answer(chosen.head)
    graphs = [with_head(bound, {} if answers else chosen.head) for bound in graphs]
    graphs = [rewritten(adapted(bound, chosen.data_formats, chosen.data_types)) for bound in graphs]
    check_ranges(graphs[0], chosen.ranges)
    heads, preprocess = find_heads(graphs[0]), chosen.preprocess
    decoding = _decoding(chosen.head, graphs[0]) if answers else {}
    if chosen.features:
        graphs = [compile_features_in(bound, read_features(chosen.features)) for bound in graphs]
    if chosen.compile_preprocess:
        graphs = [compile_in(bound, preprocess, chosen.compile_preprocess) for bound in graphs]
        preprocess = {}
    graphs = [with_states(with_cache_type(bound, chosen.cache_type), chosen.states) for bound in graphs]
    preprocessing = described(graphs[0], preprocess)
    rings = Rings()
    if chosen.size_classes == 1:
        graphs, rings = with_rings(graphs)
    graphs = [chosen_by_size(own[0], own[1:]) for own in by_class(graphs, classes)]
    check_alike(graphs)
    programs, tuned = _programs(graphs, compilation, name, progress, stages)
    progress("generate")
    if chosen.obfuscate:
        renamed, origin = port_names(programs[0], chosen.obfuscate), None
        programs = obfuscated(programs, chosen.obfuscate)
        preprocessing = {renamed[port]: each for port, each in preprocessing.items()}
        heads = heads and heads._replace(outputs=tuple(renamed[port] for port in heads.outputs))
        decoding = renamed_outputs(decoding, renamed)
    first, *more = programs
    top = banner(first, compilation, origin, more=more) + check(compilation.target)
    backend = find_backend(compilation.target.backend)
    unit = backend.program([first, *more], f"{name}.h", profile=compilation.profile, banner=top, gpu=compilation.gpu)
    if chosen.obfuscate:
        unit = unit.without_names()
    if compilation.code_section:
        unit = unit.placed(compilation.code_section)
    arithmetic = compilation.arithmetic_of(imported)
    expected = partial(_answer, graphs[0], arithmetic)
    about = (origin, preprocessing, heads, tuple(more), tuned, arithmetic, expected, decoding)
    placement = None if chosen.obfuscate else graphs[0].placement
    text = imported.text and replace(imported.text, **rings._asdict(), grammar=chosen.grammar)
    return Bundle(first, unit, compilation, *about, placement=placement, text=text)


def _decoding(given: Mapping[str, Any], graph: Graph) -> dict[str, str]:
    """The description of outputs that answers are decoded from, with the names of the outputs filled in.  Raises
    InputError for one that does not fit."""
    outputs = (BundleTensor(v.name, str(v.type.dtype), v.type.dims, 0, v.type.nbytes) for v in graph.outputs)
    return written_head(described_head(given, tuple(outputs)))


def _answer(graph: Graph, arithmetic: Literal["tflm", "litert", "onnx", "float"]) -> str:
    """The digest of the answer to the fixed input that every target gives, or nothing."""
    if arithmetic == "float":
        return ""
    integers = graph.copy()
    to_integers(integers, arithmetic)
    return expected_digest(integers)


@guarded
@with_options
def inspect(
    model: Model | Graph,
    options: Options | None = None,
    *,
    shapes: GivenShapes | None = None,
    weights: Model | None = None,
    values: Values | None = None,
    max: Mapping[str, int] | None = None,
    progress: Progress = lambda stage: None,
    **changes: Unpack[OptionKeywords],
) -> tuple[Description, Graph | None]:
    """A description of a model, and the optimised graph (None while dimensions are unbound).

    Takes a model, or a graph returned by ``load``; arguments are those of ``compile``.  The description has inputs,
    outputs, operators, parameters, multiply-accumulates, memory, and for quantised models what is left in float.
    Where ``threads`` is more than one, it has the predicted speed-up.  Raises ModelError and InputError.
    """
    chosen = _options(options, changes)
    compilation = _resolved(chosen)
    given = _given(model, values, max, shapes=shapes, weights=weights)
    given = given if shapes else with_open_batches(given)
    if not shapes and not all(v.type.bound for v in given.inputs):
        return describe(given), None
    if given.incomplete and all(v.type.bound for v in given.inputs):
        return describe(given), given  # without weights nothing can be planned
    left: list[Problem] = []
    given = with_states(with_cache_type(_bound(given, shapes), chosen.cache_type), chosen.states)
    if chosen.size_classes == 1:
        ((given,), _) = with_rings([given])
    graph, program = _planned(given, compilation, given.name, None, progress, left)
    description = describe(given, program)
    arithmetic = compilation.arithmetic_of(given) if is_quantised(given) else "float"
    reasons, moves = (tuple((p.where, p.what) for p in problems) for problems in (left, requantised_moves(given)))
    description = replace(description, arithmetic=arithmetic, left_in_float=reasons, requantised=moves)
    machine = compilation.setting.machine
    if (chosen.threads or 1) > 1 and find_backend(compilation.target.backend).launch == "call":
        description = replace(description, speed_up=predicted(program, machine.stream))
    return replace(description, compiled=operators(graph)), graph


def prepared(graph: Graph, options: Options) -> tuple[Graph, Setting]:
    """The optimised graph of a network whose shapes are bound, and what its plan for the target depends on."""
    return _prepared(graph, _resolved(options), None, lambda stage: None)


@with_options
def tune(
    model: Model | Graph,
    options: Options | None = None,
    *,
    shapes: GivenShapes | None = None,
    weights: Model | None = None,
    values: Values | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, layer: None,
    cluster: str | None = None,
    runner: Runner | None = None,
    **changes: Unpack[OptionKeywords],
) -> Iterator[LayerTimes]:
    """Measure the candidate algorithms of each layer on this machine and store the times for ``compile``.

    ``cluster`` is the address of a Dask scheduler whose workers measure, or "local:N" for N processes here; ``runner``
    a device to measure on, which a worker must have as a resource of its name.

    ``changes`` are as for ``compile``; ``threads`` is the number of threads to measure with, default 1.  ``compile``
    uses times for the bundle's number of threads, else those for the nearest number.  Layers in the table are not
    measured again; an interrupt loses only the current layer.  A table that cannot be read or written is a
    TenonWarning.
    """
    chosen = _options(options, changes)
    compilation = _resolved(replace(chosen, threads=chosen.threads or 1))
    given = _given(model, values, shapes=shapes, weights=weights)
    graph = _optimised(given, compilation, shapes)
    bench = Bench(compilation, runner=runner)
    with open_pool(cluster) as pool:
        yield from search(graph, bench, TimesTable(chosen.tuning), pool=pool, progress=progress)


@guarded
def rewrite(
    model: Model,
    out: str | Path | None,
    *,
    weights: Model | None = None,
    shapes: GivenShapes | None = None,
    values: Values | None = None,
    max: Mapping[str, int] | None = None,
    inputs: Sequence[str] = (),
    outputs: Sequence[str] = (),
    config: Path | None = None,
    without_weights: bool = False,
    verify: bool = False,
) -> tuple[list[Path], list[str]]:
    """Write an optimised model: Caffe nets as Caffe, other models as ONNX.  Returns the files and a log.

    ``out`` is a folder, or a file whose suffix selects ONNX (.onnx), TFLite (.tflite), tmfile (.tmfile) or Caffe
    (.prototxt, with the weights next to it).  ``inputs`` and ``outputs``: tensors at which it is cut, unless it becomes
    Caffe.  ``config`` is a config.ini of Caffe-Computation-Graph-Optimization; it may also be given as ``model`` and
    then names all files.  ``without_weights`` keeps the shapes of weights but not their numbers, in ONNX: such a file
    can be inspected and timed.  ``verify`` compares the result of every pass with what it was given.  Raises
    ModelError, and InputError for options that do not fit.
    """
    from tenon.formats.exporters.rewrite import WriteRequest, rewritten

    place = None if out is None else Path(out)
    request = WriteRequest(model, place, weights, shapes, values, config, without_weights, max, inputs, outputs)
    failures = Path.cwd() if verify else None
    result = rewritten(request, partial(passes.optimize, fuse=False, verify=verify, failures=failures))
    write_all(result.files)
    return list(result.files), result.log


def _planned(
    given: Graph,
    compilation: Compilation,
    name: str,
    shapes: GivenShapes | None,
    progress: Progress,
    left: list[Problem],
) -> tuple[Graph, Program]:
    """The optimised graph before layout selection, and its program; ``left`` gets the layers left in f32."""
    stored = StoredWeights()
    graph, setting = _prepared(given, compilation, shapes, progress, left, stored=stored)
    program = _plan(graph, setting, name, Weighed(), compilation.ram, progress)
    program = replace(program, stored=stored if compilation.weight_format != "fp32" else None)
    if compilation.precision == "fp16" and compilation.target.machine.multiplies(DType.F16):
        left += products_in_f32(graph, program, setting)
    return graph, with_ports_of(program, given)


def _prepared(
    given: Graph,
    compilation: Compilation,
    shapes: GivenShapes | None,
    progress: Progress,
    left: list[Problem] | None = None,
    stages: Stages = UNSEEN,
    stored: StoredWeights | None = None,
) -> tuple[Graph, Setting]:
    """The optimised graph before layout selection, and the settings of the planner."""
    progress("optimise")
    graph = _optimised(given, compilation, shapes, left, stages, stored)
    progress("plan")
    setting, times = streaming(graph, compilation.setting), dict[str, dict[str, float]]()
    if compilation.tuning is not None and os.path.lexists(compilation.tuning):
        times = TimesTable(compilation.tuning).nearest(kind_of(compilation))
    chosen = choose(graph, setting, times, compilation.max_weights)
    return graph, replace(setting, algorithms=chosen, measured=frozenset(chosen.keys() & times.keys()))


def _plan(
    graph: Graph,
    setting: Setting,
    name: str,
    weights: Weighed,
    ram: int | None,
    progress: Progress,
    stages: Stages = UNSEEN,
) -> Program:
    """The program of ``graph``, which is not changed, within the budget of RAM if there is one."""
    if ram is None:
        laid_out = graph.copy()
        program = with_proved_cuts(plan(laid_out, setting, name, weights))
        stages.planned(program, setting, laid_out)
        return program
    program = with_proved_cuts(plan_within(graph, setting, name, weights, ram, progress))
    stages.planned(program, setting, None)
    return program


def _programs(
    graphs: Sequence[Graph], compilation: Compilation, name: str, progress: Progress, stages: Stages
) -> tuple[list[Program], Tuned | None]:
    """The program of each binding, and how measured times were used.

    The programs share a constant region; the memory sizes of the first suffice for all.
    """
    weights, programs, stored = Weighed(), list[Program](), StoredWeights()
    stages.imported(name, graphs[0])
    optimised, setting = _prepared(graphs[0], compilation, None, progress, stages=stages, stored=stored)
    settings = [setting]
    for number, graph in enumerate(graphs, 1):
        if number == 1:
            programs.append(
                with_ports_of(_plan(optimised, setting, name, weights, compilation.ram, progress, stages), graph)
            )
            continue
        entry = f"{name}_{number}"
        stages.imported(entry, graph)
        other, chosen = _prepared(graph, compilation, None, progress, stages=stages)
        alike = choose_alike(other, chosen, optimised, setting)
        chosen = replace(chosen, algorithms={**chosen.algorithms, **alike})
        settings.append(chosen)
        programs.append(with_ports_of(_plan(other, chosen, entry, weights, compilation.ram, progress, stages), graph))
    last, memories = programs[-1], [program.memory for program in programs]
    memory = Memory(
        last.memory.constant,
        max(m.mutable for m in memories),
        max(m.activations for m in memories),
        max(m.bound for m in memories),
    )
    error = max(program.error for program in programs)
    kept = stored if compilation.weight_format != "fp32" else None
    first = replace(programs[0], memory=memory, constants=last.constants, error=error, stored=kept)
    return [first, *programs[1:]], _tuned(settings)


def _tuned(settings: Sequence[Setting]) -> Tuned | None:
    """The manifest's entry on algorithms selected by measured times."""
    chosen = [(name, s.algorithms[name]) for s in settings for name in sorted(s.measured)]
    if not chosen:
        return None
    text = "".join(f"{name}\t{algorithm}\n" for name, algorithm in chosen)
    return Tuned(len(chosen), hashlib.sha256(text.encode()).hexdigest())


def _given(model: Model | Graph, values: Values | None, limits: Mapping[str, int] | None = None, **more: Any) -> Graph:
    """The graph of a model or the given graph, with inputs fixed; ``more`` are arguments of ``load``."""
    if isinstance(model, Graph):
        return with_limits(fix(model, values), limits)
    return load(model, values=values, max=limits, **more)


def _optimised(
    given: Graph,
    compilation: Compilation,
    shapes: GivenShapes | None,
    left: list[Problem] | None = None,
    stages: Stages = UNSEEN,
    stored: StoredWeights | None = None,
) -> Graph:
    """``left`` gets the layers not computed in the type asked for, and why; ``stored`` how weights are stored."""
    bound = _bound(given, shapes)
    graph = bound.copy() if bound is given else bound
    names = [v.name for v in graph.outputs]
    graph = with_usable_bodies(graph, short=compilation.microcontroller)
    if compilation.loops_over_images:
        graph = with_image_loop(graph)
    mixed = is_quantised(graph) and states_f16(graph)  # in which other products are in floats for a reason
    arithmetic = compilation.arithmetic_of(given)
    if arithmetic != "float":
        kept = to_integers(graph, arithmetic, stages.log, compilation.setting.machine)
        for problem in kept:
            stages.log(f"integers declines {problem.where}: {problem.what}")
        stages.passed("integers", graph, int(is_quantised(graph)))
        if left is not None:
            left += kept
    verify, machine, level = compilation.verify, compilation.setting.machine, compilation.optimize
    name, setting = compilation.target.name, compilation.setting
    narrow = narrowing(compilation.precision, name, setting, left, stated=mixed and compilation.precision == "fp16")
    if compilation.weight_format != "fp32" or compilation.precision == "fp32":
        narrow = storing(graph, compilation.weight_format, compilation.max_weight_error, setting, stored)
    failures, pairs, log, seen = Path.cwd() if verify else None, separable(machine), stages.log, stages.passed
    first = first_passes(microcontroller=compilation.microcontroller, device=machine.launch is not None)
    passes.optimize(graph, verify, level, log, passed=seen, first=first, narrow=narrow, pairs=pairs, failures=failures)
    rename_extents(graph, names)
    return graph


def _whole(
    model: Model | Graph, options: Options, values: Values | None, limits: Mapping[str, int] | None
) -> Graph | None:
    """A given graph with inputs fixed; None for a model to load.  Raises InputError if a graph should be cut."""
    if isinstance(model, Graph) and (options.inputs or options.outputs):
        raise InputError("a graph cannot be cut again: give inputs and outputs to tenon.load")
    return with_limits(fix(model, values), limits) if isinstance(model, Graph) else None


def _bound(given: Graph, shapes: GivenShapes | None) -> Graph:
    """The graph with ``shapes`` bound; the same object if there is nothing to bind."""
    return given if all(v.type.bound for v in given.inputs) and not shapes else bind(given, shapes)


def find_target(options: Options) -> Target:
    """The target of the options; for "host" with measured properties.  Raises InputError for an unknown one."""
    target = find(options.target, bf16=options.precision == "bf16")
    if options.float_abi is not None:
        target = with_float_abi(target, options.float_abi)
    if options.target == "host" and options.dot2 is None:
        target = probed(target, options)
    if options.dot2 is not None and not target.machine.has("dot2"):
        raise InputError(f"target {target.name} has no bf16 dot-product instruction: leave out dot2={options.dot2:g}")
    if options.dot2 is not None:
        target = replace(target, machine=with_product(target.machine, replace(DOT2, time=options.dot2)))
    return replace(target, machine=for_precision(target.machine, options.precision))


def _resolved(options: Options) -> Compilation:
    return resolved(options, find_target(options))


def _options(options: Options | None, changes: Mapping[str, Any]) -> Options:
    if options is None:
        return Options.from_environment(**changes)
    given = {name: value for name, value in changes.items() if value is not None}
    return Options(**{**vars(options), **given}) if given else options


def _read(model: Model, shapes: GivenShapes | None, weights: Model | None, cut: Mapping[str, Any]) -> Imported:
    """The graph of a model, and the file that it comes from."""
    return importers.read(model, shapes, weights=weights, **cut)


def _source(model: Imported) -> SourceRecord:
    """The record of the file that a model was read from."""
    name, digest = Path(model.file.name).name, hashlib.sha256(model.file.data).hexdigest()
    return SourceRecord(file=name, sha256=digest, format=model.format.lower())
