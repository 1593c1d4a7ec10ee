"""tm_benchmark of the SDK: Tengine's options and lines."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest

from libtenon import run
from tengine_sdk import environment_of, sdk_and_compiler, small_bundle

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="the command is compiled for Linux here")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = sdk_and_compiler(tmp_path_factory.mktemp("benchmark"))
    small_bundle(place)
    return place


def printed(place: Path, *words: str | Path) -> tuple[int, str, str]:
    """Exit status, standard output and standard error; there is no compiler."""
    environment = {**environment_of(place), "TENON": "/no/such/compiler"}
    done = run(place / "sdk" / "bin" / "tm_benchmark", *words, env=environment)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    "words",
    [
        ("-r", "3", "-t", "2", "-p", "1", "-a", "0xFF", "-d", "cpu", "-i", "1,1,8,8", "-f", "0"),
        ("--loop_count", "3", "--thread_count=2", "--cpu_cluster", "1", "--cpu_mask=255", "--input_shape=1,8,8"),
    ],
)
def test_a_model_of_ones_own(words: tuple[str, ...], place: Path) -> None:
    status, out, err = printed(place, "-m", place / "digits.tenon", *words)
    assert status == 0, err
    assert out.splitlines() == [
        "Tengine benchmark:",
        "  loops:    3",
        "  threads:  2",
        "  cluster:  1",
        "  affinity: 0xFF",
        "  device:   CPU",
        "Tengine-lite library version: 1.5-dev",
    ]
    line, last = err.splitlines()
    number = r" +(\d+\.\d\d) ms"
    match = re.fullmatch(rf" *{place}/digits.tenon  min ={number}   max ={number}   avg ={number}", line)
    assert match is not None, line
    least, most, mean = map(float, match.groups())
    assert least <= mean <= most
    assert last == "ALL TEST DONE."


def test_models_of_tengine_by_number(place: Path) -> None:
    """They are in the folder models; without it all 14 fail, each by its name."""
    status, _, err = printed(place)
    assert status == 1
    assert err.count("Tengine Benchmark: Create graph failed.") == 14
    assert "./models/yolov3_tiny_benchmark.tmfile" in err
    assert err.endswith("ALL TEST DONE.\n")
    status, _, err = printed(place, "-s", "12")
    assert status == 1
    assert err.count("failed") == 1


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--help",), 0, "  -r, --loop_count      benchmark loops count (int [=1])"),
        (("-x", "1"), 1, "undefined option: -x"),
        (("--loop", "1"), 1, "undefined option: --loop"),
        (("-r",), 1, "option needs value: --loop_count"),
        (("-r", "x"), 1, "option value is invalid: --loop_count=x"),
        (("-d", "npu", "-m", "x"), 1, "there is no device 'NPU'"),
        (("-m", "digits.tenon", "-i", "8"), 1, "option value is invalid: --input_shape=8"),
        (("-m", "digits.tenon", "-i", "1,1,8,9"), 1, "Pre-run graph failed"),
    ],
)
def test_refusals(words: tuple[str, ...], status: int, said: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    returned, _, err = printed(place, *words)
    assert returned == status
    assert said in err
