"""From a path or address to an engine: models are compiled, bundles opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tenon
from tenon.cli.compiled_models import CompiledModel
from tenon.cli.console import note, size, stages
from tenon.cli.unused_options import refuse
from tenon.errors import BundleError, InputError, ModelError, ResourceError, ToolchainError
from tenon.formats.model_files.model_file import read
from tenon.input_file import printable
from tenon.machine.targets import Target, find
from tenon.machine.targets.host import missing
from tenon.machine.targets.host_cpu import runs_here
from tenon.network.graph.size_range import Size
from tenon.network.graph.text_shapes import is_open_text_model
from tenon.options import Options
from tenon.runtime.bundle.container import is_container
from tenon.runtime.bundle.manifest import FILE as MANIFEST
from tenon.runtime.bundle.manifest import read_manifest, size_ranges
from tenon.runtime.engine.processors import Cores
from tenon.runtime.engine.sizes import check_size

if TYPE_CHECKING:
    from tenon.network.graph.graph import Graph
    from tenon.runtime.engine.device import RemoteBundle
    from tenon.tools.devices.remote import Connection
    from tenon.tools.devices.serial_board import SerialBoard

Shapes = Mapping[str, Any]
Stages = Callable[[str], None]


@dataclass(frozen=True)
class ModelArgument:
    """The model argument of a command, with its options.

    ``values`` are of the first binding, ``more_values`` of the others where these have their own.
    ``arrays`` are the shapes of arrays that are given for inputs ("": the only one), which open dimensions take.
    """

    model: str
    weights: str | None = None
    sha256: str | None = None
    bindings: tuple[Shapes, ...] = ({},)
    values: Mapping[str, Any] = field(default_factory=dict)
    more_values: tuple[Mapping[str, Any], ...] = ()
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    arrays: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file name of the model.  An address may contain a password, so the rest of it is not shown."""
        if "://" in self.model:
            from tenon.formats.model_files.download import file_name

            return file_name(self.model)
        return printable(Path(self.model).name)

    @property
    def shapes(self) -> Shapes:
        """The only binding.  Raises InputError if there are several."""
        if len(self.bindings) > 1 or self.more_values:
            option = "--value" if self.more_values else "--shape"
            raise InputError(
                f"{option} is given several times for one name, for several bindings: only tenon compile supports this"
            )
        return self.bindings[0]

    @property
    def all_values(self) -> Mapping[str, Any] | list[Mapping[str, Any]]:
        """The values of fixed inputs: those of all bindings, or a list for each."""
        return [self.values, *self.more_values] if self.more_values else self.values

    @property
    def cut(self) -> tuple[object, ...]:
        """The part of the model that is compiled, for comparisons."""
        values = {name: getattr(value, "tolist", lambda value=value: value)() for name, value in self.values.items()}
        arrays, limits = dict(self.arrays), dict(self.limits)
        return self.sha256, self.bindings, values, self.inputs, self.outputs, arrays, limits

    @property
    def reading(self) -> dict[str, Any]:
        """The arguments of ``tenon.compile`` that are about reading the model."""
        return {"weights": self.weights, "values": self.values, "max": self.limits}

    @property
    def bundle(self) -> bool:
        """Whether it is a bundle: its folder, or a ``.tenon`` file."""
        folder = os.path.isfile(os.path.join(self.model, MANIFEST))  # noqa: PTH113, PTH118  # never raises OSError
        return folder or is_container(self.model)

    def check_bundle_options(self, options: Mapping[str, Any], *allowed: str) -> None:
        """Raises InputError for options of reading and compiling a model, of which a bundle is the result, except
        ``allowed`` ones."""
        if self.values:
            raise InputError(f"--value {next(iter(self.values))}: a bundle's inputs are fixed when it is compiled")
        names = ("weights", "sha256", "bindings", "inputs", "outputs", "limits")
        reading = {name: getattr(self, name) for name in names}
        why = f"{self.name} is a bundle, which is compiled already: compile the model again with them"
        refuse({**reading, **options}, why, allowed)

    def bundle_target(self, wanted: str | None) -> str:
        """The target whose code is taken of a ``.tenon`` file; "" for the best one.  Raises InputError where a folder
        is for another one than ``wanted``."""
        if wanted in (None, "host"):
            return ""
        name = find(wanted).name
        if is_container(self.model):
            return name
        made_for = read_manifest(self.model).target.name
        if name != made_for:
            raise InputError(f"--target {wanted}: {self.name} is compiled for {made_for}: compile the model for {name}")
        return ""

    def load(self, progress: Stages = lambda stage: None) -> Graph:
        """The graph; ``progress`` is called with the state of downloads."""
        self.fetch(progress)
        try:
            graph = self._loaded(self.shapes)
        except ModelError:
            shapes = {name: shape for name, shape in self.arrays.items() if name}
            if not shapes:
                raise
            return self._loaded({**shapes, **self.shapes})
        shapes = {
            value.name: self.arrays[key]
            for value in graph.inputs
            for key in (value.name, "" if len(graph.inputs) == 1 else value.name)
            if key in self.arrays and not value.type.bound
        }
        return self._loaded({**shapes, **self.shapes}) if shapes else graph

    def _loaded(self, shapes: Shapes) -> Graph:
        cut: dict[str, Any] = {"inputs": self.inputs or None, "outputs": self.outputs or None, "values": self.values}
        cut["max"] = self.limits
        return tenon.load(self.model, weights=self.weights, shapes=shapes, sha256=self.sha256, **cut)

    def fetch(self, progress: Stages) -> None:
        """Download files at http(s) addresses into the cache, and check the checksum of the model file."""

        def show_progress(received: int, total: int | None) -> None:
            whole = f" of {size(total)} ({100 * received // total} %)" if total else ""
            progress(f"fetched {size(received)}{whole}")

        for address, sha256 in ((self.model, self.sha256), (self.weights, None)):
            if address and (sha256 or address.lower().startswith(("http://", "https://"))):
                read(address, sha256, progress=show_progress)


