"""MACE's options that select devices: run, benchmark and validate on those of its devices.yml."""

from __future__ import annotations

import re
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest
import yaml

from onnx_models import model, node
from tenon.compat.mace.__main__ import main as mace
from tenon.compat.mace.devices import add_options, selected_devices
from tenon.errors import InputError
from tenon.tools.devices import config

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)


@pytest.fixture(autouse=True)
def _no_adb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "serials", list)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's file, samples, and two devices that are this machine."""
    made = model([node("Relu", ["x"], ["y"])], {"x": [1, 8]}, ["y"])
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", np.maximum(X, 0))
    network = {
        "platform": "onnx",
        "model_file_path": "net.onnx",
        "data_type": "fp32_fp32",
        "runtime": "cpu",
        "subgraphs": [
            {
                "input_tensors": "x",
                "input_shapes": "1,8",
                "output_tensors": "y",
                "output_shapes": "1,8",
                "validation_inputs_data": "x.npy",
                "validation_outputs_data": "y.npy",
            }
        ],
    }
    whole = {"library_name": "lib", "target_abis": ["arm64"], "models": {"net": network}}
    (tmp_path / "mace.yml").write_text(yaml.safe_dump(whole))
    devices = {
        "board": {"system": "host", "target_socs": "RK3399", "target_abis": "host", "folder": str(tmp_path / "a")},
        "other": {"system": "host", "target_socs": "BCM2837", "target_abis": "armhf", "folder": str(tmp_path / "b")},
    }
    (tmp_path / "devices.yml").write_text(yaml.safe_dump({"devices": devices}))
    return tmp_path


def selected(folder: Path, *words: str) -> list[str]:
    parser = ArgumentParser()
    parser.add_argument("--target_abis", default="")
    add_options(parser)
    return [spec.name for spec in selected_devices(parser.parse_args([*words]))]


def test_devices_that_options_select(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = ("--device_yml", str(folder / "devices.yml"))
    assert selected(folder) == []
    assert selected(folder, *file) == selected(folder, *file, "--target_socs", "all") == ["board", "other"]
    assert selected(folder, *file, "--target_socs", "rk3399") == ["board"]
    assert selected(folder, *file, "--devices_to_run", "other, board") == ["other", "board"]
    assert selected(folder, *file, "--target_abis", "armhf") == ["other"]
    assert selected(folder, *file, "--target_socs", "random", "--target_abis", "host") == ["board"]
    monkeypatch.chdir(folder)
    assert selected(folder, "--target_socs", "BCM2837") == ["other"], "devices.yml of the working folder"
    with pytest.raises(InputError, match="has the ABI arm64"):
        selected(folder, *file, "--target_abis", "arm64")
    with pytest.raises(InputError, match="no device 'x': there are board, other"):
        selected(folder, *file, "--target_socs", "x")


def test_run_and_validate_on_a_device(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config", str(folder / "mace.yml"), "--device_conf", str(folder / "devices.yml")]
    words += ["--target_socs", "RK3399", "--target_abis", "host"]
    assert mace(["run", *words, "--round", "2", "--validate"]) == 0
    done = capsys.readouterr().out
    assert re.search(r"^net host: avg \d+\.\d+ ms, .* 2 run\(s\) on device board$", done, re.MULTILINE)
    assert "Similarity Test Passed" in done
    assert list((folder / "a").iterdir()) == []
    np.save(folder / "y.npy", -X)
    assert mace(["validate", *words]) == 2
    assert "output 'y' differs" in capsys.readouterr().err
