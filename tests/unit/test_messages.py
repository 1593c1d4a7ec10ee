"""Messages for unsupported files, and for problems of several layers."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest

import tensorflow_models as tf
from caffe_models import caffemodel, head, layer, random
from onnx_models import model, node
from small_models import MXNET, mxnet_parameters, mxnet_stored, mxnet_symbol, paddle_tensor
from tenon.errors import FormatError, Problem, UnsupportedError
from tenon.formats import importers
from tenon.formats.importers.unsupported_formats import FORMATS, foreign


def torch_archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"w": 1}))
    return out.getvalue()


PICKLE = pickle.dumps({"state": 1})
FOREIGN: dict[str, tuple[bytes, str, str]] = {
    "net.mnn": (bytes(40), "a model of MNN", "export the original model to ONNX"),
    "net.tnnproto": (b'"1 2 1 4206624770 ,"', "a model of TNN", "ONNX"),
    "net.xml": (b'<?xml version="1.0"?><net name="n" version="10">', "a model of OpenVINO", "ONNX"),
    "other": (b'<?xml version="1.0"?><net name="n" version="10">', "a model of OpenVINO", "ONNX"),
    "net.mlmodel": (b"\x08\x05\x12\x00\xa2\x1f\x00", "Core ML", "ONNX"),
    "net.engine": (b"ftrt" + bytes(40), "TensorRT", "the model that it was built from"),
    "net.trt": (bytes(40), "TensorRT", "the model that it was built from"),
    "net.om": (b"IMOD" + bytes(40), "Ascend", "the model that it was built from"),
    "net.rknn": (b"RKNN" + bytes(40), "RKNN", "the model that it was built from"),
    "net.nb": (bytes(40), "Paddle Lite", "the program of Paddle"),
    "net.mindir": (bytes(40), "MindSpore", "file_format='ONNX'"),
    "net.mge": (PICKLE, "a checkpoint of MegEngine, a pickle", "jit.trace"),
    "net.pkl": (PICKLE, "a pickle, which is never opened", "torch.export"),
    "no_ending": (PICKLE, "a pickle, which is never opened", "torch.export"),
    "net.pdparams": (PICKLE, "a checkpoint of Paddle", "paddle.jit.save"),
    "net.ckpt": (torch_archive(), "a file of PyTorch, a pickle", "torch.export"),
    "pytorch_model.bin": (torch_archive(), "a file of PyTorch, a pickle", "torch.export"),
    "net.pth": (PICKLE, "pickles, which are never opened", "torch.export"),
    "model.ckpt-7.index": (b"\0\1\2", "a checkpoint of TensorFlow", "SavedModel"),
    "model.json": (json.dumps({"modelTopology": {}}).encode(), "TensorFlow.js", "SavedModel"),
    "config.json": (b'{"class_name": "Functional", "config": {}}', "without its weights", ".keras"),
    "net.json": (b'{"layers": 3}', "JSON that is neither", "the model's own file"),
    "net-0001.params": (mxnet_parameters(mxnet_stored()), "parameters of MXNet", "NAME-symbol.json"),
    "net.pdiparams": (paddle_tensor(np.ones(3, np.float32)), "parameters of Paddle", ".pdmodel"),
    "net.weights": (bytes(40), "weights of Darknet", "the .cfg"),
    "net.param": (b"2 2\nInput data 0 1 data 0 3 4\nReLU r 1 1 data y 0.0\n", "before 2017", "convert the original"),
    "net.npy": (b"\x93NUMPY\1\0", "an array of NumPy", "--input"),
    "net.bin": (bytes(range(200)), "weights alone", ".param"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_known_unsupported_formats_are_named(name: str, tmp_path: Path) -> None:
    data, what, remedy = FOREIGN[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(FormatError) as error:
        importers.load(tmp_path / name)
    message = str(error.value)
    assert message.startswith(f"{name}: ")
    assert what in message
    assert remedy in message


def test_supported_files_are_not_reported_as_unsupported() -> None:
    endings = {ending for one in FORMATS for ending in one.endings}
    mains = {pattern.lstrip("*") for one in importers.FORMATS.values() for pattern in one.main}
    # MegEngine dumps are recognised by content; other files with this suffix are checkpoints.
    assert endings & mains == {".mge"}


def test_folders_of_other_formats(tmp_path: Path) -> None:
    package = tmp_path / "net.mlpackage"
    package.mkdir()
    (package / "Manifest.json").write_text("{}")
    with pytest.raises(FormatError, match="Core ML"):
        importers.load(package)
    folder = tmp_path / "openvino"
    folder.mkdir()
    (folder / "net.xml").write_text("<net>")
    (folder / "net.bin").write_bytes(b"\0")
    with pytest.raises(FormatError, match=r"of 'net\.xml' in it, not a model that Tenon reads but a model of OpenVINO"):
        importers.load(folder)


def test_missing_parameters_of_a_symbol_give_a_remedy() -> None:
    assert "--weights" in importers.load(mxnet_symbol(*MXNET), {"data": (1, 4, 6, 6)}).incomplete
    assert foreign("hello.txt", b"hello") == ""


# --------------------------------------------------------------------------------------- one problem per cause
def with_external_data(folder: Path, count: int = 46) -> Path:
    nodes = [node("Gemm", ["x" if i == 0 else f"t{i - 1}", f"w{i}"], [f"t{i}"]) for i in range(count)]
    weights = {f"w{i}": np.full((4, 4), i, np.float32) for i in range(count)}
    made = model(nodes, {"x": (1, 4)}, [f"t{count - 1}"], weights)
    onnx.save(made, str(folder / "m.onnx"), save_as_external_data=True, location="m.data", size_threshold=0)
    return folder / "m.onnx"


def test_missing_data_file_is_one_problem(tmp_path: Path) -> None:
    path = with_external_data(tmp_path)
    importers.load(path)
    for damage, what in ((None, "is missing"), (b"", "would end after the 0 bytes of 'm.data'")):
        (tmp_path / "m.data").unlink() if damage is None else (tmp_path / "m.data").write_bytes(damage)
        with pytest.raises(UnsupportedError) as error:
            importers.load(path)
        head, *lines = str(error.value).splitlines()
        assert head == "m.onnx: 1 problem in this model"
        assert lines[0].startswith("  - initializer 'w0', initializer 'w1', initializer 'w2' and 43 more: ")
        assert what in lines[0]
        assert len(lines) == 1
        assert len(error.value.problems) == 46


def test_missing_variables_are_one_problem(tmp_path: Path) -> None:
    nodes, last = [tf.placeholder("x", 2)], "x"
    for i in range(94):
        nodes += [tf.node(f"v{i}", "VarHandleOp", shared_name=f"v{i}"), tf.node(f"r{i}", "ReadVariableOp", f"v{i}")]
        nodes.append(tf.node(f"a{i}", "Add", last, f"r{i}"))
        last = f"a{i}"
    folder = tf.saved_model(tmp_path / "net", tf.graph(*nodes), {"y": last}, {})
    with pytest.raises(UnsupportedError, match="1 problem in this model") as error:
        importers.load(folder)
    assert len(str(error.value).splitlines()) == 2


def test_weights_of_another_caffe_net_give_one_problem() -> None:
    text = head(1, 2, 5, 5)
    for i in range(9):
        options = "convolution_param { num_output: 2 kernel_size: 1 bias_term: false }"
        text += layer("Convolution", options, ("data",), f"t{i}", f"conv{i}")
    with pytest.raises(UnsupportedError, match=r"conv0 .*conv1 .*conv2 .*and 6 more: has no weights") as error:
        importers.load(text.encode(), weights=caffemodel({"other": [random(2)]}))
    assert len(str(error.value).splitlines()) == 2


def test_different_causes_are_separate_problems() -> None:
    problems = [Problem(f"layer {i}", "one") for i in range(4)] + [Problem("layer 9", "other", "do this", "f32[1]")]
    assert str(UnsupportedError("net", problems)).splitlines() == [
        "net: 2 problems in this model",
        "  - layer 0, layer 1, layer 2 and 1 more: one",
        "  - layer 9 of f32[1]: other (do this)",
    ]
    assert len(str(UnsupportedError("net", problems[:3])).splitlines()) == 4
