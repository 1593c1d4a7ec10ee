"""Caffe nets rewritten as faster Caffe nets that give the same answers.

Five steps, each of which may be left out: activations in place, the input's mean into the first layer's bias (only
where nothing is padded: padding is zero after the mean is taken off), the input's scale into its weights,
BatchNorm and Scale into the layer before them, Dropout away.  A step that would change answers declines and says why.

``Settings.from_ini`` reads the configuration of Caffe-Computation-Graph-Optimization, whose steps these are.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tenon.errors import FormatError, InputError
from tenon.formats.importers.caffe.load import blobs_by_layer, pair
from tenon.formats.importers.caffe.schema import SCHEMA
from tenon.formats.importers.caffe.upgrade import DATA_LAYERS, layers_of
from tenon.formats.model_files.model_file import ModelFile
from tenon.formats.wire.protobuf import Message
from tenon.input_file import read_regular
from tenon.network.graph.graph import Array
from tenon.network.graph.writer import HOSTILE, reason

IN_PLACE = frozenset({"Scale", "BatchNorm", "ReLU", "PReLU", "Softmax", "TanH", "ELU", "Dropout", "Sigmoid"})
WEIGHTED = frozenset({"Convolution", "ConvolutionDepthwise", "DepthwiseConvolution", "Deconvolution", "InnerProduct"})
Blobs = dict[str, list[Array]]


@dataclass(frozen=True)
class Settings:
    """The steps to take.  ``scale`` and ``mean`` (per channel) are used where the net itself does not say them."""

    norms: bool = True
    scale_input: bool = True
    mean_input: bool = True
    dropout: bool = True
    in_place: bool = True
    scale: float | None = None
    mean: tuple[float, ...] = ()

    @classmethod
    def from_ini(cls, path: Path) -> tuple[Settings, dict[str, Path]]:
        """The settings in a ``config.ini`` and the paths of its four files.  Raises InputError."""
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(read_regular(path).decode("utf-8"))
            values = parser["DEFAULT"]
            files = {key: path.parent / values[key] for key in _FILES}
            steps = {name: values.getboolean(key, fallback=True) for name, key in _STEPS.items()}
            scale = values.getfloat("input_scale", fallback=None) if steps["scale_input"] else None
            return cls(**steps, scale=scale, mean=_mean(values, path.parent) if steps["mean_input"] else ()), files
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        except KeyError as error:
            raise InputError(f"{path}: the key {error} is missing") from error
        except (configparser.Error, UnicodeDecodeError, ValueError) as error:
            raise InputError(f"{path}: not a configuration that can be read ({error})") from error


MAX_CHANNELS = 1 << 16
_FILES = ("original_prototxt_path", "original_model_path", "optimized_prototxt_path", "optimized_model_path")
_STEPS = {
    "norms": "merge_bn_scale",
    "scale_input": "merge_input_scale",
    "mean_input": "merge_input_mean",
    "dropout": "merge_dropout",
    "in_place": "merge_inplace_memory",
}


def _mean(values: Mapping[str, str], folder: Path) -> tuple[float, ...]:
    """Per channel, in Caffe's order: the average of a mean image if its file is there, else the three numbers."""
    given = values.get("mean_proto_path", "")
    path = folder / given if given else None
    if path is not None and path.is_file():
        return _means(path)
    channels = int(values.get("c", "3"))
    if not 0 < channels <= MAX_CHANNELS:
        raise ValueError(f"C is {channels}, which no image has")
    numbers = tuple(float(values[key]) for key in ("mean_b", "mean_g", "mean_r") if key in values)
    return numbers if channels == len(numbers) else (sum(numbers) / len(numbers),) * channels if numbers else ()


