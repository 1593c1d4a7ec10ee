"""Every choice a user can make about a compilation: one frozen, validated value.

Environment variables are read here and nowhere else:

    TENON_TARGET    TENON_NAME    TENON_OPTIMIZE    TENON_EMIT (comma-separated)    TENON_VERIFY (0 or 1)
    TENON_PROFILE   0 or 1    TENON_THREADS    TENON_PRECISION    TENON_ARITHMETIC
    TENON_CC        the C compiler to use instead of zig
    TENON_TUNING    the table of measured layers; else tuning.sqlite in the cache    TENON_NO_TUNING (0 or 1)
    TENON_CACHE     where compiled objects and fetched models are kept; else XDG_CACHE_HOME/tenon, else ~/.cache/tenon
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import lru_cache
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, ParamSpec, TypedDict, TypeVar, get_args, get_type_hints

from tenon.errors import InputError
from tenon.validation import MisfitError, Reader, least, matching, most, reader

P = ParamSpec("P")
R = TypeVar("R")

Emit = Literal["c", "header", "object", "weights", "library", "manifest", "ir", "exe"]
"""A part of a bundle on disk."""

EMIT: tuple[Emit, ...] = get_args(Emit)
"""Every part, in the order they are made."""

Precision = Literal["fp32", "bf16", "fp16"]
"""How exact numbers are in memory."""

Arithmetic = Literal["tflm", "litert", "onnx"]
"""How quantised integers are computed: see ``passes.integers.arithmetic``."""

DataFormat = Literal["NHWC", "NCHW", "NONE"]
"""The order of the axes of an image; NONE for what is none, or stays as the model has it."""

DataType = Literal["float32", "float16", "int32", "int64", "int8", "uint8"]

THREADS = 8
"""The most threads that a bundle supports unless the user says otherwise."""

_VARIABLES = {
    "target": "TENON_TARGET",
    "precision": "TENON_PRECISION",
    "arithmetic": "TENON_ARITHMETIC",
    "name": "TENON_NAME",
    "optimize": "TENON_OPTIMIZE",
    "emit": "TENON_EMIT",
    "verify": "TENON_VERIFY",
    "profile": "TENON_PROFILE",
    "threads": "TENON_THREADS",
    "compiler": "TENON_CC",
    "cache": "TENON_CACHE",
    "tuning": "TENON_TUNING",
    "no_tuning": "TENON_NO_TUNING",
}


def default_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """Where compiled objects and fetched models are kept unless the user says otherwise."""
    if chosen := environment.get("TENON_CACHE"):
        return Path(chosen)
    home = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".cache")
    return Path(home) / "tenon"


def child_environment(**changes: str) -> dict[str, str]:
    """The environment for a program that we start."""
    return {**os.environ, **changes}


@dataclass(frozen=True)
class Options:
    """How to compile.  Unknown or invalid options raise InputError that lists every one of them."""

    target: str = "host"
    """A target's name; "host" is the best one for this machine."""

    name: Annotated[str, matching(r"[A-Za-z][A-Za-z0-9_]*", 64)] | None = None
    """The entry point and the first part of every file name; None takes the model's file name."""

    optimize: Literal[0, 1, 2] = 2
    """0 keeps the graph as imported, 1 cleans it up, 2 also folds and fuses."""

    precision: Precision = "fp32"
    """fp16 and bf16 store the weights of convolutions and matrix products in 16 bits; with bf16, a target that
    multiplies pairs of bf16 quickly (``dot2``) also computes convolutions in them.  Sums are f32 always.  Output
    channels whose weights f16 could not hold are stored times a power of two."""

    arithmetic: Literal["tflm", "litert", "onnx", "float"] | None = None
    """How the operators of a quantised model are computed.  In integers: ``tflm`` as TFLite Micro and CMSIS-NN do,
    ``litert`` as LiteRT's reference kernels do, ``onnx`` by factors in f32, rounded halves to even; each gives the same
    bits on every target.  ``float``, the default, computes what the integers stand for."""

    dot2: Annotated[float, least(0)] | None = None
    """How many multiply-adds of f32 take the time of a product of pairs of bf16, on targets that have one: where it is
    more than about 2, bf16 only stores weights, and only where that is no slower.  None is what was measured for
    "host", once for each kind of processor, and 4 for other targets, with which no processor loses; Zen 4 has 1."""

    winograd: Literal[0, 2, 4] | None = None
    """The largest tile of Winograd's convolution: larger is faster and less exact, 0 turns it off.  None is 4, and 0
    for machines without an operating system, where memory is scarcer than time."""

    strassen: Literal[0, 1, 2] | None = None
    """How often Strassen's algorithm may halve a product of matrices, 0 for never; None is 2, or 0 as above."""

    max_winograd_error: Annotated[float, least(0)] | None = None
    """The largest error over the RMS of an output channel that Winograd's algorithm may add, that of rounding its
    transformed weights and inputs to 16 bits included."""

    max_weights: Annotated[int, least(0)] | None = None
    """The most bytes that all weights may take as packed; fast algorithms make them grow."""

    preprocess: dict[str, Any] = field(default_factory=dict)
    """How images become inputs, where the model does not say or says otherwise: fields of
    ``ir.preprocessing.Preprocessing``."""

    head: dict[str, Any] = field(default_factory=dict)
    """How outputs list detections, where the model does not say: fields of ``passes.heads.Described``, and "priors"."""

    compile_preprocess: tuple[int, int] | None = None
    """(height, width) of images that the bundle takes as bytes [height, width, channels], all else compiled in."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    """The tensors between which a model is cut; () for its own inputs and outputs."""

    data_formats: dict[str, DataFormat] = field(default_factory=dict)
    """The order of axes of inputs and outputs, by name; "" for all images."""

    data_types: dict[str, DataType] = field(default_factory=dict)
    """The type of elements of inputs and outputs, by name."""

    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The least and the largest number of inputs, by name, for tests on random numbers; "" for all."""

    emit: tuple[Emit, ...] = ()
    """What a saved bundle holds; () is everything the target can have but the executable."""

    verify: bool = False
    """Check the graph after every pass, and compare what it computes with what it did before, on random data."""

    profile: bool = False
    """Add a second entry point that reads a clock before the first kernel call and after each."""

    threads: Annotated[int, least(1), most(256)] | None = None
    """The most threads that the bundle can be run with, and those that the ways to compute layers are chosen for.  None
    is 8, or 1 where there is no operating system, and ways that are the best for one thread."""

    compiler: str | None = None
    """A gcc or clang, by name or path; None is the zig that comes with Tenon."""

    cache: Path = field(default_factory=default_cache)
    """Compiled objects are kept here, fetched models in TENON_CACHE or its default; it can be deleted at any time."""

    tuning: Path = field(default_factory=lambda: default_cache() / "tuning.sqlite")
    """What ``tenon tune`` measured; used where it knows a layer."""

    no_tuning: bool = False
    """Choose algorithms by the estimate alone: the same input and options then give the same bytes on any machine."""

    if not TYPE_CHECKING:

        def __init__(self, **values: Any) -> None:
            problems = [f"no option '{name}'; options: {', '.join(_readers())}" for name in values.keys() - _readers()]
            for option in fields(self):
                try:
                    value = _readers()[option.name](values[option.name]) if option.name in values else _default(option)
                    object.__setattr__(self, option.name, value)
                except MisfitError as misfit:
                    problems.append(f"option {option.name}={values[option.name]!r}: it {misfit.why}")
            if problems:
                raise InputError("\n".join(problems))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **overrides: Any) -> Options:
        """Options from TENON_* variables; ``overrides`` that are not None win."""
        known = os.environ if environment is None else environment
        values: dict[str, Any] = {
            option: known[variable] for option, variable in _VARIABLES.items() if known.get(variable)
        }
        if "emit" in values:
            values["emit"] = tuple(part.strip() for part in values["emit"].split(","))
        values.setdefault("cache", default_cache(known))
        values.setdefault("tuning", Path(values["cache"]) / "tuning.sqlite")
        values.update({option: value for option, value in overrides.items() if value is not None})
        return cls(**values)


