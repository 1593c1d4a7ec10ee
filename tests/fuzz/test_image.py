"""The image readers of executables: correct on valid files, no undefined behaviour on invalid ones."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tenon.runtime.bundle.link import READERS
from tenon.runtime.engine.image import read_image
from tenon.runtime.sdk.libtenon import RUNTIME

HERE = Path(__file__).parent
RNG = np.random.default_rng(7)
GREY = RNG.integers(0, 256, (6, 5), np.uint8)
RGB = RNG.integers(0, 256, (6, 5, 3), np.uint8)


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The readers compiled with the address and undefined-behaviour sanitizers."""
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no gcc or clang here, and zig has no address sanitizer")
    folder = tmp_path_factory.mktemp("harness")
    flags = ["-std=c99", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{RUNTIME}"]
    sources = [str(RUNTIME / name) for name in READERS]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    unsafe = "-DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION"
    made = [*flags, *checks, unsafe, str(HERE / "image_harness.c"), *sources, "-o", str(folder / "harness"), "-lm"]
    result = subprocess.run([compiler, *made], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return folder / "harness"


def _plain(pixels: np.ndarray, magic: str) -> bytes:
    numbers = "\n".join(" ".join(map(str, row.ravel())) for row in pixels)
    return f"{magic}\n# a comment\n5 6\n# 1 2 3\n255\n{numbers}\n".encode()


def _bitmap(pixel: int) -> bytes:
    """A bitmap of one 8-bit pixel with a palette of two colours."""
    head = struct.pack("<2sIHHI", b"BM", 66, 0, 0, 62)
    return head + struct.pack("<IiiHHIIiiII", 40, 1, 1, 1, 8, 0, 4, 0, 0, 2, 2) + bytes(8) + bytes([pixel, 0, 0, 0])


def _files(folder: Path) -> dict[str, np.ndarray]:
    """Files of every kind, with their pixels."""
    Image.fromarray(RGB).save(folder / "rgb24.bmp")
    Image.fromarray(RGB).convert("RGBA").save(folder / "rgb32.bmp")
    Image.fromarray(GREY).save(folder / "grey8.bmp")
    Image.fromarray(RGB).quantize(7).save(folder / "palette8.bmp")
    Image.fromarray(RGB).save(folder / "rgb.ppm")
    Image.fromarray(GREY).save(folder / "grey.pgm")
    (folder / "plain.ppm").write_bytes(_plain(RGB, "P3"))
    (folder / "plain.pgm").write_bytes(_plain(GREY, "P2"))
    (folder / "deep.pgm").write_bytes(b"P5 5 6 65535\n" + (GREY.astype(">u2") * 257).tobytes())
    (folder / "narrow.pgm").write_bytes(b"P5 5 6 3\n" + (GREY // 64).tobytes())
    top_down = bytearray((folder / "rgb24.bmp").read_bytes())
    top_down[22:26] = (-6).to_bytes(4, "little", signed=True)
    (folder / "top_down.bmp").write_bytes(top_down)
    grey = np.repeat(GREY[:, :, None], 3, 2)
    palette = np.asarray(Image.fromarray(RGB).quantize(7).convert("RGB"))
    return {
        "rgb24.bmp": RGB,
        "rgb32.bmp": RGB,
        "grey8.bmp": grey,
        "palette8.bmp": palette,
        "rgb.ppm": RGB,
        "grey.pgm": GREY,
        "plain.ppm": RGB,
        "plain.pgm": GREY,
        "deep.pgm": GREY,
        "narrow.pgm": GREY // 64 * 85,
        "top_down.bmp": RGB[::-1],
    }


def _chunk(type: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + type + content + struct.pack(">I", zlib.crc32(type + content))


def _png(depth: int, colour: int, interlaced: bool, rng: np.random.Generator, wide: int = 13, high: int = 11) -> bytes:
    """A PNG file of random bytes under random filters; colours of a palette are in it."""
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    adam7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    raw = b""
    for x, y, across, down in adam7 if interlaced else [(0, 0, 1, 1)]:
        columns, rows = -(-max(0, wide - x) // across), -(-max(0, high - y) // down)
        size = (columns * samples * depth + 7) // 8
        for _ in range(rows if columns else 0):
            raw += bytes([rng.integers(0, 5)]) + rng.integers(0, 256, size, np.uint8).tobytes()
    head = struct.pack(">IIBBBBB", wide, high, depth, colour, 0, 0, interlaced)
    palette = _chunk(b"PLTE", rng.integers(0, 256, 3 << depth, np.uint8).tobytes()) if colour == 3 else b""
    data = zlib.compress(raw, int(rng.integers(0, 10)))
    parts = [_chunk(b"IDAT", data[at : at + 100]) for at in range(0, len(data), 100)]
    return b"".join([b"\x89PNG\r\n\x1a\n", _chunk(b"IHDR", head), palette, *parts, _chunk(b"IEND", b"")])


def _equals_pillow(harness: Path, path: Path, label: object) -> None:
    result = subprocess.run([harness, "dump", path], capture_output=True, check=False)
    assert result.returncode == 0, (label, result)
    head, _, body = result.stdout.partition(b"\n")
    width, height, channels = map(int, head.split())
    expected = read_image(path, (height, width, channels)).pixels
    np.testing.assert_array_equal(np.frombuffer(body, np.uint8).reshape(expected.shape), expected, str(label))


DEPTHS = [
    (0, 1),
    (0, 2),
    (0, 4),
    (0, 8),
    (0, 16),
    (2, 8),
    (2, 16),
    (3, 1),
    (3, 2),
    (3, 4),
    (3, 8),
    (4, 8),
    (4, 16),
    (6, 8),
    (6, 16),
]


@pytest.mark.parametrize("interlaced", [False, True])
def test_every_kind_of_png(harness: Path, interlaced: bool, tmp_path: Path) -> None:
    rng, path = np.random.default_rng(3), tmp_path / "x.png"
    for colour, depth in DEPTHS:
        for wide, high in ((13, 11), (1, 1), (3, 5)):
            path.write_bytes(_png(depth, colour, interlaced, rng, wide, high))
            _equals_pillow(harness, path, (colour, depth, wide, high))


def _photo(high: int, wide: int) -> Image.Image:
    y, x = np.mgrid[:high, :wide]
    waves = np.stack([128 + 100 * np.sin(x / 7 + i) * np.cos(y / 5 - i) for i in range(3)], -1)
    noise = np.random.default_rng(high).normal(0, 15, waves.shape)
    return Image.fromarray((waves + noise).clip(0, 255).astype(np.uint8))


JPEG_KINDS: list[dict[str, Any]] = [
    {},
    {"progressive": True},
    {"quality": 20},
    {"quality": 98, "optimize": True},
    {"restart_marker_blocks": 3},
]


@pytest.mark.parametrize("subsampling", [0, 1, 2, "grey"])
def test_every_kind_of_jpeg(harness: Path, subsampling: int | str, tmp_path: Path) -> None:
    """The decoder's arithmetic is libjpeg's, bit for bit: sizes around those of blocks, and narrow ones."""
    path = tmp_path / "x.jpg"
    for high, wide in ((1, 1), (2, 3), (8, 8), (7, 9), (17, 33), (40, 31), (33, 2), (5, 4)):
        for options in JPEG_KINDS:
            photo = _photo(high, wide)
            if subsampling == "grey":
                photo.convert("L").save(path, "JPEG", **options)
            else:
                photo.save(path, "JPEG", subsampling=subsampling, **options)
            _equals_pillow(harness, path, (high, wide, options))


@pytest.mark.parametrize(("subsampling", "old", "new", "shape"), [(1, 0x21, 0x12, (48, 24)), (2, 0x22, 0x41, (16, 64))])
def test_rare_subsampling(
    harness: Path, subsampling: int, old: int, new: int, shape: tuple[int, int], tmp_path: Path
) -> None:
    """4:4:0 and 4:1:1, which Pillow does not write: another arrangement of the same blocks."""
    path = tmp_path / "x.jpg"
    _photo(*{1: (24, 48), 2: (32, 32)}[subsampling]).save(path, subsampling=subsampling)
    data = bytearray(path.read_bytes())
    frame = data.index(b"\xff\xc0")
    assert data[frame + 11] == old
    data[frame + 11] = new
    data[frame + 5 : frame + 9] = struct.pack(">HH", *shape)
    path.write_bytes(data)
    _equals_pillow(harness, path, new)


@pytest.mark.parametrize("name", ["x.jpg", "x.png"])
def test_orientation(harness: Path, name: str, tmp_path: Path) -> None:
    for orientation in range(9):
        exif = Image.Exif()
        exif[0x112] = orientation
        _photo(10, 14).save(tmp_path / name, exif=exif)
        _equals_pillow(harness, tmp_path / name, orientation)


def test_valid_files(harness: Path, tmp_path: Path) -> None:
    for name, pixels in _files(tmp_path).items():
        result = subprocess.run([harness, "dump", tmp_path / name], capture_output=True, check=False)
        assert result.returncode == 0, (name, result)
        head, _, body = result.stdout.partition(b"\n")
        assert head.split() == [b"5", b"6", b"1" if pixels.ndim == 2 else b"3"], name
        np.testing.assert_array_equal(np.frombuffer(body, np.uint8).reshape(pixels.shape), pixels, name)


def _compressed(folder: Path) -> list[str]:
    """PNG and JPEG files."""
    Image.fromarray(RGB).save(folder / "rgb.jpg")
    Image.fromarray(RGB.repeat(4, 0).repeat(4, 1)).save(folder / "420.jpg", restart_marker_blocks=1)
    Image.fromarray(RGB).save(folder / "progressive.jpg", progressive=True)
    Image.fromarray(RGB).save(folder / "rgb.png")
    (folder / "interlaced.png").write_bytes(_png(8, 3, True, RNG))
    return ["rgb.jpg", "420.jpg", "progressive.jpg", "rgb.png", "interlaced.png"]


def test_mutated_files(harness: Path, tmp_path: Path) -> None:
    """PNG files without their checksums, which would hide most mutations."""
    for name in [*_files(tmp_path), *_compressed(tmp_path)]:
        result = subprocess.run([harness, "fuzz", tmp_path / name], capture_output=True, check=False)
        assert result.returncode == 0, (name, result.stderr.decode()[:2000])


def _saved(format: str, mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.fromarray(RGB).convert(mode).save(file, format)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"P5 5 6 255\n" + bytes(29), "truncated"),
        (b"P2 2 1 255\n1 256", "above its stated maximum"),
        (b"P5 0 6 255\n", "impossible size"),
        (b"P5 100000 1 255\n" + bytes(100_000), "impossible size"),
        (b"P5 999999 999999 255\n", "truncated"),
        (b"P5 9999999999 1 255\n", "damaged or truncated"),
        (b"P5 1 1 70000\n\0", "out of range"),
        (_bitmap(2), "a colour outside of its palette"),
        (b"BM" + bytes(60), "older than Windows 3"),
        (_saved("JPEG")[:-20], "truncated"),
        (_saved("JPEG", "CMYK"), "CMYK are not supported: convert it to RGB"),
        (_saved("JPEG").replace(b"\xff\xc0", b"\xff\xc9"), "arithmetic-coded JPEG images are not supported"),
        (_saved("PNG")[:-30], "truncated"),
        (_saved("PNG").replace(b"IDAT", b"IDAS"), "the PNG image is damaged"),
        (_png(8, 2, False, np.random.default_rng(0), 60000, 1)[:-30], "truncated"),
    ],
)
def test_error_messages(harness: Path, tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "image").write_bytes(content)
    result = subprocess.run([harness, "dump", tmp_path / "image"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert words in result.stdout
