"""Moonshine tiny with its own weights, of the Python package moonshine-voice: libtenon writes down what Python does."""

from __future__ import annotations

import wave
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tenon
from installed import succeeds
from libtenon import client, run, sdk_for_clients, succeeded
from tenon.speech import LiveRecognizer, Recognizer


@pytest.fixture
def assets() -> Path:
    """The folder of that package with a model and recordings."""
    package = find_spec("moonshine_voice")
    if package is None or package.origin is None:
        pytest.skip("moonshine-voice (0.0.4), which has the weights, is not installed")
    return Path(package.origin).parent / "assets"


def test_libtenon_writes_down_what_python_does(assets: Path, tmp_path: Path) -> None:
    parts = "header,object,weights,manifest,library,text"
    succeeds("compile", str(assets / "tiny-en"), "--threads", "2", "--emit", parts, "-o", str(tmp_path))
    with wave.open(str(assets / "beckett.wav")) as sound:
        (tmp_path / "x.pcm").write_bytes(sound.readframes(sound.getnframes()))
    samples = np.frombuffer((tmp_path / "x.pcm").read_bytes(), "<i2").astype(np.float32) / np.float32(32768)
    with tenon.open(tmp_path / "encoder") as encoder, tenon.open(tmp_path / "decoder") as decoder:
        hearing = LiveRecognizer(Recognizer(encoder, decoder))
        heard = [each for i in range(0, len(samples), 1600) for each in hearing.hear(samples[i : i + 1600])]
        heard += hearing.finish()
    wanted = [f"{each.start:.3f} {each.end:.3f} {int(each.final)} {each.text}" for each in heard]
    assert "fare better" in " ".join(wanted)
    sdk_for_clients(tmp_path, "")
    program = client("write_down", tmp_path / "sdk", tmp_path)
    bundles = (tmp_path / "encoder", tmp_path / "decoder")
    shown = succeeded(run(program, *bundles, "2", "1", "0", "1600", tmp_path / "x.pcm")).decode()
    assert shown.splitlines() == 2 * wanted  # the program writes it down twice