def _means(path: Path) -> tuple[float, ...]:
    """The mean of each channel of an image [..., channels, height, width].  Raises OSError and ValueError."""
    try:
        image = np.load(path, allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # SyntaxError, TokenError, BadZipFile: whatever damage makes NumPy's reader raise
        raise ValueError(f"{path} is no array: {error}") from error
    if not isinstance(image, np.ndarray) or image.ndim < 3 or image.dtype.kind not in "fiu" or not image.size:
        raise ValueError(f"{path} is no image of means")
    with np.errstate(all="ignore"):
        means = image.reshape(image.shape[-3], -1).mean(1, np.float64)
    if not np.isfinite(means).all():
        raise ValueError(f"{path} holds means that are not finite")
    return tuple(means.tolist())


@dataclass
class Optimised:
    """A rewritten net, its weights, and what was done or left undone."""

    net: Message
    blobs: Blobs
    log: list[str] = field(default_factory=list)

    def prototxt(self) -> str:
        from tenon.formats.wire.prototext import show

        return show(self.net)

    def caffemodel(self) -> bytes:
        """The net with its weights, as Caffe saves it."""
        from tenon.formats.wire.protobuf_write import serialise

        layers, seen = [], set()
        for layer in self.net.layer:
            if layer.name in seen:
                continue
            seen.add(layer.name)
            result = layer.clone()
            result.set(blobs=[_blob(a) for a in self.blobs[layer.name]] if layer.name in self.blobs else None)
            result.set(include=None, exclude=None)
            layers.append(result)
        return serialise(SCHEMA.new("NetParameter", name=self.net.name, layer=layers), ("dim",))


def _blob(array: Array) -> Message:
    shape = SCHEMA.new("BlobShape", dim=list(array.shape))
    return SCHEMA.new("BlobProto", data=array.reshape(-1), shape=shape)


def optimise(file: ModelFile, settings: Settings = Settings()) -> Optimised:
    """The net in ``file`` rewritten.  Raises FormatError without its weights."""
    net, where, weights = pair(file)
    if weights is None:
        raise FormatError(f"{file.name}: its weights are needed to fold anything into them; name them with --weights")
    layers = [layer.clone() for layer in layers_of(net, where.name)]
    for layer in layers:
        layer.set(blobs=None)
    new = net.clone()
    new.set(layers=None, layer=layers)
    result = Optimised(new, blobs_by_layer(weights, file.name))
    try:
        with np.errstate(all="ignore"):  # a damaged variance gives NaN, as it does in Caffe
            _take_steps(_Rewriter(layers, result.blobs, result.log), list(net.input), settings)
    except HOSTILE as error:
        raise FormatError(f"{file.name}: its layers and weights contradict each other: {reason(error)}") from error
    return result


def _take_steps(work: _Rewriter, heads: list[str], settings: Settings) -> None:
    if settings.in_place:
        work.in_place()
    if settings.mean_input or settings.scale_input:
        work.input_affine(heads, settings)
    if settings.norms:
        work.norms()
    if settings.dropout:
        work.dropout()


class _Rewriter:
    """Rewrites ``layers`` and ``blobs`` where they are."""

    def __init__(self, layers: list[Message], blobs: Blobs, log: list[str]) -> None:
        self.layers = layers
        self.blobs = blobs
        self.log = log

    # ------------------------------------------------------------------------------------- who reads whom
    def readers(self, at: int, name: str) -> list[int]:
        """The layers after ``at`` that read what it calls ``name``."""
        indices = []
        for i in range(at + 1, len(self.layers)):
            if name in self.layers[i].bottom:
                indices.append(i)
            if name in self.layers[i].top:
                break
        return indices

    def maker(self, at: int, name: str) -> int | None:
        """The layer before ``at`` that made ``name``."""
        return next((i for i in range(at - 1, -1, -1) if name in self.layers[i].top), None)

    def rename(self, at: int, old: str, new: str) -> bool:
        """Let the readers of what layer ``at`` calls ``old`` read ``new``; False if another layer in between uses that
        name."""
        readers = self.readers(at, old)
        last = max(readers, default=at)
        if any(new in layer.top for layer in self.layers[at + 1 : last]):
            return False
        for i in readers:
            layer = self.layers[i]
            layer.set(bottom=[new if b == old else b for b in layer.bottom])
            if old in layer.top:  # the layer works in place, and must continue to
                self.rename(i, old, new)
                layer.set(top=[new if t == old else t for t in layer.top])
        return True

    def only_reader(self, at: int) -> int | None:
        """The maker of layer ``at``'s bottom if nothing else reads that."""
        name = self.layers[at].bottom[0]
        maker = self.maker(at, name)
        return maker if maker is not None and self.readers(maker, name) == [at] else None

    def remove(self, at: int) -> bool:
        """Take out a layer of one bottom and one top; a tensor without readers is an output and keeps its name."""
        layer = self.layers[at]
        bottom, top = layer.bottom[0], layer.top[0]
        if bottom != top and not self.readers(at, top):
            maker = self.only_reader(at)
            if maker is None:
                return False
            self.layers[maker].set(top=[top if name == bottom else name for name in self.layers[maker].top])
        elif bottom != top and not self.rename(at, top, bottom):
            return False
        self.blobs.pop(layer.name, None)
        del self.layers[at]
        return True

    # --------------------------------------------------------------------------------------------- steps
    def in_place(self) -> None:
        for i, layer in enumerate(self.layers):
            if layer.type not in IN_PLACE or len(layer.bottom) != 1 or len(layer.top) != 1:
                continue
            bottom, top = layer.bottom[0], layer.top[0]
            inner = bottom != top and bool(self.readers(i, top))
            if inner and self.only_reader(i) is not None and self.rename(i, top, bottom):
                layer.set(top=[bottom])
                self.log.append(f"{layer.name}: works in place")

    def dropout(self) -> None:
        for layer in [x for x in self.layers if x.type == "Dropout" and x.dropout_param.scale_train]:
            if self.remove(self.layers.index(layer)):
                self.log.append(f"{layer.name}: dropped")

    def norms(self) -> None:
        i = 0
        while i < len(self.layers):
            layer = self.layers[i]
            simple = layer.type in ("BatchNorm", "Scale", "Bias") and len(layer.bottom) == len(layer.top) == 1
            if not simple or not self.fold(i):
                i += 1

    def fold(self, i: int) -> bool:
        """Fold one affine layer into the layer that makes its bottom, and take it out."""
        layer = self.layers[i]
        maker = self.only_reader(i)
        before = self.layers[maker] if maker is not None else None
        if before is None or before.type not in WEIGHTED or before.name not in self.blobs:
            self.log.append(f"{layer.name}: kept, it does not follow a layer with weights alone")
            return False
        if layer.include or layer.exclude or before.include or before.exclude or any(p.name for p in before.param):
            self.log.append(f"{layer.name}: kept, its layers belong to one phase or share weights")
            return False
        output = self.outputs(before)
        affine = affine_of(layer, self.blobs.get(layer.name, []), output)
        if affine is None:
            self.log.append(f"{layer.name}: kept, it is not one factor and one offset for each of {output} channels")
            return False
        name = layer.name
        scale, offset = affine
        if not self.remove(i):
            self.log.append(f"{name}: kept, the blob's name is in use")
            return False
        self.scale_outputs(before, scale, offset)
        self.log.append(f"{name}: folded into {before.name}")
        return True

    def outputs(self, layer: Message) -> int:
        parameter = layer.inner_product_param if layer.type == "InnerProduct" else layer.convolution_param
        return int(parameter.num_output)

    def scale_outputs(self, layer: Message, scale: Array, offset: Array) -> None:
        blobs = self.blobs[layer.name]
        w, output = np.asarray(blobs[0], np.float64), self.outputs(layer)
        if layer.type == "Deconvolution":
            groups = layer.convolution_param.group or 1
            parts = w.reshape(groups, -1, output // groups, w.size // (w.shape[0] * (output // groups)))
            w = (parts * scale.reshape(groups, 1, -1, 1)).reshape(w.shape)
        elif layer.type == "InnerProduct" and layer.inner_product_param.transpose:
            w = (w.reshape(-1, output) * scale).reshape(w.shape)
        else:
            w = (w.reshape(output, -1) * scale[:, None]).reshape(w.shape)
        bias = np.asarray(blobs[1], np.float64).reshape(-1) if len(blobs) > 1 else np.zeros(output)
        self.blobs[layer.name] = [w.astype(np.float32), (bias * scale + offset).astype(np.float32)]
        parameter = "inner_product_param" if layer.type == "InnerProduct" else "convolution_param"
        getattr(layer, parameter).set(bias_term=True)

    # ------------------------------------------------------------------------------------- the net's input
    def input_affine(self, heads: list[str], settings: Settings) -> None:
        """Mean and scale of the input into the layers that read it."""
        data = [x for x in self.layers if x.type in DATA_LAYERS and x.top and not x.bottom]
        names = list(dict.fromkeys([*heads, *(x.top[0] for x in data)]))
        name = names[0] if names else ""
        transforms = [x.transform_param for x in data if x.top[0] == name and x.has("transform_param")]
        scales = {float(t.scale) for t in transforms if t.has("scale")}
        scale = settings.scale if settings.scale is not None else next(iter(scales), 1.0)
        if len(scales | {scale}) > 1 and scales:
            raise InputError(f"the input is scaled by {sorted(scales)} in the net and by {scale} in the settings")
        means = {tuple(float(m) for m in t.mean_value) for t in transforms if len(t.mean_value)}
        mean = settings.mean or (next(iter(means)) if len(means) == 1 else ())
        start = next((i for i in range(len(self.layers) - 1, -1, -1) if self.layers[i] in data), -1)
        readers = [self.layers[i] for i in self.readers(start, name)]
        why = self._refusal(readers)
        if not readers or why:
            if mean or scale != 1:
                self.log.append(f"{name}: its mean and scale are kept, {why or 'nothing reads it'}")
            return
        if settings.mean_input and mean and self._shift_inputs(name, readers, mean, scale):
            for transform in transforms:
                transform.set(mean_value=None, mean_file=None)
        if settings.scale_input and scale != 1:
            for layer in readers:
                first, *rest = self.blobs[layer.name]
                self.blobs[layer.name] = [(np.asarray(first, np.float64) * scale).astype(np.float32), *rest]
                self.log.append(f"{name}: its scale {scale:g} is folded into {layer.name}")
            for transform in transforms:
                transform.set(scale=1.0 if transform.has("scale") else None)

    def _refusal(self, readers: list[Message]) -> str:
        for layer in readers:
            if layer.type not in ("Convolution", "InnerProduct") or layer.name not in self.blobs:
                return f"{layer.name} ({layer.type}) reads it"
            if any(p.name for p in layer.param):
                return f"{layer.name} shares its weights"
        return ""

    def _shift_inputs(self, name: str, readers: list[Message], mean: tuple[float, ...], scale: float) -> bool:
        """Take the mean off in the biases of ``readers``."""
        for layer in readers:
            p = layer.convolution_param
            if layer.type == "Convolution" and (any(p.pad) or p.pad_h or p.pad_w or (p.group or 1) != 1):
                self.log.append(f"{name}: its mean is kept, {layer.name} pads (or has groups)")
                return False
        for layer in readers:
            blobs, output = self.blobs[layer.name], self.outputs(layer)
            w = np.asarray(blobs[0], np.float64)
            transposed = layer.type == "InnerProduct" and layer.inner_product_param.transpose
            rows = w.reshape(-1, output).T if transposed else w.reshape(output, -1)
            channels = len(mean) if len(mean) > 1 else 1
            if rows.shape[1] % channels:
                raise InputError(f"{layer.name}: means of {channels} channels do not fit its {rows.shape[1]} weights")
            shift = rows.reshape(output, channels, -1).sum(2) @ np.array(mean)
            bias = np.asarray(blobs[1], np.float64).reshape(-1) if len(blobs) > 1 else np.zeros(output)
            self.blobs[layer.name] = [blobs[0], (bias - scale * shift).astype(np.float32)]
            parameter = "inner_product_param" if layer.type == "InnerProduct" else "convolution_param"
            getattr(layer, parameter).set(bias_term=True)
            self.log.append(f"{name}: its mean is folded into {layer.name}")
        return True


def affine_of(layer: Message, blobs: list[Array], channels: int) -> tuple[Array, Array] | None:
    """(factor, offset) per channel of a BatchNorm, Scale or Bias; None when it is something else."""
    flat = [np.asarray(b, np.float64).reshape(-1) for b in blobs]
    if layer.type == "BatchNorm":
        parameter = layer.batch_norm_param
        batch = parameter.has("use_global_stats") and not parameter.use_global_stats
        if batch or len(flat) != 3 or flat[0].size != channels or flat[1].size != channels or flat[2].size != 1:
            return None
        rate = 0.0 if flat[2][0] == 0 else 1 / flat[2][0]
        factor = 1 / np.sqrt(flat[1] * rate + max(float(parameter.eps), 1e-12))
        return factor, -flat[0] * rate * factor
    parameter = layer.scale_param if layer.type == "Scale" else layer.bias_param
    if not flat or parameter.axis != 1 or parameter.num_axes != 1 or any(b.size != channels for b in flat):
        return None
    if layer.type == "Bias":
        return np.ones(channels), flat[0]
    return flat[0], flat[1] if parameter.bias_term and len(flat) > 1 else np.zeros(channels)