@dataclass(frozen=True)
class Threads:
    """Number of threads and their processors (see ``tenon.open``)."""

    count: int = 1
    affinity: tuple[int, ...] = ()
    cores: Cores = "all"


ALONE = Threads()


def weighted(graph: Graph) -> Graph:
    """The graph, with random weights if it has none."""
    from tenon.network.graph.random_weights import with_random_weights

    return with_random_weights(graph) if graph.incomplete else graph


def open_engine(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads = ALONE,
    *,
    only_speed: bool = False,
    check: Callable[[Graph], object] | None = None,
) -> tenon.Engine:
    """An engine for a bundle, or for a model compiled with ``options`` (fields of ``Options``, None for unset) for
    exactly ``threads.count`` threads.

    With ``only_speed``, a model without weights gets random ones.  ``check`` raises InputError for a graph that does
    not fit the command, before it is compiled.
    """
    if source.bundle:
        source.check_bundle_options(options, "target", "preprocess", "profile", "gpu")
        return _opened(source.model, threads, source.bundle_target(options.get("target")), options.get("gpu"))
    target = find(Options.from_environment(target=options.get("target")).target)
    if not runs_here(target.name):
        raise InputError(
            f"--target {target.name}: this machine does not execute its code: leave out --target, or compile a bundle "
            "for a machine that does (tenon compile)"
        )
    engine = _engine_or_bundle(source, options, threads, only_speed=only_speed, check=check)
    return engine if isinstance(engine, tenon.Engine) else _opened(engine, threads, gpu=options.get("gpu"))


