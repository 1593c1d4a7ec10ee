"""The preprocessing of executables (in C) compared with Python's, bit for bit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tenon.errors import InputError
from tenon.machine.targets import find as find_target
from tenon.machine.toolchain.compiler import find
from tenon.network.graph.dtype import DType
from tenon.network.graph.graph import Array
from tenon.network.graph.preprocessing import Fit, Preprocessing, Sampling
from tenon.options import Options
from tenon.runtime.bundle.link import HEADERS, READERS, runtime, runtime_objects
from tenon.runtime.bundle.manifest import BundleTensor
from tenon.runtime.bundle.preprocessing import preprocessing_source
from tenon.runtime.engine.image import read_image

CALL = """
#include "image_file.h"
#include "preprocess.h"
#include <stdio.h>
#include <stdlib.h>
%s
const char *convert(const char *path, int number, const char *type, unsigned char *to);
const char *convert(const char *path, int number, const char *type, unsigned char *to) {
  static unsigned char data[1 << 22];
  FILE *file = fopen(path, "rb");
  if (file == NULL) return "no file";
  const size_t size = fread(data, 1, sizeof data, file);
  fclose(file);
  Image image = {0, 0, 0, NULL};
  const char *problem = tenon_is_image(data, size) ? tenon_read_image(data, size, &image) : "no image";
  unsigned char *fitted = NULL;
  if (problem == NULL) problem = tenon_fit_image(&image, &tenon_preprocessing[number], &fitted);
  if (problem == NULL && !tenon_put_pixels(fitted, &tenon_preprocessing[number], type, to)) problem = "no such type";
  free(fitted);
  free(image.pixels);
  return problem;
}
"""

Case = tuple[Preprocessing, str, tuple[int, ...]]
FITS: tuple[Fit, ...] = ("stretch", "crop", "letterbox")
SAMPLINGS: tuple[Sampling, ...] = ("smooth", "bilinear", "nearest", "bicubic", "lanczos")
CASES: list[Case] = [
    *[
        (Preprocessing((123.7, 116.3, 103.5), (1 / 58.4,), "bgr", fit, sampling=sampling), "f32", shape)
        for fit in FITS
        for sampling in SAMPLINGS
        for shape in ((1, 3, 24, 24), (1, 17, 31, 3))
    ],
    *[(Preprocessing(fit=fit, mean=(127.0,), scale=(1 / 128,)), "f32", (1, 1, 20, 33)) for fit in FITS],
    (Preprocessing(fit="crop", resize=40), "f32", (1, 3, 32, 32)),
    (Preprocessing(fit="crop", resize=33, sampling="bilinear", channels="bgr"), "f32", (1, 32, 32, 3)),
    (Preprocessing(fit="crop", resize=64, sampling="nearest"), "f32", (1, 1, 50, 60)),
    (Preprocessing(fit="letterbox", border=0), "u8", (1, 30, 20, 3)),
    (Preprocessing(mean=(10.0, 20.0, 30.0), scale=(1.3, 0.9, 2.0)), "u8", (19, 23, 3)),
    (Preprocessing(mean=(128.0,)), "i8", (1, 16, 16, 3)),
    (Preprocessing(mean=(103.0, 116.0, 123.0), scale=(0.017, 0.5, 1.7), channels="bgr"), "i8", (1, 3, 16, 16)),
    (Preprocessing(mean=(0.5,), scale=(1e-6, 3e-7, 250.0)), "f16", (1, 3, 12, 12)),
    (Preprocessing(mean=(104.0,), scale=(1 / 255,)), "f64", (1, 3, 12, 12)),
    (Preprocessing(within=(10, 10)), "u8", (40, 30, 3)),
    (Preprocessing(within=(10, 10)), "u8", (40, 30, 1)),
]


@pytest.fixture(scope="module")
def convert(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, int], Array]:
    """The preprocessing of a file in C, for an input of a case."""
    names = [f"x{i}" for i in range(len(CASES))]
    tensors = tuple(
        BundleTensor(name, dtype, shape, 0, 0) for name, (_, dtype, shape) in zip(names, CASES, strict=True)
    )
    by_input = {name: preprocessing for name, (preprocessing, _, _) in zip(names, CASES, strict=True)}
    text = CALL % preprocessing_source(tensors, by_input)
    target, compiler = find_target("host"), find(Options())
    files = {**{name: runtime(name) for name in HEADERS}, "call.c": text.encode()}
    objects = {
        **runtime_objects(compiler, target, (*READERS, "preprocess.c")),
        "call.o": compiler.compile(files, "call.c", target),
    }
    place = tmp_path_factory.mktemp("c") / "call.so"
    place.write_bytes(compiler.link(objects, target, ("-shared", "-lm")))
    call = ctypes.CDLL(str(place)).convert
    call.restype = ctypes.c_char_p

    def run(path: Path, number: int) -> Array:
        _, dtype, shape = CASES[number]
        actual = np.zeros(shape, DType(dtype).numpy)
        problem = call(str(path).encode(), number, dtype.encode(), ctypes.c_void_p(actual.ctypes.data))
        assert problem is None, problem
        return actual

    return run


def photo(rng: np.random.Generator, wide: int, high: int, channels: int) -> Image.Image:
    """Noise over a gradient."""
    ramp = np.linspace(0, 200, high * wide * channels).reshape(high, wide, channels)
    pixels = (ramp + rng.integers(0, 56, ramp.shape)).astype(np.uint8)
    return Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)


SIZES = [(24, 24), (33, 20), (1, 1), (2, 7), (100, 3), (3, 100), (61, 47), (240, 135), (48, 64), (640, 481), (25, 24)]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_preprocessing_matches_python(number: int, convert: Callable[[Path, int], Array], tmp_path: Path) -> None:
    preprocessing, dtype, shape = CASES[number]
    rng = np.random.default_rng(number)
    sizes = [*SIZES, *((int(w), int(h)) for w, h in rng.integers(1, 300, (12, 2)))]
    for i, (wide, high) in enumerate(sizes):
        path = tmp_path / f"{i}.pnm"
        photo(rng, wide, high, (3, 1)[i % 3 == 2]).save(path, "PPM")
        expected = read_image(path, shape, preprocessing, DType(dtype).numpy).pixels
        np.testing.assert_array_equal(convert(path, number), expected, f"{wide} x {high}")


def _netpbm(kind: int, largest: int, values: Array, high: int, wide: int) -> bytes:
    head = b"P%d\n# a comment\n%d %d\n%d\n" % (kind, wide, high, largest)
    if kind < 4:
        return head + b"\n".join(b"%d" % v for v in values.ravel()) + b"\n"
    return head + values.astype(np.uint8 if largest < 256 else ">u2").tobytes()


@pytest.mark.parametrize("largest", [1, 2, 10, 100, 255, 256, 1000, 4095, 65535])
@pytest.mark.parametrize("kind", [2, 3, 5, 6])
def test_every_kind_of_netpbm(kind: int, largest: int, convert: Callable[[Path, int], Array], tmp_path: Path) -> None:
    """Including 16-bit grey."""
    values = np.random.default_rng(kind).integers(0, largest + 1, (24, 24, 3 if kind in (3, 6) else 1))
    path = tmp_path / "x.pnm"
    path.write_bytes(_netpbm(kind, largest, values, 24, 24))
    for number in (0, 18):
        preprocessing, dtype, shape = CASES[number]
        expected = read_image(path, shape, preprocessing, DType(dtype).numpy).pixels
        np.testing.assert_array_equal(convert(path, number), expected)
    if kind == 5:
        grey = read_image(path, (1, 1, 24, 24)).pixels[0, 0]
        np.testing.assert_allclose(grey, values[:, :, 0] * 255 / largest, atol=0.51)


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_bitmaps(mode: str, convert: Callable[[Path, int], Array], tmp_path: Path) -> None:
    path = tmp_path / "x.bmp"
    photo(np.random.default_rng(0), 37, 29, 3).convert(mode).save(path)
    for number in (0, 1, 18):
        preprocessing, dtype, shape = CASES[number]
        expected = read_image(path, shape, preprocessing, DType(dtype).numpy).pixels
        np.testing.assert_array_equal(convert(path, number), expected)


def test_mean_with_wrong_number_of_channels_is_rejected_when_compiling() -> None:
    with pytest.raises(InputError, match=r"preprocessing of 'x': mean has 3 values for 1 channel"):
        preprocessing_source(
            (BundleTensor("x", "f32", (1, 1, 4, 4), 0, 64),), {"x": Preprocessing(mean=(1.0, 2.0, 3.0))}
        )
