"""All options of a compilation, as one frozen, validated value.

Environment variables are read here and nowhere else:

    TENON_TARGET    TENON_NAME    TENON_OPTIMIZE    TENON_EMIT (comma-separated)    TENON_VERIFY (0 or 1)
    TENON_PROFILE   0 or 1    TENON_THREADS    TENON_PRECISION    TENON_ARITHMETIC    TENON_RAM
    TENON_CC        the C compiler to use instead of the bundled zig
    TENON_TUNING    the tuning table; default: tuning.sqlite in the cache    TENON_NO_TUNING (0 or 1)
    TENON_CACHE     folder of compiled objects and downloads; default: XDG_CACHE_HOME/tenon or ~/.cache/tenon
    TENON_OPEN_TARGET    whose code to take from a .tenon file
    TENON_KEY, TENON_KEY_FILE    the key of encrypted bundles: 64 hexadecimal digits, or a file with it
    TENON_PLUGINS   the plug-ins that every command loads
    TENON_DEVICE_PLUGINS    the plug-ins of devices that bundles may need
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
from tenon.validation import ByteCount, MisfitError, Reader, least, matching, most, reader

P = ParamSpec("P")
R = TypeVar("R")

Emit = Literal[
    "c",
    "header",
    "object",
    "weights",
    "weights-text",
    "library",
    "manifest",
    "ir",
    "exe",
    "html",
    "npm",
    "image",
    "text",
    "archive",
    "single-c",
    "single-header",
    "cmake",
    "arduino",
    "platformio",
    "espidf",
    "zephyr",
    "cmsis",
    "swift",
    "android",
    "tar",
    "serial",
    "micro",
    "mace",
]
"""A part of a bundle on disk."""

PARTS: frozenset[Emit] = frozenset({"c", "header", "object", "weights", "library", "manifest", "ir"})
"""If any of these is requested, only the requested parts are written; other parts add to the defaults."""

EMIT_ALIASES: dict[str, Emit] = {
    "o": "object",
    "so": "library",
    "a": "archive",
    "h": "single-header",
    "txt": "weights-text",
}
"""Parts by the endings of their files."""

EMIT: tuple[Emit, ...] = get_args(Emit)
"""All parts, in the order in which they are generated."""

Precision = Literal["fp32", "bf16", "fp16"]
"""The storage format of weights."""

WeightFormat = Literal["fp32", "fp16", "bf16", "int8", "q8_0", "q4_0", "auto"]
"""The storage format of weights while arithmetic stays in f32."""

CacheType = Literal["fp32", "fp16", "bf16", "int8"]
"""The storage format of a decoder's keys and values."""

Arithmetic = Literal["tflm", "litert", "onnx"]
"""How quantised integers are computed: see ``passes.integers.arithmetic``."""

DataFormat = Literal["NHWC", "NCHW", "NONE"]
"""The axis order of an image; NONE keeps that of the model."""

DataType = Literal["float32", "float16", "int32", "int64", "int8", "uint8", "quantized"]
"""The element type of an input or output; "quantized": the integers that a quantised model converts it to or from."""

THREADS = 8
"""Default maximum number of threads of a bundle."""

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
    "ram": "TENON_RAM",
}


OPENING = ("TENON_OPEN_TARGET", "TENON_KEY", "TENON_KEY_FILE")
"""The variables of ``opening``."""


PLUGINS = ("TENON_PLUGINS",)
"""The variable of ``plugins``."""
DEVICE_PLUGINS = ("TENON_DEVICE_PLUGINS",)
"""The variable of ``device_plugins``."""


def plugins(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The plug-ins that every command loads, in their order."""
    return [path for path in environment.get(PLUGINS[0], "").split(os.pathsep) if path]


def default_cache(environment: Mapping[str, str] = os.environ) -> Path:
    """The default folder of compiled objects and downloads."""
    if chosen := environment.get("TENON_CACHE"):
        return Path(chosen)
    home = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".cache")
    return Path(home) / "tenon"


def device_plugins(environment: Mapping[str, str] = os.environ) -> list[tuple[str, str]]:
    """The plug-ins of devices that run parts of bundles, each with its argument ("PATH=ARGUMENT"), separated as in
    PATH."""
    entries = filter(None, environment.get(DEVICE_PLUGINS[0], "").split(os.pathsep))
    return [(path, argument) for path, _, argument in (entry.partition("=") for entry in entries)]


def opening(environment: Mapping[str, str] = os.environ) -> list[str]:
    """How bundles are opened, where a program does not say: whose code is taken, the digits of the key, its file."""
    return [environment.get(name, "") for name in OPENING]


def variable(name: str) -> str:
    """An environment variable that the user names, or that all programs know (NO_COLOR); empty if there is none."""
    return os.environ.get(name, "")


def languages(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The languages that the user prefers, as gettext takes them: LANGUAGE, else LC_ALL, LC_MESSAGES or LANG."""
    main = next((value for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := environment.get(name, ""))), "")
    if main.partition(".")[0] in ("", "C", "POSIX"):  # where LANGUAGE has no effect
        return [main]
    return [language for language in (environment.get("LANGUAGE") or main).split(":") if language]


