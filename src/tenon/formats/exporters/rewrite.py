"""A model in, the files of an optimised model out: Caffe as Caffe, everything else as ONNX, TFLite or tmfile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tenon.errors import InputError, ModelError
from tenon.formats.exporters.save import ENDINGS, content
from tenon.formats.importers import FORMATS, Source, find, load
from tenon.network.graph.bind import GivenShapes, bind
from tenon.network.ops.unroll import unrolled

if TYPE_CHECKING:
    from tenon.formats.model_files.model_file import ModelFile
    from tenon.network.graph.fixed import Values
    from tenon.network.graph.graph import Graph

CAFFE_ENDINGS = (".prototxt", ".caffemodel")


@dataclass(frozen=True)
class WriteRequest:
    """The model to rewrite and the file to write; see ``pipeline.rewrite``."""

    model: Source
    out: Path | None
    weights: Source | None = None
    shapes: GivenShapes | None = None
    values: Values | None = None
    config: Path | None = None
    without_weights: bool = False
    limits: Mapping[str, int] | None = None
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()


@dataclass
class Rewritten:
    """The content of each file to write, and what was done."""

    files: dict[Path, bytes]
    log: list[str] = field(default_factory=list)


def rewritten(request: WriteRequest, optimise: Callable[[Graph], object]) -> Rewritten:
    """The files of the optimised model.  ``optimise`` runs the passes on a graph.  Raises ModelError and InputError."""
    if isinstance(request.model, str) and request.model.lower().endswith(".ini"):
        return _caffe_by_config(Path(request.model))
    file, importer = find(request.model, weights=request.weights)
    ending = "" if request.out is None else request.out.suffix.lower()
    if importer is FORMATS["Caffe"].importer() and ending not in ENDINGS and not request.without_weights:
        if request.values:
            raise InputError("--value fixes inputs of nets that become ONNX: give a file that ends in .onnx")
        if request.limits:
            raise InputError("--max bounds numbers of nets that become ONNX: give a file that ends in .onnx")
        if request.inputs or request.outputs:
            raise InputError("--from and --to cut nets that become ONNX: give a file that ends in .onnx")
        return _caffe(file, request)
    if request.config is not None:
        raise InputError(f"{request.config}: a configuration is for Caffe nets that become Caffe nets")
    if ending in CAFFE_ENDINGS:
        raise InputError(f"{request.out}: only a Caffe net can become a Caffe net; give a file that ends in .onnx")
    path = _out(request)
    graph = load(
        request.model,
        request.shapes,
        request.inputs or None,
        request.outputs or None,
        weights=request.weights,
        values=request.values,
        limits=request.limits,
    )
    bound = bind(graph if ending in ("", ".onnx") else unrolled(graph), request.shapes)
    if ending in ENDINGS and ending != ".onnx" and request.without_weights:
        raise InputError(f"{path}: files without weights are ONNX: give a name that ends in .onnx")
    if bound.incomplete and not request.without_weights:
        raise ModelError(f"{bound.source or bound.name}: cannot be written: {bound.incomplete}")
    before = len(bound)
    optimise(bound)
    if ending in ENDINGS and ending != ".onnx":
        return Rewritten({path: content(bound, ending)}, [f"{before} operators became {len(bound)}"])
    return _onnx(bound, path if ending == ".onnx" else path / f"{file.stem}.onnx", before, request.without_weights)


def _out(request: WriteRequest) -> Path:
    out = request.out
    if out is None:
        raise InputError("give the place to write the optimised model to: -o FOLDER or -o FILE")
    if out.suffix.lower() not in ("", *ENDINGS, *CAFFE_ENDINGS) and not out.is_dir():
        raise InputError(f"{out}: give a name that ends in {', '.join(ENDINGS)}, or a folder")
    return out


def _onnx(graph: Graph, path: Path, before: int, without_weights: bool) -> Rewritten:
    """The file of a graph that had ``before`` operators."""
    from tenon.formats.exporters.onnx import MAX_FILE_BYTES, strip, to_onnx

    model = to_onnx(graph)
    if without_weights:
        strip(model)
    size = model.ByteSize()
    if size > MAX_FILE_BYTES:
        raise ModelError(f"{graph.source}: the model would be {size} bytes; a file of ONNX holds less than 2 GB")
    nodes = len(model.graph.node)
    return Rewritten({path: model.SerializeToString()}, [f"{before} operators became {nodes} (opset {_opset(model)})"])


def _opset(model: object) -> int:
    return int(model.opset_import[0].version)  # type: ignore[attr-defined]


def _caffe(file: ModelFile, request: WriteRequest) -> Rewritten:
    from tenon.formats.exporters.caffe import Settings, optimise

    settings = Settings.from_ini(request.config)[0] if request.config else Settings()
    out = _out(request)
    text = out.with_suffix(".prototxt") if out.suffix.lower() in CAFFE_ENDINGS else out / f"{file.stem}.prototxt"
    result = optimise(file, settings)
    return Rewritten(
        {text: result.prototxt().encode(), text.with_suffix(".caffemodel"): result.caffemodel()}, result.log
    )


def _caffe_by_config(path: Path) -> Rewritten:
    from tenon.formats.exporters.caffe import Settings, optimise

    settings, files = Settings.from_ini(path)
    file, _ = find(files["original_prototxt_path"], weights=files["original_model_path"])
    result = optimise(file, settings)
    text, weights = files["optimized_prototxt_path"], files["optimized_model_path"]
    return Rewritten({text: result.prototxt().encode(), weights: result.caffemodel()}, result.log)
