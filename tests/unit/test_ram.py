"""A budget of RAM: the results are the same, the cost is stated, or the error names the least budget."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tenon
from command_line import run_main
from evaluate import random_inputs
from integer_models import model
from patched_networks import FLOATS, INTEGERS, network
from tenon.cli import main
from tenon.cli.console import patches_text
from tenon.errors import InputError
from tenon.machine.plan.program import Patches
from tenon.network.graph.graph import Array
from tenon.options import DataType
from tenon.runtime.bundle import Bundle, read_manifest


def compiled(text: str, ram: int | str | None = None, target: str = "host") -> Bundle:
    return tenon.compile(network(text), target=target, ram=ram, name="net", no_tuning=True)


def answers(bundle: Bundle, given: dict[str, Array]) -> Array:
    with tenon.open(bundle) as engine:
        (answer,) = engine.run(given).values()
        return np.array(answer)


@pytest.mark.parametrize("text", [FLOATS, INTEGERS])
def test_patches_change_no_answers(text: str) -> None:
    """In integers not a bit; in floats no more than sums in another order do."""
    given = random_inputs(network(text))
    if text is INTEGERS:
        given = {"x": np.random.default_rng(1).integers(-128, 128, (1, 4, 13, 6)).astype(np.int8)}
    whole = compiled(text)
    least = least_of(text)
    expected, peak = answers(whole, given), whole.program.memory.peak
    assert least < peak
    for ram in (least, peak - 1):
        bundle = compiled(text, ram)
        assert bundle.program.memory.peak <= ram
        patches = bundle.program.patches
        assert patches is not None
        assert patches.number > 1
        extra = sum(c.macs for c in bundle.program.calls) - sum(c.macs for c in whole.program.calls)
        assert patches.extra_macs == pytest.approx(extra, abs=1)
        np.testing.assert_allclose(answers(bundle, given), expected, rtol=1e-5, atol=0 if text is INTEGERS else 1e-6)
    assert compiled(text, peak).program.patches is None
    with pytest.raises(InputError, match=rf"at least {least} bytes .* at layer \S+ \(\S+\); the budget is .*: allow"):
        compiled(text, least - 1)


def least_of(text: str) -> int:
    """The least budget, from the refusal of a smaller one."""
    with pytest.raises(InputError, match=r"net\.onnx: needs at least \d+ bytes of RAM") as refusal:
        compiled(text, 1)
    return int(str(refusal.value).split("at least ")[1].split()[0])


def test_inputs_and_outputs_that_exceed_the_budget_alone() -> None:
    with pytest.raises(InputError, match="inputs and outputs alone exceed it"):
        compiled(INTEGERS, 100)


@pytest.mark.parametrize(("text", "bytes_"), [("64K", 65536), ("60kB", 60000), ("1.5 MiB", 1572864), (777, 777)])
def test_units(text: str | int, bytes_: int) -> None:
    assert tenon.Options.from_environment(ram=text).ram == bytes_


@pytest.mark.parametrize("text", ["64 apples", "-1", "0", 0, "", 1.5])
def test_what_is_no_number_of_bytes(text: str | float) -> None:
    with pytest.raises(InputError, match="option ram="):
        tenon.Options.from_environment(ram=text)


def write_net(folder: Path) -> Path:
    """A model file of two convolutions whose image between is large."""
    rng = np.random.default_rng(2)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [rng.normal(size=shape).astype(np.float32) for shape in ((16, 1, 3, 3), (2, 16, 3, 3))]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["wide"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["wide", "w1"], ["y"], name="second", strides=[2, 2]),
    ]
    constants = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    path = folder / "net.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "net", [x], [y], constants)), path)
    return path


def test_commands_say_what_was_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_net(tmp_path)
    out = tmp_path / "bundle"
    command = ["compile", str(path), "--target", "cortex-m4", "--out", str(out), "--emit", "c,manifest"]
    assert run_main(main, [*command, "--ram", "6000"]) == 0
    assert "in patches" in capsys.readouterr().out
    manifest = read_manifest(out)
    assert manifest.options["ram"] == 6000
    assert manifest.memory.peak <= 6000
    assert manifest.patches is not None
    assert manifest.patches.extra_macs > 0
    assert f"{manifest.patches.number} patches of {manifest.patches.rows} rows" in (out / "net.c").read_text()[:1000]
    assert run_main(main, ["inspect", str(out)]) == 0
    assert "in patches" in capsys.readouterr().out
    assert run_main(main, ["inspect", str(path), "--target", "cortex-m4", "--ram", "6000", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["patches"]["extra_macs"] == manifest.patches.extra_macs
    assert described["largest"].split()[0] in ("first", "second")


def test_what_does_not_fit_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = write_net(tmp_path), tmp_path / "bundle"
    assert run_main(main, ["compile", str(path), "--target", "cortex-m4", "--out", str(out), "--ram", "2K"]) == 2
    said = capsys.readouterr().err
    assert "needs at least" in said
    assert "Traceback" not in said
    assert not out.exists()


def test_bindings_fit_each(tmp_path: Path) -> None:
    """Every binding is planned within the budget."""
    path = write_net(tmp_path)
    whole = tenon.compile(path, shapes=[{}, {}], target="cortex-m4", no_tuning=True)
    bundle = tenon.compile(path, shapes=[{}, {}], target="cortex-m4", no_tuning=True, ram=6000)
    assert bundle.program.memory.peak <= 6000 < whole.program.memory.peak
    assert all(program.patches for program in (bundle.program, *bundle.more))


def test_text_of_costs() -> None:
    assert (
        patches_text(Patches(4, 5, 7, "conv", 234240)) == "the first 7 layers, to conv: 4 of 5 rows, 234.24 k MACs more"
    )
    assert patches_text(Patches(2, 2, 4, "pool", -900)).endswith(", 900 MACs fewer")


# ------------------------------------------------------------------------------------------------ the collection
def test_mcunet_within_60_kb() -> None:
    """The int8 network of MCUNet for visual wake words, with its input of bytes."""
    graph = tenon.load(model("mcunet"))
    kinds: dict[str, DataType] = {v.name: "quantized" for v in (*graph.inputs, *graph.outputs)}
    bundle = tenon.compile(graph, target="cortex-m4", arithmetic="tflm", data_types=kinds, ram="60kB", no_tuning=True)
    assert bundle.program.memory.peak <= 60000
    assert bundle.program.memory.mutable >= 80 * 80 * 3
    assert bundle.program.patches is not None
    assert bundle.program.patches.extra_macs < 0.03 * 11.58e6
