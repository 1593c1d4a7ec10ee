"""Caffe nets of any age as nets of today: V0 and V1 layers, training nets, data layers.

``modernised`` gives the layers that run when testing, all in the form of LayerParameter; the inputs stand in front as
Input layers.  Everything happens in memory; messages of the file are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tenon.errors import FormatError
from tenon.formats.importers.caffe.schema import SCHEMA
from tenon.formats.wire.protobuf import Message

DATA_LAYERS = {
    "Data": "data_param",
    "ImageData": "image_data_param",
    "MemoryData": "memory_data_param",
    "HDF5Data": "hdf5_data_param",
    "WindowData": "data_param",
    "AnnotatedData": "data_param",
    "DummyData": "dummy_data_param",
    "Input": "input_param",
}
"""Data layers, and the fields of their parameters."""

TRAINING_LAYERS = frozenset(
    {
        "Accuracy",
        "EuclideanLoss",
        "HingeLoss",
        "InfogainLoss",
        "MultinomialLogisticLoss",
        "ContrastiveLoss",
        "SigmoidCrossEntropyLoss",
        "SmoothL1Loss",
        "MultiBoxLoss",
        "DetectionEvaluate",
        "HDF5Output",
        "Silence",
        "SoftmaxFocalLoss",
        "AnnotatedData",
    }
)
"""Losses and metrics, which inference does not need."""

_V1_NAMES = {
    "ABSVAL": "AbsVal",
    "ARGMAX": "ArgMax",
    "BNLL": "BNLL",
    "CONCAT": "Concat",
    "CONVOLUTION": "Convolution",
    "DATA": "Data",
    "DECONVOLUTION": "Deconvolution",
    "DROPOUT": "Dropout",
    "DUMMY_DATA": "DummyData",
    "ELTWISE": "Eltwise",
    "EXP": "Exp",
    "FLATTEN": "Flatten",
    "HDF5_DATA": "HDF5Data",
    "HDF5_OUTPUT": "HDF5Output",
    "IMAGE_DATA": "ImageData",
    "INNER_PRODUCT": "InnerProduct",
    "LRN": "LRN",
    "MEMORY_DATA": "MemoryData",
    "MVN": "MVN",
    "POOLING": "Pooling",
    "POWER": "Power",
    "RELU": "ReLU",
    "SIGMOID": "Sigmoid",
    "SLICE": "Slice",
    "SOFTMAX": "Softmax",
    "SOFTMAX_LOSS": "SoftmaxWithLoss",
    "SPLIT": "Split",
    "SILENCE": "Silence",
    "TANH": "TanH",
    "THRESHOLD": "Threshold",
    "WINDOW_DATA": "WindowData",
    "ACCURACY": "Accuracy",
    "EUCLIDEAN_LOSS": "EuclideanLoss",
    "SIGMOID_CROSS_ENTROPY_LOSS": "SigmoidCrossEntropyLoss",
    "HINGE_LOSS": "HingeLoss",
    "INFOGAIN_LOSS": "InfogainLoss",
    "MULTINOMIAL_LOGISTIC_LOSS": "MultinomialLogisticLoss",
    "CONTRASTIVE_LOSS": "ContrastiveLoss",
    "IM2COL": "Im2col",
}

V0_NAMES = {
    "conv": "Convolution",
    "padding": "padding",
    "pool": "Pooling",
    "relu": "ReLU",
    "dropout": "Dropout",
    "innerproduct": "InnerProduct",
    "lrn": "LRN",
    "softmax": "Softmax",
    "softmax_loss": "SoftmaxWithLoss",
    "concat": "Concat",
    "split": "Split",
    "tanh": "TanH",
    "sigmoid": "Sigmoid",
    "flatten": "Flatten",
    "data": "Data",
    "images": "ImageData",
    "window_data": "WindowData",
    "hdf5_data": "HDF5Data",
    "hdf5_output": "HDF5Output",
    "accuracy": "Accuracy",
    "euclidean_loss": "EuclideanLoss",
    "bnll": "BNLL",
    "hinge_loss": "HingeLoss",
    "infogain_loss": "InfogainLoss",
    "im2col": "Im2col",
    "reshape": "Reshape",
    "multinomial_logistic_loss": "MultinomialLogisticLoss",
}


@dataclass(frozen=True)
class DeclaredInput:
    """An input blob; an extent is 0 where the net does not state it."""

    name: str
    shape: tuple[int, ...]
    transform: Message
    is_label: bool = False


def layers_of(net: Message, where: str) -> list[Message]:
    """Every layer of the file, as LayerParameter messages.  Raises FormatError."""
    if net.layer and net.layers:
        raise FormatError(f"{where}: has layers of the old kind ('layers') and of the new ('layer'); use one")
    if net.layer:
        return list(net.layer)
    oldest = _Oldest(where)
    outputs = [oldest.upgraded(layer) if layer.has("layer") else _from_v1(layer, where) for layer in net.layers]
    return [layer for layer in outputs if layer is not None]


def _from_v1(old: Message, where: str) -> Message:
    if old.type not in _V1_NAMES:
        raise FormatError(f"{where}: layer '{old.name}' is of the unknown type {old.type}")
    new = SCHEMA.new("LayerParameter", type=_V1_NAMES[old.type])
    for field, value in old.items():
        if field.name in SCHEMA.fields["LayerParameter"] and field.name not in ("type", "param"):
            new.set(**{field.name: value})
    count = max(len(old.param), len(old.blobs_lr), len(old.weight_decay))
    specs = [
        SCHEMA.new(
            "ParamSpec", name=_at(old.param, i), lr_mult=_at(old.blobs_lr, i), decay_mult=_at(old.weight_decay, i)
        )
        for i in range(count)
    ]
    new.set(param=specs or None)
    return new


def _at(values: Sequence[object], i: int) -> object:
    return values[i] if i < len(values) else None


class _Oldest:
    """Upgrades V0 layers.  Their padding was a layer of its own; it is merged into the layers that read it."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.padded: dict[str, tuple[str, int]] = {}

    def upgraded(self, old: Message) -> Message | None:
        v0 = old.layer
        if v0.type == "padding" and len(old.bottom) == len(old.top) == 1:
            self.padded[old.top[0]] = (old.bottom[0], v0.pad)
            return None
        if v0.type not in V0_NAMES:
            raise FormatError(f"{self.where}: layer '{v0.name}' is of the unknown type '{v0.type}'")
        sources = [self.padded.get(name, (name, v0.pad)) for name in old.bottom]
        new = SCHEMA.new("LayerParameter", name=v0.name, type=V0_NAMES[v0.type], top=list(old.top))
        new.set(bottom=[name for name, _ in sources], blobs=v0.blobs or None)
        new.set(include=old.include or None, exclude=old.exclude or None)
        new.set(**_v0_parameters(new.type, v0, sources[0][1] if sources else 0))
        return new


