"""Deployment files: every key of both forms, problems with their lines, and the bundles that they make."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tenon
from installed import succeeds
from installed import tenon as command
from onnx_models import model, node
from real import shared
from tenon.errors import FormatError, InputError, TenonError, UnsupportedError
from tenon.formats.wire.encryption import WrongKeyError
from tenon.tools.deployment import DeployedModel, conversion, read_deployment
from tenon.tools.deployment.base import ModelSource
from tenon.tools.deployment.conversion import convert
from tenon.tools.deployment.mace_config import MaceFile, MaceModel, MaceSubgraph

IMAGE = [1, 3, 4, 6]


def network(path: Path) -> Path:
    """Twice the sum of two images, and a relu of one of them."""
    nodes = [node("Add", ["x", "y"], ["sum"]), node("Add", ["sum", "sum"], ["twice"]), node("Relu", ["sum"], ["relu"])]
    path.write_bytes(model(nodes, {"x": IMAGE, "y": IMAGE}, ["twice", "relu"]).SerializeToString())
    return path


def written(folder: Path, content: object, name: str = "deploy.yml") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def problems(path: Path, **environment: str) -> list[str]:
    """The problems of a file, without its path."""
    with pytest.raises(InputError) as caught:
        read_deployment(path, environment)
    return [line.removeprefix(f"{path}:") for line in str(caught.value).splitlines()]


# ------------------------------------------------------------------------------------------------- YAML
def test_words_that_yaml_1_1_takes_for_booleans_are_text(tmp_path: Path) -> None:
    file = written(tmp_path, "models: {net: {model: on.onnx, labels: [ON, off, yes, '1:30']}}")
    assert read_deployment(file).models[0].options["labels"] == ("ON", "off", "yes", "1:30")


def test_variables_of_the_environment_are_replaced(tmp_path: Path) -> None:
    file = written(tmp_path, "models: {net: {model: '${FOLDER}/net.onnx'}}")
    assert read_deployment(file, {"FOLDER": "/data"}).models[0].source.file == "/data/net.onnx"
    assert problems(file) == ["1: models.net.model: the environment variable FOLDER is not set"]


def test_anchors_are_merged(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        "models:\n  a: &a {model: a.onnx, threads: 2, winograd: 0}\n  b: {<<: *a, model: b.onnx, threads: 3}\n",
    )
    a, b = read_deployment(file).models
    assert (Path(b.source.file).name, dict(b.options)) == ("b.onnx", {"winograd": 0, "threads": 3})
    assert dict(a.options) == {"threads": 2, "winograd": 0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [", "not YAML"),
        ("models: {net: {model: *a}}", "alias"),
        ("a: 1\n---\nb: 2\n", "document"),
        (b"models: \xff", "UTF-8"),
        ("&a [*a]", "more than"),
        ("[" * 3000, "nested"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + "".join(f"{y}: &{y} [{','.join(['*' + x] * 10)}]\n" for x, y in zip("abcdefg", "bcdefgh", strict=True)),
            "more than",
        ),
    ],
)
def test_damaged_files(tmp_path: Path, text: str | bytes, words: str) -> None:
    path = tmp_path / "deploy.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FormatError, match=words):
        read_deployment(path)


def test_no_python_objects_are_made(tmp_path: Path) -> None:
    file = written(tmp_path, "models: {net: {model: !!python/object/apply:os.getcwd []}}")
    with pytest.raises(InputError):
        read_deployment(file)


def test_a_model_is_read_again_only_for_another_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[dict[str, Any]] = []

    def load(*given: Any, **more: Any) -> tenon.Graph:
        loaded.append(more)
        return tenon.load(*given, **more)

    monkeypatch.setattr(conversion, "load", load)
    network(tmp_path / "net.onnx")
    for shape, times in (((1, 3, 4, 6), 1), ((1, 3, 2, 6), 2)):
        loaded.clear()
        ports = {name: {"shape": list(shape)} for name in "xy"}
        content = {"models": {"net": {"model": "net.onnx", "inputs": ports, "targets": ["null"]}}}
        tenon.convert(read_deployment(written(tmp_path, content)), tmp_path / "out")
        assert len(loaded) == times


def test_shapes_have_ranges(tmp_path: Path) -> None:
    """As lists and as texts, in the order that the format names; one bundle runs at all sizes of them."""
    network(tmp_path / "net.onnx")
    sizes = (tenon.Size("H", 2, 8, 2), tenon.Size("W", 3, 6))
    for given in (["1", 3, "H:2..8:2", "W:3..6"], "1, 3, H:2..8:2, W:3..6"):
        ports = {"x": {"shape": given, "format": "NCHW"}, "y": {"shape": given, "format": "NCHW"}}
        content = {"models": {"net": {"model": "net.onnx", "inputs": ports}}}
        deployment = read_deployment(written(tmp_path, content))
        assert deployment.models[0].inputs[0].shape == (1, 3, *sizes)
    tenon.convert(deployment, tmp_path / "out")
    with tenon.open(next((tmp_path / "out").glob("net/*/manifest.json")).parent) as engine:
        for shape in ((1, 3, 4, 5), (1, 3, 8, 6)):
            x, y = (np.random.default_rng(seed).random(shape, np.float32) for seed in range(2))
            results = engine.run({"x": x, "y": y})
            assert {array.shape for name, array in results.items() if name not in ("H", "W")} == {shape}
    ports = {"x": {"shape": [1, 3, "H:8..2", 6]}}
    with pytest.raises(InputError, match=r"inputs\.x\.shape\.2: .*is not above"):
        read_deployment(written(tmp_path, {"models": {"net": {"model": "net.onnx", "inputs": ports}}}))


# ------------------------------------------------------------------------------------------------- Tenon's form
def test_all_problems_are_listed_with_their_lines(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """\
name: two
defaults:
  thread: 2
