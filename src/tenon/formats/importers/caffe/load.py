"""Caffe models: a net as text (.prototxt) or binary, and its weights (.caffemodel), of any version of Caffe.

Text and weights find each other by name; a .caffemodel alone is enough, as it repeats the net, and a text alone gives a
graph that can be inspected.  Blobs stay float32 in Caffe's order (N, C, H, W).  What layers mean is in
``caffe.layers`` and ``detection``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from tenon.errors import FormatError, ShapeError
from tenon.formats.graph_builder.builder import GraphBuilder
from tenon.formats.importers.caffe.schema import SCHEMA
from tenon.formats.importers.caffe.upgrade import V0_NAMES, DeclaredInput, layers_of, modernised
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.protobuf import BYTES, VARINT, DamagedError, Message, raw_fields
from tenon.formats.wire.stored_files import read_stored
from tenon.input_file import is_own
from tenon.network.graph.bind import Shapes, remedy
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.preprocessing import Fit, Preprocessing
from tenon.network.graph.types import F32, TensorType

_TEXT = re.compile(rb"^\s*(layers?\s*\{|input\s*:\s*[\"'])", re.MULTILINE)
_SOLVER = re.compile(rb"^\s*(base_lr|lr_policy|max_iter|test_iter)\s*:", re.MULTILINE)
_WIRES = {1: 2, 2: 2, 3: 2, 4: 0, 5: 0, 6: 2, 7: 0, 8: 2, 100: 2}
"""Field numbers of NetParameter and their wire types."""

_LAYER_WIRES = {1: 2, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 9: 2, 10: 0}


def recognise(file: ModelFile) -> bool:
    """A text with layers or inputs that is no solver, or fields of a NetParameter up to its first layer."""
    return is_text(file) or is_binary(file)


def is_text(file: ModelFile) -> bool:
    head = file.data[: 1 << 20]
    if b"\0" in head[:4096] or (file.suffix != ".prototxt" and not _TEXT.search(head)):
        return False
    return bool(_TEXT.search(head)) and not _SOLVER.search(head)


def is_binary(file: ModelFile) -> bool:
    return file.suffix == ".caffemodel" or _begins_with_layers(file.data)


def _begins_with_layers(data: bytes) -> bool:
    """Whether the bytes are fields of a NetParameter up to a layer that looks like one."""
    try:
        for number, wire, content in raw_fields(memoryview(data)):
            if _WIRES.get(number) != wire:
                return False
            if number in (2, 100) and not isinstance(content, int):
                return _is_layer(content) if number == 100 else _is_old_layer(content)
    except DamagedError:
        return False
    return False


def _is_layer(data: memoryview) -> bool:
    wires = {number: wire for number, wire, _ in raw_fields(data)}
    return {1, 2} <= wires.keys() and all(_LAYER_WIRES.get(n, w if n >= 100 else -1) == w for n, w in wires.items())


def _is_old_layer(data: memoryview) -> bool:
    contents = {number: (wire, content) for number, wire, content in raw_fields(data)}
    if 1 in contents and not isinstance(contents[1][1], int):
        return any(
            n == 2 and str(bytes(c), "latin-1") in V0_NAMES
            for n, _, c in raw_fields(contents[1][1])
            if not isinstance(c, int)
        )
    return contents.get(4, (0, 0))[0] == BYTES and contents.get(5, (BYTES, 0))[0] == VARINT


def parse(file: ModelFile) -> Message:
    """The net in a file, text or binary.  Raises FormatError."""
    if not is_text(file):
        return SCHEMA.parse("NetParameter", file.data, file.name)
    from tenon.formats.wire.prototext import parse as parse_text

    try:
        text = file.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = file.data.decode("latin-1")
    return parse_text(SCHEMA, "NetParameter", text, file.name)


def pair(file: ModelFile) -> tuple[Message, ModelFile, Message | None]:
    """The net, the file that describes it, and the net with the weights (None if there are none beside it)."""
    if is_text(file):
        weights = file.find_partner("its weights (.caffemodel)", "{stem}.caffemodel", "*.caffemodel", fits=is_binary)
        return parse(file), file, parse(weights) if weights else None
    stem = ("{stem}.prototxt", "{stem}_deploy.prototxt", "deploy.prototxt", "*.prototxt")
    text = file.find_partner("its net (.prototxt)", *(stem if file.suffix == ".caffemodel" else ()), fits=is_text)
    net = parse(file)
    return (parse(text), text, net) if text else (net, file, net)


def load(file: ModelFile, shapes: Shapes, inputs: Sequence[str] | None, outputs: Sequence[str] | None) -> Graph:
    """The graph of a Caffe net when testing, cut at the given tensors.  See ``importers.load`` for errors."""
    from tenon.formats.importers.caffe.layers import import_layer
    from tenon.formats.importers.caffe.node import CaffeLayer

    described, where, weights = pair(file)
    ports, layers = modernised(described, where.name)
    if not layers:
        raise FormatError(f"{where.name}: a Caffe net without layers; the file is truncated or damaged")
    size = len(file.data) + (len(file.weights.data) if file.weights else 0)
    builder = GraphBuilder(where, described.name, shapes, inputs, outputs, max(size, 1 << 24))
    _declare(builder, ports, shapes)
    centred = {port.name for port in ports if _less_mean_image(builder, port)}
    builder.graph.preprocessing.update(
        {port.name: _pixels(port.transform) for port in ports if _says(port.transform) or port.name in centred}
    )
    blobs = blobs_by_layer(weights, where.name) if weights else None
    shared: dict[str, Array] = {}
    for layer in layers:
        with builder.layer(layer.name, layer.type, *layer.top):
            import_layer(CaffeLayer(builder, layer, blobs, shared))
    return builder.finish(outputs_of(ports, layers))


def _less_mean_image(builder: GraphBuilder, port: DeclaredInput) -> bool:
    """Subtract the mean of every pixel from an input whose ``mean_file`` lies beside the net; returns whether it does.

    As Caffe has it, the middle of a larger mean image is taken.  Raises FormatError for one that does not fit.
    """
    name, folder = port.transform.mean_file.replace("\\", "/").rpartition("/")[2], builder.file.folder
    path = folder / name if folder is not None and name not in ("", ".", "..") else None
    if path is None or not is_own(path):
        return False
    mean = blob_array(SCHEMA.parse("BlobProto", read_stored(path), name), name)
    value = builder.scope[port.name]
    channels, height, width = mean.shape[-3:] if mean.ndim >= 3 else (0, 0, 0)
    h, w = value.type.dims[-2:]
    if value.type.dims[1:] != (channels, h, w) or mean.size != channels * height * width or height < h or width < w:
        shapes = f"a mean image {list(mean.shape)} for the input '{port.name}' {list(value.type.dims)}"
        raise FormatError(f"{builder.file.name}: {name} is {shapes}; remove mean_file from its transform_param")
    top, left = (height - h) // 2, (width - w) // 2
    middle = mean.reshape(1, channels, height, width)[:, :, top : top + h, left : left + w]
    with builder.layer(port.name, "mean_file"):
        scaled = builder.constant(np.ascontiguousarray(middle * np.float32(port.transform.scale)), "mean")
        builder.scope[port.name] = builder.add("Sub", value, scaled)
    return True


def _says(transform: Message) -> bool:
    """Whether the parameters of a data layer state how its images are scaled."""
    return bool(len(transform.mean_value)) or transform.has("scale")


def _pixels(transform: Message) -> Preprocessing:
    """BGR, as Caffe reads images; a centre crop where it crops."""
    mean = tuple(float(m) for m in transform.mean_value) or (0.0,)
    fit: Fit = "crop" if transform.crop_size else "stretch"
    return Preprocessing(mean, (float(transform.scale) or 1.0,), "bgr", fit)


def _declare(builder: GraphBuilder, ports: Sequence[DeclaredInput], shapes: Shapes) -> None:
    """Make the graph's inputs.  Raises ShapeError for those whose shapes neither the file nor the user gives."""
    names = ("n", "c", "h", "w")
    types = {}
    for port in ports:
        dims = port.shape or (0,) * 4
        named = [d if d > 0 else f"{port.name}_{names[i] if i < 4 else i}" for i, d in enumerate(dims)]
        types[port.name] = TensorType(F32, tuple(named))
        if any(d >= 2**31 for d in dims):
            raise FormatError(f"{builder.file.name}: input '{port.name}' has the impossible shape {list(dims)}")
    builder.inputs(types)
    unbound = [v for v in builder.graph.inputs if not v.type.bound]
    if unbound:
        lines = [f"  - input '{v.name}': the file does not say its shape ({remedy(v.name, v.type)})" for v in unbound]
        raise ShapeError("\n".join([f"{builder.file.name}: dimensions without a value", *lines]))


