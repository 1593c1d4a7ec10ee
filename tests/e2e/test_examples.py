"""Runs the examples at the end of each command's help, through the installed package."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from PIL import Image

import installed
import tenon as package
from installed import tenon_script
from real import DIGITS, held_out_digits
from tenon.cli.examples import EXAMPLES, PROGRAM
from tenon.runtime.bundle.container import Container
from tenon.runtime.bundle.delta import delta
from tenon.runtime.bundle.encrypted_files import encrypt
from tenon.runtime.bundle.signature import sign
from text_models import written_model
from tflite_models import quantised_convolution

LINES = [line for examples in (PROGRAM, *EXAMPLES.values()) for _, line in examples]
LONG = {"tenon sdk --target aarch64 -o sdk", "tenon sdk -o sdk", "tenon bench-op --filter 'Conv.*' --seconds 0.1"}
"""Lines that take long, because they build C libraries or measure many operators."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the examples name."""
    folder, key = tmp_path_factory.mktemp("examples"), bytes(range(32))
    images, classes = held_out_digits()
    shutil.copy(DIGITS / "digits.onnx", folder / "model.onnx")
    shutil.copy(DIGITS / "digits.onnx", folder / "int8.onnx")
    (folder / "model.tflite").write_bytes(quantised_convolution())
    (folder / "photos").mkdir()
    for number in range(4):
        picture = Image.fromarray(np.clip(images[number][0, 0], 0, 255).astype(np.uint8))
        picture.save(folder / "photos" / f"{number}.png")
    picture.save(folder / "photo.jpg")
    (folder / "words.onnx").write_bytes(written_model(folder / "words").read_bytes())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "words" / name, folder)
    (folder / "story.txt").write_text("the cat sat on the mat " * 3)
    np.save(folder / "x.npy", images[0])
    np.save(folder / "samples.npy", np.concatenate(images[:4]))
    for name in ("classes.txt", "truth.txt"):
        (folder / name).write_text("".join(f"{c}\n" for c in classes[:4]))
    (folder / "deploy.yml").write_text(json.dumps({"models": {"digits": {"model": "model.onnx"}}}))
    device = {"shell": "sh -c", "folder": str(folder / "device")}
    (folder / "devices.yml").write_text(json.dumps({"devices": {"pi4": device}}))
    _protected(folder, key)
    return folder


def _protected(folder: Path, key: bytes) -> None:
    """Bundles, plain, encrypted and signed, updates from one to another, and the keys."""
    private = Ed25519PrivateKey.from_private_bytes(key)
    (folder / "key.txt").write_text(key.hex())
    (folder / "private.pem").write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "public.pem").write_bytes(public)
    model = str(folder / "model.onnx")
    package.compile(model).save(folder / "net.tenon")
    package.compile(model).save(folder / "net")
    package.compile(model, optimize=1).save(folder / "new.tenon")
    (folder / "secret.tenon").write_bytes(encrypt(folder / "net.tenon", key))
    for version in (2, 3):
        (folder / f"signed-{version}.tenon").write_bytes(
            sign(Container(str(folder / "new.tenon")), folder / "private.pem", version)
        )
    (folder / "net.delta").write_bytes(delta(folder / "net.tenon", folder / "new.tenon"))
    (folder / "signed.delta").write_bytes(delta(folder / "net.tenon", folder / "signed-3.tenon"))


def run(line: str, folder: Path) -> None:
    words = shlex.split(line)
    assert words[0] == "tenon"
    if words[1] == "serve":
        return serve(words[1:], folder)
    done = installed.run([str(tenon_script()), *words[1:]], folder, {"NET_KEY": bytes(range(32)).hex()})
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return None


def serve(words: list[str], folder: Path) -> None:
    """Start a server at a free port, ask it for its models, and end it with Ctrl-C."""
    at = words.index("--port") if "--port" in words else len(words)
    command = [str(tenon_script()), *words[:at], *words[at + 2 :], "--port", "0"]
    given: dict[str, Any] = {"cwd": folder, "env": installed.environment()}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **given) as server:
        assert server.stderr is not None
        address = re.search(r"http://[\d.]+:(\d+)/v1", server.stderr.readline())
        assert address
        with urlopen(f"http://127.0.0.1:{address[1]}/v1/models", timeout=30) as response:
            assert json.load(response)["data"][0]["id"] == "words"
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=pytest.mark.slow) if line in LONG else line for line in LINES]
)
def test_example(line: str, files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(files, folder)
    if "--rollback" in line:
        for optimise in ("1", "2"):
            run(f"tenon deploy model.onnx --device pi4 -O {optimise}", folder)
    run(line, folder)


def test_long_examples_are_examples() -> None:
    assert set(LINES) >= LONG
    assert os.path.sep not in "".join(LINES), "examples are about files in the folder of the user"
