"""The pages of ``tenon quantize`` and ``tenon compare``, in a browser."""

from __future__ import annotations

from pathlib import Path

from browser import results
from tenon.cli.noise_page import page
from tenon.cli.pareto_page import pareto_page
from tenon.tools.quantization.report import Noise, Point, Report, WeightNoise

HOSTILE = '</script><script>document.title="ran"</script>"\'&<b>'
NOISE = (
    Noise("first", 31.0, 0.999, 0.01, 0.001),
    Noise(HOSTILE, float("inf"), 1.0, 0.0),
    Noise("last", -2.0, 0.1, 1.0),
)


def report() -> Report:
    points = (
        Point((), 20.0, 1.0, 100.0, 1000, 500, 8.0),
        Point((HOSTILE,), 30.0, 0.0, 150.0, 2000, 600, 12.0),
        Point(("a", "b"), 25.0, 0.5, 160.0, 3000, 700, 16.0),
    )
    return Report(
        "int8",
        "mse",
        8,
        NOISE[:1],
        NOISE,
        (WeightNoise("first", 40.0, 8, 4),),
        0.9,
        0.05,
        {},
        {},
        (),
        (HOSTILE,),
        points,
    )


def test_tables_are_sorted_by_a_click_and_names_are_escaped(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(page("net", "8 samples", [("31 dB", "SQNR")], {"Tensors": NOISE}, report().weights, {"": 20.0}, {}))
    first, click = (
        "document.querySelector('tbody tr').cells[1].textContent",
        "document.querySelectorAll('th')[2].click()",
    )
    title, sections = "document.title", "document.querySelectorAll('section').length"
    assert results(path, first, click, first, click, first, title, sections) == [
        "first",
        None,
        HOSTILE,
        None,
        "last",
        "net",
        3,
    ]


def test_each_repair_is_shown_with_and_without_it() -> None:
    text = page("net", "", [], {}, tried={"": 20.0, "gptq": 31.0}, without={"gptq": 25.5}, kept=("gptq",))
    assert "<span class=label>as calibrated</span>" in text
    assert "<span class=label>gptq, without 25.5 dB: kept</span>" in text
    assert ">31.0 dB</span>" in text


def test_click_on_a_point_shows_its_command(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(pareto_page("net", report(), "tenon quantize net.onnx --data x -o q.onnx"))
    count, command = "document.querySelectorAll('{}').length", "document.getElementById('command').textContent"
    dots, best, _, shown, _, other, chosen, title = results(
        path,
        count.format("circle"),
        count.format("circle.best"),
        "document.querySelectorAll('circle')[2].dispatchEvent(new Event('click'))",
        command,
        "document.querySelectorAll('tr[data-point]')[1].click()",
        command,
        count.format("circle.on"),
        "document.title",
    )
    assert (dots, best, chosen) == (3, 2, 1)
    assert shown == "tenon quantize net.onnx --data x -o q.onnx --exclude a --exclude b"
    assert "</script>" in other
    assert title == "net: accuracy and cost"
