"""Models of several files that libtenon has compiled: a change of any of the files compiles the model again."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import onnx
import pytest

import tenon
from libtenon import BUILDS, client, run, sanitized_client, sdk_for_clients, succeeded
from real import DIGITS, held_out_digits

IMAGE = held_out_digits()[0][0]
pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="clients are compiled for Linux here")

EXTERNAL = onnx.TensorProto(name="w", dims=[2], data_type=onnx.TensorProto.FLOAT, data_location="EXTERNAL")
for key, value in {"location": "weights/part.0", "offset": "0", "length": "8"}.items():
    EXTERNAL.external_data.add(key=key, value=value)
LONG = onnx.TensorProto(name="v", dims=[2], data_type=onnx.TensorProto.FLOAT, data_location="EXTERNAL")
LONG.external_data.add(key="location", value="long" * 40)
ONNX = onnx.ModelProto(
    ir_version=8, graph=onnx.GraphProto(name="net", initializer=[EXTERNAL, LONG])
).SerializeToString()

FORMATS = {
    "ONNX": ("net.onnx", ("weights/part.0", "long" * 40)),
    "ONNX named alike": ("net.onnx", ("net.data",)),
    "Caffe": ("net.prototxt", ("net.caffemodel", "mean.binaryproto")),
    "Caffe deploy": ("net_deploy.prototxt", ("net.caffemodel",)),
    "Caffe other name": ("deploy.prototxt", ("net_iter_100.caffemodel",)),
    "Caffe weights": ("net.caffemodel", ("net.prototxt",)),
    "Darknet": ("net.cfg", ("net_final.weights", "9k.tree")),
    "Darknet weights": ("net.weights", ("net.cfg",)),
    "ncnn": ("net.param", ("net.bin",)),
    "ncnn binary": ("net.param.bin", ("net.bin",)),
    "ncnn weights": ("net.bin", ("net.param",)),
    "Caffe2": ("predict_net.pb", ("init_net.pb",)),
    "Caffe2 weights": ("init_net.pb", ("predict_net.pb",)),
    "Paddle": ("net.pdmodel", ("net.pdiparams",)),
    "Paddle JSON": ("net.json", ("net.pdiparams",)),
    "Paddle parameters": ("net.pdiparams", ("net.pdmodel",)),
    "Paddle params": ("__model__", ("__params__",)),
    "Paddle separate": ("__model__", ("conv_0.w_0", "fc_0.b_0")),
    "MXNet": ("net-symbol.json", ("net-0000.params",)),
    "MXNet parameters": ("net-0000.params", ("net-symbol.json",)),
    "OneFlow": ("model.mlir", ("model.conv.weight/out", "model.conv.weight/meta")),
    "MACE": ("net.pb", ("net.data",)),
    "MACE weights": ("net.data", ("net.pb",)),
    "TensorFlow": ("saved_model.pb", ("variables/variables.index", "variables/variables.data-00000-of-00001")),
}
"""The model that is opened and its other files.  Tengine, TFLite, PyTorch, Keras and MegEngine have one file."""


@pytest.fixture(scope="module", params=BUILDS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("companions")
    return client("run_bundle", sdk_for_clients(folder, request.param), folder)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "digits.tenon"
    tenon.compile(DIGITS / "digits.onnx", no_tuning=True).save(path)
    return path


class Models:
    """A folder with a model, whose compiler gives the same bundle for any content and counts its starts."""

    def __init__(self, program: Path, bundle: Path, place: Path) -> None:
        self.program, self.place = program, place
        script = place / "compiler"
        script.write_text(f'#!/bin/sh\necho start >> "{place}/starts"\ncp "{bundle}" "${{3#--output=}}"\n')
        script.chmod(0o755)
        self.env = {**os.environ, "TENON": str(script), "TENON_CACHE": str(place / "cache")}

    def write(self, name: str, content: bytes) -> None:
        path = self.place / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def starts(self, model: str) -> int:
        """How often the compiler was started, after the model was opened once more."""
        succeeded(run(self.program, model, stdin=IMAGE.tobytes(), env=self.env))
        return len((self.place / "starts").read_text().splitlines())


@pytest.fixture
def models(program: Path, bundle: Path, tmp_path: Path) -> Models:
    return Models(program, bundle, tmp_path)


@pytest.mark.parametrize("case", FORMATS)
def test_a_change_of_any_file_of_a_model_compiles_it_again(case: str, models: Models) -> None:
    name, others = FORMATS[case]
    models.write(name, ONNX)
    path = str(models.place / "models" / name)
    for other in others:
        models.write(other, b"first")
    assert models.starts(path) == 1
    assert models.starts(path) == 1, "found in the cache"
    for count, other in enumerate(others):
        models.write(other, b"other")  # of the same length
        assert models.starts(path) == 2 + count, other
        assert models.starts(path) == 2 + count, other


def test_other_files_do_not_matter(models: Models) -> None:
    """Files of other models of the folder do not matter, as long as a file is named like the model."""
    models.write("net.prototxt", b"model")
    models.write("net.caffemodel", b"weights")
    path = str(models.place / "models" / "net.prototxt")
    assert models.starts(path) == 1
    for other in ("log.txt", "other.caffemodel", "network.caffemodel", "net.txt", "folder/net.caffemodel"):
        models.write(other, b"new")
        assert models.starts(path) == 1, other
    (models.place / "models" / "net.caffemodel").unlink()
    assert models.starts(path) == 2


def test_a_model_in_the_working_folder(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    models.write("net.param", b"model")
    models.write("net.bin", b"first")
    monkeypatch.chdir(models.place / "models")
    assert models.starts("net.param") == 1
    models.write("net.bin", b"other")
    assert models.starts("net.param") == 2


def test_names_that_models_make_up(tmp_path: Path) -> None:
    """Under sanitizers; TENON_FUZZ is the number of models."""
    program = sanitized_client("damaged_companions", tmp_path, "address,undefined")
    (tmp_path / "files").mkdir()
    done = run(program, tmp_path / "files", os.environ.get("TENON_FUZZ", "2000"))
    succeeded(done)
    assert b"cannot read pipe" in done.stderr
