"""The commands ``model-compiler``, ``image-classifier``, ``model-profiler`` and ``model-tuner``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from tenon import __version__
from tenon.cli.program import run_command
from tenon.compat.glow.model import dump_graphs, emit, load, quantised
from tenon.compat.glow.options import IMAGES, LOADER, PROFILER, TUNER, Arguments, Kind, parse
from tenon.errors import InputError


def model_compiler() -> None:
    """``model-compiler -model=FILE -emit-bundle=FOLDER``: compile a model to a bundle with Glow's interface."""
    _run("model-compiler", LOADER, _compile)


def image_classifier() -> None:
    """``image-classifier IMAGES -m=FILE -i=0to1``: classify images; the exit status is the number of wrong answers."""
    from tenon.compat.glow.classify import classify

    _run("image-classifier", {**LOADER, **IMAGES}, classify)


def model_profiler() -> None:
    """``model-profiler -model=FILE -input-dataset=INPUT,rawbin,dir,FOLDER -dump-profile=FILE``: ranges of tensors."""
    from tenon.compat.glow.profiler import profile

    _run("model-profiler", {**LOADER, **PROFILER}, profile)


def model_tuner() -> None:
    """``model-tuner -model=FILE -load-profile=FILE -dataset-file=FILE -dataset-path=FOLDER -dump-tuned-profile=FILE``:
    narrow the ranges of a profile where that makes the quantised model more accurate."""
    from tenon.compat.glow.tuner import tune

    _run("model-tuner", {**LOADER, **IMAGES, **TUNER}, tune)


def _compile(arguments: Arguments) -> int:
    if not arguments.get("emit-bundle"):
        raise InputError("Use the -emit-bundle option!")
    if arguments.positional:
        raise InputError(f"{arguments.positional[0]}: give the model with -model={arguments.positional[0]}")
    graph = quantised(arguments, load(arguments))
    dump_graphs(arguments, graph)
    emit(arguments, graph)
    return 0


def _run(name: str, known: dict[str, Kind], command: Callable[[Arguments], int]) -> None:
    """Run a command on ``sys.argv`` and exit."""
    words = sys.argv[1:]
    if {"-help", "--help"} & set(words):
        print(_help(name, known))
        return
    if {"-version", "--version"} & set(words):
        print(f"{name} of Tenon {__version__}")
        return
    sys.exit(run_command(name, lambda: command(parse(words, known))))


def _help(name: str, known: dict[str, Kind]) -> str:
    forms: dict[Kind, str] = {"flag": "", "value": "=<value>", "list": "=<value> (repeatable)"}
    options: Sequence[str] = [f"  -{option}{forms[kind]}" for option, kind in sorted(known.items())]
    return "\n".join([f"usage: {name} [options], with one dash or two", "", "options:", *options])
