"""Image preprocessing: fitting, scaling, its description in bundles, and compiled in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tenon
from evaluate import evaluate
from real import shared
from tenon.errors import InputError
from tenon.formats import importers
from tenon.network import ops
from tenon.network.graph.graph import Array, Graph
from tenon.network.graph.preprocessing import Heads, Preprocessing, planes
from tenon.network.graph.types import F32, U8, DType, Quant, TensorType
from tenon.network.passes.preprocessing import compile_in, described
from tenon.runtime.bundle import read_manifest
from tenon.runtime.engine.image import read_image

SIZE = (24, 40)


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """40 x 24 different pixels, smooth enough for resizing."""
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    pixels = np.stack([4 * x + 20, 8 * y + 10, 3 * (x + y)], -1).astype(np.uint8)
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).save(path)
    return path


def pixels(path: Path) -> Array:
    with Image.open(path) as file:
        return np.asarray(file.convert("RGB"))


def identity(*dims: int, dtype: DType = F32, quant: Quant | None = None) -> Graph:
    graph = Graph("net")
    x = graph.add_input("x", TensorType(dtype, dims, quant=quant))
    graph.outputs = list(graph.add(ops.registry()["Identity"](), [x], ["y"]).outputs)
    return graph


def test_a_network_of_integers_stays_one_behind_compiled_preprocessing() -> None:
    """The first layer finds the scale of its input."""
    path = shared("models/tflite_int8/mlperf_tiny/vww_96_int8.tflite")
    plain, image = (
        tenon.compile(path, target="cortex-m4", arithmetic="tflm", no_tuning=True, compile_preprocess=size)
        for size in (None, (96, 96))
    )
    layers = [[c.kernel.name for c in b.program.calls if c.kernel.name.startswith("integer")] for b in (plain, image)]
    assert layers[0] == layers[1] != []


def test_no_preprocessing(photo: Path) -> None:
    seen = read_image(photo, (1, 3, *SIZE))
    np.testing.assert_array_equal(seen.pixels[0].transpose(1, 2, 0), pixels(photo))
    assert seen.pixels.dtype == np.float32
    assert seen.view == pytest.approx((0, 0, 40, 24))


def test_channels_mean_and_scale(photo: Path) -> None:
    preprocessing = Preprocessing(mean=(1, 2, 3), scale=(1, 0.5, 2), channels="bgr")
    seen = read_image(photo, (1, *SIZE, 3), preprocessing).pixels[0]
    expected = (pixels(photo)[:, :, ::-1].astype(np.float32) - [1, 2, 3]) * [1, 0.5, 2]
    np.testing.assert_allclose(seen, expected)


def test_centre_crop(photo: Path) -> None:
    seen = read_image(photo, (1, 3, 24, 24), Preprocessing(fit="crop"))
    assert seen.view == pytest.approx((8, 0, 32, 24))
    np.testing.assert_array_equal(seen.pixels[0].transpose(1, 2, 0), pixels(photo)[:, 8:32])


def test_resize_before_crop(photo: Path) -> None:
    """The shorter side is resized to 12, and the middle 6 x 6 cropped: 12 x 12 pixels of the image."""
    assert read_image(photo, (1, 3, 6, 6), Preprocessing(fit="crop", resize=12)).view == pytest.approx((14, 6, 26, 18))


def test_letterbox(photo: Path) -> None:
    seen = read_image(photo, (1, 3, 40, 40), Preprocessing(fit="letterbox", border=7))
    image = seen.pixels[0].transpose(1, 2, 0)
    assert (image[:8] == 7).all()
    assert (image[32:] == 7).all()
    np.testing.assert_array_equal(image[8:32], pixels(photo))
    assert seen.view == pytest.approx((0, -8, 40, 32))
    whole = seen.on_image(np.array([[0, 0, 1, 1], [0.25, 0.5, 0.5, 0.75]]))
    np.testing.assert_allclose(whole, [[0, 0, 40, 24], [10, 12, 20, 22]])


def test_integers_are_rounded_and_clipped(photo: Path) -> None:
    seen = read_image(photo, (1, *SIZE, 3), Preprocessing(mean=(100,), scale=(0.5,)), np.int8).pixels
    expected = np.round((pixels(photo) - 100.0) * 0.5).clip(-128, 127)
    np.testing.assert_array_equal(seen[0], expected)
    assert seen.dtype == np.int8


@pytest.mark.parametrize("shape", [(1, 3, 4), (2, 3, 8, 8), (1, 5, 8, 8), (1, 3), (8, 8, 4)])
def test_shapes_that_are_not_images(shape: tuple[int, ...], photo: Path) -> None:
    assert planes(shape) is None
    with pytest.raises(InputError, match="cannot hold an image"):
        read_image(photo, shape)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": "grb"}, "channels must be one of rgb, bgr"),
        ({"fit": "cover"}, "fit must be one of stretch, crop, letterbox"),
        ({"scale": 0}, "must not be 0"),
        ({"mean": ()}, "no numbers"),
        ({"mean": "much"}, "could not convert"),
        ({"size": 3}, "has no 'size'; it has mean"),
        ({"within": (1, 1)}, "has no 'within'"),
        ({"border": 300}, "border must be 255 or less"),
    ],
)
def test_bad_descriptions(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Preprocessing().changed(changes)


def test_wrong_number_of_channels(photo: Path) -> None:
    with pytest.raises(InputError, match="2 values for 3"):
        read_image(photo, (1, 3, 8, 8), Preprocessing(mean=(1, 2)))
    with pytest.raises(InputError, match="2 numbers for 3"):
        compile_in(identity(1, 3, 8, 8), {"mean": (1, 2)}, (8, 8))


def test_inputs_that_take_images() -> None:
    graph = identity(1, 3, 8, 8)
    graph.add_input("more", TensorType(F32, (1, 7)))
    assert described(graph, {"mean": 3}) == {"x": Preprocessing(mean=(3,))}
    graph.preprocessing["x"] = Preprocessing(mean=(5,), channels="bgr")
    assert described(graph, {"mean": 3}) == {"x": Preprocessing(mean=(3,), channels="bgr")}
    with pytest.raises(InputError, match="no input takes one"):
        described(identity(1, 7), {"mean": 3})
    assert described(identity(1, 7), {}) == {}
    graph.states["x"] = 0
    assert described(graph, {}) == {}


def test_default_preprocessing_of_quantised_inputs() -> None:
    quant = Quant((1 / 128,), (128,))
    assert described(identity(1, 8, 8, 3, dtype=U8, quant=quant), {}) == {"x": Preprocessing()}
    assert described(identity(1, 8, 8, 3, dtype=DType.I8), {})["x"].mean == (128,)
    requested = described(identity(1, 8, 8, 3, dtype=U8, quant=quant), {"mean": (128, 127), "scale": 1 / 128})
    assert requested["x"].scale == pytest.approx((1, 1))
    assert requested["x"].mean == pytest.approx((0, -1))  # real (v - 127) / 128 is stored as v - 127 + 128


FITS = [
    {"mean": (10, 20, 30), "scale": 1 / 64},
    {"channels": "bgr", "fit": "crop"},
    {"fit": "crop", "resize": 16, "sampling": "bilinear"},
    {"fit": "letterbox", "border": 99, "scale": (1, 2, 3)},
    {"sampling": "nearest"},
    {"sampling": "bicubic", "fit": "crop"},
]


@pytest.mark.parametrize("changes", FITS, ids=str)
@pytest.mark.parametrize("dims", [(1, 3, 16, 16), (1, 16, 16, 3), (1, 3, 48, 80)], ids=str)
def test_compiled_in_preprocessing_matches_read_image(
    changes: dict[str, Any], dims: tuple[int, ...], photo: Path
) -> None:
    """The operators match Pillow, except for its rounding to integers after each direction."""
    graph = identity(*dims)
    new = compile_in(graph, changes, SIZE)
    (given,) = new.inputs
    assert (given.type.dtype, given.type.dims) == (U8, (*SIZE, 3))
    assert new.outputs[0].type.dims == dims
    expected = read_image(photo, dims, described(graph, changes)["x"]).pixels
    seen = read_image(photo, given.type.dims, new.preprocessing["x"], np.uint8)
    np.testing.assert_array_equal(seen.pixels, pixels(photo))
    assert seen.view == pytest.approx(read_image(photo, dims, described(graph, changes)["x"]).view)
    actual = evaluate(new, {"x": seen.pixels})["y"]
    level = max(np.atleast_1d(changes.get("scale", 1)))
    np.testing.assert_allclose(actual, expected, atol=(2 if changes.get("sampling") == "bilinear" else 1.01) * level)


def test_compiled_into_integers(photo: Path) -> None:
    new = compile_in(identity(1, *SIZE, 3, dtype=DType.I8), {}, SIZE)
    np.testing.assert_array_equal(evaluate(new, {"x": pixels(photo)})["y"][0], pixels(photo).astype(int) - 128)


def test_compile_in_needs_exactly_one_image_input() -> None:
    graph = identity(1, 3, 8, 8)
    graph.add_input("other", TensorType(F32, (1, 3, 8, 8)))
    with pytest.raises(InputError, match="2 inputs could take one"):
        compile_in(graph, {}, SIZE)


def test_preprocessing_is_recorded_in_the_bundle(photo: Path, tmp_path: Path) -> None:
    bundle = tenon.compile(identity(1, 3, 8, 8), preprocess={"mean": 3, "fit": "crop"}, target="null")
    manifest = read_manifest(bundle.save(tmp_path / "out"))
    assert manifest.preprocessing == {"x": Preprocessing(mean=(3,), fit="crop")}
    assert manifest.heads is None
    assert json.loads((tmp_path / "out/manifest.json").read_text())["preprocessing"]["x"]["fit"] == "crop"


YOLO = b"""[net]
height=8
width=8
channels=3
[convolutional]
filters=18
[yolo]
mask=0,1,2
anchors=1,1,2,2,3,3
classes=1
num=3
"""


def test_preprocessing_of_darknet_models() -> None:
    graph = importers.load(YOLO)
    assert graph.preprocessing == {"data": Preprocessing(scale=(1 / 255,), border=127, sampling="bilinear")}
    assert graph.heads == Heads("boxes", ("boxes", "scores"), pixels=False)
    boxed = importers.load(YOLO.replace(b"channels=3", b"channels=3\nletter_box=1"))
    assert boxed.preprocessing["data"].fit == "letterbox"
    assert importers.load(YOLO[: YOLO.index(b"[yolo]")]).preprocessing["data"].fit == "crop"


def test_preprocessing_of_caffe_models() -> None:
    text = """layer { name: "d" type: "Data" top: "data" data_param { batch_size: 1 }
      transform_param { scale: 0.5 mean_value: 1 mean_value: 2 mean_value: 3 crop_size: 8 } }
      layer { name: "r" type: "ReLU" bottom: "data" top: "y" }"""
    assert importers.load(text.encode()).preprocessing == {"data": Preprocessing((1, 2, 3), (0.5,), "bgr", "crop")}