def _v0_parameters(type: str, v0: Message, pad: int) -> dict[str, Message]:
    new = SCHEMA.new
    if type == "Convolution":
        geometry = {"pad": [pad], "kernel_size": [v0.kernelsize], "stride": [v0.stride], "group": v0.group}
        sizes = {"num_output": v0.num_output, "bias_term": v0.biasterm}
        return {"convolution_param": new("ConvolutionParameter", **geometry, **sizes)}
    if type == "Pooling":
        geometry = {"pad": pad, "kernel_size": v0.kernelsize, "stride": v0.stride, "pool": v0.pool}
        return {"pooling_param": new("PoolingParameter", **geometry)}
    if type == "InnerProduct":
        sizes = {"num_output": v0.num_output, "bias_term": v0.biasterm}
        return {"inner_product_param": new("InnerProductParameter", **sizes)}
    if type == "LRN":
        values = {"local_size": v0.local_size, "alpha": v0.alpha, "beta": v0.beta, "k": v0.k}
        return {"lrn_param": new("LRNParameter", **values)}
    if type == "Concat":
        return {"concat_param": new("ConcatParameter", axis=v0.concat_dim)}
    if type == "Dropout":
        return {"dropout_param": new("DropoutParameter", dropout_ratio=v0.dropout_ratio)}
    if type == "Reshape":
        dims = [v0.new_num, v0.new_channels, v0.new_height, v0.new_width]
        return {"reshape_param": new("ReshapeParameter", shape=new("BlobShape", dim=dims))}
    if type in ("Data", "ImageData", "WindowData"):
        transform = new("TransformationParameter", scale=v0.scale, crop_size=v0.cropsize)
        return {"transform_param": transform, "data_param": new("DataParameter", batch_size=v0.batchsize)}
    return {}