def open_engine_or_device(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads = ALONE,
    runner: Connection | SerialBoard | None = None,
    *,
    only_speed: bool = False,
) -> tenon.Engine | RemoteBundle:
    """The same, on the device ``runner`` if given; where this machine does not execute the target's code, on the
    machine that the target's runner reaches, which runs it in one thread.  That it is an emulator is said on standard
    error."""
    targets = (options.get("target") or "").split(",")
    if len(targets) > 1:
        if runner is not None:
            raise InputError(f"--target {options['target']}: name one target for {runner.name}")

        from tenon.compilation import runs_on_gpu
        from tenon.runtime.engine.engine import first_usable

        def engine(name: str) -> tenon.Engine:
            gpu = options.get("gpu") if runs_on_gpu(find(name)) else None
            return open_engine(source, {**options, "target": name, "gpu": gpu}, threads, only_speed=only_speed)

        return first_usable(targets, engine)
    if source.bundle:
        if runner is None:
            return open_engine(source, options, threads, only_speed=only_speed)
        return _on_device(source, options, threads, runner)
    if runner is not None and not options.get("target"):
        raise InputError(f"--target is missing: name the processor of {runner.name}")
    bundle = _engine_or_bundle(source, options, threads, only_speed=only_speed, here=runner is None)
    if isinstance(bundle, tenon.Engine):
        return bundle
    from tenon.runtime.engine.device import RemoteBundle

    _check_alone(threads, bundle.target.name)
    device = RemoteBundle(bundle, runner)
    if runner is None and device.emulated:
        note(f"{source.name} for {bundle.target.name} runs on an emulator, {device.where}")
    return device


def open_to_time(
    source: ModelArgument, options: Mapping[str, Any], threads: Threads, runner: Connection | SerialBoard | None
) -> tenon.Engine | RemoteBundle:
    """The same, to be timed with random weights and input of the sizes that ``--shape L=64`` names, by default the
    largest.  Raises InputError for sizes that the network does not have."""
    source, sizes = _with_sizes(source)
    engine = open_engine_or_device(source, options, threads, runner, only_speed=True)
    if not sizes:
        return engine
    if not isinstance(engine, tenon.Engine):
        raise InputError(f"--shape {next(iter(sizes))}: on {engine.where} the largest sizes are timed")
    ranges = size_ranges(engine.manifest.inputs)
    for name, number in sizes.items():
        if name not in ranges:
            known = ", ".join(f"{size}:{range}" for size, range in ranges.items()) or "no sizes"
            raise InputError(
                f"--shape {name}: {source.name} has {known}: a bundle's shapes are fixed when it is compiled"
            )
        check_size(name, number, ranges[name])
        engine.inputs[name][...] = number
    return engine


def _with_sizes(source: ModelArgument) -> tuple[ModelArgument, dict[str, int]]:
    """A model or bundle without the sizes that runs are to have, and these sizes: numbers for names of sizes in shapes
    of a model, or for a bundle."""
    shapes = source.shapes
    named = {
        dim.name
        for given in shapes.values()
        for dim in (given if isinstance(given, tuple) else (given,))
        if isinstance(dim, Size)
    }
    sizes = {name: n for name, n in shapes.items() if isinstance(n, int) and (source.bundle or name in named)}
    rest = {name: given for name, given in shapes.items() if name not in sizes}
    return replace(source, bindings=(rest,)), sizes


def _on_device(
    source: ModelArgument, options: Mapping[str, Any], threads: Threads, runner: Connection | SerialBoard
) -> RemoteBundle:
    """A saved bundle on a device."""
    from tenon.runtime.engine.device import RemoteBundle, ResidentNetwork
    from tenon.runtime.engine.saved_bundle import SavedBundle
    from tenon.tools.devices.bundles import open_on_device

    source.check_bundle_options(options, "target", "preprocess", "profile", "compiler")
    chosen = Options.from_environment(compiler=options.get("compiler"))
    if isinstance(runner, ResidentNetwork):
        device = RemoteBundle(SavedBundle(source.model, chosen), runner)
    else:
        device = open_on_device(runner, source.model, chosen)
    _check_alone(threads, device.manifest.target.name)
    return device


def _check_alone(threads: Threads, target: str) -> None:
    if threads != ALONE:
        raise InputError(f"a network for {target} runs in one thread: leave out the options for threads")