NOT_IN_BANNER = frozenset({"target", "name", "emit", "verify", "compiler", "cache", "tuning", "no_tuning"})
"""Options that generated text does not depend on, or says in other words."""


def usual_limits(scarce: bool) -> tuple[Literal[0, 4], Literal[0, 2]]:
    """What ``winograd`` and ``strassen`` are unless the user says otherwise; ``scarce``: without operating system."""
    return (0, 0) if scarce else (4, 2)


def non_default(options: Options, scarce: bool) -> list[str]:
    """The options that differ from the defaults, as text; of nested ones only the names."""
    usual: dict[str, Any] = {option.name: _default(option) for option in fields(Options)}
    usual["winograd"], usual["strassen"] = usual_limits(scarce)
    shown = []
    for option in fields(Options):
        value = getattr(options, option.name)
        if option.name in NOT_IN_BANNER or value in (usual[option.name], None):
            continue
        text = ", ".join(value) if option.name in ("preprocess", "head") else value
        shown.append(f"{option.name}={text}")
    return shown


class OptionKeywords(TypedDict, total=False):
    """The fields of ``Options`` as keywords of functions, with the types that these take.  What is None or not given
    comes from the environment."""

    target: str | None
    name: str | None
    optimize: Literal[0, 1, 2] | None
    precision: Precision | None
    arithmetic: Literal["tflm", "litert", "onnx", "float"] | None
    dot2: float | None
    winograd: Literal[0, 2, 4] | None
    strassen: Literal[0, 1, 2] | None
    max_winograd_error: float | None
    max_weights: int | None
    preprocess: dict[str, Any] | None
    head: dict[str, Any] | None
    compile_preprocess: tuple[int, int] | None
    inputs: list[str] | tuple[str, ...] | None
    outputs: list[str] | tuple[str, ...] | None
    data_formats: dict[str, DataFormat] | None
    data_types: dict[str, DataType] | None
    ranges: dict[str, tuple[float, float]] | None
    emit: list[Emit] | tuple[Emit, ...] | None
    verify: bool | None
    profile: bool | None
    threads: int | None
    compiler: str | None
    cache: str | Path | None
    tuning: str | Path | None
    no_tuning: bool | None


def with_options(function: Callable[P, R]) -> Callable[P, R]:
    """A function of ``**changes`` whose signature, for editors and notebooks that ask it, lists the options."""
    known = signature(function)
    own = [p for p in known.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    hints = get_type_hints(OptionKeywords)
    given = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in hints.items()
        if name not in known.parameters
    ]
    function.__signature__ = known.replace(parameters=[*own, *given])  # type: ignore[attr-defined]
    return function


@lru_cache(maxsize=1)
def _readers() -> dict[str, Reader]:
    """What makes the value of each option; numbers and flags may be text, as in the environment."""
    hints = get_type_hints(Options, include_extras=True)
    return {option.name: reader(hints[option.name], from_text=True) for option in fields(Options)}


def _default(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()
