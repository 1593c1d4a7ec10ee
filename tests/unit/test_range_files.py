"""Ranges of tensors in files: each format is read as it is written, and quantisation follows them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tenon
from command_line import run_main
from evaluate import evaluate
from quantised_networks import CASES, images, network, ranges_of
from tenon.cli import main
from tenon.errors import InputError, ModelError
from tenon.formats.exporters.save import save
from tenon.network.graph.graph import Graph
from tenon.tools.quantization.by_ranges import calibrated_ranges, quantize_by_ranges
from tenon.tools.quantization.range_files import FORMATS, format_of, ranges_text, read_ranges, write_ranges
from tenon.tools.quantization.scheme import named_scheme
from tenon.tools.quantization.trained import grid_ranges

INT8, SYMMETRIC, UINT8 = (named_scheme(name) for name in ("int8", "int8-symmetric", "uint8"))
RANGES = {"conv1/out:0": (-1.5, 2.25), "a b": (0.0, 6.0), "\u0442ensor#1": (-0.125, 1e-3)}


@pytest.mark.parametrize("form", ["yaml", "mace", "glow"])
def test_ranges_are_read_as_they_were_written(form: str, tmp_path: Path) -> None:
    write_ranges(tmp_path / "ranges", RANGES, INT8, form)
    ranges = read_ranges(tmp_path / "ranges", INT8)
    assert ranges == RANGES


@pytest.mark.parametrize("scheme", [SYMMETRIC, UINT8])
def test_a_table_of_tengine_gives_the_same_scales(scheme: object, tmp_path: Path) -> None:
    """The table rounds scales to 6 digits behind the point, as Tengine's tools do."""
    assert scheme in (SYMMETRIC, UINT8)
    used = SYMMETRIC if scheme is SYMMETRIC else UINT8
    ranges = {"data": (-100.5, 151.0), "relu": (0.0, 25.5)}
    write_ranges(tmp_path / "table.scale", ranges, used)
    again = read_ranges(tmp_path / "table.scale", used)
    for name, pair in ranges.items():
        ours, theirs = used.activation_grid(*pair), used.activation_grid(*again[name])
        np.testing.assert_allclose(theirs.scale, ours.scale, atol=1e-6)
        assert int(theirs.zero[0]) == int(ours.zero[0])


def test_lines_are_those_of_the_tools() -> None:
    ranges = {"data": (-12.7, 12.7)}
    assert ranges_text(ranges, SYMMETRIC, "tengine") == "data 0.100000 0\n"
    assert ranges_text(ranges, INT8, "mace") == "data@@-12.7,12.7\n"
    assert ranges_text(ranges, INT8, "yaml") == "data: [-12.7, 12.7]\n"
    assert ranges_text(ranges, INT8, "glow").count("NodeOutputName: data:0") == 1
    assert [format_of(name) for name in ("a.scale", "a.range", "a.yml", "a")] == ["tengine", "mace", "yaml", "yaml"]


def test_a_file_written_by_hand(tmp_path: Path) -> None:
    text = "---\n# of the camera\nimage: [0, 1]\n'it''s': [-1, 1.5e0]   # quoted\n\"tab\\there\" : [ -2.5 , 0 ]\n"
    (tmp_path / "ranges.yml").write_text(text)
    ranges = read_ranges(tmp_path / "ranges.yml", INT8)
    assert ranges == {"image": (0.0, 1.0), "it's": (-1.0, 1.5), "tab\there": (-2.5, 0.0)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [0, 1]\nb: [2, 1]\n", r"ranges:2: the range of 'b' is 2 to 1"),
        ("a: [0, 1, 2]\n", r"ranges:1: '0, 1, 2' is no range"),
        ("nothing here: at all\n", r"ranges:1: .* is no range: write"),
        ("a 0.5 300\n", r"ranges:1: scale 0.5 and zero point 300"),
        ("a 0 0\n", r"ranges:1: scale 0 and zero point 0"),
        ("a@@nan,1\n", r"ranges:1: .* is no range"),
        ("\n# empty\n", "there are no ranges in it"),
        ("---\nGlowToolsVersion: 1\n...\n", "it needs three documents"),
    ],
)
def test_damaged_files_are_errors_that_name_the_line(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "ranges").write_text(text)
    with pytest.raises(InputError, match=words):
        read_ranges(tmp_path / "ranges", INT8)


def test_unknown_formats_are_errors(tmp_path: Path) -> None:
    assert "yaml" in FORMATS
    with pytest.raises(InputError, match="no format 'json'"):
        write_ranges(tmp_path / "ranges", RANGES, INT8, "json")


