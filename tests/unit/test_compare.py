"""Two networks on the same samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import exact_onnxruntime
import tenon
from networks_to_quantise import images, separable
from tenon.errors import InputError
from tenon.formats.exporters.onnx import to_onnx
from tenon.network.graph.graph import Graph
from tenon.tools.quantization.comparison import compare
from tenon.tools.quantization.post_training import Quantized

QUICK: dict[str, Any] = {"method": "min-max", "range_search": False, "rounding": "nearest", "equalisation": False}


@pytest.fixture(scope="module")
def made() -> Quantized:
    return tenon.quantize(separable(None), images(16), **QUICK)


def saved(graph: Graph, path: Path) -> str:
    path.write_bytes(to_onnx(graph).SerializeToString())
    return str(path)


def test_network_beside_itself_is_exact() -> None:
    comparison = compare(separable(), separable(), images(4), layers=True)
    assert comparison.outputs[0].sqnr == np.inf
    assert comparison.agreement == 1
    assert all(each.sqnr == np.inf for each in comparison.tensors)
    assert len(comparison.tensors) > 5


def test_quantised_network_layer_by_layer(made: Quantized) -> None:
    """Tensors of the same layer belong together, although integers have other names."""
    comparison = compare(separable(None), made.graph, images(16), layers=True)
    assert comparison.outputs[0].sqnr == pytest.approx(made.report.outputs[0].sqnr, abs=0.5)
    names = {each.name: each.sqnr for each in comparison.tensors}
    assert {"2", "4", "6"} <= names.keys()
    assert all(15 < names[name] < 60 for name in ("2", "4", "6"))


def test_onnxruntime_gives_the_same(tmp_path: Path, made: Quantized) -> None:
    path = saved(separable(), tmp_path / "net.onnx")
    comparison = compare(path, f"onnxruntime:{path}", images(4), layers=True)
    assert comparison.outputs[0].sqnr > 100
    assert {"2", "4", "6"} <= {each.name for each in comparison.tensors}
    assert all(each.sqnr > 100 for each in comparison.tensors)
    if exact_onnxruntime.saturates():
        pytest.skip(exact_onnxruntime.SATURATING)
    path = saved(made.graph, tmp_path / "q.onnx")
    assert compare(f"onnxruntime:{path}", path, images(4)).outputs[0].sqnr > 40


def test_bundle_shows_its_outputs(tmp_path: Path) -> None:
    tenon.compile(separable(), name="net").save(tmp_path / "net")
    comparison = compare(str(tmp_path / "net"), separable(), images(4))
    assert comparison.outputs[0].sqnr > 100
    assert comparison.tensors == ()
    with pytest.raises(InputError, match="shows its outputs only"):
        compare(separable(), str(tmp_path / "net"), images(4), layers=True)


def test_networks_that_do_not_match_are_errors(tmp_path: Path) -> None:
    from onnx import helper

    from networks_to_quantise import built

    other = built([helper.make_node("Relu", ["x"], ["y"])], {}, [1, 3, 4, 4], [1, 3, 4, 4])
    with pytest.raises(InputError, match="input 'x' is"):
        compare(separable(), other, images(2))
    with pytest.raises(InputError, match="no such file"):
        compare("onnxruntime:missing.onnx", other, images(2))
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match="onnxruntime cannot run it"):
        compare(f"onnxruntime:{tmp_path / 'broken.onnx'}", other, images(2))


def test_command_prints_tables_and_json_and_writes_a_page(tmp_path: Path, made: Quantized) -> None:
    from typer.testing import CliRunner

    from tenon.cli.app import app

    a, b = saved(separable(None), tmp_path / "a.onnx"), saved(made.graph, tmp_path / "b.onnx")
    np.save(tmp_path / "x.npy", np.concatenate(images(4)))
    arguments = ["compare", a, b, "--data", str(tmp_path / "x.npy"), "--layers"]
    done = CliRunner().invoke(app, [*arguments, "--json", "--report", str(tmp_path / "page.html")])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["samples"] == 4
    assert report["agreement_error"] > 0
    assert "<table>" in (tmp_path / "page.html").read_text()
    done = CliRunner().invoke(app, arguments)
    assert "worst tensors" in done.stdout
