"""Layers in float, fp16 or 16-bit integers until a contract is met, and the page of what was tried."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import exact_onnxruntime
import tenon
from browser import results
from installed import SCRIPT, environment
from networks_to_quantise import images, separable
from tenon.errors import InputError
from tenon.network.graph.types import DType
from tenon.tools.quantization import compare
from tenon.tools.quantization.half_precision import in_fp16, layer_name
from tenon.tools.quantization.mixed_precision import TYPES, Contract, _MixtureSearch
from tenon.tools.quantization.placement import placement
from tenon.tools.quantization.recipe import Request, recipe
from tenon.tools.quantization.report import Point, standard_error
from tenon.tools.quantization.samples import finite, numbered_samples
from tenon.tools.quantization.scheme import SCHEMES

SIMPLE: dict[str, Any] = {"methods": ("min-max",), "range_search": False, "rounding": "nearest", "equalisation": False}

QUICK: dict[str, Any] = {"scheme": "int4-weights", "method": "min-max", "range_search": False, "rounding": "nearest"}


@pytest.mark.parametrize("types", [TYPES, pytest.param(["float"], marks=pytest.mark.slow)])
def test_contract_is_met_with_some_layers_in_floats(types: list[str]) -> None:
    """Weights in fp16 take half the bytes, in the same estimated time."""
    given = images(8)
    free = tenon.quantize(separable(None), given, **QUICK).report
    wanted = free.outputs[0].sqnr + 1
    made = tenon.quantize(separable(None), given, min_sqnr=wanted, mixed_types=types, **QUICK)
    report = made.report
    chosen, other = (report.fp16, report.floats) if "fp16" in types else (report.floats, report.fp16)
    assert 0 < len(chosen) < 4
    assert other == ()
    last = report.points[-1]
    assert (last.floats, last.fp16) == (report.floats, report.fp16)
    assert last.sqnr >= wanted
    assert report.points[0].floats == ()
    assert report.points[0].sqnr < wanted
    assert report.points[0].bits == 4
    assert 4 < last.bits < 32
    in_f32 = [p for p in report.points if p.floats == chosen]
    assert all(last.weights < p.weights for p in in_f32) or types == ["float"]
    description, _ = tenon.inspect(made.graph)
    assert description.compiled is not None
    products = sum(n for name, n in description.compiled.items() if name in ("IntegerConv", "IntegerGemm"))
    assert products == 4 - len(chosen)


def test_contract_that_integers_meet_leaves_no_layer_in_float() -> None:
    report = tenon.quantize(
        separable(None),
        images(16),
        min_sqnr=3,
        max_drop=100,
        method="min-max",
        range_search=False,
        rounding="nearest",
    ).report
    assert report.floats == ()
    assert len(report.points) == 1


def test_contract_that_only_floats_meet_is_refused_with_the_noisiest_layers() -> None:
    with pytest.raises(
        InputError, match=r"an SQNR of 120 dB needs all layers in float.*noisiest layers are .*depthwise"
    ):
        tenon.quantize(separable(None), images(8), min_sqnr=120, **QUICK)


FAST: dict[str, Any] = {"method": "min-max", "range_search": False, "rounding": "nearest"}


def test_layers_of_16_bits() -> None:
    """All products stay in integers, and have less noise."""
    given, layers = images(6), ["first", "depthwise", "last", "scores"]
    made = tenon.quantize(separable(None), given, int16=layers, **FAST)
    assert made.report.outputs[0].sqnr > 50  # 43 dB in 8 bits
    description, _ = tenon.inspect(made.graph)
    assert description.compiled is not None
    assert description.compiled["IntegerConv"] + description.compiled["IntegerGemm"] == 4
    stored = [n.output.type.dtype for n in made.graph if n.op.name == "QuantizeLinear"]
    assert DType.I16 in stored
    graph = separable(None)
    placed = placement(graph, wide=["scores"])
    assert {v.name for v in placed.wide} == {"7", "y"}
    assert {placed.scheme_of(v, SCHEMES["int8"]).name for v in placed.tensors if v not in placed.wide} == {"int8"}
    with pytest.raises(InputError, match="there is no layer 'nothing'"):
        tenon.quantize(separable(None), given, int16=["nothing"], **FAST)


def test_layers_in_fp16(tmp_path: Path) -> None:
    """Others that stay in float are not stored in f16; targets with arithmetic in f16 compute in it."""
    given = images(4)
    made = tenon.quantize(separable(None), given, fp16=["last"], exclude=["scores"], **FAST)
    made.save(tmp_path / "net.onnx")
    graph = tenon.load(tmp_path / "net.onnx")
    assert [str(n.origin.layer) for n in graph if n.op.name == "Conv" and n.output.type.dtype is DType.F16] == ["last"]
    for target, multiplied in (("aarch64-fp16", "f16"), ("aarch64", "f32")):
        _, planned = tenon.inspect(graph, tenon.Options(target=target, precision="fp16"))
        (conv,) = [n for n in planned or () if n.op.name.startswith("Conv")]
        (gemm,) = [n for n in planned or () if n.op.name.startswith("Gemm")]
        assert [str(v.type.dtype) for v in conv.inputs[:2] if v is not None] == [multiplied, "f16"]
        assert {v.type.dtype for v in gemm.inputs if v is not None} == {DType.F32}
    session = exact_onnxruntime.session(tmp_path / "net.onnx")
    with tenon.open(tenon.compile(graph)) as engine:
        ours = np.stack([engine.run({"x": x})["y"] for x in given])
    theirs = np.stack([session.run(["y"], {"x": x})[0] for x in given])
    step = 0.02  # of the 8 bits after the layer in fp16, whose sums may differ in their last bit
    np.testing.assert_allclose(ours, theirs, atol=step)


def test_a_tensor_is_rounded_to_f16_once() -> None:
    """Between a layer in fp16 and the next, also where these are computed in f16."""
    graph = separable(None)
    in_fp16(graph, ["first", "depthwise", "last"])
    narrow = [n for n in graph if n.op.name == "Conv"]
    assert {v.type.dtype for n in narrow for v in (*n.inputs, n.output) if v is not None} == {DType.F16}
    _, planned = tenon.inspect(graph, tenon.Options(target="aarch64-fp16", precision="fp16"))
    assert {n.input(0).name for n in planned or () if n.op.name == "Cast"} == {"x", "8"}


def test_fp16_has_no_place_in_schemes_of_weights_only() -> None:
    with pytest.raises(InputError, match="all layers compute in floats"):
        tenon.quantize(separable(None), scheme="bf16", fp16=["last"])


@pytest.mark.slow
def test_contract_that_16_bits_meet_where_floats_beside_8_bits_do_not() -> None:
    given = images(12)
    wanted = tenon.quantize(separable(None), given, **FAST).report.outputs[0].sqnr + 8
    report = tenon.quantize(separable(None), given, min_sqnr=wanted, **FAST).report
    assert (report.floats, report.fp16) == ((), ())
    assert 0 < len(report.wide) < 4
    assert (report.points[-1].wide, report.points[-1].sqnr >= wanted) == (report.wide, True)
    with pytest.raises(InputError, match="needs all layers in float"):
        tenon.quantize(separable(None), given, min_sqnr=wanted, mixed_types=["float"], **FAST)


@pytest.mark.slow
def test_contract_that_16_bits_do_not_meet() -> None:
    with pytest.raises(InputError, match=r"cannot be met with 16 bits.*noisiest layers are"):
        tenon.quantize(separable(None), images(4), min_sqnr=120, mixed_types=["int16"], **QUICK)


def searched(samples: int) -> _MixtureSearch:
    given = list(finite(each.sample for each in numbered_samples(separable(None), images(samples), samples, 0, {})))
    return _MixtureSearch(separable(None), given, Request(SCHEMES["int8"]), Contract(30.0), "host", ["int16"], ())


def test_quick_recipes_have_what_serves_the_network_and_the_first_method() -> None:
    """Ranges that saturate help noisy layers of 8 bits, and harm the same layers in 16."""
    search = searched(2)
    first = recipe(separable(None), search.samples, replace(search.request, **SIMPLE))
    assert (search._quick(first).methods, search._quick(first).rounding) == (("min-max",), "nearest")
    first.method, first.applied = "percentile", ["gptq", "bias correction"]
    quick = search._quick(first)
    assert (quick.methods, quick.rounding, quick.equalisation) == (("min-max", "percentile"), "gptq", False)
    assert not quick.range_search


def test_a_contract_is_met_that_quick_recipes_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here these have ranges that saturate, which is noise where all activations have 16 bits."""
    given, names = images(4), ["first", "depthwise", "last", "scores"]
    wanted = tenon.quantize(separable(None), given, int16=names, **FAST).report.outputs[0].sqnr - 1
    monkeypatch.setattr(_MixtureSearch, "_quick", lambda self, recipe: replace(self.request, methods=("entropy",)))
    report = tenon.quantize(separable(None), given, min_sqnr=wanted, mixed_types=["int16"], **FAST).report
    assert report.points[-1].sqnr >= wanted
    everything = [p.sqnr for p in report.points if len(p.wide) == 4]
    assert everything[0] < wanted < everything[1]