def test_calibrated_ranges_are_what_tensors_hold() -> None:
    graph = network(CASES["add"])
    ranges, wanted = calibrated_ranges(graph, images()), ranges_of(graph)
    del ranges["x"]  # wanted from -1 to 1
    assert ranges
    for name, pair in ranges.items():
        np.testing.assert_allclose(pair, wanted[name], rtol=1e-4)
    with pytest.raises(InputError, match="no method 'best'"):
        calibrated_ranges(graph, images(), method="best")


# ------------------------------------------------------------------------------------------ known ranges
def same(a: Graph, b: Graph) -> None:
    for image in images():
        for ours, theirs in zip(evaluate(a, {"x": image}).values(), evaluate(b, {"x": image}).values(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("form", FORMATS)
def test_saved_ranges_quantise_the_same_without_samples(form: str, tmp_path: Path) -> None:
    """The scales in Tengine's table have 6 digits behind the point."""
    scheme = "uint8" if form == "tengine" else "int8"
    graph = network(CASES["concat"])
    first = tenon.quantize(graph, ranges=ranges_of(graph), scheme=scheme)
    first.save_ranges(tmp_path / "ranges", form)
    again = tenon.quantize(graph, ranges=tmp_path / "ranges", scheme=scheme)
    if form == "tengine":
        first = again
        again.save_ranges(tmp_path / "ranges", form)
        again = tenon.quantize(graph, ranges=tmp_path / "ranges", scheme=scheme)
    same(first.graph, again.graph)


def test_missing_ranges_are_calibrated_and_given_ones_kept(tmp_path: Path) -> None:
    graph = network(CASES["relu"])
    made = tenon.quantize(graph, images(), ranges={"c": (0.0, 51.0)}, method="min-max")
    ranges = grid_ranges(made.graph)
    assert ranges["c"] == pytest.approx((0.0, 51.0), rel=1e-6)
    assert ranges["x"][1] == pytest.approx(calibrated_ranges(graph, images())["x"][1], rel=0.02)
    with pytest.raises(InputError, match=r"no range for tensor 'x' and 1 others: give samples \(--data\)"):
        tenon.quantize(graph, ranges={"c": (0.0, 51.0)})
    with pytest.raises(InputError, match="none of its tensors is called 'unknown'"):
        tenon.quantize(graph, images(), ranges={"unknown": (0.0, 1.0)})


def test_a_model_of_fake_quantisation_keeps_its_ranges_and_weights() -> None:
    """The first convolution is quantised, the rest is in floats: those ranges are missing."""
    made = tenon.quantize(network(CASES["relu"]), ranges=ranges_of(network(CASES["relu"])))
    part = quantize_by_ranges(network(CASES["relu"]), ranges_of(network(CASES["relu"])), exclude=["b"])
    assert len(grid_ranges(part)) < len(grid_ranges(made.graph))
    with pytest.raises(InputError, match="no range for tensor"):
        tenon.quantize(part)
    whole = tenon.quantize(part, ranges={"b": grid_ranges(made.graph)["b"]})
    assert grid_ranges(whole.graph) == grid_ranges(made.graph)
    same(whole.graph, made.graph)


def test_a_quantised_model_becomes_another_file_as_it_is(tmp_path: Path) -> None:
    made = tenon.quantize(network(CASES["depthwise"]), ranges=ranges_of(network(CASES["depthwise"])))
    made.save(tmp_path / "net.onnx")
    again = tenon.quantize(tmp_path / "net.onnx")
    same(made.graph, again.graph)
    again.save(tmp_path / "net.tflite")
    with pytest.raises(ModelError, match="quantised already"):
        tenon.quantize(tmp_path / "net.onnx", images())


def test_ranges_on_the_command_line(tmp_path: Path) -> None:
    save(network(CASES["relu"]), tmp_path / "net.onnx")
    np.save(tmp_path / "data.npy", np.concatenate(images()))
    words = ["quantize", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "q.tflite")]
    fast = ["--data", str(tmp_path / "data.npy"), "--method", "min-max", "--no-range-search", "--no-bias-correction"]
    assert not run_main(
        main,
        [*words, *fast, "--no-equalisation", "--rounding", "nearest", "--save-ranges", str(tmp_path / "net.range")],
    )
    first = (tmp_path / "q.tflite").read_bytes()
    assert "c@@0.0," in (tmp_path / "net.range").read_text()
    assert not run_main(main, [*words, "--ranges", str(tmp_path / "net.range")])
    assert (tmp_path / "q.tflite").read_bytes() == first