def _engine_or_bundle(
    source: ModelArgument,
    options: Mapping[str, Any],
    threads: Threads,
    *,
    only_speed: bool,
    here: bool = True,
    check: Callable[[Graph], object] | None = None,
) -> tenon.Engine | tenon.Bundle:
    """An engine where this machine runs the code, by the bundle of an earlier command if there is one; else the bundle.

    ``here`` is unset for a bundle that is to run elsewhere.
    """
    chosen = Options.from_environment(**{**options, "threads": threads.count, "gpu": None})
    kept = (
        CompiledModel.of(source.model, source.weights, chosen, source.cut, only_speed) if here else CompiledModel(None)
    )
    if (path := kept.bundle) is not None:
        with suppress(BundleError):  # a damaged one is compiled again
            engine = _opened(path, threads, gpu=options.get("gpu"))
            note_open_batches(kept.assumed)
            return engine
    if here:
        check_can_run(find(chosen.target))
    with stages(f"compiling {source.name}") as progress, kept.compiling():
        bundle = _compiled(source, chosen, progress, only_speed=only_speed, check=check)
    if not here or not runs_here(bundle.target.name):
        return bundle
    opened: tenon.Bundle | Path = kept.keep(bundle) or bundle
    del bundle  # of a kept one, nothing stays in memory
    return _opened(opened, threads, gpu=options.get("gpu"))


def check_can_run(target: Target) -> None:
    """Before a compilation that takes long: raises ResourceError where a GPU's driver or device is missing, and
    ToolchainError for code that neither this machine nor an emulator executes."""
    from tenon.machine.codegen.backend import find as find_backend
    from tenon.runtime.engine.device_here import why_no_device

    if not runs_here(target.name) and find_backend(target.backend).launch != "grid" and (why := missing(target)):
        raise ToolchainError(why)
    if why := why_no_device(target):
        raise ResourceError(f"--target {target.name}: {why}")


def _compiled(
    source: ModelArgument,
    options: Options,
    progress: Stages,
    *,
    only_speed: bool,
    check: Callable[[Graph], object] | None = None,
) -> tenon.Bundle:
    graph = source.load(progress)
    if check is not None:
        check(graph)
    if is_open_text_model(graph) and not (only_speed and graph.incomplete):
        del graph  # with its weights
        bundle = tenon.compile(source.model, options, progress=progress, **source.reading)
    else:
        bundle = tenon.compile(weighted(graph) if only_speed else graph, options, progress=progress)
    progress("compile")
    note_open_batches(bundle.program.assumed)
    return bundle


def note_open_batches(assumed: Iterable[tuple[str, str]]) -> None:
    """Say which batch dimensions, given as names of inputs and dimensions, are 1 because nothing bound them."""
    for name, dim in assumed:
        note(f"the batch of input '{name}' is not bound and taken as 1 (another one: --shape {dim}=N)")


def note_possible_states(pairs: Iterable[tuple[str, str]]) -> None:
    """Say which inputs may be states, and are not."""
    for before, after in pairs:
        note(f"input '{before}' may be a state, which output '{after}' is kept in (--state {before}={after})")


def compiled(source: ModelArgument, options: Mapping[str, Any], progress: Stages) -> tenon.Bundle:
    """A model, compiled for one thread, in memory.  Raises InputError for a bundle on disk."""
    if source.bundle:
        raise InputError(f"{source.model}: --cluster takes a model, which is compiled here and run there")
    chosen = Options.from_environment(**{**options, "threads": ALONE.count})
    return _compiled(source, chosen, progress, only_speed=False)


def note_device(engine: tenon.Engine) -> None:
    """Say on which device a network ran, if not on the processor."""
    if device := engine.device:
        note(f"{engine.name} ran on {device}")


def _opened(
    bundle: tenon.Bundle | str | Path, threads: Threads, target: str = "", gpu: Mapping[str, Any] | None = None
) -> tenon.Engine:
    processors: dict[str, Any] = {"affinity": threads.affinity, "cores": threads.cores}
    engine: tenon.Engine = tenon.open(bundle, threads=threads.count, target=target, gpu=gpu, **processors)
    if gpu and not engine.on_device and engine.manifest.placement is None:
        raise InputError(f"--gpu: no effect: {engine.name} runs on the processor: name a GPU by --target")
    return engine
