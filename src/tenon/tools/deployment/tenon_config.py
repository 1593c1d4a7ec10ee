"""Tenon's own form of a deployment file.

name: doorbell
defaults:                      # for every model; any key of a model but model, weights and their checksums
  targets: [host, raspberry-pi-4]
models:
  faces:
    model: faces.prototxt      # a path relative to this file, or an http(s) address
    weights: faces.caffemodel
    sha256: 0123...
    inputs:
      image: {shape: [1, 3, 240, 320], format: NCHW, type: float32, range: [-1, 1]}
    quantize: {data: photos, scheme: int8, samples: 128}
    threads: 2                 # any option of tenon.compile, by the same name
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from tenon.errors import InputError
from tenon.options import DataType, Options
from tenon.tools.deployment.base import DeployedModel, Deployment, ModelPort, ModelSource, name_problem
from tenon.tools.deployment.files import located
from tenon.tools.deployment.schema import Checksum, ConfigSection, Names, Range, SizedShape, Texts, check_name, checked
from tenon.tools.deployment.yaml_document import Document, KeyPath, nearest

_SET_ELSEWHERE = frozenset(
    {"target", "name", "inputs", "outputs", "data_formats", "data_types", "ranges", "cache", "tuning", "compiler"}
)
OPTIONS = tuple(field.name for field in fields(Options) if field.name not in _SET_ELSEWHERE)
"""Options of a compilation that are keys of a model."""

_OF_ONE_MODEL = ("model", "weights", "sha256", "weights_sha256")


class PortSection(ConfigSection):
    """Keys of an input or output."""

    shape: SizedShape | None = None
    type: DataType | None = None
    format: Literal["NHWC", "NCHW", "NONE"] | None = None
    range: Range | None = None
    data: Texts = ()


class QuantizeSection(ConfigSection):
    """Keys of ``quantize``: the arguments of ``tenon.quantize``."""

    data: str | None = None
    ranges: str | None = None
    change_concat_ranges: bool = False
    samples: int = Field(128, ge=1)
    seed: int = Field(0, ge=0)
    scheme: str = "int8"
    method: str = "auto"
    exclude: Names = ()
    min_sqnr: float | None = None
    max_drop: float | None = None
    metric: str | None = None


_Cosine = Annotated[float, Field(ge=-1, le=1)]


class ValidateSection(ConfigSection):
    """Keys of ``validate``: the least cosine similarity of each output, of networks in float and of quantised ones, and
    on single targets."""

    cpu: float = Field(0.999, ge=-1, le=1)
    quantized: float = Field(0.98, ge=-1, le=1)
    targets: dict[str, _Cosine] = Field(default_factory=dict)


def _ports(value: Any) -> Any:
    """Ports that have no keys may be given as a list of names."""
    return {name: {} for name in value} if isinstance(value, list) else value


_Ports = Annotated[dict[str, PortSection], BeforeValidator(_ports)]


class DefaultSection(ConfigSection):
    """Keys that models share.  Further keys are options of a compilation."""

    model_config = ConfigDict(extra="allow")

    inputs: _Ports = Field(default_factory=dict)
    outputs: _Ports = Field(default_factory=dict)
    targets: Names = ("host",)
    quantize: QuantizeSection | None = None
    offload: Names = ()
    device_of: Names = ()
    validate_: ValidateSection = Field(ValidateSection(cpu=0.999, quantized=0.98), alias="validate")


class ModelSection(DefaultSection):
    """Keys of a model."""

    model: str
    weights: str | None = None
    sha256: Checksum | None = None
    weights_sha256: Checksum | None = None


class DeploymentFile(ConfigSection):
    """The whole file; models are checked one by one."""

    name: str = ""
    defaults: dict[str, Any] = Field(default_factory=dict)
    models: dict[str, Any]


def read_tenon(document: Document) -> Deployment:
    """The deployment that a file in Tenon's form asks for.  Raises InputError that lists all problems."""
    whole = checked(document, DeploymentFile, document.content)
    content = document.content if isinstance(document.content, Mapping) else {}
    defaults, given = content.get("defaults") or {}, content.get("models") or {}
    if checked(document, DefaultSection, defaults, ("defaults",)) is not None:
        _options(document, defaults, ("defaults",))
    models = []
    for key in _OF_ONE_MODEL:
        if isinstance(defaults, Mapping) and key in defaults:
            document.report(("defaults", key), "belongs to one model")
    for name, section in given.items() if isinstance(given, Mapping) else ():
        where: KeyPath = ("models", name)
        inherited = defaults if isinstance(defaults, Mapping) else {}
        merged = {**inherited, **section} if isinstance(section, Mapping) else section
        check_name(document, where, name)
        options = _options(document, merged, where) if isinstance(merged, Mapping) else {}
        model = checked(document, ModelSection, merged, where)
        if model is not None and model.weights_sha256 and not model.weights:
            document.report((*where, "weights_sha256"), "there are no weights that it could be of")
        if model is not None and not name_problem(name):
            models.append(_deployed(document, name, model, options))
    if not given:
        document.report(("models",), "no model is named")
    document.check()
    assert whole is not None
    return Deployment(document.path, whole.name or document.path.stem, tuple(models))


