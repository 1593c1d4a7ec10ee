"""Keras layers, models and applications compared with Keras; skipped if TensorFlow is not installed."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tensorflow_peer import (
    L,
    Shape,
    agree,
    arrays,
    causal_attention,
    cross_attention,
    dictionary,
    encoder_decoder,
    functions,
    gru_state,
    keras,
    nested,
    sequential,
    shared,
    some,
    tf,
    transformer,
    twice_nested,
    two_alike,
    with_random_weights,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks warn of themselves

Row = tuple[str, Callable[[], Any], tuple[Shape, ...]]


def row(name: str, make: Callable[[], Any], *shapes: Shape) -> Row:
    """A layer, a function that creates it, and the shapes of its inputs without the batch."""
    return name, make, shapes


def layered(make: Callable[[], Any], shapes: Sequence[Shape]) -> Any:
    inputs = [keras.Input(shape, batch_size=1) for shape in shapes]
    return keras.Model(inputs, make()(inputs[0] if len(inputs) == 1 else inputs))


def windows() -> list[Row]:
    rows = list[Row]()

    def add(kind: str, shape: Shape, *args: Any, **settings: Any) -> None:
        rows.append(row(f"{kind} {args} {settings}", partial(getattr(L, kind), *args, **settings), shape))

    shapes: dict[int, Shape] = {1: (11, 4), 2: (9, 8, 4), 3: (5, 6, 7, 2)}
    for n, shape in shapes.items():
        for padding, strides in product(("valid", "same"), (1, 2, 3)):
            add(f"Conv{n}D", shape, 5, 3, strides, padding, activation="relu")
            for k in (2, 3, 4):
                add(f"Conv{n}DTranspose", shape, 3, k, strides, padding)
            for pool in ("Max", "Average"):
                add(f"{pool}Pooling{n}D", shape, 3, strides, padding)
            if n < 3:
                add(f"DepthwiseConv{n}D", shape, 3, strides, padding, depth_multiplier=2)
                add(f"SeparableConv{n}D", shape, 6, 3, strides, padding, depth_multiplier=2, activation="silu")
        for padding in ("valid", "same"):
            add(f"Conv{n}D", shape, 5, 3, padding=padding, dilation_rate=2, use_bias=False)
            add(f"Conv{n}D", shape, 6, 3, padding=padding, groups=2)
            add(f"Conv{n}DTranspose", shape, 6, 3, padding=padding, dilation_rate=2)
            if n < 3:
                add(f"DepthwiseConv{n}D", shape, 3, 1, padding, dilation_rate=2)
                add(f"SeparableConv{n}D", shape, 6, 3, 1, padding, dilation_rate=2)
        add(f"Conv{n}DTranspose", shape, 5, 3, strides=2, output_padding=1, padding="same")
        add(f"Conv{n}DTranspose", shape, 5, 3, strides=2, output_padding=0, padding="valid")
        for kind in (f"Conv{n}D", f"Conv{n}DTranspose"):
            add(kind, shape, 5, 3, data_format="channels_first", padding="same", strides=2)
        for pool, form in product(("Max", "Average"), ("channels_last", "channels_first")):
            add(f"{pool}Pooling{n}D", shape, 2, data_format=form)
            for keep in (True, False):
                add(f"Global{pool}Pooling{n}D", shape, keepdims=keep, data_format=form)
        pairs: Any = ((1, 2),) * n if n > 1 else (1, 2)
        for form in ("channels_last", "channels_first"):
            settings = {"data_format": form} if n > 1 else {}
            add(f"UpSampling{n}D", shape, (2, 3, 2)[:n] if n > 1 else 3, **settings)
            add(f"Cropping{n}D", (4, 9, 8, 7)[: n + 1] if n > 1 else shape, pairs, **settings)
            add(f"ZeroPadding{n}D", shape, pairs, data_format=form)
    for mode in ("nearest", "bilinear", "bicubic"):
        add("UpSampling2D", (4, 5, 3), (2, 3), interpolation=mode)
        for size in ((4, 5), (13, 17), (8, 16)):
            add("Resizing", (9, 8, 3), *size, interpolation=mode)
    rows += [
        row("Resizing crop", lambda: L.Resizing(4, 6, crop_to_aspect_ratio=True), (9, 8, 3)),
        row("Resizing pad", lambda: L.Resizing(4, 6, pad_to_aspect_ratio=True), (9, 8, 3)),
        row("Resizing pad value", lambda: L.Resizing(6, 4, pad_to_aspect_ratio=True, fill_value=2.0), (9, 8, 3)),
        row("Resizing first", lambda: L.Resizing(4, 6, data_format="channels_first"), (3, 9, 8)),
        row("CenterCrop", lambda: L.CenterCrop(4, 5), (9, 8, 3)),
        row("CenterCrop odd", lambda: L.CenterCrop(4, 4), (9, 7, 3)),
        row("CenterCrop larger", lambda: L.CenterCrop(12, 10), (9, 8, 3)),
        row("Conv2D asymmetric", lambda: L.Conv2D(4, (3, 2), (2, 1), "same"), (9, 8, 3)),
        row("Conv1D causal", lambda: L.Conv1D(4, 3, padding="causal", dilation_rate=2), (9, 3)),
        row("Conv1D causal strides", lambda: L.Conv1D(4, 3, padding="causal", strides=2), (9, 3)),
        row("AveragePooling2D same", lambda: L.AveragePooling2D((3, 2), (2, 1), "same"), (9, 8, 3)),
        row("SeparableConv2D first", lambda: L.SeparableConv2D(4, 3, data_format="channels_first"), (3, 9, 8)),
        row(
            "DepthwiseConv2D first",
            lambda: L.DepthwiseConv2D(3, data_format="channels_first", padding="same"),
            (3, 9, 8),
        ),
    ]
    return rows


ACTIVATIONS = [
    "elu",
    "exponential",
    "gelu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "leaky_relu",
    "linear",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "softsign",
    "swish",
    "tanh",
    "celu",
    "glu",
    "hard_shrink",
    "hard_tanh",
    "log_sigmoid",
    "soft_shrink",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "tanh_shrink",
]


def plain() -> list[Row]:
    seq, pic = (6, 5), (5, 6, 4)
    return [
        *(row(f"Activation {a}", partial(L.Activation, a), pic) for a in ACTIVATIONS),
        *(row(f"Dense {a}", partial(L.Dense, 6, activation=a), seq) for a in ("relu", "softmax", "gelu")),
        row("Dense 1", lambda: L.Dense(3, use_bias=False), (5,)),
        row("Dense 4", lambda: L.Dense(3), pic),
        row("ELU", lambda: L.ELU(0.3), pic),
        row("LeakyReLU", lambda: L.LeakyReLU(0.3), pic),
        row("PReLU", lambda: L.PReLU(), pic),
        row("PReLU shared", lambda: L.PReLU(shared_axes=[1, 2]), pic),
        row("ReLU", lambda: L.ReLU(1.5, 0.1, 0.2), pic),
        row("ReLU plain", lambda: L.ReLU(), pic),
        row("ReLU max", lambda: L.ReLU(max_value=0.5), pic),
        row("ReLU threshold", lambda: L.ReLU(threshold=0.3), pic),
        row("Softmax", lambda: L.Softmax(), pic),
        row("Softmax axis", lambda: L.Softmax(axis=1), pic),
        row("Softmax axes", lambda: L.Softmax(axis=(1, 2)), pic),
        *(
            row(f"BatchNormalization {axis}", partial(L.BatchNormalization, axis=axis, epsilon=0.01), pic)
            for axis in (-1, 1, 2)
        ),
        row("BatchNormalization bare", lambda: L.BatchNormalization(center=False, scale=False), pic),
        row("BatchNormalization no scale", lambda: L.BatchNormalization(scale=False), (7,)),
        row("BatchNormalization no center", lambda: L.BatchNormalization(center=False), seq),
        *(
            row(f"LayerNormalization {axis}", partial(L.LayerNormalization, axis=axis), pic)
            for axis in (-1, 1, (2, 3), (1, 2, 3), (1, 2), (1, 3))
        ),
        row("LayerNormalization bare", lambda: L.LayerNormalization(center=False, scale=False), pic),
        row("LayerNormalization rms", lambda: L.LayerNormalization(rms_scaling=True), pic),
        row("LayerNormalization no center", lambda: L.LayerNormalization(center=False, epsilon=0.1), pic),
        *(
            row(f"GroupNormalization {g} {axis}", partial(L.GroupNormalization, g, axis=axis), (4, 6, 8))
            for g in (1, 2, -1)
            for axis in (-1, 1)
        ),
        row("GroupNormalization 1D", lambda: L.GroupNormalization(2, center=False), (5, 8)),
        row("GroupNormalization bare", lambda: L.GroupNormalization(2, center=False, scale=False), (8,)),
        row("RMSNormalization", lambda: L.RMSNormalization(), pic),
        row("UnitNormalization", lambda: L.UnitNormalization(), pic),
        row("UnitNormalization axes", lambda: L.UnitNormalization(axis=[1, 2]), pic),
        row(
            "Normalization",
            lambda: L.Normalization(axis=-1, mean=[0.1, 0.2, 0.3, 0.4], variance=[1.0, 2.0, 3.0, 4.0]),
            pic,
        ),
        row("Normalization scalar", lambda: L.Normalization(axis=None, mean=0.5, variance=2.0), pic),
        row("Normalization invert", lambda: L.Normalization(axis=None, mean=0.5, variance=2.0, invert=True), pic),
        row("Rescaling", lambda: L.Rescaling(1 / 255, 0.5), pic),
        row("Rescaling each", lambda: L.Rescaling([0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 3.0, 4.0]), pic),
        *(
            row(name, getattr(L, name), pic, pic, pic)
            for name in ("Add", "Average", "Maximum", "Minimum", "Multiply", "Concatenate")
        ),
        *(
            row(f"{name} broadcast", getattr(L, name), pic, (1, 1, 4))
            for name in ("Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract")
        ),
        *(row(f"{name} ranks", getattr(L, name), (4, 3), (3,)) for name in ("Add", "Average", "Maximum", "Multiply")),
        row("Subtract", lambda: L.Subtract(), pic, pic),
        row("Concatenate 1", lambda: L.Concatenate(axis=1), pic, pic),
        row("Concatenate 2", lambda: L.Concatenate(axis=2), pic, (5, 3, 4)),
        *(row(f"Dot {axes}", partial(L.Dot, axes=axes), (4, 5), (4, 5)) for axes in (1, 2, (1, 1))),
        row("Dot normalize", lambda: L.Dot(axes=1, normalize=True), (5,), (5,)),
        row("Dot mixed", lambda: L.Dot(axes=(2, 1)), (4, 5), (5, 3)),
        row("Dot ranks", lambda: L.Dot(axes=(2, 1)), (4, 5), (5,)),
        row("Flatten", lambda: L.Flatten(), pic),
        row("Flatten first", lambda: L.Flatten(data_format="channels_first"), pic),
        row("Flatten 1", lambda: L.Flatten(), (3,)),
        row("Permute", lambda: L.Permute((3, 1, 2)), pic),
        row("RepeatVector", lambda: L.RepeatVector(3), (4,)),
        row("Reshape", lambda: L.Reshape((10, -1)), pic),
        row("Dropout", lambda: L.Dropout(0.5), pic),
        row("AlphaDropout", lambda: L.AlphaDropout(0.5), pic),
        row("GaussianDropout", lambda: L.GaussianDropout(0.5), pic),
        row("GaussianNoise", lambda: L.GaussianNoise(0.5), pic),
        row("Identity", lambda: L.Identity(), pic),
        row("ActivityRegularization", lambda: L.ActivityRegularization(0.1), pic),
        *(
            row(f"SpatialDropout{n}D", partial(getattr(L, f"SpatialDropout{n}D"), 0.5), (5, 6, 4, 2)[: n + 1])
            for n in (1, 2, 3)
        ),
        row("RandomBrightness", lambda: L.RandomBrightness(0.5), pic),
        row("RandomContrast", lambda: L.RandomContrast(0.5), pic),
        row("RandomFlip", lambda: L.RandomFlip(), pic),
        row("RandomRotation", lambda: L.RandomRotation(0.5), pic),
        row("RandomTranslation", lambda: L.RandomTranslation(0.5, 0.5), pic),
        row("RandomZoom", lambda: L.RandomZoom(0.5), pic),
        row("TimeDistributed Dense", lambda: L.TimeDistributed(L.Dense(4)), seq),
        row("TimeDistributed Conv2D", lambda: L.TimeDistributed(L.Conv2D(4, 3)), (3, 6, 7, 2)),
        row("TimeDistributed LSTM", lambda: L.TimeDistributed(L.LSTM(4)), (3, 6, 2)),
        row("TimeDistributed BatchNormalization", lambda: L.TimeDistributed(L.BatchNormalization()), (3, 6, 2)),
        row(
            "TimeDistributed model",
            lambda: L.TimeDistributed(
                keras.Sequential([keras.Input((6, 7, 2)), L.Conv2D(3, 3), L.Flatten(), L.Dense(2)])
            ),
            (3, 6, 7, 2),
        ),
        row("SpectralNormalization", lambda: L.SpectralNormalization(L.Dense(4)), seq),
        row("EinsumDense", lambda: L.EinsumDense("abc,cd->abd", (None, 7), bias_axes="d"), seq),
        row("EinsumDense no bias", lambda: L.EinsumDense("abc,cde->abde", (None, 7, 2)), seq),
        row("EinsumDense ellipsis", lambda: L.EinsumDense("...x,xy->...y", 7, bias_axes="y"), seq),
        row("EinsumDense bias", lambda: L.EinsumDense("abc,cd->adb", (7, 6), bias_axes="d"), seq),
        row("EinsumDense activation", lambda: L.EinsumDense("abc,cd->abd", (None, 7), activation="relu"), seq),
        *(
            row(f"Attention {kw}", partial(L.Attention, **kw), seq, (4, 5), (4, 5))
            for kw in ({}, {"use_scale": True}, {"score_mode": "concat"}, {"score_mode": "concat", "use_scale": True})
        ),
        row("Attention two", lambda: L.Attention(), seq, (4, 5)),
        row("AdditiveAttention", lambda: L.AdditiveAttention(), seq, (4, 5)),
        row("AdditiveAttention bare", lambda: L.AdditiveAttention(use_scale=False), seq, (4, 5), (4, 5)),
        row("MaxNumPooling", lambda: L.MaxPooling2D((2, 2), padding="same"), (7, 7, 2)),
    ]


def recurrent() -> list[Row]:
    x, rows = (6, 5), list[Row]()
    for name in ("LSTM", "GRU", "SimpleRNN"):
        make = getattr(L, name)
        settings: tuple[dict[str, Any], ...] = (
            {},
            {"return_sequences": True},
            {"return_state": True},
            {"return_sequences": True, "return_state": True},
            {"go_backwards": True, "return_sequences": True},
            {"use_bias": False},
            {"activation": "relu"},
            {"unroll": True},
            {"activation": "linear"},
            {"activation": "softsign"},
            {"activation": "elu"},
        )
        if name != "SimpleRNN":
            settings += ({"recurrent_activation": "hard_sigmoid"}, {"recurrent_activation": "tanh"})
        if name == "GRU":
            settings += ({"reset_after": False}, {"reset_after": False, "use_bias": False, "return_sequences": True})
        rows += [row(f"{name} {s}", partial(make, 4, **s), x) for s in settings]
        rows.append(row(f"RNN of {name}Cell", partial(of_cell, f"{name}Cell"), x))
        for mode, steps in product(("concat", "sum", "mul", "ave", None), (True, False)):
            both = partial(bidirectional, make, None, merge_mode=mode, return_sequences=steps)
            rows.append(row(f"Bidirectional {name} {mode} {steps}", both, x))
        rows.append(row(f"Bidirectional {name} state", partial(bidirectional, make, None, return_state=True), x))
        rows.append(row(f"Bidirectional {name} apart", partial(bidirectional, make, 3), x))
    return rows


def of_cell(kind: str) -> Any:
    return L.RNN(getattr(L, kind)(4), return_sequences=True)


def bidirectional(make: Any, back: int | None, merge_mode: str | None = "concat", **settings: Any) -> Any:
    """``back`` is the number of units of the backward layer, if it differs."""
    other = None if back is None else make(back, go_backwards=True, **settings)
    return L.Bidirectional(make(4, **settings), merge_mode=merge_mode, backward_layer=other)


LAYERS = [*windows(), *plain(), *recurrent()]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda row: row[0])
def test_layers_match_keras(layer: Row, tmp_path: Path) -> None:
    """The layers alternate between the two file formats."""
    keras.utils.clear_session(free_memory=False)
    name, make, shapes = layer
    suffix = ".h5" if zlib.crc32(name.encode()) % 2 and name != "RandomBrightness" else ".keras"
    model = with_random_weights(layered(make, shapes))
    path = tmp_path / f"net{suffix}"
    model.save(path)
    inputs = [some(1, *shape) for shape in shapes]
    expected = arrays(model(inputs if len(inputs) > 1 else inputs[0], training=False))
    # TensorFlow tabulates the weights of cubic interpolation.
    agree(path, inputs, expected, 2e-3 if "bicubic" in name else 1e-5)


MODELS = [
    nested,
    shared,
    twice_nested,
    encoder_decoder,
    gru_state,
    transformer,
    cross_attention,
    causal_attention,
    functions,
    dictionary,
    two_alike,
    sequential,
]


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("make", MODELS)
def test_models_match_keras(make: Callable[[], Any], suffix: str, tmp_path: Path) -> None:
    keras.utils.clear_session(free_memory=False)
    model = with_random_weights(make())
    path = tmp_path / f"net{suffix}"
    model.save(path)
    inputs = [some(1, *x.shape[1:]) for x in model.inputs]
    given = tf.nest.pack_sequence_as(model._inputs_struct, inputs) if hasattr(model, "_inputs_struct") else inputs
    agree(path, inputs, arrays(model(given, training=False)))


APPLICATIONS = {
    "MobileNet": 64,
    "MobileNetV2": 64,
    "MobileNetV3Small": 64,
    "EfficientNetB0": 64,
    "EfficientNetV2B0": 64,
    "ResNet50": 64,
    "ResNet50V2": 64,
    "DenseNet121": 64,
    "InceptionV3": 75,
    "InceptionResNetV2": 75,
    "NASNetMobile": 64,
    "Xception": 71,
    "ConvNeXtTiny": 64,
}


@pytest.mark.parametrize("name", APPLICATIONS)
def test_applications_match_keras(name: str, tmp_path: Path) -> None:
    side = APPLICATIONS[name]
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(side, side, 3), include_top=False, pooling="avg"
    )
    path = tmp_path / "net.keras"
    model.save(path)
    x = some(1, side, side, 3) * 100
    agree(path, [x], arrays(model(x, training=False)), 1e-4)