def child_environment(**changes: str) -> dict[str, str]:
    """The environment of child processes."""
    return {**os.environ, **changes}


@dataclass(frozen=True)
class Options:
    """Options of a compilation.  Raises InputError that lists all unknown and invalid options."""

    target: str = "host"
    """A target's name; "host" is the best target for this machine."""

    float_abi: Literal["soft", "softfp", "hard"] | None = None
    """Floating-point ABI of a Cortex-M target, as GCC's -mfloat-abi: "softfp" uses the FPU and passes floats in core
    registers.  None: the target's, which is "hard" with an FPU, and "softfp" for boards of Arduino's mbed core."""

    name: Annotated[str, matching(r"[A-Za-z][A-Za-z0-9_]*", 64)] | None = None
    """Name of the entry point and prefix of all file names; None uses the model's file name."""

    prefix: Annotated[str, matching(r"([A-Za-z][A-Za-z0-9_]*)?", 32)] = ""
    """What the name begins with, so that all symbols of the bundle do: ``acme_`` makes ``acme_net`` of ``net``."""

    c99: Literal["gnu", "strict"] = "gnu"
    """The dialect of the C: "gnu" has the vector extensions of GCC and Clang; "strict" none, for any compiler of C99,
    and is slower.  Strict code calls functions of the standard library, such as sqrtf."""

    code_section: Annotated[str, matching(r"[.A-Za-z_][A-Za-z0-9_.]*", 64)] | None = None
    weights_section: Annotated[str, matching(r"[.A-Za-z_][A-Za-z0-9_.]*", 64)] | None = None
    """Sections of the object file for functions and for weights, which a linker script can place: code in tightly
    coupled memory, weights in external flash.  None: the usual ones, .text and .rodata."""

    obfuscate: Literal["layers", "all"] | None = None
    """Leave the names of layers, tensors, operators, kernels and the model's file out of code, symbols and manifest;
    "all": those of inputs and outputs, too, which become in1, ..., out1, ....  Give a ``name`` as well."""

    optimize: Literal[0, 1, 2] = 2
    """0: the graph as imported; 1: canonicalized; 2: with folding and fusion."""

    precision: Precision = "fp32"
    """fp16 and bf16 store the weights of convolutions and matrix products in 16 bits; with bf16, a target that
    multiplies pairs of bf16 quickly (``dot2``) also computes convolutions in them, with sums in f32.  With fp16, a
    target with arithmetic in f16 (aarch64-fp16, cortex-a55 and -a76, riscv64-v-fp16) keeps activations between
    convolutions in f16, whose range ends at 65504, and adds up to 128 products in f16 before it adds these sums in f32;
    ``inspect`` lists the layers that stay in f32.  Output channels whose weights f16 could not hold are stored times a
    power of two."""

    weight_format: WeightFormat = "fp32"
    """How the weights of convolutions and matrix products are stored while all arithmetic stays in f32, on processors:
    each is converted when it is loaded.  int8 has a scale for each output channel.  That makes files smaller, and
    layers faster whose weights come from memory; others are slower.  q8_0 and q4_0 are those of language models: a
    scale for 32 weights of a matrix product or an embedding, whose activations are rounded to 8 bits and multiplied as
    integers.  "auto" stores a layer's weights as int8 or fp16
    only where that is estimated to be faster on the target.  ``max_weight_error`` limits what the outputs lose."""

    max_weight_error: Annotated[float, least(0)] | None = None
    """Largest error of an output that ``weight_format`` may cause: the root of the mean square of the difference over
    that of the output, measured on random inputs with a fixed seed.  Layers that would cause more are stored in wider
    types, fp16 and then fp32.  None: no limit; with "auto", 0.01."""

    arithmetic: Literal["tflm", "litert", "onnx", "float"] | None = None
    """How the operators of a quantised model are computed.  In integers: ``tflm`` as TFLite Micro and CMSIS-NN do,
    ``litert`` as LiteRT's reference kernels do, ``onnx`` by factors in f32, rounded halves to even; each gives the same
    bits on every target.  ``float`` computes what the integers stand for.  None is ``tflm`` for TFLite models on
    microcontrollers and ``onnx`` for all others."""

    dot2: Annotated[float, least(0)] | None = None
    """The time of a bf16 dot-product instruction, in f32 multiply-adds, on targets with such an instruction.  Above
    about 2, bf16 is only used to store weights, and only where that is not slower.  None: measured once per processor
    model for "host"; 4 for other targets, which is never slower than fp32.  Zen 4 has 1."""

    winograd: Literal[0, 2, 4] | None = None
    """Largest tile of Winograd's convolution: larger is faster and less exact; 0 disables it.  None: 4.  For targets
    without an operating system, to save memory, None is 0 for floats; integers, whose results are the same, are
    convolved by tiles of 2 in layers whose weights take at most 32 KiB then (``INTEGER_WINOGRAD_BYTES``)."""

    strassen: Literal[0, 1, 2] | None = None
    """Largest number of recursion levels of Strassen's algorithm; 0 disables it.  None: 2, or 0 as above."""

    size_classes: Annotated[int, least(1), most(16)] = 1
    """Most classes of sizes that runs choose: each has code of its own for sizes up to its largest ones, and a run
    takes the first one that its sizes fit.  They share weights and memory."""

    max_winograd_error: Annotated[float, least(0)] | None = None
    """Largest error, relative to the RMS of an output channel, that Winograd's algorithm may add, including the
    rounding of transformed weights and inputs to 16 bits."""

    bf16x3: bool = False
    """Convolutions of f32 may be computed as three products of bf16, on x86 with AMX: their error is stated with that
    of Winograd's algorithm."""

    max_weights: Annotated[int, least(0)] | None = None
    """Maximum size of the packed weights in bytes; fast algorithms increase it.  Without it they may grow by more than
    half where that saves at least 5 % of the estimated time."""

    ram: Annotated[ByteCount, least(1)] | None = None
    """Maximum of RAM in bytes ("64K" is 65536, "60kB" 60000): inputs, outputs, activations and scratch memory, without
    the stack.  Where no order of execution fits, the first layers are computed in patches of rows, which takes more
    multiply-accumulates; results of integers do not change.  InputError where nothing fits."""

    context: Annotated[int, least(2), most(1 << 24)] | None = None
    """Tokens that the caches of a language model have room for, where no shapes are given.  None: as many as the model
    was trained for, at most 2048."""

    sequences: Annotated[int, least(1), most(256)] = 1
    """Texts that a language model goes on with at the same time, each with caches of its own: a run has tokens of
    several, for which the weights are read once."""

    cache_type: CacheType = "fp32"
    """How the caches of a language model store keys and values, on processors; all arithmetic stays in f32.  fp16 and
    bf16 take half the memory, int8, with a scale for each key and each value of a head, a little more than a
    quarter."""

    grammar: str = ""
    """A grammar in GBNF that the texts of a language model follow, in programs too, unless another one is given."""

    preprocess: dict[str, Any] = field(default_factory=dict)
    """Image preprocessing, overriding that of the model: fields of ``graph.preprocessing.Preprocessing``."""

    head: dict[str, Any] = field(default_factory=dict)
    """Format of detection outputs that are not recognised: fields of ``passes.heads.Described``, and "priors"."""

    labels: tuple[str, ...] = ()
    """Names of the classes that the model distinguishes, recorded in the bundle."""

    features: dict[str, Any] = field(default_factory=dict)
    """Features of sound to compile in, so that the model's only input takes i16 samples: fields of
    ``graph.sound_features.SoundFeatures``, {"kind": "mfcc", "window": 480, ...}."""

    compile_preprocess: tuple[int, int] | None = None
    """(height, width) of an image input [height, width, channels] in bytes, with preprocessing compiled in."""

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    """Tensors at which the model is cut; (): its own inputs and outputs."""

    data_formats: dict[str, DataFormat] = field(default_factory=dict)
    """Axis order of inputs and outputs by name; "" for all images."""

    data_types: dict[str, DataType] = field(default_factory=dict)
    """Element types of inputs and outputs by name; "quantized" may be that of "", all that the model quantises."""

    states: dict[str, str] = field(default_factory=dict)
    """Inputs that keep an output from run to run, and these outputs.  A ``*`` in both stands for the same text, the
    output "none" for an input that is no state, and the input "" for all.  Others are states if the model or their
    names say so."""

    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Minimum and maximum of inputs by name, for benchmarks on random data; "" for all."""

    emit: tuple[Emit, ...] = ()
    """Parts of a saved bundle; (): all that the target supports, except those that have to be asked for."""

    verify: bool = False
    """Verify the graph after every pass, and compare its results on random data with those before the pass."""

    profile: bool = False
    """Add an entry point in which every kernel call is timed."""

    gpu: dict[str, Any] = field(default_factory=dict)
    """How the network runs on a GPU, unless who opens the bundle says otherwise: fields of
    ``codegen.gpu.options.GpuOptions``."""

    threads: Annotated[int, least(1), most(256)] | None = None
    """Maximum number of threads of the bundle, for which algorithms are selected.  None: 8, or 1 without an operating
    system, with algorithms selected for one thread."""

    compiler: str | None = None
    """A gcc or clang, by name or path; None: the bundled zig, or that of the system where there is none."""

    cache: Path = field(default_factory=default_cache)
    """Folder of compiled objects; can be deleted at any time.  Downloads are in TENON_CACHE or its default."""

    tuning: Path = field(default_factory=lambda: default_cache() / "tuning.sqlite")
    """The tuning table written by ``tenon tune``."""

    no_tuning: bool = False
    """Select algorithms by estimate only: the same input and options then give the same bytes on any machine."""

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
        """Options from TENON_* variables; ``overrides`` that are not None take precedence."""
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


NOT_IN_BANNER = frozenset(
    {
        "target",
        "name",
        "prefix",
        "obfuscate",
        "labels",
        "grammar",
        "emit",
        "verify",
        "compiler",
        "cache",
        "tuning",
        "no_tuning",
    }
)
"""Options that do not affect the generated code, or are stated elsewhere in the banner."""


INTEGER_WINOGRAD_BYTES = 1 << 15
"""Most bytes of a layer's weights, transformed, for which a target without an operating system uses Winograd's
algorithm in integers unless told."""


def usual_limits(scarce: bool) -> tuple[Literal[4] | None, Literal[0, 2]]:
    """Defaults of ``winograd`` and ``strassen``; ``scarce``: a target without an operating system."""
    return (None, 0) if scarce else (4, 2)


def non_default(options: Options, scarce: bool) -> list[str]:
    """Options with other values than the default, as text; nested options by name only."""
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
    """The fields of ``Options`` as keyword arguments.  Values that are None or missing come from the environment."""

    target: str | None
    float_abi: Literal["soft", "softfp", "hard"] | None
    name: str | None
    prefix: str | None
    c99: Literal["gnu", "strict"] | None
    code_section: str | None
    weights_section: str | None
    obfuscate: Literal["layers", "all"] | None
    optimize: Literal[0, 1, 2] | None
    precision: Precision | None
    weight_format: WeightFormat | None
    max_weight_error: float | None
    arithmetic: Literal["tflm", "litert", "onnx", "float"] | None
    dot2: float | None
    winograd: Literal[0, 2, 4] | None
    strassen: Literal[0, 1, 2] | None
    size_classes: int | None
    max_winograd_error: float | None
    bf16x3: bool | None
    max_weights: int | None
    ram: int | str | None
    context: int | None
    sequences: int | None
    cache_type: CacheType | None
    grammar: str | None
    preprocess: dict[str, Any] | None
    head: dict[str, Any] | None
    labels: list[str] | tuple[str, ...] | None
    features: dict[str, Any] | None
    compile_preprocess: tuple[int, int] | None
    inputs: list[str] | tuple[str, ...] | None
    outputs: list[str] | tuple[str, ...] | None
    data_formats: dict[str, DataFormat] | None
    data_types: dict[str, DataType] | None
    states: dict[str, str] | None
    ranges: dict[str, tuple[float, float]] | None
    emit: list[Emit] | tuple[Emit, ...] | None
    verify: bool | None
    profile: bool | None
    gpu: dict[str, Any] | None
    threads: int | None
    compiler: str | None
    cache: str | Path | None
    tuning: str | Path | None
    no_tuning: bool | None


def with_options(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of functions with ``**changes``: list the options in the signature, for editors and notebooks."""
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
    """The reader of each option's value; numbers and flags may be text, as in the environment."""
    hints = get_type_hints(Options, include_extras=True)
    return {option.name: reader(hints[option.name], from_text=True) for option in fields(Options)}


def _default(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()
