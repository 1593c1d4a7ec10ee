"""MACE's model YAML as a deployment; its keys are those that ``tools/python/utils/config_parser.py`` and
``tools/converter.py`` of XiaoMi/mace read.

Keys that select a runtime or tune one that bundles do not have are accepted, and listed as without effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tenon.options import Emit
from tenon.runtime.plugins.target_device import takes_parts
from tenon.tools.deployment import mace_values
from tenon.tools.deployment.base import DeployedModel, Deployment, ModelPort, ModelSource, name_problem
from tenon.tools.deployment.files import located
from tenon.tools.deployment.schema import Checksum, ConfigSection, Names, Range, Shape, Texts, check_name, checked
from tenon.tools.deployment.yaml_document import Document, KeyPath, nearest

MARKS = frozenset({"library_name", "target_abis", "target_socs", "model_graph_format", "model_data_format"})
MODEL_MARKS = frozenset({"platform", "model_file_path", "subgraphs", "model_sha256_checksum"})
"""Keys by which a file is recognised as MACE's."""

TARGETS = {
    "armeabi-v7a": "android-armv7",
    "arm64-v8a": "android-arm64",
    "arm64": "aarch64",
    "armhf": "armv7",
    "host": "host",
}

CHANNELS_LAST = frozenset({"tensorflow", "keras"})
"""Platforms whose own images are NHWC."""

_PRECISIONS = {"fp32_fp32": "fp32", "bf16_fp32": "bf16"}
_WITHOUT_EFFECT = {
    "nnlib_graph_mode": "bundles do not use Hexagon's nnlib",
    "dsp_mode": "bundles do not use a DSP",
    "accelerator_api": "bundles do not use an accelerator",
    "graph_optimize_options": "the optimiser chooses its passes by itself",
    "docker_image_tag": "models are read without Caffe",
    "dockerfile_path": "models are read without Caffe",
    "dockerfile_sha256_checksum": "models are read without Caffe",
    "order": "subgraphs are bundles of their own",
    "check_tensors": "every output is compared",
    "check_shapes": "every output is compared",
    "input_aliases": "inputs keep their names",
    "output_aliases": "outputs keep their names",
    "backend": "validation runs the framework of the platform",
}

_OF_GPU = ("limit_opencl_kernel_time", "opencl_queue_window_size", "cl_mem_type")
"""Keys that have an effect where parts run on a GPU: a flag for at most a millisecond, a number of launches, whether
weights are read from images."""

_FILES = ("validation_inputs_data", "validation_outputs_data", "accuracy_validation_script")
"""Keys that list files."""

_GPU = "opencl"
_GPU_RULES: dict[str, tuple[str, ...]] = {"gpu": ("*=opencl",), "cpu+gpu": ()}
"""Runtimes with a GPU: MACE gives it all layers that it can run, or the network is cut in the fastest way."""
_TYPES = Literal["float32", "float16", "bfloat16", "int32", "int16", "int8", "uint8", "int64"]
_FORMATS = Literal["NHWC", "NCHW", "NONE", "HWIO", "OIHW", "HWOI", "OHWI", "AUTO"]


