"""ImageDecoder of uncompressed images, compared with files written by Pillow."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from PIL import Image

import tenon
from evaluate import evaluate
from tenon.errors import UnsupportedError
from tenon.network.graph.graph import Array, Graph


def random_pixels(height: int, width: int, channels: int) -> Array:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels)).astype(np.uint8)


def stored(pixels: Array, format: str) -> Array:
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, format)
    return np.frombuffer(file.getvalue(), np.uint8)


def decoder(size: int, shape: tuple[int | str, ...] | None, pixel_format: str = "RGB") -> Graph:
    node = helper.make_node("ImageDecoder", ["x"], ["y"], name="it", pixel_format=pixel_format)
    graph = helper.make_graph(
        [node],
        "made",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [size])],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return tenon.load(model.SerializeToString())


def decoded(file: Array, shape: tuple[int, ...], pixel_format: str = "RGB") -> Array:
    return evaluate(decoder(len(file), shape, pixel_format), {"x": file})["y"]


@pytest.mark.parametrize("format", ["BMP", "PPM"])
@pytest.mark.parametrize("width", [4, 5, 6, 7])
def test_colour_images(format: str, width: int) -> None:
    pixels = random_pixels(3, width, 3)
    file = stored(pixels, format)
    np.testing.assert_array_equal(decoded(file, pixels.shape), pixels)
    np.testing.assert_array_equal(decoded(file, pixels.shape, "BGR"), pixels[..., ::-1])


def test_grey_images() -> None:
    pixels = random_pixels(5, 7, 1)
    np.testing.assert_array_equal(decoded(stored(pixels, "PPM"), pixels.shape, "Grayscale"), pixels)


@pytest.mark.parametrize(("format", "at"), [("BMP", 0), ("BMP", 18), ("BMP", 28), ("PPM", 1), ("PPM", 5)])
def test_unsupported_headers_give_zeros(format: str, at: int) -> None:
    pixels = random_pixels(2, 6, 3)
    file = stored(pixels, format).copy()
    file[at] += 1
    assert not decoded(file, pixels.shape).any()


def test_compiled_decoder(tmp_path: Path) -> None:
    pixels = random_pixels(9, 11, 3)
    file = stored(pixels, "BMP")
    bundle = tenon.compile(decoder(len(file), pixels.shape), name="net")
    engine = tenon.open(bundle.save(tmp_path / "net", ("library", "weights")))
    np.testing.assert_array_equal(engine.run({"x": file})["y"], pixels)
    assert not engine.run({"x": file[::-1].copy()})["y"].any()


@pytest.mark.parametrize(
    ("size", "shape", "pixel_format", "words"),
    [
        (1058, (32, 32, 3), "RGB", r"1058 bytes are no uncompressed image of 32 x 32 .*BMP of 24 bits: 3126.*3085"),
        (3126, (32, 32, 1), "Grayscale", r"binary PNM \(P5\): 1037"),
        (3126, None, "RGB", "must declare the shape of its output"),
        (3126, ("h", 32, 3), "RGB", "must declare the shape of its output"),
        (3126, (32, 32, 1), "RGB", "must declare the shape of its output"),
        (3126, (32, 32, 3), "YUV", "'YUV' is none of RGB, BGR, Grayscale"),
    ],
)
def test_refusals(size: int, shape: tuple[int | str, ...] | None, pixel_format: str, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words) as caught:
        decoder(size, shape, pixel_format)
    assert "decode the image in the application" in str(caught.value)
