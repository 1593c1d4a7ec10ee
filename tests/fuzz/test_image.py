"""The image readers of executables: correct on valid files, no undefined behaviour on invalid ones."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tenon.bundle.link import runtime

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
    (folder / "image.h").write_bytes(runtime("image.h"))
    flags = ["-std=c99", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{folder}"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = [compiler, *flags, *checks, str(HERE / "image_harness.c"), "-o", str(folder / "harness")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
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
        "rgb24.bmp": RGB, "rgb32.bmp": RGB, "grey8.bmp": grey, "palette8.bmp": palette, "rgb.ppm": RGB,
        "grey.pgm": GREY, "plain.ppm": RGB, "plain.pgm": GREY, "deep.pgm": GREY,
        "narrow.pgm": GREY // 64 * 85, "top_down.bmp": RGB[::-1],
    }  # fmt: skip


def test_valid_files(harness: Path, tmp_path: Path) -> None:
    for name, pixels in _files(tmp_path).items():
        result = subprocess.run([harness, "dump", tmp_path / name], capture_output=True, check=False)
        assert result.returncode == 0, (name, result)
        head, _, body = result.stdout.partition(b"\n")
        assert head.split() == [b"5", b"6", b"1" if pixels.ndim == 2 else b"3"], name
        np.testing.assert_array_equal(np.frombuffer(body, np.uint8).reshape(pixels.shape), pixels, name)


def test_mutated_files(harness: Path, tmp_path: Path) -> None:
    for name in _files(tmp_path):
        result = subprocess.run([harness, "fuzz", tmp_path / name], capture_output=True, check=False)
        assert result.returncode == 0, (name, result.stderr.decode()[:2000])


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
    ],
)
def test_error_messages(harness: Path, tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "image").write_bytes(content)
    result = subprocess.run([harness, "dump", tmp_path / "image"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert words in result.stdout
