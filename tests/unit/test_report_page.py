"""The report on a build: its contents, the memory that it draws, and how it looks in a browser."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tenon
from browser import session
from command_line import run_main
from onnx_models import model, node
from onnx_models import random as weights_of
from tenon.cli import main
from tenon.cli.report_page import BuildReport, page
from tenon.machine.plan.lifetimes import lifetimes
from tenon.machine.plan.program import Region
from tenon.network.graph.device_placement import CopiedTensor, DevicePlacement, PlacedLayer

HOSTILE = '</script><b>"&'


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "net.onnx"
    nodes = [
        node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["a"], ["b"]),
        node("MaxPool", ["a"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Concat", ["b", "c"], ["d"], axis=1),
        node("Conv", ["d", "v"], ["y"], pads=[1, 1, 1, 1]),
    ]
    nodes[0].name = HOSTILE
    constants = {"w": weights_of(4, 3, 3, 3), "v": weights_of(5, 8, 3, 3)}
    path.write_bytes(model(nodes, {"x": [1, 3, 10, 10]}, ["y"], constants).SerializeToString())
    return path


@pytest.fixture(scope="module")
def written(file: Path) -> Path:
    out = file.with_name("report.html")
    words = ["compile", str(file), "-o", str(file.with_name("net.tenon")), "--no-tuning", "--report", str(out)]
    assert run_main(main, words) == 0
    return out


def test_lifetimes_cover_what_calls_read(file: Path) -> None:
    """Every byte that a call reads was written by a call before, lives until then, and no other life has it."""
    program = tenon.compile(file, no_tuning=True).program
    extents = lifetimes(program)
    assert max(e.offset + e.bytes for e in extents) <= program.memory.activations
    assert {e.layer for e in extents} <= {call.layer for call in program.calls}
    for i, a in enumerate(extents):
        for b in extents[i + 1 :]:
            apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
            assert apart or a.last <= b.first or b.last <= a.first, (a, b)
    for number, call in enumerate(program.calls):
        for buffer, place in zip(call.kernel.params, call.args, strict=True):
            if place.region is Region.ACTIVATIONS and buffer.space == "const":
                alive = [e for e in extents if e.first <= number <= e.last]
                assert any(e.offset <= place.offset < e.offset + e.bytes for e in alive), (number, call.layer)


def test_page_has_all_sections(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    assert re.findall("<section><h2>([^<,:]+)", text) == ["Memory", "Layers", "Graph", "Code", "Validation", "Times"]
    assert HOSTILE not in text
    assert html.escape(HOSTILE, quote=True) in text
    assert not re.findall(r"(?:src|href)=['\"]?https?:", text)
    assert (
        len(re.findall("<tr><td class=text>y</td><td data-v='1.0|<tr><td class=text>y</td><td data-v='0.999", text))
        == 1
    )


def test_devices_have_a_table(file: Path) -> None:
    layers = (
        PlacedLayer("a", "Conv", "opencl"),
        PlacedLayer("b", "Sigmoid", "cpu"),
        PlacedLayer("c", "Conv", "opencl"),
    )
    copies = (CopiedTensor("x", "cpu", "opencl", 2048), CopiedTensor("a", "opencl", "cpu", 512))
    manifest = tenon.compile(file, no_tuning=True).manifest({}, compiled=True)
    assert "<h2>Devices" not in page(BuildReport(manifest, (), None, ""))
    text = page(BuildReport(manifest._replace(placement=DevicePlacement(layers, copies)), (), None, ""))
    rows = [re.sub("<[^>]+>", " ", row).split() for row in text.split("<h2>Devices", 1)[1].split("<tr>")[2:4]]
    assert [row[:2] for row in rows] == [["opencl", "2"], ["cpu", "1"]]
    assert rows[0][2:] == ["2.0", "KiB", "512", "B"]


def test_page_says_what_was_left_out(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.html"
    words = ["compile", str(file), "-o", str(tmp_path / "net"), "--target", "cortex-m4", "--report", str(out)]
    assert run_main(main, [*words, "--precision", "fp16"]) == 0
    text = out.read_text()
    assert "this machine does not run cortex-m4" in text
    assert "<h2>Layers left in f32" in text
    assert "cortex-m4 has no arithmetic in f16" in text
    words = ["compile", str(file), "-o", str(tmp_path / "a.tenon"), "--target", "x86-64,aarch64", "--report", str(out)]
    assert run_main(main, words) == 2
    assert "--report is about one target" in capsys.readouterr().err
    assert not (tmp_path / "a.tenon").exists()


def test_page_opens_offline_in_a_browser(written: Path, tmp_path: Path) -> None:
    with session(tmp_path) as page:
        page.open(written.as_uri())
        page.until("!!document.getElementById('graph-page').contentDocument?.querySelector('#boxes g')")
        assert page.evaluate("document.querySelectorAll('#memory rect').length") >= 3
        assert (
            page.evaluate("document.getElementById('profile-page').contentDocument.querySelectorAll('tr').length") > 3
        )
        assert not page.errors
        page.screenshot(tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as shot:
        assert len(np.unique(np.asarray(shot.convert("RGB")).reshape(-1, 3), axis=0)) > 50


def test_memory_can_be_read_on_a_phone(written: Path, tmp_path: Path) -> None:
    """At 420 pixels the picture fills the width, and its text keeps its size."""
    with session(tmp_path) as page:
        page.phone()
        page.open(written.as_uri())
        page.until("!!document.querySelector('#memory rect')")
        picture = "document.getElementById('memory').getBoundingClientRect()"
        assert page.evaluate(f"{picture}.width") > 250
        assert page.evaluate(f"{picture}.height") >= 250
        heights = page.evaluate("[...document.querySelectorAll('.addresses span')].map(e => e.offsetHeight)")
        assert len(heights) == 5
        assert min(heights) >= 11, "smaller text cannot be read"
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
        sides = "[...document.querySelectorAll('#memory rect')].map(e => e.getBoundingClientRect().right)"
        assert page.evaluate(f"Math.max(...{sides})") <= page.evaluate(f"{picture}.right") + 1
        page.screenshot(tmp_path / "phone.png")
    assert (tmp_path / "phone.png").stat().st_size > 5000