# ---------------------------------------------------------------------------------------------- phases
def runs_when_testing(layer: Message, state: Message) -> bool:
    """Whether the layer's include and exclude rules keep it in the TEST phase."""
    if layer.include:
        return any(_met(rule, state) for rule in layer.include)
    return not any(_met(rule, state) for rule in layer.exclude)


def _met(rule: Message, state: Message) -> bool:
    if rule.has("phase") and rule.phase != "TEST":
        return False
    if rule.has("min_level") and state.level < rule.min_level:
        return False
    if rule.has("max_level") and state.level > rule.max_level:
        return False
    return all(s in state.stage for s in rule.stage) and not any(s in state.stage for s in rule.not_stage)


def is_training_only(layer: Message) -> bool:
    """Whether a layer is a loss or a metric."""
    return layer.type in TRAINING_LAYERS or layer.type.endswith("WithLoss")


def modernised(net: Message, where: str) -> tuple[list[DeclaredInput], list[Message]]:
    """The inputs of a net, and the layers that it runs when testing.  Raises FormatError."""
    inputs = _declared(net, where)
    layers = []
    for layer in layers_of(net, where):
        if not runs_when_testing(layer, net.state) or is_training_only(layer):
            continue
        if layer.type in DATA_LAYERS and not layer.bottom:
            inputs += _from_data_layer(layer)
        else:
            layers.append(layer)
    read = {name for layer in layers for name in layer.bottom}
    return [i for i in inputs if i.name in read or not i.is_label], layers


def _declared(net: Message, where: str) -> list[DeclaredInput]:
    """The inputs named at the head of a net."""
    shapes = [tuple(shape.dim) for shape in net.input_shape]
    if not shapes and net.input_dim:
        dims = net.input_dim
        shapes = [tuple(dims[i : i + 4]) for i in range(0, len(dims), 4)]
    if shapes and len(shapes) != len(net.input):
        raise FormatError(f"{where}: names {len(net.input)} inputs, but the shapes of {len(shapes)}")
    return [
        DeclaredInput(name, shapes[i] if shapes else (), SCHEMA.new("TransformationParameter"))
        for i, name in enumerate(net.input)
    ]


def _from_data_layer(layer: Message) -> list[DeclaredInput]:
    parameter = getattr(layer, DATA_LAYERS[layer.type])
    inputs = []
    for i, top in enumerate(layer.top):
        if layer.type in ("Input", "DummyData"):
            shapes = [tuple(shape.dim) for shape in parameter.shape]
            shape = shapes[min(i, len(shapes) - 1)] if shapes else ()
            inputs.append(DeclaredInput(top, shape, layer.transform_param))
        else:
            shape = _image_shape(layer.type, parameter, layer.transform_param) if i == 0 else (1,)
            inputs.append(DeclaredInput(top, shape, layer.transform_param, is_label=i > 0))
    return inputs


def _image_shape(type: str, parameter: Message, transform: Message) -> tuple[int, ...]:
    """[1, C, H, W] of what a data layer gives, as far as its parameters state it."""
    if type == "MemoryData":
        crop = transform.crop_size
        size = (crop, crop) if crop else (parameter.height, parameter.width)
        return (parameter.batch_size or 1, parameter.channels, *size)
    size = (transform.crop_size, transform.crop_size)
    if not size[0] and type == "HDF5Data":
        return ()
    if not size[0] and transform.has("resize_param"):
        size = (transform.resize_param.height, transform.resize_param.width)
    elif not size[0] and type == "ImageData":
        size = (parameter.crop_size or parameter.new_height, parameter.crop_size or parameter.new_width)
    elif not size[0] and type in ("Data", "WindowData"):
        size = (parameter.crop_size, parameter.crop_size)
    channels = len(transform.mean_value) if len(transform.mean_value) > 1 else 1 if transform.force_gray else 0
    if not channels and (transform.force_color or type == "ImageData" or size[0]):
        channels = 3
    return (1, channels, *size)