def _upper(value: Any) -> Any:
    return [str(v).upper() for v in value] if isinstance(value, list) else (str(value).upper(),)


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _shapes(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _ranges(value: Any) -> Any:
    numbers = isinstance(value, list) and all(isinstance(v, int | float) for v in value)
    return [value] if numbers or not isinstance(value, list) else value


def _numbered(value: Any) -> Any:
    return {str(at): item for at, item in enumerate(value)} if isinstance(value, list) else value


class MaceSubgraph(ConfigSection):
    """Keys of a subgraph; all of them may be given for the model instead."""

    input_tensors: Texts = ()
    input_shapes: Annotated[tuple[Shape, ...], BeforeValidator(_shapes)] = ()
    output_tensors: Texts = ()
    output_shapes: Annotated[tuple[Shape, ...], BeforeValidator(_shapes)] = ()
    input_ranges: Annotated[tuple[Range, ...], BeforeValidator(_ranges)] = ()
    input_data_types: Annotated[tuple[_TYPES, ...], BeforeValidator(_listed)] = ()
    output_data_types: Annotated[tuple[_TYPES, ...], BeforeValidator(_listed)] = ()
    input_data_formats: Annotated[tuple[_FORMATS, ...], BeforeValidator(_upper)] = ()
    output_data_formats: Annotated[tuple[_FORMATS, ...], BeforeValidator(_upper)] = ()
    input_aliases: Texts = ()
    output_aliases: Texts = ()
    check_tensors: Texts = ()
    check_shapes: Annotated[tuple[Shape, ...], BeforeValidator(_shapes)] = ()
    validation_inputs_data: Texts = ()
    validation_outputs_data: Texts = ()
    accuracy_validation_script: Texts = ()
    backend: Literal["tensorflow", "caffe2", "caffe", "pytorch", "kaldi", "cmsis", "xtensa"] | None = None
    runtime: Annotated[
        Literal["cpu", "gpu", "dsp", "hexagon", "hta", "apu", "htp", "cpu+gpu"] | None, BeforeValidator(_lower)
    ] = None
    data_type: Literal["fp16_fp32", "fp32_fp32", "bf16_fp32", "fp16_fp16", "uint8"] | None = None
    quantize: Literal[0, 1] | None = None
    quantize_schema: Literal["", "uint8", "int8", "mace_apu_16bit_per_tensor", "mace_htp_u16a_s8w"] | None = None
    quantize_large_weights: Literal[0, 1] | None = None
    quantize_range_file: str | None = None
    change_concat_ranges: int | bool | None = None
    winograd: Literal[0, 2, 4] | None = None
    cl_mem_type: Literal["image", "buffer"] | None = None
    order: int | None = None
    validation_threshold: dict[str, float] = Field(default_factory=dict)


class MicroSection(ConfigSection):
    """Keys of ``micro``."""

    backend: Literal["cmsis", "xtensa"] | None = None


class MaceModel(MaceSubgraph):
    """Keys of a model."""

    platform: Annotated[
        Literal["tensorflow", "caffe", "onnx", "megengine", "keras", "pytorch"], BeforeValidator(_lower)
    ]
    model_file_path: str
    model_sha256_checksum: Checksum | None = None
    weight_file_path: str | None = None
    weight_sha256_checksum: Checksum | None = None
    subgraphs: Annotated[dict[str, MaceSubgraph], BeforeValidator(_numbered)] = Field(default_factory=dict)
    graph_optimize_options: Texts = ()
    obfuscate: Literal[0, 1] | None = None
    limit_opencl_kernel_time: int | None = None
    opencl_queue_window_size: int | None = None
    nnlib_graph_mode: int | None = None
    dsp_mode: int | None = None
    docker_image_tag: str | None = None
    dockerfile_path: str | None = None
    dockerfile_sha256_checksum: Checksum | None = None
    accelerator_api: Literal["nnlib", "qnn"] | None = None
    micro: MicroSection | None = None


class MaceFile(ConfigSection):
    """The whole file; models are checked one by one, so that the problems of all are found."""

    library_name: str = ""
    target_abis: Names = ()
    target_socs: Names = ()
    model_graph_format: Literal["file", "code"] = "file"
    model_data_format: Literal["file", "code"] = "file"
    apu_version_with_no_device: str | int | None = None
    quantize_stat: bool | None = None
    models: dict[str, Any]


def is_mace(content: Mapping[str, Any]) -> bool:
    """Whether a file is written in MACE's form."""
    models = content.get("models")
    inner = models.values() if isinstance(models, Mapping) else ()
    return not MARKS.isdisjoint(content) or any(isinstance(m, Mapping) and not MODEL_MARKS.isdisjoint(m) for m in inner)


def read_mace(document: Document) -> Deployment:
    """The deployment that a file in MACE's form asks for.  Raises InputError that lists all problems."""
    whole = checked(document, MaceFile, document.content)
    given = document.content.get("models") if isinstance(document.content, Mapping) else None
    sections = {
        name: checked(document, MaceModel, content, ("models", name))
        for name, content in (given.items() if isinstance(given, Mapping) else ())
    }
    if whole is not None and (unknown := [abi for abi in whole.target_abis if abi not in TARGETS]):
        document.report(("target_abis",), f"'{unknown[0]}' is none of {', '.join(TARGETS)}")
    if whole is not None and (whole.model_graph_format, whole.model_data_format) == ("file", "code"):
        document.report(("model_graph_format",), "must be code where model_data_format is code")
    models = [
        made for name, model in sections.items() if model and whole for made in _deployed(document, name, model, whole)
    ]
    if not sections:
        document.report(("models",), "no model is named")
    document.check()
    assert whole is not None
    return Deployment(document.path, whole.library_name or document.path.stem, tuple(models))


def _deployed(document: Document, name: str, model: MaceModel, whole: MaceFile) -> list[DeployedModel]:
    """One network for every subgraph."""
    parts = model.subgraphs
    several = len(parts) > 1
    if several and "0" in parts:
        document.report(("models", name, "subgraphs"), "several subgraphs must have names: a mapping, not a list")
    made = []
    for key, part in (parts or {"": MaceSubgraph()}).items():
        where: KeyPath = ("models", name, "subgraphs", key) if parts else ("models", name)
        merged = _Merged(document, where, model, part, whole)
        own = f"{name}_{key}" if several else name
        check_name(document, where, own)
        if not name_problem(own):
            made.append(merged.network(own))
    return made


class _Merged:
    """A subgraph whose keys override its model's."""

    def __init__(
        self, document: Document, where: tuple[str | int, ...], model: MaceModel, part: MaceSubgraph, whole: MaceFile
    ) -> None:
        self.document, self.where, self.model, self.part, self.whole = document, where, model, part, whole

    def key(self, name: str) -> Any:
        """The value of a key that subgraph or model has, else its default."""
        own = getattr(self.part, name) if name in self.part.model_fields_set else None
        return getattr(self.model, name) if own is None else own

    def place(self, key: str) -> KeyPath:
        """Where the file has the key: in the subgraph or in the model."""
        own = (*self.where, key)
        return own if self.document.has(own) else (*self.where[:2], key)

    def check(self) -> None:
        """Report keys that contradict each other, and rules that MACE does not have."""
        checks, shapes = self.key("check_tensors"), self.key("check_shapes")
        if checks and shapes and len(checks) != len(shapes):
            self.report("check_tensors", f"{len(checks)} tensors have {len(shapes)} check_shapes")
        if self.model.weight_sha256_checksum and not self.model.weight_file_path:
            self.report("weight_sha256_checksum", "there is no weight_file_path that it could be of")
        for rule in self.model.graph_optimize_options:
            if rule not in mace_values.RULES:
                self.report("graph_optimize_options", f"there is no rule {rule}{nearest(rule, mace_values.RULES)}")
        for low, high in self.key("input_ranges"):
            if low > high:
                self.report("input_ranges", f"the least, {low:g}, is above the greatest, {high:g}")
        for key in ("input_shapes", "output_shapes", "check_shapes"):
            if any(extent < 1 for shape in self.key(key) for extent in shape):
                self.report(key, "an extent is less than 1")

    def report(self, key: str, what: str) -> None:
        self.document.report(self.place(key), what)

    def needed(self) -> tuple[str, ...]:
        """Files that the keys name beside the model's own and the data of inputs and outputs."""
        folder = self.document.path.parent
        names = (self.key("quantize_range_file"), self.model.dockerfile_path, *self.key("accuracy_validation_script"))
        return tuple(located(folder, name) for name in names if name)

    def network(self, name: str) -> DeployedModel:
        model, folder = self.model, self.document.path.parent
        self.check()
        source = ModelSource(
            located(folder, model.model_file_path),
            model.model_sha256_checksum or None,
            located(folder, model.weight_file_path) if model.weight_file_path else None,
            model.weight_sha256_checksum or None,
        )
        return DeployedModel(
            name,
            source,
            self.ports("input"),
            self.ports("output"),
            self.targets(),
            self.options(),
            self.quantize(),
            self.thresholds(),
            tuple(located(folder, script) for script in self.key("accuracy_validation_script")),
            tuple(self.notes()),
            self.needed(),
            self.key("check_tensors"),
            places=self.places(),
            **self.devices(),
        )

    def places(self) -> dict[str, str]:
        """Where the file has what, for messages."""
        keys = {
            "model": "model_file_path",
            "sha256": "model_sha256_checksum",
            "weights": "weight_file_path",
            "weights_sha256": "weight_sha256_checksum",
            "inputs": "input_tensors",
            "outputs": "output_tensors",
            "tensors": "check_tensors",
            "shapes": "input_shapes",
            "input types": "input_data_types",
            "output types": "output_data_types",
            "quantize": "quantize",
            "offload": "runtime",
        }
        if not self.key("quantize"):
            keys["quantize"] = "quantize_large_weights"
        places = {what: self.document.place(self.place(key)) for what, key in keys.items()}
        if self.key("input_data_formats"):
            line = self.document.line(self.place("input_data_formats"))
            places["shapes"] += f" (in the order of input_data_formats, line {line})"
        files = {
            "quantize_range_file": (self.key("quantize_range_file"),),
            "dockerfile_path": (self.model.dockerfile_path,),
            **{key: self.key(key) for key in _FILES},
        }
        folder = self.document.path.parent
        return places | {
            located(folder, name): self.document.place(self.place(key))
            for key, names in files.items()
            for name in names
            if name
        }

    def ports(self, kind: Literal["input", "output"]) -> tuple[ModelPort, ...]:
        names: Sequence[str] = self.key(f"{kind}_tensors")
        if not names:
            return ()
        shapes = self.each(f"{kind}_shapes", len(names), broadcast=False)
        types, formats = self.each(f"{kind}_data_types", len(names)), self.each(f"{kind}_data_formats", len(names))
        data = self.each(f"validation_{kind}s_data", len(names), broadcast=False)
        ranges = self.each("input_ranges", len(names)) if kind == "input" else [None] * len(names)
        folder = self.document.path.parent
        made = tuple(
            ModelPort(name, shape, type, _image_format(form, shape), limits, (located(folder, file),) if file else ())
            for name, shape, type, form, limits, file in zip(names, shapes, types, formats, ranges, data, strict=True)
        )
        return tuple(channels_last(port) for port in made) if self.model.micro is not None else made

    def each(self, key: str, count: int, broadcast: bool = True) -> list[Any]:
        """The values of a key, one for each tensor; one value stands for all where MACE has it so."""
        values = list(self.key(key))
        if len(values) == 1 and broadcast:
            values *= count
        if values and len(values) != count:
            what = "input_tensors" if "input" in key else "output_tensors"
            self.report(key, f"has {len(values)} values for the {count} of {what}")
        return (values + [None] * count)[:count]

    def options(self) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if not self.key("quantize") and not self.key("quantize_large_weights"):
            options["precision"] = _PRECISIONS.get(self.key("data_type") or "", "fp16")
        if self.key("winograd") is not None:
            options["winograd"] = self.key("winograd")
        if self.model.obfuscate:
            options["obfuscate"] = "layers"
        if forms := self.forms():
            options["emit"] = forms
        if "mace" in forms:
            options["profile"] = True  # RunMetadata, which programs need not ask for before
        if self.devices() and (gpu := self.gpu()):
            options["gpu"] = gpu
        return options

    def gpu(self) -> dict[str, Any]:
        """The options of a GPU."""
        limit, window = self.model.limit_opencl_kernel_time, self.model.opencl_queue_window_size
        images = {"image": "all", "buffer": "off"}.get(self.key("cl_mem_type") or "")
        given = {"kernel_time": 1 if limit else None, "queue_window": window or None, "images": images}
        return {name: value for name, value in given.items() if value is not None}

    def forms(self) -> tuple[Emit, ...]:
        """The packages that MACE would generate: the engine for microcontrollers, the model in code."""
        micro: tuple[Emit, ...] = ("micro",) if self.model.micro is not None else ()
        code: tuple[Emit, ...] = ("mace",) if self.whole.model_graph_format == "code" else ()
        return micro + code

    def quantize(self) -> dict[str, Any] | None:
        if not self.key("quantize"):
            return {"scheme": "int8-weights-only"} if self.key("quantize_large_weights") else None
        schema, ranges = self.key("quantize_schema") or "uint8", self.key("quantize_range_file")
        if self.key("quantize_large_weights"):
            self.report("quantize_large_weights", "cannot be combined with quantize")
        if schema not in ("uint8", "int8"):
            self.report("quantize_schema", f"'{schema}' is for accelerators only: use int8")
        scheme = "uint8" if schema == "uint8" else "int8"
        options: dict[str, Any] = {"scheme": scheme}
        if ranges:
            options["ranges"] = located(self.document.path.parent, ranges)
        if self.key("change_concat_ranges"):
            options["change_concat_ranges"] = True
        return options

    def thresholds(self) -> dict[str, float]:
        known = mace_values.DEVICES
        given: Mapping[str, float] = self.key("validation_threshold")
        for key in given:
            if key.upper() not in known:
                self.document.report((*self.place("validation_threshold"), key), f"is none of {', '.join(known)}")
            elif not -1 <= given[key] <= 1:
                self.document.report(
                    (*self.place("validation_threshold"), key), f"{given[key]:g} is no cosine similarity: from -1 to 1"
                )
        kept = {key.upper(): value for key, value in given.items()}
        return {"cpu": kept.get("CPU", 0.999), "quantized": kept.get("QUANTIZE", 0.98)}

    def notes(self) -> list[str]:
        ignored = []
        given = self.part.model_fields_set | self.model.model_fields_set
        for key, why in _WITHOUT_EFFECT.items():
            if key in given and self.key_or_model(key) not in (None, 0, False, (), ""):
                ignored.append(f"{key}: no effect: {why}")
        if not self.devices():
            given_for_gpu = [key for key in _OF_GPU if self.key(key)]
            ignored += [f"{key}: no effect: the bundle computes on the CPU" for key in given_for_gpu]
        if why := self.without_device():
            ignored.append(f"runtime: {self.key('runtime')} {why}: the bundle computes on the CPU")
        if self.whole.model_graph_format == "file":
            ignored.append("model_graph_format: file: the graph is code in every bundle; weights are a file")
        return ignored

    def without_device(self) -> str:
        """Why the runtime that the file asks for has no effect; "" if it has."""
        runtime = self.key("runtime") or "cpu"
        if runtime == "cpu":
            return ""
        if runtime not in _GPU_RULES:
            return "is not available"
        if self.forms():
            return "has no effect on models in code"
        others = [name for name in self.targets() if not takes_parts(_GPU, name)]
        return f"is for this machine only, not for {', '.join(others)}" if others else ""

    def targets(self) -> tuple[str, ...]:
        """The targets of the whole file."""
        return tuple(TARGETS[abi] for abi in self.whole.target_abis if abi in TARGETS) or ("host",)

    def devices(self) -> dict[str, tuple[str, ...]]:
        """The devices that run parts of the network, and which layers they are given."""
        runtime = self.key("runtime") or "cpu"
        if runtime not in _GPU_RULES or self.forms():
            return {}
        return {"offload": (_GPU,), "device_of": _GPU_RULES[runtime]}

    def key_or_model(self, name: str) -> Any:
        return self.key(name) if name in MaceSubgraph.model_fields else getattr(self.model, name)


def with_micro(model: DeployedModel) -> DeployedModel:
    """The model with an engine for microcontrollers, as ``micro`` in the file and --enable_micro ask for."""
    emit = model.options.get("emit", ())
    options = {**model.options, "emit": emit if "micro" in emit else ("micro", *emit)}
    inputs, outputs = (tuple(channels_last(port) for port in ports) for ports in (model.inputs, model.outputs))
    return replace(model, options=options, inputs=inputs, outputs=outputs)


def channels_last(port: ModelPort) -> ModelPort:
    """The port as NHWC, if it is an image in NCHW: engines for microcontrollers take no other images."""
    if port.format != "NCHW" or port.shape is None or len(port.shape) != 4:
        return port
    n, c, h, w = port.shape
    return replace(port, shape=(n, h, w, c), format="NHWC")


def _image_format(form: str | None, shape: tuple[int, ...] | None) -> Literal["NHWC", "NCHW", "NONE"] | None:
    """MACE takes images as NHWC where nothing is said; formats of filters and AUTO keep the model's order."""
    if form in ("NHWC", "NCHW", "NONE"):
        known: dict[str, Literal["NHWC", "NCHW", "NONE"]] = {"NHWC": "NHWC", "NCHW": "NCHW", "NONE": "NONE"}
        return known[form] if form == "NONE" or shape is None or len(shape) == 4 else "NONE"
    return "NHWC" if form is None and shape is not None and len(shape) == 4 else None