models:
  first:
    modle: a.onnx
    inputs:
      x: {shape: [1, a], fromat: NHWC}
  second:
    model: b.onnx
    winograd: 3
    winograd: 3
    quantize: {samples: 0}
  third: 7
""",
    )
    lines = problems(file)
    assert lines[0] == "3: defaults.thread: there is no such key; did you mean 'threads'?"
    for expected in (
        "5: models.first.model: this key is required",
        "6: models.first.modle: there is no such key; did you mean 'model'?",
        "8: models.first.inputs.x.fromat: there is no such key; did you mean 'format'?",
        "12: models.second.winograd: this key is given twice",
        "14: models.third: must be a mapping of keys to values",
    ):
        assert expected in lines, lines
    assert any(line.startswith("8: models.first.inputs.x.shape.1: input should be a valid integer") for line in lines)
    assert any(line.startswith("12: models.second.winograd: it must be one of 0, 2, 4") for line in lines), lines
    assert any(line.startswith("13: models.second.quantize.samples") for line in lines)


def test_every_key_of_a_model_is_read(tmp_path: Path) -> None:
    content = {
        "name": "all",
        "defaults": {"targets": ["host", "aarch64"], "threads": 2},
        "models": {
            "net": {
                "model": "net.prototxt",
                "weights": "w/net.caffemodel",
                "sha256": "ab" * 32,
                "weights_sha256": "cd" * 32,
                "inputs": {
                    "x": {"shape": "1,4,6,3", "type": "uint8", "format": "NHWC", "range": [-1, 1], "data": "x.npy"}
                },
                "outputs": ["sum"],
                "quantize": {
                    "data": "photos",
                    "ranges": "r.yml",
                    "samples": 3,
                    "seed": 4,
                    "scheme": "uint8",
                    "method": "mse",
                    "change_concat_ranges": True,
                    "exclude": "a,b",
                    "min_sqnr": 30,
                    "max_drop": 0.5,
                    "metric": "top-1",
                },
                "validate": {"cpu": 0.9},
                "threads": 1,
                "ram": "64K",
                "labels": ["a", "b"],
            }
        },
    }
    (net,) = read_deployment(written(tmp_path, content)).models
    assert net.source.file == str(tmp_path / "net.prototxt")
    assert (net.source.sha256, net.source.weights_sha256) == ("ab" * 32, "cd" * 32)
    (x,) = net.inputs
    assert (x.shape, x.type, x.format, x.range) == ((1, 4, 6, 3), "uint8", "NHWC", (-1.0, 1.0))
    assert x.data == (str(tmp_path / "x.npy"),)
    assert [port.name for port in net.outputs] == ["sum"]
    assert net.quantize == {
        "data": str(tmp_path / "photos"),
        "ranges": str(tmp_path / "r.yml"),
        "change_concat_ranges": True,
        "samples": 3,
        "seed": 4,
        "scheme": "uint8",
        "method": "mse",
        "exclude": ("a", "b"),
        "min_sqnr": 30,
        "max_drop": 0.5,
        "metric": "top-1",
    }
    assert net.thresholds == {"cpu": 0.9, "quantized": 0.98}
    assert net.targets == ("host", "aarch64")
    assert dict(net.options) == {"threads": 1, "ram": 65536, "labels": ("a", "b")}


def test_bundles_answer_in_the_requested_formats(tmp_path: Path) -> None:
    network(tmp_path / "net.onnx")
    content = {
        "models": {
            "Net-1": {
                "model": "net.onnx",
                "outputs": ["relu"],
                "inputs": {"x": {"shape": [1, 4, 6, 3], "format": "NHWC"}, "y": {}},
            }
        }
    }
    (made,) = tenon.convert(read_deployment(written(tmp_path, content)), tmp_path / "out")
    assert made.folder == tmp_path / "out" / "Net-1" / "host"
    x, y = np.random.default_rng(0).normal(size=(2, *IMAGE)).astype(np.float32)
    with tenon.open(made.folder) as engine:
        answer = engine.run({"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "y": y})
    assert list(answer) == ["relu"]
    np.testing.assert_allclose(answer["relu"], np.maximum(x + y, 0), rtol=1e-6)


def test_missing_files_of_all_models_are_listed_before_anything_is_compiled(tmp_path: Path) -> None:
    network(tmp_path / "good.onnx")
    network(tmp_path / "other.onnx")
    content = {
        "models": {
            "good": {"model": "good.onnx"},
            "changed": {"model": "other.onnx", "sha256": "0" * 64},
            "absent": {"model": "absent.onnx"},
            "half": {"model": "good.onnx", "weights": "none.bin"},
        }
    }
    done = command("convert", "--config", written(tmp_path, content), "-o", "out", cwd=tmp_path)
    assert done.returncode == 2
    text = " ".join(done.stderr.split())
    for words in ("models.changed.sha256: ", "the SHA-256 is", "models.absent.model: ", "models.half.weights: "):
        assert words in text
    assert "models.good" not in text
    assert not (tmp_path / "out").exists()


def test_convert_command(tmp_path: Path) -> None:
    file = network(tmp_path / "net.onnx")
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    config = written(tmp_path, {"models": {"a": {"model": "net.onnx", "sha256": sha256}, "b": {"model": "net.onnx"}}})
    assert "2 model(s), no problems" in succeeds("convert", "--config", config, "--check", cwd=tmp_path)
    absent = {"models": {name: {"model": "net.onnx", "inputs": {"nothing": {}}} for name in "ab"}}
    wrong = written(tmp_path, absent, "wrong.yml")
    refused = command("convert", "--config", wrong, "--check", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.count("no tensor is called") == 2
    made = json.loads(succeeds("convert", "--config", config, "--model", "b", "-o", "out", "--json", cwd=tmp_path))
    assert [(each["model"], each["target"]) for each in made["bundles"]] == [("b", "host")]
    assert (tmp_path / "out" / "b" / "host" / "manifest.json").exists()
    assert not (tmp_path / "out" / "a").exists()
    unknown = command("convert", "--config", config, "--model", "c", cwd=tmp_path)
    assert (unknown.returncode, "there is no model 'c'" in " ".join(unknown.stderr.split())) == (2, True)


# ------------------------------------------------------------------------------------------------- MACE's form
def mace(folder: Path, more: dict[str, Any] | None = None, part: dict[str, Any] | None = None, **top: Any) -> Path:
    subgraph = {"input_tensors": "x", "input_shapes": "1,4,6,3", "output_tensors": "relu", "output_shapes": "1,4,6,3"}
    section = {"platform": "ONNX", "model_file_path": "net.onnx", "subgraphs": [{**subgraph, **(part or {})}]}
    return written(folder, {"models": {"net": {**section, **(more or {})}}, **top})


def only(path: Path) -> DeployedModel:
    (model,) = read_deployment(path).models
    return model


KEYS: dict[str, tuple[Any, Any]] = {
    "input_tensors": (["x"], lambda m: [p.name for p in m.inputs] == ["x"]),
    "input_shapes": (["1,2,3,4"], lambda m: m.inputs[0].shape == (1, 2, 3, 4)),
    "output_tensors": (["sum"], lambda m: [p.name for p in m.outputs] == ["sum"]),
    "output_shapes": (["1,5"], lambda m: m.outputs[0].shape == (1, 5)),
    "input_ranges": ("-1.0,1.0", lambda m: m.inputs[0].range == (-1.0, 1.0)),
    "input_data_types": ("uint8", lambda m: m.inputs[0].type == "uint8"),
    "output_data_types": ("float16", lambda m: m.outputs[0].type == "float16"),
    "input_data_formats": ("nchw", lambda m: m.inputs[0].format == "NCHW"),
    "output_data_formats": ("NONE", lambda m: m.outputs[0].format == "NONE"),
    "validation_inputs_data": (["x.npy"], lambda m: [Path(file).name for file in m.inputs[0].data] == ["x.npy"]),
    "validation_outputs_data": (["http://h/y.npy"], lambda m: m.outputs[0].data == ("http://h/y.npy",)),
    "runtime": ("gpu", lambda m: (m.offload, m.device_of) == (("opencl",), ("*=opencl",))),
    "data_type": ("fp32_fp32", lambda m: m.options["precision"] == "fp32"),
    "quantize": (1, lambda m: m.quantize == {"scheme": "uint8"} and "precision" not in m.options),
    "quantize_large_weights": (1, lambda m: m.quantize == {"scheme": "int8-weights-only"}),
    "winograd": (4, lambda m: m.options.get("winograd") == 4),
    "validation_threshold": ({"CPU": 0.5, "quantize": 0.4}, lambda m: m.thresholds == {"cpu": 0.5, "quantized": 0.4}),
    "accuracy_validation_script": ("a.py", lambda m: [Path(file).name for file in m.accuracy] == ["a.py"]),
    "model_sha256_checksum": ("ab" * 32, lambda m: m.source.sha256 == "ab" * 32),
    "weight_file_path": ("w.bin", lambda m: (m.source.weights or "").endswith("w.bin")),
    "weight_sha256_checksum": ("cd" * 32, lambda m: m.source.weights_sha256 == "cd" * 32),
    "model_file_path": ("https://h/m.onnx", lambda m: m.source.file == "https://h/m.onnx"),
    "platform": ("Caffe", lambda m: m.name == "net"),
    "micro": ({"backend": "cmsis"}, lambda m: m.options.get("emit") == ("micro",)),
    "obfuscate": (1, lambda m: m.options.get("obfuscate") == "layers"),
    "subgraphs": (
        {"a": {"input_tensors": "x", "output_tensors": "sum"}},
        lambda m: [p.name for p in m.outputs] == ["sum"],
    ),
}
"""A value of each key, and what it must change."""

NOTED: dict[str, Any] = {
    "input_aliases": ["i"],
    "output_aliases": "o",
    "check_tensors": ["sum"],
    "check_shapes": ["1,2"],
    "backend": "kaldi",
    "cl_mem_type": "buffer",
    "order": 1,
    "graph_optimize_options": ["FOLD_RESHAPE"],
    "dsp_mode": 1,
    "limit_opencl_kernel_time": 1,
    "opencl_queue_window_size": 1,
    "nnlib_graph_mode": 1,
    "docker_image_tag": "t",
    "dockerfile_path": "p",
    "dockerfile_sha256_checksum": "e" * 64,
    "accelerator_api": "qnn",
}
"""Keys without effect, which are noted."""

_OF_MODELS = set(MaceModel.model_fields) - set(MaceSubgraph.model_fields)


@pytest.mark.parametrize("key", KEYS)
def test_keys_of_mace(key: str, tmp_path: Path) -> None:
    value, changed = KEYS[key]
    if key == "weight_sha256_checksum":
        (tmp_path / "with").mkdir()
        assert changed(only(mace(tmp_path / "with", {"weight_file_path": "w.bin", key: value})))
        return
    assert changed(only(mace(tmp_path, {key: value}) if key in _OF_MODELS else mace(tmp_path, part={key: value})))
    if key not in ("platform", "model_file_path", "input_tensors"):
        assert not changed(only(mace(tmp_path)))


@pytest.mark.parametrize("key", NOTED)
def test_keys_of_mace_without_effect_are_noted(key: str, tmp_path: Path) -> None:
    noted = [note for note in only(mace(tmp_path, {key: NOTED[key]})).notes if note.startswith(f"{key}:")]
    assert len(noted) == 1
    assert not [note for note in only(mace(tmp_path)).notes if note.startswith(f"{key}:")]


def test_keys_of_mace_for_gpus_reach_the_parts_there(tmp_path: Path) -> None:
    keys = {"limit_opencl_kernel_time": 1, "opencl_queue_window_size": 8, "cl_mem_type": "image"}
    model = only(mace(tmp_path, {**keys, "runtime": "gpu"}))
    assert model.options["gpu"] == {"kernel_time": 1, "queue_window": 8, "images": "all"}
    buffers = only(mace(tmp_path, {"cl_mem_type": "buffer", "runtime": "gpu"}))
    assert buffers.options["gpu"] == {"images": "off"}
    assert not [note for note in model.notes if note.partition(":")[0] in keys]
    assert "gpu" not in only(mace(tmp_path, keys)).options
    assert "gpu" not in only(mace(tmp_path, {"runtime": "gpu"})).options


def test_every_key_of_mace_has_a_test() -> None:
    tested = {"quantize_schema", "quantize_range_file", "change_concat_ranges", *KEYS, *NOTED}
    assert set(MaceModel.model_fields) == tested
    assert set(MaceFile.model_fields) == {
        "library_name",
        "target_abis",
        "target_socs",
        "model_graph_format",
        "model_data_format",
        "models",
        "apu_version_with_no_device",
        "quantize_stat",
    }


def test_defaults_of_mace(tmp_path: Path) -> None:
    net = only(mace(tmp_path))
    assert (net.inputs[0].format, net.outputs[0].format, net.options["precision"]) == ("NHWC", "NHWC", "fp16")
    assert (net.targets, net.thresholds, net.quantize) == (("host",), {"cpu": 0.999, "quantized": 0.98}, None)


def test_keys_of_the_whole_file_of_mace(tmp_path: Path) -> None:
    file = mace(
        tmp_path,
        library_name="lib",
        target_abis="armeabi-v7a, arm64-v8a,arm64,armhf,host",
        target_socs=["msm8998"],
        model_graph_format="code",
        model_data_format="file",
        apu_version_with_no_device=3,
        quantize_stat=False,
    )
    assert read_deployment(file).name == "lib"
    assert only(file).targets == ("android-armv7", "android-arm64", "aarch64", "armv7", "host")
    assert not [note for note in only(file).notes if note.startswith("model_graph_format")]
    lines = problems(mace(tmp_path, model_data_format="code", target_abis=["mips"]))
    assert any("target_abis: 'mips' is none of armeabi-v7a, arm64-v8a, arm64, armhf, host" in line for line in lines)
    assert any("model_graph_format: must be code where model_data_format is code" in line for line in lines)


def test_quantisation_keys_of_mace(tmp_path: Path) -> None:
    chosen = {"quantize": 1, "quantize_schema": "int8", "quantize_range_file": "ranges.txt"}
    expected = {"scheme": "int8", "ranges": str(tmp_path / "ranges.txt")}
    assert only(mace(tmp_path, chosen)).quantize == expected
    joined = only(mace(tmp_path, {**chosen, "change_concat_ranges": True}))
    assert joined.quantize == {**expected, "change_concat_ranges": True}
    assert not [note for note in joined.notes if note.startswith("change_concat_ranges")]
    (problem,) = problems(mace(tmp_path, {"quantize": 1, "quantize_schema": "mace_htp_u16a_s8w"}))
    assert "for accelerators only" in problem
    (problem,) = problems(mace(tmp_path, {"quantize": 1, "quantize_large_weights": 1}))
    assert "cannot be combined with quantize" in problem


def test_mace_file_with_ranges_is_quantised_without_data(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(4, 3, 1, 1)).astype(np.float32)
    nodes = [node("Conv", ["x", "w"], ["c"]), node("Relu", ["c"], ["y"])]
    made = model(nodes, {"x": IMAGE}, ["y"], {"w": weights})
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    (tmp_path / "ranges.txt").write_text("x@@-1,1\nc@@-4,4\ny@@0,4\n")
    chosen = {"quantize": 1, "quantize_schema": "int8", "quantize_range_file": "ranges.txt"}
    config = mace(tmp_path, chosen, {"output_tensors": "y", "output_shapes": "1,4,6,4"})
    (bundle,) = tenon.convert(read_deployment(config), tmp_path / "out")
    x = np.random.default_rng(1).uniform(-1, 1, (1, 4, 6, 3)).astype(np.float32)
    with tenon.open(bundle.folder) as engine:
        answer = engine.run({"x": x})["y"]
    expected = np.maximum(x @ weights[:, :, 0, 0].T, 0)
    assert 0 < np.abs(answer - expected).max() < 0.06
    assert len(np.unique(answer)) <= 256


def test_maces_command_line_converts(tmp_path: Path) -> None:
    network(tmp_path / "net.onnx")
    config = mace(tmp_path, {"dsp_mode": 1}, {"input_tensors": ["x", "y"], "input_shapes": ["1,4,6,3"] * 2})
    words = [
        sys.executable,
        "-m",
        "tenon.compat.mace",
        "convert",
        "--config",
        str(config),
        "--output",
        "made",
    ]
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True, check=False)
    done = run([*words, "--target_abis", "host", "--enable_micro"])
    assert (done.returncode, done.stdout.split()) == (0, ["made/net/host"])
    assert "dsp_mode: no effect" in done.stderr
    assert (tmp_path / "made" / "net" / "host" / "manifest.json").exists()
    wrong = run([*words, "--target_abis", "mips"])
    assert (wrong.returncode, "--target_abis mips: choose of armeabi-v7a" in wrong.stderr) == (2, True)


def encrypted_by_mace(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """MACE's encrypt, in a folder with deploy.yml and net.onnx."""
    network(folder / "net.onnx")
    mace(folder, {"data_type": "fp32_fp32"}, {"input_tensors": ["x", "y"], "input_shapes": ["1,4,6,3"] * 2})
    command = [sys.executable, "-m", "tenon.compat.mace", "encrypt", "--target_abi", "host", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_maces_encrypt_writes_encrypted_files_without_names_of_layers(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(range(32)))
    done = encrypted_by_mace(tmp_path, "--config", "deploy.yml", "--key_file", "key", "--output", "made")
    assert (done.returncode, done.stdout.split()) == (0, ["made/net/host.tenon"]), done.stderr
    path = tmp_path / "made" / "net" / "host.tenon"
    with pytest.raises(WrongKeyError):
        tenon.open(path, key=bytes(32))
    with tenon.open(path, key=tmp_path / "key") as engine:
        x = np.ones((1, 4, 6, 3), np.float32)
        np.testing.assert_array_equal(engine.run({"x": x, "y": -2 * x})["relu"], 0 * x)
    assert [each.name for each in (tmp_path / "made" / "net").iterdir()] == ["host.tenon"]


def test_maces_encrypt_without_a_key_leaves_names_out_only(tmp_path: Path) -> None:
    done = encrypted_by_mace(tmp_path, "--model_file", "net.onnx", "--model_name", "small")
    assert (done.returncode, done.stdout.split()) == (0, ["build/small/host"]), done.stderr
    assert "nothing is encrypted" in done.stderr
    assert "the_sum" not in (tmp_path / "build" / "small" / "host" / "small.c").read_text()
    kept = encrypted_by_mace(tmp_path, "--model_file", "net.onnx", "--no_obfuscate", "--output", "kept")
    assert kept.returncode == 0, kept.stderr
    assert "the_sum" in (tmp_path / "kept" / "net" / "host" / "net.c").read_text()
    assert encrypted_by_mace(tmp_path).returncode == 2


def test_subgraphs_override_their_model(tmp_path: Path) -> None:
    parts = {"a": {"input_tensors": "x", "winograd": 2}, "b": {"input_tensors": "x"}}
    a, b = read_deployment(mace(tmp_path, {"subgraphs": parts, "winograd": 4})).models
    assert [(m.name, m.options["winograd"]) for m in (a, b)] == [("net_a", 2), ("net_b", 4)]


def test_problems_of_a_mace_file(tmp_path: Path) -> None:
    part = {"input_shapes": ["1,2", "3,4"], "input_data_formats": "NHCW", "runtme": "cpu"}
    lines = problems(mace(tmp_path, {"platform": "torch", "validation_threshold": {"CPU": 1.0}}, part))
    assert any("platform: input should be 'tensorflow'" in line for line in lines)
    assert any("runtme: there is no such key; did you mean 'runtime'?" in line for line in lines)
    assert any("input_data_formats.0: input should be" in line for line in lines)
    (problem,) = problems(mace(tmp_path, part={"input_shapes": ["1,2", "3,4"]}))
    assert problem.endswith("input_shapes: has 2 values for the 1 of input_tensors")
    (problem,) = problems(mace(tmp_path, {"validation_threshold": {"TPU": 1.0}}))
    assert "validation_threshold.TPU: is none of CPU, GPU" in problem


BAD: dict[str, tuple[Any, str]] = {
    "runtime": ("npu9", "input should be 'cpu'"),
    "data_type": ("fp7", "input should be 'fp16_fp32'"),
    "micro": ({"backend": "z80"}, "micro.backend: input should be 'cmsis' or 'xtensa'"),
    "graph_optimize_options": (["FOLD_RESHAPE", "NO_SUCH_RULE"], "there is no rule NO_SUCH_RULE"),
    "check_tensors": (["sum", "twice"], "2 tensors have 1 check_shapes"),
    "model_sha256_checksum": ("zz" * 32, "a SHA-256 has 64 hexadecimal digits"),
    "weight_sha256_checksum": ("abc", "a SHA-256 has 64 hexadecimal digits"),
    "dockerfile_sha256_checksum": ("", "it is empty, and nothing would be checked"),
    "validation_threshold": ({"CPU": 7.0}, "7 is no cosine similarity"),
    "accelerator_api": ("vulkan", "input should be 'nnlib' or 'qnn'"),
    "quantize": (5, "input should be 0 or 1"),
    "quantize_large_weights": (-1, "input should be 0 or 1"),
    "obfuscate": (3, "input should be 0 or 1"),
    "input_data_types": ("float33", "input should be 'float32'"),
    "output_data_types": (["int33"], "input should be 'float32'"),
    "input_ranges": ("1.0,-1.0", "the least, 1, is above the greatest, -1"),
    "input_shapes": ("1,0,4,3", "an extent is less than 1"),
    "winograd": (3, "input should be 0, 2 or 4"),
    "cl_mem_type": ("disk", "input should be 'image' or 'buffer'"),
    "backend": ("jax", "input should be 'tensorflow'"),
}


@pytest.mark.parametrize("with_subgraphs", [True, False])
@pytest.mark.parametrize("key", BAD)
def test_bad_values_of_mace_are_reported_at_their_lines(key: str, with_subgraphs: bool, tmp_path: Path) -> None:
    value, words = BAD[key]
    section = {"platform": "onnx", "model_file_path": "net.onnx", "weight_file_path": "w"}
    graph = {"input_tensors": "x", "input_shapes": "1,4,6,3", "output_tensors": "relu", "output_shapes": "1,4,6,3"}
    parts = {"subgraphs": [graph]} if with_subgraphs and key not in graph else graph
    more = {"check_shapes": "1,2"} if key == "check_tensors" else {}
    path = written(tmp_path, {"models": {"net": {**section, **parts, key: value, **more}}})
    lines = path.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.strip().startswith(f"{key}:"))
    (problem,) = problems(path)
    assert words in problem, problem
    assert line <= int(problem.partition(":")[0]) <= line + 2, problem


