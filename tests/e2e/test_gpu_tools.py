"""Tools on GPU targets: profiles, benchmarks, comparisons and tuning."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tenon
from command_line import run_main
from gpu_devices import needs_compiler, why_not
from real import DIGITS, held_out_digits
from tenon.cli import main
from tenon.errors import InputError
from tenon.runtime.engine import Engine


@pytest.fixture(params=("opencl", "cuda"), scope="module")
def target(request: pytest.FixtureRequest) -> str:
    """Each target for which there is a device."""
    if reason := why_not(request.param):
        pytest.skip(reason)
    needs_compiler(request.param)
    return str(request.param)


@pytest.fixture(scope="module")
def engine(target: str) -> Iterator[Engine]:
    with tenon.open(tenon.compile(DIGITS / "digits.onnx", target=target, no_tuning=True)) as opened:
        yield opened


# -------------------------------------------------------------------------------------------- profiles
def test_the_device_says_what_it_is(engine: Engine) -> None:
    device = engine.device
    assert device is not None
    assert device.name
    assert device.driver
    assert device.version
    assert device.units > 0
    assert device.memory > 1 << 20
    assert str(device) == f"{device.name}, {device.version}, driver {device.driver}"
    with tenon.open(tenon.compile(DIGITS / "digits.onnx", no_tuning=True)) as usual:
        assert usual.device is None
        with pytest.raises(InputError, match="has no device to time"):
            usual.device_times()


def test_a_timed_run_gives_the_same_answers(engine: Engine) -> None:
    """Every copy and every step takes some time, by the device's clock."""
    images, _ = held_out_digits()
    expected = engine.run(images[0])["probabilities"]
    engine.outputs["probabilities"][...] = 0
    spent = engine.device_times()
    assert spent.shape == (2 + len(engine.manifest.nodes),)
    assert np.all(spent > 0)
    assert np.all(spent < 10**9)
    np.testing.assert_array_equal(engine.outputs["probabilities"], expected)
    np.testing.assert_array_equal(engine.run(images[0])["probabilities"], expected)


def test_profiles_name_the_device_and_its_bandwidth(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same text, JSON and page as for processors, with what a device has besides."""
    page = tmp_path / "page.html"
    command = ["profile", str(DIGITS / "digits.onnx"), "--target", target, "--rounds", "3", "--no-tuning"]
    assert run_main(main, [*command, "--html", str(page)]) == 0
    text = capsys.readouterr().out
    assert "% of bandwidth" in text
    assert "by the device's clock: inputs are copied in" in text
    assert "<th>% bandwidth</th>" in page.read_text()
    assert run_main(main, [*command, "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)
    assert measured["device"]["name"] in page.read_text()
    assert measured["peak_gigabytes_per_s"] > 0
    assert measured["upload"]["rounds"] == 3
    assert all(row["percent_of_bandwidth"] > 0 for row in measured["operators"])