def test_types_that_are_not_known() -> None:
    given = images(2)
    with pytest.raises(InputError, match="there is no type 'int12' of layers: choose of int16, fp16, float"):
        tenon.quantize(separable(None), given, min_sqnr=120, mixed_types=["int12"], **QUICK)


@pytest.mark.slow
def test_16_bits_are_taken_where_they_are_faster_than_floats(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the cost model, of which this one says that a layer takes ten times as long in float."""

    def times(self: Any, graph: tenon.Graph) -> dict[str, float]:
        layers = [node for node in graph if node.op.name in ("Conv", "Gemm")]
        return {layer_name(node): 10.0 if node.input(1).constant else 1.0 for node in layers}

    monkeypatch.setattr(_MixtureSearch, "_times", times)
    given = images(6)
    wanted = tenon.quantize(separable(None), given, **FAST).report.outputs[0].sqnr + 1
    report = tenon.quantize(separable(None), given, min_sqnr=wanted, **FAST).report
    assert report.floats == ()
    assert report.wide
    tried = next(p for p in report.points if p.floats and p.sqnr >= wanted)
    assert report.points[-1].time < tried.time


def test_metric_of_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drop is that of the function's mean, in hundredths."""
    (tmp_path / "score.py").write_text(
        "calls = []\ndef of(outputs, sample):\n    calls.append(sample)\n    return float(outputs['y'].max() > 0)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = tenon.quantize(separable(None), images(6), max_drop=100, metric="score:of", **QUICK)
    import score  # type: ignore[import-not-found]

    assert set(score.calls) == set(range(6))
    assert made.report.points[0].drop <= 100
    with pytest.raises(InputError, match="--metric no_such:of"):
        tenon.quantize(separable(None), images(6), max_drop=1, metric="no_such:of", **QUICK)


def test_conditions_of_a_contract() -> None:
    point = Point((), 30.0, 1.5, 1.0, 1, 1, 8.0)
    assert Contract(30.0, 1.5).met_by(point)
    assert not Contract(30.5, None).met_by(point)
    assert not Contract(None, 1.0).met_by(point)
    assert not Contract().asked


def test_standard_error_of_shares() -> None:
    assert standard_error(0.5, 100) == pytest.approx(0.05)
    assert 0 < standard_error(1.0, 100) < 0.02


def command(tmp_path: Path, *more: str) -> list[str]:
    from tenon.formats.exporters.onnx import to_onnx

    (tmp_path / "net.onnx").write_bytes(to_onnx(separable(None)).SerializeToString())
    np.save(tmp_path / "x.npy", np.concatenate(images(12)))
    return [
        "quantize",
        str(tmp_path / "net.onnx"),
        "--data",
        str(tmp_path / "x.npy"),
        "-o",
        str(tmp_path / "q.onnx"),
        "--method",
        "min-max",
        "--no-range-search",
        "--rounding",
        "nearest",
        "--scheme",
        "int4-weights",
        *more,
    ]


def test_a_noisy_output_is_printed_with_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    """Unless a contract was asked for."""
    from tenon.cli.quantize import _print

    report = tenon.quantize(separable(None), images(2), **FAST).report
    _print(report, verbose=False)
    assert "is noisy" not in capsys.readouterr().out
    noise = replace(report.outputs[0], sqnr=17.04)
    _print(replace(report, outputs=(noise,)), verbose=False)
    assert "output 'y' is noisy (17.0 dB): --min-sqnr 25 gives" in " ".join(capsys.readouterr().out.split())
    _print(replace(report, outputs=(noise,), points=(Point((), 17.0, 0.0, 1.0, 1, 1, 8.0),)), verbose=False)
    assert "is noisy" not in capsys.readouterr().out


@pytest.mark.slow
def test_pages_of_the_report_and_of_what_was_tried(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from tenon.cli.app import app

    more = ["--min-sqnr", "35", "--report", str(tmp_path / "report.html"), "--pareto", str(tmp_path / "pareto.html")]
    done = CliRunner().invoke(app, command(tmp_path, *more))
    assert done.exit_code == 0, done.output
    data = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', (tmp_path / "pareto.html").read_text()
    )
    assert data is not None
    points = json.loads(data[1])
    assert len(points) > 1
    for option, field in (("--exclude", "floats"), ("--int16", "wide"), ("--fp16", "fp16")):
        assert all((option in each["command"]) == bool(each[field]) for each in points)
    text = (tmp_path / "report.html").read_text()
    assert "<h2>Weights</h2>" in text
    assert "http" not in text
    done = CliRunner().invoke(app, command(tmp_path, "--pareto", str(tmp_path / "p.html")))
    assert "a search for --min-sqnr or --max-drop tried: give one of these" in str(done.exception or done.output)


@pytest.mark.slow
def test_the_command_of_a_click_makes_that_mixture(tmp_path: Path) -> None:
    """A point of the page is clicked in a browser, and the command that it shows is run."""
    if not SCRIPT.exists():
        pytest.skip("the package is not installed: no console script beside this Python")
    words = command(tmp_path, "--no-equalisation", "--no-bias-correction", "--samples", "10", "--target", "cortex-m4")
    more = ["--min-sqnr", "22", "--report", str(tmp_path / "report.json"), "--pareto", str(tmp_path / "pareto.html")]
    subprocess.run([SCRIPT, *words, *more], env=environment(), capture_output=True, check=True, timeout=300)
    points = json.loads((tmp_path / "report.json").read_text())["points"]
    wanted = next(i for i, each in enumerate(points) if each["floats"])
    click = f"document.querySelectorAll('circle')[{wanted}].dispatchEvent(new Event('click'))"
    _, shown = results(tmp_path / "pareto.html", click, "document.getElementById('command').textContent")
    assert "--min-sqnr" not in shown
    assert "--no-equalisation" in shown
    assert "--samples 10" in shown
    (tmp_path / "q.onnx").unlink()
    path = {**environment(), "PATH": f"{SCRIPT.parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", shown], env=path, cwd=tmp_path, capture_output=True, check=True, timeout=300)
    assert (tmp_path / "q" / "manifest.json").exists()  # a folder: this target loads no libraries
    comparison = compare(tmp_path / "net.onnx", tmp_path / "q.onnx", images(12))
    assert comparison.outputs[0].sqnr == pytest.approx(points[wanted]["sqnr"], abs=0.5)


def test_single_files_of_bundles_need_a_library(tmp_path: Path) -> None:
    """Said before the search, not after it."""
    from typer.testing import CliRunner

    from tenon.cli.app import app

    words = [str(tmp_path / "q.tenon") if word.endswith("q.onnx") else word for word in command(tmp_path)]
    done = CliRunner().invoke(app, [*words, "--target", "cortex-m4"])
    assert "q.tenon: target cortex-m4 has no library for a .tenon file: give a folder" in str(done.exception)