LATER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "model_file_path": ({"model_file_path": "none.onnx"}, {}),
    "model_sha256_checksum": ({"model_sha256_checksum": "ab" * 32}, {}),
    "weight_file_path": ({"weight_file_path": "none.bin"}, {}),
    "dockerfile_path": ({"dockerfile_path": "none"}, {}),
    "input_tensors": ({}, {"input_tensors": "zzz"}),
    "output_tensors": ({}, {"output_tensors": "zzz"}),
    "check_tensors": ({"check_tensors": "zzz"}, {}),
    "input_shapes": ({}, {"input_shapes": "1,4,6"}),
    "input_data_formats": ({}, {"input_data_formats": "NCHW"}),
    "input_data_types": ({}, {"input_data_types": "bfloat16"}),
    "output_data_types": ({}, {"output_data_types": "int16"}),
    "quantize": ({"quantize": 1}, {}),
    "quantize_range_file": ({"quantize": 1, "quantize_range_file": "none.txt"}, {}),
    "validation_inputs_data": ({"validation_inputs_data": "none.npy"}, {}),
    "validation_outputs_data": ({"validation_outputs_data": "none.npy"}, {}),
    "accuracy_validation_script": ({"accuracy_validation_script": "none.py"}, {}),
}
"""Values of MACE's keys that are found to be wrong when files are read and models are converted."""


