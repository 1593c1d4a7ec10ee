"""Command lines of Glow's tools: options with one or two dashes, as LLVM's parser reads them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tenon.errors import InputError

Kind = Literal["value", "flag", "list"]

LOADER: dict[str, Kind] = {
    "model": "list",
    "verbose": "flag",
    "dump-profile": "value",
    "load-profile": "value",
    "backend": "value",
    "quantization-schema": "value",
    "quantization-precision": "value",
    "quantization-precision-bias": "value",
    "quantization-calibration": "value",
    "num-histogram-bins": "value",
    "keep-original-precision-for-nodes": "list",
    "assert-all-nodes-quantized": "flag",
    "enable-rowwise": "flag",
    "enable-channelwise": "flag",
    "dump-graph-DAG-before-compile": "value",
    "dump-graph-DAG": "value",
    "convert-to-fp16": "flag",
    "fp16-format": "value",
    "emit-bundle": "value",
    "network-name": "value",
    "main-entry-name": "value",
    "model-input": "list",
    "onnx-define-symbol": "list",
    "iterations": "value",
    "time": "flag",
    "target": "value",
    "march": "value",
    "mcpu": "value",
    "mabi": "value",
    "float-abi": "value",
    "relocation-model": "value",
    "target-feature": "list",
    "bundle-api": "value",
    "bundle-api-verbose": "flag",
    "bundle-objects": "list",
    "instrument-ir": "flag",
    "llvm-save-asm": "flag",
}
"""Options that the tools have in common."""

IMAGES: dict[str, Kind] = {
    "image-mode": "value",
    "image-channel-order": "value",
    "image-layout": "value",
    "input-image-dir": "value",
    "input-image-list-file": "value",
    "minibatch": "value",
    "use-imagenet-normalization": "flag",
    "mean": "value",
    "stddev": "value",
    "label-offset": "value",
    "compute-softmax": "flag",
    "topk": "value",
    "expected-labels": "list",
    "output-name": "value",
    "input-layout": "value",
}
"""Further options of ``image-classifier``."""

PROFILER: dict[str, Kind] = {"input-dataset": "list"}
"""Further options of ``model-profiler``."""

TUNER: dict[str, Kind] = {
    "dataset-file": "value",
    "dataset-path": "value",
    "dump-tuned-profile": "value",
    "target-accuracy": "value",
    "max-iter-per-node": "value",
    "acc-drop-skip": "value",
}
"""Further options of ``model-tuner``, besides those of images."""

_ALIASES = {
    "m": "model",
    "i": "image-mode",
    "l": "image-layout",
    "model-input-name": "model-input",
    "mattr": "target-feature",
}
_WITHOUT_EFFECT: dict[str, Kind] = {
    "g": "flag",
    "num-devices": "value",
    "minibatch-threads": "value",
    "pool-size": "value",
    "warmup": "value",
    "trace-path": "value",
    "trace-level": "value",
    "auto-instrument": "flag",
    "preload-all-images": "flag",
    "run-all-inputs-on-all-devices": "flag",
    "code-model": "value",
    "bundle-code-model": "value",
    "optimize-ir": "flag",
    "const-fold-ops": "flag",
    "reuse-activation-memory-allocations": "flag",
    "jit-specialize": "flag",
    "const-dedup-size": "value",
    "compilation-log": "flag",
    "verbose-compilation": "flag",
    "calibrate-constants": "flag",
    "do-not-lower-nodes-for-profiling": "list",
    "cpu-memory": "value",
    "device_init_timeout_ms": "value",
    "pseudo-random-seed": "value",
    "loop-unroll-limit": "value",
    "convert-placeholders": "flag",
    "tflite-bias-scale-check-max-error": "value",
    "debug-glow": "flag",
    "tflite-bias-scale-check-throw-error": "flag",
    "tflite-enable-custom-operator": "flag",
    "excluded-first-warmup-runs": "value",
    "repeat-single-batch-count": "value",
    "llvm-compiler": "value",
    "llvm-opt": "value",
    "llvm-compiler-opt": "list",
    "dump-jit-symbol-info": "flag",
    "debug-glow-only": "list",
    "llvm-code-debug-trace-instrumentation": "flag",
    "llvm-debug-trace-print-function-name": "value",
    "llvm-detect-read-write-start-address": "value",
    "llvm-detect-read-write-end-address": "value",
    "load-backend-specific-opts": "value",
    "load-device-configs": "value",
}
"""Options about how Glow works inside, or how fast: results do not depend on them."""

_ELSEWHERE = {
    "dump-graph": "write -dump-graph-DAG=FILE",
    "dump-ir": "write `tenon inspect MODEL --text FILE`",
    "dump-llvm-ir": "write -llvm-save-asm",
    "dump-llvm-asm": "write -llvm-save-asm",
    "tflite-dump-graph": "write -dump-graph-DAG=FILE",
    **dict.fromkeys(
        ("instrument-debug", "instrument-debug-dir", "instrument-debug-format", "instrument-debug-only"),
        "`tenon compare` and `tenon validate` show the numbers of layers",
    ),
    "instrument-ir-only": "write -instrument-ir, which calls the functions around all kernels",
    "onnx-export-rnn-states": "make the states outputs of the model",
    **dict.fromkeys(
        ("tflite-float-inputs", "tflite-float-outputs"), "write `tenon compile MODEL --data-type NAME=float32`"
    ),
    "tflite-uint8-to-int8": "inputs and outputs keep the types of the model",
    "tflite-rename-tensors": "tensors keep the names of the model",
    "tflite-float-softmax": "write `tenon compile MODEL --arithmetic float`",
    "tflite-mfcc-sample-rate": "the sample rate is the model's",
    "input-tensor-list-file": "write `tenon run MODEL INPUT.npy`",
    "convert-inout-to-fp16": "write `tenon compile MODEL --data-type NAME=float16`",
    "input-values-range": "write -mean and -stddev",
}
"""Options of Glow that are not here, and what does their work."""

_TRUE, _FALSE = ("true", "TRUE", "True", "1", ""), ("false", "FALSE", "False", "0")


@dataclass
class Arguments:
    """A command line: options by their full names, and the other arguments."""

    values: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    lists: dict[str, list[str]] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)

    def get(self, name: str, default: str = "") -> str:
        """The value of an option, or the default."""
        return self.values.get(name, default)

    def chosen(self, name: str, choices: Sequence[str]) -> str:
        """The value of an option, of which the first is the default.  Raises InputError for another."""
        value = self.values.get(name, choices[0])
        if value not in choices:
            raise InputError(f"-{name}={value}: choose {', '.join(c for c in choices if c)}")
        return value

    def number(self, name: str, default: int) -> int:
        """The value of an option as an integer.  Raises InputError."""
        try:
            return int(self.values.get(name, default))
        except ValueError:
            raise InputError(f"-{name}={self.values[name]}: write an integer") from None


def parse(arguments: Sequence[str], known: dict[str, Kind]) -> Arguments:
    """``-name=value``, ``--name value``, ``-flag``, ``-flag=false``; a repeated list option adds to the list.

    Raises InputError for an unknown option, with the nearest known one.
    """
    kinds = {**known, **_WITHOUT_EFFECT}
    parsed = Arguments()
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            parsed.positional.append(word)
            continue
        written, equals, value = word.lstrip("-").partition("=")
        name = _ALIASES.get(written, written)
        if name not in kinds:
            raise InputError(_unknown(written, kinds))
        if kinds[name] == "flag":
            if value not in (*_TRUE, *_FALSE):
                raise InputError(f"-{written}={value}: write true or false")
            (parsed.flags.discard if value in _FALSE else parsed.flags.add)(name)
            continue
        if not equals:
            if not rest:
                raise InputError(f"-{written} needs a value: write -{written}=VALUE")
            value = rest.pop(0)
        if kinds[name] == "list":
            parsed.lists.setdefault(name, []).append(value)
        else:
            parsed.values[name] = value
    return parsed


def _unknown(name: str, kinds: dict[str, Kind]) -> str:
    if name in _ELSEWHERE:
        return f"-{name} is not supported: {_ELSEWHERE[name]}"
    near = difflib.get_close_matches(name, [*kinds, *_ALIASES], 1)
    return f"unknown option -{name}" + (f": did you mean -{near[0]}?" if near else "")
