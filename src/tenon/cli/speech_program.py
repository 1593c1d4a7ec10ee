"""``tenon compile MODEL --emit exe`` for a model that writes down speech: both of its networks, and a program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from tenon.cli.console import console, note, print_json, size, stages, table
from tenon.cli.model_source import ModelArgument
from tenon.options import Emit, Options
from tenon.pipeline import check_possible
from tenon.runtime.bundle import Bundle
from tenon.runtime.bundle.names import entry_name
from tenon.runtime.bundle.speech_program import PROGRAM_PARTS, SpeechProgram
from tenon.runtime.speech.model_folder import speech_model
from tenon.runtime.speech.models import DECODER, ENCODER

__all__ = ["PROGRAM_PARTS", "compile_speech", "is_whole_speech_model"]

_PARTS = {"encoder": ENCODER, "decoder": DECODER}


def is_whole_speech_model(source: ModelArgument) -> bool:
    """Whether a model writes down speech, and no part of it is cut out."""
    cut = source.inputs or source.outputs or len(source.bindings) > 1 or "://" in source.model
    return not cut and speech_model(Path(source.model)) is not None


def compile_speech(
    source: ModelArgument,
    out: Path,
    emit: tuple[Emit, ...],
    options: Mapping[str, Any],
    compiled: Callable[[ModelArgument, Mapping[str, Any], Callable[[str], None], str], Bundle],
    *,
    as_json: bool,
) -> None:
    """Compile the networks of a model, and write them to ``out`` with a program over both.

    ``compiled`` compiles one, with options and a function for progress; its last argument is "encoder" or "decoder".
    """
    model = speech_model(Path(source.model))
    assert model is not None
    source = replace(source, model=str(model))
    chosen = Options.from_environment(**options)
    check_possible(chosen, emit)
    name = entry_name(chosen.prefix, chosen.name, _stem(Path(source.model)))
    began = perf_counter()
    with stages(f"compiling {source.name}") as progress:
        bundles = dict[str, Bundle]()
        for part, how in _PARTS.items():
            cut = {field: how.get(field, ()) for field in ("inputs", "outputs")}
            shapes = {**how["shapes"], **(source.bindings[0] if part == "encoder" else {})}
            own = {**options, "name": f"{name}_{part}", "prefix": None, "emit": ()}
            bundles[part] = compiled(replace(source, **cut, bindings=(shapes,)), own, progress, part)
        program = SpeechProgram(**bundles)
        folder = program.save(out, emit, progress if sys.stderr.isatty() else note)
    manifests = [bundle.interface for bundle in bundles.values()]
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    if as_json:
        return print_json({"networks": [manifest.json() for manifest in manifests], "files": files})
    console.print(f"{str(out).rstrip('/')}/ in {perf_counter() - began:.1f} s, for {manifests[0].target.name}")
    shown = table("", "", right=(1,))
    shown.add_row("weights", size(sum(manifest.memory.constant for manifest in manifests)))
    activations = max(manifest.memory.activations for manifest in manifests)
    shown.add_row("peak RAM", size(activations + sum(manifest.memory.mutable for manifest in manifests)))
    for file, bytes_ in files.items():
        shown.add_row(file, size(bytes_))
    return console.print(shown)


def _stem(path: Path) -> str:
    """The name of a model: that of its folder, for files that are called alike in all of them."""
    alike = path.is_file() and path.name.startswith(("model", "encoder_model", "decoder_"))
    return path.resolve().parent.name if alike else path.stem
