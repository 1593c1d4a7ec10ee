"""Options shared by several subcommands, declared once, in groups (``cli.groups``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tenon.cli.parse import (
    parse_assignments,
    parse_binding_values,
    parse_bindings,
    parse_fields,
    parse_head,
    parse_io,
    parse_limits,
    parse_list,
    parse_numbers,
    parse_processors,
    parse_size,
    read_labels,
)

if TYPE_CHECKING:
    from tenon.cli.device_choice import DeviceChoice
    from tenon.cli.model_source import ModelArgument, Threads
    from tenon.runtime.engine.processors import Cores

# ---------------------------------------------------------------------------------- the model
Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        metavar="NAME=DIMS",
        help="Set the shape of an input (x=1,3,224,224) or a dimension (batch=1); a size that every run chooses has a "
        "name and a range (ids=1,L:1..256, x=1,3,H:64..512:32,64); repeat a name for several bindings.",
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--max",
        metavar="NAME=N",
        help="The largest number that a value of the model can be, of which a size or a trip count is computed.",
    ),
]
Value = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="NAME=VALUE",
        help="Fix an input: a number (sr=16000), a list (x=1,2,3) or a .npy file; repeat a name as with --shape.",
    ),
]
_TWO = "The second file (or folder) of a model that has two."
Begin = Annotated[
    str | None,
    typer.Option("--from", metavar="TENSORS", help="Cut the model: start at these tensors, e.g. conv1,scale."),
]
End = Annotated[str | None, typer.Option("--to", metavar="TENSORS", help="Cut the model: end at these tensors.")]
Weights = Annotated[str | None, typer.Option("--weights", "--mmproj", metavar="PATH", help=_TWO)]


@dataclass(frozen=True, kw_only=True)
class KeyOptions:
    """The key of encrypted files."""

    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", help="The key of an encrypted model or bundle: 32 bytes or 64 hexadecimal digits."),
    ] = None

    @contextmanager
    def around(self) -> Iterator[None]:
        """Reads encrypted files with the key."""
        if self.key_file is None:
            yield
            return
        from tenon.formats.wire.encryption import read_key
        from tenon.formats.wire.stored_files import stored_as

        with stored_as(read_key(self.key_file)):
            yield


@dataclass(frozen=True, kw_only=True)
class SignatureOptions:
    """Who has to have signed the bundles that are opened."""

    public_key: Annotated[
        Path | None,
        typer.Option("--public-key", help="Open only .tenon files that the owner of this key (PEM) has signed."),
    ] = None
    minimum_version: Annotated[
        int | None,
        typer.Option("--minimum-version", min=0, help="The oldest version (tenon sign --version) that is accepted."),
    ] = None

    @contextmanager
    def around(self) -> Iterator[None]:
        """Verifies the signatures of bundles."""
        if self.public_key is None and self.minimum_version is None:
            yield
            return
        from tenon.runtime.engine.files import signed_by

        with signed_by(self.public_key, self.minimum_version or 0):
            yield

    def demand_bundles(self, *models: str) -> None:
        """Raises InputError for a model that is no bundle, where a signature is demanded."""
        from tenon.runtime.engine.files import refuse_unsigned

        for model in models if self.public_key is not None else ():
            if not source_of(model).bundle:
                refuse_unsigned(model)


@dataclass(frozen=True)
class Model(KeyOptions):
    """The model argument and its options."""

    model: Annotated[
        str,
        typer.Argument(help="A model file or folder, an http(s) address, or (to run, time or inspect) a bundle."),
    ]
    weights: Weights = None
    shape: Shape = None
    value: Value = None
    limits: Limits = None
    sha256: Annotated[
        str | None, typer.Option("--sha256", metavar="DIGEST", help="Expected SHA-256 of the model file.")
    ] = None
    begin: Begin = None
    end: End = None

    def source(self) -> ModelArgument:
        whole = source_of(self.model, self.weights, self.shape, self.value, self.sha256, self.limits)
        return replace(whole, inputs=parse_list(self.begin), outputs=parse_list(self.end))


def source_of(
    model: str,
    weights: str | None = None,
    shape: list[str] | None = None,
    value: list[str] | None = None,
    sha256: str | None = None,
    limits: list[str] | None = None,
) -> ModelArgument:
    from tenon.cli.model_source import ModelArgument

    first, *more = parse_binding_values(value)
    return ModelArgument(model, weights, sha256, parse_bindings(shape), first, tuple(more), limits=parse_limits(limits))


def sources_of(
    models: list[str], shape: list[str] | None, value: list[str] | None, limits: list[str] | None = None
) -> list[ModelArgument]:
    """Models with the same ``shape``, ``value`` and ``limits`` options."""
    return [source_of(model, shape=shape, value=value, limits=limits) for model in models]


# ---------------------------------------------------------------------------------- how to compile


def _completed_target(incomplete: str) -> list[str]:
    """Target names for shell completion."""
    from tenon.machine.targets import targets
    from tenon.machine.targets.registry import products

    return [name for name in ("host", *sorted([*targets(), *products()])) if name.startswith(incomplete)]


Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="The target to compile for; see 'tenon targets'.",
        autocompletion=_completed_target,
    ),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Verify every pass: the graph's structure, and its results on random data.")
]
Compiler = Annotated[
    str | None, typer.Option("--compiler", metavar="COMMAND", help="A gcc or clang to use instead of the bundled zig.")
]


Io = Annotated[
    str,
    typer.Option(
        "--io",
        help="Inputs and outputs of a quantised model: model (as they are), or integer (without the conversions from "
        "and to floats; the header states scale and zero point).",
    ),
]
NoTuning = Annotated[
    bool, typer.Option("--no-tuning", help="Ignore the tuning table: select algorithms by estimate only.")
]


@dataclass(frozen=True)
class PlanOptions:
    """Options of optimisation and planning.  Fields of this class and its subclasses are named as in ``Options``."""

    target: Target = None
    optimize: Annotated[
        int | None,
        typer.Option(
            "-O", min=0, max=2, help="Graph optimisation: 0 as imported, 1 canonical, 2 with folding and fusion."
        ),
    ] = None
    precision: Annotated[
        str | None,
        typer.Option(
            "--precision",
            help="fp16 and bf16: weights in 16 bits, and arithmetic in these where the target has it.",
        ),
    ] = None
    weight_format: Annotated[
        str | None,
        typer.Option(
            "--weight-format",
            help="Weights in fewer bits, arithmetic in f32; auto: in layers that it makes faster.",
        ),
    ] = None
    max_weight_error: Annotated[
        float | None,
        typer.Option("--max-weight-error", min=0, help="Largest error of an output that --weight-format may cause."),
    ] = None
    arithmetic: Annotated[
        str | None,
        typer.Option(
            "--arithmetic",
            help="How quantised operators are computed: in integers as TFLite Micro, LiteRT or ONNX do, or in float.",
        ),
    ] = None

    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="INPUT=OUTPUT",
            help="Keep an output as an input of the next run (h=hn, past.*=present.*); INPUT=none or none: do not.",
        ),
    ] = None

    ram: Annotated[
        str | None,
        typer.Option(
            "--ram",
            metavar="SIZE",
            help="Maximum of RAM (64K, 60kB): inputs, outputs and activations; computes layers in patches if need be.",
        ),
    ] = None

    def overrides(self) -> dict[str, Any]:
        """The given options, for ``Options.from_environment``; flags that are not set are left out."""
        values = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        if parse_io(values.pop("io", "model")):
            values["data_types"] = [*values.get("data_types", ()), "quantized"]
        if "compile_preprocess" in values:
            values["compile_preprocess"] = parse_size("--compile-preprocess", values["compile_preprocess"])
        if "features" in values:
            values["features"] = parse_fields("--features", values["features"])
        if "gpu" in values:
            values["gpu"] = parse_assignments("--gpu", values["gpu"])
        if "head" in values:
            values["head"] = parse_head(values["head"])
        if "labels" in values:
            values["labels"] = read_labels(values["labels"])
        assigned = (("data_formats", "--data-format"), ("data_types", "--data-type"), ("states", "--state"))
        for name, option in assigned:
            if name in values:
                values[name] = parse_assignments(option, values[name])
        if "ranges" in values:
            texts = parse_assignments("--range", values["ranges"])
            values["ranges"] = {name: parse_numbers("--range", text) for name, text in texts.items()}
        return values


@dataclass(frozen=True)
class InspectOptions(PlanOptions):
    """Options of ``tenon inspect``."""

    no_tuning: NoTuning = False
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Predict the speed-up of up to this many threads.")
    ] = None


@dataclass(frozen=True)
class BuildOptions(PlanOptions):
    """Options of compilation, without those of ``BundleOptions``."""

    compiler: Compiler = None
    verify: Verify = False
    data_formats: Annotated[
        list[str] | None,
        typer.Option(
            "--data-format",
            metavar="[NAME=]FORMAT",
            help="Axis order of an image input or output, or of all: NHWC, NCHW or NONE (keep).",
        ),
    ] = None
    data_types: Annotated[
        list[str] | None,
        typer.Option(
            "--data-type", metavar="NAME=TYPE", help="Element type of an input or output: float16, int32, uint8, ..."
        ),
    ] = None
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="[NAME=]LOW,HIGH", help="Value range of an input, for random data."),
    ] = None


@dataclass(frozen=True)
class RunOptions(BuildOptions):
    """Options of compiling a model in order to run it."""

    no_tuning: NoTuning = False

    context: Annotated[
        int | None,
        typer.Option("--context", min=2, help="Tokens that the caches of a language model have room for."),
    ] = None
    sequences: Annotated[
        int | None,
        typer.Option("--sequences", min=1, help="Texts that a language model goes on with at the same time."),
    ] = None
    cache_type: Annotated[
        str | None,
        typer.Option("--cache-type", help="How the caches of a language model store keys and values."),
    ] = None

    gpu: Annotated[
        list[str] | None,
        typer.Option(
            "--gpu",
            metavar="KEY=VALUE",
            help="How a GPU runs the network: cache=FOLDER keeps compiled kernels; queue_window=4, priority=low, ... "
            "(docs/reference/gpu.md).",
        ),
    ] = None

    head: Annotated[
        str | None,
        typer.Option(
            "--head",
            metavar="'KIND KEY=VALUE ...'",
            help="What the outputs are: detections, e.g. 'ssd strides=8,16 sizes=10/16,32/48' (docs/howto/images.md), "
            "or points, mask, text, ... (docs/howto/answers.md).",
        ),
    ] = None


@dataclass(frozen=True)
class BundleOptions(RunOptions):
    """Options of ``tenon compile``."""

    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the entry point and prefix of the files.")
    ] = None
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", metavar="TEXT", help="What the name, and so every symbol of the bundle, begins with."),
    ] = None
    obfuscate: Annotated[
        str | None,
        typer.Option(
            "--obfuscate",
            help="Leave out names of layers, tensors and kernels; all: also those of inputs and outputs.",
        ),
    ] = None
    float_abi: Annotated[
        str | None,
        typer.Option(
            "--float-abi",
            help="Floating-point ABI of a Cortex-M target, as GCC's -mfloat-abi.",
        ),
    ] = None
    c99: Annotated[
        str | None,
        typer.Option(
            "--c99",
            help="Dialect of the C code: with vector extensions of GCC and Clang, or for any compiler of C99, slower.",
        ),
    ] = None
    winograd: Annotated[
        int | None, typer.Option("--winograd", help="Largest tile of Winograd's convolution; 0: none.")
    ] = None
    strassen: Annotated[
        int | None, typer.Option("--strassen", help="Most levels of Strassen's algorithm; 0: none.")
    ] = None
    size_classes: Annotated[
        int | None,
        typer.Option("--size-classes", min=1, max=16, help="Most classes of run-time sizes with code of their own."),
    ] = None
    dot2: Annotated[
        float | None,
        typer.Option("--dot2", min=0, help="Time of a bf16 dot-product instruction relative to an f32 multiply-add."),
    ] = None
    max_winograd_error: Annotated[
        float | None,
        typer.Option("--max-winograd-error", min=0, help="Largest error, relative to the RMS, that Winograd may add."),
    ] = None
    bf16x3: Annotated[
        bool, typer.Option("--bf16x3", help="Allow convolutions of f32 as three products of bf16 (x86 with AMX).")
    ] = False
    max_weights: Annotated[
        int | None, typer.Option("--max-weights", min=0, help="Maximum size of the packed weights in bytes.")
    ] = None
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Maximum number of threads of the bundle.")
    ] = None
    profile: Annotated[bool, typer.Option("--profile", help="Add the entry point for 'tenon profile'.")] = False
    code_section: Annotated[
        str | None,
        typer.Option(
            "--code-section",
            metavar="NAME",
            help="Section for functions, as in .itcm, for the linker script.",
        ),
    ] = None
    weights_section: Annotated[
        str | None,
        typer.Option("--weights-section", metavar="NAME", help="Section for weights, as in .external_flash."),
    ] = None
    io: Io = "model"
    labels: Annotated[
        Path | None, typer.Option("--labels", help="A text file with one class name per line, to record.")
    ] = None
    features: Annotated[
        str | None,
        typer.Option(
            "--features",
            metavar="'KIND KEY=VALUE ...'",
            help="Let the input take samples of sound, features compiled in: mfcc or mel, e.g. 'mfcc window=640'.",
        ),
    ] = None
    compile_preprocess: Annotated[
        str | None,
        typer.Option(
            "--compile-preprocess",
            metavar="HxW",
            help="Let the input take image bytes [H, W, channels], preprocessing compiled in.",
        ),
    ] = None


@dataclass(frozen=True)
class TuneOptions(BuildOptions):
    """Options of ``tenon tune``."""

    tuning: Annotated[Path | None, typer.Option("--table", help="The tuning table to read and extend.")] = None


# ---------------------------------------------------------------------------------- where to run
DevicesFile = Annotated[
    Path | None,
    typer.Option("--devices", metavar="FILE", help="The file that names devices."),
]


@dataclass(frozen=True)
class DeviceOptions:
    """The device to run on."""

    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            help="Run on this device: its name in --devices, its SoC, or serial:PORT[,BAUD].",
        ),
    ] = None
    devices: DevicesFile = None

    def choice(self) -> DeviceChoice:
        from tenon.cli.device_choice import DeviceChoice

        return DeviceChoice(self.device, self.devices)


Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="ADDRESS", help="Work on a Dask scheduler's workers: tcp://HOST:8786, or local:N here."
    ),
]


# ---------------------------------------------------------------------------------- preprocessing
@dataclass(frozen=True)
class PreprocessOptions:
    """How an image becomes an input.  All fields but ``bgr`` are named as in ``graph.preprocessing.Preprocessing``."""

    mean: Annotated[
        str | None,
        typer.Option("--mean", metavar="NUMBERS", help="Subtracted from pixel values: one number, or one per channel."),
    ] = None
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale", metavar="NUMBERS", help="Factor applied after --mean; fractions such as 1/255 are allowed."
        ),
    ] = None
    channels: Annotated[str | None, typer.Option("--channels", help="Channel order.")] = None
    bgr: Annotated[bool, typer.Option("--bgr", help="Same as --channels bgr.")] = False
    fit: Annotated[
        str | None,
        typer.Option(
            "--fit", help="Resize by stretching, to the shorter side with a crop of the centre, or whole with a border."
        ),
    ] = None
    resize: Annotated[
        int | None,
        typer.Option("--resize", min=1, help="With --fit crop: length of the shorter side before cropping, e.g. 256."),
    ] = None
    border: Annotated[
        int | None, typer.Option("--border", min=0, max=255, help="With --fit letterbox: value of the border.")
    ] = None
    sampling: Annotated[str | None, typer.Option("--sampling", help="Interpolation.")] = None

    def overrides(self) -> dict[str, Any]:
        """The given options, as ``Options.preprocess`` takes them."""
        fields: dict[str, Any] = {name: value for name, value in vars(self).items() if value is not None}
        if fields.pop("bgr"):
            fields["channels"] = "bgr"
        numbers: dict[str, Any] = {
            name: parse_numbers(f"--{name}", fields[name]) for name in ("mean", "scale") if name in fields
        }
        return {**fields, **numbers}


# ---------------------------------------------------------------------------------- how to run and to print
ThreadCount = Annotated[int, typer.Option("--threads", min=1, help="Number of threads.")]


@dataclass(frozen=True)
class ThreadOptions:
    """Threads and processors of a run."""

    threads: ThreadCount = 1
    affinity: Annotated[
        str | None, typer.Option("--affinity", metavar="LIST", help="Processors to run on, e.g. 0,1 or 0-3.")
    ] = None
    cores: Annotated[str, typer.Option("--cores", help="Cores to run on, where they differ.")] = "all"

    def selected(self) -> Threads:
        """The kind of cores may be given by number; ``tenon.open`` rejects unknown ones."""
        from tenon.cli.model_source import Threads

        kind = {"0": "all", "1": "big", "2": "little"}.get(self.cores, self.cores)
        return Threads(self.threads, parse_processors(self.affinity), cast("Cores", kind))


@dataclass(frozen=True)
class OutputOptions:
    """How outputs are printed and saved."""

    top: Annotated[
        int | None, typer.Option("--top", min=0, help="How many of the largest values of each output to print.")
    ] = None
    labels: Annotated[Path | None, typer.Option("--labels", help="A text file with one class name per line.")] = None
    output: Annotated[Path | None, typer.Option("--output", help="Write all outputs to this .npz file.")] = None
    draw: Annotated[
        Path | None, typer.Option("--draw", help="Write the image with the answer drawn into it to this file.")
    ] = None
    threshold: Annotated[float | None, typer.Option("--threshold", help="Minimum score of a detection.")] = None
    overlap: Annotated[
        float | None,
        typer.Option(
            "--overlap",
            min=0,
            max=1,
            help="NMS threshold: intersection over union of boxes of one class.",
        ),
    ] = None


Json = Annotated[bool, typer.Option("--json", help="Print machine-readable JSON.")]


@dataclass(frozen=True)
class PrintOptions:
    """Format of results and errors."""

    json: Json = False
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show more: what was tried, and the traceback of an error.")
    ] = False