@pytest.mark.parametrize("key", LATER)
def test_errors_of_conversions_name_the_key(key: str, tmp_path: Path) -> None:
    network(tmp_path / "net.onnx")
    path = mace(tmp_path, *LATER[key])
    with pytest.raises(TenonError) as error:
        convert(read_deployment(path), tmp_path / "out")
    lines = path.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.strip(" -").startswith(f"{key}:"))
    text = str(error.value)
    assert key in text
    assert f"deploy.yml:{line}: models.net." in text or f"line {line})" in text


def test_unsupported_models_are_reported_with_their_key(tmp_path: Path) -> None:
    made = model([node("Unheard", ["x"], ["relu"])], {"x": (1, 4, 6, 3)}, ["relu"])
    (tmp_path / "net.onnx").write_bytes(made.SerializeToString())
    with pytest.raises(UnsupportedError, match=r"(?s)deploy.yml:\d+: models.net.model_file_path: .*Unheard"):
        convert(read_deployment(mace(tmp_path)), tmp_path / "out")


def test_a_checksum_needs_its_file(tmp_path: Path) -> None:
    (problem,) = problems(mace(tmp_path, {"weight_sha256_checksum": "ab" * 32}))
    assert "weight_sha256_checksum: there is no weight_file_path" in problem
    (problem,) = problems(written(tmp_path, {"models": {"m": {"model": "n", "weights_sha256": "ab" * 32}}}))
    assert "weights_sha256: there are no weights" in problem


