"""Per-operator profiles: what is measured, how it is told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import handmade
import tenon
from onnx_models import model, node, random
from tenon.cli.grid import grid
from tenon.cli.opening import Source, Threads
from tenon.cli.profile import profile_model, sections
from tenon.cli.profile_page import page
from tenon.engine import Engine, open_bundle, stamps
from tenon.engine.profile import Profile, profile
from tenon.engine.timing import fill_randomly
from tenon.errors import InputError, ToolchainError

TITLES = [
    "Warm Up", "Run without statistics", "Run with statistics", "Sort by Run Order", "Sort by Computation Time",
    "Stat by Op Type", "Stat by MACs(Multiply-Accumulation)", "Summary of Ops' Stat",
]  # fmt: skip


def network() -> bytes:
    """Convolutions with enough work to be shared by threads, one of them depthwise, and what a classifier ends in."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "d"], ["e"], pads=[1, 1, 1, 1], strides=[2, 2], group=24),
        node("MaxPool", ["e"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["m"], ["g"]),
        node("Softmax", ["g"], ["y"], axis=1),
    ]
    weights = {"w": random(24, 8, 3, 3), "d": random(24, 1, 3, 3)}
    made: bytes = model(nodes, {"x": [1, 8, 32, 32]}, ["y"], weights).SerializeToString()
    return made


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with tenon.open(tenon.compile(network(), name="small", profile=True), threads=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def measured(engine: Engine) -> Profile:
    return profile(engine, rounds=5, warmup=2, name="small <net>")


# ------------------------------------------------------------------------------------------- measuring
def test_a_reading_after_every_call(engine: Engine) -> None:
    ticks = engine.timestamps()
    assert len(ticks) == len(engine.manifest.nodes) + 1
    assert ticks[0] > 0
    assert np.all(np.diff(ticks.astype(np.int64)) >= 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_timed_run_computes_the_same(threads: int) -> None:
    bundle = tenon.compile(network(), name="small", profile=True)
    with tenon.open(bundle, threads=threads) as engine:
        fill_randomly(engine.inputs)
        usual = engine.run()
        for array in engine.outputs.values():
            array[...] = 0
        engine.timestamps()
        for name, array in engine.outputs.items():
            np.testing.assert_array_equal(array, usual[name])


@pytest.mark.parametrize("threads", [1, 2])
def test_without_a_compiler_python_reads_the_clock(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(options: object) -> None:
        raise ToolchainError("no compiler")

    bundle = tenon.compile(network(), name="small", profile=True)
    with tenon.open(bundle, threads=threads) as engine:
        monkeypatch.setattr(stamps, "find", missing)
        monkeypatch.setattr(stamps, "watch", stamps.watch.__wrapped__)
        kept = stamps.watch()
        monkeypatch.setattr(stamps, "watch", lambda: kept)
        ticks = engine.timestamps().astype(np.int64)
    assert ticks[0] > 0
    assert np.all(np.diff(ticks) > 0)


def test_only_on_request(tmp_path: Path) -> None:
    bundle = handmade.bundle(cache=tmp_path)
    assert "_profile" not in bundle.header + bundle.source
    with open_bundle(bundle) as engine, pytest.raises(InputError, match="compile the model again with --profile"):
        engine.timestamps()


def test_nothing_to_time() -> None:
    only = model([node("Identity", ["x"], ["y"])], {"x": [2, 3]}, ["y"]).SerializeToString()
    with tenon.open(tenon.compile(only, name="only", profile=True)) as engine:
        if engine.manifest.nodes:
            assert profile(engine, 1, 0).rows[0].macs == 0
        else:
            with pytest.raises(InputError, match="runs no kernels"):
                profile(engine, 1, 0)


def test_rows_are_the_operators_in_run_order(measured: Profile, engine: Engine) -> None:
    ops = [row.op for row in measured.rows if row.op != "Reorder"]
    assert ops == ["Conv+Relu", "DepthwiseConv", "MaxPool", "GlobalAveragePool", "Softmax"]
    starts = [row.start for row in measured.rows]
    assert starts == sorted(starts)
    assert all(len(row.samples) == 5 for row in measured.rows)
    assert [kernel for row in measured.rows for kernel in row.kernels] == [s.kernel for s in engine.manifest.nodes]


def test_facts_and_sums(measured: Profile, engine: Engine) -> None:
    conv = next(row for row in measured.rows if row.op.startswith("Conv"))
    assert (conv.facts.output, conv.facts.filter) == ((1, 24, 32, 32), (24, 8, 3, 3))
    assert conv.facts.pads == (1, 1, 1, 1)
    assert conv.macs == 24 * 32 * 32 * 8 * 9
    assert conv.gmacps == pytest.approx(conv.macs / conv.mean / 1e6)
    assert measured.macs == sum(step.macs for step in engine.manifest.nodes)
    assert sum(t.mean for t in measured.types()) == pytest.approx(measured.total)
    assert sum(t.count for t in measured.types()) == len(measured.rows)
    assert measured.summary.samples[0] == pytest.approx(sum(row.first for row in measured.rows))
    means = [row.mean for row in measured.slowest()]
    assert means == sorted(means, reverse=True)


# --------------------------------------------------------------------------------------------- telling
def test_grid() -> None:
    rule = "-" * 19
    assert grid("Two", ("a", "long"), [["wide one", "2"]]).splitlines() == [
        rule, "        Two", rule, "|        a | long |", rule, "| wide one |    2 |", rule,
    ]  # fmt: skip


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_eight_sections(measured: Profile) -> None:
    told = sections(measured)
    assert [section.splitlines()[1].strip() for section in told] == TITLES
    heads = [section.splitlines()[3] for section in told]
    assert cells(heads[0]) == ["round", "first(ms)", "curr(ms)", "min(ms)", "max(ms)", "avg(ms)", "std(us)"]
    assert cells(heads[3]) == [
        "Op Type", "Start", "First", "Avg(ms)", "%", "cdf%", "GMACPS", "% peak", "GB/s", "Stride", "Pad",
        "Filter Shape", "Output Shape", "Dilation", "name",
    ]  # fmt: skip
    assert heads[5].split("|")[1].strip() == "Op Type"
    assert cells(heads[6]) == ["total", "round", "first(G/s)", "avg(G/s)", "std"]
    assert cells(told[3].splitlines()[-2])[5] == "100.000"
    for section in told:
        assert len({len(line) for line in section.splitlines()[2:]}) == 1


def test_json(measured: Profile) -> None:
    data = json.loads(json.dumps(measured.json()))
    assert set(data) == {
        "name", "target", "threads", "macs", "peak_gmacps", "warmup", "without_statistics", "with_statistics",
        "summary", "operators", "types",
    }  # fmt: skip
    assert set(data["operators"][0]) == {
        "op", "name", "kernels", "start_ms", "first_ms", "avg_ms", "median_ms", "min_ms", "macs", "gmacps",
        "percent_of_peak",
        "bytes", "gigabytes_per_s", "stride", "pad", "filter", "output", "dilation",
    }  # fmt: skip
    assert set(data["summary"]) == {"rounds", "first", "last", "min", "max", "avg", "median", "std"}
    assert data["threads"] == 2


def test_page_stands_alone_and_escapes_names(measured: Profile) -> None:
    text = page(measured)
    assert "small <net>" not in text.split("<script")[0]
    assert "small &lt;net&gt;" in text
    assert not re.search(r"src=|url\(|@import", text)
    assert all(target.startswith("#") for target in re.findall(r"href=['\"]?([^'\" >]*)", text))
    assert "http" not in text
    embedded = re.search(r'<script type="application/json" id="profile">(.*?)</script>', text, re.DOTALL)
    assert embedded
    assert json.loads(embedded[1])["name"] == "small <net>"
    assert text.count("<tr id=r") == len(measured.rows)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.onnx"
    file.write_bytes(network())
    html = tmp_path / "profile.html"
    profile_model(Source(str(file)), {}, Threads(), 2, 0, html, as_json=False)
    told = capsys.readouterr().out
    assert [title for title in TITLES if title in told] == TITLES[1:]
    assert "% of the measured fp32 peak" in told
    assert html.read_text().startswith("<!doctype html>")
    with pytest.raises(InputError, match="cannot be written"):
        profile_model(Source(str(file)), {}, Threads(), 1, 0, tmp_path / "none" / "p.html", as_json=False)
