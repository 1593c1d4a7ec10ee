"""Builds examples/stm32 with networks of several types for an emulated board, and reads its serial port."""

from __future__ import annotations

import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tenon
from installed import succeeds
from installed import tenon as tenon_command
from integer_models import model as integer_model
from integer_models import records
from programs import needed
from real import DIGITS, ROOT, held_out_digits
from tenon.options import Options

EXAMPLE = ROOT / "examples" / "stm32"
PIXELS = (ROOT / "examples/digits/seven.pgm").read_bytes()[-64:]


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's network in int8."""
    path = tmp_path_factory.mktemp("quantised") / "digits.tflite"
    images, _ = held_out_digits()
    tenon.quantize(DIGITS / "digits.onnx", images[:64], target="stm32f4", separate_activations=True).save(path)
    return path


def packed(model: Path, folder: Path, **options: Any) -> Path:
    """The unpacked package of a network for the board."""
    bundle = tenon.compile(model, Options(target="stm32f4", no_tuning=True, **options))
    bundle.save(folder, (*bundle.parts, "tar"))
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return folder


def serial_port(network: Path, *variables: str) -> str:
    """The text that the board prints."""
    for program in ("arm-none-eabi-gcc", "qemu-system-arm", "make"):
        needed(program)
    words = ["make", "-s", "-C", str(EXAMPLE), f"NETWORK={network}", "SECONDS=1", *variables, "run"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_int8_without_floats(quantised: Path, tmp_path: Path) -> None:
    network = packed(quantised, tmp_path, data_types={"": "quantized"}, name="digits")
    assert "digit 7, probability 100 %" in serial_port(network, "PROGRAM=int8.c")
    words = [needed("arm-none-eabi-objdump"), "-d", "--no-show-raw-insn", str(network / "firmware/digits.elf")]
    code = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    main = re.search(r"<main>:\n(.*?)\n\n", code, re.DOTALL)
    assert main is not None
    assert not re.search(r"\tv(add|mul|div|cvt|cmp)|__aeabi_[fd]", main[1])


@pytest.mark.parametrize("kind", ["float", "int8"])
def test_any_network(kind: str, quantised: Path, tmp_path: Path) -> None:
    """On the bytes of a file, with the answer of the engine here."""
    model = DIGITS / "digits.onnx" if kind == "float" else quantised
    network = packed(model, tmp_path, name="digits")
    image = np.frombuffer(PIXELS, np.uint8).astype(np.float32).reshape(1, 1, 8, 8)
    (tmp_path / "image.bin").write_bytes(image.tobytes())
    printed = serial_port(network, "PROGRAM=any.c", f"INPUT={tmp_path / 'image.bin'}")
    with tenon.open(tenon.compile(model, no_tuning=True)) as engine:
        (expected,) = engine.run(image).values()
    (told,) = re.findall(r"probabilities: largest at (\d+), ([\d.]+)", printed)
    assert int(told[0]) == int(expected.argmax()) == 7
    assert float(told[1]) == pytest.approx(float(expected.max()), abs=0.001 if kind == "float" else 0.01)


@pytest.mark.parametrize("name", ["kws", "ad", "speech"])
def test_networks_of_other_names_and_types(name: str, tmp_path: Path) -> None:
    """The largest element of what TFLite Micro gives."""
    network = packed(integer_model(name), tmp_path, name=name)
    given, answers = records(name, "tflm")
    (tmp_path / "input.bin").write_bytes(bytes(given[-1]))
    printed = serial_port(network, f"INPUT={tmp_path / 'input.bin'}")
    (told,) = re.findall(r": largest at (\d+), (-?\d+)", printed)
    (output,) = tenon.load(integer_model(name)).outputs
    expected = answers[-1].view(output.type.dtype.numpy)
    assert (int(told[0]), int(told[1])) == (int(expected.argmax()), int(expected.max()))


def test_the_option_for_integers(quantised: Path, tmp_path: Path) -> None:
    words = ("compile", quantised, "--target", "stm32f4", "--no-tuning", "-o", tmp_path / "out")
    succeeds(*words, "--io", "integer")
    header = (tmp_path / "out/digits.h").read_text()
    assert "#define DIGITS_image 0 /* i8[1,1,8,8] */" in header
    assert re.search(r"#define DIGITS_probabilities_SCALE 0\.0039", header)
    succeeds(*words, "--io", "model")
    assert "#define DIGITS_image 0 /* f32[1,1,8,8] */" in (tmp_path / "out/digits.h").read_text()
    wrong = tenon_command(*words, "--io", "integers")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "tenon: --io integers: choose one of model, integer; did you mean integer?\n",
    )