_OWN_KEYS = tuple(field.alias or name for name, field in ModelSection.model_fields.items())


def _options(document: Document, section: Mapping[str, Any], where: KeyPath) -> dict[str, Any]:
    """The options of a compilation among the keys of a section."""
    options = {}
    for key, value in section.items():
        place = (*where, key)
        if key in _OWN_KEYS or value is None:
            continue
        if key not in OPTIONS:
            if document.has(place):  # a key of the defaults is reported there
                document.report(place, "there is no such key" + nearest(key, (*_OWN_KEYS, *OPTIONS)))
            continue
        one: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value}
        try:
            options[key] = getattr(Options(**one), key)
        except InputError as error:
            if document.has(place):
                document.report(place, str(error).partition(": ")[2])
    return options


def _deployed(document: Document, name: str, model: ModelSection, options: Mapping[str, Any]) -> DeployedModel:
    folder = document.path.parent
    source = ModelSource(
        located(folder, model.model),
        model.sha256,
        located(folder, model.weights) if model.weights else None,
        model.weights_sha256,
    )
    quantize = model.quantize.model_dump() if model.quantize else None
    for key in ("data", "ranges"):
        if quantize is not None and quantize[key] is not None and ":" not in quantize[key]:
            quantize[key] = located(folder, quantize[key])
    ranges = quantize["ranges"] if quantize is not None else None
    return DeployedModel(
        name,
        source,
        tuple(_port(document, port, section) for port, section in model.inputs.items()),
        tuple(_port(document, port, section) for port, section in model.outputs.items()),
        model.targets,
        options,
        quantize,
        {**model.validate_.model_dump(exclude={"targets"}), **model.validate_.targets},
        needed=(ranges,) if ranges else (),
        offload=model.offload,
        device_of=model.device_of,
        places=_places(document, name, model),
    )


def _places(document: Document, name: str, model: ModelSection) -> dict[str, str]:
    """Where the file has what, for messages."""
    where: KeyPath = ("models", name)
    keys = {key: key for key in ("model", "sha256", "weights", "weights_sha256", "inputs", "outputs", "quantize")}
    keys["offload"] = "device_of" if model.device_of else "offload"
    keys |= {"shapes": "inputs", "input types": "inputs", "output types": "outputs"}
    data = {
        located(document.path.parent, file): document.place((*where, key, port, "data"))
        for key, ports in (("inputs", model.inputs), ("outputs", model.outputs))
        for port, section in ports.items()
        for file in section.data
    }
    places = {what: document.place((*where, key)) for what, key in keys.items()}
    if model.quantize and model.quantize.ranges:
        data[located(document.path.parent, model.quantize.ranges)] = document.place((*where, "quantize", "ranges"))
    return places | data


def _port(document: Document, name: str, section: PortSection) -> ModelPort:
    data = tuple(located(document.path.parent, file) for file in section.data)
    return ModelPort(name, section.shape, section.type, section.format, section.range, data)
