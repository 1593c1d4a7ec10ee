"""``tenon validate --device serial:PORT``: firmware of examples/stm32 on an emulated board, behind its serial port."""

from __future__ import annotations

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from installed import succeeds
from installed import tenon as tenon_command
from programs import needed
from real import DIGITS, ROOT, held_out_digits

MODEL = DIGITS / "digits.onnx"
BOARD = ("--target", "stm32f4", "--no-tuning")


@contextmanager
def served(network: Path, *variables: str) -> Iterator[str]:
    """The port of an emulated board whose firmware serves a network."""
    for program in ("arm-none-eabi-gcc", "qemu-system-arm", "make"):
        needed(program)
    with tarfile.open(next(network.glob("*.tar.gz"))) as archive:
        archive.extractall(network, filter="data")
    words = ["make", "-s", "-C", str(ROOT / "examples/stm32"), f"NETWORK={network}", "PROGRAM=validate.c", *variables]
    made = subprocess.run(words, check=False, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (firmware,) = (network / "firmware").glob("*.elf")
    command = ["qemu-system-arm", "-M", "netduinoplus2", "-display", "none", "-monitor", "none", "-serial", "pty"]
    with subprocess.Popen([*command, "-kernel", firmware], stdout=subprocess.PIPE, text=True) as board:
        assert board.stdout is not None
        try:
            yield re.findall(r"redirected to (\S+)", board.stdout.readline())[0]
        finally:
            board.kill()


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("network") / "out"
    succeeds("compile", MODEL, *BOARD, "--emit", "tar", "--emit", "serial", "-o", folder)
    return folder


@pytest.fixture(scope="module")
def port(network: Path) -> Iterator[str]:
    with served(network) as path:
        yield path


def test_a_model_is_validated_on_the_board(port: str, tmp_path: Path) -> None:
    images, _ = held_out_digits()
    np.save(tmp_path / "samples.npy", images[:4])
    words = ("validate", MODEL, *BOARD, "--device", f"serial:{port},115200", "--data", tmp_path / "samples.npy")
    told = json.loads(succeeds(*words, "--samples", "4", "--json"))
    assert told["passed"]
    assert told["samples"] == 4
    assert told["outputs"][0]["cosine"] > 0.999999
    assert "probabilities" in succeeds(*words, "--samples", "1")


def test_a_bundle_is_run_and_timed_on_the_board(port: str, network: Path) -> None:
    """Times are those of the board's clock, which the emulator has."""
    printed = succeeds("run", network, ROOT / "examples/digits/seven.pgm", "--device", f"serial:{port}", "--top", "1")
    assert re.search(r"^ +7 +0\.994", printed, re.MULTILINE)
    words = ("benchmark", network, "--device", f"serial:{port}", "--rounds", "2", "--warmup", "1", "--json")
    told = json.loads(succeeds(*words))
    assert told["networks"][0]["median"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("validate", MODEL, "--target", "stm32f7"), r"has another network \('digits', \d+ bytes of tensors\)"),
        (("validate", MODEL), "--target is missing: name the processor of the board at"),
        (("validate", MODEL, *BOARD, "--layers"), "--layers: no effect: the board at"),
        (("tune", MODEL, "--target", "stm32f4"), "it runs the network of its firmware only"),
        (("profile", MODEL, "--target", "stm32f4"), "runs the network of its firmware only"),
        (("run", MODEL, *BOARD, "--devices", "devices.yml"), "--devices: no effect"),
    ],
)
def test_what_a_board_cannot_do(words: tuple[str | Path, ...], message: str, port: str) -> None:
    done = tenon_command(*words, "--device", f"serial:{port}")
    assert done.returncode == 2, done.stderr
    assert re.search(message, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def test_integers_on_the_board(tmp_path: Path) -> None:
    """A quantised model, whose answers are the same bits here and there."""
    images, _ = held_out_digits()
    np.save(tmp_path / "samples.npy", images[:32])
    quantised, folder = tmp_path / "small.tflite", tmp_path / "out"
    succeeds("quantize", MODEL, "--data", tmp_path / "samples.npy", "--target", "stm32f4", "-o", quantised)
    succeeds("compile", quantised, *BOARD, "--io", "integer", "--emit", "tar", "--emit", "serial", "-o", folder)
    with served(folder) as port:
        given = ("--input", f"image={_integers(tmp_path, images[0])}")
        printed = succeeds("run", folder, "--device", f"serial:{port}", *given, "--top", "1")
    best = re.search(r"^ +(\d) +(-?\d+)", printed, re.MULTILINE)
    assert best is not None
    assert int(best[1]) == held_out_digits()[1][0]


def _integers(folder: Path, image: np.ndarray) -> Path:
    np.save(folder / "image.npy", (image - 128).astype(np.int8))
    return folder / "image.npy"
