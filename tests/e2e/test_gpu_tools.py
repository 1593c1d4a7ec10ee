"""Tools on GPU targets: profiles, benchmarks, comparisons and tuning."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tenon
from command_line import run_main
from gpu_devices import needs_compiler, why_not
from onnx_models import model, node, random
from real import DIGITS, held_out_digits
from tenon.cli import main
from tenon.errors import InputError
from tenon.machine.codegen.backend import find as find_backend
from tenon.machine.codegen.gpu.backend import DeviceBackend
from tenon.machine.plan.lowering_context import Setting
from tenon.machine.targets import find as find_target
from tenon.network.graph.graph import Graph
from tenon.quantization import compare
from tenon.runtime.engine import Engine
from tenon.runtime.engine.device_here import device_here
from tenon.tools.tune.search import Job, jobs


@pytest.fixture(params=("opencl", "cuda", pytest.param("vulkan", marks=pytest.mark.slow)), scope="module")
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
    assert device.units > 0 or device.version.startswith("Vulkan")  # which does not tell
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


# ----------------------------------------------------------------------------------------- comparisons
def test_benchmarks_list_the_parts_of_a_run(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["benchmark", str(DIGITS / "digits.onnx"), "--target", target, "--rounds", "3", "--no-tuning"]
    assert run_main(main, command) == 0
    text = capsys.readouterr().out
    assert re.search(r"driver \S+.*: inputs .* kernels .* outputs .* created in ", text)
    assert run_main(main, [*command, "--json"]) == 0
    (network,) = json.loads(capsys.readouterr().out)["networks"]
    assert all(network[part] > 0 for part in ("create", "upload", "kernels", "download"))
    assert network["device"]["name"] in text


def two_layers(folder: Path) -> str:
    """A model that a driver compiles in a moment: a matrix product, and its hyperbolic tangent."""
    nodes = [node("MatMul", ["x", "w"], ["product"]), node("Tanh", ["product"], ["y"])]
    made = model(nodes, {"x": [2, 8]}, ["product", "y"], {"w": random(8, 6)})
    (folder / "small.onnx").write_bytes(made.SerializeToString())
    return str(folder / "small.onnx")


def test_a_device_is_compared_with_the_processor(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the name of a target before the file."""
    small = two_layers(tmp_path)
    np.save(tmp_path / "data.npy", random(2, 2, 8))
    command = ["compare", small, f"{target}:{small}", "--data", str(tmp_path / "data.npy"), "--samples", "2", "--json"]
    assert run_main(main, command) == 0
    compared = json.loads(capsys.readouterr().out)
    assert all(each["sqnr"] is None or each["sqnr"] > 100 for each in compared["outputs"])


def test_targets_of_other_machines_are_refused() -> None:
    with pytest.raises(InputError, match="cortex-m4: its code does not run in this process"):
        compare(f"cortex-m4:{DIGITS / 'digits.onnx'}", str(DIGITS / "digits.onnx"), {})


def test_the_first_layer_that_diverges_is_named(
    target: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel that computes nothing of its layer: the layer is named without --layers."""
    command = ["validate", two_layers(tmp_path), "--target", target, "--against", "host", "--samples", "2"]
    command.append("--no-tuning")
    assert run_main(main, command) == 0
    assert "ran on" in capsys.readouterr().err
    backend = find_backend(target)
    assert isinstance(backend, DeviceBackend)
    embedded = backend.language.embedded

    def broken(kernels: str, groups: Sequence[int] = ()) -> str:
        """The step of the layer product, which returns at once."""
        start = re.search(r"product.*\n.*_step_\d+\(.*\{\n|void (?:matmul|vector_product)\w*\(.*\{\n", kernels)
        assert start
        return embedded(f"{kernels[: start.end()]}  return;\n{kernels[start.end() :]}", groups)

    language = replace(backend.language, embedded=broken)
    monkeypatch.setattr(f"tenon.machine.codegen.{target}.BACKEND", DeviceBackend(language))
    monkeypatch.setenv("TENON_CACHE", str(tmp_path))
    assert run_main(main, command) == 2
    shown = capsys.readouterr()
    assert "the first layer that differs is 'product'" in shown.err.replace("\n", " ")
    assert "worst layers" in shown.out


def test_inspect_says_how_much_memory_of_the_device_is_needed(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = engine.manifest.target.name
    folder = tenon.compile(DIGITS / "digits.onnx", target=target, no_tuning=True).save(tmp_path / "out")
    assert run_main(main, ["inspect", str(folder)]) == 0
    assert re.search(r"memory of the device +\d", capsys.readouterr().out)


# ---------------------------------------------------------------------------------------------- tuning
def test_times_are_kept_by_device_and_driver(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times of kernels, which ``compile`` uses on the same device only."""
    nodes = [node("Conv", ["x", "w"], ["y"])]
    made = model(nodes, {"x": [1, 4, 6, 6]}, ["y"], {"w": random(4, 4, 1, 1)}).SerializeToString()
    (tmp_path / "small.onnx").write_bytes(made)
    table, device = tmp_path / "times.sqlite", device_here(find_target(target))
    assert device is not None  # found by a program without kernels
    monkeypatch.setattr("tenon.tools.tune.search.jobs", few_candidates(jobs))
    command = ["tune", str(tmp_path / "small.onnx"), "--target", target, "--table", str(table), "--json"]
    assert run_main(main, command) == 0
    (layer,) = json.loads(capsys.readouterr().out)["models"]["small.onnx"]["layers"]
    assert all(0 < seconds < 1 for seconds in layer["seconds"].values())
    with sqlite3.connect(table) as rows:
        assert rows.execute("select distinct target, compiler from measured").fetchall() == [(target, str(device))]
    assert tenon.compile(made, target=target, tuning=table).interface.tuned
    other = replace(device, driver="another version")
    monkeypatch.setattr("tenon.runtime.engine.device_here.device_here", lambda target: other)
    assert tenon.compile(made, target=target, tuning=table).interface.tuned is None


def few_candidates(usual: Callable[[Graph, Setting], list[Job]]) -> Callable[[Graph, Setting], list[Job]]:
    """Two candidates of each layer."""
    return lambda graph, setting: [replace(job, candidates=job.candidates[:2]) for job in usual(graph, setting)]


def test_targets_of_processors_have_no_device() -> None:
    assert device_here(find_target("host")) is None