@pytest.mark.parametrize(
    "key", ["quantize_range_file", "validation_inputs_data", "validation_outputs_data", "accuracy_validation_script"]
)
def test_missing_files_of_mace_are_listed(key: str, tmp_path: Path) -> None:
    network(tmp_path / "net.onnx")
    for check in (("--check",), ()):
        done = command("convert", "--config", mace(tmp_path, {key: "missing"}), *check, "-o", "out", cwd=tmp_path)
        assert done.returncode == 2
        assert "missing: there is no such file" in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


def test_tensors_to_check_have_to_be_in_the_model(tmp_path: Path) -> None:
    network(tmp_path / "net.onnx")
    for name, status in (("sum", 0), ("nothing", 2)):
        config = mace(
            tmp_path,
            {"check_tensors": name, "check_shapes": "1,3,4,6"},
            {"input_tensors": ["x", "y"], "input_shapes": ["1,4,6,3"] * 2},
        )
        done = command("convert", "--config", config, "--check", cwd=tmp_path)
        assert done.returncode == status, done.stderr
        assert ("nothing" in done.stderr) == (status == 2)


@pytest.mark.parametrize("enabled", [True, False])
def test_images_of_microcontrollers_are_channels_last(enabled: bool, tmp_path: Path) -> None:
    """As MACE's convert.py turns shapes in NCHW."""
    network(tmp_path / "net.onnx")
    part = {"input_tensors": ["x", "y"], "input_shapes": ["1,3,4,6"] * 2, "output_shapes": "1,3,4,6"}
    formats = {"input_data_formats": "NCHW", "output_data_formats": "NCHW", "data_type": "fp32_fp32"}
    config = mace(tmp_path, {} if enabled else {"micro": {"backend": "cmsis"}}, {**part, **formats})
    words = [
        sys.executable,
        "-m",
        "tenon.compat.mace",
        "convert",
        "--config",
        str(config),
        "--output",
        "made",
    ]
    done = subprocess.run(
        [*words, *(["--enable_micro"] if enabled else [])], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "made" / "net" / "host"
    with tarfile.open(folder / "net_micro.tar.gz") as archive:
        (name,) = (name for name in archive.getnames() if name.endswith("net_engine.cc"))
        engine = archive.extractfile(name)
        assert engine is not None
        text = engine.read().decode()
    assert text.count("{1, 4, 6, 3}") == 3
    x, y = np.random.default_rng(0).normal(size=(2, 1, 4, 6, 3)).astype(np.float32)
    with tenon.open(folder) as opened:
        np.testing.assert_allclose(opened.run({"x": x, "y": y})["relu"], np.maximum(x + y, 0), rtol=1e-6)


# ------------------------------------------------------------------------------------------------- both forms
NAMES = ["../../evil", "/tmp/evil", "a/b", "..", ".", "", "a\\b", "c:evil", "line\nbreak", " blank"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_models_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    network(tmp_path / "net.onnx")
    (problem,) = problems(written(tmp_path, {"models": {name: {"model": "net.onnx"}}}))
    assert problem.startswith("2: ")
    assert "is no plain name of a folder" in problem
    section = {"platform": "onnx", "model_file_path": "net.onnx"}
    assert "is no plain name of a folder" in problems(written(tmp_path, {"models": {name: section}}))[0]
    parts: dict[str, Any] = {"subgraphs": {"a": {}, f"{name}/": {}}}
    assert "is no plain name of a folder" in problems(written(tmp_path, {"models": {"net": {**section, **parts}}}))[0]
    with pytest.raises(InputError, match="is no plain name"):
        DeployedModel(name, ModelSource("net.onnx"))
    done = encrypted_by_mace(tmp_path, "--model_file", "net.onnx", "--model_name", name or "..", "--output", "a/b/out")
    assert (done.returncode, "is no plain name" in done.stderr) == (2, True)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("value", ["", " ", "${EMPTY}", "12", "g" * 64])
@pytest.mark.parametrize("key", ["sha256", "weights_sha256"])
def test_checksums_are_checksums(key: str, value: str, tmp_path: Path) -> None:
    network(tmp_path / "net.onnx")
    path = written(tmp_path, {"models": {"m": {"model": "net.onnx", "weights": "net.onnx", key: value}}})
    (problem,) = problems(path, EMPTY="")
    assert re.search(rf"{key}: (it is empty|a SHA-256 has 64)", problem)


def test_an_empty_checksum_is_an_error_everywhere(tmp_path: Path) -> None:
    path = network(tmp_path / "net.onnx")
    for source in (path, path.read_bytes()):
        with pytest.raises(InputError, match="the SHA-256 is empty"):
            tenon.load(source, sha256="")
    assert "the SHA-256 is empty" in command("inspect", path, "--sha256", "").stderr


NUMBERS = [begin + 6000 * digit for begin, digit in (("", "9"), ("-", "9"), ("0x", "f"), ("1.", "9"), ("1e", "9"))]


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
def test_numbers_of_many_digits(number: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"models:\n  m:\n    model: net.onnx\n    threads: {number}\n")
    lines = problems(path)
    assert any("4: " in line and f"a number of {len(number)} characters" in line for line in lines)


def test_a_mace_file_gives_the_same_answer_as_compile(tmp_path: Path) -> None:
    network(tmp_path / "net.onnx")
    part = {"input_tensors": ["x", "y"], "input_shapes": ["1,4,6,3"] * 2}
    config = mace(tmp_path, {"data_type": "fp32_fp32"}, part)
    assert "1 bundle(s)" in succeeds("convert", "--config", config, "-o", "out", cwd=tmp_path)
    x, y = np.random.default_rng(0).normal(size=(2, 1, 4, 6, 3)).astype(np.float32)
    with tenon.open(tmp_path / "out" / "net" / "host") as engine:
        answer = engine.run({"x": x, "y": y})
    np.testing.assert_allclose(answer["relu"], np.maximum(x + y, 0), rtol=1e-6)


def test_files_of_maces_collection(tmp_path: Path) -> None:
    """All are read; only a list of devices, which is another kind of file, is not."""
    files = sorted(shared("models/mace_yml").rglob("*.yml"))
    unreadable = []
    for file in files:
        try:
            assert read_deployment(file).models
        except InputError:
            unreadable.append(file.name)
    assert (len(files) > 50, unreadable) == (True, ["demo_device_nanopi.yml"])
