"""The options of a compilation, with every default filled in that depends on the target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tenon.errors import InputError
from tenon.gpu_options import USUAL, GpuOptions
from tenon.machine.algorithms.base import Limits
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.codegen.c.strict import strict_machine
from tenon.machine.plan.lowering_context import Setting
from tenon.machine.targets import Target
from tenon.machine.targets.float_abi import float_abi
from tenon.network.graph.graph import Graph
from tenon.network.graph.text_shapes import tokens_of_run
from tenon.options import (
    INTEGER_WINOGRAD_BYTES,
    THREADS,
    Arithmetic,
    Emit,
    Options,
    Precision,
    WeightFormat,
    non_default,
    usual_limits,
)


@dataclass(frozen=True)
class Compilation:
    """A compilation for a target, resolved from ``Options``, which later stages do not read.

    ``setting`` has the machine, the limits of algorithms and the number of threads.  ``tuning`` is the table of
    measured times; None: algorithms are selected by estimate only.  ``recorded`` are the options as a manifest lists
    them, and ``stated`` those with other values than the default, as text, for the banner of generated files.  The
    other fields are those of ``Options``.
    """

    target: Target
    setting: Setting
    optimize: Literal[0, 1, 2] = 2
    precision: Precision = "fp32"
    weight_format: WeightFormat = "fp32"
    max_weight_error: float = math.inf
    arithmetic: Literal["tflm", "litert", "onnx", "float"] | None = None
    max_weights: int | None = None
    ram: int | None = None
    tuning: Path | None = None
    verify: bool = False
    profile: bool = False
    labels: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    emit: tuple[Emit, ...] = ()
    code_section: str | None = None
    weights_section: str | None = None
    compiler: str | None = None
    cache: Path = Path()
    recorded: Mapping[str, Any] = field(default_factory=dict)
    stated: tuple[str, ...] = ()
    gpu: GpuOptions = USUAL

    @property
    def microcontroller(self) -> bool:
        """Whether the target is a processor without an operating system, whose memory is scarce."""
        return self.target.freestanding and not self.target.format.module

    @property
    def loops_over_images(self) -> bool:
        """Whether batches are computed image by image, for what few threads keep in their caches; not where each call
        is timed, which a loop makes many times."""
        processor = self.setting.machine.launch is None and find_backend(self.target.backend).launch == "call"
        return (
            processor
            and self.optimize == 2
            and not self.profile
            and self.ram is None
            and self.setting.machine.threads <= 2
        )

    @property
    def tokens_of_run(self) -> int:
        """The most tokens of a run of a language model, where nothing else is said."""
        widened = self.target.machine.bf16_tiles
        return tokens_of_run(self.setting.threads, threaded=self.target.threaded, widened=widened)

    def arithmetic_of(self, graph: Graph) -> Literal["tflm", "litert", "onnx", "float"]:
        """How the quantised operators of ``graph`` are computed."""
        # A page in a browser is expected to give the answers of this machine, a microcontroller those of TFLite Micro.
        usual: Arithmetic = "tflm" if self.microcontroller and graph.source.endswith(".tflite") else "onnx"
        return self.arithmetic or usual


def resolved(options: Options, target: Target) -> Compilation:
    """The compilation that options ask for.  ``target`` is their target, with measured properties.

    Raises InputError for several threads on a target without them, and for strict C where code is not C, and for
    size classes on a target whose code cannot choose one.
    """
    strict = options.c99 == "strict"
    if strict and target.backend != "c":
        raise InputError(f"kernels for target {target.name} are not in C: leave out c99=strict (--c99)")
    if strict:
        target = replace(target, machine=strict_machine(target.machine), backend="c.strict")
    if (options.code_section or options.weights_section) and not target.format.names_sections:
        raise InputError(f"objects for target {target.name} are not ELF: leave out code_section and weights_section")
    _check_size_classes(options, target)
    _check_weight_format(options, target)
    if options.cache_type != "fp32" and target.machine.launch is not None:
        raise InputError(
            f"target {target.name} stores caches in 32 bits: leave out cache_type={options.cache_type} (--cache-type)"
        )
    options = _with_limits(options, target)
    return Compilation(
        target,
        _setting(options, target),
        options.optimize,
        options.precision,
        options.weight_format,
        _max_weight_error(options),
        options.arithmetic,
        options.max_weights,
        options.ram,
        None if options.no_tuning or strict or not target.format.compiled else options.tuning,  # times of vector code
        options.verify,
        options.profile,
        options.labels,
        options.ranges,
        options.emit,
        options.code_section,
        options.weights_section,
        options.compiler,
        options.cache,
        _recorded(options, target),
        tuple(non_default(options, target.freestanding)),
        _gpu_options(options, target),
    )


def _check_size_classes(options: Options, target: Target) -> None:
    if options.size_classes > 1 and find_backend(target.backend).launch != "call":
        raise InputError(
            f"target {target.name} has one code for all sizes: leave out size_classes={options.size_classes} "
            "(--size-classes)"
        )


AUTO_ERROR = 0.01
"""The budget of the weight format "auto" where none is given."""


def _max_weight_error(options: Options) -> float:
    if options.max_weight_error is None:
        return AUTO_ERROR if options.weight_format == "auto" else math.inf
    return options.max_weight_error


def _check_weight_format(options: Options, target: Target) -> None:
    """Raises InputError for a weight format beside a precision, or on a target whose kernels have none."""
    form = options.weight_format
    if form == "fp32":
        if options.max_weight_error is not None:
            raise InputError("max_weight_error is a limit for weight_format: give that too (--weight-format int8)")
        return
    if options.precision != "fp32":
        raise InputError(
            f"weight_format={form} is for arithmetic in f32: leave out precision={options.precision} (--precision), or "
            "the weight format (--weight-format)"
        )
    if target.machine.launch is not None:
        raise InputError(
            f"target {target.name} stores weights as precision says: give precision=fp16 (--precision) instead of "
            f"weight_format={form} (--weight-format)"
        )


def runs_on_gpu(target: Target) -> bool:
    """Whether bundles for a target have a host program in C that runs them on a GPU, and takes the options ``gpu``."""
    return find_backend(target.backend).launch == "grid" and target.format.compiled


def _gpu_options(options: Options, target: Target) -> GpuOptions:
    if options.gpu and not runs_on_gpu(target):
        raise InputError(f"target {target.name} is no GPU: leave out the options of one (gpu)")
    return GpuOptions.read(options.gpu)


def _with_limits(options: Options, target: Target) -> Options:
    """The options with the usual limits of a target where none are given."""
    winograd, strassen = usual_limits(target.freestanding)
    return replace(
        options,
        winograd=winograd if options.winograd is None else options.winograd,
        strassen=strassen if options.strassen is None else options.strassen,
    )


def _setting(options: Options, target: Target) -> Setting:
    max_winograd_error = math.inf if options.max_winograd_error is None else options.max_winograd_error
    assert options.strassen is not None
    usual = options.winograd is None  # on a target without an operating system
    in_integers = INTEGER_WINOGRAD_BYTES if usual else math.inf if options.winograd else 0
    limits = Limits(options.winograd or 0, options.strassen, max_winograd_error, in_integers, options.bf16x3)
    machine = replace(target.machine, threads=options.threads or target.machine.threads)
    return Setting(machine, limits, threads=_most_threads(options, target))


def _most_threads(options: Options, target: Target) -> int:
    """Maximum number of threads of a bundle.  Raises InputError for several threads on a target without them."""
    if not target.threaded:
        if (options.threads or 1) > 1:
            raise InputError(f"target {target.name} has no threads: leave out threads={options.threads}")
        return 1
    return options.threads or THREADS


def _recorded(options: Options, target: Target) -> dict[str, Any]:
    """The options that decide what code a bundle has."""
    return {
        "target": options.target,
        "float_abi": float_abi(target),
        "c99": options.c99,
        "code_section": options.code_section,
        "weights_section": options.weights_section,
        "optimize": options.optimize,
        "precision": options.precision,
        "weight_format": options.weight_format,
        "max_weight_error": options.max_weight_error,
        "cache_type": options.cache_type,
        "dot2": pairs.time if (pairs := target.machine.unit("dot2")) else None,
        "winograd": options.winograd,
        "strassen": options.strassen,
        "size_classes": options.size_classes,
        "max_winograd_error": options.max_winograd_error,
        "bf16x3": options.bf16x3,
        "max_weights": options.max_weights,
        "ram": options.ram,
        "verify": options.verify,
        "profile": options.profile,
        "gpu": GpuOptions.read(options.gpu).lines().splitlines(),
    }
