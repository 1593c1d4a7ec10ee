"""Implementation of the subcommands, over the public API."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import tenon
from tenon.atomic_write import write
from tenon.cli.console import console, count, note, patches_text, print_json, size, stages, table
from tenon.cli.inspect_bundle import inspect_bundle
from tenon.cli.model_source import ModelArgument, note_open_batches, note_possible_states
from tenon.cli.port_lines import PortLine, port_lines
from tenon.cli.speech_program import PROGRAM_PARTS, compile_speech, is_whole_speech_model
from tenon.compilation import runs_on_gpu
from tenon.errors import InputError, UnsupportedError
from tenon.formats.wire.stored_files import known_key
from tenon.machine.targets import find
from tenon.network.graph.graph import Graph
from tenon.network.graph.text import show
from tenon.network.graph.text_model import TextModel
from tenon.network.passes.states import suggested
from tenon.options import Emit, Options
from tenon.pipeline import check_possible, find_target
from tenon.runtime.bundle import read_manifest
from tenon.runtime.bundle.container import SUFFIX
from tenon.runtime.bundle.folder import refuse_foreign
from tenon.runtime.bundle.manifest import StoredTypes
from tenon.runtime.bundle.names import library_name
from tenon.runtime.bundle.writer import save_container


@dataclass(frozen=True)
class WrittenFiles:
    """Files that ``tenon compile`` writes: the bundle to ``out``, with the parts ``emit``, and a page to ``report``.

    ``offload`` are devices that run parts of it, plug-ins ("PATH=ARGUMENT") or GPU targets, and ``device_of`` assigns
    layers to them ("LAYER=DEVICE").  ``dump`` is the folder for the stages of the compilation as text.  ``gpu`` are the
    options of GPUs: for those of the targets that are one, and for parts on GPUs.
    """

    out: Path
    emit: tuple[Emit, ...] = ()
    report: Path | None = None
    encrypt: bool = False
    offload: tuple[str, ...] = ()
    device_of: tuple[str, ...] = ()
    dump: Path | None = None
    gpu: Mapping[str, Any] = field(default_factory=dict)

    def check_gpu(self, *targets: str) -> None:
        """Raises InputError where nothing runs on a GPU, so that its options would have no effect."""
        if self.gpu and not self.offload and not any(runs_on_gpu(find(target)) for target in targets):
            raise InputError(f"--gpu: no effect: target {targets[0]} is no GPU: name one by --target or --offload")

    def for_target(self, options: Options) -> Options:
        """The options of a compilation, with those of a GPU if its target is one."""
        return replace(options, gpu=dict(self.gpu)) if self.gpu and runs_on_gpu(find(options.target)) else options

    @property
    def key(self) -> bytes | None:
        """The key of the bundle.  Raises InputError if it is to be encrypted, and there is none."""
        if not self.encrypt:
            return None
        if self.out.suffix != SUFFIX:
            raise InputError(f"--encrypt: only {SUFFIX} files are encrypted: -o {self.out}{SUFFIX}")
        key = known_key()
        if key is None:
            raise InputError("--encrypt needs a key: --key-file, TENON_KEY_FILE or TENON_KEY ('openssl rand -hex 32')")
        return key


def compile_model(source: ModelArgument, written: WrittenFiles, options: dict[str, Any], *, as_json: bool) -> None:
    """Compile a model."""
    out, emit = written.out, written.emit
    if out.suffix == SUFFIX:
        return _compile_to_one_file(source, written, options, as_json=as_json)
    assert written.key is None
    if PROGRAM_PARTS.intersection(emit) and is_whole_speech_model(source):
        return _compile_speech(source, written, options, as_json=as_json)
    options, beside = _for_pages(written, options)
    chosen = Options.from_environment(**options)
    check_possible(chosen, emit)
    written.check_gpu(chosen.target)
    refuse_foreign(out)
    began = perf_counter()
    with stages(f"compiling {source.name}") as progress:
        bundle = _compiled(source, options, progress, written, written.dump)
        if beside is not None:
            bundle = bundle.with_webgpu(_for_webgpu(source, options, progress, written), first=beside == 0)
        folder = bundle.save(out, emit=bundle.parts_with(emit), progress=progress if sys.stderr.isatty() else note)
        _write_report(written.report, source, bundle, options, progress)
    manifest = read_manifest(folder)
    if as_json:
        return print_json(manifest.json())
    memory = manifest.memory
    console.print(f"{str(out).rstrip('/')}/ in {perf_counter() - began:.1f} s, for {manifest.target.name}")
    shown = table("", "", right=(1,))
    shown.add_row("weights", size(memory.constant))
    shown.add_row("peak RAM", size(memory.peak))
    shown.add_row("  of which activations", f"{size(memory.activations)} (lower bound {size(memory.bound)})")
    if memory.stack is not None:
        shown.add_row("stack, at most", size(memory.stack))
    if manifest.instructions is not None:
        shown.add_row("instructions, at most", count(manifest.instructions))
    if manifest.patches:
        shown.add_row("in patches", patches_text(manifest.patches))
    if manifest.stored:
        shown.add_row("stored weights", str(manifest.stored))
    if manifest.size:
        shown.add_row("code", size(manifest.size.code + manifest.size.data))
    for name, file in manifest.files.items():
        shown.add_row(name, size(file.bytes))
    return console.print(shown)


def _compile_speech(source: ModelArgument, written: WrittenFiles, options: Mapping[str, Any], *, as_json: bool) -> None:
    """A program of the networks of a model for speech to text."""
    if written.report is not None:
        raise InputError("--report is about one network: compile the parts, with --to 'cross.*' and --from 'cross.*'")
    written.check_gpu(options.get("target") or "host")

    def compiled(
        source: ModelArgument, options: Mapping[str, Any], progress: Callable[[str], None], part: str
    ) -> tenon.Bundle:
        return _compiled(source, options, progress, written, written.dump / part if written.dump else None)

    compile_speech(source, written.out, written.emit, options, compiled, as_json=as_json)


def _for_pages(written: WrittenFiles, options: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
    """The options with one target, and the place of "webgpu" in the list of two whose networks go to pages and
    packages; None where one target is given.  Raises InputError for other lists, which need a single file."""
    targets = [target.strip() for target in (options.get("target") or "").split(",")]
    if len(targets) == 1:
        return options, None
    others = [target for target in targets if target != "webgpu"]
    if len(targets) != 2 or len(others) != 1 or not find(others[0]).format.module:
        raise InputError(f"--target {options['target']}: several targets go to one file: -o {written.out}{SUFFIX}")
    if not {"html", "npm"} & set(written.emit):
        raise InputError(f"--target {options['target']} is for pages and npm packages: --emit html,npm")
    return {**options, "target": others[0]}, targets.index("webgpu")


def _for_webgpu(
    source: ModelArgument, options: Mapping[str, Any], progress: Callable[[str], None], written: WrittenFiles
) -> tenon.Bundle | UnsupportedError:
    """The model compiled for WebGPU; where its kernels cannot be, the error, which is also a note."""
    dump = written.dump / "webgpu" if written.dump is not None else None
    try:
        return _compiled(source, {**options, "target": "webgpu", "emit": ()}, progress, written, dump)
    except UnsupportedError as error:
        note(f"{source.name} runs without WebGPU: {error}")
        return error


def _compiled(
    source: ModelArgument,
    options: Mapping[str, Any],
    progress: Callable[[str], None],
    written: WrittenFiles,
    dump: Path | None,
) -> tenon.Bundle:
    from tenon.cli.dump import Dump
    from tenon.machine.plan.stages import UNSEEN

    seen = Dump(dump) if dump is not None else None
    chosen = Options.from_environment(**options, inputs=source.inputs, outputs=source.outputs)
    source.fetch(progress)
    with seen or nullcontext():
        bundle = tenon.compile(
            source.model,
            written.for_target(chosen),
            weights=source.weights,
            shapes=source.bindings,
            values=source.all_values,
            max=source.limits,
            progress=progress,
            stages=seen or UNSEEN,
            **_rewrite(written, chosen.target),
        )
    if seen is not None:
        seen.bundle(bundle)
    progress("compile")
    note_open_batches(bundle.program.assumed)
    inputs, outputs = (
        {port.name: port.type for port in ports if not port.state}
        for ports in (bundle.program.inputs, bundle.program.outputs)
    )
    note_possible_states(suggested(inputs, outputs).items())
    return bundle


def _rewrite(written: WrittenFiles, target: str) -> dict[str, Any]:
    """The option that gives parts of the network to devices, with options of GPUs.

    Raises InputError if one cannot be used, or not for the target, and for layers that are assigned where there are no
    devices.
    """
    if not written.offload:
        if written.device_of:
            raise InputError("--device-of assigns layers to devices: name these with --offload")
        return {}
    from tenon.runtime.plugins.offload import offload_to
    from tenon.runtime.plugins.target_device import takes_parts

    if absent := [device for device in written.offload if not takes_parts(device, target)]:
        raise InputError(
            f"--offload {absent[0]}: parts for GPUs are made for this machine, not for {target}: leave it out"
        )
    return {"rewrite": offload_to(written.offload, written.device_of, written.gpu)}


def _write_report(
    report: Path | None,
    source: ModelArgument,
    bundle: tenon.Bundle,
    options: Mapping[str, Any],
    progress: Callable[[str], None],
) -> None:
    if report is not None:
        from tenon.cli.build_report import report_page

        write(report, report_page(source, bundle, options, progress), "--report")


def _check_loaded(out: Path, options: Options) -> None:
    """Raises InputError for a target whose bundles no program loads, so that a single file has no use."""
    check_possible(options)
    if library_name("", find_target(options)) is None:
        raise InputError(f"{out}: target {options.target} has no library for a {SUFFIX} file: give a folder")


def _compile_to_one_file(
    source: ModelArgument, written: WrittenFiles, options: Mapping[str, Any], *, as_json: bool
) -> None:
    """For each of the targets, which --target lists."""
    began, out, report, key = perf_counter(), written.out, written.report, written.key
    if written.emit:
        raise InputError(f"a {SUFFIX} file holds what is needed to run the network: leave out --emit")
    targets = [target.strip() for target in (options.get("target") or "").split(",")]
    dump = written.dump
    dumps = [dump / target if dump is not None and len(targets) > 1 else dump for target in targets]
    if report is not None and len(targets) > 1:
        raise InputError("--report is about one target: compile for each of them, or leave it out")
    each = [Options.from_environment(**{**options, "target": target or None}) for target in targets]
    for chosen in each:
        _check_loaded(out, chosen)
    written.check_gpu(*(chosen.target for chosen in each))
    with stages(f"compiling {source.name}") as progress:
        bundles = [
            _compiled(source, {**options, "target": target or None}, progress, written, dump)
            for target, dump in zip(targets, dumps, strict=True)
        ]
        save_container(out, bundles, key)
        _write_report(report, source, bundles[0], options, progress)
    manifests = [bundle.manifest(bundle.loaded_files(), compiled=True) for bundle in bundles]
    if as_json:
        return print_json({"targets": [manifest.json() for manifest in manifests], "bytes": out.stat().st_size})
    console.print(f"{out}, {size(out.stat().st_size)}, in {perf_counter() - began:.1f} s", markup=False, soft_wrap=True)
    shown = table("target", "weights", "peak RAM", "code", right=(1, 2, 3))
    for manifest in manifests:
        code = size(manifest.size.code + manifest.size.data) if manifest.size else ""
        shown.add_row(manifest.target.name, size(manifest.memory.constant), size(manifest.memory.peak), code)
    return console.print(shown)


def inspect_model(
    source: ModelArgument,
    options: dict[str, Any],
    files: Mapping[str, Path],
    *,
    layers: bool,
    as_json: bool,
) -> None:
    """Print a model, and write its graph as the "dot", "html" and "text" that ``files`` names."""
    from tenon.network.graph.bind import open_batches
    from tenon.pipeline import inspect

    if source.bundle:
        if files:
            raise InputError(f"{source.model}: a bundle contains no graph: inspect the model that it was compiled from")
        source.check_bundle_options(options)
        return inspect_bundle(Path(source.model), layers=layers, as_json=as_json)
    with stages(f"reading {source.name}") as progress:
        graph = source.load(progress)
        assumed = graph.assumed or open_batches({v.name: v.type for v in graph.inputs})
        description, optimised = inspect(graph, Options.from_environment(**options), progress=progress)
    note_open_batches(assumed.items())
    note_possible_states(description.possible_states)
    for kind, path in files.items():
        write(path, _WRITTEN[kind](optimised or graph), f"--{kind}")
    if as_json:
        return print_json(asdict(description))
    if graph.text is not None and graph.text.kind == "decoder":
        console.print(_language_model(graph.text), markup=False, soft_wrap=True)
    for what, tensors in (("input", description.inputs), ("output", description.outputs)):
        ports = [PortLine(what, t.name, f"{t.dtype}[{','.join(map(str, t.shape))}]", t.state) for t in tensors]
        for line in port_lines(ports):
            console.print(line, markup=False, soft_wrap=True)
    shown = table("", "", right=(1,))
    stored = f" ({size(description.parameter_bytes)})" if description.arithmetic == "float" else ""
    shown.add_row("parameters", count(description.parameters) + stored)
    shown.add_row("multiply-accumulates", count(description.macs) if optimised else "shapes unbound")
    shown.add_row("peak RAM", size(description.peak_ram))
    shown.add_row("  of which activations", f"{size(description.arena)} (lower bound {size(description.arena_bound)})")
    if "ram" in options:
        shown.add_row("  most at layer", description.largest)
    if patches := description.patches:
        shown.add_row("in patches", patches_text(patches))
    shown.add_row("weights, compiled", size(description.weights))
    if description.stored:
        shown.add_row("  stored", str(StoredTypes(**asdict(description.stored))))
    console.print(shown)
    for title, operators in (("operator", description.operators), ("compiled to", description.compiled or {})):
        counts = table(title, "count", right=(1,))
        for name, n in operators.items():
            counts.add_row(name, str(n))
        if operators:
            console.print(counts)
    if description.speed_up:
        predicted = table("threads", "predicted speed-up", right=(0, 1))
        for threads, factor in description.speed_up.items():
            predicted.add_row(str(threads), f"{factor:.2f}")
        console.print(predicted)
    if description.left_in_float:
        integers = description.arithmetic != "float"
        kept = table("left in float" if integers else "left in f32", "because")
        for where, why in description.left_in_float:
            kept.add_row(where, why)
        console.print(kept)
    if description.requantised:
        moves = table("requantised", "by moving")
        for where, why in description.requantised:
            moves.add_row(where, why)
        console.print(moves)
    if layers:
        listed = table("layer", "operator", "output", "MACs", right=(3,))
        for layer in description.layers:
            listed.add_row(layer.name, layer.op, layer.output, count(layer.macs))
        console.print(listed)
    return None


# --------------------------------------------------------------------------------------------- parts
def _language_model(text: TextModel) -> str:
    """``language model  llama  trained for 8192 tokens  tokenizer  chat template``: what its files say."""
    facts = (
        text.architecture,
        f"trained for {text.context} tokens" if text.context else "",
        "tokenizer" if text.tokenizer is not None else "no tokenizer",
        "chat template" if text.chat_template else "no chat template",
    )
    return "  ".join(("language model", *filter(None, facts)))


def _dot(graph: Graph) -> str:
    from tenon.network.graph.dot import to_dot

    return to_dot(graph)


def _html(graph: Graph) -> str:
    from tenon.cli.graph_page import page

    return page(graph)


_WRITTEN: dict[str, Callable[[Graph], str]] = {"dot": _dot, "html": _html, "text": show}
