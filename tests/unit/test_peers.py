"""The comparison with other runtimes: statistics and output (measuring needs the runtimes)."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "bench" / "peers"
MODULES = ("contenders", "prepare", "race", "report", "starts", "worker")


@pytest.fixture(scope="module", autouse=True)
def modules() -> Iterator[None]:
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))
    for name in MODULES:
        sys.modules.pop(name, None)


def module(name: str) -> Any:
    return importlib.import_module(name)


def result(net: str, **times: tuple[float, ...] | str) -> Any:
    """A result; a runtime has times, or a note why it has none. The prefix "wrong" of its name marks a wrong result."""
    lane = module("race").Lane
    lanes = []
    for name, milliseconds in times.items():
        runtime, error = name.removeprefix("wrong_").replace("_", "-"), 0.5 if name.startswith("wrong_") else 1e-6
        lanes.append(
            lane(runtime, note=milliseconds)
            if isinstance(milliseconds, str)
            else lane(runtime, error, list(milliseconds))
        )
    return module("race").Result(net, 1, lanes)


def test_fastest_peer_has_right_results_and_equal_precision() -> None:
    race = result(
        "net", tenon=(2.0, 3.0), wrong_onnxruntime=(1.0,), openvino_default=(1.5,), ncnn=(6.0, 5.0), litert="-"
    )
    assert race.fastest("fp32").runtime == "ncnn"
    assert race.ratio("fp32") == 2.5
    assert race.median_ratio("fp32") == 2.2
    assert race.ratio("bf16") is None
    assert result("net", tenon="no compiler", ncnn=(1.0,)).ratio("fp32") is None
    assert result("net", wrong_tenon=(1.0,), ncnn=(1.0,)).ratio("fp32") is None
    assert "onnxruntime 1.00!" in race.text()


def test_result_without_comparison_is_not_right() -> None:
    lane = module("race").Lane("ncnn", float("nan"), [1.0])
    assert lane.wrong
    assert not lane.counts


def test_geometric_mean() -> None:
    assert module("report").mean_ratio([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(module("report").mean_ratio([]))
    races = [result("a", tenon=(1.0,), ncnn=(2.0,)), result("b", tenon=(1.0,), ncnn=(8.0,)), result("c", tenon="-")]
    assert "Geometric mean of the ratio: 4.00." in module("report").markdown(races)


def test_table() -> None:
    race = result("net", tenon=(2.0, 3.0), wrong_onnxruntime=(1.0,), ncnn=(6.0, 5.0), litert="cannot be converted")
    text = module("report").markdown([race])
    assert "| network | tenon | onnxruntime | ncnn | litert | fastest peer / Tenon | error of ours |" in text
    assert "| net | 2.00 / 2.50 | 1.00 / 1.00 (!) | **5.00 / 5.50** | - | 2.50 | 1.0e-06 |" in text
    assert "Geometric mean of the ratio: 2.50." in text
    assert "- onnxruntime, net: wrong by 5.0e-01, not counted" in text
    assert "- litert, net: cannot be converted" in text


def test_start_up_times_exclude_the_interpreter() -> None:
    start, comparison = module("starts").Start, module("starts").Comparison
    starts = comparison(
        "net",
        [
            start("python", 20, 25, 15, 9_000_000, 0, 0),
            start("none", 70, 75, 50, 29_000_000, 0, 0),
            start("tenon", 80, 85, 55, 39_000_000, 400_000, 100_000),
            start("tenon-small", 80, 85, 55, 34_000_000, 400_000, 100_000),
            start("ncnn", 110, 120, 70, 69_000_000, 30_000_000, 20_000_000),
            start("litert", math.nan, math.nan, math.nan, 0, 0, 0, "is not installed"),
        ],
    )
    ratios = [starts.ratio(measure) for measure in ("first_ms", "processor_ms", "rss", "libraries", "code")]
    assert ratios == pytest.approx([10 / 40, 5 / 20, 10 / 40, 0.4 / 30, 0.1 / 20])
    assert starts.ratio("first_ms", "python") == pytest.approx(60 / 90)
    text = module("starts").table([starts])
    assert "| net | none | 70 / 75 | | 50 in all | 29.0 in all | | |" in text
    assert "| net | tenon | 80 / 85 | 10 | 5 | 10.0 | 0.40 | 0.10 |" in text
    assert "| net | litert | - | - | - | - | - | is not installed |" in text
    assert "| net | 0.25 (0.67) | 0.25 (0.73) | 0.25 (0.50) | 0.12 (0.42) | 0.01 | 0.01 |" in text


def test_report_of_a_fresh_process(tmp_path: Path) -> None:
    starts = module("starts")
    fresh = starts.start("none", tmp_path, "1x2", Path(sys.executable), tmp_path / "bytecode")
    assert 0 < fresh.seconds < 60
    assert fresh.rss > 1_000_000
    assert any("numpy" in name and size > code > 0 for name, (size, code) in fresh.libraries.items())
    with pytest.raises(module("prepare").MissingError):
        starts.start("tenon", tmp_path, "1x2", Path(sys.executable), tmp_path / "bytecode")


def test_files(tmp_path: Path) -> None:
    race = result("net<1>", tenon=(2.0,), onnxruntime=(3.0,), ncnn=(5.0,))
    module("report").save(tmp_path, [race])
    data = json.loads((tmp_path / "results.json").read_text())
    assert set(data) == {"machine", "unit", "races"}
    assert data["races"][0]["runtimes"][2] == {"runtime": "ncnn", "error": 1e-6, "times": [5.0], "note": ""}
    root = ElementTree.fromstring(module("report").plot([race]))
    bars = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if r.get("rx") == "1.5"]
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert widths[1] / widths[0] == pytest.approx(5 / 3, rel=1e-2)


def test_error_matches_transposed_and_reordered_outputs() -> None:
    rng = np.random.default_rng(0)
    image, vector = rng.standard_normal((1, 3, 4, 5)), rng.standard_normal((1, 7))
    error = module("worker").error
    assert error([vector.reshape(7), image.transpose(0, 2, 3, 1)], [image, vector]) == 0
    assert error([vector, image + 0.1], [image]) == pytest.approx(0.1 / np.abs(image).max())
    assert math.isnan(error([vector], [image]))
