"""Per-operator profiles: measuring and reporting."""

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
from tenon.cli.mace_tables import sections
from tenon.cli.model_source import ModelArgument, Threads
from tenon.cli.profile import profile_model
from tenon.cli.profile_page import page
from tenon.cli.text_table import grid, shortened
from tenon.errors import InputError, ToolchainError
from tenon.runtime.bundle.manifest import CallRecord
from tenon.runtime.engine import Engine, open_bundle, timestamps
from tenon.runtime.engine.profile import Profile, Row, profile
from tenon.runtime.engine.timing import Times, fill_randomly

TITLES = [
    "Warm Up",
    "Run without statistics",
    "Run with statistics",
    "Sort by Run Order",
    "Sort by Computation Time",
    "Stat by Op Type",
    "Stat by MACs(Multiply-Accumulation)",
    "Summary of Ops' Stat",
]


def network() -> bytes:
    """Convolutions with enough work for several threads, one of them depthwise, followed by a classifier."""
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
def test_one_timestamp_per_call(engine: Engine) -> None:
    ticks = engine.timestamps()
    assert len(ticks) == len(engine.manifest.nodes) + 1
    assert ticks[0] > 0
    assert np.all(np.diff(ticks.astype(np.int64)) >= 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_timed_runs_give_the_same_results(threads: int) -> None:
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
def test_clock_without_a_compiler(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(options: object) -> None:
        raise ToolchainError("no compiler")

    bundle = tenon.compile(network(), name="small", profile=True)
    with tenon.open(bundle, threads=threads) as engine:
        monkeypatch.setattr(timestamps, "find", missing)
        monkeypatch.setattr(timestamps, "watch", timestamps.watch.__wrapped__)
        kept = timestamps.watch()
        monkeypatch.setattr(timestamps, "watch", lambda: kept)
        ticks = engine.timestamps().astype(np.int64)
    assert ticks[0] > 0
    assert np.all(np.diff(ticks) > 0)


def test_bundles_without_profile_are_rejected(tmp_path: Path) -> None:
    bundle = handmade.bundle(cache=tmp_path)
    assert "_profile" not in bundle.header + bundle.source
    with open_bundle(bundle) as engine, pytest.raises(InputError, match="compile the model again with --profile"):
        engine.timestamps()


def test_network_without_kernels() -> None:
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


def test_columns_and_sums(measured: Profile, engine: Engine) -> None:
    conv = next(row for row in measured.rows if row.op.startswith("Conv"))
    assert (conv.facts.output, conv.facts.filter) == ((1, 24, 32, 32), (24, 8, 3, 3))
    assert conv.facts.pads == (1, 1, 1, 1)
    assert conv.macs == 24 * 32 * 32 * 8 * 9
    assert measured.speed(conv, conv.mean).gmacps == pytest.approx(conv.macs / conv.mean / 1e6)
    assert measured.macs == sum(step.macs for step in engine.manifest.nodes)
    assert sum(t.mean for t in measured.types()) == pytest.approx(measured.total)
    assert sum(t.count for t in measured.types()) == len(measured.rows)
    assert measured.summary.samples[0] == pytest.approx(sum(row.first for row in measured.rows))
    means = [row.mean for row in measured.slowest()]
    assert means == sorted(means, reverse=True)


# ------------------------------------------------------------------------------------------- reporting
def test_grid() -> None:
    rule = "-" * 19
    assert grid("Two", ("a", "long"), [["wide one", "2"]]).splitlines() == [
        rule,
        "        Two",
        rule,
        "|        a | long |",
        rule,
        "| wide one |    2 |",
        rule,
    ]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def columns(head: str) -> list[str]:
    """The column headings, without units, which depend on the speed of the machine."""
    return [re.sub(r"\((ms|us)\)", "", cell) for cell in cells(head)]


def test_names_are_shortened_in_the_middle_and_stay_unique() -> None:
    names = [f"/model/backbone/stage{i}/block{j}/conv/Conv" for i in range(4) for j in range(12)]
    for width in (12, 20, 30):
        short = shortened(names, width)
        assert len(set(short)) == len(names)
        assert all(len(text) <= width for text in short)
    assert shortened(["short", names[0], names[0]], 24) == [
        "short",
        "/model/b..ock0/conv/Conv",
        "/model/b..ock0/conv/Conv",
    ]
    assert shortened(names, 99) == names
    alike = [f"{'x' * 40}{i}{'y' * 40}" for i in range(30)]
    assert len(set(shortened(alike, 14))) == 30
    assert shortened([], 9) == []


def synthetic_profile(scale: float) -> Profile:
    """A synthetic profile of operators with long names; ``scale`` is milliseconds per unit of time."""
    facts = CallRecord(
        "", "Conv", "k", 1000, (1, 512, 112, 112), (512, 512, 3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1, 4000
    )
    rows = tuple(
        Row(
            "DepthwiseConv+HardSwish",
            f"/model/features/features.{i}/block/block.0/conv_depthwise/Conv",
            ("k", "j"),
            facts,
            10**9,
            scale * i,
            scale * np.array([2.0, 1.0, 6.0]),
        )
        for i in range(12)
    )
    times = Times(tuple(scale * t for t in (20.0, 30.0, 31.0)))
    return Profile("net", "x86-64", 1, times, times, times, rows, 1e11)


@pytest.mark.parametrize("width", [80, 100, 132])
@pytest.mark.parametrize("scale", [0.01, 1.0, 1000.0])
def test_sections_fit_a_terminal(width: int, scale: float) -> None:
    report = sections(synthetic_profile(scale), width)
    assert [section.splitlines()[1].strip() for section in report] == TITLES
    assert max(len(line) for section in report for line in section.splitlines()) <= width
    names = [cells(line)[-1] for line in report[3].splitlines()[5:-1]]
    assert len(set(names)) == 12
    assert {"Op Type", "Avg", "%", "GMACPS", "% peak", "name"} <= set(columns(report[3].splitlines()[3]))
    wide = sections(synthetic_profile(scale))
    assert max(len(line) for line in wide[3].splitlines()) > 132
    assert rows_of(wide[3])[0]["name"].startswith("/model/features/features.0/block/")


@pytest.mark.parametrize(("scale", "unit"), [(0.01, "us"), (1.0, "ms")])
def test_short_times_are_in_microseconds(scale: float, unit: str) -> None:
    report = sections(synthetic_profile(scale))
    (row, *_) = rows_of(report[3])
    assert float(row[f"Avg({unit})"]) == pytest.approx(30.0 if unit == "us" else 3.0)
    assert float(rows_of(report[1])[0][f"first({unit})"]) == pytest.approx(200.0 if unit == "us" else 20.0)
    assert ("200.0 µs" if unit == "us" else "20.000 ms") in page(synthetic_profile(scale))


def rows_of(section: str) -> list[dict[str, str]]:
    """The rows of a table by the names of its columns."""
    _, _, _, head, _, *rows, _ = section.splitlines()
    return [dict(zip(cells(head), cells(row), strict=True)) for row in rows]


def test_speeds_and_percentages_are_consistent() -> None:
    """Tables and JSON use the average, the HTML page the fastest round."""
    synthetic = synthetic_profile(1.0)
    for row in rows_of(sections(synthetic)[3]):
        speed = 1e9 / float(row["Avg(ms)"]) / 1e6
        assert float(row["GMACPS"]) == pytest.approx(speed, rel=1e-3)
        assert float(row["% peak"]) == pytest.approx(speed, rel=1e-2)  # of 100 GMACPS
        assert float(row["GB/s"]) == pytest.approx(4000 / float(row["Avg(ms)"]) / 1e6, abs=0.05)
    data = synthetic.json()
    for told in data["operators"]:
        assert told["gmacps"] == pytest.approx(told["macs"] / told["avg_ms"] / 1e6)
        assert told["percent_of_peak"] == pytest.approx(100 * told["gmacps"] / data["peak_gmacps"])
        assert told["gigabytes_per_s"] == pytest.approx(told["bytes"] / told["avg_ms"] / 1e6)
    shown = re.search(r"<tr id=r0>.*?</tr>", page(synthetic), re.DOTALL)
    assert shown
    _, _, fastest, macs, gmacps, percent, _ = (float(v) for v in re.findall(r"data-v='?([-0-9.]+)", shown[0]))
    assert gmacps == pytest.approx(macs / fastest / 1e6, rel=1e-3)
    assert percent == pytest.approx(100 * gmacps / data["peak_gmacps"], rel=1e-3)


def test_names_on_the_page_are_unique() -> None:
    text = page(synthetic_profile(1.0)).split("<script")[0]
    names = re.findall(r"<td class='text name' title='/model[^']*'>([^<]*)</td>", text)
    assert len(names) == len(set(names)) == 12
    labels = re.findall(r"<span class=label title='/model[^']*'>([^<]*)</span>", text)
    assert len(labels) == len(set(labels)) == 10
    assert all(len(text) <= 32 for text in (*names, *labels))


def test_eight_sections(measured: Profile) -> None:
    report = sections(measured)
    assert [section.splitlines()[1].strip() for section in report] == TITLES
    heads = [section.splitlines()[3] for section in report]
    assert columns(heads[0]) == ["round", "first", "curr", "min", "max", "avg", "std"]
    assert columns(heads[3]) == [
        "Op Type",
        "Start",
        "First",
        "Avg",
        "%",
        "cdf%",
        "GMACPS",
        "% peak",
        "GB/s",
        "Stride",
        "Pad",
        "Filter Shape",
        "Output Shape",
        "Dilation",
        "name",
    ]
    assert heads[5].split("|")[1].strip() == "Op Type"
    assert cells(heads[6]) == ["total", "round", "first(G/s)", "avg(G/s)", "std"]
    assert cells(report[3].splitlines()[-2])[5] == "100.000"
    for section in report:
        assert len({len(line) for line in section.splitlines()[2:]}) == 1


def test_json(measured: Profile) -> None:
    data = json.loads(json.dumps(measured.json()))
    assert set(data) == {
        "name",
        "target",
        "threads",
        "macs",
        "peak_gmacps",
        "warmup",
        "without_statistics",
        "with_statistics",
        "summary",
        "operators",
        "types",
    }
    assert set(data["operators"][0]) == {
        "op",
        "name",
        "kernels",
        "start_ms",
        "first_ms",
        "avg_ms",
        "median_ms",
        "min_ms",
        "macs",
        "gmacps",
        "percent_of_peak",
        "bytes",
        "gigabytes_per_s",
        "stride",
        "pad",
        "filter",
        "output",
        "dilation",
    }
    assert set(data["summary"]) == {"rounds", "first", "last", "min", "max", "avg", "median", "std"}
    assert data["threads"] == 2


def test_page_is_self_contained_and_escapes_names(measured: Profile) -> None:
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


def test_profile_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.onnx"
    file.write_bytes(network())
    html = tmp_path / "profile.html"
    profile_model(ModelArgument(str(file)), {}, Threads(), 2, 0, html, as_json=False)
    first, second, *more = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"small on \S+, 1 thread: [\d.]+ (ms|.s), the fastest of 2 runs", first)
    assert "% of the measured fp32 peak" in second
    assert [line.split()[0] for line in more if line.startswith(("operator", "type", "Softmax"))] == [
        "operator",
        "Softmax",
        "type",
        "Softmax",
    ]
    assert "cost of measuring" not in html.read_text()
    profile_model(ModelArgument(str(file)), {}, Threads(), 2, 0, None, format="mace", as_json=False)
    output = capsys.readouterr().out
    assert [title for title in TITLES if title in output] == TITLES[1:]
    assert html.read_text().startswith("<!doctype html>")
    with pytest.raises(InputError, match="cannot be written"):
        profile_model(ModelArgument(str(file)), {}, Threads(), 1, 0, file / "p.html", as_json=False)