def outputs_of(ports: Sequence[DeclaredInput], layers: Sequence[Message]) -> list[str]:
    """Blobs that no later layer reads, in the order in which they are made.

    What is left over of a Slice, some of whose parts are read, is no output (Caffe calls it one).
    """
    left: dict[str, None] = {}
    read = {name for layer in layers for name in layer.bottom}
    for layer in layers:
        for name in layer.bottom:
            left.pop(name, None)
        partly = layer.type == "Slice" and read & set(layer.top)
        left.update(dict.fromkeys(name for name in layer.top if not partly or name in read))
    return list(left)


def blobs_by_layer(net: Message, where: str) -> dict[str, list[Array]]:
    """The weights of each layer that has any.  Raises FormatError."""
    return {
        layer.name: [blob_array(b, f"{where}: layer '{layer.name}'") for b in layer.blobs]
        for layer in layers_of(net, where)
        if layer.blobs
    }


def blob_array(blob: Message, where: str) -> Array:
    """The numbers of a blob in its shape, f32.  Raises FormatError when they do not fit."""
    data = blob.data if len(blob.data) else blob.double_data
    legacy = (blob.num, blob.channels, blob.height, blob.width)
    dims = tuple(blob.shape.dim) if blob.has("shape") else legacy if any(legacy) else (len(data),)
    if any(d < 0 for d in dims) or math.prod(dims) != len(data):
        raise FormatError(f"{where}: holds {len(data)} numbers where its shape {list(dims)} needs {math.prod(dims)}")
    return np.asarray(data, np.float32).reshape(dims)
